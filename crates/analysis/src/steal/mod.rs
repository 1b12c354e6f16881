//! Who took the time that vCPUs lost, whose time it was, and how long things would have run without.
//!
//! ```text
//!                           +--> balances      per vCPU: its time by state, type 1 by thief, type 2 by exit reason
//!  VcpuTimelines, Tables  --+--> Attribution --+--> victims     own and stolen time per process, thread or function
//!                           |                  +--> correction  a run time without what was stolen from it
//!                           +--> exits         VM exits by reason: how often, how long, caused by which functions
//! ```
//!
//! What the samples on both sides of a gap don't agree on stays unattributed; nothing is spread by guess.
//! Halt, halt polling, throttling and the two types of steal are never merged.

mod attribution;
mod balance;
mod correction;
mod exits;
#[cfg(test)]
pub(crate) mod testing;
mod thief;
mod victims;

use model::{Header, HostNs, Tables, VcpuId, VmId};

use crate::vcpu_timeline::{Segment, VcpuTimeline, VcpuTimelines};

pub use attribution::{Attribution, AttributionLevel};
pub use balance::{Accounts, TimeBreakdown, VmmTime, balances, hundredths};
pub use correction::{Correction, Target, UnknownTarget, correction, share_bound_ns};
pub use exits::{Cause, ExitRow, Exits, exits};
pub use thief::{Thief, ThiefNames};
pub use victims::{Stolen, Victim, VictimTime, Victims, victims};

/// What everything here starts from.
#[derive(Debug, Clone, Copy)]
pub struct TimelineInput<'a> {
    /// All vCPUs on one time axis.
    pub axis: &'a VcpuTimelines,
    pub tables: &'a Tables,
    pub header: &'a Header,
}

/// The part of the time that is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    pub from: HostNs,
    /// First instant after it.
    pub to: HostNs,
}

impl TimelineInput<'_> {
    /// The window of the whole recording.
    #[must_use]
    pub fn all(&self) -> Window {
        Window { from: self.header.start, to: self.header.end }
    }

    /// The timelines of a VM's vCPUs.
    fn timelines(&self, vm: VmId) -> impl Iterator<Item = &VcpuTimeline> {
        let of_vm = move |vcpu: VcpuId| self.vm_of(vcpu) == Some(vm);
        self.axis.timelines.iter().filter(move |timeline| of_vm(timeline.vcpu))
    }

    fn vm_of(&self, vcpu: VcpuId) -> Option<VmId> {
        self.tables.vcpus.get(vcpu.index()).map(|row| row.vm)
    }
}

impl Window {
    /// The segments of a timeline that reach into the window.
    fn segments<'t>(&self, timeline: &'t VcpuTimeline) -> &'t [Segment] {
        let segments = &timeline.segments;
        let first = segments.partition_point(|segment| segment.to <= self.from);
        let end = segments.partition_point(|segment| segment.from < self.to);
        segments.get(first..end).unwrap_or_default()
    }

    /// The part of a segment that lies in the window.
    #[must_use]
    pub fn clip(&self, segment: &Segment) -> Option<Segment> {
        let (from, to) = (segment.from.max(self.from), segment.to.min(self.to));
        (from < to).then_some(Segment { from, to, ..*segment })
    }
}
