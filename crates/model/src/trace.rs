//! Traces: what happened to every task, CPU and disk of a machine, event by event.

mod events;
mod fields;
mod filter;
mod slot;

pub use events::{
    N_SLOT_KINDS, SLOT_KINDS, SlotKind, TraceEventKind, TraceEventTag, record_slots,
    slot_kinds_header,
};
pub use fields::{EventColumn, Field, FieldPlace, FieldSink, FieldSource};
pub use filter::TraceFilter;
pub use slot::{SLOT_BYTES, SLOT_KIND_SHIFT, SLOT_MORE, Slot};

use crate::{HostNs, Pid, Tid};

/// Which machine an event is of: the host, or one of its VMs. Row of `TraceTables::machines`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MachineId(pub u32);

impl MachineId {
    /// The host itself: always row 0, also when only a guest was traced.
    pub const HOST: Self = Self(0);

    /// The row this id names.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// One event on one CPU. Events of one CPU come in time order; a trace holds all machines' in time order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceEvent {
    /// When, on the host's clock. A guest's times were brought onto it (`Machine::clock`).
    pub time: HostNs,
    pub machine: MachineId,
    /// The CPU it happened on, as its machine numbers it.
    pub cpu: u32,
    pub kind: TraceEventKind,
}

/// Stack of a task, by its number in `TraceTables::stacks`: of the kernel, or from `FIRST_USER` on of its program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TraceStack(pub u32);

impl TraceStack {
    const FIRST_USER: u32 = 1 << 30;

    /// The user stack in this row of the tracer's table; `None`: no table has so many rows.
    #[must_use]
    pub fn of_user(row: u32) -> Option<Self> {
        (row < Self::FIRST_USER).then(|| Self(Self::FIRST_USER + row))
    }

    /// Whether it is a program's.
    #[must_use]
    pub fn is_user(self) -> bool {
        Self::FIRST_USER <= self.0
    }
}

/// Why a task left its CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrevState {
    /// It could have gone on: it waits for a CPU.
    Runnable,
    /// It sleeps; a signal may wake it.
    Sleep,
    /// It sleeps and no signal wakes it; `io` when it waits for a disk (the kernel's `in_iowait`).
    Uninterruptible {
        /// Counted by the kernel as waiting for I/O.
        io: bool,
    },
    /// It is stopped, traced or parked.
    Stopped,
    Dead,
}

/// A task's name as the kernel has it: at most 15 bytes, the rest zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct TaskName(pub [u8; 16]);

/// What interrupts a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Interrupt {
    /// A device's interrupt line.
    Device(u32),
    /// A softirq: 0 high-priority tasklets, 1 timers, 2 and 3 network, 4 block, 5 irq_poll, 6 tasklets, 7 scheduler,
    /// 8 high-resolution timers, 9 RCU.
    Soft(u32),
    /// An interrupt vector of the CPU itself.
    Vector(Vector),
}

/// The CPU's own interrupt vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Vector {
    LocalTimer,
    /// Another CPU asks to schedule.
    Reschedule,
    /// Another CPU asks to run a function.
    CallFunction,
    /// Another CPU asks this one alone to run a function.
    CallFunctionSingle,
    /// Work that was put off to an interrupt.
    IrqWork,
    Other,
}

/// A request to a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockRequest {
    /// Names it until it completes.
    pub request: u64,
    /// The disk (the kernel's `dev_t`: major << 20 | minor).
    pub disk: u32,
    /// First sector, in 512 bytes.
    pub sector: u64,
    pub bytes: u32,
    /// What is to be done.
    pub op: BlockOp,
    /// The task that ran when the request was made: for writeback a kernel worker.
    pub task: Tid,
}

/// What a request asks of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BlockOp {
    Read,
    Write,
    Flush,
    /// Discard or write zeros.
    Discard,
    Other,
}

/// What a request holds that goes to a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RequestContent {
    /// Pages of a file, from the page cache.
    File,
    /// Cached blocks of the disk itself: of its file system, or of a task that reads the disk.
    Disk,
    /// What the file system marks as metadata.
    Metadata,
    /// Memory of no file: what a task reads or writes past the page cache, or buffers of a file system.
    Memory,
}

/// What sort of lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LockKind {
    /// A spinlock: the CPU waits, the task does not sleep.
    Spin,
    Mutex,
    /// A reader-writer semaphore, to read.
    SemRead,
    /// A reader-writer semaphore, to write.
    SemWrite,
    /// Any other (rt_mutex, per-CPU rwsem, ...).
    Other,
    /// A futex: a lock of user space, or whatever a program makes of it. The wait ends with the system call.
    Futex,
}

