//! The walk backwards from wake-up to wake-up.
//!
//! The cursor is a task and a time. Each step goes back to the beginning of the task's segment, or to another task: to the
//! time at which it woke this one, made it, or made the request that this one waited for.
//!
//! What a wait contributes is that wait: the walk visits the task that ended it for the time of the wait, and then
//! returns to the task that waited, which was at work until then. Visits are nested: a waker may itself have waited
//! meanwhile. Waits for its own children and threads, between which a task did nothing but wait again, are one wait,
//! which the last of them ended: it took the longest. `joins` finds them. Contradictory events can form a circle of
//! wakers at one instant; after `MAX_HOPS` changes of task the walk stays with the task, so it always ends.

use std::collections::BTreeMap;

use model::{HostNs, Interrupt, Vector};

use super::joins::Joins;
use super::summary::NET_RX;
use super::{CriticalPath, Locks, PathActivity, PathSegment, Scope, Via};
use crate::span;
use crate::timeline::{
    Cpu, Request, Segment, Sleep, Slice, State, Task, TaskId, Timeline, Waker, WokenBy, Work,
};

/// Changes of task at one instant. Real ones: a fork and a wake-up within the clock's resolution.
const MAX_HOPS: u32 = 8;

/// Visits within visits. A malicious trace can have a million.
const MAX_VISITS: usize = 1000;

/// How long a packet may be on its way to another CPU, and how much its sender's CPU may do meanwhile.
const STEERED_NS: u64 = 1_000_000;
const STEERED_SLICES: usize = 16;

/// Numbers of the system calls that wait for a child.
pub(super) const WAIT4: u16 = 61;
pub(super) const WAITID: u16 = 247;

/// The critical path of a scope.
#[must_use]
pub fn critical_path(timeline: &Timeline, scope: Scope) -> CriticalPath {
    let mut walk = Walk {
        timeline,
        joins: Joins::new(timeline),
        scope,
        at: scope.end,
        task: scope.task,
        hops: 0,
        visits: vec![],
        back: vec![],
    };
    while scope.begin < walk.at {
        walk.step();
        walk.end_visits();
    }
    walk.via(Via::Itself);
    walk.back.reverse();
    let path = CriticalPath { scope, segments: walk.back };
    debug_assert!(path.covers_scope(), "a path's segments touch and cover its scope");
    path
}

struct Walk<'a> {
    timeline: &'a Timeline,
    joins: Joins<'a>,
    scope: Scope,
    task: TaskId,
    at: HostNs,
    /// Changes of task since the walk last went back in time.
    hops: u32,
    /// The waits that the walk is within, each within the one before.
    visits: Vec<Visit>,
    /// The path so far, last segment first.
    back: Vec<PathSegment>,
}

/// A wait that the walk explains by what another task does.
#[derive(Debug, Clone, Copy)]
struct Visit {
    waiting: TaskId,
    /// Since when, or since the wait around it began.
    since: HostNs,
}

impl<'a> Walk<'a> {
    fn step(&mut self) {
        let Some(task) = self.timeline.tasks.get(self.task.index()) else {
            return self.push(self.floor(), PathActivity::Unknown);
        };
        let row = task.segments.ended_before(self.at);
        match task.segments.get(row).filter(|segment| segment.begin < self.at) {
            Some(segment) => self.back_through(task, row, &segment),
            None => self.before_birth(task),
        }
    }

    fn back_through(&mut self, task: &Task, row: usize, segment: &Segment) {
        let begin = segment.begin;
        match &segment.state {
            State::Running { cpu } => {
                // In parts where it ran one program after another.
                let names = task.names.partition_point(|(since, _)| *since < self.at);
                let since = names.checked_sub(1).map_or(begin, |last| task.names[last].0);
                let begin = if since < self.at { begin.max(since) } else { begin };
                self.push(begin, self.running(*cpu, begin));
            }
            State::Runnable { .. } => {
                let next = task.segments.get(row + 1).map(|segment| segment.state);
                let cpu = next.and_then(|state| match state {
                    State::Running { cpu } => Some(cpu),
                    _ => None,
                });
                self.push(begin, self.cpu_wait(cpu, begin));
            }
            State::Asleep(sleep) => self.asleep(sleep, begin, segment.end),
            State::Stopped { woken_by } => self.stopped(*woken_by, begin),
            State::Unknown => self.push(begin, PathActivity::Unknown),
        }
    }

