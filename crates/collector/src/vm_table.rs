//! Which VMs and vCPUs there are: rows are given once and never taken back.

use std::collections::HashMap;

use host::vms::VmProcess;
use model::{Guest, HostNs, Pid, Tid, Vcpu, VcpuId, Vm, VmId};
use probes::FoundVcpu;

/// The rows of the recording's `vms` and `vcpus` tables so far.
#[derive(Debug, Default)]
pub(crate) struct VmTable {
    pub(crate) vms: Vec<Vm>,
    pub(crate) vcpus: Vec<Vcpu>,
    /// What tells each VM from others for good, by row.
    pub(crate) identities: Vec<String>,
    /// By the VMM's process and the kernel's address of the VM.
    by_kvm: HashMap<(Pid, u64), VmId>,
    /// By thread: the row, and the kernel's address of the vCPU.
    watched: HashMap<Tid, (VcpuId, u64)>,
    /// By VM and number: when a vCPU was first met, which may be before it has a thread; `None`: with its VM.
    first_met: HashMap<(VmId, u32), Option<HostNs>>,
}

/// What is new since the last look.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    pub(crate) vms: Vec<(VmId, VmProcess)>,
    /// Threads whose samples are from now on those of this vCPU.
    pub(crate) watch: Vec<(Tid, FoundVcpu, VcpuId)>,
}

impl VmTable {
    /// Takes what the finder met. `started` is the time for VMs not seen before: `None` while the
    /// recording has not begun.
    pub(crate) fn update(
        &mut self,
        found: Vec<FoundVcpu>,
        started: Option<HostNs>,
        describe: impl Fn(Pid) -> VmProcess,
    ) -> Changes {
        let mut changes = Changes::default();
        for vcpu in found {
            let vm = match self.by_kvm.get(&(vcpu.pid, vcpu.kvm)) {
                Some(vm) => *vm,
                // Its vCPUs are met with it.
                None => {
                    let process = describe(vcpu.pid);
                    let vm = self.add_vm(&vcpu, &process.name, started);
                    self.identities.push(process.identity());
                    changes.vms.push((vm, process));
                    vm
                }
            };
            let is_new = changes.vms.iter().any(|(new, _)| *new == vm);
            let met = self.first_met.entry((vm, vcpu.number));
            met.or_insert(started.filter(|_| !is_new));
            // A vCPU that has not run yet has no thread; its first sample will make us look again.
            let Some(tid) = vcpu.tid else { continue };
            let Some(row) = self.row(vm, vcpu.number, tid, started) else { continue };
            let watch = (row, vcpu.vcpu);
            if self.watched.insert(tid, watch) != Some(watch) {
                changes.watch.push((tid, vcpu, row));
            }
        }
        changes
    }

    /// The row of a vCPU that the finder met again.
    pub(crate) fn row_of(&self, found: &FoundVcpu) -> Option<VcpuId> {
        let vm = *self.by_kvm.get(&(found.pid, found.kvm))?;
        let is_it =
            |vcpu: &Vcpu| vcpu.vm == vm && vcpu.number == found.number && vcpu.ended.is_none();
        self.vcpus.iter().rposition(is_it).map(VcpuId::from_index)
    }

