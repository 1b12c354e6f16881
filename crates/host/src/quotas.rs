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

/// The groups that threads were found in, and those above: which have a quota.
#[derive(Debug, Default)]
pub struct Snapshot {
    has_quota: BTreeMap<PathBuf, bool>,
    /// `/proc/PID/cgroup` of the processes.
    places: BTreeMap<u32, String>,
}

impl Snapshot {
    /// All groups with a quota that hold one of the threads of process `pid`, or are above one that does: their folders,
    /// with these threads. What can't be read (mostly: the thread is gone) has none.
    pub fn find(
        &mut self,
        proc: &Path,
        cgroups: &Path,
        pid: u32,
        tids: &[u32],
    ) -> BTreeMap<PathBuf, BTreeSet<u32>> {
        self.places.insert(pid, place(proc, pid));
        let mut groups = BTreeMap::<PathBuf, BTreeSet<u32>>::new();
        for tid in tids {
            let file = proc.join(format!("{pid}/task/{tid}/cgroup"));
            let text = fs::read_to_string(file).unwrap_or_default();
            let Some(group) = cpu_group(cgroups, &text) else { continue };
            for above in group.ancestors().filter(|group| group.starts_with(cgroups)) {
                groups.entry(above.to_owned()).or_default().insert(*tid);
            }
        }
        groups.retain(|group, _| match self.has_quota.get(group) {
            Some(has_quota) => *has_quota,
            None => *self.has_quota.entry(group.clone()).or_insert(has_quota(group)),
        });
        groups
    }

    /// Whether a group has got or lost its quota since then, or a process is in another group. Threads that moved without
    /// their process are not seen.
    #[must_use]
    pub fn is_outdated(&self, proc: &Path) -> bool {
        self.has_quota.iter().any(|(group, had_quota)| has_quota(group) != *had_quota)
            || self.places.iter().any(|(pid, was)| place(proc, *pid) != *was)
    }
}

fn place(proc: &Path, pid: u32) -> String {
    fs::read_to_string(proc.join(format!("{pid}/cgroup"))).unwrap_or_default()
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
        // Where controllers share a hierarchy, its folder may list them in another order, with a link for each.
        let mount = [controllers, controller].map(|name| cgroups.join(name));
        let mount = mount.iter().find(|mount| mount.is_dir()).unwrap_or(&mount[0]);
        return below(mount, path);
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
        let found = Snapshot::default().find(&root.path().join("proc"), &cgroups, 7, &[7, 8, 9]);
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

    /// As systemd mounts them where the kernel lists `cpuacct` first: `cpu` leads to `cpu,cpuacct`.
    #[test]
    fn version_1_hierarchies_are_found_by_each_of_their_names() {
        check(
            r"proc/7/task/8/cgroup: 4:cpuacct,cpu:/machine.slice/a\n
              cgroup/cpu/machine.slice/cpu.cfs_quota_us: 50000\n
              cgroup/cpu/machine.slice/cpu.stat: throttled_time 7\n
              cgroup/cpu/machine.slice/a/cpu.cfs_quota_us: 20000\n
              cgroup/cpu/machine.slice/a/cpu.stat: throttled_time 9\n",
            &[("cpu/machine.slice", &[8], 7), ("cpu/machine.slice/a", &[8], 9)],
        );
    }

    #[test]
    fn a_snapshot_is_outdated_once_a_quota_or_a_place_changes() {
        let root = tree(
            r"proc/7/cgroup: 0::/a/b\n
              proc/7/task/8/cgroup: 0::/a/b/vcpu0\n
              cgroup/a/cpu.max: max 100000\n
              cgroup/a/b/cpu.max: max 100000\n
              cgroup/a/b/vcpu0/cpu.max: max 100000\n",
        );
        let (proc, cgroups) = (root.path().join("proc"), root.path().join("cgroup"));
        let write = |path: &str, text: &str| fs::write(root.path().join(path), text).unwrap();
        let look = || {
            let mut snapshot = Snapshot::default();
            let found = snapshot.find(&proc, &cgroups, 7, &[8]);
            assert!(!snapshot.is_outdated(&proc));
            (snapshot, found.len())
        };
        let (before, n) = look();
        assert_eq!(n, 0);
        write("cgroup/a/cpu.max", "5000 100000\n");
        assert!(before.is_outdated(&proc), "the parent has a quota");
        let (before, n) = look();
        assert_eq!(n, 1);
        write("cgroup/a/cpu.max", "9000 100000\n");
        assert!(!before.is_outdated(&proc), "another quota is still one");
        write("cgroup/a/cpu.max", "max 100000\n");
        assert!(before.is_outdated(&proc));
        let (before, _) = look();
        write("proc/7/cgroup", "0::/c\n");
        assert!(before.is_outdated(&proc));
        let (before, _) = look();
        fs::remove_dir_all(root.path().join("proc/7")).unwrap();
        assert!(before.is_outdated(&proc), "the process is gone");
        assert!(!Snapshot::default().is_outdated(&proc));
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
