//! `vmscope layout`.

mod daemon;
mod exec_policy;
mod file;
mod plan;
mod simulate;

use std::process::ExitCode;

use clap::Subcommand;
use migration::NO_POLICY;

/// The layout daemon's configuration.
pub(super) const CONFIG: &str = "/etc/vmscope/layout.toml";

/// Plan and move VMs' memory and vCPUs on NUMA nodes, also during live migration.
///
/// docs/layout.md explains the policies, the memory model and the files.
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true, after_help = EXAMPLE)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

const EXAMPLE: &str = "Examples:
  vmscope layout plan                                            plan only
  vmscope layout apply                                           plan and move
  vmscope layout daemon                                          prepare nodes for live migrations
  vmscope layout simulate host.toml vms.toml                     a migration, by each policy
  vmscope layout simulate host.toml vms.toml --format html -o migration.html";

#[derive(Debug, Subcommand)]
enum Action {
    Plan(plan::PlanArgs),
    Apply(plan::ApplyArgs),
    Simulate(simulate::Args),
    Daemon(daemon::DaemonArgs),
    Template(daemon::TemplateArgs),
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.action {
        Action::Plan(args) => plan::plan(args),
        Action::Apply(args) => plan::apply(args),
        Action::Simulate(args) => simulate::run(args),
        Action::Daemon(args) => daemon::daemon(args),
        Action::Template(args) => daemon::template(args),
    }
}

/// A policy's name, or none, for `--policy` of a migration.
pub(super) fn migration_policy(name: &str) -> Result<String, String> {
    if name == NO_POLICY { Ok(name.to_owned()) } else { policy(name) }
}

/// A policy's name or program, for `--policy` of plans.
fn plan_policy(name: &str) -> Result<String, String> {
    if exec_policy::program(name).is_some() {
        return Ok(name.to_owned());
    }
    policy(name).map_err(|names| format!("{names}, and exec:PROGRAM"))
}

/// A policy's name, for `--policy`.
fn policy(name: &str) -> Result<String, String> {
    if layout::POLICIES.contains(&name) {
        return Ok(name.to_owned());
    }
    Err(format!("there are {}", layout::POLICIES.join(", ")))
}
