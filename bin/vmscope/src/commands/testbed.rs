//! `vmscope testbed`.

use std::process::ExitCode;

/// Run experiments on a virtual KVM host.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_args: &Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not built yet")
}
