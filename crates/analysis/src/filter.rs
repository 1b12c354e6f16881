//! Which samples a selection looks at, and how its view shows them.

use model::{Sample, VcpuState, VmId};
use rustc_hash::FxHashMap;

use crate::label::Namer;
use crate::{Selection, View};
use resolve::{CodeRef, Level, ProcessRef, Resolver, SampleSite, VmRef};

/// Applies a selection to samples.
#[derive(Debug)]
pub(crate) struct Filter<'r> {
    resolver: &'r Resolver<'r>,
    selection: Selection,
    processes: FxHashMap<ProcessRef, bool>,
    counts: LeftOut,
}

/// Samples that a report leaves out and says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct LeftOut {
    /// Native view: a guest was interrupted.
    pub(crate) guest: u64,
    /// One vCPU requested: a guest was interrupted on a vCPU that was not known yet.
    pub(crate) unknown_vcpu: u64,
}

impl<'r> Filter<'r> {
    pub(crate) fn new(resolver: &'r Resolver<'r>, selection: Selection) -> Self {
        Self { resolver, selection, processes: FxHashMap::default(), counts: LeftOut::default() }
    }

    pub(crate) fn left_out(&self) -> LeftOut {
        self.counts
    }

    /// Where the view puts the sample; `None` when it is not looked at. The process is not queried:
    /// see `admits_process`.
    pub(crate) fn locate(&mut self, sample: &Sample) -> Option<SampleSite> {
        let located = self.resolver.locate(sample);
        let guest = located.level.is_guest();
        if let Some(selected) = self.selection.vm()
            && !located.vm.is_some_and(|vm| self.is_vm(vm, selected))
        {
            return None;
        }
        if self.selection.vcpu().is_some() && !self.is_selected_vcpu(sample) {
            self.counts.unknown_vcpu += u64::from(located.level == Level::GuestUnknown);
            return None;
        }
        match self.selection.view() {
            View::Guest if !guest => None,
            View::Native if guest => {
                self.counts.guest += 1;
                None
            }
            View::Host if guest => Some(as_one_line(located)),
            _ => Some(located),
        }
    }

    /// Whether the process is one that was requested.
    pub(crate) fn admits_process(&mut self, process: ProcessRef) -> bool {
        let of_command = self.selection.is_of_command();
        let filter = self.selection.process();
        if filter.is_none() && !of_command {
            return true;
        }
        let namer = Namer::new(self.resolver);
        *self.processes.entry(process).or_insert_with(|| {
            let (name, pid) = namer.process(process);
            filter.is_none_or(|filter| filter.matches(&name, pid))
                && (!of_command || is_of_command(self.resolver, process))
        })
    }

    fn is_vm(&self, vm: VmRef, selected: VmId) -> bool {
        matches!(vm, VmRef::Known(vm) if self.resolver.tables().is_same_vm(vm, selected))
    }

    fn is_selected_vcpu(&self, sample: &Sample) -> bool {
        let (VcpuState::Guest(vcpu) | VcpuState::Vmm(vcpu)) = &sample.vcpu else {
            return false;
        };
        let row = self.resolver.tables().vcpus.get(vcpu.vcpu.index());
        row.is_some_and(|row| Some(row.number) == self.selection.vcpu())
    }
}

fn is_of_command(resolver: &Resolver<'_>, process: ProcessRef) -> bool {
    let ProcessRef::Image(image) = process else { return false };
    resolver.tables().images.get(image.index()).is_some_and(|row| row.of_command == Some(true))
}

/// The host's view of a guest.
fn as_one_line(located: SampleSite) -> SampleSite {
    match located.vm {
        Some(vm) => SampleSite { process: ProcessRef::Vm(vm), code: CodeRef::Vm(vm), ..located },
        None => located,
    }
}
