//! `vmscope trace record`.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use analysis::clean;
use anyhow::Context;
use collector::trace::{
    GuestPath, Scope, TraceControl, TraceNext, TracePlan, TraceProgress, Traced, trace,
};
use model::TraceTables;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, getpgrp};
use rustix::termios::tcgetpgrp;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag::{register, register_conditional_shutdown, register_usize};
use signal_hook::low_level::pipe;

use super::super::Usage;
use super::super::time::duration_in_seconds;

/// A command that was told to end may take so long while it is still traced.
const LAST_EVENTS: Duration = Duration::from_secs(2);
const MOST_BUFFER: u64 = 1 << 30;
const LEAST_BUFFER: u64 = 1 << 16;
/// A guest's rings are no larger (`tracer::outside::MAX_SLOTS`).
const MOST_GUEST_BUFFER: u64 = 256 << 20;

const EXAMPLE: &str = "Examples:
  vmscope trace record -o seq -- make         as long as make runs
  vmscope trace record -o ten --duration 10   10 s of everything
  vmscope trace record -o db --tree 4711 --duration 30s
                                              a process and what it starts
  vmscope trace record -o web --vm web --duration 10
                                              in a guest, taken from outside
  vmscope trace record -o build --vm web -- make -C /src
                                              as long as make runs in the guest";

/// Record every event of tasks, CPUs, disks and locks: of this host and of guests.
///
/// Traces until COMMAND ends, the duration is over or Ctrl-C is pressed. COMMAND begins when the probes are attached;
/// its exit code is passed on. By default everything on the host is traced: filters make the trace smaller, and leave
/// the machine's four-way profile and kernel time without what they leave out. Needs root.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Args {
    /// Folder to write; must not exist
    #[arg(short, long, value_name = "DIR", default_value = "vmscope-trace")]
    output: PathBuf,
    /// How long, in seconds (or with a unit: 500ms, 2m)
    #[arg(short, long, value_name = "TIME", value_parser = duration_in_seconds)]
    duration: Option<Duration>,
    /// Room for each CPU's events until they are stored: 64K to 1G (with --vm to 256M)
    #[arg(long, value_name = "SIZE", default_value = "4M", value_parser = size)]
    buffer: u64,
    /// Only COMMAND and what it starts
    #[arg(long, conflicts_with_all = ["tree", "cgroup"], requires = "command")]
    only_command: bool,
    /// Trace the guest of this VM from outside (its name, or its QEMU's process id), and of the host its QEMU and who has
    /// or wants a CPU. COMMAND then runs in the guest, where `vmscope-guest serve --allow-commands` must run;
    /// --only-command and --tree then mean the guest's tasks. May be given several times
    #[arg(long, value_name = "NAME", conflicts_with = "cgroup")]
    vm: Vec<String>,
    /// Have the guest send its events, as it does by itself where its memory can't be read
    #[arg(long, requires = "vm")]
    by_link: bool,
    /// Check the guest's clock at the begin and at the end: by so many port writes of its kernel, which both sides see
    #[arg(long, value_name = "MARKS", requires = "vm", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1024))]
    check_clock: u32,
    /// Only this process and what it starts
    #[arg(long, value_name = "PID", conflicts_with = "cgroup")]
    tree: Option<u32>,
    /// Only tasks of this control group: its folder, or its path below /sys/fs/cgroup
    #[arg(long, value_name = "PATH")]
    cgroup: Option<PathBuf>,
    /// Trace as long as this command runs; it is ended (SIGTERM) when the trace ends first
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let plan = plan(args)?;
    let mut end = End::new(args.duration)?;
    let traced = trace(&plan, &mut end)?;
    summarize(&traced, &args.output);
    Ok(match traced.command {
        Some(status) => passed_on(status),
        None if is_command_left(&traced.tables) => ExitCode::FAILURE,
        None => ExitCode::SUCCESS,
    })
}

/// Nobody knows how a command ended whose machine's trace ended before it.
fn is_command_left(tables: &TraceTables) -> bool {
    let ran_on = tables.command.as_ref().map(|command| command.machine.index());
    ran_on
        .and_then(|machine| tables.machines.get(machine))
        .is_some_and(|row| row.ended_early.is_some())
}

