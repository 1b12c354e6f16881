//! `vmscope export`: a recording as a flow, and the flow in another tool's format.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use analysis::flow::{Flow, FlowBuilder};
use analysis::{Counter, Resolver, Selection, View, clean};
use anyhow::Context;
use clap::ValueEnum;
use export::About;
use model::{Guest, Note, Tables};
use recording::Recording;

use super::Usage;
use super::report::{Select, refuse_unknown_process};

/// Write a recording in another tool's format.
///
/// docs/export.md says what each format holds.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Args {
    /// The recording
    dir: PathBuf,
    /// The format
    #[arg(long, value_enum)]
    format: Format,
    /// File to write, `-` for standard output [default: profile.folded, profile.pb.gz,
    /// profile.json.gz or flamegraph.html]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    select: Select,
}

const EXAMPLE: &str = "Examples:
  vmscope export day1 --format html                          flamegraph.html, for any browser
  vmscope export day1 --format pprof --view guest --vm web1  profile.pb.gz, one guest only
  vmscope export day1 --format folded -o - | inferno-flamegraph >flame.svg";

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Text: a stack and its samples per line
    Folded,
    /// For pprof, Pyroscope, Parca (profile.proto, gzipped)
    Pprof,
    /// For the Firefox Profiler (processed profile, gzipped)
    Firefox,
    /// One page with an interactive flame graph
    Html,
}

impl Format {
    fn default_file(self) -> &'static str {
        match self {
            Self::Folded => "profile.folded",
            Self::Pprof => "profile.pb.gz",
            Self::Firefox => "profile.json.gz",
            Self::Html => "flamegraph.html",
        }
    }

    fn is_text(self) -> bool {
        matches!(self, Self::Folded | Self::Html)
    }

    fn how_to_open(self, file: &str) -> String {
        match self {
            Self::Folded => format!("inferno-flamegraph {file} >flame.svg, or speedscope {file}"),
            Self::Pprof => format!("pprof -http=: {file}, or go tool pprof -http=: {file}"),
            Self::Firefox => {
                format!("profiler.firefox.com, load {file} there (it stays on your machine)")
            }
            Self::Html => format!("a browser, xdg-open {file}"),
        }
    }

    fn write(self, flow: &Flow, about: About<'_>, out: impl Write) -> io::Result<()> {
        match self {
            Self::Folded => export::folded::write(flow, out),
            Self::Pprof => export::pprof::write(flow, about, out),
            Self::Firefox => export::firefox::write(flow, out),
            Self::Html => export::html::write(flow, about, out),
        }
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let file = args.output.clone().unwrap_or_else(|| args.format.default_file().into());
    let to_stdout = file == Path::new("-");
    refuse_bad_target(args.format, &file)?;
    let recording = Recording::open(&args.dir)?;
    let selection = args.select.selection(&recording.tables)?;
    let view = view_text(&selection, &recording.tables);
    let notes = notes(&recording, &selection);
    let flow = flow(&recording, selection, &args.dir)?;
    let write = |out: &mut dyn Write| {
        args.format.write(&flow, About { view: &view, notes: &notes }, BufWriter::new(out))
    };
    if to_stdout {
        pipe(write(&mut io::stdout().lock())).context("failed to write to standard output")?;
    } else {
        write_file(&file, write).with_context(|| format!("failed to write {}", file.display()))?;
        let (samples, name) = (flow.samples.len(), file.display().to_string());
        eprintln!("wrote {name}: {samples} samples, {}", clean(&view));
        eprintln!("open it with: {}", args.format.how_to_open(&name));
    }
    Ok(ExitCode::SUCCESS)
}

/// What would only be found out after the work.
fn refuse_bad_target(format: Format, file: &Path) -> Result<(), Usage> {
    if file == Path::new("-") {
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

fn flow(recording: &Recording, selection: Selection, dir: &Path) -> anyhow::Result<Flow> {
    let resolver = Resolver::new(&recording.tables);
    let mut builder = FlowBuilder::new(&resolver, &recording.header, selection.clone());
    recording.for_each_batch(&mut |batch| batch.iter().for_each(|sample| builder.push(sample)))?;
    let flow = builder.finish();
    refuse_unknown_process(&selection, flow.samples.len() as u64, dir)?;
    anyhow::ensure!(!flow.samples.is_empty(), "no sample matches: there is nothing to export");
    Ok(flow)
}

/// `guest view of web1, process httpd`.
fn view_text(selection: &Selection, tables: &Tables) -> String {
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

/// What the recording says was missed, the guests without a map, the samples dropped, and what a
/// report of the same selection would count besides.
fn notes(recording: &Recording, selection: &Selection) -> Vec<Note> {
    let header = &recording.header;
    let mut notes = header.notes.clone();
    if selection.view() == View::Guest {
        let text = "[not running] and [not sampled] are no samples: shares here are of the samples";
        notes.push(Note { subject: "guest view".to_owned(), text: text.to_owned() });
    }
    for vm in &recording.tables.vms {
        if let Guest::Unmapped { reason } = &vm.guest
            && !notes.iter().any(|note| note.subject == vm.name && note.text.contains(reason))
        {
            let text = format!("no guest map: {reason}");
            notes.push(Note { subject: vm.name.clone(), text });
        }
    }
    notes.extend(header.counters.iter().filter_map(|(name, count)| counted(name, *count)));
    notes
}

fn counted(name: &str, count: u64) -> Option<Note> {
    let subject = match Counter::of(name) {
        Counter::Written => return None,
        Counter::Missed => "missed",
        Counter::Dropped | Counter::Other => "dropped or cut",
    };
    let text = format!("{name} {count}");
    (0 < count).then(|| Note { subject: subject.to_owned(), text })
}

/// A reader that has seen enough is no failure.
fn pipe(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// Writes beside `file` and renames, so that a half-written file never has the name. Devices and
/// pipes are written to as they are.
fn write_file(file: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    if file.metadata().is_ok_and(|existing| !existing.is_file()) {
        return pipe(write(&mut File::options().write(true).open(file)?));
    }
    let mut partial = Partial::create(file)?;
    write(&mut partial.file)?;
    partial.rename(file)
}

/// A file on its way to its name; removed if it does not get there.
struct Partial {
    file: File,
    path: PathBuf,
}

impl Partial {
    fn create(target: &Path) -> io::Result<Self> {
        let mut name = std::ffi::OsString::from(".");
        name.push(target.file_name().ok_or(io::ErrorKind::InvalidInput)?);
        name.push(format!(".{}.partial", std::process::id()));
        let path = target.with_file_name(name);
        Ok(Self { file: File::create_new(&path)?, path })
    }

    fn rename(self, target: &Path) -> io::Result<()> {
        std::fs::rename(&self.path, target)
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // After the rename there is nothing left to remove.
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn counters_become_notes() {
        let check = |name, count, expected: Option<&str>| {
            let note = counted(name, count).map(|note| format!("{}: {}", note.subject, note.text));
            assert_eq!(note.as_deref(), expected);
        };
        check("samples_dropped_cpu0", 0, None);
        check("samples_dropped_cpu0", 3, Some("dropped or cut: samples_dropped_cpu0 3"));
        check("samples_missed_cpu1", 7, Some("missed: samples_missed_cpu1 7"));
        check("samples_written_cpu0", 40, None);
        check("stacks_truncated", 2, Some("dropped or cut: stacks_truncated 2"));
    }
}
