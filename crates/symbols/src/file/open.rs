//! Opening a file that a process named: never a device, a FIFO or a socket, and never waiting for one.
//!
//! The file is first taken without opening it (`O_PATH`: no driver and no other end of a pipe hears of it), then looked
//! at, then opened through its own descriptor: the checked file is the one that is read, even if the path now leads
//! elsewhere.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, open, openat2};
use rustix::io::Errno;

/// Larger files are not read.
const MAX_FILE_BYTES: u64 = 4 << 30;

/// Where a file can be found. A process in a container has its own file system, and a mapped file may have been deleted, so
/// its path alone is not enough.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A path that the kernel or the administrator made; links are followed: `/proc/PID/map_files/START-END`.
    Known(PathBuf),
    /// A path below a root, `/proc/PID/root` or `/`. Neither symbolic links nor `..` lead out of the root: mapped files'
    /// paths have none, and those of a container mean something else out here.
    Below {
        root: PathBuf,
        /// The path, as the process sees it.
        path: PathBuf,
        /// The file must belong to this user or to root.
        owner: Option<u32>,
    },
}

impl Place {
    /// Opens the regular file at this place for reading.
    ///
    /// # Errors
    /// One clause: it is gone, forbidden, too large, or no regular file.
    pub fn open(&self) -> Result<File, String> {
        let taken = self.take().map_err(describe)?;
        let stat = fstat(&taken).map_err(describe)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err("not a regular file".to_owned());
        }
        let owners = match self {
            Self::Below { owner: Some(owner), .. } => Some([0, *owner]),
            _ => None,
        };
        if owners.is_some_and(|owners| !owners.contains(&stat.st_uid)) {
            return Err("its file belongs to another user".to_owned());
        }
        if u64::try_from(stat.st_size).map_or(true, |bytes| MAX_FILE_BYTES < bytes) {
            return Err(format!("larger than {} GiB", MAX_FILE_BYTES >> 30));
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let itself = format!("/proc/self/fd/{}", taken.as_raw_fd());
        let file = open(itself, flags, Mode::empty()).map_err(describe)?;
        Ok(File::from(file))
    }

    fn take(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        match self {
            Self::Known(link) => open(link, flags, Mode::empty()),
            Self::Below { root, path, .. } => {
                let root = openat2(
                    CWD,
                    root,
                    flags | OFlags::DIRECTORY,
                    Mode::empty(),
                    ResolveFlags::empty(),
                )?;
                let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
                openat2(root, path, flags, Mode::empty(), resolve)
            }
        }
    }
}

impl From<&Path> for Place {
    /// A path in our own file system.
    fn from(path: &Path) -> Self {
        Self::Below { root: PathBuf::from("/"), path: path.to_owned(), owner: None }
    }
}

fn describe(error: Errno) -> String {
    match error {
        Errno::NOENT => "its file is gone".to_owned(),
        Errno::ACCESS | Errno::PERM => "no permission to read its file".to_owned(),
        Errno::LOOP => "its path leads over a symbolic link by now".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod test {
    use std::os::unix::fs::symlink;

    use rustix::fs::mkfifoat;

    use super::*;

    fn check(place: Place, expected: &str) {
        match place.open() {
            Ok(file) => {
                let text = std::io::read_to_string(file).unwrap();
                assert_eq!(text, expected, "{place:?}");
            }
            Err(reason) => assert_eq!(reason, expected, "{place:?}"),
        }
    }

    fn below(root: &Path, path: &str) -> Place {
        Place::Below { root: root.to_owned(), path: path.into(), owner: None }
    }

    #[test]
    fn only_regular_files_below_the_root_are_opened() {
        let folder = tempfile::tempdir().unwrap();
        let folder = &folder.path().canonicalize().unwrap();
        let root = &folder.join("root");
        std::fs::create_dir(root).unwrap();
        std::fs::write(folder.join("outside"), "outside").unwrap();
        std::fs::write(root.join("file"), "inside").unwrap();
        symlink(folder.join("outside"), root.join("link")).unwrap();
        symlink("/", root.join("up")).unwrap();
        mkfifoat(CWD, root.join("fifo"), Mode::RUSR).unwrap();

        check(below(root, "/file"), "inside");
        check(below(root, "../../../file"), "inside");
        check(below(root, "/gone"), "its file is gone");
        check(below(root, "/link"), "its path leads over a symbolic link by now");
        check(below(root, "/up/etc/passwd"), "its path leads over a symbolic link by now");
        check(below(root, "/fifo"), "not a regular file");
        check(below(root, "/"), "not a regular file");
        check(Place::from(Path::new("/dev/zero")), "not a regular file");
        check(Place::Known(root.join("fifo")), "not a regular file");
        check(Place::from(&*root.join("file")), "inside");
        let owned =
            |owner| Place::Below { root: root.clone(), path: "file".into(), owner: Some(owner) };
        let own = rustix::process::geteuid().as_raw();
        check(owned(own), "inside");
        if own != 0 {
            check(owned(own + 1), "its file belongs to another user");
        }
    }

    #[test]
    fn huge_files_are_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(MAX_FILE_BYTES + 1).unwrap();
        check(Place::Known(file.path().to_owned()), "larger than 4 GiB");
    }
}
