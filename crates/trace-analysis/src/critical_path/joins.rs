//! Waits for children and threads that are one wait.
//!
//! ```text
//!   sh     =|asleep       |=|asleep|==    one wait: `burn` would have let it go on no earlier
//!   sleep   |=============|
//!   burn    |#######################|
//! ```

use std::ops::Range;

use model::HostNs;

use crate::timeline::{Segment, State, Task, TaskId, Timeline, WokenBy};

/// A task works between waits if that takes a longer part than this of the waits.
const WORK_PART: u64 = 10;

/// Segments that are looked at for one wait.
const MAX_SEGMENTS: usize = 10_000;

/// Parents between a task and one that it comes from.
const MAX_PARENTS: usize = 1000;

/// When tasks were made, by their makers.
pub(super) struct Joins<'a> {
    timeline: &'a Timeline,
    /// Ascending.
    births: Vec<(TaskId, HostNs)>,
}

impl<'a> Joins<'a> {
    pub(super) fn new(timeline: &'a Timeline) -> Self {
        let born = timeline.tasks.iter().filter(|task| !task.before);
        let mut births: Vec<_> = born.filter_map(|task| Some((task.parent?, task.begin))).collect();
        births.sort_unstable();
        Self { timeline, births }
    }

    /// Since when a task has waited for what `by` let it go on from: the begin of the last wait, or of an earlier one if
    /// it did nothing in between but wait for its own tasks again.
    pub(super) fn since(&self, task: TaskId, by: TaskId, last: Range<HostNs>) -> HostNs {
        let mut since = last.start;
        if !self.is_own(task, by) {
            return since;
        }
        let Some(waits) = self.timeline.tasks.get(task.index()) else { return since };
        let (mut waited_ns, mut worked_ns) = (last.end.since(last.start), 0);
        let before = waits.segments.begun_by(last.start).saturating_sub(1);
        for row in (0..before).rev().take(MAX_SEGMENTS) {
            let Some(segment) = waits.segments.get(row) else { break };
            match segment.state {
                State::Running { .. } if self.makes_nothing(task, waits, &segment) => {
                    worked_ns += segment.length_ns();
                }
                State::Runnable { .. } => {}
                State::Asleep(_) if self.is_for_own(task, &segment) => {
                    waited_ns += segment.length_ns();
                    if waited_ns < worked_ns * WORK_PART {
                        break;
                    }
                    since = segment.begin;
                }
                _ => break,
            }
        }
        since
    }

    fn is_for_own(&self, task: TaskId, segment: &Segment) -> bool {
        let State::Asleep(sleep) = segment.state else { return false };
        match sleep.woken_by.map(|waker| waker.by) {
            Some(WokenBy::Task(by)) => self.is_own(task, by),
            _ => false,
        }
    }

    /// Whether `by` is another thread of the task's process, or comes from the task.
    fn is_own(&self, task: TaskId, by: TaskId) -> bool {
        let of = |id: TaskId| self.timeline.tasks.get(id.index());
        let (Some(waits), Some(wakes)) = (of(task), of(by)) else { return false };
        if waits.pid == wakes.pid {
            return true;
        }
        let parents = std::iter::successors(Some(by), |id| of(*id)?.parent);
        parents.take(MAX_PARENTS).any(|id| of(id).is_some_and(|it| it.pid == waits.pid))
    }

    /// Whether a task makes no task and no request to a disk then.
    fn makes_nothing(&self, id: TaskId, task: &Task, segment: &Segment) -> bool {
        let (begin, end) = (segment.begin, segment.end);
        let first = self.births.partition_point(|birth| *birth < (id, begin));
        let born = self.births.get(first).is_some_and(|birth| *birth <= (id, end));
        let first = task.requests.partition_point(|request| request.queued < begin);
        let requests = task.requests.get(first).is_some_and(|request| request.queued <= end);
        !born && !requests
    }
}
