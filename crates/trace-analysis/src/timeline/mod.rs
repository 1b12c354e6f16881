//! The timelines of one machine's tasks, CPUs and disks, which every analysis reads.
//!
//! ```text
//!  events --> Builder --> Timeline --+--> profile        CPU only, both, disk only, neither
//!                                    +--> states         3x3 per process
//!                                    +--> waits          what was waited for
//!                                    +--> kernel         kernel time by class
//!                                    +--> critical_path  what the command's length is made of
//!                                    +--> gantt          what to draw
//! ```
//!
//! Segments of a task touch and cover its life; those of a CPU touch and cover the trace: both are asserted when built.

pub(crate) mod build;
pub mod files;
mod range;
mod rows;

use std::collections::BTreeMap;
use std::ops::Range;

use model::{HostNs, Interrupt, LockKind, MachineId, Pid, Tid, TraceStack};

pub use build::{Builder, Survey, build};
pub use rows::{Segments, SegmentsIter, Slices, SlicesIter};

/// Row of `Timeline::tasks`. A thread id that is used again is another task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub u32);

impl TaskId {
    /// The row this id names.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The timeline of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Timeline {
    pub machine: MachineId,
    pub begin: HostNs,
    pub end: HostNs,
    /// Every task that was there, in the order it was first seen. Idle tasks are none.
    pub tasks: Vec<Task>,
    /// Every CPU that was traced, ascending.
    pub cpus: Vec<Cpu>,
    /// Every disk that had a request.
    pub disks: Vec<Disk>,
    /// System calls that began in the trace, by who made them and their number on x86-64.
    pub calls: BTreeMap<(TaskId, u16), Calls>,
    /// What tasks and disks did with files.
    pub files: files::Files,
    /// Problems in the events, and how often each occurred.
    pub problems: BTreeMap<Problem, u64>,
}

/// A thread, from its fork (or the trace's begin) to its exit (or the trace's end).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    pub tid: Tid,
    pub pid: Pid,
    /// The task that made it; unknown for tasks from before the trace, whose parent process is `parent_pid`.
    pub parent: Option<TaskId>,
    /// Parent process; 0 when unknown.
    pub parent_pid: Pid,
    /// Its names, each from a time on; never empty. Reports show the last.
    pub names: Vec<(HostNs, String)>,
    /// One of the kernel's own.
    pub kernel: bool,
    /// Begin of its life within the trace.
    pub begin: HostNs,
    /// End of its life within the trace.
    pub end: HostNs,
    /// Whether it was there when the trace began.
    pub before: bool,
    /// Whether it ended in the trace.
    pub exited: bool,
    /// What it did, from `begin` to `end` without gaps.
    pub segments: Segments,
    /// Its requests to disks, in the order they were made.
    pub requests: Vec<Request>,
}

/// A stretch of a task's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    pub begin: HostNs,
    pub end: HostNs,
    pub state: State,
}

/// What a task does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Running {
        cpu: u32,
    },
    /// It could run and has no CPU.
    Runnable {
        /// Lost the CPU while it could go on; else it was woken (or made).
        preempted: bool,
    },
    Asleep(Sleep),
    /// It is stopped or traced.
    Stopped {
        /// Who let it go on; unknown when it is still stopped at the trace's end, or the event was lost.
        woken_by: Option<Waker>,
    },
    /// Not known: it was there before, without an event yet, or events were lost.
    Unknown,
}

/// All that is known of a sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sleep {
    /// Where in the kernel.
    pub stack: Option<TraceStack>,
    /// Where in its program, if that was traced.
    pub user_stack: Option<TraceStack>,
    /// No signal could wake it.
    pub uninterruptible: bool,
    /// The kernel counts it as waiting for a disk.
    pub io: bool,
    /// The system call it is in.
    pub syscall: Option<u16>,
    /// Whether it handles a page fault.
    pub in_fault: bool,
    /// The lock it waits for.
    pub lock: Option<LockWait>,
    /// Who woke it; unknown when it still sleeps at the trace's end, or the event was lost.
    pub woken_by: Option<Waker>,
}

/// A wait for a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockWait {
    /// The lock's address.
    pub lock: u64,
    pub kind: LockKind,
    /// Who held it when the wait began, and the system call the holder was in then.
    pub owner: Option<(TaskId, Option<u16>)>,
    pub stack: Option<TraceStack>,
}

/// Who woke a task, and when it began to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waker {
    pub time: HostNs,
    pub by: WokenBy,
}

/// Who woke a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WokenBy {
    Task(TaskId),
    Interrupt(Interrupt),
    /// The completion of this request (within an interrupt or not).
    Request {
        /// The task that made the request.
        task: TaskId,
        /// Row of its `requests`.
        row: u32,
    },
    /// The idle task, or unknown.
    Unknown,
}

