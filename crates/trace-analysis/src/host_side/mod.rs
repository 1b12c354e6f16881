//! A guest's time from the host's side: what each vCPU's thread did while the guest saw its CPU busy or idle.
//!
//! ```text
//!  guest's CPU   cc1 ................................. idle ......................
//!  vCPU's thread running | waits for a pCPU | running | asleep    | waits | running
//!  is            it ran  | stolen, by whom  | it ran  | halted    | woken late
//! ```
//!
//! A guest cannot see that its CPU is taken away: for it the task ran all the time. The host's switches of the vCPU's
//! thread show how much of that is true. A thread that handles an exit of its guest has its pCPU, so it counts as
//! running, like guest code.
//!
//! The parts of every guest CPU add up to the trace's length (asserted).

mod row;
#[cfg(test)]
mod tests;
mod thief;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

use model::{HostNs, Machine, Tid};

use crate::cover::{Stretch, cross};
use crate::critical_path::{CriticalPath, PathActivity, PathSegment};
use crate::group::{By, Key, grouped};
use crate::timeline::{Slice, TaskId, Timeline, Work};

pub use thief::{Thief, Thieves};

/// What the host's thread of a vCPU does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Thread {
    /// It has a pCPU.
    Running,
    /// It could run and has none. The host's task that had the pCPU in that time; `None`: idle, or not known.
    Stolen(Option<TaskId>),
    /// It sleeps (or is stopped).
    Asleep,
    /// The host's events don't say.
    Unknown,
}

/// What a guest's CPU is, from the host's side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VcpuState {
    /// Its thread has a pCPU.
    Ran,
    /// Its thread could run and has no pCPU: steal of type 1. The host's task that had the pCPU meanwhile; `None`:
    /// nothing, or not known.
    Stolen(Option<TaskId>),
    /// Its thread sleeps, and the guest had something to do.
    AsleepInVmm,
    /// Its thread sleeps, and the guest had nothing to do.
    Halted,
    /// Its thread sleeps; the guest's events don't say why.
    Asleep,
    /// The host's events don't say.
    Unknown,
}

/// A stretch of a guest CPU's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VcpuSegment {
    pub begin: HostNs,
    pub end: HostNs,
    pub state: VcpuState,
}

/// Guest time by what the host's thread did meanwhile, in ns.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Share {
    /// It had a pCPU.
    pub running_ns: u64,
    /// It waited for one, by who had it.
    pub stolen: BTreeMap<Option<TaskId>, u64>,
    pub asleep_ns: u64,
    pub unknown_ns: u64,
}

/// A guest's CPU. The three parts add up to the trace's length.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CpuSide {
    pub number: u32,
    /// The host's thread that runs it; `None`: not known.
    pub thread: Option<Tid>,
    /// While the guest had something to do. Asleep is here: in the VMM.
    pub busy: Share,
    /// While it was idle. Asleep is here: halted; stolen: it was to wake up and had no pCPU yet.
    pub idle: Share,
    /// While it is not known whether it was.
    pub unknown: Share,
    /// What it was when: touching, from the begin of the guest's trace to its end.
    pub segments: Vec<VcpuSegment>,
}

/// A guest's time, as its host saw it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostSide {
    /// Length of the guest's trace.
    pub wall_ns: u64,
    /// Every guest CPU, ascending.
    pub cpus: Vec<CpuSide>,
    /// While a guest's task had a guest CPU, in the order of the guest's `Timeline::tasks`.
    pub tasks: Vec<Share>,
    /// While a guest CPU handled interrupts, and no task had it.
    pub no_task: Share,
}

/// The time of tasks that belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SideRow {
    pub key: Key,
    /// Its tasks, ascending.
    pub tasks: Vec<TaskId>,
    /// While they had a guest CPU.
    pub share: Share,
}

/// A critical path's time in a guest.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PathSide {
    /// While its tasks had a guest CPU.
    pub running: Share,
    /// While they waited for one: of the CPU that they waited for.
    pub waiting: Share,
}

