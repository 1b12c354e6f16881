//! `vmscope report`.

use std::process::ExitCode;

/// Report a recording by function, process, VM, ....
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_args: &Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not built yet")
}
