//! `vmscope demo`.

use std::process::ExitCode;

/// Show vmscope at work on a virtual KVM host with three guests.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_args: &Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not built yet")
}