    /// The task was made here; or it ended before, or has no segment here.
    fn before_birth(&mut self, task: &Task) {
        match task.parent {
            _ if task.end < self.at => self.push(task.end, PathActivity::Unknown),
            _ if task.begin < self.at => self.push(task.begin, PathActivity::Unknown),
            Some(parent) if self.may_hop() => self.hop(parent, self.at, Via::Forked),
            _ => self.push(self.floor(), PathActivity::Unknown),
        }
    }

    fn asleep(&mut self, sleep: &Sleep, begin: HostNs, end: HostNs) {
        let Some(waker) = sleep.woken_by.filter(|waker| waker.time <= self.at) else {
            let is_over = sleep.woken_by.is_some() || end < self.timeline.end;
            return if is_over {
                self.push(begin, unexplained(sleep))
            } else {
                self.not_over(sleep, begin)
            };
        };
        // Where the wake-up began before the sleep did, the two crossed: the task never waited for anything else.
        let woken = waker.time.clamp(begin, self.at);
        let stays = sleep.is_for_held_lock() && self.scope.locks == Locks::Stay;
        match waker.by {
            _ if waker.time <= begin => self.push(begin, PathActivity::WakingUp),
            _ if stays => self.stay(woken, begin, PathActivity::Lock),
            WokenBy::Task(by)
                if goes_on_in(self.timeline, by, woken, begin) && self.may_visit() =>
            {
                let since = self.joins.since(self.task, by, begin..woken);
                self.woken(by, woken, since, sleep);
            }
            WokenBy::Interrupt(Interrupt::Soft(NET_RX)) if self.may_visit() => {
                match packet_sender(self.timeline, waker.time) {
                    Some(sender) => self.woken(sender, woken, begin, sleep),
                    None => self.stay(woken, begin, own_wait(sleep, Some(waker))),
                }
            }
            WokenBy::Request { task, row } if self.may_visit() => {
                match self.request(task, row, woken) {
                    Some(request) => self.disk(task, request, woken, begin),
                    None => self.stay(woken, begin, unexplained(sleep)),
                }
            }
            _ => self.stay(woken, begin, own_wait(sleep, Some(waker))),
        }
    }

    /// Who let a stopped task go on did so: by a signal, or as its tracer.
    fn stopped(&mut self, woken_by: Option<Waker>, begin: HostNs) {
        let waker = woken_by.filter(|waker| begin < waker.time && waker.time <= self.at);
        match waker.map(|waker| (waker.time, waker.by)) {
            Some((woken, WokenBy::Task(by)))
                if goes_on_in(self.timeline, by, woken, begin) && self.may_visit() =>
            {
                self.woken(by, woken, begin, &Sleep::default());
            }
            _ => self.push(begin, PathActivity::Stopped),
        }
    }

    /// The trace ends in this sleep. One for a child goes on in the child.
    fn not_over(&mut self, sleep: &Sleep, begin: HostNs) {
        let child = living_child(self.timeline, self.task, self.at);
        match child.filter(|_| self.may_visit()) {
            Some(child) => {
                self.visit(begin);
                self.hop(child, self.at, Via::Before);
            }
            None => self.push(
                begin,
                match unexplained(sleep) {
                    PathActivity::UnknownSleep { syscall } => PathActivity::NotOver { syscall },
                    activity => activity,
                },
            ),
        }
    }

    /// The task's own wait, and its end.
    fn stay(&mut self, woken: HostNs, begin: HostNs, activity: PathActivity) {
        self.push(woken, PathActivity::WakingUp);
        self.push(begin, activity);
    }

