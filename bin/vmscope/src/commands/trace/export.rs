//! `vmscope trace export`.

use std::borrow::Cow;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::ValueEnum;
use export::trace::Run;
use trace_analysis::timeline::Timeline;

use super::open_trace::OpenTrace;
use super::paired_recording;
use super::progress::Progress;
use cli::TimeRange;
use cli::Usage;
use cli::{pipe, write_file};

const EXAMPLE: &str = "Examples:
  vmscope trace export seq --format html        trace.html, for any browser
  vmscope trace export seq --format perfetto    trace.perfetto, for ui.perfetto.dev
  vmscope trace export seq --format csv -o - | head
                                                each interval of each task
  vmscope trace export seq --format folded -o - | inferno-flamegraph --countname ns >waits.svg
                                                off-CPU flame graph: where tasks waited
  vmscope record -o rec -- vmscope trace record -o seq -- make
  vmscope trace export seq --recording rec --format perfetto
                                                CPUs and vCPUs as sampled, below the trace";

/// Convert a trace for other tools, with all its machines on one time axis.
///
/// docs/trace.md describes the formats.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Args {
    /// The trace's folder
    dir: PathBuf,
    /// Format to write
    #[arg(long, value_enum)]
    format: Format,
    #[command(flatten)]
    range: TimeRange,
    /// File to write, `-` for standard output [default: trace.perfetto, trace.html,
    /// trace.csv or waits.folded]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// perfetto: recording of the same host and time, shown below the trace
    #[arg(long, value_name = "DIR", alias = "with")]
    recording: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For Perfetto: a track per CPU, disk and task, arrows from wakers to woken
    Perfetto,
    /// One page with the charts and a Gantt chart that zooms
    Html,
    /// RFC 4180: a row per interval of a task
    Csv,
    /// Waits by user and kernel stack, in ns: for an off-CPU flame graph
    Folded,
}

/// Bytes of a file for ui.perfetto.dev; its v52 ran out of memory with half as many more.
const MAX_IN_BROWSER: u64 = 1_000_000_000;

impl Format {
    fn default_file(self) -> &'static str {
        match self {
            Self::Perfetto => "trace.perfetto",
            Self::Html => "trace.html",
            Self::Csv => "trace.csv",
            Self::Folded => "waits.folded",
        }
    }

    fn how_to_open(self, file: &str) -> String {
        match self {
            Self::Perfetto => {
                format!("ui.perfetto.dev, load {file} there (it stays on your machine)")
            }
            Self::Html => format!("a browser, xdg-open {file}"),
            Self::Csv => format!("a spreadsheet, or scripts; {file} is plain text"),
            Self::Folded => {
                format!("speedscope.app, or inferno-flamegraph --countname ns {file} >waits.svg")
            }
        }
    }
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let file = args.output.clone().unwrap_or_else(|| args.format.default_file().into());
    let to_stdout = file == Path::new("-");
    if to_stdout && args.format == Format::Perfetto && io::stdout().is_terminal() {
        let text = "this format is not for terminals: give -o FILE, or pipe it on";
        return Err(Usage(text.to_owned()).into());
    }
    if file.is_dir() {
        return Err(Usage(format!("{} is a folder: name a file with -o", file.display())).into());
    }
    if args.recording.is_some() && args.format != Format::Perfetto {
        return Err(Usage("--recording is for --format perfetto only".to_owned()).into());
    }
    let trace = OpenTrace::open(&args.dir, None, args.range)?;
    let sampled =
        args.recording.as_deref().map(|dir| paired_recording::load(dir, &trace.trace.header));
    let sampled = sampled.transpose()?;
    let timelines = trace.timelines()?;
    let label = label(&args.dir);
    let run = of(&label, &trace, &timelines);
    let write = |out: &mut dyn Write| {
        let out = BufWriter::new(out);
        match args.format {
            Format::Perfetto => match &sampled {
                None => export::trace::perfetto::write(run, out),
                Some(sampled) => {
                    let (chart, about) = (sampled.chart(), sampled.about());
                    export::trace::perfetto::write_with(run, chart, about, out)
                }
            },
            Format::Html => export::trace::html::write(&[run], out),
            Format::Csv => export::trace::csv::write(run, trace.trace.header.begin, out),
            Format::Folded => export::trace::folded::write(run, out),
        }
    };
    if to_stdout {
        pipe(write(&mut io::stdout().lock())).context("failed to write to standard output")?;
    } else {
        let _progress = Progress::start("writing", 0);
        write_file(&file, write).with_context(|| format!("failed to write {}", file.display()))?;
        let name = file.display().to_string();
        say!("wrote {name}; open it with: {}", args.format.how_to_open(&name));
        let bytes = file.metadata().map_or(0, |file| file.len());
        if args.format == Format::Perfetto && MAX_IN_BROWSER < bytes {
            let gb = bytes as f64 / 1e9;
            say!(
                "note: {gb:.1} GB may be more than a browser has memory for; --format html is a page of a few MB"
            );
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What to call a trace: its folder's name.
pub(super) fn label(dir: &Path) -> String {
    let name = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let name = name.file_name().unwrap_or(dir.as_os_str());
    name.to_string_lossy().into_owned()
}

/// The page of one trace, or of several side by side.
///
/// # Errors
/// When the events can't be read.
pub(super) fn write_html(traces: &[(&PathBuf, &OpenTrace)], out: impl Write) -> anyhow::Result<()> {
    let timelines = traces.iter().map(|(_, trace)| trace.timelines());
    let timelines = timelines.collect::<anyhow::Result<Vec<Cow<'_, [Timeline]>>>>()?;
    let labels: Vec<String> = traces.iter().map(|(dir, _)| label(dir)).collect();
    let runs: Vec<Run<'_>> = (traces.iter().zip(&labels).zip(&timelines))
        .map(|(((_, trace), label), timelines)| of(label, trace, timelines))
        .collect();
    export::trace::html::write(&runs, out).context("failed to write the page")
}

fn of<'a>(label: &'a str, trace: &'a OpenTrace, timelines: &'a [Timeline]) -> Run<'a> {
    let header = &trace.trace.header;
    let instant = Some((header.begin, header.begin_unix_ns));
    Run { label, tables: &trace.trace.tables, timelines, instant }
}
