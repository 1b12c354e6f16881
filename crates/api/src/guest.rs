//! The protocol between the host and `vmscope-guest`, and the guest map it carries.
//!
//! Frames are a little-endian `u32` length and that many bytes of postcard. The host asks, the guest
//! answers, one answer per request, in order:
//!
//! ```text
//!  host                         guest
//!   | -- Hello ------------------> |   says the protocol version; answer: Hello
//!   | -- StartLog ---------------> |   begin to note processes that start and end; answer: LogStarted
//!   |        (sampling)            |   (nothing happens here)
//!   | -- Snapshot ---------------> |   answer: Map; the log is closed
//!   | -- Symbols(modules) -------> |   answer: Symbols
//! ```
//!
//! Everything in an answer is hostile until `guest::check` has passed it.

use serde::{Deserialize, Serialize};

/// Version of this protocol and of snapshot files.
pub const VERSION: u32 = 1;

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
    StartLog,
    /// Send the guest map; ends the log.
    Snapshot,
    /// Send the symbols of these modules (numbers of the last map's `modules`).
    Symbols {
        /// Module numbers.
        modules: Vec<u32>,
    },
}

/// What the guest answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Response {
    /// To `Hello`.
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
    /// To `Snapshot`.
    Map(Box<GuestMap>),
    /// To `Symbols`.
    Symbols(Vec<ModuleSymbols>),
    /// The request failed; one sentence.
    Error(String),
}

/// What a guest says of its inside. Also the content of a snapshot file (one frame).
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
    /// The guest kernel.
    pub kernel: GuestKernel,
    /// Process images: those alive now, and those that ended since `StartLog`.
    pub images: Vec<GuestImage>,
    /// Files the images map.
    pub modules: Vec<GuestModule>,
    /// Symbols of modules: empty over a channel (asked for afterwards), filled in a snapshot file.
    pub symbols: Vec<ModuleSymbols>,
    /// What could not be read, one sentence each.
    pub problems: Vec<String>,
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
    pub symbols: Vec<KernelSymbol>,
    /// Loaded modules, from `/proc/modules`.
    pub modules: Vec<KernelModule>,
}

/// One line of `/proc/kallsyms`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelSymbol {
    /// Its address.
    pub address: u64,
    /// Its name.
    pub name: String,
}

/// One line of `/proc/modules`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelModule {
    /// Its name.
    pub name: String,
    /// First address.
    pub start: u64,
    /// Bytes.
    pub size: u64,
}

/// One program image of the guest: a process from exec (or fork) to the next exec or its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestImage {
    /// Process id.
    pub pid: u32,
    /// Process name (`comm`).
    pub name: String,
    /// Raw page-table base.
    pub cr3: u64,
    /// Valid from, guest's `CLOCK_MONOTONIC`, ns; `None`: before `StartLog`.
    pub start_ns: Option<u64>,
    /// Valid until; `None`: still there.
    pub end_ns: Option<u64>,
    /// Its threads.
    pub threads: Vec<GuestThread>,
    /// Its executable mappings.
    pub mappings: Vec<GuestMapping>,
}

/// A guest thread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestThread {
    /// Thread id.
    pub tid: u32,
    /// Thread name (`comm`).
    pub name: String,
    /// FS base; 0 if it never had one.
    pub fs_base: u64,
}

/// An executable mapping.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestMapping {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// File offset of `start`.
    pub offset: u64,
    /// Number of the module in `GuestMap::modules`.
    pub module: u32,
}

/// A file that holds code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestModule {
    /// Path in the guest, or `[vdso]`, `[anon]`, ...
    pub path: String,
    /// GNU build id; empty if it has none.
    pub build_id: Vec<u8>,
}

/// The function symbols of one module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleSymbols {
    /// Number of the module in `GuestMap::modules`.
    pub module: u32,
    /// Function symbols by file offset, or why there are none.
    pub symbols: Result<Vec<FunctionSymbol>, String>,
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
