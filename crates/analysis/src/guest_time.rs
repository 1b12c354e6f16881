//! A guest's time, in samples.
//!
//! A vCPU that never stops has one sample per period. Those that it was not seen with are shared out over what
//! the axis says that it did instead of running its guest:
//!
//! ```text
//!  axis     | guest   | halted      | preempted | guest |
//!  periods    1  2  3   4  5  6  7    8  9        10       10 expected
//!  seen       x     x                             x         3
//!                                                           7 shared out: 4 halted, 2 preempted, 1 not sampled
//! ```
//!
//! Guest time that has fewer samples than periods was not sampled: interrupts never came, or their samples were dropped.

use std::collections::BTreeMap;

use model::{Header, Sample, Tables, TimeAccount, VcpuId, VcpuState, VmId};

use crate::profile::Side;
use crate::share::shared_out;
use crate::vcpu_timeline::{Occupant, Segment, VcpuTimelines, thieves};
use crate::{Selection, View};

/// Counts what each vCPU was seen to run.
#[derive(Debug)]
pub(crate) struct GuestTime<'r> {
    tables: &'r Tables,
    header: &'r Header,
    seen_of_vcpu: Vec<u64>,
    seen_unknown_vcpu: u64,
}

/// Samples that a vCPU lacks, by what the vCPU did.
pub(crate) type Unseen = BTreeMap<Side, u64>;

/// A vCPU's time in ns and how often it was seen. A number that was unplugged and plugged in again is one.
#[derive(Debug, Default)]
struct Spent {
    guest_ns: u64,
    not_guest_ns: BTreeMap<Side, u64>,
    /// How long its vCPUs were there, one after the other.
    length_ns: u64,
    /// How much of that the axis tells of: more than the length if their times are unknown.
    reported_ns: u64,
    seen: u64,
}

impl<'r> GuestTime<'r> {
    /// `None` where there is no whole vCPU to account for: in other views, and for one process
    /// (the owners of the missing samples are unknown).
    pub(crate) fn for_selection(
        tables: &'r Tables,
        header: &'r Header,
        selection: &Selection,
    ) -> Option<Self> {
        let whole = selection.view() == View::Guest && selection.process().is_none();
        whole.then(|| Self {
            tables,
            header,
            seen_of_vcpu: vec![0; tables.vcpus.len()],
            seen_unknown_vcpu: 0,
        })
    }

    /// A sample that the selection looks at.
    pub(crate) fn note_seen(&mut self, sample: &Sample) {
        match &sample.vcpu {
            VcpuState::Guest(vcpu) => match self.seen_of_vcpu.get_mut(vcpu.vcpu.index()) {
                Some(seen) => *seen += 1,
                None => self.seen_unknown_vcpu += 1,
            },
            VcpuState::Unknown => self.seen_unknown_vcpu += 1,
            VcpuState::None | VcpuState::Vmm(_) => {}
        }
    }

    /// What is missing of the selected vCPUs, by their number.
    pub(crate) fn unseen(
        &self,
        selection: &Selection,
        axis: &VcpuTimelines,
    ) -> BTreeMap<u32, Unseen> {
        let Some(vm) = selection.vm() else {
            return BTreeMap::new();
        };
        let period_ns = self.header.period_ns.max(1);
        // The vCPU of these is unknown.
        let mut seen_unknown = self.seen_unknown_vcpu;
        let mut unseen = BTreeMap::new();
        for (number, spent) in self.spent(vm, selection.vcpu(), axis) {
            let (seen, expected) = (spent.seen, rounded(spent.length_ns, period_ns));
            let missing = expected.saturating_sub(seen);
            let unknown = seen_unknown.min(missing);
            seen_unknown -= unknown;
            let weights = spent.weights(unknown, period_ns);
            let shared = shared_or_unknown(missing - unknown, &weights);
            debug_assert_eq!(
                shared.values().sum::<u64>() + unknown + seen,
                expected.max(seen),
                "a vCPU's samples are those expected, or seen"
            );
            unseen.insert(number, shared);
        }
        unseen
    }

    fn spent(&self, vm: VmId, vcpu: Option<u32>, axis: &VcpuTimelines) -> BTreeMap<u32, Spent> {
        let mut all: BTreeMap<u32, Spent> = BTreeMap::new();
        let vm_length_ns = self.length_ns(vm);
        for (index, (row, seen)) in self.tables.vcpus.iter().zip(&self.seen_of_vcpu).enumerate() {
            if !self.tables.is_same_vm(row.vm, vm)
                || vcpu.is_some_and(|number| number != row.number)
            {
                continue;
            }
            let spent = all.entry(row.number).or_default();
            spent.seen += seen;
            let vcpu = VcpuId::from_index(index);
            let span = self.tables.vcpu_span(vcpu, self.header);
            let own_ns = span.map_or(0, |(from, to)| to.since(from));
            spent.length_ns = (spent.length_ns + own_ns).min(vm_length_ns);
            let Some(timeline) = axis.timeline(vcpu) else {
                continue;
            };
            spent.reported_ns += own_ns;
            for segment in &timeline.segments {
                self.spend(spent, axis, timeline.vcpu, segment);
            }
        }
        all
    }

