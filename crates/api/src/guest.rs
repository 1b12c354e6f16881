//! The protocol between the host and `vmscope-guest`, and the guest map it carries.
//!
//! The host asks, the guest answers, one answer per request, in order:
//!
//! ```text
//!  host                         guest
//!   | -- Hello ------------------> |   says the protocol version; answer: Hello
//!   | -- StartLog ---------------> |   begin to note processes that start and end; answer: LogStarted
//!   | -- Ping -------------------> |   only while an answer is late; answer: Pong, after the late one
//!   | -- Changes ----------------> |   answer: Map, with everything: it is the first of this session
//!   | -- Symbols(one module) ----> |   again and again for a second; answer: Symbols
//!   |        (sampling)            |
//!   | -- Changes ----------------> |   every few seconds; answer: Map, with what is new since the last one
//!   | -- Symbols(one module) ----> |   now and then, paced by the CPU time that the last one took; answer: Symbols
//!   |        ...                   |
//!   | -- WindowEnd --------------> |   where a session goes on for days, at the end of each of its windows; answer: Map
//!   |        ...                   |
//!   | -- Snapshot ---------------> |   answer: Map, with what is new; the log is closed
//!   | -- Symbols(modules) -------> |   answer: Symbols
//! ```
//!
//! A guest that is killed or reset while the host samples has thus sent all but its last seconds.
//!
//! Tracing a guest has requests of its own: see `TraceOptions`.
//!
//! A frame is `MAGIC`, a session number, a length (little-endian `u64` and `u32`), and that many bytes
//! of postcard. The host draws a new session number for each session and the guest repeats it, so that
//! answers to a host that went away, still in a serial port's queue, are distinguished from new ones.
//!
//! A snapshot file holds what the guest would have sent: the frame of its `Map`, then frames of `Symbols`.
//!
//! Everything in an answer is hostile until `guest::check` has passed it. Decoding itself is bounded:
//! no list grows beyond the limit its field names here.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

mod stacks;
mod trace;

use std::fmt;

use model::{GuestCode, TaskOffsets};
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};

pub use stacks::*;
pub use trace::*;

/// Version of this protocol and of snapshot files.
pub const VERSION: u32 = 5;

/// First bytes of every frame.
pub const MAGIC: [u8; 8] = *b"vmscopeG";

/// Bytes of a frame before its content: magic, session number, length.
pub const HEADER_BYTES: usize = 8 + 8 + 4;

/// A guest's longest frame.
pub const MAX_ANSWER_BYTES: usize = 32 << 20;

/// What a guest may answer at `Pace::Low`.
pub const MAX_LOW_PACE_BYTES: usize = 4 << 20;

/// A host's longest frame.
pub const MAX_REQUEST_BYTES: usize = 1 << 20;

/// Most entries of `GuestMap::images`, and of `GuestMap::modules`.
pub const MAX_IMAGES: usize = 1 << 16;

/// Most threads of all images, and most mappings of all images.
pub const MAX_IMAGE_PARTS: usize = 1 << 19;

/// Most symbols of the kernel, or of one module.
pub const MAX_SYMBOLS: usize = 1 << 20;

/// Most entries of one `Request::AddCode`.
pub const MAX_CODES: usize = 1 << 12;

/// Most of anything else.
pub const MAX_OTHERS: usize = 1 << 13;

/// The vsock port `vmscope-guest` listens on.
pub const VSOCK_PORT: u32 = 6190;

/// The name of the virtio-serial port `vmscope-guest` listens on.
pub const SERIAL_PORT_NAME: &str = "org.vmscope.guest.0";

/// What the host asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// First message on a channel.
    Hello {
        /// The host's protocol version.
        version: u32,
    },
    /// Begin to note processes that start and end.
    StartLog {
        pace: Pace,
    },
    /// Send what this session's maps have not sent yet; ends the log.
    Snapshot,
    /// Send the symbols of these modules.
    Symbols {
        /// Module numbers, see `GuestMap::modules`.
        #[serde(deserialize_with = "at_most::<_, _, MAX_IMAGES>")]
        modules: Vec<u32>,
        pace: Pace,
        /// Bytes of the largest file that is worth the guest's time.
        largest_file: u64,
    },
    TraceStart(TraceOptions),
    /// Let the trace's command go.
    TraceRun,
    /// Look at the clocks, and whether the command has ended.
    TraceLook,
    /// Send what lies in the rings.
    TraceDrain,
    TraceStop,
    /// Send what this session's maps have not sent yet; the log goes on.
    Changes {
        pace: Pace,
    },
    /// As `Changes` of `MAX_LOW_PACE_BYTES` at most, with the kernel's modules and threads as they are now. The host waits for
    /// it: it is answered at the usual priority.
    WindowEnd,
    /// Are you still there? Requests are answered in order: a `Pong` that comes before the answer that is waited for says that
    /// there will be none, because the guest has booted again meanwhile.
    Ping {
        /// For the answer.
        number: u64,
    },
    /// Where do CPUs say which task runs? Only who reads a guest's memory knows.
    CurrentTasks,
    /// Tasks that samples of the guest hit, for the next map. Only who reads a guest's memory wants them.
    AddCode(#[serde(deserialize_with = "at_most::<_, _, MAX_CODES>")] Vec<GuestCode>),
    /// Unwind these stacks. Only who reads a guest's memory has the tables.
    Stacks(#[serde(deserialize_with = "at_most::<_, _, MAX_STACKS>")] Vec<StackSample>),
}

/// How urgent an answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pace {
    /// Nothing is sampled: as fast as the guest can.
    Prompt,
    /// The guest is being sampled: at the lowest priority, and little at a time (`MAX_LOW_PACE_BYTES`).
    Low,
}

