//! `vmscope record`.

use std::io::IsTerminal;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::Context;
use collector::running::{Ended, Running, still_runs};
use collector::{
    CollectError, Collected, Control, Exits, GuestQuestions, Next, Plan, ProcessEvents, Progress,
    Roots, Sampling, SessionPlan,
};
use model::{Counter, OffCpuSource, Pid, Trigger};
use rustix::fs::{Access, access};
use table::{clean, counted};

use super::run::Run;
use cli::Usage;
use cli::duration_in_seconds;

const EXAMPLE: &str = "Examples:
  vmscope record -o day1 --duration 20        20 s of this host and its guests
  vmscope record -o build -- make -j8         as long as a command runs
  vmscope record -o exact --offcpu-source switches
                                              exact times of lost CPUs
  vmscope record -o calls --call-graph        call stacks of host and guests:
                                              vmscope report calls --children
  vmscope record -o why --exits               count VM exits
  vmscope record -o job --trace -- make       also trace the command:
                                              vmscope trace report job
  vmscope record -o db --guest-map db=db.map  a guest without a channel; in it:
                                              vmscope-guest snapshot >db.map";

/// Record a profile of this host and its guests.
///
/// Samples every CPU until the duration is over, COMMAND ends or Ctrl-C is pressed; a second Ctrl-C ends vmscope at
/// once and leaves the recording under DIR.partial. Names in guests are read from their memory; a guest that runs
/// vmscope-guest sends those of files that are not in it. Needs root.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Args {
    /// Folder to write; must not exist
    #[arg(short, long, value_name = "DIR", default_value = "vmscope-recording")]
    output: PathBuf,
    /// Duration, in seconds (or with a unit: 500ms, 2m)
    #[arg(short, long, value_name = "TIME", value_parser = duration_in_seconds)]
    duration: Option<Duration>,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// Also trace events of tasks, CPUs, disks and locks, as trace record does. COMMAND starts once the probes are
    /// attached
    #[arg(long)]
    trace: bool,
    /// VM whose guest is traced and runs COMMAND, see trace record --help (repeatable)
    #[arg(long, value_name = "NAME", requires = "trace")]
    vm: Vec<String>,
    /// Ring buffer per CPU with --trace: 64K to 1G (with --vm up to 256M)
    #[arg(long, value_name = "SIZE", default_value = "4M", requires = "trace", value_parser = super::trace::buffer)]
    buffer: u64,
    /// Free disk space at which --trace stops [default: 5 % of the disk, 1G at most]
    #[arg(long, value_name = "SIZE", requires = "trace", value_parser = cli::size)]
    min_free: Option<u64>,
    /// Command to run. The recording ends when it exits, and passes its exit code on; a recording that ends first sends
    /// it SIGTERM
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// What is sampled, and how often.
#[derive(Debug, clap::Args)]
pub(super) struct SamplingArgs {
    /// Time between samples of a CPU: 100us to 100ms
    #[arg(short, long, value_name = "TIME", default_value = "1ms", value_parser = period)]
    period: Duration,
    /// Source of the sampling interrupts
    #[arg(long, value_enum, default_value_t = TriggerArg::CpuClock)]
    trigger: TriggerArg,
    /// Source of the times at which vCPUs lost and got their CPU
    #[arg(long, alias = "edges", value_enum, value_name = "SOURCE", default_value_t = OffCpuSourceArg::Samples)]
    offcpu_source: OffCpuSourceArg,
    /// Count VM exits by vCPU and reason; costs about 100 instructions per exit
    #[arg(long)]
    exits: bool,
    /// Record call stacks: the host's by frame pointers, guests' by the unwind tables of their kernels and files
    #[arg(long, value_enum, value_name = "METHOD", num_args = 0..=1, default_missing_value = "on")]
    call_graph: Option<CallGraph>,
    /// Snapshot of a guest that has no channel (repeatable)
    #[arg(long, value_name = "VM=FILE", value_parser = guest_map)]
    guest_map: Vec<(String, PathBuf)>,
    /// Time limit of each step with a guest: connecting, its map, its symbols
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration_in_seconds)]
    guest_timeout: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum TriggerArg {
    /// A kernel timer per CPU; works everywhere, also in virtual machines
    CpuClock,
    /// The CPU's cycle counter; refused where it would prevent VMs from starting
    Cycles,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum OffCpuSourceArg {
    /// The samples: accurate to one period, at no extra cost
    Samples,
    /// Scheduler switches: exact, at a cost for each context switch of the host
    Switches,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum CallGraph {
    /// As said above; there is no other method
    #[value(alias = "fp")]
    On,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let plan = plan(&args.output, &args.sampling)?;
    if let ([program, ..], []) = (args.command.as_slice(), args.vm.as_slice()) {
        check_program(program)?;
    }
    if args.trace {
        return run_with_trace(args, &plan);
    }
    let mut run = Run::new(args.duration, &args.output, "vmscope report")?;
    let mut end = End::new(&mut run, &args.command);
    let collected = collector::record(&plan, &mut end);
    let code = end.end_command()?;
    let collected = collected?;
    summarize(&collected, &args.output);
    Ok(code)
}

/// Records one of several runs of a command. How it ended; `None`: the recording ended first, by a signal.
pub(super) fn record_run(
    run: &mut Run,
    output: &Path,
    sampling: &SamplingArgs,
    command: &[String],
) -> anyhow::Result<(Collected, Option<ExitStatus>)> {
    let plan = plan(output, sampling)?;
    check_program(&command[0])?;
    let mut end = End { is_quiet: true, ..End::new(run, command) };
    let collected = collector::record(&plan, &mut end);
    let status = match end.finish_command()? {
        Some(Ended::Itself(status)) => Some(status),
        Some(Ended::WithRecording(_)) | None => None,
    };
    Ok((collected?, status))
}

/// Says that a command can't be executed before guests are queried, which takes a while.
fn check_program(program: &str) -> Result<(), CollectError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = match program.contains('/') {
        true => vec![PathBuf::from(program)],
        false => std::env::split_paths(&path).map(|folder| folder.join(program)).collect(),
    };
    let found = places.iter().filter(|place| place.is_file());
    let mut reasons = found.map(|place| access(place, Access::EXEC_OK));
    let reason = match reasons.next() {
        None => rustix::io::Errno::NOENT,
        Some(Ok(())) => return Ok(()),
        Some(Err(_)) if reasons.any(|reason| reason.is_ok()) => return Ok(()),
        Some(Err(reason)) => reason,
    };
    Err(CollectError::Command { program: program.to_owned(), source: reason.into() })
}

/// The trace's command is the recorder's, and so is the way that it ends.
fn run_with_trace(args: &Args, plan: &Plan) -> anyhow::Result<ExitCode> {
    let trace = super::trace::host_plan(args.buffer, args.min_free, &args.vm, &args.command)?;
    let mut end = super::trace::End::new(args.duration, &args.command, &args.output)?;
    let (collected, traced) = collector::record_with_trace(plan, &trace, &mut end)?;
    summarize(&collected, &args.output);
    Ok(end.finish(&traced, &args.output))
}

fn plan(output: &Path, args: &SamplingArgs) -> anyhow::Result<Plan> {
    if output.exists() {
        let shown = output.display();
        return Err(Usage(format!("{shown} exists already: choose another name with -o")).into());
    }
    check_pid_namespace()?;
    for (_, file) in &args.guest_map {
        std::fs::metadata(file)
            .with_context(|| format!("failed to read the guest map {}", file.display()))?;
    }
    let period_ns = u64::try_from(args.period.as_nanos()).unwrap_or(u64::MAX);
    let (trigger, trigger_period) = match args.trigger {
        TriggerArg::CpuClock => (Trigger::CpuClock, period_ns),
        TriggerArg::Cycles => (Trigger::Cycles, cycles_of(period_ns)?),
    };
    let limits = guest::Limits { time: args.guest_timeout, ..guest::Limits::default() };
    let with_map = args.guest_map.iter().map(|(vm, _)| vm.clone()).collect();
    let session = SessionPlan {
        roots: Roots::default(),
        sampling: Sampling {
            trigger,
            period_ns,
            trigger_period,
            call_graph: args.call_graph.is_some(),
        },
        off_cpu_source: match args.offcpu_source {
            OffCpuSourceArg::Samples => OffCpuSource::Samples,
            OffCpuSourceArg::Switches => OffCpuSource::Switches,
        },
        exits: if args.exits { Exits::Counted } else { Exits::NotCounted },
        process_events: ProcessEvents::Followed,
        guests: GuestQuestions::On { wait: limits.time, limits, with_map },
        vmscope_version: env!("CARGO_PKG_VERSION").to_owned(),
        hostname: None,
    };
    Ok(Plan {
        output: output.to_owned(),
        session,
        guest_maps: args.guest_map.clone(),
        symbol_store: symbols::Store::default_path(),
    })
}

/// Sampled process ids are the host's.
pub(crate) fn check_pid_namespace() -> Result<(), Usage> {
    if host::machine::in_host_pid_namespace(Path::new("/proc")) {
        return Ok(());
    }
    let why =
        "process ids are not the host's here: run it outside of containers, or with --pid=host";
    Err(Usage(why.to_owned()))
}

/// When recording ends: signal, time, or the command's end. Time and command begin when first queried.
struct End<'a> {
    command: &'a [String],
    run: &'a mut Run,
    running: Option<std::io::Result<Running>>,
    /// Only what concerns the user's waiting is shown.
    is_quiet: bool,
}

