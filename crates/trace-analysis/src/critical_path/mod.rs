//! The critical path of a command: the chain of work and waits that ends when the command ends.
//!
//! It is followed backwards from the end. Whatever made a task go on is on the path, not the task's wait:
//!
//! ```text
//!  make   ====| asleep in wait4                  |=====          path:  make
//!  cc1        |=====| asleep: disk |=======|exit ^                      cc1, disk, cc1
//!  disk             |qqq|##########|                                    (q: in the queue, its own line)
//! ```
//!
//! - Running: the task's own work, split by what its CPU executed.
//! - Runnable: a wait for a CPU, with who had it.
//! - Asleep and woken by a task: the path goes on in the waker, from the time it began to wake.
//! - Asleep and woken by a request's completion: the disk, its queue, then the task that made the request.
//! - Asleep and woken by an interrupt: the wait stays with the task (a timer, the network, a device); but when it was
//!   a packet that a task of this machine was just sending, the path goes on in the sender.
//! - Stopped: the path goes on in the task that let it go on.
//! - Made by a fork: the path goes on in the parent.
//! - Asleep when the trace ends: for a child, the path goes on in the child; for anything else it stays with the task.
//! - Otherwise it stays with the task and is unknown.
//!
//! A wait contributes its own length: what the waker did before the wait began is not on the path, because the task that
//! waited was at work then. So the path is in the command's own task whenever that task does not sleep. Waits for
//! children and threads between which a task did nothing but wait again are one wait, and the last to end is on the path.
//!
//! Segments touch and cover the range: their lengths add up to the command's wall time (asserted).

mod amdahl;
#[cfg(test)]
mod event_tests;
mod joins;
mod labels;
mod polls;
#[cfg(test)]
mod programs;
mod replay;
#[cfg(test)]
mod replay_tests;
mod summary;
#[cfg(test)]
mod tests;
mod walk;

use std::ops::Range;

use model::{BlockOp, HostNs, Interrupt, TraceTables};

use crate::timeline::{TaskId, Timeline, Work};

pub use amdahl::{Improvement, Target};
use polls::Polls;
pub use summary::{Category, NameShare, ProcessShare, Share, Summary, summary};
pub use walk::critical_path;

/// What is to be explained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scope {
    /// The task to explain: its end, or its state at `end`.
    pub task: TaskId,
    /// The path is followed back to here, if need be into tasks that are older than `task`.
    pub begin: HostNs,
    /// From here.
    pub end: HostNs,
    /// What to do at a task that slept for a lock.
    pub locks: Locks,
}

/// What to do at a task that slept for a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Locks {
    /// The path goes on in the task that released the lock, whose work took the time.
    ThroughHolder,
    /// The wait stays with the sleeping task, as `PathActivity::Lock`: the cost of the locks themselves.
    Stay,
}

/// The path: segments that touch, in time order, from `begin` to `end`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CriticalPath {
    pub scope: Scope,
    /// Its segments. Empty only when the range is.
    pub segments: Vec<PathSegment>,
}

/// A stretch of the path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathSegment {
    pub begin: HostNs,
    pub end: HostNs,
    /// Whose it is. For a disk's: the task that made the request.
    pub task: TaskId,
    /// Why the path came from the segment before to this one.
    pub via: Via,
    /// What is done or waited for.
    pub activity: PathActivity,
}

/// Why the path came from one segment to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Via {
    /// The path begins here, or stays with the same task.
    Itself,
    /// The task of the segment before woke this one.
    Woken {
        /// Since when it had slept.
        asleep_since: HostNs,
        /// The system call it slept in.
        syscall: Option<u16>,
        /// Whether it slept for a lock.
        lock: bool,
    },
    /// The task of the segment before, or a task that worked for it, later waited for this one, which was already
    /// working.
    Before,
    /// The task of the segment before made this one.
    Forked,
    /// The task of the segment before made the request that is waited for.
    Requested,
    /// The disk finished the request of the segment before, and that woke the task.
    Completed,
}

/// What is done or waited for on the path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathActivity {
    /// The task has a CPU.
    Running {
        cpu: u32,
        /// What the CPU executed, with ns: adds up to the segment's length.
        work: Vec<(Work, u64)>,
    },
    /// It waits for a CPU.
    CpuWait {
        /// The one it got in the end; unknown when it never did.
        cpu: Option<u32>,
        /// Who had that CPU meanwhile, with ns, longest first: adds up to the segment's length. `None`: idle, or not
        /// known.
        behind: Vec<(Option<TaskId>, u64)>,
    },
    /// It is being woken: from the waker's first event until the task is on the queue of a CPU.
    WakingUp,
    /// A request waits in a disk's queue.
    DiskQueue {
        /// Row of `Timeline::disks`.
        disk: u32,
        op: BlockOp,
    },
    /// A disk works on a request.
    Disk {
        /// Row of `Timeline::disks`.
        disk: u32,
        op: BlockOp,
    },
    /// It sleeps until an interrupt wakes it.
    Interrupt(Interrupt),
    /// It sleeps for a lock that an unknown task released (or `Locks::Stay`).
    Lock,
    /// It sleeps for a disk, and which request is not known.
    UnknownDisk,
    /// It is stopped or traced.
    Stopped,
    /// It sleeps, and has not been woken when the trace ends.
    NotOver {
        /// The system call it is in.
        syscall: Option<u16>,
    },
    /// It sleeps, and what wakes it is not known.
    UnknownSleep {
        /// The system call it is in.
        syscall: Option<u16>,
    },
    Unknown,
}

impl PathSegment {
    /// The segment's length.
    #[must_use]
    pub fn length_ns(&self) -> u64 {
        self.end.since(self.begin)
    }
}

impl Scope {
    /// A task's whole life within the trace.
    #[must_use]
    pub fn life(timeline: &Timeline, task: TaskId) -> Option<Self> {
        let life = timeline.tasks.get(task.index())?;
        Some(Self { task, begin: life.begin, end: life.end, locks: Locks::ThroughHolder })
    }

    /// The life of the traced command's first task; `None` when there was no command on this machine. While it was held back
    /// it was another task, of the same id, if its program's begin was seen.
    #[must_use]
    pub fn command(tables: &TraceTables, timeline: &Timeline) -> Option<Self> {
        let command = tables.command.as_ref().filter(|it| it.machine == timeline.machine)?;
        let mut rows = (0..).zip(&timeline.tasks).filter(|(_, task)| task.tid == command.task);
        let (held, task) = rows.next()?;
        let released = rows.next().filter(|(_, next)| task.before && next.begin == task.end);
        Self::life(timeline, TaskId(released.map_or(held, |(row, _)| row)))
    }

    /// The part of it within a range.
    #[must_use]
    pub fn within(self, range: Range<HostNs>) -> Self {
        Self { begin: self.begin.max(range.start), end: self.end.min(range.end), ..self }
    }
}
