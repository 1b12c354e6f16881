//! `vmscope export`: a recording as a flow or a time axis, and that in another tool's format.

use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use analysis::flow::{Flow, FlowBuilder};
use analysis::report::{dropped, missed};
use analysis::vcpu_timeline::VcpuTimelines;
use analysis::{Resolver, Selection, View};
use anyhow::Context;
use clap::ValueEnum;
use export::{About, Chart, firefox};
use model::{Counter, Guest, Header, Note, OffCpuSource, Tables};
use recording::{IntervalsWriter, Recording};
use table::{clean, seconds};

use super::report::{Select, refuse_unknown_process};
use cli::OffCpuSourceArg;
use cli::OpenRecording;
use cli::TimeRange;
use cli::Usage;
use cli::{pipe, write_file};

/// Convert a recording for other tools, or into a page.
///
/// docs/export.md describes the formats.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Args {
    /// The recording's folder
    dir: PathBuf,
    /// Format to write
    #[arg(long, value_enum)]
    format: Format,
    /// File to write, `-` for standard output [default: profile.folded, profile.pb.gz,
    /// profile.json.gz, flamegraph.html, trace.perfetto, intervals.csv or intervals.parquet]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    select: Select,
    #[command(flatten)]
    range: TimeRange,
    /// html, perfetto, csv and parquet: source of the times at which vCPUs lost and got their CPU [default: as recorded]
    #[arg(long, alias = "edges", value_enum, value_name = "SOURCE")]
    offcpu_source: Option<OffCpuSourceArg>,
}

const EXAMPLE: &str = "Examples:
  vmscope export day1 --format html        flamegraph.html, for any browser
  vmscope export day1 --format perfetto    trace.perfetto, vCPUs, CPUs in time
  vmscope export day1 --format pprof --view guest --vm web
                                           profile.pb.gz, one guest only
  vmscope export day1 --format csv --vm web
                                           intervals.csv, each interval of its vCPUs
  vmscope export day1 --format folded -o - | inferno-flamegraph >flame.svg";

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Text: a stack and its samples per line
    Folded,
    /// For pprof, Pyroscope, Parca (profile.proto, gzipped)
    Pprof,
    /// For the Firefox Profiler (processed profile, gzipped)
    Firefox,
    /// One page with an interactive flame graph and a strip per vCPU
    Html,
    /// For Perfetto: a track per CPU and vCPU, arrows from victims to thieves
    Perfetto,
    /// A line per interval of a vCPU: state, whose time it was, thief, exit reason
    Csv,
    /// The same as a Parquet table
    Parquet,
}

impl Format {
    fn default_file(self) -> &'static str {
        match self {
            Self::Folded => "profile.folded",
            Self::Pprof => "profile.pb.gz",
            Self::Firefox => "profile.json.gz",
            Self::Html => "flamegraph.html",
            Self::Perfetto => "trace.perfetto",
            Self::Csv => "intervals.csv",
            Self::Parquet => "intervals.parquet",
        }
    }

    /// Whether it shows samples.
    fn has_samples(self) -> bool {
        !matches!(self, Self::Perfetto | Self::Csv | Self::Parquet)
    }

    /// Whether it shows vCPUs in time.
    fn has_axis(self) -> bool {
        matches!(self, Self::Html | Self::Perfetto | Self::Csv | Self::Parquet)
    }

    fn is_text(self) -> bool {
        matches!(self, Self::Folded | Self::Html | Self::Csv)
    }

    fn how_to_open(self, file: &str) -> String {
        match self {
            Self::Folded => format!("inferno-flamegraph {file} >flame.svg, or speedscope {file}"),
            Self::Pprof => format!("pprof -http=: {file}, or go tool pprof -http=: {file}"),
            Self::Firefox => {
                format!("profiler.firefox.com, load {file} there (it stays on your machine)")
            }
            Self::Html => format!("a browser, xdg-open {file}"),
            Self::Perfetto => {
                format!("ui.perfetto.dev, load {file} there (it stays on your machine)")
            }
            Self::Csv => format!("a spreadsheet, R or pandas: read_csv(\"{file}\")"),
            Self::Parquet => format!("duckdb -c \"SELECT * FROM '{file}'\", or pandas, polars, R"),
        }
    }
}