/// A machine of a trace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Machine {
    /// `host`, or the VM's name.
    pub name: String,
    /// Kernel release.
    pub kernel: String,
    /// CPUs that were traced, ascending. Empty: this machine was not traced.
    pub cpus: Vec<u32>,
    /// First and last instant that its events cover.
    pub begin: HostNs,
    /// See `begin`.
    pub end: HostNs,
    /// Events lost: per CPU and kind of event (the name in `events.parquet`), how many. Empty: none.
    pub lost: Vec<LostEvents>,
    /// Probes that could not be used, and why: `(probe, reason)`.
    pub missing: Vec<(String, String)>,
    /// Where page faults' ends were not seen: how long one takes on this machine, measured before the trace.
    pub fault_estimate_ns: Option<u64>,
    /// For a VM: its process on the host, and the host's threads of its vCPUs (`vcpu_threads[n]` runs CPU n).
    pub vm_process: Option<Pid>,
    /// See `vm_process`.
    pub vcpu_threads: Vec<Tid>,
    /// For a VM: how its clock was brought onto the host's, in ns of error at most.
    pub clock_error_ns: Option<u64>,
    /// How its events came out: `here`, `guest memory`, or the link they were sent by.
    pub path: String,
    /// Why its trace ended before the others', if it did.
    pub ended_early: Option<String>,
}

impl Machine {
    /// Events lost, of all kinds. A guest says of itself what it lost: any number.
    #[must_use]
    pub fn n_lost(&self) -> u64 {
        self.lost.iter().fold(0, |sum, lost| sum.saturating_add(lost.count))
    }
}

/// Events that found no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LostEvents {
    pub cpu: u32,
    /// The kind of event; `None` when it is not known.
    pub kind: Option<TraceEventTag>,
    pub count: u64,
}

/// A task that was there when the trace began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceTask {
    pub machine: MachineId,
    pub tid: Tid,
    pub pid: Pid,
    /// Its parent's process; 0 for none.
    pub parent: Pid,
    pub name: String,
    /// Whether it is the kernel's own.
    pub kernel: bool,
    /// Whether it slept, and where, innermost function first; unknown otherwise.
    pub asleep_in: Option<String>,
    /// The system call that it was found in while it was traced, by its number on x86-64. `None`: in none, or not known (it had a
    /// CPU or wanted one, or the trace has no system calls of its).
    pub in_call: Option<u16>,
}

/// A file that events name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceFile {
    pub machine: MachineId,
    /// The number by which events name it. A file may have several.
    pub number: u32,
    /// Its file system, or the disk that it is (the kernel's `dev_t`: major << 20 | minor).
    pub device: u32,
    /// 0 of a disk.
    pub inode: u64,
    /// Tells it from others that had its inode number.
    pub generation: u32,
    pub kind: FileKind,
    /// Names that it had when it was first seen. 0: it was deleted.
    pub links: u32,
    /// The name by which it was first seen: bytes that are no UTF-8 are `\xHH`, and a path that is too long begins with
    /// `...`. `None`: the kernel had none.
    pub path: Option<String>,
}

/// What a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileKind {
    Regular,
    Folder,
    BlockDevice,
    Other,
}

/// Everything of a trace but its events.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TraceTables {
    /// The host and the VMs. Row 0 is the host.
    pub machines: Vec<Machine>,
    /// Tasks that were there at the begin.
    pub tasks: Vec<TraceTask>,
    /// Stacks of the kernel and of programs: `(machine, number, functions innermost first)`, ascending by both.
    pub stacks: Vec<(MachineId, TraceStack, Vec<String>)>,
    /// Disks: `(machine, dev_t, name)`.
    pub disks: Vec<(MachineId, u32, String)>,
    /// Files that events name.
    pub files: Vec<TraceFile>,
    /// The command that was traced: its machine, its first task, its words, its exit code.
    pub command: Option<TracedCommand>,
}

/// The command of `trace record -- COMMAND`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracedCommand {
    pub machine: MachineId,
    /// Its first task.
    pub task: Tid,
    pub words: Vec<String>,
    /// Its program ran already when the trace began.
    pub before: bool,
    /// Its exit code; `None` when it was still running at the end.
    pub exit_code: Option<i32>,
}

impl LostEvents {
    /// The name of the event's kind.
    #[must_use]
    pub fn kind_name(&self) -> &'static str {
        self.kind.map_or("unknown", TraceEventTag::name)
    }
}

impl TaskName {
    /// The name's bytes, at most 15, and zeros.
    #[must_use]
    pub fn new(name: &[u8]) -> Self {
        let mut bytes = [0; 16];
        let n = name.iter().position(|&byte| byte == 0).unwrap_or(name.len()).min(15);
        bytes[..n].copy_from_slice(&name[..n]);
        Self(bytes)
    }

    /// As text; what is no UTF-8 becomes U+FFFD.
    #[must_use]
    pub fn text(&self) -> String {
        let n = self.0.iter().position(|&byte| byte == 0).unwrap_or(self.0.len());
        String::from_utf8_lossy(&self.0[..n]).into_owned()
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn names_are_cut_at_fifteen_bytes_and_at_zeros() {
        let check = |name: &[u8], text: &str| assert_eq!(TaskName::new(name).text(), text);
        check(b"make", "make");
        check(b"a-very-long-name", "a-very-long-nam");
        check(b"cc1\0junk", "cc1");
        check(b"", "");
        check(b"\xff", "\u{fffd}");
    }
}
