//! Arrows from a victim to its thieves.
//!
//! ```text
//!  victim   |guest|  preempted     |guest|        the arrow begins with the victim's slice
//!                 \______________________
//!  thief    | guest user   o     | ...           and ends on the thief's: at its begin, or as an
//!                          \_ preempts victim    instant in it, when the thief was there before
//! ```

use std::collections::{BTreeMap, HashSet, VecDeque};

use analysis::vcpu_timeline::{Occupant, VcpuTimelines};
use model::{CpuId, HostNs, TimelineState, VcpuId};

use crate::chart::{Chart, Group};

/// A track that arrows begin or end on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    Cpu(CpuId),
    Vcpu(VcpuId),
}

/// One end of an arrow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct End {
    pub(super) at: HostNs,
    pub(super) flow: u64,
    pub(super) victim: VcpuId,
}

/// The ends on one track, in time order.
#[derive(Debug, Default)]
pub(super) struct Ends {
    pub(super) departures: VecDeque<End>,
    pub(super) arrivals: VecDeque<End>,
}

/// Thieves of one wait that arrows lead to. Many vCPUs may wait as long as the recording.
const MAX_ARROWS: usize = 16;

/// All flow arrows.
#[derive(Debug, Default)]
pub(super) struct Flows {
    ends: BTreeMap<Key, (Vec<End>, Vec<End>)>,
}

impl Flows {
    /// The arrows of all that was preempted in `groups`, numbered from `next_flow` on.
    pub(super) fn new(chart: Chart<'_>, groups: &[Group<'_>], mut next_flow: u64) -> Self {
        let mut flows = Self::default();
        let timelines = groups.iter().flat_map(|(_, timelines)| timelines);
        let shown: HashSet<_> = timelines.clone().map(|timeline| timeline.vcpu).collect();
        for timeline in timelines {
            let victim = timeline.vcpu;
            for segment in
                timeline.segments.iter().filter(|s| s.state == TimelineState::StealOutside)
            {
                for span in chart.while_waiting(victim, segment).take(MAX_ARROWS) {
                    let shown = |vcpu: VcpuId| shown.contains(&vcpu);
                    let thief = thief(chart.axis, span.who, span.from, segment.cpu, shown);
                    let Some(thief) = thief else { continue };
                    let end = End { at: span.from, flow: next_flow, victim };
                    let departure = End { at: segment.from, ..end };
                    flows.ends.entry(Key::Vcpu(victim)).or_default().0.push(departure);
                    flows.ends.entry(thief).or_default().1.push(end);
                    next_flow += 1;
                }
            }
        }
        flows
    }

    /// Those of one track.
    pub(super) fn take(&mut self, key: Key) -> Ends {
        let (mut departures, mut arrivals) = self.ends.remove(&key).unwrap_or_default();
        departures.sort_unstable();
        arrivals.sort_unstable();
        Ends { departures: departures.into(), arrivals: arrivals.into() }
    }
}

/// The track an arrow ends on: a vCPU's own where it is shown at that time, else the CPU's. An idle CPU is no
/// thief, and who is not known has no track.
fn thief(
    axis: &VcpuTimelines,
    who: Occupant,
    at: HostNs,
    cpu: Option<CpuId>,
    is_shown: impl Fn(VcpuId) -> bool,
) -> Option<Key> {
    match who {
        Occupant::Idle | Occupant::Unknown => None,
        Occupant::Vcpu(vcpu) if is_shown(vcpu) && lives(axis, vcpu, at) => Some(Key::Vcpu(vcpu)),
        Occupant::Vcpu(_) | Occupant::Thread(..) => cpu.map(Key::Cpu),
    }
}

fn lives(axis: &VcpuTimelines, vcpu: VcpuId, at: HostNs) -> bool {
    axis.timeline(vcpu).is_some_and(|timeline| timeline.from <= at && at < timeline.to)
}