impl<'a> End<'a> {
    fn new(run: &'a mut Run, command: &'a [String]) -> Self {
        Self { command, run, running: None, is_quiet: false }
    }

    /// Ends a command that outlived the recording. How it ended; `None`: there is none.
    fn finish_command(&mut self) -> Result<Option<Ended>, CollectError> {
        let Some(running) = self.running.take() else { return Ok(None) };
        let program = self.command[0].clone();
        let running = running.map_err(|source| CollectError::Command { program, source })?;
        Ok(Some(running.finish(Path::new("/proc"))))
    }

    /// Ends the command as `finish_command` does. Returns the exit code to pass on: the command's if it ended by itself.
    fn end_command(mut self) -> anyhow::Result<ExitCode> {
        let Some(ended) = self.finish_command()? else { return Ok(ExitCode::SUCCESS) };
        let name = &self.command[0];
        let signal = self.run.signal();
        match ended {
            Ended::Itself(status) => {
                if !status.success() {
                    say!("note: {name} ended with {status}");
                }
                Ok(super::trace::passed_on(status))
            }
            Ended::WithRecording(left) => {
                if let Some(text) = still_runs(&left) {
                    say!("note: {}", clean(&text));
                }
                Ok(code_after(!left.is_empty(), signal))
            }
        }
    }
}

