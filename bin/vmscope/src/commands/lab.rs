//! `vmscope lab`.

use std::process::ExitCode;

use clap::Subcommand;

/// Measure how many VMs a host takes, and what helps.
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match args.action {}
}