/// A request to a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Row of `Timeline::disks`.
    pub disk: u32,
    pub op: model::BlockOp,
    pub bytes: u32,
    /// When it was queued (or issued at once).
    pub queued: HostNs,
    /// When the disk got it; unknown when it never did.
    pub issued: Option<HostNs>,
    /// When it was done; unknown when it was not by the trace's end.
    pub done: Option<HostNs>,
    /// The request to another disk by which a loop device did it: who made that one, and its row.
    pub lower: Option<(TaskId, u32)>,
    /// It is such a request: its bytes are those of the request to the loop device.
    pub for_loop: bool,
}

/// Numbers of the system calls that wait for a lock of a file.
const FCNTL: u16 = 72;
const FLOCK: u16 = 73;

impl Sleep {
    /// Whether a task holds the lock it waits for: a lock of the kernel, a file's, or a futex that names its holder. Other
    /// futexes may be conditions, or the ends of threads.
    #[must_use]
    pub fn is_for_held_lock(&self) -> bool {
        match self.lock {
            Some(lock) => lock.kind != LockKind::Futex || lock.owner.is_some(),
            None => matches!(self.syscall, Some(FCNTL | FLOCK)) && !self.in_fault && !self.io,
        }
    }
}

/// What a CPU did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cpu {
    pub number: u32,
    /// What it did, from the trace's begin to its end without gaps.
    pub slices: Slices,
}

/// A stretch of a CPU's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    pub begin: HostNs,
    pub end: HostNs,
    /// The task that has the CPU; `None`: idle, or unknown when `work` says so.
    pub task: Option<TaskId>,
    /// What the CPU executes: the innermost of what is under way.
    pub work: Work,
}

/// What a CPU executes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Work {
    Idle,
    /// A program's own code.
    User,
    /// A system call, by its number on x86-64.
    Syscall(u16),
    /// `ioctl` of a thread that runs a VM's CPU: the guest's code, and the host's handling of its exits.
    Vcpu,
    /// A page fault.
    Fault {
        /// Its end was not seen: its length is the machine's `fault_estimate_ns`, cut at the next event.
        estimated: bool,
    },
    Interrupt(Interrupt),
    /// One of the kernel's own tasks.
    KernelTask,
    /// In the kernel, in a task of which no event says yet whether it is in a system call.
    Unknown,
}

/// A disk and its requests.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Disk {
    /// The kernel's `dev_t`.
    pub dev: u32,
    /// Its name, or `MAJOR:MINOR`.
    pub name: String,
    /// When it had at least one request that was issued and not done: disjoint, ascending.
    pub busy: Vec<(HostNs, HostNs)>,
    /// Requests done.
    pub requests: u64,
    /// Bytes read, written.
    pub bytes: [u64; 2],
}

/// System calls of one number made by one task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Calls {
    pub count: u64,
    pub failed: u64,
    /// From entry to exit, running or not, in ns; up to the end of the task's life where no exit was seen.
    pub ns: u64,
    pub longest_ns: u64,
}

/// What makes parts of a timeline doubtful.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Problem {
    /// Events that the rings lost.
    LostEvents,
    /// A switch from a task that the CPU was not known to run.
    SwitchFromAnother,
    /// A task ran that was never seen to be made or woken.
    UnseenTask,
    /// An end without its begin, or a begin without its end (system call, interrupt, fault, request).
    EndWithoutBegin,
    /// Events went backwards in time, or lay outside the trace; they were moved.
    Backwards,
}

impl Timeline {
    /// What a CPU did within a range: slices clipped to it, in time order. Nothing for a CPU that was not traced.
    pub fn executed(&self, cpu: u32, range: Range<HostNs>) -> impl Iterator<Item = Slice> + '_ {
        crate::span::slices(self, cpu, range)
    }

    /// The segment's length.
    #[must_use]
    pub fn length_ns(&self) -> u64 {
        self.end.since(self.begin)
    }
}

impl Task {
    /// What to call it: its last name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.names.last().map_or("", |(_, name)| name)
    }

    /// Length of its life within the trace.
    #[must_use]
    pub fn length_ns(&self) -> u64 {
        self.end.since(self.begin)
    }
}

impl Segment {
    /// The slice's length.
    #[must_use]
    pub fn length_ns(&self) -> u64 {
        self.end.since(self.begin)
    }
}

impl Slice {
    /// The request's length.
    #[must_use]
    pub fn length_ns(&self) -> u64 {
        self.end.since(self.begin)
    }
}
