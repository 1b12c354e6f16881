//! `vmscope lab report`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use lab::{Plan, Run};

use super::super::Usage;
use super::super::output::ReportOutput;

const EXAMPLE: &str = "Examples:
  vmscope lab report result
  vmscope lab report result --format html -o result.html
  vmscope lab report result --format csv             a line per measurement";

/// Show how many VMs a host takes, why no more, and what helps.
///
/// docs/lab.md explains the figures, the model and the JSON.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Args {
    /// The folder of the results
    dir: PathBuf,
    #[command(flatten)]
    output: ReportOutput,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (plan, runs) = read(&args.dir)?;
    let report = || lab::report::results(&plan, &runs);
    args.output.write(report, |page| export::lab::html(&plan, &runs, page))?;
    Ok(ExitCode::SUCCESS)
}

/// The plan and the measurements in a folder.
pub(super) fn read(dir: &Path) -> anyhow::Result<(Plan, Vec<Run>)> {
    let plan = consolidate::read_plan(&consolidate::plan_file(dir))?;
    let runs = consolidate::read_runs(&consolidate::runs_folder(dir))?;
    if runs.is_empty() {
        return Err(Usage(format!("{} has no measurement yet", dir.display())).into());
    }
    Ok((plan, runs))
}
