//! The part of the protocol that traces a guest.
//!
//! ```text
//!  host                                guest
//!   | -- TraceStart ------------------> |   loads and attaches the probes; answer: TraceStarted, with the pages of its rings
//!   |   (reads the rings in guest RAM)  |   (nothing happens here)
//!   | -- TraceRun --------------------> |   lets the command go; answer: TraceSeen
//!   | -- TraceLook -------------------> |   now and then; answer: TraceSeen, a pair of its clocks
//!   | -- TraceMark -------------------> |   when the clocks are to be checked; answer: TraceMarked
//!   | -- TraceDrain ------------------> |   only where RAM can't be read; answer: TraceSlots
//!   | -- TraceStop -------------------> |   detaches the probes; answer: TraceStopped, names of stacks and disks
//! ```
//! A trace ends with its session at the latest, and so does its command.

use serde::{Deserialize, Serialize};

use super::{MAX_OTHERS, at_most};
use crate::bytes;

/// Most pages of a guest's rings.
pub const MAX_TRACE_PAGES: usize = 1 << 20;

/// Most tasks, stacks, functions of a trace.
pub const MAX_TRACE_ROWS: usize = 1 << 18;

/// Most bytes of slots in one answer.
pub const MAX_TRACE_BYTES: usize = 16 << 20;

/// Most bytes of what the command wrote.
pub const MAX_OUTPUT_BYTES: usize = 64 << 10;

/// Options of a trace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceOptions {
    /// Slots of 16 bytes in each CPU's ring, a power of two.
    pub slots_per_cpu: u32,
    /// How many different kernel stacks are kept.
    pub stacks: u32,
    pub scope: TraceScope,
    /// What to write into the rings' heads, for the host to find.
    pub mark: u64,
    /// The command, which waits for `TraceRun`: its words; empty: none.
    #[serde(deserialize_with = "at_most::<_, _, MAX_OTHERS>")]
    pub command: Vec<String>,
}

/// Tasks whose events are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum TraceScope {
    Everything,
    /// The command's and those of whatever it starts.
    Command,
    /// A process's and those of whatever it starts.
    Tree {
        /// Its id in the guest.
        pid: u32,
    },
}

/// What two clocks of one CPU said at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TraceClock {
    /// The CPU that was queried.
    pub cpu: u32,
    /// Its time-stamp counter, in the middle of `width`.
    pub tsc: u64,
    /// `CLOCK_MONOTONIC`, ns: read within `width`.
    pub ns: u64,
    /// Ticks of the counter from before to after.
    pub width: u64,
}

/// To `TraceStart`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TraceStarted {
    /// `uname -r`.
    pub kernel_release: String,
    /// CPUs that are online.
    #[serde(deserialize_with = "at_most::<_, _, MAX_OTHERS>")]
    pub cpus: Vec<u32>,
    /// The CPUs' APIC ids, as `(number, id)`; empty where there are none.
    #[serde(deserialize_with = "at_most::<_, _, MAX_OTHERS>")]
    pub apic_ids: Vec<(u32, u32)>,
    /// `CLOCK_MONOTONIC` that the events' times count from, ns.
    pub base_ns: u64,
    /// `CLOCK_MONOTONIC` when all probes were attached, ns.
    pub begin_ns: u64,
    /// By ring: what counts in its head as lost before `begin_ns`, when only some probes were attached.
    #[serde(deserialize_with = "at_most::<_, _, MAX_OTHERS>")]
    pub lost: Vec<TraceLost>,
    pub slots_per_ring: u32,
    /// Rings; ring n is CPU n's.
    pub rings: u32,
    /// Numbers of the guest-physical pages of the rings' heads (`struct trace_ring` of bpf/abi/trace.h, an array by ring).
    #[serde(deserialize_with = "at_most::<_, _, MAX_TRACE_PAGES>")]
    pub head_pages: Vec<u64>,
    /// The same of the slots (an array by ring).
    #[serde(deserialize_with = "at_most::<_, _, MAX_TRACE_PAGES>")]
    pub slot_pages: Vec<u64>,
    /// Why there are no pages, when they are not known.
    pub pages_problem: Option<String>,
    /// Probes that can't be used, and why.
    #[serde(deserialize_with = "at_most::<_, _, MAX_OTHERS>")]
    pub missing: Vec<(String, String)>,
    /// How long a page fault takes, ns, where its end can't be seen.
    pub fault_estimate_ns: Option<u64>,
    /// Tasks just before the probes were attached.
    #[serde(deserialize_with = "at_most::<_, _, MAX_TRACE_ROWS>")]
    pub before: Vec<TraceTaskRow>,
    /// Tasks just after.
    #[serde(deserialize_with = "at_most::<_, _, MAX_TRACE_ROWS>")]
    pub after: Vec<TraceTaskRow>,
    /// `CLOCK_MONOTONIC` when `after` was complete, ns.
    pub after_ns: u64,
    /// The command's first task.
    pub command: Option<u32>,
    pub clock: TraceClock,
}

