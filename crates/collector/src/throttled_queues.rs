//! When CPU quotas throttled queues: what the kernel's records say, cut into windows.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use host::quotas;
use model::{HostNs, QuotaMember, ThrottledQueue, VcpuId, VmId};
use probes::{QuotaEvent, QuotaTracer};

use crate::sources::QuotaSource;
use crate::vm_table::RowRemap;

/// In a window; further ones are counted.
const MAX_ROWS: usize = 1 << 20;

/// The control groups that are watched, and what happened to their queues so far.
#[derive(Debug, Default)]
pub(crate) struct QueueLog {
    /// By the kernel's id.
    groups: BTreeMap<u64, Watched>,
    members: Vec<QuotaMember>,
    /// Members that have ended in this window.
    ended: Vec<QuotaMember>,
    rows: Vec<ThrottledQueue>,
    /// Not kept in this window.
    left_out: u64,
    room: Vec<QuotaEvent>,
}

#[derive(Debug, Clone, Copy)]
struct Watched {
    number: u32,
    since: HostNs,
}

/// A VM whose vCPUs' threads are under quotas: its groups, and its vCPUs by thread.
#[derive(Debug)]
pub(crate) struct Limited<'a> {
    pub(crate) vm: VmId,
    pub(crate) vcpus: &'a BTreeMap<u32, VcpuId>,
    pub(crate) groups: &'a BTreeMap<PathBuf, BTreeSet<u32>>,
}

impl QueueLog {
    pub(crate) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Watches all groups of a VM; `None`: not all can be.
    pub(crate) fn watch(
        &mut self,
        sources: &mut dyn QuotaSource,
        limited: &Limited<'_>,
        now: HostNs,
    ) -> Option<Vec<QuotaMember>> {
        let mut members = Vec::new();
        for (group, tids) in limited.groups {
            let watched = self.watch_group(sources, quotas::id(group)?, now)?;
            let (quota, vm) = (watched.number, limited.vm);
            let member = |vcpu| QuotaMember { quota, vm, vcpu, since: now, until: None };
            if limited.vcpus.keys().all(|tid| tids.contains(tid)) {
                members.push(member(None));
            } else {
                let vcpus = tids.iter().filter_map(|tid| limited.vcpus.get(tid));
                members.extend(vcpus.map(|vcpu| member(Some(*vcpu))));
            }
        }
        for member in &mut members {
            let is_same =
                |known: &&QuotaMember| QuotaMember { since: member.since, ..**known } == *member;
            if let Some(known) = self.members.iter().find(is_same) {
                member.since = known.since;
            }
        }
        Some(members)
    }

    /// These are all members from now on; groups without any are forgotten.
    pub(crate) fn set_members(
        &mut self,
        sources: &dyn QuotaSource,
        cpus: &[u32],
        members: Vec<QuotaMember>,
        now: HostNs,
    ) {
        let before = std::mem::replace(&mut self.members, members);
        let stay: BTreeSet<_> = self.members.iter().collect();
        let ended = before.into_iter().filter(|member| !stay.contains(member));
        let room = MAX_ROWS.saturating_sub(self.ended.len());
        self.ended.extend(ended.take(room).map(|ended| QuotaMember { until: Some(now), ..ended }));
        let under_way = self.under_way(sources, cpus, now);
        self.drain(sources, cpus);
        let used: BTreeSet<u32> = self.members.iter().map(|member| member.quota).collect();
        self.groups.retain(|group, watched| {
            let stays = used.contains(&watched.number);
            if !stays {
                sources.forget_quota(*group);
            }
            stays
        });
        // The kernel's records won't tell when these end.
        self.rows.extend(under_way.into_iter().filter(|row| !used.contains(&row.quota)));
    }

    /// Takes in what the kernel has recorded.
    pub(crate) fn drain(&mut self, sources: &dyn QuotaSource, cpus: &[u32]) {
        let mut events = std::mem::take(&mut self.room);
        cpus.iter().for_each(|cpu| sources.drain_quotas(*cpu, &mut events));
        let since: BTreeMap<u32, HostNs> =
            self.groups.values().map(|watched| (watched.number, watched.since)).collect();
        for QuotaEvent { group, cpu, from, to } in events.drain(..) {
            // Those of a group that was forgotten have no member.
            let Some(from) = from.or_else(|| since.get(&group).copied()) else { continue };
            if self.rows.len() < MAX_ROWS {
                self.rows.push(ThrottledQueue { quota: group, cpu, from, to });
            } else {
                self.left_out += 1;
            }
        }
        self.room = events;
    }

