//! `vmscope ci`: a job's runs, recorded, and compared with those of before.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use analysis::{Aggregator, By, Query, Selection, Side, View};
use anyhow::Context;
use clap::ValueEnum;
use cli::{OpenRecording, TimeRange, Usage, count, print, width};
use detect::runs::{JobFunction, JobRun, Verdict, compare, report::comparison};
use model::{Counter, Header, Note};
use table::{Report, clean, counted, seconds};

use super::record::{SamplingArgs, record_run};
use super::run::Run;
use super::trace::progress::Progress;

/// Functions in text and Markdown unless `--limit` says otherwise.
const LIMIT: usize = 10;

/// Say whether a change made a job slower, by its profile.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Record(RecordArgs),
    Compare(CompareArgs),
}

const RECORD_EXAMPLE: &str = "Examples:
  vmscope ci record -o before -- ./bench     20 runs of ./bench
  vmscope ci record -o after -- ./bench      the same with the change
  vmscope ci compare before after            exit code 1 if it became slower
  vmscope ci record -o vm -- ssh web ./bench
                                             a job in the VM web";

/// Record several runs of COMMAND.
///
/// Each run is a recording of its own, DIR/run-001 and so on: all commands that read recordings read them. It ends with
/// the first run that fails, and passes its exit code on. Needs root.
#[derive(Debug, clap::Args)]
#[command(after_help = RECORD_EXAMPLE)]
struct RecordArgs {
    /// Folder to write; must not exist
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Runs to record: at least 6, better 20
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=999))]
    runs: u16,
    /// Runs before that, which are not kept: caches are warm then
    #[arg(long, value_name = "N", default_value_t = 1)]
    warm_up: u16,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// Command to run
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

const COMPARE_EXAMPLE: &str = "Examples:
  vmscope ci compare before after            the job that was recorded
  vmscope ci compare before after --least 0.5
                                             half a per cent counts, too
  vmscope ci compare before after --vm web --process bench
                                             a job that ran in the VM web
  vmscope ci compare before after --format markdown >comment.md

Exit codes: 0 no change that counts, or faster; 1 slower; 2 the two can't be compared.";

/// Compare the runs in two folders of vmscope ci record.
///
/// Compares CPU time without stolen time: that of COMMAND and its descendants, or with --vm that of the guest. Record
/// both folders on the same machine, close together in time. docs/ci.md explains the figures.
#[derive(Debug, clap::Args)]
#[command(after_help = COMPARE_EXAMPLE)]
struct CompareArgs {
    /// The folder of runs before the change
    before: PathBuf,
    /// The folder of runs after it
    after: PathBuf,
    /// The job ran in this VM
    #[arg(long, value_name = "NAME")]
    vm: Option<String>,
    /// Only this process of the job, by name
    #[arg(long, value_name = "NAME")]
    process: Option<String>,
    /// Smallest change that counts, in per cent of the CPU time
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0, value_parser = percent)]
    least: f64,
    /// Maximum number of functions, 0 for all [default: 10 in text and markdown, all in json and csv]
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
    /// For a comment on the change
    Markdown,
    /// One object, see docs/ci.md
    Json,
    /// The functions, RFC 4180
    Csv,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.command {
        Command::Record(args) => record(args),
        // Exit code 1 is a verdict.
        Command::Compare(args) => {
            compare_folders(args).map_err(|error| Usage(format!("{error:#}")).into())
        }
    }
}

fn record(args: &RecordArgs) -> anyhow::Result<ExitCode> {
    let shown = args.output.display();
    if args.output.exists() {
        return Err(Usage(format!("{shown} exists already: choose another name with -o")).into());
    }
    std::fs::create_dir(&args.output).with_context(|| format!("failed to create {shown}"))?;
    let mut run = Run::new(None, &args.output, "vmscope report")?;
    let mut notes: BTreeSet<Note> = BTreeSet::new();
    for number in 0..args.warm_up + args.runs {
        let warm_up = number < args.warm_up;
        let folder = match warm_up {
            true => args.output.join("warm-up"),
            false => args.output.join(run_name(number - args.warm_up + 1)),
        };
        let what = match warm_up {
            true => format!("warm-up {} of {}", number + 1, args.warm_up),
            false => format!("run {} of {}", number - args.warm_up + 1, args.runs),
        };
        let (collected, status) = record_run(&mut run, &folder, &args.sampling, &args.command)
            .with_context(|| what.clone())?;
        let header = &collected.header;
        say!("{what}: {} s", seconds(header.end.since(header.start), 3));
        notes.extend(header.notes.iter().cloned());
        if warm_up || status.is_none() {
            std::fs::remove_dir_all(&folder)
                .with_context(|| format!("failed to remove {}", folder.display()))?;
        }
        let Some(status) = status else {
            say!("{shown}: ended by a signal in {what}; the whole runs are kept");
            return Ok(super::trace::code(128 + run.signal().unwrap_or(2)));
        };
        if !status.success() {
            say!("note: {} ended with {status} in {what}", args.command[0]);
            if !warm_up {
                let failed = args.output.join("failed");
                std::fs::rename(&folder, &failed)
                    .with_context(|| format!("failed to rename {}", folder.display()))?;
                say!("note: its recording is {}", failed.display());
            }
            return Ok(super::trace::passed_on(status));
        }
    }
    for note in &notes {
        say!("note: {}: {}", note.subject, note.text);
    }
    let runs = counted(args.runs.into(), "run");
    say!("{shown}: {runs}; next: vmscope ci compare {shown} OTHER");
    Ok(ExitCode::SUCCESS)
}

