//! What a VM may use of the host: the kernel refuses anything else.

use std::collections::BTreeSet;
use std::path::Path;

use host::cpusets;
use layout::{Allowed, Topology};
use model::Tid;

use crate::read::VmProcess;

/// What a VM may use, for so many vCPUs. Where the vCPUs' threads are not known yet, what its process's cpuset allows holds
/// for them.
///
/// Isolated CPUs are for threads that are pinned to them. A thread's own affinity is a limit, unless it is all CPUs of one
/// node: that is how plans, and `numactl`, place a VM, and the next plan may place it elsewhere. `<vcpupin>` of libvirt is
/// a limit always.
pub fn allowed(
    sys: &Path,
    proc: &Path,
    topology: &Topology,
    vm: &VmProcess,
    vcpus: usize,
) -> Allowed {
    let (pid, cgroups) = (vm.pid.0, sys.join("fs/cgroup"));
    let everything: BTreeSet<u32> =
        topology.nodes().iter().flat_map(|node| node.cpus.iter().copied()).collect();
    let isolated = cpusets::isolated(sys);
    let pins = host::vms::describe(proc, pid, "").vcpu_pins;
    let cpus = |tid: u32, own: Option<BTreeSet<u32>>, pin: Option<&BTreeSet<u32>>| {
        let cpuset = cpusets::cpus(proc, &cgroups, pid, tid).unwrap_or_else(|| everything.clone());
        let usual: BTreeSet<u32> = cpuset.difference(&isolated).copied().collect();
        // A cpuset may be an isolated partition.
        let usual = if usual.is_empty() { cpuset.clone() } else { usual };
        let within = |cpus: &BTreeSet<u32>| -> BTreeSet<u32> {
            cpuset.intersection(cpus).copied().collect()
        };
        let own = own.map(|own| within(&own)).filter(|own| is_pin(topology, own, &usual));
        let pin = pin.map(within).filter(|pin| !pin.is_empty());
        let cpus = pin.or(own).unwrap_or(usual);
        (!everything.is_subset(&cpus)).then_some(cpus)
    };
    let number = |vcpu: usize| u32::try_from(vcpu).unwrap_or(u32::MAX);
    let cpus = match vm.threads.is_empty() {
        true => (0..vcpus).map(|vcpu| cpus(pid, None, pins.get(&number(vcpu)))).collect(),
        false => {
            let of_thread = |(vcpu, tid): (usize, &Tid)| {
                let own = cpusets::affinity(proc, pid, tid.0);
                cpus(tid.0, own, pins.get(&number(vcpu)))
            };
            vm.threads.iter().enumerate().map(of_thread).collect()
        }
    };
    // The process's own cpuset says where its pages may be moved to, a thread's where new ones come from.
    let threads = std::iter::once(pid).chain(vm.threads.iter().map(|tid| tid.0));
    let nodes = threads.filter_map(|tid| cpusets::memory_nodes(proc, pid, tid));
    let nodes = nodes.reduce(|all, more| all.intersection(&more).copied().collect());
    let memory = nodes.and_then(|nodes| {
        let index = |id: u32| topology.index_of(id);
        let nodes: BTreeSet<usize> = nodes.into_iter().filter_map(index).collect();
        (nodes.len() < topology.len()).then_some(nodes)
    });
    Allowed { cpus, memory }
}

/// Whether a thread's affinity keeps it to CPUs that are neither all it could have nor those of one node.
fn is_pin(topology: &Topology, own: &BTreeSet<u32>, usual: &BTreeSet<u32>) -> bool {
    let is_whole = |node: &layout::Node| {
        let here = node.cpus.iter().filter(|cpu| usual.contains(cpu));
        let all = node.cpus.iter().copied().collect::<BTreeSet<u32>>();
        *own == all || own.iter().eq(here.collect::<BTreeSet<_>>())
    };
    !own.is_empty() && !usual.is_subset(own) && !topology.nodes().iter().any(is_whole)
}

#[cfg(test)]
mod test {
    use std::fs;

    use super::*;
    use crate::read::test::machine;

