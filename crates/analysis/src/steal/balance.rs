//! What a vCPU's time went to.

use std::collections::BTreeMap;

use model::{HostNs, TimeAccount, TimelineState, VcpuId, Vendor, VmId};

use super::{Thief, ThiefNames, TimelineInput, Window};
use crate::exit_reason;
use crate::share::shared_out;
use crate::vcpu_timeline::{Segment, VcpuTimeline, VcpuTimelines, thieves};

/// Time, or samples, by account. They add up to the time looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Accounts {
    ns: [u64; TimeAccount::ALL.len()],
}

/// A vCPU's time, or the sum of several's.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TimeBreakdown {
    pub accounts: Accounts,
    /// Type 1 steal by thief; adds up to `TimeAccount::StealOutside`.
    pub thieves: BTreeMap<Thief, u64>,
    /// Type 2 by exit reason (`None`: not known); adds up to `TimeAccount::StealVmm`.
    pub reasons: BTreeMap<Option<u32>, VmmTime>,
}

/// Time in the VMM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VmmTime {
    /// On a CPU, in KVM or in the VMM.
    pub on_cpu_ns: u64,
    /// Asleep.
    pub waiting_ns: u64,
}

/// The balance of every vCPU that is on the axis.
#[must_use]
pub fn balances(
    evidence: &TimelineInput<'_>,
    names: &ThiefNames<'_>,
) -> BTreeMap<VcpuId, TimeBreakdown> {
    let timelines = evidence.axis.timelines.iter();
    timelines
        .map(|timeline| {
            (timeline.vcpu, TimeBreakdown::from_timeline(evidence.axis, timeline, names))
        })
        .collect()
}

/// Parts of a total in hundredths of a per cent of the sum: they add up to 10,000, by largest remainder.
#[must_use]
pub fn hundredths(parts: &[u64]) -> Vec<u64> {
    let shares = shared_out(10_000, &parts.iter().copied().enumerate().collect());
    if shares.is_empty() { vec![0; parts.len()] } else { shares.into_values().collect() }
}

impl TimeBreakdown {
    fn from_timeline(
        axis: &VcpuTimelines,
        timeline: &VcpuTimeline,
        names: &ThiefNames<'_>,
    ) -> Self {
        let mut balance = Self::default();
        let all = Window { from: timeline.from, to: timeline.to };
        for segment in timeline.segments.iter().filter_map(|segment| all.clip(segment)) {
            balance.add_segment(axis, timeline.vcpu, &segment, segment.length_ns(), names);
        }
        debug_assert_eq!(
            balance.accounts.total(),
            timeline.length_ns(),
            "segments fill a timeline"
        );
        balance
    }

    /// Adds `ns` of a segment: all of it, or a share.
    fn add_segment(
        &mut self,
        axis: &VcpuTimelines,
        vcpu: VcpuId,
        segment: &Segment,
        ns: u64,
        names: &ThiefNames<'_>,
    ) {
        self.accounts.add(segment.state.account(), ns);
        let mut thieves = BTreeMap::new();
        add_thieves(&mut thieves, axis, vcpu, segment, names);
        for (thief, ns) in shared_out(ns, &thieves) {
            *self.thieves.entry(thief).or_default() += ns;
        }
        if let Some(reason) = vmm_reason(segment.state) {
            self.reasons.entry(reason).or_default().add(segment.state, ns);
        }
    }

    /// What a VM did between two instants; adds up to the time between them. Each instant is shared equally by the VM's
    /// vCPUs that are not halted: which of them the guest needed is not known, but it was none that had nothing to do.
    #[must_use]
    pub fn of_vm(
        evidence: &TimelineInput<'_>,
        names: &ThiefNames<'_>,
        vm: VmId,
        window: Window,
    ) -> Self {
        let mut balance = Self::default();
        let vcpus: Vec<(VcpuId, &[Segment])> = evidence
            .timelines(vm)
            .map(|timeline| (timeline.vcpu, window.segments(timeline)))
            .collect();
        let segments = vcpus.iter().flat_map(|(_, segments)| segments.iter());
        let mut edges: Vec<HostNs> =
            segments.flat_map(|segment| [segment.from, segment.to]).collect();
        edges.push(window.to);
        edges.sort_unstable();
        edges.dedup();
        let mut from = window.from;
        for to in edges.into_iter().filter(|to| window.from < *to && *to <= window.to) {
            balance.add_stretch(evidence.axis, &vcpus, Window { from, to }, names);
            from = to;
        }
        balance
    }

