//! Unix sockets of VMMs. Their paths come from strangers, and lie in the VMM's mount namespace.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Where a VMM's Unix socket is; made of a path alone, in this mount namespace. Nothing is known yet about what lies there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmmSocket {
    /// What the VMM has for `/`.
    root: PathBuf,
    /// Below it.
    path: PathBuf,
    origin: Origin,
}

/// How it is known that the VMM has the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// Its command line says so.
    Named,
    /// The kernel says so: it is one of its open files.
    Open,
}

/// Why a socket is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SocketError {
    #[error("{0}")]
    Connect(Errno),
    /// The user that runs a VM chooses the path, and must not make us use what is of others.
    #[error("it belongs to user {0}")]
    Stranger(u32),
}

/// A socket's file, whatever its path leads to by now.
#[derive(Debug)]
pub struct SocketFile {
    descriptor: OwnedFd,
    /// The user that may listen there.
    user: u32,
    /// Its file system.
    pub device: u64,
    pub inode: u64,
}

impl VmmSocket {
    /// A socket that a command line names, by its absolute path in the VMM's own root.
    #[must_use]
    pub fn named(root: PathBuf, path: PathBuf) -> Self {
        Self { root, path, origin: Origin::Named }
    }

    /// A socket at which a VMM listens, by its absolute path in the VMM's own root.
    #[must_use]
    pub fn open_in(root: PathBuf, path: PathBuf) -> Self {
        Self { root, path, origin: Origin::Open }
    }

    /// As the VMM calls it.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Finds the socket's file, which is one of `user`, who runs the VM. A link is not followed, and none leads out of the
    /// VMM's root.
    ///
    /// # Errors
    /// When there is no socket, or it is another user's.
    pub fn find(&self, user: u32) -> Result<SocketFile, SocketError> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let descriptor = open_below(&self.root, &self.path, flags).map_err(SocketError::Connect)?;
        let stat = rustix::fs::fstat(&descriptor).map_err(SocketError::Connect)?;
        if !FileType::from_raw_mode(stat.st_mode).is_socket() {
            return Err(SocketError::Connect(Errno::NOTSOCK));
        }
        // A manager that makes the socket for the VM may leave it to root.
        let is_managers = stat.st_uid == 0 && self.origin == Origin::Open;
        if stat.st_uid != user && !is_managers {
            return Err(SocketError::Stranger(stat.st_uid));
        }
        Ok(SocketFile { descriptor, user, device: stat.st_dev, inode: stat.st_ino })
    }

    /// Connects to it: see [`SocketFile::connect`].
    ///
    /// # Errors
    /// When there is no socket, or another user's, or nothing listens.
    pub fn connect(&self, user: u32) -> Result<OwnedFd, SocketError> {
        self.find(user)?.connect()
    }
}

impl From<PathBuf> for VmmSocket {
    fn from(path: PathBuf) -> Self {
        Self::named("/".into(), path)
    }
}

impl From<&str> for VmmSocket {
    fn from(path: &str) -> Self {
        Self::from(PathBuf::from(path))
    }
}

impl std::fmt::Display for VmmSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.path.display().fmt(f)
    }
}

impl SocketFile {
    /// Connects to this socket, wherever its path leads by now, without waiting, if the user listens who runs the VM.
    ///
    /// # Errors
    /// When nothing listens, or another user.
    pub fn connect(&self) -> Result<OwnedFd, SocketError> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let socket = socket.map_err(SocketError::Connect)?;
        let path = format!("/proc/self/fd/{}", self.descriptor.as_raw_fd());
        let connected = SocketAddrUnix::new(path).and_then(|path| net::connect(&socket, &path));
        connected.map_err(SocketError::Connect)?;
        let listener = net::sockopt::socket_peercred(&socket).map_err(SocketError::Connect)?;
        let listener = listener.uid.as_raw();
        if listener == self.user { Ok(socket) } else { Err(SocketError::Stranger(listener)) }
    }
}

/// Opens what `path` leads to below `root`, which no link leads out of.
pub(crate) fn open_below(root: &Path, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let folder = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(root, folder, Mode::empty())?;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(root, path, flags, Mode::empty(), resolve)
}

#[cfg(test)]
mod test {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn only_the_vms_user_is_talked_to() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("port");
        let _listener = UnixListener::bind(&path).unwrap();
        let own = rustix::process::getuid().as_raw();
        let connect = |user| VmmSocket::from(path.clone()).connect(user).map(drop);
        assert_eq!(connect(own), Ok(()));
        assert_eq!(connect(own + 1), Err(SocketError::Stranger(own)));
    }

    #[test]
    fn links_to_sockets_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let [port, link, file] = ["port", "link", "file"].map(|name| folder.path().join(name));
        let _listener = UnixListener::bind(&port).unwrap();
        symlink(&port, &link).unwrap();
        std::fs::write(&file, "").unwrap();
        let user = rustix::process::getuid().as_raw();
        let find = |path: &Path| VmmSocket::from(path.to_owned()).find(user).map(drop);
        assert_eq!(find(&port), Ok(()));
        for path in [&link, &file] {
            assert_eq!(find(path), Err(SocketError::Connect(Errno::NOTSOCK)));
        }
    }

    /// Three VMs have the same path in three roots; a fourth has links that lead to the host's.
    #[test]
    fn each_root_has_sockets_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let user = rustix::process::getuid().as_raw();
        let root = |name: &str| folder.path().join(name);
        let mut listeners = Vec::new();
        for name in ["a", "b", "host"] {
            std::fs::create_dir_all(root(name).join("run")).unwrap();
            listeners.push(UnixListener::bind(root(name).join("run/s")).unwrap());
        }
        let find = |name: &str, path: &str| {
            VmmSocket::named(root(name), path.into()).find(user).map(|file| file.inode)
        };
        let inodes = ["a", "b", "host"].map(|name| find(name, "/run/s").unwrap());
        assert!(inodes[0] != inodes[1] && inodes[1] != inodes[2]);
        std::fs::create_dir(root("c")).unwrap();
        symlink(root("host").join("run"), root("c").join("run")).unwrap();
        symlink("../host/run", root("c").join("up")).unwrap();
        for path in ["/run/s", "/up/s", "/../host/run/s"] {
            assert_eq!(find("c", path), Err(SocketError::Connect(Errno::NOENT)), "{path}");
        }
        // A path may be longer than an address of a socket.
        let deep = format!("{}/x", "d".repeat(200));
        std::fs::create_dir(root("a").join("d".repeat(200))).unwrap();
        std::fs::rename(root("a").join("run/s"), root("a").join(&deep)).unwrap();
        assert!(VmmSocket::named(root("a"), format!("/{deep}").into()).connect(user).is_ok());
    }
}
