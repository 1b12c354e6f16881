//! Rows that samples refer to.

use model::{Sample, Tables, VcpuSample, VcpuState};

/// How many rows there are to refer to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct References {
    vcpus: usize,
    stacks: usize,
}

impl References {
    pub(crate) fn of(tables: &Tables) -> Self {
        Self { vcpus: tables.vcpus.len(), stacks: tables.stacks.len() }
    }

    /// Takes references to rows that are not there from a sample: the names of what it lost. A vCPU
    /// that is in no table is one that was not found.
    pub(crate) fn cut_dangling(self, sample: &mut Sample) -> impl Iterator<Item = &'static str> {
        let mut lost = [None; 2];
        if sample.stack.is_some_and(|stack| self.stacks <= stack.index()) {
            sample.stack = None;
            lost[0] = Some("samples_without_stack_row");
        }
        let absent = |vcpu: VcpuSample| self.vcpus <= vcpu.vcpu.index();
        match sample.vcpu {
            VcpuState::Guest(vcpu) if absent(vcpu) => sample.vcpu = VcpuState::Unknown,
            VcpuState::Vmm(vcpu) if absent(vcpu) => sample.vcpu = VcpuState::None,
            _ => return lost.into_iter().flatten(),
        }
        lost[1] = Some("samples_without_vcpu_row");
        lost.into_iter().flatten()
    }
}