impl HostSide {
    /// Combines the host's timeline with the guest's, whose row is `row`. `None`: the host was not traced, or the
    /// threads of the guest's vCPUs are not known.
    #[must_use]
    pub fn new(host: &Timeline, guest: &Timeline, row: &Machine) -> Option<Self> {
        if host.cpus.is_empty() || row.vcpu_threads.is_empty() {
            return None;
        }
        let mut side = Self {
            wall_ns: guest.length_ns(),
            tasks: vec![Share::default(); guest.tasks.len()],
            ..Self::default()
        };
        for cpu in &guest.cpus {
            let thread = row.vcpu_threads.get(cpu.number as usize).copied();
            let thread = thread.filter(|tid| *tid != Tid(0));
            let stretches = row::row(host, row.vm_process, thread, guest.begin..guest.end);
            let mut sums = CpuSide { number: cpu.number, thread, ..CpuSide::default() };
            cross(cpu.slices.iter().map(stretch), &stretches, |ns, slice, thread| {
                side.add(&mut sums, slice, thread, ns);
                sums.push(guest.begin, ns, vcpu_state(slice, thread));
            });
            debug_assert_eq!(sums.total().total_ns(), side.wall_ns, "both cover the trace");
            side.cpus.push(sums);
        }
        debug_assert!(side.adds_up(), "a busy CPU has a task or none");
        Some(side)
    }

    /// All CPUs: adds up to their number times the trace's length.
    #[must_use]
    pub fn total(&self) -> CpuSide {
        let mut total = CpuSide::default();
        for cpu in &self.cpus {
            total.busy.merge(&cpu.busy);
            total.idle.merge(&cpu.idle);
            total.unknown.merge(&cpu.unknown);
        }
        total
    }

    /// While one of these tasks had a guest CPU.
    #[must_use]
    pub fn share_of(&self, tasks: &[TaskId]) -> Share {
        let mut sum = Share::default();
        tasks.iter().filter_map(|id| self.tasks.get(id.index())).for_each(|share| sum.merge(share));
        sum
    }

    /// Rows of the given tasks, most time first, then in the order in which they were first seen.
    #[must_use]
    pub fn rows(&self, guest: &Timeline, by: By, tasks: &[TaskId]) -> Vec<SideRow> {
        let row = |(key, tasks): (Key, Vec<TaskId>)| {
            let share = self.share_of(&tasks);
            SideRow { key, tasks, share }
        };
        let mut rows: Vec<SideRow> = grouped(guest, by, tasks).into_iter().map(row).collect();
        rows.sort_by_key(|row| Reverse(row.share.total_ns()));
        rows
    }

    /// What a guest CPU's thread did in a part of the trace. A CPU that was not traced: nothing.
    #[must_use]
    pub fn during(&self, cpu: u32, range: &Range<HostNs>) -> Share {
        let mut share = Share::default();
        let Ok(row) = self.cpus.binary_search_by_key(&cpu, |cpu| cpu.number) else { return share };
        for segment in self.cpus[row].within(range) {
            share.add(segment.state.thread(), segment.length_ns());
        }
        share
    }

    /// A segment of a path of the guest: of the guest CPU that its task has, or waits for. Any other: nothing.
    #[must_use]
    pub fn segment(&self, segment: &PathSegment) -> Share {
        match segment.activity {
            PathActivity::Running { cpu, .. } | PathActivity::CpuWait { cpu: Some(cpu), .. } => {
                self.during(cpu, &(segment.begin..segment.end))
            }
            _ => Share::default(),
        }
    }

    /// A path of the guest.
    #[must_use]
    pub fn path(&self, path: &CriticalPath) -> PathSide {
        let mut side = PathSide::default();
        for segment in &path.segments {
            let part = match segment.activity {
                PathActivity::CpuWait { .. } => &mut side.waiting,
                _ => &mut side.running,
            };
            part.merge(&self.segment(segment));
        }
        side
    }

    fn add(&mut self, cpu: &mut CpuSide, slice: Slice, thread: Thread, ns: u64) {
        match Guest::from_slice(slice) {
            Guest::Idle => cpu.idle.add(thread, ns),
            Guest::Unknown => cpu.unknown.add(thread, ns),
            Guest::Busy => {
                cpu.busy.add(thread, ns);
                let task = slice.task.and_then(|id| self.tasks.get_mut(id.index()));
                task.unwrap_or(&mut self.no_task).add(thread, ns);
            }
        }
    }

    fn adds_up(&self) -> bool {
        let mut busy = self.no_task.clone();
        self.tasks.iter().for_each(|share| busy.merge(share));
        busy == self.total().busy
    }
}

