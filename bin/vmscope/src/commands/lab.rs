//! `vmscope lab`.

mod capture;
mod split;

use std::process::ExitCode;

use clap::Subcommand;

/// Measure how many VMs a host takes, and what helps.
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true, after_help = EXAMPLE)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

const EXAMPLE: &str = "Examples:
  vmscope lab capture tap-web tap-db -o taps.pcapng --duration 20
  vmscope lab split taps.pcapng                where the time of web requests went, by packets";

#[derive(Debug, Subcommand)]
enum Action {
    Split(split::Args),
    Capture(capture::Args),
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.action {
        Action::Split(args) => split::run(args),
        Action::Capture(args) => capture::run(args),
    }
}
