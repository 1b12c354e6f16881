//! The walk backwards from wake-up to wake-up.
//!
//! The cursor is a task and a time. Each step goes back to the beginning of the task's segment, or to another task: to the
//! time at which it woke this one, made it, or made the request that this one waited for.
//!
//! A waker that slept before the woken task fell asleep delayed nobody by that sleep, so the walk returns to the woken
//! task, which was still working. If the waker is an idle kernel thread (a journal between two commits), the walk returns
//! to whatever the woken task waited for then. Contradictory events can form a circle of wakers at one instant; after
//! `MAX_HOPS` changes of task the walk stays with the task, so it always ends.

use std::collections::BTreeMap;

use model::{HostNs, Interrupt};

use super::summary::NET_RX;
use super::{CriticalPath, Locks, PathActivity, PathSegment, Scope, Via};
use crate::span;
use crate::timeline::{
    Cpu, Request, Segment, Sleep, State, Task, TaskId, Timeline, Waker, WokenBy, Work,
};

/// Changes of task at one instant. Real ones: a fork and a wake-up within the clock's resolution.
const MAX_HOPS: u32 = 8;

/// Tasks that the walk can return to. Each sleep searches them, and a malicious trace can have a million in a row.
const MAX_LEFT: usize = 1000;

/// Numbers of the system calls that wait for a child.
const WAIT4: u16 = 61;
const WAITID: u16 = 247;

/// The critical path of a scope.
#[must_use]
pub fn critical_path(timeline: &Timeline, scope: Scope) -> CriticalPath {
    let mut walk = Walk {
        timeline,
        scope,
        at: scope.end,
        task: scope.task,
        hops: 0,
        left: vec![],
        back: vec![],
    };
    while scope.begin < walk.at {
        walk.step();
    }
    walk.via(Via::Itself);
    walk.back.reverse();
    let path = CriticalPath { scope, segments: walk.back };
    debug_assert!(path.covers_scope(), "a path's segments touch and cover its scope");
    path
}

struct Walk<'a> {
    timeline: &'a Timeline,
    scope: Scope,
    task: TaskId,
    at: HostNs,
    /// Changes of task since the walk last went back in time.
    hops: u32,
    /// Tasks that the walk left for their waker, and since when they slept.
    left: Vec<(TaskId, HostNs)>,
    /// The path so far, last segment first.
    back: Vec<PathSegment>,
}

impl<'a> Walk<'a> {
    fn step(&mut self) {
        let Some(task) = self.timeline.tasks.get(self.task.index()) else {
            return self.push(self.scope.begin, PathActivity::Unknown);
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
            State::Stopped => self.push(begin, PathActivity::Stopped),
            State::Unknown => self.push(begin, PathActivity::Unknown),
        }
    }

    /// The task was made here; or it ended before, or has no segment here.
    fn before_birth(&mut self, task: &Task) {
        match task.parent {
            _ if task.end < self.at => self.push(task.end, PathActivity::Unknown),
            _ if task.begin < self.at => self.push(task.begin, PathActivity::Unknown),
            Some(parent) if self.may_hop() => self.hop(parent, self.at, Via::Forked),
            _ => self.push(self.scope.begin, PathActivity::Unknown),
        }
    }

    fn asleep(&mut self, sleep: &Sleep, begin: HostNs, end: HostNs) {
        if let Some((row, at_work)) = self.comes_back(sleep)
            && self.may_hop()
        {
            self.left.truncate(row);
            return self.hop(at_work, self.at, Via::Before);
        }
        // The walk can come back into the midst of a wait for a disk.
        let known =
            |waker: &Waker| waker.time <= self.at || matches!(waker.by, WokenBy::Request { .. });
        let Some(waker) = sleep.woken_by.filter(known) else {
            let is_over = sleep.woken_by.is_some() || end < self.timeline.end;
            return if is_over {
                self.push(begin, unexplained(sleep))
            } else {
                self.not_over(sleep, begin)
            };
        };
        // Where the wake-up began before the sleep did, the two crossed: the task never waited for anything else.
        let woken = waker.time.clamp(begin, self.at);
        let stays = sleep.lock.is_some() && self.scope.locks == Locks::Stay;
        match waker.by {
            _ if waker.time <= begin => self.push(begin, PathActivity::WakingUp),
            _ if stays => self.stay(woken, begin, PathActivity::Lock),
            WokenBy::Task(by) if self.goes_on_in(by, woken, begin) && self.may_hop() => {
                self.woken(by, woken, begin, sleep);
            }
            WokenBy::Interrupt(Interrupt::Soft(NET_RX)) if self.may_hop() => {
                match self.sender(waker.time) {
                    Some(sender) => self.woken(sender, woken, begin, sleep),
                    None => {
                        self.stay(woken, begin, PathActivity::Interrupt(Interrupt::Soft(NET_RX)))
                    }
                }
            }
            WokenBy::Request { task, row } => match self.request(task, row, woken) {
                Some(request) => self.disk(task, request, woken, begin),
                None => self.stay(woken, begin, unexplained(sleep)),
            },
            WokenBy::Interrupt(interrupt) if sleep.lock.is_none() && !sleep.io => {
                self.stay(woken, begin, PathActivity::Interrupt(interrupt));
            }
            _ => self.stay(woken, begin, unexplained(sleep)),
        }
    }

