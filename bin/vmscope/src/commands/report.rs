//! `vmscope report`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use analysis::calls::{CallsQuery, calls};
use analysis::vcpu_timeline::agreement;
use analysis::{Aggregator, By, Profile, Query, Selection, View};
use anyhow::Context;
use clap::ValueEnum;
use model::{OffCpuSource, Tables};
use table::{Report, Width, clean};

use super::export;
use cli::OpenRecording;
use cli::TimeRange;
use cli::Usage;
use cli::{count, print, width};

/// Lines of a text report unless `--limit` says otherwise.
const TEXT_LIMIT: usize = 30;

const EXAMPLE: &str = "Examples:
  vmscope report day1                 who used the CPUs, by function
  vmscope report day1 --view host     the host alone, a line per VM
  vmscope report day1 --view guest --vm web
                                      one guest: its time, halts and steal
  vmscope report day1 --by process --limit 0
                                      every process of host and guests
  vmscope report day1 --children      with the samples of what functions call
  vmscope report day1 --callers malloc
                                      by which calls the time came there
  vmscope report day1 --by node       guest time and memory on NUMA nodes
  vmscope report day1 --from 12 --to 14.5
                                      only these two and a half seconds
  vmscope report day1 --process postgres --format csv >postgres.csv
  vmscope report day1 --format html >day1.html
                                      for a browser: flame graph, vCPUs in time
  vmscope report day1 --offcpu-source both
                                      compare gaps by samples and by switches";

/// Print who used the CPUs, by function, process, VM...
///
/// Code without a name is listed with the reason. docs/report.md explains columns and JSON.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Args {
    /// The recording's folder
    dir: PathBuf,
    #[command(flatten)]
    select: Select,
    #[command(flatten)]
    range: TimeRange,
    /// Rows of the table
    #[arg(long, value_enum, default_value_t = ByArg::Function)]
    by: ByArg,
    /// Each function with the samples of what it calls; needs record --call-graph, as the next two
    #[arg(long, conflicts_with = "by")]
    children: bool,
    /// What calls the function of this name, as a tree
    #[arg(long, value_name = "FUNCTION", conflicts_with_all = ["by", "children"])]
    callers: Option<String>,
    /// What the function of this name calls, as a tree
    #[arg(long, value_name = "FUNCTION", conflicts_with_all = ["by", "children", "callers"])]
    callees: Option<String>,
    /// Guest view and html: source of the times at which vCPUs lost and got their CPU [default: as recorded]
    #[arg(long, alias = "edges", value_enum, value_name = "SOURCE")]
    offcpu_source: Option<OffCpuSourceArg>,
    /// Maximum number of lines, 0 for all [default: 30 in text, all in json and csv]
    #[arg(long, value_name = "N", value_parser = count)]
    limit: Option<usize>,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// Which samples a command looks at (export too).
