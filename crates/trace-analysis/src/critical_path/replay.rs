//! How long the command would take without a part: the trace is replayed, and the part takes no time.
//!
//! Each task has, for each target, how much earlier it is than in the trace. What is left out makes a task earlier; a
//! task that waits for another goes on no earlier than that one lets it:
//!
//! ```text
//!   sh     =|asleep        |asleep |=      without burn, sh still waits for sleep
//!   sleep   |==============|
//!   burn    |######################|
//! ```
//!
//! - Work is left out where it is the target's; so are waits for a CPU in which the CPU did such work for another task,
//!   or in which the task had been preempted at such work.
//! - An interrupt goes with the work that it interrupts: without that work it would find the CPU idle.
//! - A sleep that a task ended lasts until that task ends it. A request to a disk takes its time from when it was made,
//!   and any other sleep its own.
//! - A task that reaps a child goes on no earlier than all its children that have ended by then; one that joins a
//!   thread no earlier than all threads of the process that have.
//! - A task that the command neither made nor woke, directly or by others, runs by its own clock: a wait for it is as
//!   long as it was, less what it did of the target meanwhile.
//!
//! The order of events stays as it was. The replay cannot know what would wait only then: the reader of a pipe that was
//! never empty, a task that took a free lock.

mod earlier;
mod masks;
mod run;

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use model::{HostNs, Interrupt};
use rustc_hash::FxHashMap;

use super::summary::NET_RX;
use super::walk::{goes_on_in, living_child, own_wait, packet_sender};
use super::{Polls, Scope, Target};
use crate::processes::Processes;
use crate::span;
use crate::timeline::{Request, Segment, Sleep, State, TaskId, Timeline, Waker, WokenBy};
use crate::tree::tree;
use earlier::{Earlier, Ended};
use masks::Masks;
use run::{LetGo, Run, Step, StepKind};

/// Targets of one replay.
pub(super) const MAX_TARGETS: usize = 64;

/// How deep a chain of children is followed that the trace's end leaves waiting.
const MAX_CHILDREN: usize = 1000;

/// Work of others that is looked at in one wait for a CPU: thousands of tasks can wait for one.
const MAX_SLICES: usize = 1000;

/// How long the scope would last without each of the targets, `MAX_TARGETS` at most.
pub(super) fn without(
    timeline: &Timeline,
    scope: Scope,
    polls: &Polls,
    targets: &[Target],
) -> Vec<u64> {
    let wall_ns = scope.end.since(scope.begin);
    let mut replay = Replay::new(timeline, scope, polls, targets);
    replay.run();
    let earlier = replay.result();
    (0..targets.len()).map(|target| wall_ns.saturating_sub(earlier.ns(target))).collect()
}

struct Replay<'a> {
    timeline: &'a Timeline,
    scope: Scope,
    masks: Masks<'a>,
    n_targets: usize,
    processes: Processes<'a>,
    runs: Vec<Run>,
    steps: BinaryHeap<Reverse<Step>>,
    /// Requests that end sleeps, by when they were made, last one first.
    requests: Vec<(HostNs, TaskId, u32)>,
    /// Their makers at that time, until the sleep's end.
    made: FxHashMap<(TaskId, u32), LetGo>,
}

impl<'a> Replay<'a> {
    fn new(timeline: &'a Timeline, scope: Scope, polls: &'a Polls, targets: &'a [Target]) -> Self {
        let own: BTreeSet<TaskId> = tree(timeline, scope.task).into_iter().collect();
        let rows = (0..).zip(&timeline.tasks).map(|(row, _)| TaskId(row));
        let runs = rows.map(|id| Run::new(own.contains(&id))).collect();
        let mut replay = Self {
            timeline,
            scope,
            masks: Masks::new(timeline, polls, targets),
            n_targets: targets.len(),
            processes: Processes::new(timeline),
            runs,
            steps: BinaryHeap::new(),
            requests: requests(timeline, scope),
            made: FxHashMap::default(),
        };
        for (row, task) in (0..).zip(&timeline.tasks) {
            if task.begin < scope.end && scope.begin < task.end {
                let time = task.begin.max(scope.begin);
                replay.steps.push(Reverse(Step { time, kind: StepKind::Begin, task: TaskId(row) }));
            }
        }
        replay
    }