    /// The rows of a window that ends now. What goes on after its end is the next one's, too.
    pub(crate) fn take_rows(
        &mut self,
        sources: &dyn QuotaSource,
        cpus: &[u32],
        (start, end): (HostNs, HostNs),
    ) -> (Vec<QuotaMember>, Vec<ThrottledQueue>) {
        // Before the records: one that ends meanwhile is then met twice, and not lost.
        let mut rows = self.under_way(sources, cpus, end);
        self.drain(sources, cpus);
        let key = |row: &ThrottledQueue| (row.quota, row.cpu, row.from);
        let ended: BTreeSet<_> = self.rows.iter().map(key).collect();
        rows.retain(|row| !ended.contains(&key(row)));
        rows.extend_from_slice(&self.rows);
        self.rows.retain(|row| end < row.to);
        for row in &mut rows {
            (row.from, row.to) = (row.from.max(start), row.to.min(end));
        }
        rows.retain(|row| row.from < row.to);
        rows.sort_unstable_by_key(|row| (row.quota, row.cpu, row.from));
        let mut members = std::mem::take(&mut self.ended);
        members.extend_from_slice(&self.members);
        (members, rows)
    }

    /// How many rows the last windows lack, since the last call.
    pub(crate) fn take_left_out(&mut self) -> u64 {
        std::mem::take(&mut self.left_out)
    }

    /// VMs and vCPUs have other rows from now on, or none.
    pub(crate) fn remap(&mut self, moved: &RowRemap) {
        let remap = |member: &mut QuotaMember| {
            let vcpu = member.vcpu.map(|vcpu| moved.vcpu(vcpu));
            let (Some(vm), false) = (moved.vm(member.vm), vcpu == Some(None)) else { return false };
            (member.vm, member.vcpu) = (vm, vcpu.flatten());
            true
        };
        self.members.retain_mut(remap);
        self.ended.retain_mut(remap);
    }

    fn watch_group(
        &mut self,
        sources: &mut dyn QuotaSource,
        group: u64,
        now: HostNs,
    ) -> Option<Watched> {
        if let Some(watched) = self.groups.get(&group) {
            return Some(*watched);
        }
        let used: BTreeSet<u32> = self.groups.values().map(|watched| watched.number).collect();
        let number = (0..QuotaTracer::MAX_GROUPS).find(|number| !used.contains(number))?;
        let watched = Watched { number, since: now };
        sources.watch_quota(group, number).then(|| {
            self.groups.insert(group, watched);
            watched
        })
    }

    /// Queues that are throttled now.
    fn under_way(
        &self,
        sources: &dyn QuotaSource,
        cpus: &[u32],
        end: HostNs,
    ) -> Vec<ThrottledQueue> {
        let numbers = self.groups.values().map(|watched| watched.number);
        let queues = numbers.flat_map(|quota| cpus.iter().map(move |cpu| (quota, *cpu)));
        let throttled = queues.filter_map(|(quota, cpu)| {
            let from = sources.throttled_since(quota, cpu)?;
            Some(ThrottledQueue { quota, cpu: model::CpuId(cpu), from, to: end })
        });
        throttled.collect()
    }
}

#[cfg(test)]
mod test {
    use std::cell::RefCell;

    use model::CpuId;

    use super::*;

    /// What the kernel's records say.
    #[derive(Debug, Default)]
    struct Records {
        watched: BTreeMap<u64, u32>,
        events: RefCell<Vec<QuotaEvent>>,
        /// By number and CPU.
        throttled: BTreeMap<(u32, u32), u64>,
    }

    impl QuotaSource for Records {
        fn watch_quota(&mut self, group: u64, number: u32) -> bool {
            self.watched.insert(group, number);
            true
        }

        fn drain_quotas(&self, cpu: u32, events: &mut Vec<QuotaEvent>) {
            if cpu == 0 {
                events.append(&mut self.events.borrow_mut());
            }
        }

