//! How a session finds vCPUs, and VMs with them.

use std::collections::BTreeSet;

use api::guest::SERIAL_PORT_NAME;
use model::{HostNs, Pid, Switch, SwitchEvent, Tid, VcpuId, Vm};
use probes::{FoundVcpu, VcpuSnapshot};

use super::Session;
use crate::guests::in_turns;
use crate::plan::{GuestQuestions, ProcessEvents};
use crate::vm_table::VmTable;

/// After a look for an unknown vCPU that found nothing new.
const LOOK_AGAIN_NS: u64 = 2_000_000_000;

/// State of the search for vCPUs.
#[derive(Debug, Default)]
pub(super) struct ScanState {
    /// Samples of unknown vCPUs up to the last look.
    unknown_vcpus: u64,
    /// Not before this time they are looked for again.
    next: HostNs,
    pub(super) failed: u64,
    /// Threads that found no room in the table.
    pub(super) not_watched: BTreeSet<Tid>,
}

/// What a look for vCPUs met.
#[derive(Debug, Default)]
pub(super) struct VcpuScan {
    /// What each vCPU that has a row did.
    pub(super) vcpus: Vec<Switch>,
    new_vcpus: BTreeSet<VcpuId>,
    new_vms: Vec<String>,
}

impl Session {
    /// Looks for vCPUs when samples hit some that are not known; the names of VMs not seen before.
    pub(super) fn scan_unknown(&mut self) -> Vec<String> {
        let now = self.sources.now();
        let cpus = self.header.cpus.iter();
        let unknown = cpus.map(|cpu| self.sources.counters(*cpu).unknown_vcpus).sum();
        if unknown <= self.looks.unknown_vcpus || now < self.looks.next {
            return Vec::new();
        }
        self.looks.unknown_vcpus = unknown;
        let edge = self.look_for_vcpus(Some(now));
        if edge.new_vms.is_empty() {
            self.looks.next = HostNs(now.0 + LOOK_AGAIN_NS);
        }
        let new = |switch: &Switch| edge.new_vcpus.contains(&switch.vcpu);
        self.window.switches.extend(edge.vcpus.into_iter().filter(new));
        edge.new_vms
    }

    /// Brings the table of VMs up to date. `started` is `None` before sampling begins.
    pub(super) fn look_for_vcpus(&mut self, started: Option<HostNs>) -> VcpuScan {
        let found = self.find_vcpus();
        let Some(found) = found else { return VcpuScan::default() };
        if self.plan.process_events == ProcessEvents::Ignored {
            self.forget_absent(&found);
        }
        let roots = &self.plan.roots;
        let describe = |pid: Pid| host::vms::describe(&roots.proc, pid.0, SERIAL_PORT_NAME);
        let names = host::vms::VmNames::in_folder(&roots.state);
        let changes = self.vms.update(found.clone(), started, describe, &names);
        let mut look = VcpuScan::default();
        for (tid, vcpu, row, number) in &changes.watch {
            look.new_vcpus.insert(*row);
            self.watch(*tid, vcpu, *number);
        }
        for (vm, process) in in_turns(changes.vms, |(_, process)| process.user) {
            let name = self.vms.vms[vm.index()].name.clone();
            if let GuestQuestions::On { limits, with_map, .. } = &self.plan.guests
                && !with_map.contains(&name)
            {
                self.guests.ask(vm, &process, limits, &self.plan.roots);
            }
            self.reachable.insert(vm, process);
            self.throttling.look_soon();
            look.new_vms.push(name);
        }
        look.vcpus = snapshot(&self.vms, &found);
        look
    }

    /// Notes what vCPUs do now. Who is watched was entered before, so no switch after this is missed.
    pub(super) fn snapshot_vcpus(&mut self) {
        if let Some(found) = self.find_vcpus() {
            self.window.switches.extend(snapshot(&self.vms, &found));
        }
    }

    /// `None`: there are none, or the look failed, which is counted.
    fn find_vcpus(&mut self) -> Option<Vec<FoundVcpu>> {
        if !self.kvm {
            return None;
        }
        match self.sources.find_vcpus() {
            Ok(found) => Some(found),
            Err(error) => {
                self.looks.failed += 1;
                if self.looks.failed == 1 {
                    self.note(format!("{error}: VMs may be missing, vCPUs be unknown for a while"));
                }
                None
            }
        }
    }

    /// A vCPU without a row shows as unknown; it is tried again at the next look.
    fn watch(&mut self, tid: Tid, vcpu: &FoundVcpu, number: u32) {
        let Err(error) = self.sources.watch(tid, vcpu, number) else {
            self.looks.not_watched.remove(&tid);
            let vm = self.vms.row_of(vcpu).map(|row| self.vms.vcpus[row.index()].vm);
            if let Some(tasks) = vm.and_then(|vm| self.guests.tasks(vm)) {
                let view = tasks.views.get(&vcpu.number);
                self.sources.set_guest_view(tid, view.map(|view| (view, &tasks.slots[..])));
            }
            return;
        };
        self.vms.unwatch(tid);
        if self.looks.not_watched.is_empty() {
            let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
            let cause = cause.unwrap_or_default();
            self.note(format!(
                "{error}{cause}: the time of some vCPUs shows as unknown (vcpus_not_watched)"
            ));
        }
        self.looks.not_watched.insert(tid);
    }

    /// Lets samples of guests whose tasks have been found say which one runs.
    pub(super) fn apply_new_tasks(&self) {
        for (vm, tasks) in self.guests.new_tasks() {
            let of_vm = self.vms.vcpus.iter().filter(|vcpu| vcpu.vm == vm && vcpu.ended.is_none());
            for vcpu in of_vm {
                let view = tasks
                    .as_ref()
                    .and_then(|tasks| Some((tasks.views.get(&vcpu.number)?, &tasks.slots[..])));
                self.sources.set_guest_view(vcpu.tid, view);
            }
        }
    }

    /// Forgets VMs that a look did not meet any more.
    fn forget_absent(&mut self, found: &[FoundVcpu]) {
        let running: BTreeSet<Pid> = found.iter().map(|vcpu| vcpu.pid).collect();
        let is_gone = |vm: &&Vm| vm.ended.is_none() && !running.contains(&vm.pid);
        let gone: Vec<Pid> = self.vms.vms.iter().filter(is_gone).map(|vm| vm.pid).collect();
        for pid in gone {
            let vcpus = self.vms.vcpus.iter().filter(|v| self.vms.vms[v.vm.index()].pid == pid);
            let tids: Vec<Tid> = vcpus.map(|vcpu| vcpu.tid).collect();
            let now = self.sources.now();
            self.vms.process_ended(pid, now);
            for tid in tids {
                self.vms.thread_ended(tid, now);
                self.sources.forget(tid);
                self.looks.not_watched.remove(&tid);
            }
        }
        let vms = &self.vms.vms;
        self.reachable.retain(|vm, _| vms[vm.index()].ended.is_none());
    }
}

/// What the finder saw of each vCPU that has a row.
fn snapshot(vms: &VmTable, found: &[FoundVcpu]) -> Vec<Switch> {
    let event = |vcpu: &FoundVcpu| {
        let VcpuSnapshot { time, cpu, off_cpu, exit_reason, waits } = vcpu.seen;
        let event = SwitchEvent::Seen { off_cpu, exit_reason, waits };
        Some(Switch { time, cpu, vcpu: vms.row_of(vcpu)?, event })
    };
    found.iter().filter_map(event).collect()
}
