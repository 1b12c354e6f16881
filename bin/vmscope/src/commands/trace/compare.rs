//! `vmscope trace compare`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::ValueEnum;
use trace_analysis::report::{Side, compare_csv, compare_json, compare_text};

use super::export::{label, write_html};
use super::open_trace::OpenTrace;
use super::progress::Progress;
use cli::TimeRange;
use cli::{count, print, width};

/// Rows of a group in text unless `--limit` says otherwise.
const TEXT_LIMIT: usize = 12;

const EXAMPLE: &str = "Examples:
  vmscope trace record -o seq -- make
  make clean
  vmscope trace record -o par -- make -j2
  vmscope trace compare seq par
  vmscope trace compare seq par --format html >seq-par.html";

/// Compare two traces: wall time, CPU and disk, states, waits, kernel time, critical path.
///
/// If both traces have a command, the commands' tasks are compared, and the machines while they ran; otherwise the
/// whole machines.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Args {
    /// The first trace
    a: PathBuf,
    /// The second trace
    b: PathBuf,
    /// Machine to compare [default: the command's, else the host if it was traced, else the first VM]
    #[arg(long, value_name = "NAME")]
    machine: Option<String>,
    #[command(flatten)]
    range: TimeRange,
    /// Maximum number of lines in a group, 0 for all [default: 12 in text, all in json and csv]
    #[arg(long, value_name = "N", value_parser = count)]
    limit: Option<usize>,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Tables
    Text,
    /// One object, see docs/trace.md
    Json,
    /// RFC 4180
    Csv,
    /// A page with the charts of both, for any browser
    Html,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let machine = args.machine.as_deref();
    let (a, b) = (
        OpenTrace::open(&args.a, machine, args.range)?,
        OpenTrace::open(&args.b, machine, args.range)?,
    );
    let progress = Progress::start("comparing", 0);
    let limit = match (args.limit, args.format) {
        (Some(0), _) | (None, Format::Json | Format::Csv | Format::Html) => None,
        (Some(limit), _) => Some(limit),
        (None, Format::Text) => Some(TEXT_LIMIT),
    };
    let names = [label(&args.a), label(&args.b)];
    let side_a = Side { name: &names[0], context: a.context(limit) };
    let side_b = Side { name: &names[1], context: b.context(limit) };
    let out = match args.format {
        Format::Text => compare_text(&side_a, &side_b, width()),
        Format::Csv => compare_csv(&side_a, &side_b),
        Format::Json => table::pretty(&compare_json(&side_a, &side_b)),
        Format::Html => {
            let mut page = Vec::new();
            write_html(&[(&args.a, &a), (&args.b, &b)], &mut page)?;
            String::from_utf8(page).context("failed to write the page")?
        }
    };
    drop(progress);
    print(&out).context("failed to write to standard output")?;
    Ok(ExitCode::SUCCESS)
}