/// A recording, or the selected part of it, ready to be written.
pub(crate) struct Loaded {
    recording: OpenRecording,
    selection: Selection,
    view: String,
    notes: Vec<Note>,
    flow: Flow,
    axis: VcpuTimelines,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let file = args.output.clone().unwrap_or_else(|| args.format.default_file().into());
    let to_stdout = file == Path::new("-");
    refuse_bad_target(args.format, &file)?;
    refuse_edges(args)?;
    let off_cpu_source = args.offcpu_source.map(OffCpuSource::from);
    let loaded = Loaded::load(args.format, &args.dir, args.range, &args.select, off_cpu_source)?;
    if args.format == Format::Firefox {
        loaded.refuse_too_large(firefox::MAX_JSON_BYTES)?;
    }
    let write = |out: &mut dyn Write| loaded.write(args.format, BufWriter::new(out));
    if args.format == Format::Parquet {
        loaded.write_parquet(&file)?;
    } else if to_stdout {
        pipe(write(&mut io::stdout().lock())).context("failed to write to standard output")?;
    } else {
        write_file(&file, write).with_context(|| format!("failed to write {}", file.display()))?;
    }
    if !to_stdout {
        let name = file.display().to_string();
        say!("wrote {name}: {}, {}", loaded.amount(args.format), clean(&loaded.view));
        say!("open it with: {}", args.format.how_to_open(&name));
    }
    Ok(ExitCode::SUCCESS)
}

/// The page of `--format html`; without `off_cpu_source` its time axis is as recorded.
///
/// # Errors
/// As the command's.
pub(crate) fn page(
    dir: &Path,
    range: TimeRange,
    select: &Select,
    off_cpu_source: Option<OffCpuSource>,
) -> anyhow::Result<String> {
    let loaded = Loaded::load(Format::Html, dir, range, select, off_cpu_source)?;
    let mut page = Vec::new();
    loaded.write(Format::Html, &mut page).context("failed to write the page")?;
    String::from_utf8(page).context("the page is not UTF-8")
}

impl Loaded {
    /// All of a recording in time, to be shown beside what else was seen then. Edges of gaps are found as recorded.
    ///
    /// # Errors
    /// When its samples or switches can't be read.
    pub(crate) fn in_time(recording: Recording) -> anyhow::Result<Self> {
        let recording = OpenRecording::whole(recording);
        let selection = Selection::all(recording.tables(), View::Unified)?;
        let axis = recording.axis(&recording.resolver(), None)?;
        let view = view_text(&selection, recording.tables());
        let notes = notes(&recording, &selection, &axis);
        Ok(Self { recording, selection, view, notes, flow: Flow::default(), axis })
    }

    fn load(
        format: Format,
        dir: &Path,
        range: TimeRange,
        select: &Select,
        off_cpu_source: Option<OffCpuSource>,
    ) -> anyhow::Result<Self> {
        let recording = OpenRecording::open(dir, range)?;
        let selection = select.selection(recording.tables())?;
        let resolver = recording.resolver();
        let (mut flow, mut axis) = (Flow::default(), VcpuTimelines::default());
        let mut view = view_text(&selection, recording.tables());
        if format.has_samples() {
            flow = self::flow(&recording, &resolver, selection.clone(), dir)?;
        } else {
            refuse_part_of_vcpu(&selection)?;
        }
        if format.has_axis() {
            axis = recording.axis(&resolver, off_cpu_source)?;
            view += edges_text(axis.off_cpu_source);
        }
        drop(resolver);
        let notes = notes(&recording, &selection, &axis);
        Ok(Self { recording, selection, view, notes, flow, axis })
    }