    /// The trace ends in this sleep. One for a child goes on in the child.
    fn not_over(&mut self, sleep: &Sleep, begin: HostNs) {
        let for_child = matches!(sleep.syscall, Some(WAIT4 | WAITID)) && self.may_hop();
        match self.living_child().filter(|_| for_child) {
            Some(child) => self.hop(child, self.at, Via::Before),
            None => self.push(
                begin,
                match unexplained(sleep) {
                    PathActivity::UnknownSleep { syscall } => PathActivity::NotOver { syscall },
                    activity => activity,
                },
            ),
        }
    }

    /// The oldest child that has not ended.
    fn living_child(&self) -> Option<TaskId> {
        let lives = |task: &Task| task.begin < self.at && self.timeline.end <= task.end;
        let is_child = |task: &Task| task.parent == Some(self.task) && task.tid.0 == task.pid.0;
        let row = self.timeline.tasks.iter().position(|task| is_child(task) && lives(task))?;
        u32::try_from(row).ok().map(TaskId)
    }

    /// The first of the tasks that the walk left which had not fallen asleep yet, by its row; and who was at work for it.
    fn comes_back(&self, sleep: &Sleep) -> Option<(usize, TaskId)> {
        let kernel = self.timeline.tasks[self.task.index()].kernel;
        let had_no_work = kernel && !sleep.io && sleep.lock.is_none();
        self.left.iter().enumerate().find_map(|(row, (task, asleep_since))| {
            let at_work = if had_no_work { self.at_work(*task)? } else { *task };
            let back = self.at <= *asleep_since && (had_no_work || self.is_active(at_work));
            back.then_some((row, at_work))
        })
    }

    /// Who has a CPU or a disk work for a task: itself, or whom it waits for.
    fn at_work(&self, mut task: TaskId) -> Option<TaskId> {
        for _ in 0..MAX_HOPS {
            let row = self.timeline.tasks.get(task.index())?;
            task = match self.state(task) {
                Some(State::Running { .. } | State::Runnable { .. }) => return Some(task),
                Some(State::Asleep(sleep)) => match sleep.woken_by?.by {
                    WokenBy::Task(by) => by,
                    WokenBy::Request { .. } => return Some(task),
                    _ => return None,
                },
                Some(_) => return None,
                None => row.parent.filter(|_| self.at <= row.begin)?,
            };
        }
        None
    }

    fn is_active(&self, task: TaskId) -> bool {
        matches!(self.state(task), Some(State::Running { .. } | State::Runnable { .. }))
    }

    /// What a task does just before.
    fn state(&self, task: TaskId) -> Option<State> {
        let segments = &self.timeline.tasks.get(task.index())?.segments;
        let segment = segments.get(segments.ended_before(self.at))?;
        (segment.begin < self.at).then_some(segment.state)
    }

    /// The task's own wait, and its end.
    fn stay(&mut self, woken: HostNs, begin: HostNs, activity: PathActivity) {
        self.push(woken, PathActivity::WakingUp);
        self.push(begin, activity);
    }

    /// The path goes on in the waker.
    fn woken(&mut self, by: TaskId, woken: HostNs, asleep_since: HostNs, sleep: &Sleep) {
        let (syscall, lock) = (sleep.syscall, sleep.lock.is_some());
        self.push(woken, PathActivity::WakingUp);
        self.leave(asleep_since);
        self.hop(by, woken, Via::Woken { asleep_since, syscall, lock });
    }

