//! `vmscope trace record`.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use collector::trace::{Flight, GuestPath, Scope, TracePlan, Traced, trace};
use collector::{CollectError, Control, Next, Progress, Roots};
use model::TraceTables;
use rustix::process::{Signal, getpgrp};
use rustix::termios::tcgetpgrp;
use table::{clean, counted};

use super::super::run::Run;
use cli::duration_in_seconds;
use cli::{SIGUSR1, SignalFlag, Usage, size};

/// A command may take so long to end while it is still traced.
const LAST_EVENTS: Duration = Duration::from_secs(2);
const MAX_BUFFER: u64 = 1 << 30;
const MIN_BUFFER: u64 = 1 << 16;
/// A guest's rings are no larger (`tracer::outside::MAX_SLOTS`).
const MAX_GUEST_BUFFER: u64 = 256 << 20;

const EXAMPLE: &str = "Examples:
  vmscope trace record -o seq -- make         as long as make runs
  vmscope trace record -o ten --duration 10   10 s of everything
  vmscope trace record -o db --follow 4711 --duration 30s
                                              a process and its descendants
  vmscope trace record -o slow --flight 30    the last 30 s before Ctrl-C
  vmscope trace record -o web --vm web --duration 10
                                              a guest, from outside
  vmscope trace record -o build --vm web -- make -C /src
                                              as long as make runs in the guest";

/// Record all events of tasks, CPUs, disks and locks, on this host and in guests.
///
/// Traces until COMMAND ends, the duration is over or Ctrl-C is pressed; a second Ctrl-C ends vmscope at once and leaves
/// the trace under DIR.partial. COMMAND starts once the probes are attached; its exit code is passed on. All tasks of
/// the host are traced; filters make the trace smaller, but the machine's figures then lack the other tasks. Needs root.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Args {
    /// Folder to write; must not exist
    #[arg(short, long, value_name = "DIR", default_value = "vmscope-trace")]
    output: PathBuf,
    /// Duration, in seconds (or with a unit: 500ms, 2m)
    #[arg(short, long, value_name = "TIME", value_parser = some_time)]
    duration: Option<Duration>,
    /// Ring buffer per CPU: 64K to 1G (with --vm up to 256M)
    #[arg(long, value_name = "SIZE", default_value = "4M", value_parser = buffer)]
    buffer: u64,
    /// Free disk space at which the trace stops (0: never) [default: 5 % of the disk, 1G at most]
    #[arg(long, alias = "keep-free", value_name = "SIZE", value_parser = size)]
    min_free: Option<u64>,
    /// Keep only the last events of this time, in memory, until the trace ends; `kill -USR1` writes them to DIR.1,
    /// DIR.2... and the recorder goes on
    #[arg(long, value_name = "TIME", conflicts_with = "vm", value_parser = some_time)]
    flight: Option<Duration>,
    /// Memory for --flight, for all CPUs: beyond it less time is kept
    #[arg(long, value_name = "SIZE", default_value = "256M", requires = "flight", value_parser = flight_memory)]
    flight_memory: u64,
    /// Record user call stacks of this host's tasks at each sleep, by frame pointers
    #[arg(long)]
    user_stacks: bool,
    /// Record which files and sockets of this host system calls, the page cache, inode locks and disks work for
    #[arg(long)]
    files: bool,
    /// Trace only COMMAND and its descendants
    #[arg(long, conflicts_with_all = ["follow", "cgroup"], requires = "command")]
    only_command: bool,
    /// VM whose guest is traced from the host, with its QEMU and the host's scheduling: its name, or its QEMU's process
    /// id (repeatable). COMMAND then runs in the guest, which needs `vmscope-guest serve --allow-commands`;
    /// --only-command and --follow then select the guest's tasks
    #[arg(long, value_name = "NAME", conflicts_with = "cgroup")]
    vm: Vec<String>,
    /// Path of a guest's events to the host
    #[arg(long, value_enum, requires = "vm", default_value_t = Transport::Memory)]
    transport: Transport,
    /// The same as --transport vsock
    #[arg(long, hide = true, requires = "vm", conflicts_with = "transport")]
    by_link: bool,
    /// Trace only this process and its descendants
    #[arg(long, alias = "tree", value_name = "PID", conflicts_with = "cgroup", value_parser = process_id)]
    follow: Option<u32>,
    /// Trace only tasks of this cgroup: its folder, or its path below /sys/fs/cgroup
    #[arg(long, value_name = "PATH")]
    cgroup: Option<PathBuf>,
    /// Command to run. The trace ends when it exits; a trace that ends first sends it SIGTERM
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Transport {
    /// The host reads them from the guest's memory; where that is impossible, the guest sends them
    Memory,
    /// The guest sends them over its vsock (or virtio-serial) channel
    Vsock,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let plan = plan(args)?;
    let mut end = End::new(args.duration, &args.command, &args.output)?;
    if let Some(flight) = args.flight {
        end = end.of_flight(flight)?;
    }
    let traced = trace(&plan, &mut end)?;
    Ok(end.finish(&traced, &args.output))
}

