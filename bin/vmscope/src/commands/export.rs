//! `vmscope export`.

use std::process::ExitCode;

/// Write a recording in another tool's format.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_args: &Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not built yet")
}
