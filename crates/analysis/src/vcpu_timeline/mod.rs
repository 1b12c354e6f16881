//! What every vCPU did at each instant of the host's time, and who had its CPU when it could not run.
//!
//! ```text
//!  samples  --+                           +--> VcpuTimeline: a vCPU's segments, from its first instant to its last
//!  switches --+--> VcpuTimelinesBuilder --+--> Occupancy: who ran on a pCPU
//!  tables   --+                           +--> CodeLocation: the process, thread and function that a guest sample was in
//! ```
//!
//! Lengths of a timeline's segments add up to its length, to the nanosecond; what is not known is a
//! segment of its own. docs/measuring.md explains the states.

mod agreement;
mod builder;
mod by_samples;
mod by_switches;
mod cover;
mod gap;
mod marks;
mod occupancy;
mod places;
mod problems;
mod queues;
mod sampled;
mod throttle;
mod track;

pub use agreement::{Agreement, Gaps, Pair, VcpuAgreement, agreement};
pub use builder::VcpuTimelinesBuilder;
pub use occupancy::{thief_spans, thieves};
#[cfg(test)]
pub(crate) use places::same_code;
pub use sampled::SampleTimes;

use std::ops::Range;
use std::sync::Arc;

use model::{BuildId, CpuId, HostNs, OffCpuSource, Pid, Tid, TimelineState, VcpuId};

/// All vCPUs and pCPUs of a recording on one time axis.
#[derive(Debug, Clone, Default)]
pub struct VcpuTimelines {
    /// By row of `Tables::vcpus`.
    pub timelines: Vec<VcpuTimeline>,
    /// Sampled CPUs, by number.
    pub cpus: Vec<Occupancy>,
    /// The places that `Segment::place` refers to, each once.
    pub places: Vec<CodeLocation>,
    /// By place: the first one that differs in its callers at most. Empty: callers are not distinguished.
    pub same_code: Vec<CodeLocationId>,
    /// When each vCPU was sampled.
    pub samples: SampleTimes,
    /// How the edges of gaps were found.
    pub off_cpu_source: OffCpuSource,
    /// What input made no sense, and how often (`switches out of order`, ...).
    pub problems: Vec<(&'static str, u64)>,
}

/// One vCPU's time. Segments touch, none is empty, and neighbours differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VcpuTimeline {
    pub vcpu: VcpuId,
    /// First instant: the recording's, or its VM's start.
    pub from: HostNs,
    /// Last instant: the recording's, or its VM's end.
    pub to: HostNs,
    /// In time order, from `from` to `to`.
    pub segments: Vec<Segment>,
}

/// A stretch of one vCPU's time in one state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    pub from: HostNs,
    /// First instant after it.
    pub to: HostNs,
    pub state: TimelineState,
    /// The pCPU that it ran or was queued on; `None`: asleep, or not known.
    pub cpu: Option<CpuId>,
    /// Where the guest was: at the sample (guest states), or at the VM exit (`StealVmm`, `HaltPolling`).
    pub place: Option<CodeLocationId>,
}

/// Index into `VcpuTimelines::places`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CodeLocationId(pub u32);

/// Where a guest was, as names. What has none is shown as in reports: `[unknown]`, `(stripped)`, `[vmname]`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CodeLocation {
    pub process: String,
    /// Its id in the guest.
    pub pid: Option<u32>,
    /// Thread name; `None`: not distinguished.
    pub thread: Option<String>,
    /// Its id in the guest.
    pub tid: Option<u32>,
    pub function: String,
    /// Its callers, the innermost first, where they are distinguished and known.
    pub callers: Vec<Arc<str>>,
    /// The first so many of them are the guest kernel's.
    pub kernel_callers: u32,
    /// Module path or bracketed name.
    pub module: Option<String>,
    pub build_id: Option<BuildId>,
    /// Guest kernel code rather than user code.
    pub kernel: bool,
}

/// Who had a pCPU. Spans are in time order, touch, and don't overlap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Occupancy {
    pub cpu: CpuId,
    pub spans: Vec<Span>,
    /// Of many spans: who has it longest.
    owners: Vec<occupancy::Owner>,
}

/// A stretch of a pCPU's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    pub from: HostNs,
    /// First instant after it.
    pub to: HostNs,
    pub who: Occupant,
}

/// Who has a pCPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Occupant {
    Idle,
    /// A vCPU, in its guest or in its VMM.
    Vcpu(VcpuId),
    /// Another thread: of a VMM (QEMU's I/O threads), vhost, a host process, a kernel thread.
    Thread(Pid, Tid),
    /// No sample says.
    Unknown,
}

impl VcpuTimeline {
    /// Its length in ns: what its segments add up to.
    #[must_use]
    pub fn length_ns(&self) -> u64 {
        self.to.since(self.from)
    }
}

impl Segment {
    /// The segment's length.
    #[must_use]
    pub fn length_ns(&self) -> u64 {
        self.to.since(self.from)
    }
}

impl VcpuTimelines {
    /// The timeline of a vCPU, when it is in the tables.
    #[must_use]
    pub fn timeline(&self, vcpu: VcpuId) -> Option<&VcpuTimeline> {
        self.timelines.get(vcpu.index())
    }

    /// The part of it between two instants.
    #[must_use]
    pub fn within(mut self, range: &Range<HostNs>) -> Self {
        let clipped = |from: HostNs, to: HostNs| {
            let (from, to) = (from.clamp(range.start, range.end), to.clamp(range.start, range.end));
            (from, to.max(from))
        };
        for timeline in &mut self.timelines {
            (timeline.from, timeline.to) = clipped(timeline.from, timeline.to);
            for segment in &mut timeline.segments {
                (segment.from, segment.to) = clipped(segment.from, segment.to);
            }
            timeline.segments.retain(|segment| segment.from < segment.to);
        }
        self.cpus = self.cpus.into_iter().map(|cpu| cpu.within(range)).collect();
        self.samples.keep(range);
        self
    }

    /// The same for all places that differ in their callers only.
    #[must_use]
    pub fn code_of(&self, id: CodeLocationId) -> CodeLocationId {
        self.same_code.get(id.0 as usize).copied().unwrap_or(id)
    }

    /// What a place id stands for.
    ///
    /// # Panics
    /// For an id of another axis.
    #[must_use]
    pub fn place(&self, id: CodeLocationId) -> &CodeLocation {
        &self.places[id.0 as usize]
    }
}