    fn run(&mut self) {
        while let Some(Reverse(step)) = self.steps.pop().filter(|it| it.0.time <= self.scope.end) {
            while let Some((time, task, row)) = self.requests.pop_if(|it| it.0 <= step.time) {
                let made = self.lets_go(task, time);
                self.made.insert((task, row), made);
            }
            match step.kind {
                StepKind::Begin => self.begin(step.task, step.time),
                StepKind::Wake => self.wake(step.task, step.time),
                StepKind::End => self.end_segment(step.task),
            }
        }
    }

    /// The explained task at the scope's end; where it waits for a child then, the child.
    fn result(&mut self) -> Earlier {
        let mut id = self.scope.task;
        for _ in 0..MAX_CHILDREN {
            self.advance(id, self.scope.end);
            let Some(child) = living_child(self.timeline, id, self.scope.end) else { break };
            id = child;
        }
        self.runs.get(id.index()).map(|run| run.earlier.clone()).unwrap_or_default()
    }

    /// A task is made, or was there when the scope began.
    fn begin(&mut self, id: TaskId, time: HostNs) {
        let task = &self.timeline.tasks[id.index()];
        self.runs[id.index()].earlier = Earlier::none(self.n_targets);
        let parent = task.parent.filter(|it| it.index() < self.runs.len() && *it != id);
        if let Some(parent) = parent.filter(|_| self.scope.begin < time) {
            let made_by = self.lets_go(parent, time);
            let run = &mut self.runs[id.index()];
            run.earlier.less(u64::MAX, &made_by.earlier, &Earlier::default());
            run.bound |= made_by.bound;
        }
        self.runs[id.index()].row = task.segments.ended_by(time);
        self.begin_segment(id, time);
    }

    fn begin_segment(&mut self, id: TaskId, time: HostNs) {
        self.runs[id.index()].at = time;
        let Some(segment) = self.segment(id) else { return self.end(id, time) };
        if let Some(waker) = waker(&segment.state).filter(|it| it.time <= segment.end) {
            let by = self.woken_by(&segment, waker);
            self.runs[id.index()].waker_at_begin = by.map(|by| self.lets_go(by, time).earlier);
            let time = waker.time.clamp(time, segment.end.max(time));
            self.steps.push(Reverse(Step { time, kind: StepKind::Wake, task: id }));
        }
        let time = segment.end.max(time);
        self.steps.push(Reverse(Step { time, kind: StepKind::End, task: id }));
    }

    /// A task's life ends: it can be joined, or reaped.
    fn end(&mut self, id: TaskId, time: HostNs) {
        let task = &self.timeline.tasks[id.index()];
        if id == self.scope.task || !task.exited {
            return;
        }
        let earlier = std::mem::take(&mut self.runs[id.index()].earlier);
        self.runs[id.index()].children = Ended::default();
        let is_thread = task.tid.0 != task.pid.0;
        let leader = || Some(self.processes.leader_of(id));
        let joins = if is_thread { leader() } else { task.parent };
        let Some(run) = joins.and_then(|by| self.runs.get_mut(by.index())) else { return };
        let ended = if is_thread { &mut run.threads } else { &mut run.children };
        ended.add(time, &earlier);
    }

    fn wake(&mut self, id: TaskId, time: HostNs) {
        let Some(segment) = self.segment(id) else { return };
        let by = waker(&segment.state).and_then(|waker| self.woken_by(&segment, waker));
        self.runs[id.index()].let_go = by.map(|by| {
            let same_process = self.processes.leader_of(by) == self.processes.leader_of(id);
            let let_go = self.lets_go(by, time);
            LetGo { joined: let_go.joined && same_process, ..let_go }
        });
    }

    /// A task at a time at which it lets another go on.
    fn lets_go(&mut self, by: TaskId, time: HostNs) -> LetGo {
        self.advance(by, time);
        let Some(run) = self.runs.get(by.index()) else { return LetGo::default() };
        LetGo { earlier: run.earlier.clone(), bound: run.bound, joined: run.is_exiting() }
    }

