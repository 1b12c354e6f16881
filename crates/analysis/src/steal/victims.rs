//! Who suffered: own and stolen time per process, thread or function of a guest.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::{TimeAccount, VmId};

use super::{Attribution, AttributionLevel, TimelineInput, Window};
use crate::vcpu_timeline::{CodeLocation, CodeLocationId, Segment, VcpuTimeline};

/// CPU time taken from a vCPU, by type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stolen {
    /// Type 1.
    pub outside_ns: u64,
    /// Type 2.
    pub vmm_ns: u64,
    /// By a CPU quota.
    pub throttled_ns: u64,
}

/// A process, thread or function of a guest. Fields that are not requested are `None`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Victim {
    pub process: String,
    /// Its id in the guest.
    pub pid: Option<u32>,
    pub thread: Option<String>,
    /// Its id in the guest.
    pub tid: Option<u32>,
    pub function: Option<String>,
    pub module: Option<String>,
    /// Of a stack, the innermost first.
    pub callers: Vec<Arc<str>>,
}

/// Time taken from a victim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VictimTime {
    /// It was seen to run, ns.
    pub own_ns: u64,
    /// It was on a CPU, no sample was taken, and the samples before and after are its.
    pub not_sampled_ns: u64,
    pub stolen: Stolen,
    /// Samples that saw it run.
    pub samples: u64,
    /// Samples that saw its VM exits handled.
    pub vmm_samples: u64,
}

/// Victims within a VM.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Victims {
    /// Most time taken first.
    pub rows: Vec<(Victim, VictimTime)>,
    /// Taken, and not known from whom.
    pub unattributed: Stolen,
    /// Samples of the VM's vCPUs in the window.
    pub samples: u64,
}

/// A part of a VM's time, and the code that it belongs to.
pub(super) struct Charge<'a> {
    pub(super) attribution: &'a Attribution<'a>,
    pub(super) timeline: &'a VcpuTimeline,
    /// Its number in the timeline.
    pub(super) number: usize,
    /// As far as it lies in the window.
    pub(super) segment: Segment,
    /// `None`: unattributed, or idle.
    pub(super) victim: Option<CodeLocationId>,
}

/// Who suffered in one VM.
#[must_use]
pub fn victims(
    evidence: &TimelineInput<'_>,
    vm: VmId,
    whose: AttributionLevel,
    window: Window,
) -> Victims {
    let of_place: Vec<Victim> =
        evidence.axis.places.iter().map(|place| Victim::from_location(place, whose)).collect();
    let mut by_place: Vec<VictimTime> = vec![VictimTime::default(); of_place.len()];
    let mut found = Victims::default();
    for_each_charge(evidence, vm, whose, window, &mut |charge| {
        let samples = evidence.axis.samples.within(charge.timeline.vcpu, &charge.segment);
        found.samples += samples;
        match charge.victim {
            Some(place) => by_place[place.0 as usize].add_charge(charge, samples),
            None => found.unattributed.add(&charge.segment),
        }
    });
    let mut sums: BTreeMap<Victim, VictimTime> = BTreeMap::new();
    for (victim, time) in of_place.into_iter().zip(by_place) {
        if time != VictimTime::default() {
            sums.entry(victim).or_default().add(&time);
        }
    }
    found.rows = sums.into_iter().collect();
    found.rows.sort_by_key(|(_, time)| {
        std::cmp::Reverse((time.stolen.total_ns(), time.own_ns + time.not_sampled_ns))
    });
    found
}