    /// A span during which no vCPU changes its state.
    fn add_stretch(
        &mut self,
        axis: &VcpuTimelines,
        vcpus: &[(VcpuId, &[Segment])],
        stretch: Window,
        names: &ThiefNames<'_>,
    ) {
        let now = |(vcpu, segments): &(VcpuId, &[Segment])| {
            let at = segments.partition_point(|segment| segment.to <= stretch.from);
            Some((*vcpu, stretch.clip(segments.get(at)?)?))
        };
        let mut now: Vec<(VcpuId, Segment)> = vcpus.iter().filter_map(now).collect();
        let is_idle = |(_, segment): &(VcpuId, Segment)| {
            matches!(segment.state.account(), TimeAccount::Halt | TimeAccount::HaltPolling)
        };
        if !now.iter().all(is_idle) {
            now.retain(|vcpu| !is_idle(vcpu));
        }
        let (length, n) = (stretch.to.since(stretch.from), now.len() as u64);
        if n == 0 {
            self.accounts.add(TimeAccount::Unknown, length);
        }
        for (number, (vcpu, segment)) in (0..n).zip(now) {
            let ns = length / n + u64::from(number < length % n);
            self.add_segment(axis, vcpu, &segment, ns, names);
        }
    }

    /// Adds another breakdown.
    pub fn add(&mut self, other: &Self) {
        for account in TimeAccount::ALL {
            self.accounts.add(account, other.accounts.get(account));
        }
        other.thieves.iter().for_each(|(who, ns)| *self.thieves.entry(*who).or_default() += ns);
        for (reason, time) in &other.reasons {
            let sum = self.reasons.entry(*reason).or_default();
            sum.on_cpu_ns += time.on_cpu_ns;
            sum.waiting_ns += time.waiting_ns;
        }
    }

    /// The part of type 2 that went to the host's interrupts.
    #[must_use]
    pub fn interrupts_ns(&self, vendor: Vendor) -> u64 {
        let is =
            |reason: &Option<u32>| reason.is_some_and(|r| exit_reason::is_interrupt(vendor, r));
        let interrupts = self.reasons.iter().filter(|(reason, _)| is(reason));
        interrupts.map(|(_, time)| time.total_ns()).sum()
    }
}

impl Accounts {
    /// The time of an account.
    #[must_use]
    pub fn get(&self, account: TimeAccount) -> u64 {
        self.ns[account as usize]
    }

    /// The time of all accounts.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.ns.iter().sum()
    }

    /// In the order of `TimeAccount::ALL`.
    #[must_use]
    pub fn all(&self) -> [u64; TimeAccount::ALL.len()] {
        self.ns
    }

    pub(crate) fn add(&mut self, account: TimeAccount, ns: u64) {
        self.ns[account as usize] += ns;
    }
}

impl VmmTime {
    /// On a CPU or not.
    #[must_use]
    pub fn total_ns(&self) -> u64 {
        self.on_cpu_ns + self.waiting_ns
    }

    pub(super) fn add(&mut self, state: TimelineState, ns: u64) {
        match state {
            TimelineState::StealVmmWaiting { .. } => self.waiting_ns += ns,
            _ => self.on_cpu_ns += ns,
        }
    }
}

/// The exit reason of a state that is type 2 steal.
pub(super) fn vmm_reason(state: TimelineState) -> Option<Option<u32>> {
    (state.account() == TimeAccount::StealVmm).then(|| state.exit_reason())
}

/// Adds the thieves of a type 1 segment; nothing for others.
pub(super) fn add_thieves(
    sum: &mut BTreeMap<Thief, u64>,
    axis: &VcpuTimelines,
    victim: VcpuId,
    segment: &Segment,
    names: &ThiefNames<'_>,
) {
    if segment.state != TimelineState::StealOutside {
        return;
    }
    for (occupant, ns) in thieves(axis, victim, segment) {
        *sum.entry(names.thief(occupant, segment.from)).or_default() += ns;
    }
}

#[cfg(test)]
mod test {
    use super::super::testing::{Drawn, MS};
    use super::*;

    /// `name ms` of everything that took time from the first vCPU.
    fn check(vcpu: &str, cpu: &str, accounts: [u64; 9], thieves: &[&str], reasons: &[&str]) {
        let drawn = Drawn::new(&[vcpu], cpu);
        let names = ThiefNames::new(&drawn.tables);
        let balance = balances(&drawn.evidence(), &names).remove(&VcpuId(0)).unwrap();
        assert_eq!(balance.accounts.all().map(|ns| ns / MS), accounts, "{vcpu}");
        assert_eq!(balance.accounts.total(), vcpu.len() as u64 * MS, "{vcpu}");
        let found =
            balance.thieves.iter().map(|(who, ns)| format!("{} {}", names.name(*who), ns / MS));
        assert_eq!(found.collect::<Vec<_>>(), thieves, "{vcpu} {cpu}");
        let found = balance.reasons.iter().map(|(reason, time)| {
            let name = reason.map_or("-".into(), |r| exit_reason::name(Vendor::Amd, r));
            format!("{name} {}+{}", time.on_cpu_ns / MS, time.waiting_ns / MS)
        });
        assert_eq!(found.collect::<Vec<_>>(), reasons, "{vcpu}");
        assert_eq!(balance.thieves.values().sum::<u64>(), accounts[3] * MS);
        let vmm: u64 = balance.reasons.values().map(VmmTime::total_ns).sum();
        assert_eq!(vmm, accounts[4] * MS);
    }