/// The plan of a trace beside samples: of the whole host, or of guests and who has or wants their CPUs.
pub(crate) fn host_plan(
    buffer: u64,
    min_free: Option<u64>,
    vms: &[String],
    command: &[String],
) -> Result<TracePlan, Usage> {
    check_buffer(buffer, vms)?;
    Ok(TracePlan {
        roots: Roots::default(),
        // The recording says where.
        output: PathBuf::new(),
        ring_bytes: buffer,
        scope: Scope::Everything,
        vms: vms.to_vec(),
        guest_path: GuestPath::Memory,
        user_stacks: false,
        files: false,
        min_free,
        flight: None,
        command: command.to_vec(),
        vmscope_version: env!("CARGO_PKG_VERSION").to_owned(),
    })
}

/// As shells and `env` have it, for an error that is about the command: 127 when there is no such program, 126 when it
/// can't be executed.
pub(crate) fn not_executed(error: &anyhow::Error) -> Option<u8> {
    match error.downcast_ref() {
        Some(CollectError::Command { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            Some(127)
        }
        Some(CollectError::Command { source, .. }) => source.raw_os_error().map(|_| 126),
        _ => None,
    }
}

/// How a command ended is unknown if its machine's trace ended first.
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
        roots: Roots::default(),
        output: args.output.clone(),
        ring_bytes: args.buffer,
        scope: scope(args)?,
        vms: args.vm.clone(),
        guest_path: match args.transport {
            Transport::Memory if !args.by_link => GuestPath::Memory,
            _ => GuestPath::Link,
        },
        user_stacks: args.user_stacks,
        files: args.files,
        min_free: args.min_free,
        flight: args.flight.map(|keep| Flight { keep, bytes: args.flight_memory }),
        command: args.command.clone(),
        vmscope_version: env!("CARGO_PKG_VERSION").to_owned(),
    })
}

fn check_buffer(bytes: u64, vms: &[String]) -> Result<(), Usage> {
    if !vms.is_empty() && MAX_GUEST_BUFFER < bytes {
        return Err(Usage("--buffer is at most 256M with --vm".to_owned()));
    }
    Ok(())
}