    /// The VMs that run, with their processes and their vCPUs' threads.
    pub(crate) fn running(&self) -> impl Iterator<Item = (VmId, u32, Vec<u32>)> + '_ {
        let running = self.vms.iter().enumerate().filter(|(_, vm)| vm.ended.is_none());
        running.map(|(index, vm)| {
            let id = VmId::from_index(index);
            let there = self.vcpus.iter().filter(|vcpu| vcpu.vm == id && vcpu.ended.is_none());
            let tids = there.map(|vcpu| vcpu.tid.0);
            (id, vm.pid.0, tids.collect())
        })
    }

    /// Thread `tid` has ended; whether it was a vCPU's, which has ended with it.
    pub(crate) fn thread_ended(&mut self, tid: Tid, time: HostNs) -> bool {
        let Some((row, _)) = self.watched.remove(&tid) else { return false };
        self.vcpus[row.index()].ended = Some(time);
        true
    }

    /// The samples of thread `tid` are not those of its vCPU from now on.
    pub(crate) fn unwatch(&mut self, tid: Tid) {
        self.watched.remove(&tid);
    }

    /// Process `pid` has ended; the VMs that ended with it.
    pub(crate) fn process_ended(&mut self, pid: Pid, time: HostNs) -> Vec<String> {
        self.by_kvm.retain(|(vmm, _), _| *vmm != pid);
        let of_process = |vm: &&mut Vm| vm.pid == pid && vm.ended.is_none();
        let ended = self.vms.iter_mut().filter(of_process);
        ended
            .map(|vm| {
                vm.ended = Some(time);
                vm.name.clone()
            })
            .collect()
    }

    fn add_vm(&mut self, vcpu: &FoundVcpu, name: &str, started: Option<HostNs>) -> VmId {
        let id = VmId::from_index(self.vms.len());
        let taken = |name: &str| self.vms.iter().any(|vm| vm.name == name);
        let candidates = (0_u32..).map(|n| match n {
            0 => name.to_owned(),
            1 => format!("{name}-{}", vcpu.pid),
            n => format!("{name}-{}-{n}", vcpu.pid),
        });
        let mut free = candidates.skip_while(|name| taken(name));
        let name = free.next().expect("there are more numbers than VMs");
        self.vms.push(Vm {
            name,
            pid: vcpu.pid,
            started,
            ended: None,
            guest: Guest::Unmapped { reason: "it was not asked".to_owned() },
        });
        self.by_kvm.insert((vcpu.pid, vcpu.kvm), id);
        id
    }

    /// The row of a vCPU; one that moved to another thread keeps it. An unplugged one keeps its thread's number, and is met
    /// until it is plugged in again, as a new row with a new thread.
    fn row(&mut self, vm: VmId, number: u32, tid: Tid, now: Option<HostNs>) -> Option<VcpuId> {
        let rows = self.vcpus.iter_mut().enumerate();
        let known = rows.rev().find(|(_, v)| v.vm == vm && v.number == number);
        let started = match known {
            Some((index, vcpu)) if vcpu.ended.is_none() => {
                vcpu.tid = tid;
                return Some(VcpuId::from_index(index));
            }
            Some((_, vcpu)) if vcpu.tid == tid => return None,
            Some(_) => now,
            None => self.first_met.get(&(vm, number)).copied().flatten(),
        };
        self.vcpus.push(Vcpu { vm, number, tid, started, ended: None });
        Some(VcpuId::from_index(self.vcpus.len() - 1))
    }
}

#[cfg(test)]
mod test {
    use model::CpuId;
    use probes::VcpuSnapshot;

    use super::*;

    fn found(kvm: u64, pid: u32, tid: u32, number: u32) -> FoundVcpu {
        let tid = (tid != 0).then_some(Tid(tid));
        FoundVcpu {
            pid: Pid(pid),
            tid,
            number,
            protected: false,
            kvm,
            vcpu: kvm + u64::from(number),
            vmcb: 0,
            seen: VcpuSnapshot {
                time: HostNs(0),
                cpu: CpuId(0),
                off_cpu: None,
                exit_reason: 0,
                waits: None,
            },
        }
    }

    impl VmTable {
        /// A VM of this process with one vCPU on this thread.
        pub(crate) fn with_one_vcpu(pid: u32, tid: u32) -> Self {
            let mut table = Self::default();
            update(&mut table, &[found(0x10, pid, tid, 0)]);
            table
        }
    }

    fn update(table: &mut VmTable, vcpus: &[FoundVcpu]) -> (Vec<u32>, Vec<(u32, u32)>) {
        update_at(table, None, vcpus)
    }

    fn update_at(
        table: &mut VmTable,
        now: Option<u64>,
        vcpus: &[FoundVcpu],
    ) -> (Vec<u32>, Vec<(u32, u32)>) {
        let changes = table.update(vcpus.to_vec(), now.map(HostNs), |pid| VmProcess {
            name: if pid.0 < 100 { "web".into() } else { "db".into() },
            ..VmProcess::default()
        });
        (
            changes.vms.iter().map(|(vm, _)| vm.0).collect(),
            changes.watch.iter().map(|(tid, _, row)| (tid.0, row.0)).collect(),
        )
    }

