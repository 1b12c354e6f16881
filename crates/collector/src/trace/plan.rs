//! What to trace, and what was traced.

use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use recording::trace::{TraceHeader, TraceSummary};

use crate::Roots;

/// Options of a trace.
#[derive(Debug, Clone)]
pub struct TracePlan {
    /// Where Linux keeps what is read.
    pub roots: Roots,
    /// The trace's folder, which must not exist yet.
    pub output: PathBuf,
    /// Bytes of each CPU's ring.
    pub ring_bytes: u64,
    /// What of the host is traced.
    pub scope: Scope,
    /// VMs whose guests are traced from outside, by name or process id. The command then runs in the guest, of which
    /// there must be one; `scope` is the guest's, and of the host the VM's own process and who has or wants a CPU.
    pub vms: Vec<String>,
    /// How guests' events come out.
    pub guest_path: GuestPath,
    /// Where programs of the host were when they fell asleep, by frame pointers.
    pub user_stacks: bool,
    /// Which files and sockets the host's system calls, cached pages, locks and requests to disks are of.
    pub files: bool,
    /// Bytes that stay free where the trace is written: with less the trace ends. `None`: 5 % of the file system, or
    /// 1 GiB where that is less.
    pub min_free: Option<u64>,
    /// Only the last seconds are kept, in memory, until the trace is written.
    pub flight: Option<Flight>,
    /// The command, and as long as it runs; empty: none.
    pub command: Vec<String>,
    /// Version to write into the trace.
    pub vmscope_version: String,
}

/// How much a flight recorder keeps of the host's events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flight {
    pub keep: Duration,
    /// Bytes of memory at most: beyond it the oldest events go first.
    pub bytes: u64,
}

/// How guests' events come out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuestPath {
    /// The host reads them in the guest's memory; where it can't, the guest sends them.
    Memory,
    /// The guest sends them.
    Link,
}

/// What of the host is traced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    Everything,
    /// The command and whatever it starts.
    Command,
    /// A process and whatever it starts.
    Tree(u32),
    /// A process, and nothing that it starts: a VM's. Of others only who has or wants a CPU.
    Process(u32),
    /// A control group's tasks and those of groups in it, by the group's folder.
    Cgroup(PathBuf),
}

/// A finished trace.
#[derive(Debug)]
pub struct Traced {
    pub header: TraceHeader,
    pub tables: model::TraceTables,
    pub summary: TraceSummary,
    /// How the command ended by itself; `None`: there was none, or the trace's end ended it.
    pub command: Option<ExitStatus>,
    /// Problems, as texts of notes: the trace ended before it was to, or the command went on.
    pub unplanned: Vec<String>,
}
