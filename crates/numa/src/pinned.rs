//! Memory that the kernel can't move, because a device or a ring may write to it at any time.

use std::fs;
use std::path::Path;

/// Open files of a process that are looked at.
const MAX_FILES: usize = 1 << 16;
/// A VM of which less is pinned can be moved: the kernel leaves these pages where they are.
const MIN_SHARE: u64 = 10;

/// Why a VM with so much memory stays where it is, of its process's folder in `/proc`: at least a tenth of it is pinned.
///
/// `VmPin` has what io_uring, RDMA and iommufd pin. Pages that VFIO pins count as locked, as those of `mlock` do, which can
/// be moved: `VmLck` counts where the process has a device of VFIO.
pub(crate) fn why_pinned(folder: &Path, bytes: u64) -> Option<String> {
    let status = fs::read_to_string(folder.join("status")).unwrap_or_default();
    let of = |key: &str| {
        let value = status.lines().find_map(|line| line.strip_prefix(key))?;
        value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    };
    let (pinned, locked) = (of("VmPin:").unwrap_or(0), of("VmLck:").unwrap_or(0));
    let is_much = |part: u64| 0 < part && bytes <= part.saturating_mul(MIN_SHARE);
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    if is_much(pinned) {
        return Some(format!(
            "{} MiB of its memory are pinned, by io_uring or a device",
            mib(pinned)
        ));
    }
    let is_vfios = is_much(locked) && has_vfio(folder);
    is_vfios.then(|| format!("{} MiB of its memory are pinned for a VFIO device", mib(locked)))
}

fn has_vfio(folder: &Path) -> bool {
    let mut files = fs::read_dir(folder.join("fd")).into_iter().flatten().flatten().take(MAX_FILES);
    let is_one = |entry: fs::DirEntry| {
        let target = fs::read_link(entry.path()).unwrap_or_default();
        let target = target.to_string_lossy();
        target.starts_with("/dev/vfio/") || target.starts_with("anon_inode:[vfio")
    };
    files.any(is_one)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn pinned_memory() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path();
        fs::create_dir(folder.join("fd")).unwrap();
        let check = |status: &str, expected: Option<&str>| {
            fs::write(folder.join("status"), status).unwrap();
            assert_eq!(why_pinned(folder, 100 << 20).as_deref(), expected, "{status}");
        };
        let pinned = "12 MiB of its memory are pinned, by io_uring or a device";
        let vfio = "100 MiB of its memory are pinned for a VFIO device";
        let lines = |locked: u64, pinned: u64| {
            format!("VmSize:\t 1 kB\nVmLck:\t  {locked} kB\nVmPin:\t  {pinned} kB\n")
        };
        check(&lines(0, 0), None);
        check(&lines(0, 12 << 10), Some(pinned));
        check(&lines(0, 9 << 10), None);
        // Locked by mlock: these pages can be moved.
        check(&lines(100 << 10, 0), None);
        std::os::unix::fs::symlink("/dev/vfio/12", folder.join("fd/9")).unwrap();
        check(&lines(100 << 10, 0), Some(vfio));
        check(&lines(100 << 10, 12 << 10), Some(pinned));
        check("nonsense", None);
    }
}