impl CpuSide {
    /// What it was in a part of the trace: clipped, in time order.
    pub fn within(&self, range: &Range<HostNs>) -> impl Iterator<Item = VcpuSegment> + use<'_> {
        let range = range.clone();
        let first = self.segments.partition_point(|segment| segment.end <= range.start);
        let inside = self.segments[first..].iter();
        inside.take_while(move |segment| segment.begin < range.end).map(move |segment| {
            VcpuSegment {
                begin: segment.begin.max(range.start),
                end: segment.end.min(range.end),
                state: segment.state,
            }
        })
    }

    /// It was this for the next `ns`.
    fn push(&mut self, first: HostNs, ns: u64, state: VcpuState) {
        let begin = self.segments.last().map_or(first, |last| last.end);
        let end = HostNs(begin.0.saturating_add(ns));
        match self.segments.last_mut() {
            Some(last) if last.state == state => last.end = end,
            _ if begin < end => self.segments.push(VcpuSegment { begin, end, state }),
            _ => {}
        }
    }

    /// All of it, whether the guest was busy or idle.
    #[must_use]
    pub fn total(&self) -> Share {
        let mut total = self.busy.clone();
        total.merge(&self.idle);
        total.merge(&self.unknown);
        total
    }
}

impl VcpuSegment {
    /// The segment's length.
    #[must_use]
    pub fn length_ns(&self) -> u64 {
        self.end.since(self.begin)
    }
}

impl VcpuState {
    fn thread(self) -> Thread {
        match self {
            Self::Ran => Thread::Running,
            Self::Stolen(by) => Thread::Stolen(by),
            Self::AsleepInVmm | Self::Halted | Self::Asleep => Thread::Asleep,
            Self::Unknown => Thread::Unknown,
        }
    }
}

impl Share {
    /// The sum of all states.
    #[must_use]
    pub fn total_ns(&self) -> u64 {
        let parts = [self.stolen_ns(), self.asleep_ns, self.unknown_ns];
        parts.into_iter().fold(self.running_ns, u64::saturating_add)
    }

    /// Without a pCPU, while it could have used one.
    #[must_use]
    pub fn stolen_ns(&self) -> u64 {
        self.stolen.values().fold(0, |sum, ns| sum.saturating_add(*ns))
    }

    /// Adds another's times.
    pub fn merge(&mut self, other: &Self) {
        grow(&mut self.running_ns, other.running_ns);
        grow(&mut self.asleep_ns, other.asleep_ns);
        grow(&mut self.unknown_ns, other.unknown_ns);
        for (by, ns) in &other.stolen {
            grow(self.stolen.entry(*by).or_default(), *ns);
        }
    }

    fn add(&mut self, thread: Thread, ns: u64) {
        match thread {
            Thread::Running => grow(&mut self.running_ns, ns),
            Thread::Stolen(by) => grow(self.stolen.entry(by).or_default(), ns),
            Thread::Asleep => grow(&mut self.asleep_ns, ns),
            Thread::Unknown => grow(&mut self.unknown_ns, ns),
        }
    }
}

/// What a guest thinks of its CPU.
enum Guest {
    Busy,
    Idle,
    Unknown,
}

impl Guest {
    fn from_slice(slice: Slice) -> Self {
        match (slice.work, slice.task) {
            (Work::Idle, _) => Self::Idle,
            (Work::Unknown, None) => Self::Unknown,
            _ => Self::Busy,
        }
    }
}

fn vcpu_state(slice: Slice, thread: Thread) -> VcpuState {
    match (thread, Guest::from_slice(slice)) {
        (Thread::Running, _) => VcpuState::Ran,
        (Thread::Stolen(by), _) => VcpuState::Stolen(by),
        (Thread::Asleep, Guest::Busy) => VcpuState::AsleepInVmm,
        (Thread::Asleep, Guest::Idle) => VcpuState::Halted,
        (Thread::Asleep, Guest::Unknown) => VcpuState::Asleep,
        (Thread::Unknown, _) => VcpuState::Unknown,
    }
}

fn stretch(slice: Slice) -> Stretch<Slice> {
    Stretch { begin: slice.begin, end: slice.end, what: slice }
}

/// A guest's times may be anything: sums end at the largest number.
fn grow(sum: &mut u64, ns: u64) {
    *sum = sum.saturating_add(ns);
}
