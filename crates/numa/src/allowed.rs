//! What a VM may use of the host: the kernel refuses anything else.

use std::collections::BTreeSet;
use std::path::Path;

use host::cpusets;
use layout::{Allowed, Topology};

use crate::read::VmProcess;

/// What the cpusets of a VM's threads allow it, for so many vCPUs. Where the vCPUs' threads are not known yet, what its
/// process may use holds for them.
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
    let cpus = |tid: u32| {
        let cpus = cpusets::cpus(proc, &cgroups, pid, tid)?;
        (!everything.is_subset(&cpus)).then_some(cpus)
    };
    let cpus = match vm.threads.is_empty() {
        true => vec![cpus(pid); vcpus],
        false => vm.threads.iter().map(|tid| cpus(tid.0)).collect(),
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

#[cfg(test)]
mod test {
    use std::fs;

    use super::*;
    use crate::read::test::machine;

    #[test]
    fn a_vm_may_use_what_all_its_threads_may() {
        let (root, found) = machine();
        let (sys, proc) = (root.path().join("sys"), root.path().join("proc"));
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
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
}
