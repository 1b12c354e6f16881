//! `vmscope testbed`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use ::testbed::KvmVerdict;
use anyhow::Context;
use clap::{Parser, Subcommand, ValueEnum};

use cli::Usage;
use cli::duration_in_seconds;

/// Run commands on a virtual KVM host with guests, on any machine.
#[derive(Debug, Parser)]
#[command(arg_required_else_help = true, after_help = EXAMPLE)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

const EXAMPLE: &str = "Examples:
  vmscope testbed run scenarios/demo.toml -o out -- vmscope record -o day1 --duration 20
  vmscope testbed shell scenarios/one-guest.toml";

const RUN_EXAMPLE: &str = "Examples:
  vmscope testbed run scenarios/demo.toml -o out -- vmscope record -o day1 --duration 20
  vmscope report out/day1                 the command's files are in out/";

const SHELL_EXAMPLE: &str = "Example:
  vmscope testbed shell scenarios/one-guest.toml";

const EXEC_EXAMPLE: &str =
    "Example, at the prompt of `testbed shell` or in a command of `testbed run`:
  vmscope testbed exec web -- top -b -n 1";

const ON_EXAMPLE: &str = "Example, in a command of `testbed run` with a scenario that has a [peer]:
  vmscope testbed on kvm2 -- vmscope testbed exec web -- uptime";

const END_EXAMPLE: &str = "Example, in a command of `testbed run`:
  vmscope testbed end web";

const STEPS_EXAMPLE: &str = "Example:
  vmscope testbed run scenarios/pause.toml -- vmscope record -o day1 -- vmscope testbed steps";

#[derive(Debug, Subcommand)]
enum Action {
    /// Run a command on a KVM host with the guests of a scenario, and copy back the files it writes.
    #[command(after_help = RUN_EXAMPLE)]
    Run(Run),
    /// Open a shell on the virtual KVM host, with the guests of a scenario if one is given.
    #[command(after_help = SHELL_EXAMPLE)]
    Shell {
        /// The scenario file.
        scenario: Option<PathBuf>,
    },
    /// Run a command in a guest; works only inside a testbed.
    #[command(after_help = EXEC_EXAMPLE)]
    Exec {
        /// The guest's name.
        guest: String,
        /// The command and its arguments.
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Run a command on the other host of a scenario with two; works only inside a testbed.
    #[command(after_help = ON_EXAMPLE)]
    On {
        /// The other host's name.
        host: String,
        /// The command and its arguments.
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// End a guest at once, as a crash of its QEMU would; works only inside a testbed.
    #[command(after_help = END_EXAMPLE)]
    End {
        /// The guest's name.
        guest: String,
    },
    /// Run the scenario's steps, each at its time from now; works only inside a testbed.
    ///
    /// Prints a line per step: its start and end (seconds of the monotonic clock), and the step.
    #[command(after_help = STEPS_EXAMPLE)]
    Steps,
    /// Say by the exit code whether this machine's KVM runs guests.
    #[command(hide = true)]
    Probe {
        /// How long the trial may take.
        #[arg(long, default_value = "5", value_name = "TIME", value_parser = duration_in_seconds)]
        timeout: Duration,
    },
    /// Run by the init of the virtual host.
    #[command(hide = true)]
    Inside,
}

#[derive(Debug, clap::Args)]
struct Run {
    /// The scenario file.
    scenario: PathBuf,
    /// Folder for the files that the command writes [default: the current folder]
    #[arg(short, long, visible_alias = "out", value_name = "DIR")]
    output: Option<PathBuf>,
    /// Time limit of the whole run, in seconds (or with a unit: 20m).
    #[arg(long, default_value = "15m", value_name = "TIME", value_parser = duration_in_seconds)]
    timeout: Duration,
    /// Machine that runs the guests.
    #[arg(long, value_enum, default_value = "auto")]
    host: Host,
    /// The command and its arguments [default: the scenario's]
    #[arg(last = true)]
    command: Vec<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Host {
    /// This machine if its KVM runs guests and the user is root, else the virtual host.
    Auto,
    /// The virtual host.
    Virtual,
    /// This machine.
    Direct,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let vmscope = || cli::find_program("vmscope");
    let code = match &args.action {
        Action::Run(run) => ::testbed::run(&::testbed::Run {
            scenario: run.scenario.clone(),
            command: run.command.clone(),
            out: run.output.clone(),
            timeout: run.timeout,
            host: match run.host {
                Host::Auto => ::testbed::HostChoice::Auto,
                Host::Virtual => ::testbed::HostChoice::Virtual,
                Host::Direct => ::testbed::HostChoice::Direct,
            },
            vmscope: vmscope()?,
            narrates: false,
        })
        .map_err(usage)?,
        Action::Shell { scenario } => {
            ::testbed::shell(scenario.as_deref(), &vmscope()?).map_err(usage)?
        }
        Action::Exec { guest, command } => show(&::testbed::exec(guest, command)?)?,
        Action::On { host, command } => show(&::testbed::on(host, command)?)?,
        Action::End { guest } => {
            ::testbed::end(guest)?;
            0
        }
        Action::Steps => {
            let mut out = std::io::stdout();
            // The steps go on when nothing reads of them any more.
            ::testbed::steps(|done| drop(writeln!(out, "{done}")))?;
            0
        }
        Action::Probe { timeout } => match ::testbed::probe_kvm(*timeout) {
            KvmVerdict::Works => 0,
            KvmVerdict::Absent => anyhow::bail!("there is no /dev/kvm"),
            KvmVerdict::Unusable(reason) => anyhow::bail!(reason),
        },
        Action::Inside => {
            ::testbed::inside()?;
            0
        }
    };
    Ok(ExitCode::from(code))
}

fn show(output: &::testbed::ExecOutput) -> anyhow::Result<u8> {
    std::io::stdout().write_all(&output.stdout).context("failed to write the output")?;
    std::io::stderr().write_all(&output.stderr).context("failed to write the errors")?;
    Ok(output.code)
}

/// Usage errors have their own exit code.
fn usage(error: ::testbed::Error) -> anyhow::Error {
    if error.is_usage() { Usage(error.to_string()).into() } else { error.into() }
}
