//! When CPU quotas held back the queues that vCPUs wait in.

use std::collections::BTreeMap;

use model::{CpuId, Tables, TimelineState, VcpuId, VmId};
use rustc_hash::FxHashMap;

use super::track::{Track, What};

/// Quotas of a vCPU that are looked at: control groups are not nested deeper.
const MAX_QUOTAS: usize = 16;

/// Times of throttling in one wait that are distinguished. Many vCPUs may wait as long as the recording.
const MANY: usize = 256;

/// All queues that were throttled, by quota and CPU.
#[derive(Debug, Default)]
pub(super) struct Queues {
    throttled: FxHashMap<(u32, CpuId), Vec<Throttled>>,
    quotas: Vec<Vec<Quota>>,
}

/// A quota of a vCPU, and between which instants it holds the vCPU back.
#[derive(Debug, Clone, Copy)]
struct Quota {
    number: u32,
    /// Its queues are known from then on.
    since: u64,
    until: u64,
}

/// A time of throttling. Those of a queue are in time order, and apart.
#[derive(Debug, Clone, Copy)]
struct Throttled {
    from: u64,
    to: u64,
    /// How long the queue was throttled up to its end.
    sum_ns: u64,
}

/// The queues that one vCPU may wait in.
#[derive(Debug, Clone, Copy)]
pub(super) struct VcpuQueues<'q> {
    queues: &'q Queues,
    quotas: &'q [Quota],
}

impl Queues {
    pub(super) fn new(tables: &Tables) -> Self {
        let mut of_vm = BTreeMap::<(VmId, Option<VcpuId>), Vec<Quota>>::new();
        // Those that hold now first: a quota may be set anew again and again.
        let of = |is_now| {
            let members = tables.quota_members.iter();
            members.filter(move |member| member.until.is_none() == is_now)
        };
        for member in of(true).chain(of(false)) {
            let quotas = of_vm.entry((member.vm, member.vcpu)).or_default();
            if quotas.len() < MAX_QUOTAS {
                let until = member.until.map_or(u64::MAX, |until| until.0);
                quotas.push(Quota { number: member.quota, since: member.since.0, until });
            }
        }
        let quotas = tables.vcpus.iter().enumerate().map(|(row, vcpu)| {
            let of = |vcpu| of_vm.get(&vcpu).into_iter().flatten();
            let own = of((vcpu.vm, Some(VcpuId::from_index(row))));
            own.chain(of((vcpu.vm, None))).take(MAX_QUOTAS).copied().collect()
        });
        let quotas = if of_vm.is_empty() { Vec::new() } else { quotas.collect() };
        let mut throttled = FxHashMap::<(u32, CpuId), Vec<Throttled>>::default();
        for row in &tables.throttled_queues {
            let times = throttled.entry((row.quota, row.cpu)).or_default();
            times.push(Throttled { from: row.from.0, to: row.to.0, sum_ns: 0 });
        }
        throttled.values_mut().for_each(put_in_order);
        Self { throttled, quotas }
    }

    pub(super) fn of(&self, vcpu: VcpuId) -> VcpuQueues<'_> {
        let quotas = self.quotas.get(vcpu.index()).map_or(&[][..], |quotas| &quotas[..]);
        VcpuQueues { queues: self, quotas }
    }
}

fn put_in_order(times: &mut Vec<Throttled>) {
    times.sort_unstable_by_key(|time| (time.from, time.to));
    let (mut at, mut sum_ns) = (0, 0);
    for time in times.iter_mut() {
        time.from = time.from.max(at);
        time.to = time.to.max(time.from);
        at = time.to;
        sum_ns += time.to - time.from;
        time.sum_ns = sum_ns;
    }
    times.retain(|time| time.from < time.to);
}