    /// The task that ended a sleep or a stop.
    fn woken_by(&self, segment: &Segment, waker: Waker) -> Option<TaskId> {
        let woken = waker.time.clamp(segment.begin, segment.end);
        match waker.by {
            WokenBy::Task(by) => goes_on_in(self.timeline, by, woken, segment.begin).then_some(by),
            WokenBy::Interrupt(Interrupt::Soft(NET_RX)) => packet_sender(self.timeline, waker.time),
            _ => None,
        }
    }

    fn segment(&self, id: TaskId) -> Option<Segment> {
        let segments = &self.timeline.tasks.get(id.index())?.segments;
        segments.get(self.runs[id.index()].row).filter(|it| it.begin < self.scope.end)
    }

    /// A task that has a CPU works on.
    fn advance(&mut self, id: TaskId, to: HostNs) {
        let Some(task) = self.timeline.tasks.get(id.index()) else { return };
        let run = &self.runs[id.index()];
        let Some(segment) = task.segments.get(run.row) else { return };
        let State::Running { cpu } = segment.state else { return };
        let range = run.at.max(segment.begin)..to.min(segment.end);
        if range.end <= range.start {
            return;
        }
        // In parts where it ran one program after another.
        let next = task.names.partition_point(|(since, _)| *since <= range.start);
        let names = task.names[next..].iter().map(|(since, _)| *since);
        let mut from = range.start;
        for to in names.take_while(|since| *since < range.end).chain([range.end]) {
            for slice in span::slices(self.timeline, cpu, from..to) {
                if slice.task == Some(id) {
                    let mask = self.masks.work(task, &slice);
                    self.runs[id.index()].works(&slice, mask);
                }
            }
            from = to;
        }
        self.runs[id.index()].at = range.end;
    }

    fn end_segment(&mut self, id: TaskId) {
        let Some(segment) = self.segment(id) else { return };
        let range = self.runs[id.index()].at.max(segment.begin)..segment.end;
        match &segment.state {
            State::Running { .. } => self.advance(id, segment.end),
            State::Runnable { .. } => self.waits_for_cpu(id, range.start, range.end),
            State::Asleep(sleep) => self.sleeps(id, sleep, range.start, range.end),
            State::Stopped { woken_by } => {
                let sleep = Sleep { woken_by: *woken_by, ..Sleep::default() };
                let woken = woken_by.map_or(range.end, |it| it.time);
                let mask = self.masks.stopped;
                self.waits(id, &sleep, [range.start, woken, range.end], mask);
            }
            State::Unknown => {}
        }
        let run = &mut self.runs[id.index()];
        run.row += 1;
        (run.let_go, run.waker_at_begin) = (None, None);
        if !matches!(segment.state, State::Running { .. }) {
            run.doing = None;
        }
        self.begin_segment(id, segment.end.max(range.start));
    }

    fn waits_for_cpu(&mut self, id: TaskId, begin: HostNs, end: HostNs) {
        let task = &self.timeline.tasks[id.index()];
        let run = &self.runs[id.index()];
        let always = run.doing.map_or(0, |(_, mask)| mask) | self.masks.cpu_wait;
        let cpu = task.segments.get(run.row + 1).and_then(|next| match next.state {
            State::Running { cpu } => Some(cpu),
            _ => None,
        });
        let mut rest_ns = end.since(begin);
        let slices = cpu.into_iter().flat_map(|cpu| span::slices(self.timeline, cpu, begin..end));
        for slice in slices.take(MAX_SLICES) {
            let other = slice.task.and_then(|it| self.timeline.tasks.get(it.index()));
            let mask = other.map_or(0, |other| self.masks.work(other, &slice));
            self.runs[id.index()].earlier.add(always | mask, slice.length_ns());
            rest_ns -= slice.length_ns();
        }
        self.runs[id.index()].earlier.add(always, rest_ns);
    }