        fn throttled_since(&self, number: u32, cpu: u32) -> Option<HostNs> {
            self.throttled.get(&(number, cpu)).map(|since| HostNs(*since))
        }
    }

    impl Records {
        fn ended(&self, cpu: u32, from: Option<u64>, to: u64) {
            let (from, to) = (from.map(HostNs), HostNs(to));
            self.events.borrow_mut().push(QuotaEvent { group: 0, cpu: CpuId(cpu), from, to });
        }
    }

    #[derive(Debug, Default)]
    struct Host {
        log: QueueLog,
        records: Records,
    }

    impl Host {
        /// A group that holds these threads of a VM with threads 51 and 52.
        fn watch(&mut self, tids: &[u32], now: u64) -> Vec<(u32, Option<u32>, u64)> {
            let folder = tempfile::tempdir().unwrap();
            let vcpus = BTreeMap::from([(51, VcpuId(3)), (52, VcpuId(4))]);
            let tids = tids.iter().copied().collect();
            let groups = BTreeMap::from([(folder.path().to_owned(), tids)]);
            let limited = Limited { vm: VmId(1), vcpus: &vcpus, groups: &groups };
            let members = self.log.watch(&mut self.records, &limited, HostNs(now)).unwrap();
            self.set(members.clone(), now);
            members.iter().map(|m| (m.quota, m.vcpu.map(|vcpu| vcpu.0), m.since.0)).collect()
        }

        fn set(&mut self, members: Vec<QuotaMember>, now: u64) {
            self.log.set_members(&self.records, &[0, 1], members, HostNs(now));
        }

        fn check(&mut self, start: u64, end: u64, expected: &[(u32, u64, u64)]) {
            let span = (HostNs(start), HostNs(end));
            let (_, rows) = self.log.take_rows(&self.records, &[0, 1], span);
            let rows: Vec<_> = rows.iter().map(|r| (r.cpu.0, r.from.0, r.to.0)).collect();
            assert_eq!(rows, expected, "{start}..{end}");
        }
    }

    #[test]
    fn a_quota_has_a_vm_or_some_of_its_vcpus() {
        let check = |tids: &[u32], expected: &[(u32, Option<u32>, u64)]| {
            assert_eq!(Host::default().watch(tids, 5), expected, "{tids:?}");
        };
        check(&[51, 52], &[(0, None, 5)]);
        check(&[52], &[(0, Some(4), 5)]);
    }

    /// What is lifted, or left, in a window has held the VM back before.
    #[test]
    fn members_that_end_stay_until_their_window_does() {
        let mut host = Host::default();
        host.watch(&[51, 52], 100);
        host.records.ended(0, Some(120), 130);
        host.records.throttled.insert((0, 0), 150);
        host.set(Vec::new(), 160);
        assert!(host.log.is_empty());
        let mut take = |start, end| {
            let span = (HostNs(start), HostNs(end));
            let (members, rows) = host.log.take_rows(&host.records, &[0, 1], span);
            let members = members.iter().map(|m| (m.quota, m.since.0, m.until.map(|it| it.0)));
            let rows = rows.iter().map(|row| (row.from.0, row.to.0));
            (members.collect::<Vec<_>>(), rows.collect::<Vec<_>>())
        };
        let expected = (vec![(0, 100, Some(160))], vec![(120, 130), (150, 160)]);
        assert_eq!(take(100, 200), expected);
        assert_eq!(take(200, 300), (vec![], vec![]));
    }

    #[test]
    fn windows_share_a_time_of_throttling_across_their_edge() {
        let mut host = Host::default();
        host.watch(&[51, 52], 100);
        // It began before the group was watched.
        host.records.ended(1, None, 130);
        host.records.ended(0, Some(150), 170);
        host.records.throttled.insert((0, 0), 190);
        host.check(100, 200, &[(0, 150, 170), (0, 190, 200), (1, 100, 130)]);
        // It ended after the edge, before the records were read.
        host.records.throttled.clear();
        host.records.ended(0, Some(190), 210);
        host.records.ended(0, Some(290), 310);
        host.check(200, 300, &[(0, 200, 210), (0, 290, 300)]);
        host.check(300, 400, &[(0, 300, 310)]);
        host.check(400, 500, &[]);
    }
}