    fn spend(&self, spent: &mut Spent, axis: &VcpuTimelines, vcpu: VcpuId, segment: &Segment) {
        let side = match segment.state.account() {
            TimeAccount::Guest | TimeAccount::NotSampled => {
                spent.guest_ns += segment.length_ns();
                return;
            }
            TimeAccount::StealOutside => {
                for (who, ns) in thieves(axis, vcpu, segment) {
                    spent.add(self.thief_side(vcpu, who), ns);
                }
                return;
            }
            account => Side::Unseen(account),
        };
        spent.add(side, segment.length_ns());
    }

    fn thief_side(&self, victim: VcpuId, who: Occupant) -> Side {
        let Occupant::Vcpu(thief) = who else {
            return Side::Unseen(TimeAccount::StealOutside);
        };
        let row = |vcpu: VcpuId| self.tables.vcpus.get(vcpu.index());
        match (row(victim), row(thief)) {
            (Some(victim), Some(thief)) if victim.vm == thief.vm => {
                Side::StealOwnVcpu { thief: thief.number }
            }
            _ => Side::Unseen(TimeAccount::StealOutside),
        }
    }

    /// How long the VM was there.
    fn length_ns(&self, vm: VmId) -> u64 {
        let rows = self.tables.vms.iter().enumerate();
        let rows = rows.filter(|(row, _)| self.tables.is_same_vm(vm, VmId::from_index(*row)));
        let length = |(_, vm): (usize, &model::Vm)| {
            let from = vm.started.map_or(self.header.start, |t| t.max(self.header.start));
            let to = vm.ended.map_or(self.header.end, |t| t.min(self.header.end));
            to.since(from)
        };
        rows.map(length).sum()
    }
}

impl Spent {
    fn add(&mut self, side: Side, ns: u64) {
        *self.not_guest_ns.entry(side).or_default() += ns;
    }

    /// What the samples not seen are shared out by.
    fn weights(mut self, seen_unknown: u64, period_ns: u64) -> BTreeMap<Side, u64> {
        let not_sampled = self.guest_ns.saturating_sub(self.seen.saturating_mul(period_ns));
        self.add(Side::Unseen(TimeAccount::NotSampled), not_sampled);
        // Two vCPUs of one number in an old recording: each timeline knows nothing of the other's time.
        let others = self.reported_ns.saturating_sub(self.length_ns);
        let seen_unknown = seen_unknown.saturating_mul(period_ns);
        if let Some(ns) = self.not_guest_ns.get_mut(&Side::Unseen(TimeAccount::Unknown)) {
            *ns = ns.saturating_sub(others.saturating_add(seen_unknown));
        }
        self.not_guest_ns
    }
}

/// `n` samples in proportion to the weights; with no weight at all the owner is unknown.
fn shared_or_unknown(n: u64, weights: &BTreeMap<Side, u64>) -> Unseen {
    let shared = shared_out(n, weights);
    if shared.is_empty() { Unseen::from([(Side::Unseen(TimeAccount::Unknown), n)]) } else { shared }
}

/// How many periods, the nearest whole number.
fn rounded(ns: u64, period_ns: u64) -> u64 {
    ns.saturating_add(period_ns / 2) / period_ns
}

#[cfg(test)]
mod test {
    use model::{
        CpuId, Cr3, Guest, GuestVirt, HostMode, HostNs, HostVirt, Pid, Tid, Vcpu, VcpuSample, Vm,
    };

    use super::*;
    use crate::testing::header;
    use crate::vcpu_timeline::{Occupancy, Span, VcpuTimeline};
    use model::TimelineState;

    const PERIOD: u64 = 100;
    /// What one character stands for.
    const STEP: u64 = PERIOD / 2;

    fn tables() -> Tables {
        let vm = |name: &str| Vm {
            name: name.to_owned(),
            pid: Pid(1),
            started: None,
            ended: None,
            labels: model::VmLabels::default(),
            guest: Guest::Unmapped { reason: String::new() },
        };
        let vcpu =
            |vm, number| Vcpu { vm: VmId(vm), number, tid: Tid(1), started: None, ended: None };
        Tables {
            vms: vec![vm("one"), vm("two")],
            vcpus: vec![vcpu(0, 0), vcpu(0, 1), vcpu(1, 0), vcpu(0, 0)],
            ..Tables::default()
        }
    }

