//! VM exits: how often, how long they took, and what in the guest caused them.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::VmId;

use super::balance::vmm_reason;
use super::{Attribution, AttributionLevel, TimelineInput, VmmTime};
use crate::vcpu_timeline::CodeLocation;

/// VM exits of a VM.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Exits {
    /// Most time first, then most often.
    pub rows: Vec<ExitRow>,
    /// Whether exits were counted while recording.
    pub counted: bool,
}

/// The exits of one reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExitRow {
    /// AMD exit code or Intel basic exit reason; `None`: the samples don't tell.
    pub reason: Option<u32>,
    /// How often; `None`: not counted.
    pub count: Option<u64>,
    /// How long the VMM had the vCPU for them.
    pub time: VmmTime,
    /// Samples that saw them handled.
    pub samples: u64,
    /// What caused them, most time first; adds up to `time`.
    pub causes: Vec<(Cause, u64)>,
}

/// The guest's code at an exit; nothing: not known.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Cause {
    pub process: Option<String>,
    /// Its id in the guest.
    pub pid: Option<u32>,
    pub function: Option<String>,
    pub module: Option<String>,
    /// The function's callers, the innermost first; empty in timelines that were built without callers.
    pub callers: Vec<Arc<str>>,
}

#[derive(Debug, Default)]
struct Sum {
    time: VmmTime,
    samples: u64,
    causes: BTreeMap<Cause, u64>,
}

/// The exits of one VM by reason.
#[must_use]
pub fn exits(evidence: &TimelineInput<'_>, vm: VmId) -> Exits {
    let mut sums = sums(evidence, vm);
    let counts = counts(evidence, vm);
    let counted = !evidence.tables.exits.is_empty();
    counts.keys().for_each(|reason| {
        sums.entry(Some(*reason)).or_default();
    });
    let rows = sums.into_iter().map(|(reason, sum)| {
        let count = reason.filter(|_| counted).map(|r| counts.get(&r).copied().unwrap_or(0));
        let mut causes: Vec<(Cause, u64)> = sum.causes.into_iter().collect();
        causes.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
        ExitRow { reason, count, time: sum.time, samples: sum.samples, causes }
    });
    let mut rows: Vec<ExitRow> = rows.collect();
    rows.sort_by_key(|row| std::cmp::Reverse((row.time.total_ns(), row.count)));
    Exits { rows, counted }
}

impl ExitRow {
    /// Time per exit, where both are known: all exits are counted, their time is sampled and may be seen never.
    #[must_use]
    pub fn mean_ns(&self) -> Option<u64> {
        let ns = Some(self.time.total_ns()).filter(|ns| 0 < *ns)?;
        ns.checked_div(self.count?)
    }
}

impl Cause {
    fn from_location(place: &CodeLocation) -> Self {
        let CodeLocation { process, pid, function, module, callers, .. } = place.clone();
        Self { process: Some(process), pid, function: Some(function), module, callers }
    }
}

fn sums(evidence: &TimelineInput<'_>, vm: VmId) -> BTreeMap<Option<u32>, Sum> {
    let mut sums: BTreeMap<Option<u32>, Sum> = BTreeMap::new();
    for timeline in evidence.timelines(vm) {
        let attribution = Attribution::new(evidence.axis, timeline);
        for (number, segment) in timeline.segments.iter().enumerate() {
            let Some(reason) = vmm_reason(segment.state) else { continue };
            let place = attribution.victim(number, AttributionLevel::Function);
            let cause = place
                .map_or_else(Cause::default, |id| Cause::from_location(evidence.axis.place(id)));
            let sum = sums.entry(reason).or_default();
            sum.time.add(segment.state, segment.length_ns());
            sum.samples += evidence.axis.samples.within(timeline.vcpu, segment);
            *sum.causes.entry(cause).or_default() += segment.length_ns();
        }
    }
    sums
}

fn counts(evidence: &TimelineInput<'_>, vm: VmId) -> BTreeMap<u32, u64> {
    let mut counts = BTreeMap::new();
    let of_vm = evidence.tables.exits.iter().filter(|exit| evidence.vm_of(exit.vcpu) == Some(vm));
    of_vm.for_each(|exit| *counts.entry(exit.reason).or_default() += exit.count);
    counts
}

#[cfg(test)]
mod test {
    use super::super::testing::{Drawn, IO, MS, MSR, VM_A};
    use super::*;

    /// `reason count ms on CPU+waiting samples mean: causes`.
    fn check(drawn: &Drawn, expected: &[&str]) {
        let found = exits(&drawn.evidence(), VM_A);
        let or_dash = |n: Option<u64>| n.map_or("-".to_owned(), |n| n.to_string());
        let row = |row: &ExitRow| {
            let VmmTime { on_cpu_ns, waiting_ns } = row.time;
            let cause = |(cause, ns): &(Cause, u64)| {
                format!(" {} {}", cause.function.as_deref().unwrap_or("?"), ns / MS)
            };
            let causes: String = row.causes.iter().map(cause).collect();
            let (reason, count) = (or_dash(row.reason.map(u64::from)), or_dash(row.count));
            let ms = format!("{}+{}", on_cpu_ns / MS, waiting_ns / MS);
            let mean = or_dash(row.mean_ns().map(|ns| ns / 1000));
            assert_eq!(row.causes.iter().map(|(_, ns)| ns).sum::<u64>(), row.time.total_ns());
            format!("{reason} {count} {ms} {} {mean}:{causes}", row.samples)
        };
        let rows: Vec<String> = found.rows.iter().map(row).collect();
        assert_eq!(rows, expected);
        assert_eq!(found.counted, !drawn.tables.exits.is_empty());
    }

    #[test]
    fn by_reason() {
        let drawn = || Drawn::new(&["ff11fwf2x3", "", "1111"], "");
        check(&drawn(), &["123 - 2+1 2 -: f 3", "96 - 1+0 1 -: ? 1", "124 - 1+0 1 -: x 1"]);
        check(
            &drawn().count_exits(&[(IO, 6), (MSR, 2), (0x72, 9)]),
            &[
                "123 6 2+1 2 500: f 3",
                "124 2 1+0 1 500: x 1",
                "96 0 1+0 1 -: ? 1",
                "114 9 0+0 0 -:",
            ],
        );
    }
}
