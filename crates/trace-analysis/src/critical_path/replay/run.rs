//! A task in the replay, and the steps that tasks take.

use model::HostNs;

use super::super::walk::{WAIT4, WAITID};
use super::earlier::{Earlier, Ended};
use crate::timeline::{Slice, TaskId, Work};

/// Numbers of the system calls that end a thread or a process.
const EXIT: u16 = 60;
const EXIT_GROUP: u16 = 231;

/// A task in the replay.
#[derive(Debug)]
pub(super) struct Run {
    /// Row of its segment.
    pub(super) row: usize,
    /// It was replayed up to here.
    pub(super) at: HostNs,
    pub(super) earlier: Earlier,
    /// The command made it, or woke it last: by itself or by others.
    pub(super) bound: bool,
    /// What it did last, and the targets of that; `None`: it has not had a CPU since it slept.
    pub(super) doing: Option<(Work, u64)>,
    /// Who ends its sleep, when that was.
    pub(super) let_go: Option<LetGo>,
    /// Who ends its sleep, as it was when the sleep began.
    pub(super) waker_at_begin: Option<Earlier>,
    pub(super) children: Ended,
    /// Threads of its process that have ended.
    pub(super) threads: Ended,
}

/// A task when it lets another go on.
#[derive(Debug, Clone, Default)]
pub(super) struct LetGo {
    pub(super) earlier: Earlier,
    pub(super) bound: bool,
    /// By its end, to which another thread of its process has waited.
    pub(super) joined: bool,
}

/// When something happens to a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Step {
    pub(super) time: HostNs,
    pub(super) kind: StepKind,
    pub(super) task: TaskId,
}

/// What happens to a task; of what happens at one time, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StepKind {
    Begin,
    Wake,
    End,
}

impl Run {
    pub(super) fn new(bound: bool) -> Self {
        Self {
            row: usize::MAX,
            at: HostNs(0),
            earlier: Earlier::default(),
            bound,
            doing: None,
            let_go: None,
            waker_at_begin: None,
            children: Ended::default(),
            threads: Ended::default(),
        }
    }

    /// It does this on a CPU.
    pub(super) fn works(&mut self, slice: &Slice, mask: u64) {
        let interrupted = match slice.work {
            Work::Interrupt(_) => self.doing.map_or(0, |(_, of_work)| of_work),
            _ => 0,
        };
        self.earlier.add(mask | interrupted, slice.length_ns());
        match slice.work {
            Work::Interrupt(_) => return,
            Work::Syscall(WAIT4 | WAITID) => self.children.hold(slice.end, &mut self.earlier),
            Work::Syscall(EXIT_GROUP) => self.threads.hold(slice.end, &mut self.earlier),
            _ => {}
        }
        self.doing = Some((slice.work, mask));
    }

    /// Whether it ends itself.
    pub(super) fn is_exiting(&self) -> bool {
        matches!(self.doing, Some((Work::Syscall(EXIT | EXIT_GROUP), _)))
    }
}
