//! Who had each pCPU, and who had it while a vCPU could not.
//!
//! ```text
//!  samples    a     a     b  b     i
//!  spans    aaaaaaaaaaabbbbbbbbiiiiiiii      half way between unlike neighbours
//! ```
//!
//! Where switches say exactly when vCPUs were on a CPU, only the time between is divided by samples.

use std::collections::BTreeMap;

use model::{CpuId, HostNs, VcpuId};
use rustc_hash::FxHashMap;

use super::cover::middle;
use super::marks::Mark;
use super::track::{Track, What};
use super::{Occupant, Segment, Span, VcpuTimelines};

/// How far from any evidence nobody knows.
const REACH_PERIODS: u64 = 10;

/// The spans of a pCPU between two instants, by the marks on it, in time order.
pub(super) fn by_marks(from: u64, to: u64, marks: &[Mark], period_ns: u64) -> Vec<Span> {
    let mut spans = Spans { at: from, to, spans: Vec::new() };
    spans.fill(to, marks, period_ns.saturating_mul(REACH_PERIODS));
    spans.spans
}

/// The same, with the exact times that vCPUs were on it, in time order.
pub(super) fn by_switches(
    from: u64,
    to: u64,
    marks: &[Mark],
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
    fn fill(&mut self, to: u64, marks: &[Mark], reach: u64) {
        for (number, mark) in marks.iter().enumerate() {
            let next = marks.get(number + 1);
            let until = next.map_or(to, |next| middle(mark.time, next.time));
            self.push_until(mark.time.saturating_sub(reach).min(to), Occupant::Unknown);
            self.push_until(until.min(mark.time.saturating_add(reach)), mark.who);
        }
        self.push_until(to, Occupant::Unknown);
    }
}

/// Who had the pCPU in whose queue `victim` waited during `segment`, and for how long: the most first, together the
/// segment's length. Where the samples take the victim itself for the CPU's owner, which can't be, it is the next one
/// in the segment; `Occupant::Unknown` if there is none.
#[must_use]
pub fn thieves(axis: &VcpuTimelines, victim: VcpuId, segment: &Segment) -> Vec<(Occupant, u64)> {
    let occupancy = segment.cpu.and_then(|cpu| {
        let row = axis.cpus.binary_search_by_key(&cpu, |occupancy| occupancy.cpu).ok()?;
        axis.cpus.get(row)
    });
    let spans = occupancy.map_or(&[][..], |occupancy| &occupancy.spans);
    let first = spans.partition_point(|span| span.to <= segment.from);
    let spans = spans.get(first..).unwrap_or_default();
    let within = spans.iter().take_while(|span| span.from < segment.to);
    let mut shares: BTreeMap<Occupant, u64> = BTreeMap::new();
    let mut thief = None;
    let mut untold = 0;
    for span in within {
        let ns = span.to.min(segment.to).since(span.from.max(segment.from));
        if span.who == Occupant::Vcpu(victim) {
            match thief {
                Some(thief) => *shares.entry(thief).or_default() += ns,
                None => untold += ns,
            }
        } else {
            thief = Some(span.who);
            *shares.entry(span.who).or_default() += ns + std::mem::take(&mut untold);
        }
    }
    let told: u64 = shares.values().sum();
    let rest = segment.length_ns().saturating_sub(told);
    if 0 < rest {
        *shares.entry(Occupant::Unknown).or_default() += rest;
    }
    let mut shares: Vec<_> = shares.into_iter().collect();
    shares.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
    shares
}
