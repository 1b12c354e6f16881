//! The thread that talks to a guest while its rings are read.
//!
//! ```text
//!  worker                                                      recorder
//!   connect, find memory, start the guest's probes  -------->   Started
//!   every 2 seconds: clocks, where the memory lies     -------->   Looked      (or Failed, and the end)
//!   only over the link: slots                       -------->   Slots
//!                                                   <--------   Run: let the command go
//!   stop the guest's probes, names                  <--------   Stop
//!                                                   -------->   Stopped
//!   (keeps the session: the rings stay)             <--------   dropped: the end
//! ```
//! A guest that does not answer holds up its own worker, never the recorder.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use api::guest::{
    MAX_TRACE_BYTES, TraceClock, TraceOptions, TraceSlots, TraceStarted, TraceStopped,
};
use guest::{Channel, Limits, Session};
use model::{HostNs, Pid};
use probes::{FoundVm, VmFinder};
use symbols::GuestChild;
use tracer::outside::{ClockSample, MemoryError, ProcessMemory, TscScale, sample_clock};
use tracer::{ClockPair, SLOT_BYTES};

use super::clock_warnings::ClockWarning;
use super::cpus::vcpus_by_cpu;
use crate::GuestError;
use crate::lock::PortLock;

/// Between two looks at the guest's clocks.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Between two times that the guest sends its slots.
const DRAIN_EVERY: Duration = Duration::from_millis(50);
/// Readings of the host's clocks, of which the tightest counts.
const CLOCK_READINGS: u32 = 200;
/// Looks, of which the sharpest counts.
const LOOKS: usize = 4;
/// CPUs of the host whose counters are compared.
const MAX_COMPARED_CPUS: usize = 1024;

/// What a worker needs.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) channel: Channel,
    /// Keeps the channel ours as long as the work goes on.
    pub(super) _port: Option<PortLock>,
    pub(super) limits: Limits,
    /// Reads what the guest sends.
    pub(super) child: GuestChild,
    /// Where the proc file system is.
    pub(super) proc: PathBuf,
    pub(super) process: Pid,
    /// Kernel address of the VM.
    pub(super) kvm: u64,
    pub(super) options: TraceOptions,
    pub(super) host_cpus: Vec<u32>,
}

/// What the recorder says.
#[derive(Debug)]
pub(super) enum Command {
    Run,
    /// The rings can't be read from outside: have the guest send them.
    Send,
    Stop,
}

/// What the worker says.
#[derive(Debug)]
pub(super) enum Message {
    /// The probes are attached.
    Started(Box<Begun>),
    /// The clocks, and where the memory lies now.
    Looked(Box<FoundVm>, Clocks, Option<i32>),
    Slots(Vec<TraceSlots>),
    /// The probes are detached.
    Stopped(Box<TraceStopped>, Clocks),
    /// The guest can't be queried any more.
    Failed(GuestError),
}

/// A guest's probes, just attached.
#[derive(Debug)]
pub(super) struct Begun {
    /// From before the guest was queried until after its answer.
    pub(super) requested: Range<HostNs>,
    pub(super) started: TraceStarted,
    pub(super) vm: FoundVm,
    pub(super) process: Result<ProcessMemory, MemoryError>,
    pub(super) clocks: Clocks,
}

/// An instant on both clocks; or why it is known by the link's delay only.
#[derive(Debug, Clone)]
pub(super) struct Clocks {
    pub(super) sample: ClockSample,
    pub(super) warning: Option<ClockWarning>,
}

pub(super) fn work(work: &Work, commands: &Receiver<Command>, messages: &SyncSender<Message>) {
    if let Err(reason) = trace(work, commands, messages) {
        // Without a recorder there is no receiver.
        let _ = messages.send(Message::Failed(reason));
    }
}

