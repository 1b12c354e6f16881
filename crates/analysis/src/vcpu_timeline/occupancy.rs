//! Who had each pCPU, and who had it while a vCPU could not.
//!
//! ```text
//!  samples    a     a     b  b     i
//!  spans    aaaaaaaaaaabbbbbbbbiiiiiiii      half way between unlike neighbours
//! ```
//!
//! Where switches say exactly when vCPUs were on a CPU, only the time between is divided by samples.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

use model::{CpuId, HostNs, VcpuId};
use rustc_hash::FxHashMap;

use super::cover::middle;
use super::marks::CpuObservation;
use super::track::{Track, What};
use super::{Occupancy, Occupant, Segment, Span, VcpuTimelines};

/// Distance from evidence beyond which the occupant is unknown.
const REACH_PERIODS: u64 = 10;

/// Of a wait of this many spans all are looked at. Many vCPUs may wait as long as the recording.
const MANY: usize = 256;

/// The most occupants that are kept of a wait with more spans: the ones that have it longest.
const MAX_OWNERS: usize = 64;

/// When an occupant has a pCPU. Times are in order, and apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Owner {
    who: Occupant,
    times: Vec<Owned>,
}

/// A span during which an occupant has a pCPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Owned {
    from: u64,
    to: u64,
    /// How long it has had the pCPU up to its end.
    sum_ns: u64,
}

/// The spans of a pCPU between two instants, by the marks on it, in time order.
pub(super) fn by_marks(from: u64, to: u64, marks: &[CpuObservation], period_ns: u64) -> Vec<Span> {
    let mut spans = Spans { at: from, to, spans: Vec::new() };
    spans.fill(to, marks, period_ns.saturating_mul(REACH_PERIODS));
    spans.spans
}

/// The same, with the exact times that vCPUs were on it, in time order.
pub(super) fn by_switches(
    from: u64,
    to: u64,
    marks: &[CpuObservation],
    exact: &[(u64, u64, VcpuId)],
    period_ns: u64,
) -> Vec<Span> {
    let mut spans = Spans { at: from, to, spans: Vec::new() };
    let reach = period_ns.saturating_mul(REACH_PERIODS);
    let mut rest = marks;
    for (begin, end, vcpu) in exact {
        let before = rest.partition_point(|mark| mark.time < *begin);
        spans.fill(*begin, &rest[..before], reach);
        spans.push_until(*end, Occupant::Vcpu(*vcpu));
        let past = rest.partition_point(|mark| mark.time < *end);
        rest = &rest[past.max(before)..];
    }
    spans.fill(to, rest, reach);
    spans.spans
}

/// When each pCPU had which vCPU, in time order.
pub(super) fn on_cpu(tracks: &[Track]) -> FxHashMap<CpuId, Vec<(u64, u64, VcpuId)>> {
    let mut by_cpu: FxHashMap<CpuId, Vec<(u64, u64, VcpuId)>> = FxHashMap::default();
    for track in tracks {
        for stretch in &track.stretches {
            if let (What::OnCpu, Some(cpu)) = (stretch.what, stretch.cpu) {
                by_cpu.entry(cpu).or_default().push((stretch.from, stretch.to, track.vcpu));
            }
        }
    }
    by_cpu.values_mut().for_each(|stretches| stretches.sort_unstable());
    by_cpu
}

/// Spans as they are found: they touch, whatever is pushed.
#[derive(Debug)]
struct Spans {
    at: u64,
    to: u64,
    spans: Vec<Span>,
}

impl Spans {
    fn push_until(&mut self, to: u64, who: Occupant) {
        let (from, to) = (self.at, to.min(self.to));
        if to <= from {
            return;
        }
        self.at = to;
        match self.spans.last_mut() {
            Some(last) if last.who == who => last.to = HostNs(to),
            _ => self.spans.push(Span { from: HostNs(from), to: HostNs(to), who }),
        }
    }

    /// By the nearest mark.
    fn fill(&mut self, to: u64, marks: &[CpuObservation], reach: u64) {
        for (number, mark) in marks.iter().enumerate() {
            let next = marks.get(number + 1);
            let until = next.map_or(to, |next| middle(mark.time, next.time));
            self.push_until(mark.time.saturating_sub(reach).min(to), Occupant::Unknown);
            self.push_until(until.min(mark.time.saturating_add(reach)), mark.who);
        }
        self.push_until(to, Occupant::Unknown);
    }
}