    /// The path goes on in the waker.
    fn woken(&mut self, by: TaskId, woken: HostNs, asleep_since: HostNs, sleep: &Sleep) {
        let (syscall, lock) = (sleep.syscall, sleep.lock.is_some());
        self.visit(asleep_since);
        self.push(woken, PathActivity::WakingUp);
        self.hop(by, woken, Via::Woken { asleep_since, syscall, lock });
    }

    /// Another task explains what this one waits for, from here back to the begin of the wait.
    fn visit(&mut self, since: HostNs) {
        self.visits.push(Visit { waiting: self.task, since: since.max(self.floor()) });
    }

    /// Where all of a wait is explained, the path goes on in the task that waited.
    fn end_visits(&mut self) {
        while let Some(visit) = self.visits.pop_if(|visit| self.at <= visit.since) {
            debug_assert_eq!(self.at, visit.since, "a visit is no longer than its wait");
            if visit.waiting != self.task {
                self.via(Via::Before);
            }
            (self.task, self.hops) = (visit.waiting, 0);
        }
    }

    /// The path does not go back further in this task or in those that it leads to.
    fn floor(&self) -> HostNs {
        self.visits.last().map_or(self.scope.begin, |visit| visit.since)
    }

    /// The request, if it can have been what ended a sleep then.
    fn request(&self, task: TaskId, row: u32, woken: HostNs) -> Option<&'a Request> {
        let request = self.timeline.tasks.get(task.index())?.requests.get(row as usize)?;
        (request.queued < woken).then_some(request)
    }

    fn disk(&mut self, maker: TaskId, request: &Request, woken: HostNs, asleep_since: HostNs) {
        let (disk, op, queued) = (request.disk, request.op, request.queued);
        let [issued, done] = issued_and_done(request, woken);
        self.visit(asleep_since);
        self.push(done, PathActivity::WakingUp);
        self.hop(maker, done, Via::Completed);
        let lower = request.lower.filter(|_| self.may_visit());
        if let Some((below, lower)) =
            lower.and_then(|(below, row)| Some((below, self.request(below, row, done)?)))
        {
            self.push(lower.done.unwrap_or(done).clamp(issued, done), PathActivity::WakingUp);
            return self.disk(below, lower, self.at, queued.max(asleep_since));
        }
        self.push(issued, PathActivity::Disk { disk, op });
        self.push(queued, PathActivity::DiskQueue { disk, op });
        self.via(Via::Requested);
    }

    /// Puts a segment before the path so far, which then begins at `begin`, or where the path leaves the task.
    fn push(&mut self, begin: HostNs, activity: PathActivity) {
        let begin = begin.max(self.floor());
        if begin < self.at {
            let (end, task) = (self.at, self.task);
            self.back.push(PathSegment { begin, end, task, via: Via::Itself, activity });
            self.at = begin;
            self.hops = 0;
        }
    }

    fn hop(&mut self, task: TaskId, at: HostNs, via: Via) {
        self.via(via);
        self.task = task;
        self.at = self.at.min(at).max(self.floor());
        self.hops += 1;
    }

    fn may_hop(&self) -> bool {
        self.hops < MAX_HOPS
    }

    fn may_visit(&self) -> bool {
        self.may_hop() && self.visits.len() < MAX_VISITS
    }

    /// Says why the path comes to its first segment so far.
    fn via(&mut self, via: Via) {
        if let Some(first) = self.back.last_mut() {
            first.via = via;
        }
    }

    fn running(&self, cpu: u32, begin: HostNs) -> PathActivity {
        let range = begin.max(self.floor())..self.at;
        let own = |task: Option<TaskId>| task == Some(self.task);
        let slices = span::slices(self.timeline, cpu, range.clone());
        let known = slices.filter(|slice| own(slice.task));
        let known = known.map(|slice| (slice.work, slice.end.since(slice.begin)));
        PathActivity::Running {
            cpu,
            work: totals(known, range.end.since(range.start), Work::Unknown),
        }
    }

    fn cpu_wait(&self, cpu: Option<u32>, begin: HostNs) -> PathActivity {
        let range = begin.max(self.floor())..self.at;
        let slices =
            cpu.into_iter().flat_map(|cpu| span::slices(self.timeline, cpu, range.clone()));
        let behind = slices.map(|slice| (slice.task, slice.end.since(slice.begin)));
        PathActivity::CpuWait { cpu, behind: totals(behind, range.end.since(range.start), None) }
    }
}