    fn state(what: char) -> TimelineState {
        match what {
            'G' => TimelineState::GuestUser,
            'k' => TimelineState::GuestKernel,
            '.' => TimelineState::NotSampled,
            'H' => TimelineState::Halt,
            'p' => TimelineState::HaltPolling,
            'P' => TimelineState::StealOutside,
            'V' => TimelineState::StealVmm { reason: 0x7b },
            'W' => TimelineState::StealVmmWaiting { reason: None },
            'T' => TimelineState::Throttled,
            'Z' => TimelineState::Paused,
            '?' => TimelineState::Unknown,
            other => panic!("{other}"),
        }
    }

    fn occupant(what: char) -> Occupant {
        match what {
            'a'..='d' => Occupant::Vcpu(VcpuId(what as u32 - 'a' as u32)),
            'q' => Occupant::Thread(Pid(1), Tid(2)),
            'i' => Occupant::Idle,
            other => panic!("{other}"),
        }
    }

    /// Stretches of equal characters.
    fn stretches(line: &str) -> impl Iterator<Item = (char, HostNs, HostNs)> {
        let mut at = 0;
        let chars: Vec<char> = line.chars().collect();
        let stretches: Vec<(char, u64)> =
            chars.chunk_by(|a, b| a == b).map(|same| (same[0], same.len() as u64)).collect();
        stretches.into_iter().map(move |(what, length)| {
            let from = at;
            at += length * STEP;
            (what, HostNs(from), HostNs(at))
        })
    }

    /// vCPU rows 0.. as in `tables`, then CPU 0, where preempted vCPUs wait.
    fn axis(vcpus: &[&str], cpu: &str) -> VcpuTimelines {
        let timeline = |(row, line): (usize, &&str)| VcpuTimeline {
            vcpu: VcpuId::from_index(row),
            from: HostNs(0),
            to: HostNs(line.len() as u64 * STEP),
            segments: stretches(line)
                .map(|(what, from, to)| Segment {
                    from,
                    to,
                    state: state(what),
                    cpu: Some(CpuId(0)),
                    place: None,
                })
                .collect(),
        };
        let spans = stretches(cpu).map(|(what, from, to)| Span { from, to, who: occupant(what) });
        VcpuTimelines {
            timelines: vcpus.iter().enumerate().map(timeline).collect(),
            cpus: vec![Occupancy::new(CpuId(0), spans.collect())],
            ..VcpuTimelines::default()
        }
    }

    /// `a`..`d`: guest on vCPU row 0..3; `v`: VMM of `a`; `u`: a vCPU not known yet; `x`: one that is in no table.
    fn sample(what: char) -> Sample {
        let guest = |row| VcpuSample {
            vcpu: VcpuId(row),
            ip: GuestVirt(0),
            cr3: Some(Cr3::new(0)),
            fs_base: GuestVirt(0),
            cpl: 3,
            kernel_stack: None,
            task: None,
            asid: 1,
            exit_reason: 0,
            exit_info: 0,
            waits: None,
            kicked: false,
        };
        Sample {
            time: HostNs(0),
            cpu: CpuId(0),
            pid: Pid(1),
            tid: Tid(1),
            host_ip: HostVirt(0),
            host_mode: HostMode::Kernel,
            stack: None,
            vcpu: match what {
                'a'..='d' => VcpuState::Guest(guest(what as u32 - 'a' as u32)),
                'x' => VcpuState::Guest(guest(9)),
                'v' => VcpuState::Vmm(guest(0)),
                'u' => VcpuState::Unknown,
                other => panic!("{other}"),
            },
        }
    }

    /// Samples seen, the axis, and what is unseen of each vCPU of VM `one`: `number side count, ...`.
    fn check_on(axis: &VcpuTimelines, seen: &str, expected: &[&str]) {
        let length = axis.timelines.first().map_or(10 * PERIOD, VcpuTimeline::length_ns);
        check_in(&tables(), length, axis, seen, expected);
    }

    fn check_in(tables: &Tables, length: u64, axis: &VcpuTimelines, seen: &str, expected: &[&str]) {
        let header = header(PERIOD, length);
        let selection = Selection::new(tables, View::Guest, Some("one"), None, None).unwrap();
        let mut time = GuestTime::for_selection(tables, &header, &selection).unwrap();
        seen.chars().for_each(|what| time.note_seen(&sample(what)));
        let words = |(side, n): (Side, u64)| format!("{} {n}", side.line().unwrap());
        let unseen: Vec<String> = time
            .unseen(&selection, axis)
            .into_iter()
            .map(|(number, unseen)| {
                let unseen: Vec<String> =
                    unseen.into_iter().filter(|(_, n)| 0 < *n).map(words).collect();
                format!("{number}: {}", unseen.join(", "))
            })
            .collect();
        assert_eq!(unseen, expected, "{seen}");
    }