    /// A profile that the Firefox Profiler can't open is not written: the error says which part fits.
    fn refuse_too_large(&self, most: u64) -> anyhow::Result<()> {
        let flow = &self.flow;
        let too_large =
            firefox::bytes_beyond(flow, most).context("failed to measure the profile")?;
        let from_ns = flow.start.since(self.recording.begin());
        match too_large {
            Some(bytes) => {
                anyhow::bail!(too_large_text(bytes, most, from_ns, flow.end.since(flow.start)))
            }
            None => Ok(()),
        }
    }

    fn write(&self, format: Format, out: impl Write) -> io::Result<()> {
        let about = self.about();
        match format {
            Format::Folded => export::folded::write(&self.flow, out),
            Format::Pprof => export::pprof::write(&self.flow, about, out),
            Format::Firefox => firefox::write(&self.flow, out),
            Format::Html => export::html::write(&self.flow, self.chart(), about, out),
            Format::Perfetto => export::perfetto::write(self.chart(), about, out),
            Format::Csv => export::intervals::write(self.chart(), out),
            Format::Parquet => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// A Parquet file ends with its index, so it is written as a file of its own.
    fn write_parquet(&self, file: &Path) -> anyhow::Result<()> {
        let mut writer = IntervalsWriter::create(file.to_owned())?;
        self.chart().for_each_interval(&mut |interval| writer.write(interval))?;
        Ok(writer.finish()?)
    }

    pub(crate) fn about(&self) -> About<'_> {
        About { view: &self.view, notes: &self.notes }
    }

    pub(crate) fn chart(&self) -> Chart<'_> {
        let (tables, header) = (self.recording.tables(), self.recording.header());
        let (vm, vcpu) = (self.selection.vm(), self.selection.vcpu());
        Chart { axis: &self.axis, tables, header, vm, vcpu }
    }

    fn amount(&self, format: Format) -> String {
        match format.has_samples() {
            true => format!("{} samples", self.flow.samples.len()),
            false => {
                let (vcpus, cpus) = (self.chart().vcpus(), self.axis.cpus.len());
                format!("{vcpus} vCPUs on {cpus} CPUs")
            }
        }
    }
}

/// Of a profile of `length_ns` that begins `from_ns` after its recording.
fn too_large_text(bytes: u64, most: u64, from_ns: u64, length_ns: u64) -> String {
    // Names stay when samples go: a tenth less than by time alone.
    let fits_ns = u128::from(length_ns) * u128::from(most) * 9 / (u128::from(bytes.max(1)) * 10);
    let fits_ns = u64::try_from(fits_ns).unwrap_or(length_ns);
    let to_ns = from_ns.saturating_add(fits_ns);
    format!(
        "the Firefox Profiler opens at most {} MiB of JSON, and this profile has {}: about --from {} --to \
         {} fits; or use --vm, --process, --format pprof or html",
        most >> 20,
        bytes.div_ceil(1 << 20),
        seconds(from_ns, 1),
        seconds(to_ns, 1),
    )
}

/// What would only be found out after the work.
fn refuse_bad_target(format: Format, file: &Path) -> Result<(), Usage> {
    if file == Path::new("-") {
        if format == Format::Parquet {
            return Err(Usage(
                "a Parquet file can't be written to a pipe: give -o FILE".to_owned(),
            ));
        }
        return match format.is_text() || !io::stdout().is_terminal() {
            true => Ok(()),
            false => Err(Usage("this format is not text: give -o FILE, or redirect".to_owned())),
        };
    }
    match file.is_dir() {
        true => Err(Usage(format!("{} is a folder: give -o the name of a file", file.display()))),
        false => Ok(()),
    }
}

/// Samples alone have no gaps.
fn refuse_edges(args: &Args) -> Result<(), Usage> {
    let text = "--offcpu-source is about vCPUs in time, which --format folded, pprof and firefox don't show";
    match args.offcpu_source.is_some() && !args.format.has_axis() {
        true => Err(Usage(text.to_owned())),
        false => Ok(()),
    }
}

