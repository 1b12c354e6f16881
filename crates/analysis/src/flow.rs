//! Samples as named call stacks in time: what every export starts from.

mod build;
pub mod tree;

pub(crate) use build::frame_kind;
pub use build::{FlowBuilder, build};

use model::{BuildId, HostNs};

/// All samples of a view as stacks of named frames.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Flow {
    /// Time between samples of one CPU, ns: the weight of a sample.
    pub period_ns: u64,
    /// First and last instant covered.
    pub start: HostNs,
    /// See `start`.
    pub end: HostNs,
    /// `CLOCK_REALTIME` at `start`, ns since 1970.
    pub start_unix_ns: u64,
    pub hostname: String,
    /// Code modules, each once.
    pub modules: Vec<FlowModule>,
    /// Frames, each once.
    pub frames: Vec<Frame>,
    /// Stacks, each once; indices into `frames`, outermost first.
    pub stacks: Vec<Vec<u32>>,
    /// Threads, each once.
    pub threads: Vec<FlowThread>,
    /// One entry per sample, in time order.
    pub samples: Vec<FlowSample>,
}

/// A code module.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FlowModule {
    /// Path or bracketed name; a guest's is prefixed by its VM: `[vm1]/usr/lib/libc.so.6`.
    pub path: String,
    pub build_id: Option<BuildId>,
}

/// A frame of a stack.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Frame {
    pub kind: FrameKind,
    /// Its name as shown: a function, `[vmname]`, a process name, ...
    pub name: String,
    /// The code module (functions only).
    pub module: Option<u32>,
    /// Offset in the module (functions only).
    pub offset: u64,
}

/// What a frame stands for. A guest's frames stand under a `Vm` frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FrameKind {
    /// A virtual machine, `[vmname]`.
    Vm,
    /// A process of the host or guest.
    Process,
    HostKernel,
    HostUser,
    GuestKernel,
    GuestUser,
    /// The host's idle task.
    Idle,
}

/// A thread that samples belong to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FlowThread {
    /// The VM, for guest threads.
    pub vm: Option<String>,
    pub process: String,
    /// Process id in its owner's numbering.
    pub pid: u32,
    pub thread: String,
    /// Thread id in its owner's numbering; 0 if unknown.
    pub tid: u32,
}

/// A sample: when, where, and which call stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowSample {
    pub time: HostNs,
    /// On which physical CPU.
    pub cpu: u32,
    /// Index into `Flow::threads`.
    pub thread: u32,
    /// Index into `Flow::stacks`.
    pub stack: u32,
}
