//! Where Linux keeps what a session reads.

use std::ffi::OsString;
use std::path::PathBuf;

/// The roots of everything that is read of a host. Tests have their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roots {
    pub proc: PathBuf,
    pub sys: PathBuf,
    /// Control groups, version 2.
    pub cgroups: PathBuf,
    /// The folder of lock files: `$RUNTIME_DIRECTORY`, which systemd makes for a service, else `/run/vmscope`.
    pub locks: PathBuf,
    /// The folder of configurations.
    pub config: PathBuf,
    /// The folder of the audit log: `$LOGS_DIRECTORY`, which systemd makes for a service, else `/var/log/vmscope`.
    pub logs: PathBuf,
    /// The folder of what is remembered of VMs' names.
    pub state: PathBuf,
}

impl Default for Roots {
    /// The roots of this host.
    fn default() -> Self {
        Self {
            proc: "/proc".into(),
            sys: "/sys".into(),
            cgroups: "/sys/fs/cgroup".into(),
            locks: first_folder(std::env::var_os("RUNTIME_DIRECTORY"), "/run/vmscope"),
            config: "/etc/vmscope".into(),
            logs: first_folder(std::env::var_os("LOGS_DIRECTORY"), "/var/log/vmscope"),
            state: host::vms::STATE_FOLDER.into(),
        }
    }
}

/// The first of the folders that systemd made, if it made any.
fn first_folder(made: Option<OsString>, otherwise: &str) -> PathBuf {
    let made = made.iter().flat_map(std::env::split_paths).next();
    made.filter(|folder| folder.is_absolute()).unwrap_or_else(|| otherwise.into())
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn locks_lie_where_systemd_says() {
        let check = |variable: Option<&str>, expected: &str| {
            let folder = first_folder(variable.map(Into::into), "/run/vmscope");
            assert_eq!(folder, PathBuf::from(expected));
        };
        check(None, "/run/vmscope");
        check(Some(""), "/run/vmscope");
        check(Some("relative"), "/run/vmscope");
        check(Some("/run/agent"), "/run/agent");
        check(Some("/run/one:/run/other"), "/run/one");
    }
}
