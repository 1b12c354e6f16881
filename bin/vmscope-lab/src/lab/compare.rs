//! `vmscope lab compare`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use lab::report::Side;

use super::report::{Results, read};
use cli::Format;
use cli::print;

const EXAMPLE: &str = "Examples:
  vmscope lab compare monday tuesday                 do two runs of a plan agree?
  vmscope lab compare old-kernel new-kernel --format csv";

/// Compare two results: numbers of VMs, and turnarounds at the same number of VMs.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Args {
    /// Folder of the first result
    a: PathBuf,
    /// Folder of the second result
    b: PathBuf,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (a, b) = (read(&args.a)?, read(&args.b)?);
    let names = [&args.a, &args.b].map(|dir| dir.display().to_string());
    let mut report = lab::report::compare(side(&names[0], &a), side(&names[1], &b));
    report.notes.extend(a.problems.into_iter().chain(b.problems));
    print(&args.format.render(&report)).context("failed to write to standard output")?;
    Ok(ExitCode::SUCCESS)
}

fn side<'a>(name: &'a str, results: &'a Results) -> Side<'a> {
    Side { name, plan: &results.plan, runs: &results.runs }
}
