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
}

impl Default for Roots {
    /// The roots of this host.
    fn default() -> Self {
        Self {
            proc: "/proc".into(),
            sys: "/sys".into(),
            cgroups: "/sys/fs/cgroup".into(),
            locks: locks(std::env::var_os("RUNTIME_DIRECTORY")),
        }
    }
}

/// The first of the folders that systemd made, if it made any.
fn locks(runtime_directory: Option<OsString>) -> PathBuf {
    let made = runtime_directory.iter().flat_map(std::env::split_paths).next();
    made.filter(|folder| folder.is_absolute()).unwrap_or_else(|| "/run/vmscope".into())
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn locks_lie_where_systemd_says() {
        let check = |variable: Option<&str>, expected: &str| {
            assert_eq!(locks(variable.map(Into::into)), PathBuf::from(expected));
        };
        check(None, "/run/vmscope");
        check(Some(""), "/run/vmscope");
        check(Some("relative"), "/run/vmscope");
        check(Some("/run/agent"), "/run/agent");
        check(Some("/run/one:/run/other"), "/run/one");
    }
}