fn plan(args: &Args) -> anyhow::Result<TracePlan> {
    if args.output.exists() {
        let shown = args.output.display();
        return Err(Usage(format!("{shown} exists already: choose another name with -o")).into());
    }
    if !host::machine::in_host_pid_namespace(Path::new("/proc")) {
        let why =
            "process ids are not the host's here: run it outside of containers, or with --pid=host";
        return Err(Usage(why.to_owned()).into());
    }
    check_buffer(args.buffer, &args.vm)?;
    Ok(TracePlan {
        output: args.output.clone(),
        ring_bytes: args.buffer,
        scope: scope(args)?,
        vms: args.vm.clone(),
        guest_path: if args.by_link { GuestPath::Link } else { GuestPath::Memory },
        marks: args.check_clock,
        command: args.command.clone(),
        vmscope_version: env!("CARGO_PKG_VERSION").to_owned(),
    })
}

fn check_buffer(bytes: u64, vms: &[String]) -> Result<(), Usage> {
    if !vms.is_empty() && MOST_GUEST_BUFFER < bytes {
        return Err(Usage("with --vm, --buffer is 256M at most".to_owned()));
    }
    Ok(())
}

fn scope(args: &Args) -> Result<Scope, Usage> {
    if args.only_command {
        return Ok(Scope::Command);
    }
    if let (Some(pid), false) = (args.tree, args.vm.is_empty()) {
        // A process of the guest: it knows whether there is one.
        return Ok(Scope::Tree(pid));
    }
    if let Some(pid) = args.tree {
        let there = Path::new("/proc").join(pid.to_string()).exists();
        let gone = || Usage(format!("no process {pid}: give the id of one that runs"));
        return if there { Ok(Scope::Tree(pid)) } else { Err(gone()) };
    }
    match &args.cgroup {
        Some(path) => cgroup(path).map(Scope::Cgroup),
        None => Ok(Scope::Everything),
    }
}

/// The group's folder, however it was named.
fn cgroup(path: &Path) -> Result<PathBuf, Usage> {
    let below = path.strip_prefix("/").unwrap_or(path);
    let places = [path.to_owned(), Path::new("/sys/fs/cgroup").join(below)];
    let folder = places.into_iter().find(|place| place.join("cgroup.procs").exists());
    let none =
        || format!("{} is no control group: give its folder below /sys/fs/cgroup", path.display());
    folder.ok_or_else(|| Usage(none()))
}

/// When tracing ends: signal or time. The command's end is seen by the recorder.
struct End {
    duration: Option<Duration>,
    deadline: Option<Instant>,
    /// The signal that came; 0 for none.
    signal: Arc<AtomicUsize>,
    /// Readable after a signal.
    signalled: UnixStream,
    /// Since when the command is to end.
    told: Option<Instant>,
    terminal: bool,
}

impl End {
    fn new(duration: Option<Duration>) -> anyhow::Result<Self> {
        let (came, signal) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (signalled, wake) = UnixStream::pair().context("failed to make a pipe")?;
        for (number, as_usize) in [(SIGINT, 2), (SIGTERM, 15)] {
            let failed = "failed to catch signals";
            // The second signal ends the program at once; what is complete by then can be read.
            register_conditional_shutdown(number, 1, Arc::clone(&came)).context(failed)?;
            register(number, Arc::clone(&came)).context(failed)?;
            register_usize(number, Arc::clone(&signal), as_usize).context(failed)?;
            let wake = wake.try_clone().context("failed to make a pipe")?;
            pipe::register(number, wake).context(failed)?;
        }
        let terminal = std::io::stderr().is_terminal();
        Ok(Self { duration, deadline: None, signal, signalled, told: None, terminal })
    }
}

impl TraceControl for End {
    fn next(&mut self) -> TraceNext {
        let now = Instant::now();
        let signal = self.signal.load(Ordering::Relaxed);
        let deadline = match (self.told, signal) {
            (Some(told), _) => Some(told + LAST_EVENTS),
            (None, 0) => self.duration.map(|duration| *self.deadline.get_or_insert(now + duration)),
            (None, signal) => {
                self.told = Some(now);
                let signal = if signal == 2 { Signal::INT } else { Signal::TERM };
                return TraceNext::End((!had_it(signal)).then_some(signal));
            }
        };
        match deadline {
            Some(at) if at <= now => TraceNext::Finish,
            Some(at) => TraceNext::GoOn(at - now),
            None => TraceNext::GoOn(Duration::MAX),
        }
    }

