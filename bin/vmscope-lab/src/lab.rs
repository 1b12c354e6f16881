//! `vmscope lab`.

mod capture;
mod compare;
mod consolidate;
mod inside;
mod load;
mod report;
mod split;

use std::process::ExitCode;

use clap::Subcommand;

/// Measure how many VMs a host takes, and what helps.
///
/// docs/lab.md explains plans, figures and results.
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true, after_help = EXAMPLE)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

const EXAMPLE: &str = "Examples:
  vmscope lab consolidate plan.toml -o result   more and more VMs under load
  vmscope lab report result                     number of VMs, limits, remedies
  vmscope lab load http://10.0.0.5/ --rate 50   requests alone
  vmscope lab capture tap-web tap-db -o taps.pcapng --duration 20
  vmscope lab split taps.pcapng                 web server's time, database's time";

#[derive(Debug, Subcommand)]
enum Action {
    Consolidate(consolidate::Args),
    Report(report::Args),
    Compare(compare::Args),
    Load(load::Args),
    Capture(capture::Args),
    Split(split::Args),
    /// Carries out a job on the KVM host that it runs on.
    #[command(hide = true)]
    Inside(inside::Args),
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.action {
        Action::Consolidate(args) => consolidate::run(args),
        Action::Report(args) => report::run(args),
        Action::Compare(args) => compare::run(args),
        Action::Load(args) => load::run(args),
        Action::Capture(args) => capture::run(args),
        Action::Split(args) => split::run(args),
        Action::Inside(args) => inside::run(args),
    }
}