/// Names sort as numbers do.
fn run_name(number: u16) -> String {
    format!("run-{number:03}")
}

/// The runs in a folder.
struct Folder {
    runs: Vec<JobRun>,
    headers: Vec<Header>,
}

fn compare_folders(args: &CompareArgs) -> anyhow::Result<ExitCode> {
    let progress = Progress::start("reading the runs", 0);
    let before = read_folder(&args.before, args)?;
    let after = read_folder(&args.after, args)?;
    drop(progress);
    let found = compare(&before.runs, &after.runs, args.least / 100.0)?;
    let limit = match (args.limit, args.format) {
        (Some(0), _) | (None, Format::Json | Format::Csv) => None,
        (Some(limit), _) => Some(limit),
        (None, Format::Text | Format::Markdown) => Some(LIMIT),
    };
    let mut report = comparison(&found, limit);
    report.notes = notes(&before, &after);
    print(&render(&report, args.format)).context("failed to write to standard output")?;
    Ok(if found.verdict == Verdict::Slower { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn render(report: &Report, format: Format) -> String {
    match format {
        Format::Text => report.text(width()),
        Format::Markdown => report.markdown(),
        Format::Json => table::pretty(&report.json),
        Format::Csv => report.csv(),
    }
}

fn read_folder(folder: &Path, args: &CompareArgs) -> anyhow::Result<Folder> {
    let shown = folder.display();
    let failed = || format!("failed to read the folder {shown}");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(failed)? {
        let name = entry.with_context(failed)?.file_name();
        names.extend(name.to_str().filter(|name| is_run(name)).map(str::to_owned));
    }
    if names.is_empty() {
        let text = format!("{shown} has no runs: vmscope ci record writes such folders");
        return Err(Usage(text).into());
    }
    names.sort_unstable();
    let mut found = Folder { runs: Vec::new(), headers: Vec::new() };
    for name in names {
        let (run, header) = read_run(&folder.join(name), args)?;
        found.runs.push(run);
        found.headers.push(header);
    }
    Ok(found)
}

/// Not one that was cut off: it has another name.
fn is_run(name: &str) -> bool {
    let number = name.strip_prefix("run-").unwrap_or_default();
    !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
}

fn read_run(folder: &Path, args: &CompareArgs) -> anyhow::Result<(JobRun, Header)> {
    let recording = OpenRecording::open(folder, TimeRange::ALL)?;
    let (view, side) = match args.vm {
        Some(_) => (View::Guest, Side::Guest),
        None => (View::Native, Side::Host),
    };
    let (vm, process) = (args.vm.as_deref(), args.process.as_deref());
    let selection = Selection::new(recording.tables(), view, vm, None, process)
        .map_err(|error| Usage(clean(&error.to_string()).into_owned()))?;
    let selection = if args.vm.is_some() { selection } else { selection.of_command() };
    let query = Query { selection, by: By::Function, limit: None };
    let resolver = recording.resolver();
    let mut aggregator = Aggregator::new(&resolver, recording.header(), query);
    recording.for_each_sample(&mut |sample| aggregator.push(sample))?;
    let profile = aggregator.finish();
    let header = recording.header().clone();
    let mut run = JobRun { wall_ns: header.end.since(header.start), ..JobRun::default() };
    // Of a guest only what it ran: what its vCPUs lost is in other rows.
    for row in profile.rows.iter().filter(|row| row.label.side == Some(side)) {
        let label = row.label.clone();
        let function = JobFunction {
            process: label.process.unwrap_or_default(),
            function: label.function.unwrap_or_default(),
            module: label.module,
        };
        *run.functions.entry(function).or_default() += row.samples * header.period_ns;
    }
    Ok((run, header))
}

/// What makes the two harder to compare.
fn notes(before: &Folder, after: &Folder) -> Vec<String> {
    let all = || before.headers.iter().chain(&after.headers);
    let differ = |what: &str, value: &dyn Fn(&Header) -> String| {
        let values: BTreeSet<String> = all().map(value).collect();
        let values: Vec<&str> = values.iter().map(String::as_str).collect();
        (1 < values.len()).then(|| format!("the runs have several {what}: {}", values.join(", ")))
    };
    let dropped: u64 = all().map(|header| header.count(Counter::SamplesDropped)).sum();
    let dropped = (0 < dropped).then(|| {
        format!("{} were dropped: CPU time is too low by them", counted(dropped, "sample"))
    });
    let period = |header: &Header| format!("{} ms", header.period_ns as f64 / 1e6);
    let notes = [
        differ("hosts", &|header| header.hostname.clone()),
        differ("kernels", &|header| header.kernel.clone()),
        differ("sampling periods", &period),
        dropped,
    ];
    notes.into_iter().flatten().collect()
}

fn percent(text: &str) -> Result<f64, String> {
    let percent = text.trim_end_matches('%').trim().parse::<f64>();
    let percent = percent.ok().filter(|percent| (0.0..=100.0).contains(percent));
    percent.ok_or_else(|| "give per cent between 0 and 100, for example 0.5".to_owned())
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn runs_have_their_names() {
        assert!(is_run(&run_name(1)) && is_run("run-1000"));
        for name in ["run-", "run-01.partial", "warm-up", "run-x", ".run-01"] {
            assert!(!is_run(name), "{name}");
        }
    }

    #[test]
    fn percents() {
        assert_eq!(percent("0.5"), Ok(0.5));
        assert_eq!(percent("3 %"), Ok(3.0));
        for wrong in ["-1", "nan", "101", "", "x"] {
            assert!(percent(wrong).is_err(), "{wrong}");
        }
    }
}