/// The oldest child that has not ended, of a task that waits for a child when the trace ends.
pub(super) fn living_child(timeline: &Timeline, task: TaskId, at: HostNs) -> Option<TaskId> {
    let segments = &timeline.tasks.get(task.index())?.segments;
    let segment = segments.get(segments.ended_before(at))?;
    let State::Asleep(sleep) = segment.state else { return None };
    if !matches!(sleep.syscall, Some(WAIT4 | WAITID)) || sleep.woken_by.is_some() {
        return None;
    }
    let lives = |it: &Task| it.begin < at && timeline.end <= it.end;
    let is_child = |it: &Task| it.parent == Some(task) && it.tid.0 == it.pid.0;
    let row = timeline.tasks.iter().position(|it| is_child(it) && lives(it))?;
    u32::try_from(row).ok().map(TaskId)
}

/// Who sent the packet that woke a task then. One that stays on the machine is received in the sender's system call, by a
/// softirq that no other interrupt came before; or that softirq hands it to another CPU, which receives it a moment later:
/// ```text
///  sender's CPU   | sendto | NET_RX | sendto ...        (receive packet steering: RPS, RFS)
///  other CPU      ... idle or any |  IPI  | NET_RX: wakes the task
/// ```
pub(super) fn packet_sender(timeline: &Timeline, time: HostNs) -> Option<TaskId> {
    let mut here = timeline.cpus.iter().filter_map(|cpu| {
        let row = receiving(cpu, time)?;
        in_call(cpu, row)
    });
    let mut steered = timeline.cpus.iter().filter_map(|cpu| {
        let row = receiving(cpu, time)?;
        let since = steered_since(cpu, row)?;
        let others = timeline.cpus.iter().filter(|other| other.number != cpu.number);
        let mut senders = others.filter_map(|other| handed_over(other, since));
        senders.next().filter(|_| senders.next().is_none())
    });
    // Of two at the same instant, whose it was is not known.
    match (here.next(), here.next()) {
        (None, _) => steered.next().filter(|_| steered.next().is_none()),
        (sender, None) => sender,
        (_, Some(_)) => None,
    }
}

/// The row of the softirq in which a CPU receives packets then.
fn receiving(cpu: &Cpu, time: HostNs) -> Option<usize> {
    let row = cpu.slices.ended_by(time);
    let softirq = cpu.slices.get(row).filter(|slice| slice.begin <= time)?;
    receives(&softirq).then_some(row)
}

fn receives(slice: &Slice) -> bool {
    slice.work == Work::Interrupt(Interrupt::Soft(NET_RX))
}

/// The task in whose system call a softirq came, before any other interrupt.
fn in_call(cpu: &Cpu, row: usize) -> Option<TaskId> {
    let softirq = cpu.slices.get(row)?;
    let before = cpu.slices.get(row.checked_sub(1)?)?;
    let in_call = matches!(before.work, Work::Syscall(_)) && before.task == softirq.task;
    softirq.task.filter(|_| in_call)
}

/// When another CPU requested a softirq: by an interrupt before it, or, of an idle CPU that looks for such requests, by none.
fn steered_since(cpu: &Cpu, row: usize) -> Option<HostNs> {
    let before = cpu.slices.get(row.checked_sub(1)?)?;
    match before.work {
        Work::Interrupt(Interrupt::Vector(Vector::CallFunctionSingle)) => Some(before.begin),
        Work::Idle => Some(before.end),
        _ => None,
    }
}

