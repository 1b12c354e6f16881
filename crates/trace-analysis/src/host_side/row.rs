//! What the host's thread of one vCPU did.

use std::ops::Range;

use model::{HostNs, Pid, Tid};

use super::Thread;
use crate::cover::Stretch;
use crate::span;
use crate::timeline::{Segment, State, Task, TaskId, Timeline, Work};

/// Stretches that touch and cover the range.
pub(super) fn row(
    host: &Timeline,
    process: Option<Pid>,
    thread: Option<Tid>,
    range: Range<HostNs>,
) -> Vec<Stretch<Thread>> {
    let mut row = Row { stretches: Vec::new(), at: range.start };
    let is_it = |task: &&Task| {
        Some(task.tid) == thread && process.is_none_or(|process| task.pid == process)
    };
    // A thread id that was used again is the same vCPU's only one after the other.
    for task in host.tasks.iter().filter(is_it) {
        for (part, segment) in span::segments(task, row.at..range.end.max(row.at)) {
            row.skip_to(part.start);
            match segment.state {
                State::Running { .. } => row.push(part.end, Thread::Running),
                State::Runnable { .. } => stolen(&mut row, host, task, &segment, &part),
                State::Asleep(_) | State::Stopped { .. } => row.push(part.end, Thread::Asleep),
                State::Unknown => row.push(part.end, Thread::Unknown),
            }
        }
    }
    row.skip_to(range.end);
    row.stretches
}

/// It waits for a pCPU: who has that one?
fn stolen(row: &mut Row, host: &Timeline, task: &Task, segment: &Segment, part: &Range<HostNs>) {
    if let Some(cpu) = waits_for(task, segment) {
        for slice in span::slices(host, cpu, part.clone()) {
            row.push(slice.begin, Thread::Stolen(None));
            let by = slice.task.filter(|_| slice.work != Work::Idle);
            row.push(slice.end, Thread::Stolen(by.filter(|by| is_other(host, task, *by))));
        }
    }
    row.push(part.end, Thread::Stolen(None));
}

/// The CPU that it gets in the end, or had before where it never gets one.
fn waits_for(task: &Task, segment: &Segment) -> Option<u32> {
    let cpu = |segment: Segment| match segment.state {
        State::Running { cpu } => Some(cpu),
        _ => None,
    };
    let segments = &task.segments;
    let next = segments.get(segments.ended_by(segment.end)).and_then(cpu);
    let before = segments.ended_by(segment.begin).checked_sub(1);
    next.or_else(|| segments.get(before?).and_then(cpu))
}

/// No task is behind itself.
fn is_other(host: &Timeline, task: &Task, by: TaskId) -> bool {
    host.tasks.get(by.index()).is_some_and(|by| by.tid != task.tid)
}

struct Row {
    stretches: Vec<Stretch<Thread>>,
    at: HostNs,
}

impl Row {
    /// Up to here nothing is known.
    fn skip_to(&mut self, end: HostNs) {
        self.push(end, Thread::Unknown);
    }

    /// It did this since the last stretch.
    fn push(&mut self, end: HostNs, what: Thread) {
        if end <= self.at {
            return;
        }
        match self.stretches.last_mut() {
            Some(last) if last.what == what => last.end = end,
            _ => self.stretches.push(Stretch { begin: self.at, end, what }),
        }
        self.at = end;
    }
}