    fn write_file(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn a_vm_may_use_what_all_its_threads_may() {
        let (root, found) = machine();
        let (sys, proc) = (root.path().join("sys"), root.path().join("proc"));
        let write = |path: &str, text: &str| write_file(&root.path().join(path), text);
        let read = |vcpus| {
            let host = crate::read(&sys, &proc, &found).unwrap();
            let vm = &host.vms[0];
            let waiting = VmProcess { threads: Vec::new(), ..vm.process.clone() };
            (vm.allowed.clone(), allowed(&sys, &proc, &host.topology, &waiting, vcpus))
        };
        let (free, waiting) = read(3);
        assert_eq!(free, Allowed { cpus: vec![None; 2], memory: None });
        assert_eq!(waiting, Allowed { cpus: vec![None; 3], memory: None });
        for (group, cpus) in [("", "0-3"), ("/vm", "1-2"), ("/vm/vcpu1", "1")] {
            write(&format!("sys/fs/cgroup{group}/cpuset.cpus.effective"), cpus);
        }
        for (task, group) in [("40", "/vm"), ("41", "/vm"), ("42", "/vm/vcpu1")] {
            write(&format!("proc/40/task/{task}/cgroup"), &format!("0::{group}\n"));
        }
        let status =
            |nodes: &str| format!("Cpus_allowed_list:\t0-3\nMems_allowed_list:\t{nodes}\n");
        for (task, nodes) in [("40", "0-7"), ("41", "0-7"), ("42", "1")] {
            write(&format!("proc/40/task/{task}/status"), &status(nodes));
        }
        let set = |cpus: &[u32]| Some(cpus.iter().copied().collect::<BTreeSet<u32>>());
        let (held, waiting) = read(1);
        assert_eq!(held.cpus, [set(&[1, 2]), set(&[1])]);
        assert_eq!(held.memory, Some(BTreeSet::from([1])));
        assert_eq!(waiting, Allowed { cpus: vec![set(&[1, 2])], memory: None });
    }

    #[test]
    fn a_pinned_vcpu_stays_on_its_cpus_and_others_off_isolated_ones() {
        // Nodes have CPUs 0 and 1, and 2 and 3.
        let check = |isolated: &str, cpuset: &str, own: &str, expected: Option<&[u32]>| {
            let (root, found) = machine();
            let (sys, proc) = (root.path().join("sys"), root.path().join("proc"));
            let write = |path: &str, text: &str| write_file(&root.path().join(path), text);
            write("sys/devices/system/cpu/isolated", isolated);
            write("sys/fs/cgroup/cpuset.cpus.effective", cpuset);
            write("proc/40/task/41/cgroup", "0::/\n");
            write("proc/40/task/41/status", &format!("Cpus_allowed_list:\t{own}\n"));
            let host = crate::read(&sys, &proc, &found).unwrap();
            let found = host.vms[0].allowed.cpus[0].clone();
            let found: Option<Vec<u32>> = found.map(|cpus| cpus.into_iter().collect());
            assert_eq!(found.as_deref(), expected, "isolated {isolated} {cpuset} own {own}");
        };
        check("\n", "0-3\n", "0-3", None);
        // As plans bind it.
        check("\n", "0-3\n", "2-3", None);
        check("\n", "0-3\n", "3", Some(&[3]));
        check("\n", "0-3\n", "0,2", Some(&[0, 2]));
        check("\n", "0-2\n", "2", Some(&[0, 1, 2]));
        check("3\n", "0-3\n", "0-2", Some(&[0, 1, 2]));
        check("3\n", "0-3\n", "0-3", Some(&[0, 1, 2]));
        check("3\n", "0-3\n", "2", Some(&[0, 1, 2]));
        check("1,3\n", "0-3\n", "1,3", Some(&[1, 3]));
        check("2-3\n", "2-3\n", "2-3", Some(&[2, 3]));
    }

    #[test]
    fn vcpus_that_libvirt_pins_stay_there() {
        let (root, found) = machine();
        let (sys, proc) = (root.path().join("sys"), root.path().join("proc"));
        let status = "<domstatus pid='40'><domain><cputune><vcpupin vcpu='0' cpuset='2-3'/></cputune>\
                      </domain></domstatus>";
        fs::write(proc.join("40/status"), "Uid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\nNSpid:\t40\n")
            .unwrap();
        for process in ["1", "40"] {
            let folder = proc.join(process).join("root/run/libvirt/qemu");
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("web.xml"), status).unwrap();
        }
        let host = crate::read(&sys, &proc, &found).unwrap();
        assert_eq!(host.vms[0].allowed.cpus, [Some(BTreeSet::from([2, 3])), None]);
    }
}