/// The task in whose system call a CPU last handed packets over, a moment before.
fn handed_over(cpu: &Cpu, by: HostNs) -> Option<TaskId> {
    let slices = cpu.slices.ended_by(by);
    let rows = (0..=slices).rev().take(STEERED_SLICES);
    let mut recent = rows.filter_map(|row| Some((row, cpu.slices.get(row)?)));
    let recent = recent.by_ref().filter(|(_, slice)| slice.begin <= by);
    let mut recent = recent.take_while(|(_, slice)| by.since(slice.end) <= STEERED_NS);
    let (row, _) = recent.find(|(_, slice)| receives(slice))?;
    in_call(cpu, row)
}

/// Whether the path can go on in a task then: it has a CPU, or what it does is not known just for a part of the sleep
/// that it ended. One of which nothing is known for longer leads nowhere.
pub(super) fn goes_on_in(
    timeline: &Timeline,
    task: TaskId,
    time: HostNs,
    asleep_since: HostNs,
) -> bool {
    let Some(task) = timeline.tasks.get(task.index()) else { return false };
    let there = task.segments.rows_from(task.segments.ended_before(time));
    let mut around = there.take_while(|segment| segment.begin <= time);
    around.by_ref().take(2).any(|segment| match segment.state {
        State::Running { .. } => true,
        State::Unknown => asleep_since < segment.begin,
        _ => false,
    })
}

/// What a sleep that no task and no request ended is.
pub(super) fn own_wait(sleep: &Sleep, waker: Option<Waker>) -> PathActivity {
    match waker.map(|waker| waker.by) {
        Some(WokenBy::Interrupt(interrupt)) if sleep.lock.is_none() && !sleep.io => {
            PathActivity::Interrupt(interrupt)
        }
        _ => unexplained(sleep),
    }
}

/// What is known of a sleep without a recorded end.
fn unexplained(sleep: &Sleep) -> PathActivity {
    match sleep {
        Sleep { lock: Some(_), .. } => PathActivity::Lock,
        Sleep { io: true, .. } => PathActivity::UnknownDisk,
        Sleep { syscall, .. } => PathActivity::UnknownSleep { syscall: *syscall },
    }
}

/// When the disk got a request, and when it was done with it, for a task that was woken then.
pub(super) fn issued_and_done(request: &Request, woken: HostNs) -> [HostNs; 2] {
    let queued = request.queued.min(woken);
    let done = request.done.unwrap_or(woken).clamp(queued, woken);
    [request.issued.unwrap_or(queued).clamp(queued, done), done]
}

/// Sums by key, longest first; what `total` has beyond them is `rest`'s.
fn totals<K: Ord + Copy>(
    parts: impl Iterator<Item = (K, u64)>,
    total: u64,
    rest: K,
) -> Vec<(K, u64)> {
    let mut sums: BTreeMap<K, u64> = BTreeMap::new();
    let mut known = 0;
    for (key, ns) in parts {
        *sums.entry(key).or_default() += ns;
        known += ns;
    }
    if known < total {
        *sums.entry(rest).or_default() += total - known;
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|&(_, ns)| std::cmp::Reverse(ns));
    sums
}

impl CriticalPath {
    /// Whether its segments touch, none is empty, and they cover the scope.
    pub(super) fn covers_scope(&self) -> bool {
        let mut at = self.scope.begin;
        let touch = self.segments.iter().all(|segment| {
            let touches = segment.begin == at && at < segment.end;
            at = segment.end;
            touches && segment.activity.parts_ns().is_none_or(|ns| ns == segment.length_ns())
        });
        touch && at == self.scope.end.max(self.scope.begin)
    }
}

impl PathActivity {
    /// What its parts add up to, if it has any.
    fn parts_ns(&self) -> Option<u64> {
        match self {
            Self::Running { work, .. } => Some(work.iter().map(|part| part.1).sum()),
            Self::CpuWait { behind, .. } => Some(behind.iter().map(|part| part.1).sum()),
            _ => None,
        }
    }
}