/// A vCPU's time has no views, and its halts and steal belong to no process.
fn refuse_part_of_vcpu(selection: &Selection) -> Result<(), Usage> {
    match selection.view() == View::Unified && selection.process().is_none() {
        true => Ok(()),
        false => Err(Usage(
            "this format shows all of a vCPU's time: leave out --view and --process".to_owned(),
        )),
    }
}

/// The samples as named stacks.
///
/// # Errors
/// When there is none, or the recording can't be read.
pub(crate) fn flow(
    recording: &OpenRecording,
    resolver: &Resolver<'_>,
    selection: Selection,
    dir: &Path,
) -> anyhow::Result<Flow> {
    let mut builder = FlowBuilder::new(resolver, recording.header(), selection.clone());
    recording.for_each_sample(&mut |sample| builder.push(sample))?;
    let flow = builder.finish();
    refuse_unknown_process(&selection, flow.samples.len() as u64, dir)?;
    anyhow::ensure!(!flow.samples.is_empty(), "no sample matches");
    Ok(flow)
}

/// `guest view of web1, process httpd`.
pub(crate) fn view_text(selection: &Selection, tables: &Tables) -> String {
    let mut text = format!("{} view", selection.view().name());
    if let Some(vm) = selection.vm().and_then(|vm| tables.vms.get(vm.index())) {
        text += &format!(" of {}", vm.name);
    }
    if let Some(vcpu) = selection.vcpu() {
        text += &format!(" vcpu{vcpu}");
    }
    if let Some(process) = selection.process() {
        text += &format!(", process {}", process.text());
    }
    text
}

/// How what is shown in time was found.
fn edges_text(off_cpu_source: OffCpuSource) -> &'static str {
    match off_cpu_source {
        OffCpuSource::Samples => ", edges by samples",
        OffCpuSource::Switches => ", edges by switches",
    }
}

/// What the recording says was missed, the guests without a map, the samples dropped, what made no sense on
/// the time axis, and what a report of the same selection would count besides.
fn notes(recording: &OpenRecording, selection: &Selection, axis: &VcpuTimelines) -> Vec<Note> {
    let header = recording.header();
    let mut notes = header.notes.clone();
    if selection.view() == View::Guest {
        let text = "halt, steal and throttling are no samples: shares here are of the samples";
        notes.push(Note { subject: "guest view".to_owned(), text: text.to_owned() });
    }
    for vm in &recording.tables().vms {
        if let Guest::Unmapped { reason } = &vm.guest
            && !notes.iter().any(|note| note.subject == vm.name && note.text.contains(reason))
        {
            let text = format!("no guest map: {reason}");
            notes.push(Note { subject: vm.name.clone(), text });
        }
    }
    let problem = |(what, count): &(&str, u64)| Note {
        subject: "time axis".to_owned(),
        text: format!("{what}: {count}"),
    };
    notes.extend(axis.problems.iter().map(problem));
    notes.extend(lost(header));
    notes
}

/// What the recording has counted as missed, dropped or cut.
fn lost(header: &Header) -> Vec<Note> {
    let note = |subject: &str, text| Note { subject: subject.to_owned(), text };
    let mut notes = Vec::new();
    if 0 < header.count(Counter::SamplesMissed) {
        notes.push(note("missed", missed(header)));
    }
    if 0 < header.count(Counter::SamplesDropped) {
        notes.push(note("dropped", dropped(header)));
    }
    let others = header.other_counters().filter(|(_, count)| 0 < *count);
    notes.extend(others.map(|(name, n)| note("counted", format!("{name} {n}"))));
    notes
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_part_that_fits_is_said() {
        let s = 1_000_000_000;
        let text = too_large_text(1024 << 20, 512 << 20, 20 * s, 100 * s);
        assert!(text.contains("at most 512 MiB of JSON, and this profile has 1024"), "{text}");
        assert!(text.contains("--from 20.0 --to 65.0"), "{text}");
    }
}
