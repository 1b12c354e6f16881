//! Rows of VMs and vCPUs that are vacant: a session that goes on gives those of what ended to what begins, and its records
//! go on to number rows as the session does. A finished recording has no vacant rows.
//!
//! ```text
//!  session     0 web   1 vacant   2 db     a record of db says 2
//!  recording   0 web              1 db     its sample says 1
//! ```

use std::collections::BTreeSet;

use model::{Owner, Sample, Switch, Tables, Vcpu, VcpuId, VcpuState, Vm, VmId};

/// Where rows are once those that are vacant have been left out.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RowMap {
    vms: Vec<Option<VmId>>,
    vcpus: Vec<Option<VcpuId>>,
}

impl RowMap {
    /// `None`: no row is vacant. A row that others name stays.
    pub(crate) fn of(tables: &Tables) -> Option<Self> {
        let Tables { vms, vcpus, images, modules, .. } = tables;
        if !vms.iter().any(Vm::is_vacant) && !vcpus.iter().any(Vcpu::is_vacant) {
            return None;
        }
        let owners = images.iter().map(|row| row.owner).chain(modules.iter().map(|row| row.owner));
        let owners = owners.filter_map(|owner| match owner {
            Owner::Host => None,
            Owner::Vm(vm) => Some(vm),
        });
        let there = vcpus.iter().filter(|row| !row.is_vacant());
        let named: BTreeSet<usize> =
            owners.chain(there.map(|row| row.vm)).map(VmId::index).collect();
        let stays = vms.iter().enumerate().map(|(n, vm)| !vm.is_vacant() || named.contains(&n));
        Some(Self {
            vms: places(stays).map(|place| place.map(VmId::from_index)).collect(),
            vcpus: places(vcpus.iter().map(|row| !row.is_vacant()))
                .map(|place| place.map(VcpuId::from_index))
                .collect(),
        })
    }

    /// Leaves out the vacant rows, and what refers to them.
    pub(crate) fn compact(&self, tables: &mut Tables) {
        keep(&mut tables.vms, |n| self.vms[n].is_some());
        keep(&mut tables.vcpus, |n| self.vcpus[n].is_some());
        tables.vcpus.retain_mut(|row| self.take_vm(&mut row.vm));
        let owners = tables.images.iter_mut().map(|row| &mut row.owner);
        for owner in owners.chain(tables.modules.iter_mut().map(|row| &mut row.owner)) {
            if let Owner::Vm(vm) = owner {
                self.take_vm(vm);
            }
        }
        tables.throttling.retain_mut(|row| self.take_vm(&mut row.vm));
        tables.memory.retain_mut(|row| self.take_vm(&mut row.vm));
        tables.exits.retain_mut(|row| self.take_vcpu(&mut row.vcpu));
        tables.quota_members.retain_mut(|row| {
            let vcpu = row.vcpu.as_mut();
            self.take_vm(&mut row.vm) && vcpu.is_none_or(|vcpu| self.take_vcpu(vcpu))
        });
    }

    /// Takes a sample's vCPU to its row.
    pub(crate) fn take_sample(&self, sample: &mut Sample) {
        if let VcpuState::Guest(vcpu) | VcpuState::Vmm(vcpu) = &mut sample.vcpu {
            self.take_vcpu(&mut vcpu.vcpu);
        }
    }

    /// The same of a switch.
    pub(crate) fn take_switch(&self, switch: &mut Switch) {
        self.take_vcpu(&mut switch.vcpu);
    }

    /// Whether it has a row: one without is that of no vCPU.
    fn take_vcpu(&self, vcpu: &mut VcpuId) -> bool {
        let row = self.vcpus.get(vcpu.index()).copied().flatten();
        *vcpu = row.unwrap_or(VcpuId(u32::MAX));
        row.is_some()
    }

    fn take_vm(&self, vm: &mut VmId) -> bool {
        let row = self.vms.get(vm.index()).copied().flatten();
        *vm = row.unwrap_or(*vm);
        row.is_some()
    }
}

/// Whether a vCPU is in a table, in a row that is not vacant.
pub(crate) fn has_row(vcpu: VcpuId, vcpus: &[Vcpu], rows: Option<&RowMap>) -> bool {
    let n = vcpu.index();
    n < vcpus.len() && rows.is_none_or(|rows| rows.vcpus.get(n).is_some_and(Option::is_some))
}

/// The new places of those that stay.
fn places(stays: impl Iterator<Item = bool>) -> impl Iterator<Item = Option<usize>> {
    let mut next = 0..;
    stays.map(move |stays| if stays { next.next() } else { None })
}

fn keep<T>(rows: &mut Vec<T>, stays: impl Fn(usize) -> bool) {
    let mut numbers = 0..;
    rows.retain(|_| numbers.next().is_some_and(&stays));
}

#[cfg(test)]
mod test {
    use model::{ExitCount, Guest, HostNs, Pid, QuotaMember, Throttling, Tid};

    use super::*;

    fn vm(pid: u32) -> Vm {
        let guest = Guest::Unmapped { reason: String::new() };
        Vm { name: format!("vm{pid}"), pid: Pid(pid), started: None, ended: None, guest }
    }

    fn vcpu(vm: u32, tid: u32) -> Vcpu {
        Vcpu { vm: VmId(vm), number: 0, tid: Tid(tid), started: None, ended: None }
    }

    #[test]
    fn vacant_rows_are_left_out_with_what_refers_to_them() {
        let member = |vm, vcpu| QuotaMember { quota: 0, vm: VmId(vm), vcpu, since: HostNs(0) };
        let exit = |vcpu| ExitCount { vcpu: VcpuId(vcpu), reason: 1, count: 2 };
        let reading = |vm| Throttling { vm: VmId(vm), time: HostNs(0), throttled_ns: 0 };
        let mut tables = Tables {
            vms: vec![vm(5), Vm::vacant(), vm(7)],
            vcpus: vec![Vcpu::vacant(), vcpu(2, 71), Vcpu::vacant(), vcpu(0, 51)],
            exits: vec![exit(0), exit(1)],
            throttling: vec![reading(1), reading(2)],
            quota_members: vec![member(1, None), member(2, None), member(2, Some(VcpuId(2)))],
            ..Tables::default()
        };
        let rows = RowMap::of(&tables).unwrap();
        rows.compact(&mut tables);
        assert_eq!(tables.vms, [vm(5), vm(7)]);
        assert_eq!(tables.vcpus, [vcpu(1, 71), vcpu(0, 51)]);
        assert_eq!(tables.exits, [exit(0)]);
        assert_eq!(tables.throttling, [reading(1)]);
        assert_eq!(tables.quota_members, [member(1, None)]);
        let mut vcpus = [0, 1, 2, 3, 4].map(VcpuId);
        vcpus.iter_mut().for_each(|vcpu| _ = rows.take_vcpu(vcpu));
        assert_eq!(vcpus, [u32::MAX, 0, u32::MAX, 1, u32::MAX].map(VcpuId));
        assert_eq!(RowMap::of(&tables), None);
    }
}