#[derive(Debug, clap::Args)]
pub(crate) struct Select {
    /// Part of the host's time to show
    #[arg(long, value_enum, default_value_t = ViewArg::Unified)]
    view: ViewArg,
    /// Only this VM; the guest view needs it when there is more than one
    #[arg(long, value_name = "NAME")]
    vm: Option<String>,
    /// Only this vCPU of the VM
    #[arg(long, value_name = "N")]
    vcpu: Option<u32>,
    /// Only this process, by name or id (host's or guest's)
    #[arg(long, value_name = "NAME|PID")]
    process: Option<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ViewArg {
    /// Host and guests: an interrupted guest shows as its own function
    Unified,
    /// The host: an interrupted guest shows as one [vmname] line
    Host,
    /// One guest
    Guest,
    /// The host without its guests
    Native,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ByArg {
    Function,
    /// Instruction, by its offset in the file
    Address,
    /// Whole call stack
    Stack,
    Process,
    Thread,
    Module,
    Vm,
    /// Physical CPU; in the guest view vCPU
    Cpu,
    /// NUMA node of the CPU, beside VMs' memory there
    Node,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OffCpuSourceArg {
    /// The samples: accurate to one sampling period
    Samples,
    /// Scheduler switches: exact; needs record --offcpu-source switches
    Switches,
    /// A comparison of the two for each vCPU, instead of the report
    Both,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A table
    Text,
    /// One object, see docs/report.md
    Json,
    /// RFC 4180
    Csv,
    /// A page with a flame graph and a strip per vCPU, as vmscope export writes it; ignores --by, --limit and the like
    Html,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.offcpu_source == Some(OffCpuSourceArg::Both) {
        let report = agreement_report(args)?;
        print(&render(&report, args.format)).context("failed to write to standard output")?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.format == Format::Html {
        let page =
            export::page(&args.dir, args.range, &args.select, off_cpu_source(args.offcpu_source))?;
        print(&page).context("failed to write to standard output")?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(query) = calls_query(args) {
        print(&render(&calls_report(args, query)?, args.format))
            .context("failed to write to standard output")?;
        return Ok(ExitCode::SUCCESS);
    }
    let profile = profile(&args.dir, args)?;
    refuse_unknown_process(&profile.query.selection, profile.total, &args.dir)?;
    let width = if args.format == Format::Text { width() } else { Width::Unlimited };
    let report = analysis::report::profile(&profile, width);
    print(&render(&report, args.format)).context("failed to write to standard output")?;
    Ok(ExitCode::SUCCESS)
}

impl Select {
    /// The selection in a recording's tables.
    ///
    /// # Errors
    /// A usage error when the recording has no such VM or vCPU.
    pub(crate) fn selection(&self, tables: &Tables) -> anyhow::Result<Selection> {
        let view = match self.view {
            ViewArg::Unified => View::Unified,
            ViewArg::Host => View::Host,
            ViewArg::Guest => View::Guest,
            ViewArg::Native => View::Native,
        };
        self.selection_in(tables, view)
    }

    /// The same in another view.
    fn selection_in(&self, tables: &Tables, view: View) -> anyhow::Result<Selection> {
        let (vm, process) = (self.vm.as_deref(), self.process.as_deref());
        Selection::new(tables, view, vm, self.vcpu, process)
            .map_err(|error| Usage(clean(&error.to_string()).into_owned()).into())
    }
}

/// A process that matched no sample is most likely misspelt.
pub(crate) fn refuse_unknown_process(
    selection: &Selection,
    n_samples: u64,
    dir: &Path,
) -> anyhow::Result<()> {
    let Some(process) = selection.process().filter(|_| n_samples == 0) else {
        return Ok(());
    };
    let (process, dir) = (process.text(), dir.display());
    anyhow::bail!(
        "no sample of process {process:?} in this view: see vmscope report {dir} --by process"
    )
}

fn profile(dir: &Path, args: &Args) -> anyhow::Result<Profile> {
    let recording = OpenRecording::open(dir, args.range)?;
    let query = Query {
        selection: args.select.selection(recording.tables())?,
        by: by(args.by),
        limit: limit(args),
    };
    let resolver = recording.resolver();
    let mut aggregator = Aggregator::new(&resolver, recording.header(), query);
    recording.for_each_sample(&mut |sample| aggregator.push(sample))?;
    if !aggregator.needs_axis() {
        refuse_edges(args.offcpu_source)?;
        if !recording.header().lacks_samples() {
            return Ok(aggregator.finish());
        }
    }
    let axis = recording.axis(&resolver, off_cpu_source(args.offcpu_source))?;
    Ok(aggregator.finish_on(&axis))
}

/// What is to be shown of calls, if anything is.
fn calls_query(args: &Args) -> Option<CallsQuery> {
    let callers = args.callers.clone().map(CallsQuery::Callers);
    let callees = args.callees.clone().map(CallsQuery::Callees);
    let children = args.children.then_some(CallsQuery::Children);
    let stacks = matches!(args.by, ByArg::Stack).then_some(CallsQuery::Stacks);
    callers.or(callees).or(children).or(stacks)
}

fn calls_report(args: &Args, query: CallsQuery) -> anyhow::Result<Report> {
    refuse_edges(args.offcpu_source)?;
    let recording = OpenRecording::open(&args.dir, args.range)?;
    let selection = args.select.selection(recording.tables())?;
    recording.check_has_stacks(&args.dir)?;
    let resolver = recording.resolver();
    let view = export::view_text(&selection, recording.tables());
    let flow = export::flow(&recording, &resolver, selection, &args.dir)?;
    let found = calls(&flow, query);
    if found.matched == 0
        && let CallsQuery::Callers(name) | CallsQuery::Callees(name) = &found.query
    {
        let (name, dir) = (clean(name), args.dir.display());
        anyhow::bail!(
            "no function {name} in the call stacks of this view: see vmscope report {dir} --children"
        );
    }
    Ok(analysis::report::calls(&found, recording.header(), &view, limit(args)))
}

/// The requested edges; `None`: as recorded.
fn off_cpu_source(requested: Option<OffCpuSourceArg>) -> Option<OffCpuSource> {
    match requested {
        Some(OffCpuSourceArg::Samples) => Some(OffCpuSource::Samples),
        Some(OffCpuSourceArg::Switches) => Some(OffCpuSource::Switches),
        Some(OffCpuSourceArg::Both) | None => None,
    }
}

fn refuse_edges(requested: Option<OffCpuSourceArg>) -> Result<(), Usage> {
    let text = "--offcpu-source is about the gaps of --view guest, which are not shown in other views or with --process";
    requested.map_or(Ok(()), |_| Err(Usage(text.to_owned())))
}

fn by(by: ByArg) -> By {
    match by {
        // Stacks are shown by `calls_report`.
        ByArg::Function | ByArg::Stack => By::Function,
        ByArg::Address => By::Address,
        ByArg::Process => By::Process,
        ByArg::Thread => By::Thread,
        ByArg::Module => By::Module,
        ByArg::Vm => By::Vm,
        ByArg::Cpu => By::Cpu,
        ByArg::Node => By::Node,
    }
}

fn limit(args: &Args) -> Option<usize> {
    match (args.limit, args.format) {
        (Some(0), _) | (None, Format::Json | Format::Csv | Format::Html) => None,
        (Some(limit), _) => Some(limit),
        (None, Format::Text) => Some(TEXT_LIMIT),
    }
}

/// How well the two ways to find gaps agree.
fn agreement_report(args: &Args) -> anyhow::Result<Report> {
    if matches!(args.format, Format::Csv | Format::Html) || args.select.process.is_some() {
        let text = "--offcpu-source both compares whole vCPUs, as text or json: leave out --process and --format csv or html";
        return Err(Usage(text.to_owned()).into());
    }
    let recording = OpenRecording::open(&args.dir, args.range)?;
    let (tables, period_ns) = (recording.tables(), recording.header().period_ns);
    let selection = args.select.selection_in(tables, View::Unified)?;
    let resolver = recording.resolver();
    let switches = recording.axis(&resolver, Some(OffCpuSource::Switches))?;
    let samples = recording.axis(&resolver, Some(OffCpuSource::Samples))?;
    let found = agreement(&samples, &switches, period_ns);
    Ok(analysis::report::agreement(tables, &selection, &found, period_ns))
}

fn render(report: &Report, format: Format) -> String {
    match format {
        Format::Text | Format::Html => report.text(width()),
        Format::Csv => report.csv(),
        Format::Json => table::pretty(&report.json),
    }
}