fn trace(
    work: &Work,
    commands: &Receiver<Command>,
    messages: &SyncSender<Message>,
) -> Result<(), GuestError> {
    let mut asking = Asking::begin(work)?;
    let tell = |what| messages.send(what).map_err(|_| GuestError::RecorderEnded);
    let begun = asking.start(&work.options)?;
    tell(Message::Started(Box::new(begun)))?;
    let (mut sends, mut next_look) = (false, Instant::now() + LOOK_EVERY);
    loop {
        let wait = if sends { DRAIN_EVERY } else { LOOK_EVERY };
        let wait = wait.min(next_look.saturating_duration_since(Instant::now()));
        match commands.recv_timeout(wait) {
            Ok(Command::Run) => {
                asking.session.trace_run()?;
            }
            Ok(Command::Send) => sends = true,
            Ok(Command::Stop) => break,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
        if sends {
            tell(Message::Slots(asking.drain()?))?;
        }
        if next_look <= Instant::now() {
            let (clocks, exit_code) = asking.look()?;
            tell(Message::Looked(Box::new(asking.vm.clone()), clocks, exit_code))?;
            next_look = Instant::now() + LOOK_EVERY;
        }
    }
    let (stopped, clocks) = asking.stop()?;
    for _ in 0..if sends { last_drains(&work.options, &asking.vm) } else { 0 } {
        let slots = asking.drain()?;
        let is_last = slots.is_empty();
        tell(Message::Slots(slots))?;
        if is_last {
            break;
        }
    }
    tell(Message::Stopped(Box::new(stopped), clocks))?;
    // The guest gives its rings up with the session: the recorder has not read them yet.
    while commands.recv().is_ok() {}
    Ok(())
}

/// So many answers hold what lies in the rings at the end, however full: one without probes sends no more.
fn last_drains(options: &TraceOptions, vm: &FoundVm) -> usize {
    let slots = vm.vcpus.len().saturating_mul(options.slots_per_cpu as usize);
    slots.saturating_mul(SLOT_BYTES) / MAX_TRACE_BYTES + vm.vcpus.len() + 1
}

/// A session, and what of the host it is compared with.
struct Asking<'a> {
    work: &'a Work,
    session: Session,
    finder: VmFinder,
    vm: FoundVm,
    /// Opened before the guest got its mark: what has the mark is the VM's.
    process: Result<ProcessMemory, MemoryError>,
    /// Of the guest's CPUs, by number.
    apic_ids: Vec<(u32, u32)>,
    skew_ns: u64,
    /// Least error of a look so far.
    sharpest_ns: u64,
}

impl<'a> Asking<'a> {
    fn begin(work: &'a Work) -> Result<Self, GuestError> {
        let finder = VmFinder::load()?;
        let vm = find(&finder, work)?;
        let process = ProcessMemory::open(&work.proc, work.process);
        let session = Session::open(&work.channel, &work.limits, work.child.clone())?;
        let (apic_ids, skew_ns) = (Vec::new(), skew_ns(&work.host_cpus));
        Ok(Self { work, session, finder, vm, process, apic_ids, skew_ns, sharpest_ns: 0 })
    }

    fn start(&mut self, options: &TraceOptions) -> Result<Begun, GuestError> {
        let before = probes::now();
        let started = self.session.trace_start(options)?;
        let requested = before..probes::now();
        self.apic_ids.clone_from(&started.apic_ids);
        // The answer took long: a look is sharper.
        let (clocks, _) = self.look()?;
        let (vm, process) = (self.vm.clone(), self.process.clone());
        Ok(Begun { requested, started, vm, process, clocks })
    }

    fn drain(&mut self) -> Result<Vec<TraceSlots>, GuestError> {
        self.session.trace_drain().map_err(GuestError::from)
    }

    fn stop(&mut self) -> Result<(TraceStopped, Clocks), GuestError> {
        let stopped = self.session.trace_stop()?;
        let (clocks, _) = self.look()?;
        Ok((stopped, clocks))
    }

    /// The sharpest of a few looks: until one is about as sharp as the best so far.
    fn look(&mut self) -> Result<(Clocks, Option<i32>), GuestError> {
        let mut best: Option<(Clocks, Option<i32>)> = None;
        for _ in 0..LOOKS {
            let (clocks, exit_code) = self.look_once()?;
            let error_ns = clocks.sample.error_ns;
            if best.as_ref().is_none_or(|(best, _)| error_ns < best.sample.error_ns) {
                best = Some((clocks, exit_code));
            }
            if error_ns / 2 < self.sharpest_ns {
                break;
            }
        }
        let (clocks, exit_code) = best.ok_or(GuestError::NoAnswer)?;
        let error_ns = clocks.sample.error_ns;
        self.sharpest_ns =
            if self.sharpest_ns == 0 { error_ns } else { self.sharpest_ns.min(error_ns) };
        Ok((clocks, exit_code))
    }

    /// A question between two readings of the host's clocks.
    fn look_once(&mut self) -> Result<(Clocks, Option<i32>), GuestError> {
        let before = find(&self.finder, self.work)?;
        let requested = ClockPair::tightest(CLOCK_READINGS);
        let answered = || ClockPair::tightest(CLOCK_READINGS);
        let (seen, answered) = self.session.trace_look(answered)?;
        self.vm = find(&self.finder, self.work)?;
        let scale_of = |vm| scale_of(vm, &self.apic_ids, seen.clock.cpu);
        let scale = scale_of(&before);
        let mut clocks = clocks(requested, seen.clock, answered, scale, self.skew_ns);
        if scale != scale_of(&self.vm) {
            clocks.sample.error_ns = answered.ns.saturating_sub(requested.ns);
            clocks.warning = Some(ClockWarning::Changed);
        }
        Ok((clocks, seen.exit_code))
    }
}

fn find(finder: &VmFinder, work: &Work) -> Result<FoundVm, GuestError> {
    let found = finder.find(Some(work.process))?;
    let vm = found.into_iter().find(|vm| vm.kvm == work.kvm);
    vm.ok_or(GuestError::VmGone)
}