fn scope(args: &Args) -> Result<Scope, Usage> {
    if args.only_command {
        return Ok(Scope::Command);
    }
    if let (Some(pid), false) = (args.follow, args.vm.is_empty()) {
        // A process of the guest: it knows whether there is one.
        return Ok(Scope::Tree(pid));
    }
    if let Some(pid) = args.follow {
        let there = Path::new("/proc").join(pid.to_string()).exists();
        let gone = || Usage(format!("no process {pid}: give the id of a running process"));
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
pub(crate) struct End<'a> {
    command: &'a [String],
    run: Run,
    /// Until when the command may take to end.
    last_events: Option<Instant>,
    terminal: bool,
    /// For how long a flight recorder keeps events, and whether it is to write them.
    flight: Option<(Duration, SignalFlag)>,
}

impl<'a> End<'a> {
    pub(crate) fn new(
        duration: Option<Duration>,
        command: &'a [String],
        output: &Path,
    ) -> anyhow::Result<Self> {
        let run = Run::new(duration, output, "vmscope trace report")?;
        let terminal = io::stderr().is_terminal();
        Ok(Self { command, run, last_events: None, terminal, flight: None })
    }

    /// Of a trace that keeps the last events only: SIGUSR1 has them written.
    fn of_flight(self, keep: Duration) -> anyhow::Result<Self> {
        let write = SignalFlag::catch(&[SIGUSR1]).context("failed to catch signals")?;
        Ok(Self { flight: Some((keep, write)), ..self })
    }

    /// Sums up, and says what the program's exit code is.
    pub(crate) fn finish(&self, traced: &Traced, output: &Path) -> ExitCode {
        summarize(traced, output);
        match (traced.command, self.run.signal()) {
            (Some(status), _) => passed_on(status),
            (None, Some(signal)) if !self.command.is_empty() => code(128 + signal),
            _ if !traced.unplanned.is_empty() => ExitCode::FAILURE,
            _ if is_command_left(&traced.tables) => ExitCode::FAILURE,
            _ => ExitCode::SUCCESS,
        }
    }

    /// Until when it is to go on, in words.
    fn until(&self) -> String {
        let time = self.run.duration().map(|time| format!(", for {time:?} at most"));
        let time = time.unwrap_or_default();
        if let (Some((keep, _)), []) = (&self.flight, self.command) {
            let time = time.trim_end_matches(" at most");
            let pid = std::process::id();
            return format!(
                "{time}, keeping the last {keep:?}; Ctrl-C writes them, kill -USR1 {pid} too and goes on"
            );
        }
        match self.command {
            [] if time.is_empty() => "; Ctrl-C ends it".to_owned(),
            [] => format!("{}; Ctrl-C ends it", time.trim_end_matches(" at most")),
            words => format!(" until COMMAND ends{time}: {}", words.join(" ")),
        }
    }
}

impl Control for End<'_> {
    fn interrupted(&self) -> bool {
        self.run.signal().is_some()
    }

    fn next(&mut self) -> Next {
        let now = Instant::now();
        let left = match (self.last_events, self.run.take_signal()) {
            (Some(end), _) => end.saturating_duration_since(now),
            (None, None) => self.run.left(now),
            (None, Some(signal)) => {
                self.last_events = Some(now + LAST_EVENTS);
                let signal = if signal == 2 { Signal::INT } else { Signal::TERM };
                return Next::End((!had_it(signal)).then_some(signal));
            }
        };
        if left.is_zero() { Next::Finish } else { Next::GoOn(left) }
    }

    fn wait(&mut self, at_most: Duration, wake: &[BorrowedFd<'_>]) {
        self.run.wait(at_most, wake);
    }

    fn wants_snapshot(&mut self) -> bool {
        self.flight.as_ref().is_some_and(|(_, write)| write.take())
    }

    /// Prints the first line always, progress only on a terminal. Output of a guest's command goes to standard output.
    fn show(&mut self, progress: &Progress) {
        match progress {
            // Who closed our output wants no more of it; the trace goes on.
            Progress::Output(text) => drop(io::stdout().write_all(text.as_bytes())),
            Progress::Tracing { cpus, .. } => {
                let cpus = counted(*cpus as u64, "CPU");
                let line = format!("tracing {cpus}{}", self.until());
                self.run.begin_with(clean(&line).into());
            }
            Progress::Written(line) => say!("{}", clean(line)),
            _ if !self.terminal => {}
            Progress::SoFar { events, lost } => {
                say!(part: "\r{events} events, {lost} lost ");
            }
            Progress::Preparing(what) | Progress::Finishing(what) => {
                say!("\r{what} ...          ")
            }
            // Of samples beside the trace.
            Progress::Sampling { .. } => {}
            Progress::VmFound(name) => say!("\rVM {} started          ", clean(name)),
            Progress::VmEnded(name) => say!("\rVM {} ended          ", clean(name)),
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
    let lost = tables.machines.iter().fold(0, |sum: u64, row| sum.saturating_add(row.n_lost()));
    let say = |line: &str| say!("{}", clean(line));
    say(&format!(
        "{}: {} events in {:.1} s, {lost} lost{}, {:.1} bytes per event; next: vmscope trace report {0}",
        output.display(),
        summary.events,
        header.end.since(header.begin) as f64 / 1e9,
        if lost == 0 { "" } else { " (a larger --buffer helps)" },
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
pub(crate) fn passed_on(status: ExitStatus) -> ExitCode {
    status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal))
        .map_or(ExitCode::FAILURE, code)
}

/// An exit code; failure for what is none.
pub(crate) fn code<N: TryInto<u8>>(number: N) -> ExitCode {
    number.try_into().map_or(ExitCode::FAILURE, ExitCode::from)
}

fn some_time(text: &str) -> Result<Duration, String> {
    let time = duration_in_seconds(text)?;
    if time.is_zero() { Err("a trace takes longer than that".to_owned()) } else { Ok(time) }
}

fn process_id(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "give a process id: a number".to_owned())
}

pub(crate) fn buffer(text: &str) -> Result<u64, String> {
    match size(text)? {
        bytes @ MIN_BUFFER..=MAX_BUFFER => Ok(bytes),
        _ => Err("the buffer lies between 64K and 1G".to_owned()),
    }
}

/// Less holds no second of a busy host.
const MIN_FLIGHT: u64 = 1 << 20;

fn flight_memory(text: &str) -> Result<u64, String> {
    match size(text)? {
        bytes @ MIN_FLIGHT.. => Ok(bytes),
        _ => Err("the memory is at least 1M".to_owned()),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn sizes() {
        let check = |text, expected: Option<u64>| assert_eq!(buffer(text).ok(), expected, "{text}");
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
    fn times_and_process_ids() {
        assert_eq!(some_time("1ms"), Ok(Duration::from_millis(1)));
        assert!(some_time("0").is_err() && some_time("0ms").is_err());
        assert_eq!(process_id("4711"), Ok(4711));
        assert!(process_id("bash").is_err_and(|error| error.contains("process id")));
    }

    #[test]
    fn errors_of_the_command() {
        let check = |source: io::Error, expected| {
            let error = CollectError::Command { program: "x".to_owned(), source };
            assert_eq!(not_executed(&error.into()), expected);
        };
        check(io::Error::from_raw_os_error(2), Some(127));
        check(io::Error::from_raw_os_error(13), Some(126));
        check(io::Error::other("a guest's reason"), None);
        assert_eq!(not_executed(&anyhow::anyhow!("something else")), None);
    }

    #[test]
    fn guests_have_smaller_buffers() {
        let web = ["web".to_owned()];
        assert!(check_buffer(MAX_BUFFER, &[]).is_ok());
        assert!(check_buffer(MAX_GUEST_BUFFER, &web).is_ok());
        let refused = check_buffer(MAX_GUEST_BUFFER + 1, &web);
        assert!(refused.is_err_and(|error| error.to_string().contains("256M")));
    }
}
