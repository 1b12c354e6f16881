//! `vmscope trace report`.

use std::process::ExitCode;

use analysis::ProcessFilter;
use anyhow::Context as _;
use clap::ValueEnum;
use table::clean;
use trace_analysis::findings::{Findings, Selection};
use trace_analysis::group::Key;
use trace_analysis::report::Context;

use super::export::write_html;
use super::open_trace::{OpenTrace, Source};
use super::progress::Progress;
use cli::Usage;
use cli::{count, print, width};

/// Lines of a text table unless `--limit` says otherwise.
const TEXT_LIMIT: usize = 20;

const EXAMPLE: &str = "Examples:
  vmscope trace report seq                            why did it take so long?
  vmscope trace report seq --view critical-path       what to improve
  vmscope trace report seq --view states --all        all tasks, not only the command's
  vmscope trace report seq --view waits --process cc1
  vmscope trace report seq --from 2.5 --to 3          only half a second of it
  vmscope trace report seq --format html >seq.html    charts for a browser";

/// Print how CPUs, disks and processes spent their time, and why they waited.
///
/// docs/trace.md explains views, figures and JSON.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Args {
    #[command(flatten)]
    source: Source,
    /// View to print
    #[arg(long, value_enum, default_value_t = View::Overview)]
    view: View,
    /// Only processes with this id, or with this last name
    #[arg(long, value_name = "NAME|PID")]
    process: Option<String>,
    /// Show all tasks [default: the command and its descendants; without a command, those of --follow]
    #[arg(long)]
    all: bool,
    /// Maximum number of lines in a table, 0 for all [default: 20 in text, all in json and csv]
    #[arg(long, value_name = "N", value_parser = count)]
    limit: Option<usize>,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum View {
    /// Summary: why it took so long
    Overview,
    /// Time in which a CPU, a disk, both or neither were busy
    Profile,
    /// Each process: CPU state (running, waiting, neither) by disk state
    States,
    /// Waits by cause, and the tasks that waited
    Waits,
    /// Kernel time by system call, page fault and interrupt
    Kernel,
    /// The critical path of the command, and what would make it faster
    CriticalPath,
    /// Every process: its life, CPU time, waits and disk requests
    Process,
    /// Every file: bytes, waits for its lock and its pages, page cache and disks (needs record --files)
    Files,
    /// A Gantt chart of all tasks in characters (text only)
    Gantt,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Tables
    Text,
    /// One object, see docs/trace.md
    Json,
    /// RFC 4180
    Csv,
    /// A page with all charts, for any browser; ignores --view and --limit
    Html,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let trace =
        OpenTrace::open(&args.source.dir, args.source.machine.as_deref(), args.source.range)?;
    let progress = Progress::start("analysing", 0);
    let context = context(&trace, args)?;
    let view = args.view.into();
    let usage = |no_view: trace_analysis::report::NoView| Usage(no_view.to_string());
    let out = match args.format {
        Format::Text => {
            trace_analysis::report::text(&context, view, width()).map_err(usage)?.text(width())
        }
        Format::Csv => trace_analysis::report::csv(&context, view).map_err(usage)?,
        Format::Json => {
            table::pretty(&trace_analysis::report::json(&context, view).map_err(usage)?)
        }
        Format::Html => {
            let mut page = Vec::new();
            write_html(&[(&args.source.dir, &trace)], &mut page)?;
            String::from_utf8(page).context("failed to write the page")?
        }
    };
    drop(progress);
    print(&out).context("failed to write to standard output")?;
    Ok(ExitCode::SUCCESS)
}

/// The requested tasks, and all findings about them.
fn context<'a>(trace: &'a OpenTrace, args: &Args) -> Result<Context<'a>, Usage> {
    let limit = match (args.limit, args.format) {
        (Some(0), _) | (None, Format::Json | Format::Csv | Format::Html) => None,
        (Some(limit), _) => Some(limit),
        (None, Format::Text) => Some(TEXT_LIMIT),
    };
    let Context { about, mut findings, limit } = trace.context(limit);
    match trace.tree() {
        _ if args.all => findings = findings.of_everyone(),
        Some(root) if findings.is_everyone() => findings = findings.of_tree(root),
        _ => {}
    }
    if let Some(process) = &args.process {
        let filter = ProcessFilter::new(process);
        findings = findings
            .of_processes(&clean(process), |key| is_meant(&filter, key))
            .map_err(|findings| no_process(&findings, &filter))?;
    }
    Ok(Context { about, findings, limit })
}

fn is_meant(filter: &ProcessFilter, key: &Key) -> bool {
    filter.matches(&key.name, key.pid.map(|pid| pid.0))
}

/// Nowhere, or not among those that are shown.
fn no_process(findings: &Findings<'_>, filter: &ProcessFilter) -> Usage {
    let name = clean(filter.text());
    let elsewhere = findings.has_process(|key| is_meant(filter, key));
    Usage(match &findings.selection {
        Selection::Command if elsewhere => {
            format!("process {name} is in this trace, but the command did not start it: add --all")
        }
        Selection::Tree(root) if elsewhere => {
            format!("process {name} is in this trace, but task {root} did not start it: add --all")
        }
        _ => format!("no process {name} in this trace: see --view process --all"),
    })
}

impl From<View> for trace_analysis::report::View {
    fn from(view: View) -> Self {
        match view {
            View::Overview => Self::Overview,
            View::Profile => Self::Profile,
            View::States => Self::States,
            View::Waits => Self::Waits,
            View::Kernel => Self::Kernel,
            View::CriticalPath => Self::CriticalPath,
            View::Process => Self::Process,
            View::Files => Self::Files,
            View::Gantt => Self::Gantt,
        }
    }
}
