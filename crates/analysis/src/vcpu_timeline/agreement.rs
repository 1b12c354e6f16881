//! How well the two ways to find edges agree on one recording.

use std::collections::BTreeMap;

use model::{HostNs, TimeAccount, TimelineState, VcpuId};

use super::{Segment, VcpuTimeline, VcpuTimelines};

/// Gaps up to this many periods are not compared: samples can't be expected to show them.
const SHORT_PERIODS: u64 = 2;

/// The difference between an axis by samples and one by switches.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Agreement {
    /// By row of `Tables::vcpus`.
    pub vcpus: Vec<VcpuAgreement>,
}

/// The agreement of one vCPU's two timelines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VcpuAgreement {
    pub vcpu: VcpuId,
    /// Length of the timeline.
    pub wall_ns: u64,
    /// What either way says, for each account that one of them has.
    pub accounts: BTreeMap<TimeAccount, Pair>,
    /// How the lengths of gaps differ.
    pub gaps: Gaps,
}

/// A number found in both ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pair {
    /// By samples.
    pub samples_ns: u64,
    /// By switches.
    pub switches_ns: u64,
}

/// Times off the CPU that the switches show to be longer than two periods, by their lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Gaps {
    pub count: u64,
    /// Those that differ by at most one period.
    pub within_period: u64,
    /// The largest difference.
    pub largest_ns: u64,
    /// Of all differences, without their signs.
    pub sum_ns: u64,
}

impl Pair {
    /// Samples' minus switches', in per cent of `wall_ns`.
    #[must_use]
    pub fn points(self, wall_ns: u64) -> f64 {
        let difference = self.samples_ns as f64 - self.switches_ns as f64;
        100.0 * difference / wall_ns.max(1) as f64
    }
}

impl Gaps {
    /// The mean length of a gap's difference.
    #[must_use]
    pub fn mean_ns(self) -> u64 {
        self.sum_ns / self.count.max(1)
    }
}

impl VcpuAgreement {
    /// The largest difference of an account, in points. What a vCPU did on the CPU is one account here: a short run
    /// between two samples has none of its own by switches, and is its neighbours' by samples.
    #[must_use]
    pub fn largest_points(&self) -> f64 {
        let mut merged: BTreeMap<TimeAccount, Pair> = BTreeMap::new();
        for (account, pair) in &self.accounts {
            let on_cpu = matches!(account, TimeAccount::NotSampled | TimeAccount::Guest);
            let sum = merged.entry(if on_cpu { TimeAccount::Guest } else { *account }).or_default();
            sum.samples_ns += pair.samples_ns;
            sum.switches_ns += pair.switches_ns;
        }
        let points = merged.values().map(|pair| pair.points(self.wall_ns).abs());
        points.fold(0.0, f64::max)
    }
}

/// Compares two axes of one recording.
#[must_use]
pub fn agreement(samples: &VcpuTimelines, switches: &VcpuTimelines, period_ns: u64) -> Agreement {
    let pairs = samples.timelines.iter().zip(&switches.timelines);
    Agreement { vcpus: pairs.map(|(a, b)| vcpu_agreement(a, b, period_ns)).collect() }
}

fn vcpu_agreement(
    samples: &VcpuTimeline,
    switches: &VcpuTimeline,
    period_ns: u64,
) -> VcpuAgreement {
    let mut accounts: BTreeMap<TimeAccount, Pair> = BTreeMap::new();
    for segment in &samples.segments {
        accounts.entry(segment.state.account()).or_default().samples_ns += segment.length_ns();
    }
    for segment in &switches.segments {
        accounts.entry(segment.state.account()).or_default().switches_ns += segment.length_ns();
    }
    let (vcpu, wall_ns) = (switches.vcpu, switches.length_ns());
    VcpuAgreement { vcpu, wall_ns, accounts, gaps: gaps(samples, switches, period_ns) }
}

fn gaps(samples: &VcpuTimeline, switches: &VcpuTimeline, period_ns: u64) -> Gaps {
    let by_samples = off_cpu(samples);
    let by_switches = off_cpu(switches);
    let mut gaps = Gaps::default();
    for (number, (from, to)) in by_switches.iter().enumerate() {
        if to.since(*from) <= SHORT_PERIODS.saturating_mul(period_ns) {
            continue;
        }
        // A gap's edges by samples may lie a period aside, but not in the next gap.
        let before = number.checked_sub(1).map(|before| by_switches[before].1);
        let after = by_switches.get(number + 1).map(|(from, _)| *from);
        let begin = from.0.saturating_sub(before.map_or(period_ns, |b| from.since(b) / 2));
        let end = to.0.saturating_add(after.map_or(period_ns, |a| a.since(*to) / 2));
        let found = overlap(&by_samples, HostNs(begin), HostNs(end));
        let difference = found.abs_diff(to.since(*from));
        gaps.count += 1;
        gaps.within_period += u64::from(difference <= period_ns);
        gaps.largest_ns = gaps.largest_ns.max(difference);
        gaps.sum_ns += difference;
    }
    gaps
}

/// When it was off the CPU: neighbours in one.
fn off_cpu(timeline: &VcpuTimeline) -> Vec<(HostNs, HostNs)> {
    let mut gaps: Vec<(HostNs, HostNs)> = Vec::new();
    for segment in timeline.segments.iter().filter(|segment| is_off(segment)) {
        match gaps.last_mut() {
            Some((_, end)) if *end == segment.from => *end = segment.to,
            _ => gaps.push((segment.from, segment.to)),
        }
    }
    gaps
}

fn is_off(segment: &Segment) -> bool {
    matches!(
        segment.state,
        TimelineState::StealOutside
            | TimelineState::StealVmmWaiting { .. }
            | TimelineState::Halt
            | TimelineState::Throttled
            | TimelineState::Paused
    )
}

/// How much of `from..to` the gaps, in time order, take.
fn overlap(gaps: &[(HostNs, HostNs)], from: HostNs, to: HostNs) -> u64 {
    let first = gaps.partition_point(|(_, end)| *end <= from);
    let within = gaps.get(first..).unwrap_or_default().iter().take_while(|(begin, _)| *begin < to);
    within.map(|(begin, end)| (*end).min(to).since((*begin).max(from))).sum()
}