    const HALTED: &str = "HHHHHHHHHHHHHHHHHHHH";
    const ALL_HALTED: &str = "1: [ idle ] (halt exit) 10";

    fn check(timeline: &str, seen: &str, expected: &str) {
        check_on(&axis(&[timeline, HALTED], ""), seen, &[expected, ALL_HALTED]);
    }

    #[test]
    fn what_was_not_seen_is_shared_out_over_what_happened() {
        check("GGkkGGGGGGGGGGGGGGGG", "aaaaaaaaaa", "0: ");
        check("GGGGGGHHHHHHHHPPPPGG", "aaaa", "0: [ idle ] (halt exit) 4, [ steal ] (outside) 2");
        let all = "0: [ idle ] (halt exit) 1, [ idle ] (halt polling) 2, [ steal ] (in VMM) 2, \
                   [ throttled ] (CPU quota) 1, [ unknown ] (no evidence) 1";
        check("VVVVWWGGppppHHTTGG??", "aaa", all);
    }

    #[test]
    fn guest_time_with_too_few_samples_was_not_sampled() {
        let expected = "0: [ idle ] (halt exit) 4, [ steal ] (outside) 2, [not sampled] 1";
        check("GGGGGGHHHHHHHHPPPPGG", "aaa", expected);
        check("GG..GGHHHHHHHHPPPPGG", "aaa", expected);
        check("GGGGGGGGGGGGGGGGGGGG", "", "0: [not sampled] 10");
        // A sample stands for a period, however short the stretch that it hit.
        check("G...HHHHHHHHHHHHHHHH", "aa", "0: [ idle ] (halt exit) 8");
    }

    #[test]
    fn more_samples_than_time_leave_less_to_share_out() {
        check("GGHHHHHHHHPPPPPPPPPP", "aaaaaa", "0: [ idle ] (halt exit) 2, [ steal ] (outside) 2");
        check("GGHHHHHHHHHHHHHHHHHH", "aaaaaaaaaaaa", "0: ");
    }

    #[test]
    fn samples_in_the_vmm_are_not_the_guests() {
        check("VVVVVVVVVVVVVVVVVVVV", "vvv", "0: [ steal ] (in VMM) 10");
    }

    #[test]
    fn steal_by_the_vms_own_vcpus_names_them() {
        let check = |vcpus: [&str; 2], cpu, seen, expected: [&str; 2]| {
            check_on(&axis(&vcpus, cpu), seen, &expected);
        };
        check(
            ["GGGGGGGGGGPPPPPPPPPP", "PPPPPPPPPPGGGGGGGGGG"],
            "aaaaaaaaaabbbbbbbbbb",
            "aaaaabbbbb",
            ["0: [ steal ] (on vcpu1) 5", "1: [ steal ] (on vcpu0) 5"],
        );
        // Another VM's vCPU, a thread, none (it was about to get the CPU), and what no sample tells.
        check(
            ["GGPPPPPPPPPPPPPPPPPP", HALTED],
            "aaccccqqqqiibbbb",
            "a",
            ["0: [ steal ] (outside) 7, [ steal ] (on vcpu1) 2", ALL_HALTED],
        );
    }

    #[test]
    fn a_vcpu_plugged_in_again_is_one() {
        let twice = ["GGGGHHHHHH??????????", HALTED, "", "??????????GGHHHHHHHH"];
        check_on(&axis(&twice, ""), "aad", &["0: [ idle ] (halt exit) 7", ALL_HALTED]);
    }

    #[test]
    fn a_vcpu_is_expected_for_as_long_as_it_is_there() {
        let mut tables = tables();
        tables.vcpus[0].ended = Some(HostNs(5 * PERIOD));
        tables.vcpus[3].started = Some(HostNs(7 * PERIOD));
        let check = |axis: &VcpuTimelines, seen, expected: &str| {
            check_in(&tables, 10 * PERIOD, axis, seen, &[expected, ALL_HALTED]);
        };
        let twice = axis(&["GGGGHHHHHH", HALTED, "", "GGHHHH"], "");
        check(&twice, "aad", "0: [ idle ] (halt exit) 5");
        check(&twice, "aadu", "0: [ idle ] (halt exit) 4");
    }

    #[test]
    fn vcpus_not_known_yet_fill_up_what_is_missing() {
        check("????????????GGGGGGGG", "uuuuaaaa", "0: [ unknown ] (no evidence) 2");
        let nothing = VcpuTimelines::default();
        check_on(
            &nothing,
            "ux",
            &["0: [ unknown ] (no evidence) 8", "1: [ unknown ] (no evidence) 10"],
        );
        check_on(&nothing, "uuuuuuuuuuuua", &["0: ", "1: [ unknown ] (no evidence) 7"]);
    }
}
