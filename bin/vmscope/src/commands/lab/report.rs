//! `vmscope lab report`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::ValueEnum;
use lab::{Plan, Run};

use super::super::Usage;
use super::super::output::{print, width, write_file};

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
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// File to write instead of printing
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Tables
    Text,
    /// One object, see docs/lab.md
    Json,
    /// RFC 4180, a line per measurement
    Csv,
    /// One page with charts, for any browser
    Html,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (plan, runs) = read(&args.dir)?;
    let report = || lab::report::results(&plan, &runs);
    let out = match args.format {
        Format::Text => report().text(width()),
        Format::Csv => report().csv(),
        Format::Json => view::pretty(&report().json),
        Format::Html => {
            let mut page = Vec::new();
            export::lab::html(&plan, &runs, &mut page).context("failed to write the page")?;
            String::from_utf8(page).context("the page is not UTF-8")?
        }
    };
    match &args.output {
        Some(path) => {
            write_file(path, |file| file.write_all(out.as_bytes()))
                .with_context(|| format!("failed to write {}", path.display()))?;
            say!("wrote {}", path.display());
        }
        None => print(&out).context("failed to write to standard output")?,
    }
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