    /// The task may be come back to.
    fn leave(&mut self, asleep_since: HostNs) {
        if self.left.len() < MAX_LEFT {
            self.left.push((self.task, asleep_since));
        }
    }

    /// Who sent the packet that woke a task then. One that stays on the machine is received in the sender's system call,
    /// by a softirq that no other interrupt came before.
    fn sender(&self, time: HostNs) -> Option<TaskId> {
        let on_cpu = |cpu: &Cpu| {
            let row = cpu.slices.ended_by(time);
            let softirq = cpu.slices.get(row).filter(|slice| slice.begin <= time)?;
            let receives = softirq.work == Work::Interrupt(Interrupt::Soft(NET_RX));
            let before = cpu.slices.get(row.checked_sub(1)?)?;
            let in_call = matches!(before.work, Work::Syscall(_)) && before.task == softirq.task;
            softirq.task.filter(|_| receives && in_call)
        };
        let mut senders = self.timeline.cpus.iter().filter_map(on_cpu);
        // Of two at the same instant nobody knows whose it was.
        senders.next().filter(|_| senders.next().is_none())
    }

    /// The request, if it can have been what ended a sleep then.
    fn request(&self, task: TaskId, row: u32, woken: HostNs) -> Option<&'a Request> {
        let request = self.timeline.tasks.get(task.index())?.requests.get(row as usize)?;
        (request.queued < woken).then_some(request)
    }

    fn disk(&mut self, maker: TaskId, request: &Request, woken: HostNs, asleep_since: HostNs) {
        let (disk, op, queued) = (request.disk, request.op, request.queued);
        let done = request.done.unwrap_or(woken).clamp(queued, woken);
        let issued = request.issued.unwrap_or(queued).clamp(queued, done);
        self.push(done, PathActivity::WakingUp);
        if maker != self.task {
            self.leave(asleep_since);
        }
        self.hop(maker, done, Via::Completed);
        self.push(issued, PathActivity::Disk { disk, op });
        self.push(queued, PathActivity::DiskQueue { disk, op });
        self.via(Via::Requested);
    }

    /// Puts a segment before the path so far, which then begins at `begin`, or at the scope's begin.
    fn push(&mut self, begin: HostNs, activity: PathActivity) {
        let begin = begin.max(self.scope.begin);
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
        self.at = self.at.min(at);
        self.hops += 1;
    }

    fn may_hop(&self) -> bool {
        self.hops < MAX_HOPS
    }

    /// Says why the path comes to its first segment so far.
    fn via(&mut self, via: Via) {
        if let Some(first) = self.back.last_mut() {
            first.via = via;
        }
    }

    /// Whether the path can go on in a task then: it has a CPU, or what it does is not known just for a part of the sleep
    /// that it ended. One of which nothing is known for longer leads nowhere.
    fn goes_on_in(&self, task: TaskId, time: HostNs, asleep_since: HostNs) -> bool {
        let Some(task) = self.timeline.tasks.get(task.index()) else { return false };
        let there = task.segments.rows_from(task.segments.ended_before(time));
        let mut around = there.take_while(|segment| segment.begin <= time);
        around.by_ref().take(2).any(|segment| match segment.state {
            State::Running { .. } => true,
            State::Unknown => asleep_since < segment.begin,
            _ => false,
        })
    }

    fn running(&self, cpu: u32, begin: HostNs) -> PathActivity {
        let range = begin.max(self.scope.begin)..self.at;
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
        let range = begin.max(self.scope.begin)..self.at;
        let slices =
            cpu.into_iter().flat_map(|cpu| span::slices(self.timeline, cpu, range.clone()));
        let behind = slices.map(|slice| (slice.task, slice.end.since(slice.begin)));
        PathActivity::CpuWait { cpu, behind: totals(behind, range.end.since(range.start), None) }
    }
}

/// What is known of a sleep that nobody on record ended.
fn unexplained(sleep: &Sleep) -> PathActivity {
    match sleep {
        Sleep { lock: Some(_), .. } => PathActivity::Lock,
        Sleep { io: true, .. } => PathActivity::UnknownDisk,
        Sleep { syscall, .. } => PathActivity::UnknownSleep { syscall: *syscall },
    }
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