    fn sleeps(&mut self, id: TaskId, sleep: &Sleep, begin: HostNs, end: HostNs) {
        let before = self.runs[id.index()].earlier.clone();
        let waker = sleep.woken_by.filter(|waker| waker.time <= end);
        let woken = waker.map_or(end, |it| it.time.clamp(begin, end));
        let request = match waker.map(|waker| waker.by) {
            Some(WokenBy::Request { task, row }) => self.request(task, row, woken),
            _ => None,
        };
        match request {
            Some((maker, row, request)) => {
                self.waits_for_disk(id, (maker, row), request, [begin, woken, end]);
            }
            None => {
                let task = &self.timeline.tasks[id.index()];
                let activity = own_wait(sleep, waker);
                let mask = self.masks.wait(task, &activity, begin, woken);
                self.waits(id, sleep, [begin, woken, end], mask);
            }
        }
        if sleep.is_for_held_lock() {
            let run = &mut self.runs[id.index()];
            run.earlier.replace(self.masks.locks, &before, end.since(begin));
        }
        if self.runs[id.index()].let_go.as_ref().is_some_and(|it| it.joined) {
            let leader = self.processes.leader_of(id);
            let threads = self.runs[leader.index()].threads.clone();
            threads.hold(end, &mut self.runs[id.index()].earlier);
        }
    }

    /// A wait that a task ended, or no task on record. `mask`: the targets whose own wait it is.
    fn waits(&mut self, id: TaskId, sleep: &Sleep, [begin, woken, end]: [HostNs; 3], mask: u64) {
        let woken = woken.clamp(begin, end);
        let slept_ns = woken.since(begin);
        let run = &mut self.runs[id.index()];
        match run.let_go.take() {
            Some(by) if by.bound => {
                run.earlier.until(slept_ns, &by.earlier);
                (run.bound, run.let_go) = (true, Some(by));
            }
            Some(by) => {
                let at_begin = run.waker_at_begin.take().unwrap_or_default();
                run.earlier.less(slept_ns, &by.earlier, &at_begin);
            }
            None => run.earlier.add(mask, slept_ns),
        }
        if sleep.woken_by.is_some() {
            run.earlier.add(self.masks.waking_up, end.since(woken));
        }
    }

    fn waits_for_disk(
        &mut self,
        id: TaskId,
        key: (TaskId, u32),
        request: &'a Request,
        [begin, woken, end]: [HostNs; 3],
    ) {
        let done = request.done.unwrap_or(woken).clamp(request.queued, woken).max(begin);
        let slept_ns = done.since(begin);
        let made = self.made.remove(&key).filter(|made| made.bound);
        let run = &mut self.runs[id.index()];
        let mut finished = made.map_or_else(|| run.earlier.clone(), |made| made.earlier);
        self.masks.disk(request, woken, &mut finished);
        run.earlier.until(slept_ns, &finished);
        run.earlier.add(self.masks.waking_up, end.since(done));
    }

    fn request(&self, task: TaskId, row: u32, woken: HostNs) -> Option<(TaskId, u32, &'a Request)> {
        let request = self.timeline.tasks.get(task.index())?.requests.get(row as usize)?;
        (request.queued < woken).then_some((task, row, request))
    }
}

fn waker(state: &State) -> Option<Waker> {
    match state {
        State::Asleep(sleep) => sleep.woken_by,
        State::Stopped { woken_by } => *woken_by,
        _ => None,
    }
}

/// Requests that end sleeps, by when they were made, last one first.
fn requests(timeline: &Timeline, scope: Scope) -> Vec<(HostNs, TaskId, u32)> {
    let wakers = timeline.tasks.iter().flat_map(|task| {
        span::segments(task, scope.begin..scope.end).filter_map(|(_, it)| waker(&it.state))
    });
    let made = wakers.filter_map(|waker| {
        let WokenBy::Request { task, row } = waker.by else { return None };
        let request = timeline.tasks.get(task.index())?.requests.get(row as usize)?;
        Some((request.queued, task, row))
    });
    let mut made: Vec<_> = made.collect();
    made.sort_unstable_by_key(|it| Reverse(*it));
    made
}