/// A task of the guest.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TraceTaskRow {
    pub tid: u32,
    pub pid: u32,
    /// Its parent's process.
    pub parent: u32,
    pub name: String,
    /// One of the kernel's own.
    pub kernel: bool,
    /// Where it sleeps, innermost function first.
    pub asleep_in: Option<String>,
}

/// To `TraceRun` and `TraceLook`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TraceSeen {
    pub clock: TraceClock,
    /// The command's exit code, when it has ended.
    pub exit_code: Option<i32>,
}

/// To `TraceDrain`: slots since the last one, of one ring.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TraceSlots {
    pub ring: u32,
    /// Whole slots (`struct trace_slot`, little-endian), none that is still being written.
    #[serde(
        serialize_with = "bytes::serialize",
        deserialize_with = "bytes::at_most::<_, MAX_TRACE_BYTES>"
    )]
    pub bytes: Vec<u8>,
}

/// To `TraceStop`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TraceStopped {
    /// `CLOCK_MONOTONIC` before the first probe was detached, ns.
    pub end_ns: u64,
    pub clock: TraceClock,
    /// By ring: events lost, by kind (`TRACE_*` of bpf/abi/trace.h), those before the begin among them.
    #[serde(deserialize_with = "at_most::<_, _, MAX_OTHERS>")]
    pub lost: Vec<TraceLost>,
    /// Probes that can't be used, and why; more may have come.
    #[serde(deserialize_with = "at_most::<_, _, MAX_OTHERS>")]
    pub missing: Vec<(String, String)>,
    #[serde(deserialize_with = "at_most::<_, _, MAX_TRACE_ROWS>")]
    pub functions: Vec<String>,
    /// Kernel stacks.
    #[serde(deserialize_with = "at_most::<_, _, MAX_TRACE_ROWS>")]
    pub stacks: Vec<TraceStackRow>,
    /// Disks: `(dev_t, name)`.
    #[serde(deserialize_with = "at_most::<_, _, MAX_OTHERS>")]
    pub disks: Vec<(u32, String)>,
    /// The command's exit code, when it has ended by itself.
    pub exit_code: Option<i32>,
    /// The end of what the command wrote.
    #[serde(
        serialize_with = "bytes::serialize",
        deserialize_with = "bytes::at_most::<_, MAX_OUTPUT_BYTES>"
    )]
    pub output: Vec<u8>,
    /// CPU time that `vmscope-guest` has used between beginning the trace and ending it, ns: for answering the host.
    pub own_cpu_ns: u64,
}

/// What a ring had no room for.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TraceLost {
    pub ring: u32,
    /// By kind.
    #[serde(deserialize_with = "at_most::<_, _, 64>")]
    pub counts: Vec<u64>,
}

/// A kernel stack.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TraceStackRow {
    /// Its number in events.
    pub id: u32,
    /// Rows of `TraceStopped::functions`, innermost first.
    #[serde(deserialize_with = "at_most::<_, _, 256>")]
    pub functions: Vec<u32>,
}
