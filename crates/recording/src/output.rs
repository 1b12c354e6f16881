//! Where output goes: folders that are held while something is written into them. Who records is mostly root, and may
//! record into a folder that others can change: no link of theirs leads a file of ours elsewhere.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

/// As many as the kernel follows in one path.
const MAX_LINKS: u32 = 40;

/// An open folder. It stays the same whatever becomes of its name.
#[derive(Debug)]
pub struct OutputFolder {
    descriptor: OwnedFd,
}

impl OutputFolder {
    /// Opens a folder. On the way to it only links of root and of this process's user are followed.
    ///
    /// # Errors
    /// When it is not there, is no folder, or another user's link leads to it.
    pub fn open(path: &Path) -> io::Result<Self> {
        // That of a relative name without folders.
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let mut links = MAX_LINKS;
        Self::reopen(walk(start(Path::new("."))?, path, &mut links)?)
    }

    /// The folder that holds `path`, and the name that `path` has in it.
    ///
    /// # Errors
    /// As `open`, and when `path` ends in no name.
    pub fn of_file(path: &Path) -> io::Result<(Self, &OsStr)> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        Ok((Self::open(path.parent().unwrap_or(Path::new(".")))?, name))
    }

    /// A path to it that holds as long as this does, for this process only.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        held_path(self.descriptor.as_fd())
    }

    /// What there is of this name, if there is something. Links are followed as by `open`.
    ///
    /// # Errors
    /// When that can't be found out.
    pub fn find(&self, name: &OsStr) -> io::Result<Option<Found>> {
        let mut links = MAX_LINKS;
        match walk(self.descriptor.try_clone()?, Path::new(name), &mut links) {
            Ok(descriptor) => Ok(Some(Found { descriptor })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether there is something of this name, a link for one.
    #[must_use]
    pub fn has(&self, name: &OsStr) -> bool {
        fs::statat(&self.descriptor, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Makes a file that was not there.
    ///
    /// # Errors
    /// When its name is taken, by a link for one, or it can't be made.
    pub fn create_file(&self, name: &OsStr, mode: u32) -> io::Result<File> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(fs::openat(&self.descriptor, name, flags, Mode::from_raw_mode(mode))?.into())
    }

    /// Makes a folder for this user only, and opens it.
    ///
    /// # Errors
    /// When its name is taken, or it can't be made.
    pub fn create_folder(&self, name: &OsStr) -> io::Result<Self> {
        fs::mkdirat(&self.descriptor, name, Mode::RWXU)?;
        self.own_folder(name).map_err(|_| io::Error::other("another user has replaced it at once"))
    }

    /// Opens a folder of this user.
    ///
    /// # Errors
    /// When it is not there, is a link, or belongs to another user.
    pub fn own_folder(&self, name: &OsStr) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = Self { descriptor: fs::openat(&self.descriptor, name, flags, Mode::empty())? };
        let owner = fs::fstat(&folder.descriptor)?.st_uid;
        if owner == own_user() {
            return Ok(folder);
        }
        Err(io::Error::other(format!("it belongs to user {owner}")))
    }

    /// Gives something another name in this folder.
    ///
    /// # Errors
    /// When that can't be done.
    pub fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        Ok(fs::renameat(&self.descriptor, from, &self.descriptor, to)?)
    }

    /// Removes a file.
    ///
    /// # Errors
    /// When that can't be done.
    pub fn remove_file(&self, name: &OsStr) -> io::Result<()> {
        Ok(fs::unlinkat(&self.descriptor, name, AtFlags::empty())?)
    }

    /// Removes an empty folder.
    ///
    /// # Errors
    /// When that can't be done.
    pub fn remove_folder(&self, name: &OsStr) -> io::Result<()> {
        Ok(fs::unlinkat(&self.descriptor, name, AtFlags::REMOVEDIR)?)
    }

    /// Whether `folder` has this name in it.
    #[must_use]
    pub fn is(&self, folder: &Self, name: &OsStr) -> bool {
        let named = fs::statat(&self.descriptor, name, AtFlags::SYMLINK_NOFOLLOW);
        let held = fs::fstat(&folder.descriptor);
        let place = |stat: fs::Stat| (stat.st_dev, stat.st_ino);
        matches!((named, held), (Ok(named), Ok(held)) if place(named) == place(held))
    }

    /// Makes the names in it durable.
    ///
    /// # Errors
    /// When that can't be done.
    pub fn sync(&self) -> io::Result<()> {
        Ok(fs::fsync(&self.descriptor)?)
    }

    fn reopen(walked: OwnedFd) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { descriptor: fs::openat(&walked, ".", flags, Mode::empty())? })
    }
}

/// What has a name already.
#[derive(Debug)]
pub struct Found {
    descriptor: OwnedFd,
}

impl Found {
    /// Whether it is a file like others: no device, pipe or folder.
    ///
    /// # Errors
    /// When that can't be found out.
    pub fn is_file(&self) -> io::Result<bool> {
        Ok(FileType::from_raw_mode(fs::fstat(&self.descriptor)?.st_mode).is_file())
    }

