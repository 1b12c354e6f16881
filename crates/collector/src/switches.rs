//! Events of vCPUs' threads on their way into the recording.

use model::{Pid, Switch, SwitchEvent, VcpuId};
use probes::{FoundVcpu, VcpuSnapshot};

use crate::vm_table::VmTable;

/// What the finder saw of each vCPU that has a row.
pub(crate) fn seen(vms: &VmTable, found: &[FoundVcpu]) -> Vec<Switch> {
    let rows = found.iter().filter_map(|vcpu| Some((vms.row_of(vcpu)?, &vcpu.seen)));
    rows.map(|(row, seen)| event(row, seen)).collect()
}

fn event(vcpu: VcpuId, seen: &VcpuSnapshot) -> Switch {
    let VcpuSnapshot { time, cpu, off_cpu, exit_reason, waits } = *seen;
    Switch { time, cpu, vcpu, event: SwitchEvent::Seen { off_cpu, exit_reason, waits } }
}

/// The process that had the CPU before the vCPU or has it after it.
pub(crate) fn other(switch: &Switch) -> Option<Pid> {
    match switch.event {
        SwitchEvent::Out { pid, .. } | SwitchEvent::In { pid, .. } => Some(pid),
        SwitchEvent::Wake { .. } | SwitchEvent::Seen { .. } => None,
    }
}
