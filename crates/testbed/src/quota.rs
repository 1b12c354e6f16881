//! CPU quotas: a guest's QEMU in a control group of its own (cgroup v2), as on hosts that sell shares of
//! CPUs.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where control groups are mounted.
pub(crate) const ROOT: &str = "/sys/fs/cgroup";
/// The time over which a quota counts; the kernel's own default.
const PERIOD_US: u32 = 100_000;

/// A control group that holds one guest; removed when dropped, which must be after its processes ended.
#[derive(Debug)]
pub(crate) struct Group {
    path: PathBuf,
}

impl Group {
    /// Makes the group `root`/`run`/`guest` and moves the process into it, which from then on gets the
    /// time of `quota` CPUs.
    pub(crate) fn hold(
        root: &Path,
        run: &Path,
        guest: &str,
        process: u32,
        quota: f64,
    ) -> io::Result<Self> {
        let parent = root.join(run);
        let group = Self { path: parent.join(guest) };
        fs::create_dir_all(&group.path).map_err(|error| naming(&group.path, &error))?;
        // A group has the quotas' files only when all above it hand them down.
        for above in [root, &parent] {
            write(&above.join("cgroup.subtree_control"), "+cpu")?;
        }
        let limit = format!("{:.0} {PERIOD_US}", quota * f64::from(PERIOD_US));
        write(&group.path.join("cpu.max"), &limit)?;
        write(&group.path.join("cgroup.procs"), &process.to_string())?;
        Ok(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // At worst an empty group stays behind; the run's own one stays until the last guest's went.
        let _ = fs::remove_dir(&self.path);
        let _ = self.path.parent().map(fs::remove_dir);
    }
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    fs::write(path, text).map_err(|error| naming(path, &error))
}

fn naming(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(quota: f64, expected: &str) {
        let root = tempfile::tempdir().unwrap();
        let _group = Group::hold(root.path(), Path::new("run"), "a", 4711, quota).unwrap();
        let read = |name: &str| fs::read_to_string(root.path().join(name)).unwrap();
        assert_eq!(read("run/a/cpu.max"), expected);
        assert_eq!(read("run/a/cgroup.procs"), "4711");
        assert_eq!(read("cgroup.subtree_control"), "+cpu");
        assert_eq!(read("run/cgroup.subtree_control"), "+cpu");
    }

    #[test]
    fn quotas_are_shares_of_a_tenth_of_a_second() {
        check(0.5, "50000 100000");
        check(0.01, "1000 100000");
        check(2.0, "200000 100000");
        check(1.0 / 3.0, "33333 100000");
    }

    #[test]
    fn what_can_not_be_written_is_named() {
        let error = Group::hold(Path::new("/proc"), Path::new("run"), "a", 1, 0.5).unwrap_err();
        assert!(error.to_string().starts_with("/proc/run/a: "), "{error}");
    }
}
