//! Where Linux keeps what a session reads.

use std::path::PathBuf;

/// The roots of everything that is read of a host. Tests have their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roots {
    /// `/proc`.
    pub proc: PathBuf,
    /// `/sys`.
    pub sys: PathBuf,
    /// Control groups, version 2.
    pub cgroups: PathBuf,
    /// The folder of lock files.
    pub locks: PathBuf,
}

impl Default for Roots {
    /// This host.
    fn default() -> Self {
        Self {
            proc: "/proc".into(),
            sys: "/sys".into(),
            cgroups: "/sys/fs/cgroup".into(),
            locks: "/run".into(),
        }
    }
}