/// Shows every segment of a VM's vCPUs in the window.
pub(super) fn for_each_charge(
    evidence: &TimelineInput<'_>,
    vm: VmId,
    whose: AttributionLevel,
    window: Window,
    see: &mut dyn FnMut(&Charge<'_>),
) {
    for timeline in evidence.timelines(vm) {
        let attribution = Attribution::new(evidence.axis, timeline);
        for (number, segment) in timeline.segments.iter().enumerate() {
            let Some(segment) = window.clip(segment) else { continue };
            let victim = attribution.victim(number, whose);
            see(&Charge { attribution: &attribution, timeline, number, segment, victim });
        }
    }
}

impl Victim {
    pub(super) fn from_location(place: &CodeLocation, whose: AttributionLevel) -> Self {
        let CodeLocation { process, pid, thread, tid, function, module, callers, .. } =
            place.clone();
        let only_process = Self {
            process,
            pid,
            thread: None,
            tid: None,
            function: None,
            module: None,
            callers: Vec::new(),
        };
        match whose {
            AttributionLevel::Process => only_process,
            AttributionLevel::Thread => Self { thread, tid, ..only_process },
            AttributionLevel::Function => Self { function: Some(function), module, ..only_process },
            AttributionLevel::Stack => {
                Self { function: Some(function), module, callers, ..only_process }
            }
        }
    }
}

impl VictimTime {
    /// How long it ran.
    #[must_use]
    pub fn run_ns(&self) -> u64 {
        self.own_ns + self.not_sampled_ns
    }

    /// How long it seemed to run.
    #[must_use]
    pub fn apparent_ns(&self) -> u64 {
        self.run_ns() + self.stolen.total_ns()
    }

    /// Adds another victim's time.
    pub fn add(&mut self, other: &Self) {
        self.own_ns += other.own_ns;
        self.not_sampled_ns += other.not_sampled_ns;
        self.samples += other.samples;
        self.vmm_samples += other.vmm_samples;
        self.stolen.outside_ns += other.stolen.outside_ns;
        self.stolen.vmm_ns += other.stolen.vmm_ns;
        self.stolen.throttled_ns += other.stolen.throttled_ns;
    }

    pub(super) fn add_charge(&mut self, charge: &Charge<'_>, samples: u64) {
        let ns = charge.segment.length_ns();
        match charge.segment.state.account() {
            TimeAccount::Guest => {
                self.own_ns += ns;
                self.samples += samples;
            }
            TimeAccount::NotSampled => self.not_sampled_ns += ns,
            TimeAccount::StealVmm => self.vmm_samples += samples,
            _ => {}
        }
        self.stolen.add(&charge.segment);
    }
}

impl Stolen {
    /// The time of all types.
    #[must_use]
    pub fn total_ns(&self) -> u64 {
        self.outside_ns + self.vmm_ns + self.throttled_ns
    }

    /// Nothing for a segment that is neither steal nor throttled.
    pub(super) fn add(&mut self, segment: &Segment) {
        let ns = segment.length_ns();
        match segment.state.account() {
            TimeAccount::StealOutside => self.outside_ns += ns,
            TimeAccount::StealVmm => self.vmm_ns += ns,
            TimeAccount::Throttled => self.throttled_ns += ns,
            _ => {}
        }
    }
}

#[cfg(test)]
mod test {
    use super::super::testing::{Drawn, MS, VM_A};
    use super::*;

    /// `who own+not sampled type 1:type 2:throttled (samples)` in ms, the last line unattributed.
    fn check(vcpus: &[&str], whose: AttributionLevel, expected: &[&str]) {
        let drawn = Drawn::new(vcpus, "");
        let evidence = drawn.evidence();
        let found = victims(&evidence, VM_A, whose, evidence.all());
        let stolen = |Stolen { outside_ns, vmm_ns, throttled_ns }| {
            format!("{}:{}:{}", outside_ns / MS, vmm_ns / MS, throttled_ns / MS)
        };
        let row = |(victim, time): &(Victim, VictimTime)| {
            let of = [Some(&victim.process), victim.thread.as_ref(), victim.function.as_ref()];
            let who = of.into_iter().flatten().cloned().collect::<Vec<_>>().join("/");
            let VictimTime { own_ns, not_sampled_ns, stolen: taken, samples, .. } = *time;
            let run = format!("{}+{}", own_ns / MS, not_sampled_ns / MS);
            format!("{who} {run} {} ({samples})", stolen(taken))
        };
        let mut lines: Vec<String> = found.rows.iter().map(row).collect();
        lines.push(format!("- {}", stolen(found.unattributed)));
        assert_eq!(lines, expected, "{vcpus:?}");
        assert_adds_up(&evidence, &found);
    }

    fn assert_adds_up(evidence: &TimelineInput<'_>, found: &Victims) {
        let mut sum = found.unattributed.total_ns();
        sum += found.rows.iter().map(|(_, time)| time.stolen.total_ns() + time.own_ns).sum::<u64>();
        let segments = evidence.timelines(VM_A).flat_map(|timeline| &timeline.segments);
        let counted = segments.filter(|segment| match segment.state.account() {
            TimeAccount::Guest
            | TimeAccount::StealOutside
            | TimeAccount::StealVmm
            | TimeAccount::Throttled => true,
            TimeAccount::Halt
            | TimeAccount::Paused
            | TimeAccount::HaltPolling
            | TimeAccount::NotSampled
            | TimeAccount::Unknown => false,
        });
        assert_eq!(sum, counted.map(Segment::length_ns).sum::<u64>());
    }

    #[test]
    fn own_and_stolen_time() {
        let line = "ff..ff_g.1.xxtxx.hh-.";
        check(
            &[line],
            AttributionLevel::Process,
            &["app 7+1 3:1:0 (7)", "other 4+0 0:0:1 (4)", "- 3:0:0"],
        );
        check(
            &[line],
            AttributionLevel::Thread,
            &["app/t1 5+1 3:1:0 (5)", "other/t3 4+0 0:0:1 (4)", "app/t2 2+0 0:0:0 (2)", "- 3:0:0"],
        );
        check(
            &[line],
            AttributionLevel::Function,
            &[
                "app/f 4+0 2:1:0 (4)",
                "other/x 4+0 0:0:1 (4)",
                "app/h 2+0 0:0:0 (2)",
                "app/g 1+0 0:0:0 (1)",
                "- 4:0:0",
            ],
        );
    }

    #[test]
    fn vcpus_are_summed_and_other_vms_left_out() {
        let vcpus = ["f.f", "fwf", "xxxxxx"];
        check(&vcpus, AttributionLevel::Function, &["app/f 4+0 1:1:0 (4)", "- 0:0:0"]);
    }
}
