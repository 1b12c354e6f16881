//! Which vCPU is which of the guest's CPUs.
//!
//! ```text
//!  -smp 6,sockets=2,cores=3    KVM: vCPU    0  1  2  4  5  6     the APIC id, with 2 bits for 3 cores
//!                              guest: CPU   0  1  2  3  4  5     in the order in which Linux found them
//! ```

use model::Tid;
use probes::{FoundVm, VcpuClock};

/// `[n]` is CPU n. By what the guest says of its CPUs' APIC ids; where it says nothing, in KVM's order. vCPUs that are none of
/// its CPUs come last.
pub(super) fn vcpus_by_cpu<'a>(
    vm: &'a FoundVm,
    apic_ids: &[(u32, u32)],
) -> Vec<Option<&'a VcpuClock>> {
    let mut left: Vec<&VcpuClock> = vm.vcpus.iter().collect();
    let mut cpus = Vec::new();
    for (cpu, id) in apic_ids {
        let Some(at) = left.iter().position(|vcpu| vcpu.number == *id) else { continue };
        let cpu = *cpu as usize;
        if cpu < numbers(vm) && cpus.get(cpu).is_none_or(Option::is_none) {
            cpus.resize(cpus.len().max(cpu + 1), None);
            cpus[cpu] = Some(left.remove(at));
        }
    }
    cpus.extend(left.into_iter().map(Some));
    cpus
}

/// Most CPUs that the guest can have: Linux numbers them without gaps, but one that was taken out keeps its number.
pub(super) fn numbers(vm: &FoundVm) -> usize {
    let highest = vm.vcpus.last().map_or(0, |vcpu| vcpu.number as usize + 1);
    vm.vcpus.len().max(highest)
}

/// `[n]` runs CPU n; 0: none yet.
pub(in crate::trace) fn vcpu_threads(vm: &FoundVm, apic_ids: &[(u32, u32)]) -> Vec<Tid> {
    let thread = |vcpu: Option<&VcpuClock>| vcpu.and_then(|vcpu| vcpu.tid).unwrap_or(Tid(0));
    vcpus_by_cpu(vm, apic_ids).into_iter().map(thread).collect()
}

#[cfg(test)]
mod test {
    use model::Pid;

    use super::*;

    /// Six vCPUs in two sockets of three cores, whose threads are 100 and their APIC ids.
    fn vm() -> FoundVm {
        let vcpu = |number| VcpuClock {
            number,
            tid: Some(Tid(100 + number)),
            tsc_offset: 0,
            tsc_ratio: 1 << 32,
            protected: false,
        };
        let vcpus = [0, 1, 2, 4, 5, 6].map(vcpu).to_vec();
        FoundVm { pid: Pid(1), kvm: 1, slots: vec![], more_slots: false, vcpus }
    }

    #[test]
    fn threads_run_the_guest_s_cpus() {
        let check = |apic_ids: &[(u32, u32)], expected: &[u32]| {
            let threads = vcpu_threads(&vm(), apic_ids);
            assert_eq!(threads.iter().map(|tid| tid.0).collect::<Vec<_>>(), expected);
        };
        let in_order = [100, 101, 102, 104, 105, 106];
        check(&[], &in_order);
        check(&[(0, 0), (1, 1), (2, 2), (3, 4), (4, 5), (5, 6)], &in_order);
        check(&[(0, 0), (1, 4), (2, 1), (3, 5), (4, 2), (5, 6)], &[100, 104, 101, 105, 102, 106]);
        // CPU 1 is offline: its number is unknown.
        check(&[(0, 0), (2, 2)], &[100, 0, 102, 101, 104, 105, 106]);
        // Lies: a vCPU is one CPU, a CPU one vCPU, and no number is beyond what there can be.
        check(&[(0, 6), (1, 6), (0, 5), (u32::MAX, 4), (7, 2)], &[106, 100, 101, 102, 104, 105]);
        check(&[(9, 99)], &in_order);
    }
}
