//! What to record, and whoever wants it.

use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::Duration;

use guest::Limits;
use model::{Header, OffCpuSource, Trigger};

/// What to record.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The recording's folder, which must not exist yet.
    pub output: PathBuf,
    /// How to sample.
    pub sampling: Sampling,
    /// What tells the edges of the gaps between a vCPU's samples.
    pub off_cpu_source: OffCpuSource,
    /// Whether VM exits are counted.
    pub exits: Exits,
    /// Snapshots of guests without a channel: (VM's name, file).
    pub guest_maps: Vec<(String, PathBuf)>,
    /// How long and how much a guest may answer.
    pub limits: Limits,
    /// Where guests' symbols are kept by build id.
    pub symbol_store: PathBuf,
    /// Version to write into the recording.
    pub vmscope_version: String,
}

/// How to sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sampling {
    /// What makes the sampling interrupts.
    pub trigger: Trigger,
    /// Nominal time between samples of a CPU, ns.
    pub period_ns: u64,
    /// Trigger's own period: ns for cpu-clock, cycles for the cycle counter.
    pub trigger_period: u64,
    /// Host call stacks.
    pub call_graph: bool,
}

/// Whether VM exits are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exits {
    /// By vCPU and reason.
    Counted,
    /// Not at all.
    NotCounted,
}

/// What the user may want to see while it goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// Sampling has begun on this many CPUs; these VMs run.
    Sampling {
        /// CPUs.
        cpus: usize,
        /// VMs' names.
        vms: Vec<String>,
    },
    /// A VM was found in mid-recording.
    VmFound(String),
    /// A VM's process has ended.
    VmEnded(String),
    /// Sampling has ended, this is being done now.
    Finishing(&'static str),
}

/// What the collector is to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Go on, and ask again after this time at the latest.
    GoOn(Duration),
    /// End sampling and finish the recording.
    Finish,
    /// End at once and leave nothing.
    Discard,
}

/// Whoever wants the recording: says when it ends, and may show how it goes on.
pub trait Control {
    /// Whether it is to end at once; asked while guests are waited for before sampling begins.
    fn interrupted(&self) -> bool;
    /// What to do next; asked several times a second, first when sampling has begun.
    fn next(&mut self) -> Next;
    /// Waits for this long, until `next` would say something new, or until one of `wake` is readable.
    fn wait(&mut self, at_most: Duration, wake: &[BorrowedFd<'_>]);
    /// Something happened.
    fn show(&mut self, progress: &Progress);
}

/// What was recorded.
#[derive(Debug, Clone)]
pub struct Collected {
    /// The finished recording's header.
    pub header: Header,
    /// Sizes.
    pub summary: recording::Summary,
}