    #[test]
    fn time_adds_up() {
        check("fkf-~.1wtzz_?", "", [3, 1, 1, 1, 2, 1, 2, 1, 1], &["[unknown] 1"], &["io 1+1"]);
        check(
            "ff1123ww",
            "",
            [2, 0, 0, 0, 6, 0, 0, 0, 0],
            &[],
            &["external interrupt 1+0", "io 2+2", "msr 1+0"],
        );
    }

    #[test]
    fn thieves_by_name() {
        let check = |cpu: &str, thieves: &[&str]| {
            let n = cpu.len() as u64;
            let vcpu = ".".repeat(cpu.len());
            super::test::check(&vcpu, cpu, [0, 0, 0, n, 0, 0, 0, 0, 0], thieves, &[]);
        };
        check("22221", &["a vcpu1 1", "b vcpu0 4"]);
        check("qqv", &["a qemu IO iothread1 (1005) 2", "a vhost 1"]);
        check("ww", &["a vhost 2"]);
        check("ffv", &["a vhost 1", "vhost-1000 (400) 2"]);
        check("hhi", &["\"[idle]\" (401) 2", "[idle] 1"]);
        check("pps", &["postgres (300) 2", "[ksoftirqd/0] (14) 1"]);
        check("ui?", &["[unknown] (77) 1", "[idle] 1", "[unknown] 1"]);
    }

    #[test]
    fn interrupts_are_a_part_of_type_2() {
        let drawn = Drawn::new(&["f3311f"], "");
        let names = ThiefNames::new(&drawn.tables);
        let balance = balances(&drawn.evidence(), &names).remove(&VcpuId(0)).unwrap();
        assert_eq!(balance.interrupts_ns(Vendor::Amd), 2 * MS);
        assert_eq!(balance.accounts.get(TimeAccount::StealVmm), 4 * MS);
    }

    #[test]
    fn a_vm_is_the_sum_of_its_vcpus() {
        let drawn = Drawn::new(&["ff..", "..1f"], "1100");
        let names = ThiefNames::new(&drawn.tables);
        let mut sum = TimeBreakdown::default();
        balances(&drawn.evidence(), &names).values().for_each(|balance| sum.add(balance));
        assert_eq!(sum.accounts.all().map(|ns| ns / MS), [3, 0, 0, 4, 1, 0, 0, 0, 0]);
        assert_eq!(sum.thieves.values().sum::<u64>(), 4 * MS);
        assert_eq!(sum.reasons.values().map(|time| time.on_cpu_ns).sum::<u64>(), MS);
    }

    /// A line per vCPU of VM a: accounts of its time between two milliseconds in us, thieves and reasons.
    fn check_vm(vcpus: &[&str], cpu: &str, (from, to): (u64, u64), expected: &str) {
        let drawn = Drawn::new(vcpus, cpu);
        let names = ThiefNames::new(&drawn.tables);
        let window = Window { from: HostNs(from * MS), to: HostNs(to * MS) };
        let balance = TimeBreakdown::of_vm(&drawn.evidence(), &names, VmId(0), window);
        assert_eq!(balance.accounts.total(), (to - from) * MS);
        let accounts =
            TimeAccount::ALL.map(|account| (account.name(), balance.accounts.get(account)));
        let mut found: Vec<String> = accounts
            .iter()
            .filter(|(_, ns)| 0 < *ns)
            .map(|(name, ns)| format!("{name} {}", ns / 1000))
            .collect();
        let thieves = balance.thieves.iter();
        found.extend(thieves.map(|(who, ns)| format!("{} {}", names.name(*who), ns / 1000)));
        let reasons = balance.reasons.iter();
        found.extend(reasons.map(|(reason, time)| {
            format!("{reason:?} {}+{}", time.on_cpu_ns / 1000, time.waiting_ns / 1000)
        }));
        assert_eq!(found.join(", "), expected);
    }

    #[test]
    fn a_vms_instants_are_shared_by_its_vcpus_that_are_not_halted() {
        check_vm(
            &["ff.--"],
            "22222",
            (1, 5),
            "guest 1000, halt 2000, steal_outside 1000, b vcpu0 1000",
        );
        check_vm(
            &["f---", "--.-"],
            "2222",
            (0, 4),
            "guest 1000, halt 2000, steal_outside 1000, b vcpu0 1000",
        );
        check_vm(
            &["ff..", "kk11"],
            "2p2p",
            (1, 3),
            "guest 1000, steal_outside 500, steal_vmm 500, b vcpu0 500, Some(123) 500+0",
        );
        check_vm(&["~", "-"], "", (0, 1), "halt 500, halt_polling 500");
        check_vm(&["fff", "f"], "", (0, 5), "guest 3000, unknown 2000");
        check_vm(&[], "", (0, 1), "unknown 1000");
        check_vm(&["f"], "", (0, 0), "");
    }

    #[test]
    fn percents_add_up() {
        let check = |parts: &[u64], expected: &[u64]| assert_eq!(hundredths(parts), expected);
        check(&[1, 1, 1], &[3334, 3333, 3333]);
        check(&[2, 1, 0], &[6667, 3333, 0]);
        check(&[0, 0], &[0, 0]);
        check(&[u64::MAX, u64::MAX], &[5000, 5000]);
        check(&[1, 999_999], &[0, 10_000]);
    }
}