/// The exit code if the recording ended before COMMAND, as in `trace record`: 128 plus the number of the signal that ended
/// it, or 1 if processes of COMMAND still run.
fn code_after(still_runs: bool, signal: Option<usize>) -> ExitCode {
    match (signal, still_runs) {
        (None, true) => ExitCode::FAILURE,
        (None, false) => ExitCode::SUCCESS,
        (Some(signal), _) => super::trace::code(128 + signal),
    }
}

impl Control for End<'_> {
    fn interrupted(&self) -> bool {
        self.run.signal().is_some()
    }

    fn next(&mut self) -> Next {
        if self.run.take_signal().is_some() {
            return Next::Finish;
        }
        if let (None, [program, arguments @ ..]) = (&self.running, self.command) {
            self.running = Some(Command::new(program).args(arguments).spawn().map(Running::new));
        }
        let left = self.run.left(Instant::now());
        match self.running.as_mut().map(|running| running.as_mut().map(Running::has_ended)) {
            Some(Err(_)) => Next::Discard,
            Some(Ok(true)) => Next::Finish,
            Some(Ok(false)) | None if left.is_zero() => Next::Finish,
            Some(Ok(false)) | None => Next::GoOn(left),
        }
    }

    fn command(&self) -> Option<Pid> {
        let running = self.running.as_ref()?.as_ref().ok()?;
        Some(running.pid())
    }

    fn wait(&mut self, at_most: Duration, wake: &[BorrowedFd<'_>]) {
        let ended = self.running.iter().flatten().filter_map(Running::end);
        let wake: Vec<_> = wake.iter().copied().chain(ended).collect();
        self.run.wait(at_most, &wake);
    }

    /// Prints the first line always, progress only on a terminal.
    fn show(&mut self, progress: &Progress) {
        let terminal = std::io::stderr().is_terminal();
        match progress {
            _ if self.is_quiet => {}
            Progress::Sampling { cpus, vms } => {
                let vms = match vms.as_slice() {
                    [] => "; no VM runs".to_owned(),
                    vms => format!(" and {} ({})", counted(vms.len() as u64, "VM"), vms.join(", ")),
                };
                let cpus = counted(*cpus as u64, "CPU");
                let line = format!("sampling {cpus}{vms}; Ctrl-C ends it");
                self.run.begin_with(clean(&line).into());
            }
            _ if !terminal => {}
            Progress::VmFound(name) => say!("VM {} started", clean(name)),
            Progress::VmEnded(name) => say!("VM {} ended", clean(name)),
            Progress::Preparing(what) | Progress::Finishing(what) => say!("{what} ..."),
            // Of traces.
            Progress::Tracing { .. }
            | Progress::SoFar { .. }
            | Progress::Output(_)
            | Progress::Written(_) => {}
        }
    }
}

