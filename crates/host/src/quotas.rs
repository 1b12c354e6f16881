//! CPU quotas: the control groups that can hold a thread back, and for how long they have.
//!
//! ```text
//!  /proc/PID/task/TID/cgroup --> its group --> up to the root: those with a quota --> their cpu.stat, their id
//! ```
//! libvirt gives each vCPU's thread a group below that of the VM, so threads are queried, not processes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// All groups with a quota that hold one of the threads of process `pid`, or are above one that does: their folders, with
/// these threads. What can't be read (mostly: the thread is gone) has none.
#[must_use]
pub fn find(
    proc: &Path,
    cgroups: &Path,
    pid: u32,
    tids: &[u32],
) -> BTreeMap<PathBuf, BTreeSet<u32>> {
    let mut groups = BTreeMap::<PathBuf, BTreeSet<u32>>::new();
    for tid in tids {
        let file = proc.join(format!("{pid}/task/{tid}/cgroup"));
        let text = fs::read_to_string(file).unwrap_or_default();
        let Some(group) = cpu_group(cgroups, &text) else { continue };
        for above in group.ancestors().filter(|group| group.starts_with(cgroups)) {
            groups.entry(above.to_owned()).or_default().insert(*tid);
        }
    }
    groups.retain(|group, _| has_quota(group));
    groups
}

/// The number by which the kernel knows a group: its folder's inode.
#[must_use]
pub fn id(group: &Path) -> Option<u64> {
    fs::metadata(group).ok().map(|group| group.ino())
}

/// The file that says for how long a group's threads were held back.
#[must_use]
pub fn stat_file(group: &Path) -> PathBuf {
    group.join("cpu.stat")
}

/// How long the group of a `cpu.stat` file has held its threads back, ns. `None`: it is gone.
#[must_use]
pub fn throttled_ns(stat: &Path) -> Option<u64> {
    parse_throttled(&fs::read_to_string(stat).ok()?)
}

/// The folder of the group that rules CPU time, of the text of `/proc/PID/cgroup`.
fn cpu_group(cgroups: &Path, text: &str) -> Option<PathBuf> {
    group_of(cgroups, text, "cpu")
}

/// The folder of the group that a controller rules by, of the text of `/proc/PID/cgroup`: `4:cpu,cpuacct:/a/b` where
/// version 1 has that controller, else `0::/a/b`.
pub(crate) fn group_of(cgroups: &Path, text: &str, controller: &str) -> Option<PathBuf> {
    let line = |wanted: &dyn Fn(&str) -> bool| {
        let mut lines = text.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
        lines.find(|(controllers, _)| wanted(controllers))
    };
    if let Some((controllers, path)) =
        line(&|names| names.split(',').any(|name| name == controller))
    {
        return below(&cgroups.join(controllers), path);
    }
    let (_, path) = line(&str::is_empty)?;
    let hybrid = cgroups.join("unified");
    below(if hybrid.is_dir() { &hybrid } else { cgroups }, path)
}

/// A path that leads out of a control-group namespace can't be followed.
fn below(mount: &Path, path: &str) -> Option<PathBuf> {
    (!path.split('/').any(|part| part == "..")).then(|| mount.join(path.trim_start_matches('/')))
}

fn has_quota(group: &Path) -> bool {
    let read = |name| fs::read_to_string(group.join(name)).ok();
    match read("cpu.max") {
        Some(limit) => !limit.starts_with("max"),
        None => read("cpu.cfs_quota_us").is_some_and(|quota| !quota.starts_with('-')),
    }
}

/// Version 2 counts µs, version 1 ns.
fn parse_throttled(text: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(' ')?;
        let value: u64 = value.trim().parse().ok()?;
        match name {
            "throttled_usec" => Some(value.saturating_mul(1000)),
            "throttled_time" => Some(value),
            _ => None,
        }
    })
}

#[cfg(test)]
mod test {
    use super::*;

    /// Files of a tree, one `path: text` per line.
    fn tree(files: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for line in files.lines().filter(|line| !line.trim().is_empty()) {
            let (path, text) = line.trim().split_once(": ").unwrap();
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text.replace("\\n", "\n")).unwrap();
        }
        root
    }

    fn check(files: &str, expected: &[(&str, &[u32], u64)]) {
        let root = tree(files);
        let cgroups = root.path().join("cgroup");
        let found = find(&root.path().join("proc"), &cgroups, 7, &[7, 8, 9]);
        let found: Vec<_> = found
            .iter()
            .map(|(group, tids)| {
                let name = group.strip_prefix(&cgroups).unwrap().to_str().unwrap();
                let tids: Vec<u32> = tids.iter().copied().collect();
                (name, tids, throttled_ns(&stat_file(group)).unwrap())
            })
            .collect();
        let expected: Vec<_> =
            expected.iter().map(|(name, tids, ns)| (*name, tids.to_vec(), *ns)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn version_2_one_group_per_vcpu_below_a_quota() {
        check(
            r"proc/7/task/7/cgroup: 0::/machine/a/emulator\n
              proc/7/task/8/cgroup: 0::/machine/a/vcpu0\n
              proc/7/task/9/cgroup: 0::/machine/a/vcpu1\n
              cgroup/machine/a/cpu.max: 150000 100000\n
              cgroup/machine/a/cpu.stat: usage_usec 5\nnr_throttled 2\nthrottled_usec 30\n
              cgroup/machine/a/emulator/cpu.max: max 100000\n
              cgroup/machine/a/vcpu0/cpu.max: 50000 100000\n
              cgroup/machine/a/vcpu0/cpu.stat: throttled_usec 4\n
              cgroup/machine/a/vcpu1/cpu.max: max 100000\n
              cgroup/machine/cpu.max: max 100000\n",
            &[("machine/a", &[7, 8, 9], 30_000), ("machine/a/vcpu0", &[8], 4_000)],
        );
    }

    #[test]
    fn version_1_counts_ns() {
        check(
            r"proc/7/task/8/cgroup: 5:memory:/x\n4:cpu,cpuacct:/machine/a\n0::/y\n
              cgroup/cpu,cpuacct/machine/a/cpu.cfs_quota_us: 50000\n
              cgroup/cpu,cpuacct/machine/a/cpu.stat: nr_throttled 2\nthrottled_time 77\n
              cgroup/cpu,cpuacct/machine/cpu.cfs_quota_us: -1\n",
            &[("cpu,cpuacct/machine/a", &[8], 77)],
        );
    }

    #[test]
    fn without_a_quota_or_out_of_sight_there_is_none() {
        check(r"proc/7/task/8/cgroup: 0::/a\n", &[]);
        check(
            r"proc/7/task/8/cgroup: 0::/../a\n
              cgroup/a/cpu.max: 1000 100000\n
              cgroup/a/cpu.stat: throttled_usec 1\n",
            &[],
        );
    }
}
