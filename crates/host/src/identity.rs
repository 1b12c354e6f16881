//! The identity of a process: its user, its PID in its own namespace, the name it was started under.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags, fstat, open, openat2};

/// The kernel cuts thread names at this length.
const MAX_COMM_BYTES: usize = 15;

/// Longer command lines are cut.
const MAX_COMMAND_BYTES: u64 = 4096;

/// Whose a process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Its effective user.
    pub user: u32,
    /// Its id in its own pid namespace.
    pub own_pid: u32,
}

/// Reads `/proc/PID/status` below `directory`.
///
/// # Errors
/// If the process is gone.
pub fn read(directory: &Path) -> io::Result<Identity> {
    let text = std::fs::read_to_string(directory.join("status"))?;
    parse(&text).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

/// `Uid:` lists real, effective, saved and file system user; `NSpid:` the ids from our namespace to the innermost. No
/// line before them can be forged: the kernel escapes newlines in `Name:`.
fn parse(text: &str) -> Option<Identity> {
    let line = |key: &str| text.lines().find_map(|line| line.strip_prefix(key));
    let user = line("Uid:")?.split_whitespace().nth(1)?.parse().ok()?;
    let pids = line("NSpid:").or_else(|| line("Pid:"))?;
    Some(Identity { user, own_pid: pids.split_whitespace().next_back()?.parse().ok()? })
}

/// The program of the process at `directory`, and the name that it was started by: a symbolic or hard link to the very
/// same file. Debian's `redis-server` is a link to `redis-check-rdb`; mappings and `exe` tell the latter only.
///
/// The process chooses both its arguments and its name, so this is for showing, and only if it leads to the program.
#[must_use]
pub fn started_as(directory: &Path) -> Option<(PathBuf, PathBuf)> {
    let program = std::fs::read_link(directory.join("exe")).ok()?;
    let file = std::fs::metadata(directory.join("exe")).ok()?;
    let argument = first_argument(directory);
    let sibling = crate::procfs::read_comm(directory).ok().and_then(|name| {
        let whole = name.len() < MAX_COMM_BYTES && !name.contains('/');
        whole.then(|| program.parent().map(|folder| folder.join(name)))?
    });
    let root = directory.join("root");
    let is_it = |path: &PathBuf| {
        *path != program && identity_below(&root, path) == Some((file.dev(), file.ino()))
    };
    let name = argument.into_iter().chain(sibling).find(is_it)?;
    Some((program, name))
}

/// An absolute path, up to the blank that servers put behind it when they write their title.
fn first_argument(directory: &Path) -> Option<PathBuf> {
    let mut bytes = Vec::new();
    let file = File::open(directory.join("cmdline")).ok()?;
    file.take(MAX_COMMAND_BYTES).read_to_end(&mut bytes).ok()?;
    let argument = bytes.split(|byte| matches!(byte, 0 | b' ')).next()?;
    let argument = std::str::from_utf8(argument).ok()?;
    argument.starts_with('/').then(|| PathBuf::from(argument))
}

/// Device and inode of what `path` leads to in a process' root, without opening it.
fn identity_below(root: &Path, path: &Path) -> Option<(u64, u64)> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let root = open(root, flags | OFlags::DIRECTORY, Mode::empty()).ok()?;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let file = openat2(root, path, flags, Mode::empty(), resolve).ok()?;
    let stat = fstat(file).ok()?;
    Some((stat.st_dev, stat.st_ino))
}

#[cfg(test)]
mod test {
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use super::*;

    #[test]
    fn user_and_own_pid() {
        let text =
            "Name:\ta\\nUid:\t9\nPid:\t812\nUid:\t1000\t1001\t1000\t1000\nNSpid:\t812\t17\t1\n";
        assert_eq!(parse(text), Some(Identity { user: 1001, own_pid: 1 }));
        assert_eq!(
            parse("Pid:\t812\nUid:\t0\t0\t0\t0\n"),
            Some(Identity { user: 0, own_pid: 812 })
        );
        assert_eq!(parse("Name:\tx\n"), None);
        let own = read(Path::new("/proc/self")).unwrap();
        assert_eq!(own.user, rustix::process::geteuid().as_raw());
    }

    #[test]
    fn a_link_s_name_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        std::fs::copy("/bin/sleep", folder.join("real")).unwrap();
        symlink("real", folder.join("link")).unwrap();
        std::fs::copy("/bin/sleep", folder.join("other")).unwrap();
        let check = |argument: &str, start: &str, expected: Option<&str>| {
            use std::os::unix::process::CommandExt;
            let mut child =
                Command::new(folder.join(start)).arg0(argument).arg("60").spawn().unwrap();
            let directory = PathBuf::from(format!("/proc/{}", child.id()));
            // `spawn` may return before the kernel has set the arguments.
            while std::fs::read(directory.join("cmdline")).unwrap().is_empty() {}
            let names = started_as(&directory);
            child.kill().unwrap();
            child.wait().unwrap();
            let expected = expected.map(|name| (folder.join("real"), folder.join(name)));
            assert_eq!(names, expected, "{argument} {start}");
        };
        let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
        check(&path("link"), "link", Some("link"));
        check(&(path("link") + " *:6379"), "real", Some("link"));
        check("server", "link", Some("link"));
        check("real", "real", None);
        check(&path("other"), "real", None);
        check("/etc/passwd", "real", None);
    }
}