fn summarize(collected: &Collected, output: &Path) {
    let Collected { header, summary, .. } = collected;
    let dropped = header.count(Counter::SamplesDropped);
    say!(
        "{}: {} samples in {:.1} s, {dropped} dropped, {:.2} bytes per sample; next: vmscope report {0}",
        output.display(),
        summary.samples,
        header.end.since(header.start) as f64 / 1e9,
        summary.bytes_per_sample(),
    );
    for note in &header.notes {
        say!("note: {}: {}", note.subject, note.text);
    }
}

/// The cycle counter counts cycles: the period is taken at the CPU's nominal frequency.
fn cycles_of(period_ns: u64) -> anyhow::Result<u64> {
    host::machine::cycles_are_safe(Path::new("/sys")).map_err(Usage)?;
    let mhz = host::machine::nominal_mhz(Path::new("/sys"))
        .context("failed to read the CPU's frequency: use --trigger cpu-clock")?;
    Ok(period_ns.saturating_mul(mhz) / 1000)
}

fn guest_map(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((vm, file)) if !vm.is_empty() && !file.is_empty() => Ok((vm.to_owned(), file.into())),
        _ => Err("give VM=FILE, for example web=web.map".to_owned()),
    }
}

pub(crate) fn period(text: &str) -> Result<Duration, String> {
    let period = duration_in_seconds(text)?;
    let (least, most) = (Duration::from_micros(100), Duration::from_millis(100));
    if (least..=most).contains(&period) {
        return Ok(period);
    }
    Err("the period lies between 100us and 100ms".to_owned())
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn programs_that_cannot_be_executed() {
        let check = |program: &str, expected| {
            let refused = check_program(program).map_err(anyhow::Error::from);
            let code = refused.err().and_then(|error| super::super::trace::not_executed(&error));
            assert_eq!(code, expected, "{program}");
        };
        check("sh", None);
        check("/bin/sh", None);
        check("no-such-program-at-all", Some(127));
        check("/no/such/program", Some(127));
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("text");
        std::fs::write(&file, "text").unwrap();
        check(file.to_str().unwrap(), Some(126));
        check(folder.path().to_str().unwrap(), Some(127));
    }

    #[test]
    fn exit_codes_of_recordings_that_end_before_their_command() {
        for (still_runs, signal, expected) in
            [(false, None, 0), (true, None, 1), (false, Some(2), 130), (true, Some(15), 143)]
        {
            let code = code_after(still_runs, signal);
            assert_eq!(code, ExitCode::from(expected), "{still_runs} {signal:?}");
        }
    }

    #[test]
    fn periods() {
        assert!(period("50us").is_err());
        assert!(period("1s").is_err());
        assert_eq!(period("2.5ms"), Ok(Duration::from_micros(2500)));
    }
}
