//! How long CPU quotas have held VMs back: by the queues that they throttled, and where those can't be watched by a counter
//! that is read now and then.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use host::quotas::{self, Snapshot};
use model::{HostNs, QuotaMember, Tables, ThrottledQueue, Throttling, VmId};

use crate::sources::QuotaSource;
use crate::throttled_queues::{Limited, QueueLog};
use crate::vm_table::{RowRemap, VmTable};

/// Between two looks for quotas that are new. A look costs as much as thousands of samples.
const LOOK_EVERY_NS: u64 = 30_000_000_000;
/// Between two checks whether what the last look found still holds: a fraction of a look.
const CHECK_EVERY_NS: u64 = 1_000_000_000;

/// The VMs' quotas and what they said so far.
#[derive(Debug, Default)]
pub(crate) struct ThrottlingLog {
    queues: QueueLog,
    /// Of VMs whose queues can't be watched.
    quotas: BTreeMap<VmId, Quota>,
    readings: Vec<Throttling>,
    /// What the last look found.
    snapshot: Snapshot,
    /// Not before this time new quotas are looked for, unless the snapshot is outdated.
    next_look: HostNs,
    next_check: HostNs,
}

/// The quotas over one VM.
#[derive(Debug, Default)]
struct Quota {
    /// `cpu.stat` files and what each said last.
    files: BTreeMap<PathBuf, u64>,
    total_ns: u64,
    /// What the last reading that was kept said.
    written_ns: Option<u64>,
}

/// What quotas did in a window.
#[derive(Debug, Clone, Default)]
pub struct Quotas {
    throttling: Vec<Throttling>,
    members: Vec<QuotaMember>,
    queues: Vec<ThrottledQueue>,
}

impl Quotas {
    /// Puts it in the place of what the tables had.
    pub(crate) fn into_tables(self, tables: &mut Tables) {
        tables.throttling = self.throttling;
        tables.quota_members = self.members;
        tables.throttled_queues = self.queues;
    }
}

/// What the log needs to read the quotas of the VMs that run.
#[derive(Debug)]
pub(crate) struct Reading<'a> {
    pub(crate) proc: &'a Path,
    pub(crate) cgroups: &'a Path,
    pub(crate) vms: &'a VmTable,
    pub(crate) sources: &'a mut dyn QuotaSource,
    pub(crate) cpus: &'a [u32],
    pub(crate) now: HostNs,
}

impl ThrottlingLog {
    /// Looks for quotas at the next reading whenever the last look was: a VM is new.
    pub(crate) fn look_soon(&mut self) {
        self.next_look = HostNs(0);
    }

    /// Whether any VM has a quota, so that readings are worth while.
    pub(crate) fn has_quotas(&self) -> bool {
        !self.quotas.is_empty() || !self.queues.is_empty()
    }

    /// Reads the quotas of the VMs that run.
    pub(crate) fn read(&mut self, reading: &mut Reading<'_>) {
        let now = reading.now;
        let watched = if self.is_look_due(reading) { self.look(reading) } else { Vec::new() };
        for (vm, quota) in &mut self.quotas {
            quota.read();
            if quota.written_ns != Some(quota.total_ns) {
                quota.written_ns = Some(quota.total_ns);
                let throttled_ns = quota.total_ns;
                self.readings.push(Throttling { vm: *vm, time: now, throttled_ns });
            }
        }
        // Up to now the counter said it, from now on their queues do.
        self.quotas.retain(|vm, _| !watched.contains(vm));
    }

    /// Takes in when queues were throttled.
    pub(crate) fn drain(&mut self, sources: &dyn QuotaSource, cpus: &[u32]) {
        self.queues.drain(sources, cpus);
    }

    /// What quotas did in a window that ends now.
    pub(crate) fn take(
        &mut self,
        sources: &dyn QuotaSource,
        cpus: &[u32],
        window: (HostNs, HostNs),
    ) -> Quotas {
        let (members, queues) = self.queues.take_rows(sources, cpus, window);
        Quotas { throttling: std::mem::take(&mut self.readings), members, queues }
    }

    /// How many times of throttling were left out, since the last call.
    pub(crate) fn take_left_out(&mut self) -> u64 {
        self.queues.take_left_out()
    }

    /// Says again what the quotas said last: what comes afterwards is read as an increase over it.
    pub(crate) fn restate(&mut self, now: HostNs) {
        for (vm, quota) in &self.quotas {
            let throttled_ns = quota.total_ns;
            self.readings.push(Throttling { vm: *vm, time: now, throttled_ns });
        }
    }

    /// VMs have other rows from now on, or none.
    pub(crate) fn remap(&mut self, moved: &RowRemap) {
        self.queues.remap(moved);
        let quotas = std::mem::take(&mut self.quotas).into_iter();
        self.quotas = quotas.filter_map(|(vm, quota)| Some((moved.vm(vm)?, quota))).collect();
        self.readings
            .retain_mut(|reading| moved.vm(reading.vm).map(|place| reading.vm = place).is_some());
    }

