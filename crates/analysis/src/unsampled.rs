//! How much of VMs' time on CPUs has no sample.

use std::collections::BTreeMap;

use model::{Tables, TimeAccount, TimelineState, VmId};

use crate::vcpu_timeline::VcpuTimelines;

/// A VM that has CPU time without a sample.
///
/// Interrupts are not missed evenly: a delayed one hits the code after a guest's run. So the existing samples say little
/// about the missing ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsampled {
    pub vm: String,
    /// How long its vCPUs were on CPUs.
    pub on_cpu_ns: u64,
    /// How much of that no sample shows.
    pub not_sampled_ns: u64,
}

/// The VMs that have such time, or this one, the largest share first.
pub(crate) fn unsampled(
    tables: &Tables,
    axis: &VcpuTimelines,
    only: Option<VmId>,
) -> Vec<Unsampled> {
    let mut vms = BTreeMap::<VmId, (u64, u64)>::new();
    for timeline in &axis.timelines {
        let vcpu = tables.vcpus.get(timeline.vcpu.index());
        let Some(vcpu) = vcpu.filter(|vcpu| only.is_none_or(|vm| tables.is_same_vm(vcpu.vm, vm)))
        else {
            continue;
        };
        let (on_cpu_ns, not_sampled_ns) = vms.entry(vcpu.vm).or_default();
        for segment in &timeline.segments {
            if is_on_cpu(segment.state) {
                *on_cpu_ns += segment.length_ns();
            }
            if segment.state == TimelineState::NotSampled {
                *not_sampled_ns += segment.length_ns();
            }
        }
    }
    let name = |vm: VmId| tables.vms.get(vm.index()).map(|vm| vm.name.clone());
    let rows = vms.into_iter().filter(|(_, (_, not_sampled_ns))| 0 < *not_sampled_ns);
    let mut rows: Vec<_> = rows
        .filter_map(|(vm, (on_cpu_ns, not_sampled_ns))| {
            Some(Unsampled { vm: name(vm)?, on_cpu_ns, not_sampled_ns })
        })
        .collect();
    rows.sort_by(|a, b| b.share().total_cmp(&a.share()));
    rows
}

impl Unsampled {
    /// Of its time on CPUs, 0 to 1.
    #[must_use]
    pub fn share(&self) -> f64 {
        self.not_sampled_ns as f64 / self.on_cpu_ns.max(1) as f64
    }
}

fn is_on_cpu(state: TimelineState) -> bool {
    match state.account() {
        TimeAccount::Guest | TimeAccount::HaltPolling | TimeAccount::NotSampled => true,
        TimeAccount::StealVmm => matches!(state, TimelineState::StealVmm { .. }),
        TimeAccount::Halt
        | TimeAccount::StealOutside
        | TimeAccount::Throttled
        | TimeAccount::Paused
        | TimeAccount::Unknown => false,
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::steal::testing::{Drawn, MS, VM_A};

    #[test]
    fn vms_with_time_that_no_sample_shows() {
        let check = |vcpus: &[&str], only, expected: &[(u64, u64)]| {
            let drawn = Drawn::new(vcpus, "");
            let rows = unsampled(&drawn.tables, &drawn.axis, only);
            let rows: Vec<_> =
                rows.iter().map(|row| (row.on_cpu_ns / MS, row.not_sampled_ns / MS)).collect();
            assert_eq!(rows, expected, "{vcpus:?}");
        };
        // The first two are of one VM.
        check(&["f_1.--", "ff~wwt", "xxxxxx"], None, &[(6, 1)]);
        check(&["f_1.--", "ff~wwt", "xxx__x"], None, &[(6, 2), (6, 1)]);
        check(&["f_1.--", "ff~wwt", "xxx__x"], Some(VM_A), &[(6, 1)]);
        check(&["f.f1", "ff~w", "xxxx"], None, &[]);
    }
}