impl VcpuQueues<'_> {
    /// When a CPU's queue for this vCPU was throttled between two instants: in time order, and apart.
    pub(super) fn throttled(&self, cpu: CpuId, from: u64, to: u64) -> Vec<(u64, u64)> {
        let mut times = Vec::new();
        for quota in self.quotas {
            let key = (quota.number, cpu);
            let all = self.queues.throttled.get(&key).map_or(&[][..], |all| &all[..]);
            let (from, to) = (from.max(quota.since), to.min(quota.until));
            let first = all.partition_point(|time| time.to <= from);
            let end = all.partition_point(|time| time.from < to);
            let within = all.get(first..end).unwrap_or_default();
            let chunks = within.chunks(within.len().div_ceil(MANY).max(1));
            times.extend(chunks.filter_map(|chunk| one_of(chunk, from, to)));
        }
        if 1 < self.quotas.len() {
            merge(&mut times);
        }
        times
    }

    /// Since when all its quotas are known; `None`: the vCPU has none that is.
    fn known_since(&self) -> Option<u64> {
        self.quotas.iter().map(|quota| quota.since).max()
    }

    /// It waits in a CPU's queue until `to`; `state` says for what where queues are not known.
    pub(super) fn push_queued(&self, track: &mut Track, to: u64, state: TimelineState, cpu: CpuId) {
        let Some(since) = self.known_since() else {
            return track.push_until(to, What::Off(state), Some(cpu));
        };
        let to = to.min(track.to);
        let queued = |track: &mut Track, to: u64| {
            track.push_until(since.min(to), What::Off(state), Some(cpu));
            track.push_until(to, What::Off(TimelineState::StealOutside), Some(cpu));
        };
        for (from, until) in self.throttled(cpu, track.at(), to) {
            queued(track, from);
            track.push_until(until, What::Off(TimelineState::Throttled), Some(cpu));
        }
        queued(track, to);
    }
}

/// Neighbouring times as one of the same length in all, cut at both ends.
fn one_of(times: &[Throttled], from: u64, to: u64) -> Option<(u64, u64)> {
    let [first, ..] = times else { return None };
    let last = times.last().unwrap_or(first);
    let before = first.sum_ns - (first.to - first.from);
    let length = last.sum_ns - before;
    let begin = first.from.max(from);
    let cut = (begin - first.from) + last.to.saturating_sub(to);
    let end = begin + length.saturating_sub(cut);
    (begin < end).then_some((begin, end))
}

fn merge(times: &mut Vec<(u64, u64)>) {
    times.sort_unstable();
    times.dedup_by(|next, last| {
        let touch = next.0 <= last.1;
        if touch {
            last.1 = last.1.max(next.1);
        }
        touch
    });
}

/// How long times and a stretch have in common.
pub(super) fn overlap(times: &[(u64, u64)], from: u64, to: u64) -> u64 {
    let common = |(begin, end): &(u64, u64)| (*end).min(to).saturating_sub((*begin).max(from));
    times.iter().map(common).sum()
}

#[cfg(test)]
mod test {
    use model::{HostNs, Pid, QuotaMember, ThrottledQueue, Tid, Vcpu};

    use super::*;

    /// Of a VM with two vCPUs: quotas of the VM, and of its vCPU 1.
    fn tables(of_vm: &[u32], of_vcpu_1: &[u32], throttled: &[(u32, u32, u64, u64)]) -> Tables {
        let vcpu =
            |number| Vcpu { vm: VmId(0), number, tid: Tid(number), started: None, ended: None };
        let vm = model::Vm {
            name: "a".into(),
            pid: Pid(1),
            started: None,
            ended: None,
            labels: model::VmLabels::default(),
            guest: model::Guest::Unmapped { reason: String::new() },
        };
        let member = |vcpu| {
            move |quota: &u32| {
                let (vm, since) = (VmId(0), HostNs(10));
                QuotaMember { quota: *quota, vm, vcpu, since, until: None }
            }
        };
        let of_vm = of_vm.iter().map(member(None));
        let row = |(quota, cpu, from, to): &(u32, u32, u64, u64)| ThrottledQueue {
            quota: *quota,
            cpu: CpuId(*cpu),
            from: HostNs(*from),
            to: HostNs(*to),
        };
        Tables {
            vms: vec![vm],
            vcpus: vec![vcpu(0), vcpu(1)],
            quota_members: of_vm.chain(of_vcpu_1.iter().map(member(Some(VcpuId(1))))).collect(),
            throttled_queues: throttled.iter().map(row).collect(),
            ..Tables::default()
        }
    }