/// What the guest answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Response {
    Hello {
        /// The guest's protocol version.
        version: u32,
        /// The guest's `CLOCK_MONOTONIC` now, ns.
        now_ns: u64,
    },
    /// To `StartLog`.
    LogStarted {
        /// The guest's `CLOCK_MONOTONIC` now, ns.
        now_ns: u64,
        /// Why processes that end while recording can't be noted, when they can't.
        problem: Option<String>,
    },
    /// To `Changes`, `WindowEnd` and `Snapshot`.
    Map(Box<GuestMap>),
    /// To `Symbols`, which asks for one module at a time.
    Symbols(#[serde(deserialize_with = "at_most::<_, _, 1>")] Vec<ModuleSymbols>),
    /// The request failed; one sentence.
    Error(String),
    /// To `TraceStart`.
    TraceStarted(Box<TraceStarted>),
    /// To `TraceRun` and `TraceLook`.
    TraceSeen(TraceSeen),
    /// To `TraceDrain`.
    TraceSlots(#[serde(deserialize_with = "at_most::<_, _, MAX_OTHERS>")] Vec<TraceSlots>),
    /// To `TraceStop`.
    TraceStopped(Box<TraceStopped>),
    /// To `Ping`.
    Pong {
        /// The request's.
        number: u64,
    },
    /// To `CurrentTasks`.
    CurrentTasks(Box<CurrentTasks>),
    /// To `AddCode`.
    CodeAdded,
    /// To `Stacks`.
    Stacks(UnwoundStacks),
}

/// Where a guest's kernel says which task runs on each CPU, and where it keeps what the host reads of a task.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CurrentTasks {
    /// Guest-virtual address of guest-physical 0.
    pub direct_map: u64,
    /// The same, for addresses in the kernel's image; wraps.
    pub image: u64,
    pub offsets: TaskOffsets,
    #[serde(deserialize_with = "at_most::<_, _, MAX_OTHERS>")]
    pub cpus: Vec<CpuTask>,
}

/// Where one CPU says which task runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuTask {
    /// Which vCPU it is, by KVM's number.
    pub apic_id: u32,
    /// Guest-physical address of the pointer.
    pub address: u64,
    /// That of the pointer to the last word of its stack for interrupts.
    pub irq_stack: Option<u64>,
}

/// What a guest says of its inside: everything, or what is new since the session's last map. Also the content of a snapshot
/// file (one frame), which has everything.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct GuestMap {
    /// `VERSION` of the writer.
    pub version: u32,
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// `uname -r`.
    pub kernel_release: String,
    /// The guest's `CLOCK_MONOTONIC` when the map was taken, ns.
    pub now_ns: u64,
    /// The guest kernel; `None`: as in the session's map before.
    pub kernel: Option<GuestKernel>,
    /// Process images: those alive, and those that ended since `StartLog`. One that was sent before takes its place.
    #[serde(deserialize_with = "images")]
    pub images: Vec<GuestImage>,
    /// Kernel threads and idle tasks: those alive now, and those that ended since `StartLog`.
    #[serde(deserialize_with = "at_most::<_, _, MAX_OTHERS>")]
    pub kernel_threads: Vec<GuestKernelThread>,
    /// Files the images map, numbered from 0 on; numbers go on after those sent before in the session.
    #[serde(deserialize_with = "at_most::<_, _, MAX_IMAGES>")]
    pub modules: Vec<GuestModule>,
    /// Read errors, one sentence each.
    #[serde(deserialize_with = "at_most::<_, _, MAX_OTHERS>")]
    pub problems: Vec<String>,
    /// CPU time that `vmscope-guest` has used for this session so far, ns.
    pub cpu_ns: u64,
}

