//! `vmscope lab report`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use lab::{Plan, Run};

use cli::ReportOutput;
use cli::Usage;

const EXAMPLE: &str = "Examples:
  vmscope lab report result
  vmscope lab report result --format html -o result.html
  vmscope lab report result --format csv             a line per measurement";

/// Print how many VMs a host takes, what limits it, and what helps.
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
    let Results { plan, runs, problems } = read(&args.dir)?;
    let report = || lab::report::results(&plan, &runs, &problems);
    args.output.write(report, |page| export::lab::html(&plan, &runs, &problems, page))?;
    Ok(ExitCode::SUCCESS)
}

/// What is in a folder of results.
pub(super) struct Results {
    pub(super) plan: Plan,
    pub(super) runs: Vec<Run>,
    /// Measurements that can't be read, and why.
    pub(super) problems: Vec<String>,
}

/// Reads a folder of results. A measurement that can't be read is left out.
pub(super) fn read(dir: &Path) -> anyhow::Result<Results> {
    let plan = consolidate::read_plan(&consolidate::plan_file(dir))?;
    let (runs, problems) = consolidate::read_good_runs(&consolidate::runs_folder(dir))?;
    let problems: Vec<String> = problems
        .into_iter()
        .map(|problem| format!("a measurement was left out: {:#}", anyhow::Error::from(problem)))
        .collect();
    if runs.is_empty() {
        let why = problems.first().map(|problem| format!(" ({problem})")).unwrap_or_default();
        return Err(Usage(format!("{} has no measurement yet{why}", dir.display())).into());
    }
    Ok(Results { plan, runs, problems })
}