    fn wait(&mut self, at_most: Duration, wake: &[BorrowedFd<'_>]) {
        let mut ends: Vec<_> = wake.iter().map(|wake| PollFd::new(wake, PollFlags::IN)).collect();
        if self.told.is_none() {
            ends.push(PollFd::new(&self.signalled, PollFlags::IN));
        }
        // Whatever comes of it, `next` looks itself.
        let _ = poll(&mut ends, Timespec::try_from(at_most).ok().as_ref());
    }

    /// Progress goes to people only, a guest's command's output to whoever wants the command's.
    fn show(&mut self, progress: &TraceProgress) {
        match progress {
            // Who closed our output wants no more of it; the trace goes on.
            TraceProgress::Output(text) => drop(io::stdout().write_all(text.as_bytes())),
            _ if !self.terminal => {}
            TraceProgress::Tracing { cpus, .. } => {
                eprintln!("tracing {cpus} CPUs; Ctrl-C ends it");
            }
            TraceProgress::SoFar { events, lost } => {
                eprint!("\r{events} events, {lost} lost ");
            }
            TraceProgress::Finishing(what) => eprintln!("\r{what} ...          "),
        }
    }
}

/// Ctrl-C reaches all processes of the terminal's foreground, the command among them.
fn had_it(signal: Signal) -> bool {
    let foreground = || tcgetpgrp(File::open("/dev/tty").ok()?).ok();
    signal == Signal::INT && foreground() == Some(getpgrp())
}

/// Names are the VMs' and the user's: what could steer a terminal is escaped.
fn summarize(traced: &Traced, output: &Path) {
    let Traced { header, tables, summary, .. } = traced;
    let lost: u64 = tables.machines.iter().flat_map(|row| &row.lost).map(|lost| lost.count).sum();
    let say = |line: &str| eprintln!("{}", clean(line));
    say(&format!(
        "{}: {} events in {:.1} s, {lost} lost, {:.1} bytes per event; next: vmscope trace report {0}",
        output.display(),
        summary.events,
        header.end.since(header.begin) as f64 / 1e9,
        summary.bytes_per_event(),
    ));
    for row in &tables.machines {
        for (probe, reason) in &row.missing {
            say(&format!("note: {}: probe {probe} is missing: {reason}", row.name));
        }
        if let Some(reason) = &row.ended_early {
            say(&format!("note: {}: its trace ended early: {reason}", row.name));
        }
    }
    for note in &header.notes {
        say(&format!("note: {}: {}", note.subject, note.text));
    }
}

/// The command's exit code; 128 and the signal's number for one that a signal ended, as shells have it.
fn passed_on(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

/// `64K`, `4M`, `1G`; plain numbers are bytes.
fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" => 0,
        "K" | "k" => 10,
        "M" => 20,
        "G" => 30,
        other => return Err(format!("unknown unit {other:?}: use K, M or G")),
    };
    let number: u64 = digits.parse().map_err(|_| format!("{text:?} is not a size"))?;
    let bytes = number.checked_shl(shift).filter(|bytes| bytes >> shift == number);
    match bytes {
        Some(bytes @ LEAST_BUFFER..=MOST_BUFFER) => Ok(bytes),
        _ => Err("the buffer lies between 64K and 1G".to_owned()),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn sizes() {
        let check = |text, expected: Option<u64>| assert_eq!(size(text).ok(), expected, "{text}");
        check("4M", Some(4 << 20));
        check("64K", Some(64 << 10));
        check("1G", Some(1 << 30));
        check("1048576", Some(1 << 20));
        check("2G", None);
        check("1K", None);
        check("18446744073709551615G", None);
        check("4X", None);
        check("", None);
    }

    #[test]
    fn guests_have_smaller_buffers() {
        let web = ["web".to_owned()];
        assert!(check_buffer(MOST_BUFFER, &[]).is_ok());
        assert!(check_buffer(MOST_GUEST_BUFFER, &web).is_ok());
        assert!(
            check_buffer(MOST_GUEST_BUFFER + 1, &web).unwrap_err().to_string().contains("256M")
        );
    }
}