impl Occupancy {
    /// Who has a CPU by its spans, which are in time order, touch, and don't overlap.
    #[must_use]
    pub fn new(cpu: CpuId, spans: Vec<Span>) -> Self {
        let owners = if spans.len() <= MANY { Vec::new() } else { owners(&spans) };
        Self { cpu, spans, owners }
    }

    /// The part of it between two instants.
    pub(super) fn within(self, range: &Range<HostNs>) -> Self {
        let mut spans = self.spans;
        for span in &mut spans {
            span.from = span.from.clamp(range.start, range.end);
            span.to = span.to.clamp(range.start, range.end);
        }
        spans.retain(|span| span.from < span.to);
        Self::new(self.cpu, spans)
    }

    /// The spans that overlap with a segment.
    fn overlapping(&self, segment: &Segment) -> &[Span] {
        let first = self.spans.partition_point(|span| span.to <= segment.from);
        let end = self.spans.partition_point(|span| span.from < segment.to);
        self.spans.get(first..end).unwrap_or_default()
    }

    /// Who had it during a segment, and for how long, in a few parts: in time order, or those that have it longest but for
    /// `victim`.
    fn parts(&self, victim: Occupant, segment: &Segment) -> Vec<(Occupant, u64)> {
        let within = self.overlapping(segment);
        if within.len() <= MANY {
            let length = |span: &Span| span.to.min(segment.to).since(span.from.max(segment.from));
            return within.iter().map(|span| (span.who, length(span))).collect();
        }
        let (from, to) = (segment.from.0, segment.to.0);
        let had = |owner: &Owner| owner.until(to).saturating_sub(owner.until(from));
        let others = self.owners.iter().filter(|owner| owner.who != victim);
        others.map(|owner| (owner.who, had(owner))).collect()
    }
}

impl Owner {
    /// How long it has had the pCPU up to an instant.
    fn until(&self, time: u64) -> u64 {
        let next = self.times.partition_point(|owned| owned.from < time);
        let last = next.checked_sub(1).and_then(|last| self.times.get(last));
        last.map_or(0, |last| last.sum_ns - last.to.saturating_sub(time))
    }
}

/// Those who have it longest, and when.
fn owners(spans: &[Span]) -> Vec<Owner> {
    let mut sums: FxHashMap<Occupant, u64> = FxHashMap::default();
    for span in spans {
        *sums.entry(span.who).or_default() += span.to.since(span.from);
    }
    let mut longest: Vec<_> = sums.into_iter().collect();
    longest.sort_unstable_by_key(|(who, ns)| (Reverse(*ns), *who));
    longest.truncate(MAX_OWNERS);
    let mut owners: Vec<_> =
        longest.iter().map(|(who, _)| Owner { who: *who, times: Vec::new() }).collect();
    let rows: FxHashMap<Occupant, usize> =
        owners.iter().enumerate().map(|(row, owner)| (owner.who, row)).collect();
    for span in spans {
        let Some(owner) = rows.get(&span.who).and_then(|row| owners.get_mut(*row)) else {
            continue;
        };
        let before = owner.times.last().map_or(0, |last| last.sum_ns);
        let sum_ns = before + span.to.since(span.from);
        owner.times.push(Owned { from: span.from.0, to: span.to.0, sum_ns });
    }
    owners
}

/// Who had the pCPU in whose queue `victim` waited during `segment`, and for how long: the most first, together the
/// segment's length. Where the samples take the victim itself for the CPU's owner, which can't be, it is the next one
/// in the segment; `Occupant::Unknown` if there is none. If the CPU's occupant changed very often, only the longest
/// occupants are kept.
#[must_use]
pub fn thieves(axis: &VcpuTimelines, victim: VcpuId, segment: &Segment) -> Vec<(Occupant, u64)> {
    let occupancy = axis.occupancy_of(segment);
    let victim = Occupant::Vcpu(victim);
    let parts = occupancy.map_or_else(Vec::new, |occupancy| occupancy.parts(victim, segment));
    let mut shares: BTreeMap<Occupant, u64> = BTreeMap::new();
    let mut thief = None;
    let mut untold = 0;
    for (who, ns) in parts {
        if who == victim {
            match thief {
                Some(thief) => *shares.entry(thief).or_default() += ns,
                None => untold += ns,
            }
        } else if 0 < ns {
            thief = Some(who);
            *shares.entry(who).or_default() += ns + std::mem::take(&mut untold);
        }
    }
    let reported: u64 = shares.values().sum();
    let rest = segment.length_ns().saturating_sub(reported);
    if 0 < rest {
        *shares.entry(Occupant::Unknown).or_default() += rest;
    }
    let mut shares: Vec<_> = shares.into_iter().collect();
    shares.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
    shares
}

