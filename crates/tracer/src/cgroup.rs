//! Which control group a folder is.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::{Filter, TracerError};

impl Filter {
    /// The control group with this folder (say `/sys/fs/cgroup/machine.slice`), and those below it.
    ///
    /// # Errors
    /// If it is no folder of the unified hierarchy (cgroup v2).
    pub fn cgroup(folder: &Path) -> Result<Self, TracerError> {
        let failed = |source| TracerError::Cgroup { folder: folder.to_owned(), source };
        let real = folder.canonicalize().map_err(failed)?;
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").map_err(failed)?;
        let level = level(&mounts, &real).ok_or_else(|| {
            failed(io::Error::new(io::ErrorKind::InvalidInput, "it is not in a cgroup2 mount"))
        })?;
        let id = real.metadata().map_err(failed)?.ino();
        Ok(Self::Cgroup { id, level })
    }
}

/// How many folders `folder` lies below the root of the unified hierarchy, by the text of `/proc/self/mountinfo`. A line:
/// number, parent, device, root of the mount, where it is mounted, ..., `-`, type, ...
fn level(mounts: &str, folder: &Path) -> Option<u32> {
    let depth = |path: &Path| path.components().count();
    let level = |line: &str| {
        let (mount, file_system) = line.split_once(" - ")?;
        let mut fields = mount.split_whitespace().skip(3);
        let (root, at) = (fields.next()?, fields.next()?);
        if file_system.split_whitespace().next() != Some("cgroup2") {
            return None;
        }
        let below = folder.strip_prefix(at).ok()?;
        // The root has one component, `/`.
        u32::try_from(depth(below) + depth(Path::new(root)) - 1).ok()
    };
    mounts.lines().find_map(level)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn levels() {
        let mounts = "\
25 30 0:22 / /sys rw,nosuid shared:7 - sysfs sysfs rw
30 25 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate
31 25 0:26 /a/b /mnt/part rw - cgroup2 cgroup2 rw
nonsense
";
        let check = |folder: &str, expected| assert_eq!(level(mounts, Path::new(folder)), expected);
        check("/sys/fs/cgroup", Some(0));
        check("/sys/fs/cgroup/machine.slice/vm1", Some(2));
        check("/mnt/part", Some(2));
        check("/mnt/part/c", Some(3));
        check("/sys/fs", None);
        check("/sys/fs/cgroups", None);
        assert_eq!(level("", Path::new("/sys/fs/cgroup")), None);
    }
}