    /// Opens it for writing. Devices belong to their users, but only root can make them.
    ///
    /// # Errors
    /// When it is a pipe of another user, who would hold us up, or can't be opened.
    pub fn open(&self) -> io::Result<File> {
        let stat = fs::fstat(&self.descriptor)?;
        if FileType::from_raw_mode(stat.st_mode).is_fifo() && !is_trusted(stat.st_uid) {
            return Err(io::Error::other(format!("it is a pipe of user {}", stat.st_uid)));
        }
        File::options().write(true).open(held_path(self.descriptor.as_fd()))
    }
}

/// A path as its user knows it, in place of one that `OutputFolder::path` gave.
pub(crate) fn shown(path: &Path) -> PathBuf {
    let mut parts = path.components();
    let held: PathBuf = parts.by_ref().take(5).collect();
    // Other paths are not looked at: processes without privileges name them, too, and may not read links.
    if !held.starts_with("/proc/self/fd") || held == Path::new("/proc/self/fd") {
        return path.to_owned();
    }
    match std::fs::read_link(&held) {
        Ok(name) => name.components().chain(parts).collect(),
        Err(_) => path.to_owned(),
    }
}

fn held_path(descriptor: BorrowedFd<'_>) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", descriptor.as_raw_fd()))
}

/// Opens what `path` leads to from `folder`, one name after the other.
fn walk(mut folder: OwnedFd, path: &Path, links: &mut u32) -> io::Result<OwnedFd> {
    for part in path.components() {
        let name = match part {
            Component::RootDir => {
                folder = start(Path::new("/"))?;
                continue;
            }
            Component::CurDir | Component::Prefix(_) => continue,
            Component::ParentDir => OsStr::new(".."),
            Component::Normal(name) => name,
        };
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let next = fs::openat(&folder, name, flags, Mode::empty())?;
        let stat = fs::fstat(&next)?;
        folder = match FileType::from_raw_mode(stat.st_mode).is_symlink() {
            true => follow(folder, name, &next, links)?,
            false => next,
        };
    }
    Ok(folder)
}

/// Opens what the link `name` in `folder` leads to.
fn follow(folder: OwnedFd, name: &OsStr, link: &OwnedFd, links: &mut u32) -> io::Result<OwnedFd> {
    if fs::fstatfs(link)?.f_type == fs::PROC_SUPER_MAGIC {
        // Those of /proc are the kernel's, and lead to what has no path, too.
        return Ok(fs::openat(&folder, name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?);
    }
    let owner = fs::fstat(link)?.st_uid;
    if !is_trusted(owner) {
        let name = name.display();
        return Err(io::Error::other(format!(
            "{name} is a link of user {owner}, which is not followed: give the path it leads to"
        )));
    }
    *links = links.checked_sub(1).ok_or(Errno::LOOP)?;
    let target = fs::readlinkat(link, "", Vec::new())?;
    walk(folder, Path::new(&std::ffi::OsString::from_vec(target.into_bytes())), links)
}

fn start(path: &Path) -> io::Result<OwnedFd> {
    Ok(fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

fn is_trusted(user: u32) -> bool {
    user == 0 || user == own_user()
}

fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod test {
    use std::os::unix::fs::{lchown, symlink};

    use super::*;

    #[test]
    fn only_links_of_root_and_oneself_are_followed() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        std::fs::create_dir(path("real")).unwrap();
        symlink("real", path("link")).unwrap();
        symlink("link", path("second")).unwrap();
        symlink("loop", path("loop")).unwrap();
        for name in ["real", "link", "second", "link/../real", "real/."] {
            let folder = OutputFolder::open(&path(name)).unwrap();
            let real = path("real").canonicalize().unwrap();
            assert_eq!(shown(&folder.path().join("x")), real.join("x"), "{name}");
            assert!(OutputFolder::open(&folder.path()).is_ok());
        }
        assert!(OutputFolder::open(&path("loop")).is_err());
        assert!(OutputFolder::open(Path::new("")).is_ok());
        if !rustix::process::geteuid().is_root() {
            return skip::skip("only root can make links of other users");
        }
        lchown(path("link"), Some(65534), Some(65534)).unwrap();
        for name in ["link", "second", "link/../real"] {
            let error = OutputFolder::open(&path(name)).unwrap_err().to_string();
            assert!(error.contains("link is a link of user 65534"), "{error}");
        }
        let folder = OutputFolder::open(place.path()).unwrap();
        assert!(folder.find(OsStr::new("link")).is_err());
        assert!(folder.create_file(OsStr::new("link"), 0o600).is_err());
    }

    #[test]
    fn a_file_is_made_once_and_devices_are_opened() {
        let place = tempfile::tempdir().unwrap();
        let folder = OutputFolder::open(place.path()).unwrap();
        let name = OsStr::new("file");
        assert!(folder.find(name).unwrap().is_none() && !folder.has(name));
        folder.create_file(name, 0o600).unwrap();
        assert!(folder.find(name).unwrap().unwrap().is_file().unwrap() && folder.has(name));
        assert!(folder.create_file(name, 0o600).is_err());
        let (devices, name) = OutputFolder::of_file(Path::new("/dev/null")).unwrap();
        let null = devices.find(name).unwrap().unwrap();
        assert!(!null.is_file().unwrap() && null.open().is_ok());
    }
}
