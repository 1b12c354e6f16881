//! The CPUs and memory nodes that a thread may use: its control group's, its own, and those that the kernel keeps apart.
//!
//! ```text
//!  /proc/PID/task/TID/cgroup --> its group --> the nearest one above with a cpuset --> cpuset.cpus.effective
//!  /proc/PID/task/TID/status --> Cpus_allowed_list, Mems_allowed_list
//!  /sys/devices/system/cpu/isolated --> isolcpus=
//! ```

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use crate::machine::parse_cpu_list;
use crate::quotas::group_of;

/// Bytes of a file that are read at most.
const MAX_BYTES: u64 = 64 << 10;
/// The file with a group's CPUs: in version 2, in version 1, and in version 1 of old kernels.
const FILES: [&str; 3] = ["cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"];

/// The CPUs that a thread's cpuset allows. `None`: the thread is in none, or its group can't be read.
#[must_use]
pub fn cpus(proc: &Path, cgroups: &Path, pid: u32, tid: u32) -> Option<BTreeSet<u32>> {
    let text = text(&proc.join(format!("{pid}/task/{tid}/cgroup")))?;
    let group = group_of(cgroups, &text, "cpuset")?;
    let list = group
        .ancestors()
        .take_while(|group| group.starts_with(cgroups))
        .find_map(|group| FILES.iter().find_map(|file| list(&group.join(file))))?;
    Some(list)
}

/// The CPUs that a thread may run on, by its own affinity and its cpuset. `None`: the kernel does not say.
#[must_use]
pub fn affinity(proc: &Path, pid: u32, tid: u32) -> Option<BTreeSet<u32>> {
    status_list(proc, pid, tid, "Cpus_allowed_list:")
}

/// The CPUs that `isolcpus=` keeps apart: a thread runs there only if its affinity names one of them.
#[must_use]
pub fn isolated(sys: &Path) -> BTreeSet<u32> {
    list(&sys.join("devices/system/cpu/isolated")).unwrap_or_default()
}

/// The nodes from which a thread may have memory. `None`: the kernel does not say.
#[must_use]
pub fn memory_nodes(proc: &Path, pid: u32, tid: u32) -> Option<BTreeSet<u32>> {
    status_list(proc, pid, tid, "Mems_allowed_list:")
}

fn status_list(proc: &Path, pid: u32, tid: u32, key: &str) -> Option<BTreeSet<u32>> {
    let status = text(&proc.join(format!("{pid}/task/{tid}/status")))?;
    let list = status.lines().find_map(|line| line.strip_prefix(key))?;
    parse_cpu_list(list.trim()).map(|numbers| numbers.into_iter().collect())
}

/// A list of at least one CPU. A group without CPUs of its own has an empty list, and the CPUs of the group above it.
fn list(path: &Path) -> Option<BTreeSet<u32>> {
    let text = text(path)?;
    let cpus = parse_cpu_list(text.trim())?;
    (!cpus.is_empty()).then(|| cpus.into_iter().collect())
}

fn text(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod test {
    use std::fs;

    use super::*;

    fn check(cgroup: &str, files: &[(&str, &str)], expected: Option<&[u32]>) {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("proc/7/task/8/cgroup", cgroup);
        for (path, text) in files {
            write(&format!("cgroup/{path}"), text);
        }
        let found = cpus(&root.path().join("proc"), &root.path().join("cgroup"), 7, 8);
        let found: Option<Vec<u32>> = found.map(|cpus| cpus.into_iter().collect());
        assert_eq!(found.as_deref(), expected, "{cgroup} {files:?}");
    }

    #[test]
    fn the_nearest_cpuset_holds() {
        let two = "0::/machine/a/vcpu0\n";
        let all = ("cpuset.cpus.effective", "0-7\n");
        let machine = ("machine/cpuset.cpus.effective", "0-3\n");
        check(
            two,
            &[all, machine, ("machine/a/vcpu0/cpuset.cpus.effective", "2,5\n")],
            Some(&[2, 5]),
        );
        check(
            two,
            &[all, machine, ("machine/a/vcpu0/cpu.max", "max 100000\n")],
            Some(&[0, 1, 2, 3]),
        );
        check(two, &[all], Some(&[0, 1, 2, 3, 4, 5, 6, 7]));
        check(two, &[machine, ("machine/a/cpuset.cpus.effective", "\n")], Some(&[0, 1, 2, 3]));
        let one = "9:cpuset:/machine/a\n4:cpu,cpuacct:/b\n0::/c\n";
        check(one, &[("cpuset/machine/a/cpuset.effective_cpus", "6\n"), all], Some(&[6]));
        check(one, &[("cpuset/machine/a/cpuset.cpus", "6-7\n"), all], Some(&[6, 7]));
    }

    #[test]
    fn without_a_cpuset_nothing_is_known() {
        check("0::/a\n", &[], None);
        check("0::/a\n", &[("a/cpuset.cpus.effective", "nonsense\n")], None);
        // Out of this namespace's sight.
        check("0::/../a\n", &[("a/cpuset.cpus.effective", "3\n")], None);
        check("nonsense", &[("cpuset.cpus.effective", "3\n")], None);
    }

    #[test]
    fn own_memory_nodes_are_known() {
        let own = std::process::id();
        let nodes = memory_nodes(Path::new("/proc"), own, own);
        assert!(nodes.is_some_and(|nodes| nodes.contains(&0)), "this kernel has a node 0");
    }
}