    #[test]
    fn queues_of_a_vcpus_quotas_on_a_cpu() {
        let throttled =
            [(0, 0, 20, 30), (0, 0, 50, 60), (0, 1, 20, 90), (1, 0, 25, 40), (2, 0, 0, 99)];
        let tables = tables(&[0], &[1], &throttled);
        let queues = Queues::new(&tables);
        let check = |vcpu, cpu, from, to, expected: &[(u64, u64)]| {
            let found = queues.of(VcpuId(vcpu)).throttled(CpuId(cpu), from, to);
            assert_eq!(found, expected, "vcpu{vcpu} on cpu{cpu}, {from}..{to}");
        };
        check(0, 0, 0, 100, &[(20, 30), (50, 60)]);
        check(0, 0, 22, 55, &[(22, 30), (50, 55)]);
        check(0, 0, 30, 50, &[]);
        check(0, 1, 0, 50, &[(20, 50)]);
        check(1, 0, 0, 100, &[(20, 40), (50, 60)]);
        check(0, 2, 0, 100, &[]);
    }

    /// More than are distinguished: few stretches, of the same total.
    #[test]
    fn many_times_are_taken_together() {
        let throttled: Vec<_> = (0..10_000).map(|n| (0, 0, 100 * n + 20, 100 * n + 50)).collect();
        let tables = tables(&[0], &[], &throttled);
        let queues = Queues::new(&tables);
        let found = queues.of(VcpuId(0)).throttled(CpuId(0), 30, 999_940);
        assert!(found.len() <= MANY, "{}", found.len());
        assert!(found.windows(2).all(|pair| pair[0].1 <= pair[1].0));
        assert_eq!(overlap(&found, 0, u64::MAX), 10_000 * 30 - 20);
    }

    #[test]
    fn a_wait_is_throttled_while_its_queue_is() {
        let check = |of_vm: &[u32], state, expected: &[(u64, TimelineState)]| {
            let tables = tables(of_vm, &[], &[(0, 0, 20, 30), (0, 0, 50, 60)]);
            let queues = Queues::new(&tables);
            let mut track = Track::new(VcpuId(0), HostNs(0), HostNs(70));
            queues.of(VcpuId(0)).push_queued(&mut track, 55, state, CpuId(0));
            let stretches = track.stretches.iter().map(|stretch| (stretch.to, stretch.what));
            let expected = expected.iter().map(|(to, state)| (*to, What::Off(*state)));
            assert_eq!(stretches.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
        };
        use TimelineState::{StealOutside, Throttled};
        check(&[], Throttled, &[(55, Throttled)]);
        // Before 10 it is not known.
        let known = [(20, StealOutside), (30, Throttled), (50, StealOutside), (55, Throttled)];
        check(&[0], StealOutside, &known);
        check(&[0], Throttled, &[&[(10, Throttled)], &known[..]].concat());
    }

    /// A quota of its slice since 10, one of its own since 40; the first is lifted at 55.
    #[test]
    fn a_quota_counts_from_when_it_is_known_until_it_is_lifted() {
        let throttled = [(0, 0, 20, 30), (0, 0, 50, 60), (1, 0, 5, 42), (1, 0, 65, 70)];
        let mut tables = tables(&[0], &[], &throttled);
        let first = &mut tables.quota_members[0];
        first.until = Some(HostNs(55));
        let own = QuotaMember { quota: 1, since: HostNs(40), until: None, ..*first };
        tables.quota_members.push(own);
        let queues = Queues::new(&tables);
        let mut track = Track::new(VcpuId(0), HostNs(0), HostNs(90));
        use TimelineState::{StealOutside, Throttled};
        queues.of(VcpuId(0)).push_queued(&mut track, 80, StealOutside, CpuId(0));
        let stretches = track.stretches.iter().map(|stretch| (stretch.to, stretch.what));
        let expected = [
            (20, StealOutside),
            (30, Throttled),
            (40, StealOutside),
            (42, Throttled),
            (50, StealOutside),
            (55, Throttled),
            (65, StealOutside),
            (70, Throttled),
            (80, StealOutside),
        ];
        let expected = expected.map(|(to, state)| (to, What::Off(state)));
        assert_eq!(stretches.collect::<Vec<_>>(), expected);
    }
}