/// The thieves of `segment` in time order. The spans touch and cover the segment; no occupant is left out.
#[must_use]
pub fn thief_spans(axis: &VcpuTimelines, victim: VcpuId, segment: &Segment) -> Vec<Span> {
    let within = axis.occupancy_of(segment).map_or(&[][..], |it| it.overlapping(segment));
    let others = || within.iter().map(|span| span.who).filter(|who| *who != Occupant::Vcpu(victim));
    let mut thief = others().next().unwrap_or(Occupant::Unknown);
    let mut found = Spans { at: segment.from.0, to: segment.to.0, spans: Vec::new() };
    for span in within {
        found.push_until(span.from.0, Occupant::Unknown);
        if span.who != Occupant::Vcpu(victim) {
            thief = span.who;
        }
        found.push_until(span.to.0, thief);
    }
    found.push_until(segment.to.0, Occupant::Unknown);
    found.spans
}

impl VcpuTimelines {
    /// Of the pCPU that the segment was on or queued for.
    fn occupancy_of(&self, segment: &Segment) -> Option<&Occupancy> {
        let row = self.cpus.binary_search_by_key(&segment.cpu?, |occupancy| occupancy.cpu).ok()?;
        self.cpus.get(row)
    }
}

#[cfg(test)]
mod test {
    use model::{Pid, Tid};

    use super::*;
    use model::TimelineState;

    const N: u32 = 30_000;

    /// Of a CPU that has another owner every 10 ns.
    fn occupancy(who: impl Fn(u32) -> Occupant) -> Occupancy {
        let at = |n: u32| HostNs(u64::from(n) * 10);
        let spans = (0..N).map(|n| Span { from: at(n), to: at(n + 1), who: who(n) });
        Occupancy::new(CpuId(0), spans.collect())
    }

    fn wait(from: u64, to: u64) -> Segment {
        let (from, to) = (HostNs(from), HostNs(to));
        Segment { from, to, state: TimelineState::StealOutside, cpu: Some(CpuId(0)), place: None }
    }

    fn thread(tid: u32) -> Occupant {
        Occupant::Thread(Pid(1), Tid(tid))
    }

    fn check(cpu: &Occupancy, segment: &Segment, expected: &[(Occupant, u64)]) {
        let axis = VcpuTimelines { cpus: vec![cpu.clone()], ..VcpuTimelines::default() };
        assert_eq!(thieves(&axis, VcpuId(7), segment), expected, "{segment:?}");
    }

    #[test]
    fn long_waits_have_all_their_thieves() {
        let cpu = occupancy(|n| if n % 3 == 0 { Occupant::Idle } else { thread(n % 3) });
        check(&cpu, &wait(5, 32), &[(thread(1), 10), (thread(2), 10), (Occupant::Idle, 7)]);
        let long = [(thread(1), 80_000), (thread(2), 79_997), (Occupant::Idle, 79_995)];
        check(&cpu, &wait(5, 239_997), &long);
        let after = wait(u64::from(N) * 10 + 5, u64::from(N) * 10 + 8);
        check(&cpu, &after, &[(Occupant::Unknown, 3)]);
    }

    #[test]
    fn the_victim_is_no_thief_of_a_long_wait() {
        let victim = Occupant::Vcpu(VcpuId(7));
        let cpu = occupancy(|n| if n % 10 == 0 { victim } else { thread(1) });
        let expected = [(thread(1), 216_000), (Occupant::Unknown, 24_000)];
        check(&cpu, &wait(0, 240_000), &expected);
    }

    /// Far more pairs of a wait and a span than either.
    #[test]
    fn many_waits_over_many_spans_take_few_looks() {
        for cpu in [occupancy(thread), occupancy(|n| thread(n % 2)), occupancy(|n| thread(n / 9))] {
            for n in 0..20_000 {
                let segment = wait(n, 240_000 + n);
                let looks = cpu.parts(Occupant::Idle, &segment).len();
                assert!(looks <= 256, "{looks}");
            }
            let known: u64 =
                cpu.parts(Occupant::Idle, &wait(0, 240_000)).iter().map(|(_, ns)| ns).sum();
            let axis = VcpuTimelines { cpus: vec![cpu], ..VcpuTimelines::default() };
            let shares = thieves(&axis, VcpuId(7), &wait(0, 240_000));
            let unknown = shares.iter().find(|(who, _)| *who == Occupant::Unknown);
            assert_eq!(unknown.map_or(0, |(_, ns)| *ns), 240_000 - known);
        }
    }
}