    #[test]
    fn rows_are_given_once() {
        let mut table = VmTable::default();
        let two = [found(0x10, 50, 51, 0), found(0x10, 50, 0, 1)];
        assert_eq!(update(&mut table, &two), (vec![0], vec![(51, 0)]));
        assert_eq!(update(&mut table, &two), (vec![], vec![]));
        assert_eq!(two.map(|vcpu| table.row_of(&vcpu)), [Some(VcpuId(0)), None]);
        // The second vCPU has run by now, and another VM of the same name is there.
        let more = [found(0x10, 50, 51, 0), found(0x10, 50, 52, 1), found(0x20, 60, 61, 0)];
        assert_eq!(update(&mut table, &more), (vec![1], vec![(52, 1), (61, 2)]));
        let names: Vec<_> = table.vms.iter().map(|vm| vm.name.as_str()).collect();
        assert_eq!(names, ["web", "web-60"]);
    }

    #[test]
    fn a_thread_that_runs_another_vcpu_is_watched_anew() {
        let mut table = VmTable::default();
        update(&mut table, &[found(0x10, 50, 51, 0)]);
        // The process made its VM anew: same thread, same number, another vCPU in the kernel.
        let again = FoundVcpu { vcpu: 0x99, ..found(0x10, 50, 51, 0) };
        assert_eq!(update(&mut table, &[again]), (vec![], vec![(51, 0)]));
        let three = [found(0x20, 50, 61, 0), found(0x30, 50, 71, 0)];
        update(&mut table, &three);
        let names: Vec<_> = table.vms.iter().map(|vm| vm.name.as_str()).collect();
        assert_eq!(names, ["web", "web-50", "web-50-2"]);
    }

    #[test]
    fn a_vm_that_ended_is_closed_and_its_address_is_free() {
        let mut table = VmTable::default();
        update(&mut table, &[found(0x10, 50, 51, 0), found(0x20, 110, 111, 0)]);
        assert!(table.thread_ended(Tid(51), HostNs(8)));
        assert!(!table.thread_ended(Tid(51), HostNs(8)));
        assert_eq!(table.process_ended(Pid(50), HostNs(9)), ["web"]);
        assert_eq!(table.process_ended(Pid(50), HostNs(10)), Vec::<String>::new());
        assert_eq!(table.vms[0].ended, Some(HostNs(9)));
        // A new VM gets the old one's kernel address and thread id: new rows all the same.
        assert_eq!(update(&mut table, &[found(0x10, 120, 51, 0)]), (vec![2], vec![(51, 2)]));
    }

    #[test]
    fn a_vcpu_that_is_plugged_in_has_its_own_time() {
        let mut table = VmTable::default();
        // The second one exists from the VM's begin, and runs later.
        update(&mut table, &[found(0x10, 50, 51, 0), found(0x10, 50, 0, 1)]);
        let all =
            |third| [found(0x10, 50, 51, 0), found(0x10, 50, 52, 1), found(0x10, 50, third, 2)];
        assert_eq!(update_at(&mut table, Some(20), &all(0)), (vec![], vec![(52, 1)]));
        assert_eq!(update_at(&mut table, Some(30), &all(53)), (vec![], vec![(53, 2)]));
        // Unplugged: it is met as it was. Plugged in again: with a thread of its own.
        assert!(table.thread_ended(Tid(53), HostNs(40)));
        assert_eq!(update_at(&mut table, Some(50), &all(53)), (vec![], vec![]));
        assert_eq!(table.row_of(&all(53)[2]), None);
        assert_eq!(update_at(&mut table, Some(60), &all(54)), (vec![], vec![(54, 3)]));
        assert_eq!(table.row_of(&all(54)[2]), Some(VcpuId(3)));
        let times: Vec<_> = table
            .vcpus
            .iter()
            .map(|vcpu| (vcpu.started.map(|time| time.0), vcpu.ended.map(|time| time.0)))
            .collect();
        assert_eq!(times, [(None, None), (None, None), (Some(20), Some(40)), (Some(60), None)]);
        // All of a VM that starts in mid-recording are as old as it.
        update_at(&mut table, Some(70), &[found(0x20, 60, 61, 0)]);
        assert_eq!(table.vcpus[4].started, None);
    }
}