/// The guest kernel's text and names, at the addresses of this boot (KASLR applied).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct GuestKernel {
    /// `_stext`.
    pub text_start: u64,
    /// `_etext`.
    pub text_end: u64,
    /// Raw CR3 of the kernel's own page tables (`swapper_pg_dir`), 0 if unknown.
    pub cr3: u64,
    /// Text symbols of kernel and modules, from `/proc/kallsyms`.
    #[serde(deserialize_with = "at_most::<_, _, MAX_SYMBOLS>")]
    pub symbols: Vec<KernelSymbol>,
    /// Loaded modules, from `/proc/modules`.
    #[serde(deserialize_with = "at_most::<_, _, MAX_OTHERS>")]
    pub modules: Vec<KernelModule>,
}

/// One line of `/proc/kallsyms`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelSymbol {
    pub address: u64,
    pub name: String,
}

/// One line of `/proc/modules`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelModule {
    pub name: String,
    pub start: u64,
    /// Bytes.
    pub size: u64,
}

/// One program image of the guest: a process from exec (or fork) to the next exec or its end.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct GuestImage {
    /// Its number in the session: stays when it changes or ends.
    pub id: u32,
    pub pid: u32,
    /// Process name (`comm`).
    pub name: String,
    /// Raw page-table base.
    pub cr3: u64,
    /// Valid from, guest's `CLOCK_MONOTONIC`, ns; `None`: before `StartLog`.
    pub start_ns: Option<u64>,
    /// Valid until; `None`: still there.
    pub end_ns: Option<u64>,
    #[serde(deserialize_with = "at_most::<_, _, MAX_IMAGE_PARTS>")]
    pub threads: Vec<GuestThread>,
    /// Its executable mappings.
    #[serde(deserialize_with = "at_most::<_, _, MAX_IMAGE_PARTS>")]
    pub mappings: Vec<GuestMapping>,
}

/// A guest thread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestThread {
    pub tid: u32,
    /// Thread name (`comm`).
    pub name: String,
    /// FS base; 0 if it never had one.
    pub fs_base: u64,
}

/// A kernel thread, or the idle task of a CPU. It runs on the page tables of the process before it, so it is known by
/// its stack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestKernelThread {
    /// Thread id; 0 for an idle task.
    pub tid: u32,
    /// Its name (`comm`).
    pub name: String,
    /// First address of its stack.
    pub stack: u64,
    /// Valid from, guest's `CLOCK_MONOTONIC`, ns; `None`: before `StartLog`.
    pub start_ns: Option<u64>,
    /// Valid until; `None`: still there.
    pub end_ns: Option<u64>,
}

/// An executable mapping.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestMapping {
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// File offset of `start`.
    pub offset: u64,
    /// Number of the module, see `GuestMap::modules`.
    pub module: u32,
}

/// A file that holds code.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct GuestModule {
    /// Path in the guest, or `[vdso]`, `[anon]`, ...
    pub path: String,
    /// GNU build id; empty if it has none.
    pub build_id: Vec<u8>,
}

/// The function symbols of one module.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ModuleSymbols {
    /// Number of the module in `GuestMap::modules`.
    pub module: u32,
    /// Function symbols by file offset.
    #[serde(deserialize_with = "at_most::<_, _, MAX_SYMBOLS>")]
    pub symbols: Vec<FunctionSymbol>,
    /// Why there are none, when the file could not be read.
    pub problem: Option<String>,
    /// CPU time that reading them took, ns.
    pub cpu_ns: u64,
}

/// One function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionSymbol {
    /// File offset of its first byte.
    pub offset: u64,
    /// Bytes; 0 if unknown.
    pub size: u64,
    /// Its name, mangled as in the file.
    pub name: String,
}

/// Deserializes a list of at most `N` entries; a longer one is an error as soon as it is seen.
pub(crate) fn at_most<'de, D, T, const N: usize>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    deserializer.deserialize_seq(List { most: N, parts: |_: &T| [0; 2] })
}

/// Deserializes images. One limit holds for all their lists together.
fn images<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<GuestImage>, D::Error> {
    let parts = |image: &GuestImage| [image.threads.len(), image.mappings.len()];
    deserializer.deserialize_seq(List { most: MAX_IMAGES, parts })
}

/// A bounded list. All its entries together have at most `MAX_IMAGE_PARTS` threads, and as many mappings.
struct List<T> {
    most: usize,
    parts: fn(&T) -> [usize; 2],
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for List<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {} entries", self.most)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
        let (mut entries, mut left) = (Vec::new(), [MAX_IMAGE_PARTS; 2]);
        while let Some(entry) = list.next_element()? {
            let parts = (self.parts)(&entry);
            let fits = left.iter_mut().zip(parts).all(|(left, parts)| {
                let rest = left.checked_sub(parts);
                *left = rest.unwrap_or(0);
                rest.is_some()
            });
            if self.most <= entries.len() || !fits {
                return Err(A::Error::invalid_length(entries.len().saturating_add(1), &self));
            }
            entries.push(entry);
        }
        Ok(entries)
    }
}
