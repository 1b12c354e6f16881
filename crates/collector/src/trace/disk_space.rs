//! Free space on a trace's file system: a trace that fills it would take it from everybody.

use std::path::Path;

/// Bytes of a finished trace's event, rounded up: the space that finishing takes, while the rings' spools are still there.
const EVENT_BYTES: u64 = 8;
const MAX_KEPT: u64 = 1 << 30;

/// A file system's size and free space, in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct DiskSpace {
    size: u64,
    free: u64,
}

/// The space where `path` lies. `None`: the file system does not say.
pub(super) fn disk_space(path: &Path) -> Option<DiskSpace> {
    let found = rustix::fs::statvfs(path).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
    // Some don't say their size, either.
    (0 < found.f_blocks)
        .then(|| DiskSpace { size: bytes(found.f_blocks), free: bytes(found.f_bavail) })
}

impl DiskSpace {
    /// Why a trace of `stored` events has to end now, if it has: what is to stay free would not, once it is finished.
    pub(super) fn lack(self, min_free: Option<u64>, stored: u64) -> Option<String> {
        let keep = min_free.unwrap_or((self.size / 20).min(MAX_KEPT));
        let finish = stored.saturating_mul(EVENT_BYTES);
        if 0 < keep && self.free < keep.saturating_add(finish) {
            return Some(format!(
                "the trace ended early: its disk has {} free; {} are to stay free (--min-free), finishing \
                 takes {}",
                mib(self.free),
                mib(keep),
                mib(finish)
            ));
        }
        None
    }
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_floor_and_what_finishing_takes() {
        const MIB: u64 = 1 << 20;
        let check = |size, free, min_free, stored, lacks| {
            let lack = DiskSpace { size, free }.lack(min_free, stored);
            assert_eq!(lack.is_some(), lacks, "{size} {free} {min_free:?} {stored}: {lack:?}");
        };
        // 5 % of a small disk, 1 GiB of a large one.
        check(100 * MIB, 5 * MIB, None, 0, false);
        check(100 * MIB, 5 * MIB - 1, None, 0, true);
        check(1 << 40, 1 << 30, None, 0, false);
        check(1 << 40, (1 << 30) - 1, None, 0, true);
        // What the user says; 0: all of it may be used.
        check(100 * MIB, 50 * MIB, Some(50 * MIB), 0, false);
        check(100 * MIB, 49 * MIB, Some(50 * MIB), 0, true);
        check(100 * MIB, 0, Some(0), MIB, false);
        // Finishing takes space, too.
        check(100 * MIB, 13 * MIB, None, MIB, false);
        check(100 * MIB, 13 * MIB, None, MIB + 1, true);
        check(100 * MIB, 13 * MIB, Some(u64::MAX), u64::MAX, true);
    }
}