fn scale_of(vm: &FoundVm, apic_ids: &[(u32, u32)], cpu: u32) -> Option<TscScale> {
    let vcpu = vcpus_by_cpu(vm, apic_ids).get(cpu as usize).copied().flatten()?;
    Some(TscScale::new(vcpu.tsc_offset, vcpu.tsc_ratio))
}

/// By the counters; where they contradict each other, the middle of question and answer.
fn clocks(
    requested: ClockPair,
    clock: TraceClock,
    answered: ClockPair,
    scale: Option<TscScale>,
    skew_ns: u64,
) -> Clocks {
    let TraceClock { cpu, tsc, ns, width } = clock;
    let pair = ClockPair { tsc, ns, width, cpu };
    let by_counter = match scale {
        Some(scale) => {
            sample_clock(requested, pair, answered, scale, skew_ns).map_err(ClockWarning::Counter)
        }
        None => Err(ClockWarning::NoVcpu(cpu)),
    };
    match by_counter {
        Ok(sample) => Clocks { sample, warning: None },
        Err(warning) => {
            let length_ns = answered.ns.saturating_sub(requested.ns);
            let host = HostNs(requested.ns + length_ns / 2);
            let sample = ClockSample { guest_ns: ns, host, error_ns: length_ns.div_ceil(2) };
            Clocks { sample, warning: Some(warning) }
        }
    }
}

/// How far the counters of the host's CPUs are apart at most, ns, beyond what reading them leaves open.
fn skew_ns(cpus: &[u32]) -> u64 {
    let Some(first) = cpus.first() else { return 0 };
    let read = |cpu: u32| {
        let thread = std::thread::Builder::new()
            .spawn(move || ClockPair::tightest_on(cpu, CLOCK_READINGS).ok());
        thread.ok().and_then(|thread| thread.join().ok().flatten())
    };
    let Some(before) = read(*first) else { return 0 };
    let pairs: Vec<ClockPair> =
        cpus.iter().skip(1).take(MAX_COMPARED_CPUS).filter_map(|cpu| read(*cpu)).collect();
    let Some(after) = read(*first) else { return 0 };
    pairs.iter().map(|pair| apart_ns(before, *pair, after)).max().unwrap_or(0)
}

/// How far `pair` lies from the line through the others, beyond their widths.
fn apart_ns(before: ClockPair, pair: ClockPair, after: ClockPair) -> u64 {
    let ticks = i128::from(after.tsc) - i128::from(before.tsc);
    let ns = i128::from(after.ns) - i128::from(before.ns);
    if ticks <= 0 || ns <= 0 {
        return 0;
    }
    let since = i128::from(pair.tsc) - i128::from(before.tsc);
    let expected = i128::from(before.ns) + since * ns / ticks;
    let open = i128::from(pair.width.max(before.width).max(after.width)) * ns / ticks;
    let apart = (i128::from(pair.ns) - expected).abs() - open;
    u64::try_from(apart.max(0)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod test {
    use super::*;

    fn pair(tsc: u64, ns: u64, width: u64) -> ClockPair {
        ClockPair { tsc, ns, width, cpu: 0 }
    }

    #[test]
    fn counters_that_are_apart() {
        let check = |between: ClockPair, expected| {
            let (before, after) = (pair(1000, 500, 20), pair(3000, 1500, 30));
            assert_eq!(apart_ns(before, between, after), expected, "{between:?}");
        };
        check(pair(2000, 1000, 20), 0);
        check(pair(2020, 1000, 20), 0);
        check(pair(2200, 1000, 20), 85);
        check(pair(1000, 1000, 200), 400);
        assert_eq!(apart_ns(pair(1, 1, 1), pair(5, 5, 1), pair(1, 1, 1)), 0);
    }

    #[test]
    fn a_counter_that_makes_no_sense_leaves_the_link_s_delay() {
        let clock = TraceClock { cpu: 0, tsc: 1_002_000, ns: 77, width: 0 };
        let check = |scale, host, error_ns, warning: Option<&str>| {
            let (requested, answered) = (pair(1000, 500, 20), pair(3000, 1500, 20));
            let clocks = clocks(requested, clock, answered, scale, 0);
            let sample = ClockSample { guest_ns: 77, host: HostNs(host), error_ns };
            assert_eq!(clocks.sample, sample);
            assert_eq!(clocks.warning.is_some(), warning.is_some());
            let reported = clocks.warning.map(|warning| warning.to_string()).unwrap_or_default();
            assert!(reported.contains(warning.unwrap_or_default()), "{reported}");
        };
        check(Some(TscScale::new(1_000_000, 1 << 32)), 1000, 5, None);
        check(Some(TscScale::new(0, 1 << 32)), 1000, 500, Some("off by"));
        check(None, 1000, 500, Some("no vCPU 0"));
    }
}