    fn is_look_due(&mut self, reading: &Reading<'_>) -> bool {
        if self.next_look <= reading.now {
            return true;
        }
        if reading.now < self.next_check {
            return false;
        }
        self.next_check = HostNs(reading.now.0 + CHECK_EVERY_NS);
        self.snapshot.is_outdated(reading.proc)
    }

    /// Looks for quotas; the VMs whose queues are watched.
    fn look(&mut self, reading: &mut Reading<'_>) -> Vec<VmId> {
        self.next_look = HostNs(reading.now.0 + LOOK_EVERY_NS);
        self.next_check = HostNs(reading.now.0 + CHECK_EVERY_NS);
        self.snapshot = Snapshot::default();
        let (mut watched, mut members) = (Vec::new(), Vec::new());
        for (vm, pid, vcpus) in reading.vms.running() {
            let tids: Vec<u32> = vcpus.keys().copied().collect();
            let groups = self.snapshot.find(reading.proc, reading.cgroups, pid, &tids);
            if groups.is_empty() {
                continue;
            }
            let limited = Limited { vm, vcpus: &vcpus, groups: &groups };
            match self.queues.watch(reading.sources, &limited, reading.now) {
                Some(of_vm) => {
                    watched.push(vm);
                    members.extend(of_vm);
                }
                None => self.add(vm, groups.keys().map(|group| quotas::stat_file(group))),
            }
        }
        self.queues.set_members(reading.sources, reading.cpus, members, reading.now);
        watched
    }

    /// A group that is new to a VM known before counts from now on; its history was not this VM's.
    fn add(&mut self, vm: VmId, files: impl IntoIterator<Item = PathBuf>) {
        let is_known = self.quotas.contains_key(&vm);
        for file in files {
            let quota = self.quotas.entry(vm).or_default();
            let said = if is_known { quotas::throttled_ns(&file).unwrap_or(0) } else { 0 };
            quota.files.entry(file).or_insert(said);
        }
    }
}

impl Quota {
    /// A group that is gone adds nothing more.
    fn read(&mut self) {
        for (file, last) in &mut self.files {
            let said = quotas::throttled_ns(file).unwrap_or(*last);
            self.total_ns += said.saturating_sub(*last);
            *last = said;
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    struct Host {
        root: tempfile::TempDir,
        log: ThrottlingLog,
        vms: VmTable,
        sources: NoQueues,
    }

    /// A kernel whose queues can't be watched.
    #[derive(Debug)]
    struct NoQueues;

    impl QuotaSource for NoQueues {}

    impl Host {
        /// Writes files and reads at a time (s): these are then all readings (s, µs).
        fn check(&mut self, time: u64, files: &[(&str, &str)], expected: &[(u64, u64)]) {
            for (name, text) in files {
                let path = self.root.path().join(name);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            let (proc, cgroups) = (self.root.path().join("proc"), self.root.path().join("cgroup"));
            self.log.read(&mut Reading {
                proc: &proc,
                cgroups: &cgroups,
                vms: &self.vms,
                sources: &mut self.sources,
                cpus: &[0],
                now: HostNs(time * 1_000_000_000),
            });
            let readings = self.log.readings.iter();
            let got: Vec<_> =
                readings.map(|r| (r.time.0 / 1_000_000_000, r.throttled_ns / 1000)).collect();
            assert_eq!(got, expected, "at {time} s");
        }
    }

    #[test]
    fn readings_are_kept_when_they_change() {
        let mut host = Host {
            root: tempfile::tempdir().unwrap(),
            log: ThrottlingLog::default(),
            vms: VmTable::with_one_vcpu(50, 51),
            sources: NoQueues,
        };
        host.check(1, &[("proc/50/task/51/cgroup", "0::/a\n"), ("cgroup/a/cpu.max", "max 1")], &[]);
        let quota = ("cgroup/a/cpu.max", "5 10");
        // A new quota is found at once, a thread in a group of its own within 30 s.
        host.check(2, &[quota, ("cgroup/a/cpu.stat", "throttled_usec 7")], &[(2, 7)]);
        host.check(31, &[], &[(2, 7)]);
        host.check(32, &[], &[(2, 7)]);
        host.check(33, &[("cgroup/a/cpu.stat", "throttled_usec 9")], &[(2, 7), (33, 9)]);
        assert!(host.log.has_quotas());
        // A quota above it that was set later has a history of its own.
        let above = [("cgroup/cpu.max", "5 10"), ("cgroup/cpu.stat", "throttled_usec 1000")];
        host.log.look_soon();
        host.check(40, &above, &[(2, 7), (33, 9)]);
        let more = [("cgroup/cpu.stat", "throttled_usec 1001")];
        host.check(41, &more, &[(2, 7), (33, 9), (41, 10)]);
        std::fs::remove_dir_all(host.root.path().join("cgroup")).unwrap();
        host.check(80, &[], &[(2, 7), (33, 9), (41, 10)]);
    }
}
