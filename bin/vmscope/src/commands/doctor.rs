//! `vmscope doctor`.

use std::process::ExitCode;

/// Say what this machine can and cannot do.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_args: &Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not built yet")
}
