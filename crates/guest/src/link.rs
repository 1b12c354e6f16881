//! The way to a guest: bytes in and out of a file descriptor, never without a deadline.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::vsock;

/// How to reach a guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Channel {
    Vsock {
        /// The guest's context id.
        cid: u32,
    },
    /// Its virtio-serial port: the VMM's UNIX socket.
    Serial {
        path: PathBuf,
        /// The user that runs the VM: no other user's socket is used.
        user: u32,
    },
    /// Its memory: a child process answers in its place.
    #[cfg(feature = "outside")]
    Memory(Box<crate::outside::GuestMemory>),
}

impl Channel {
    /// The file of the port, if it is one.
    ///
    /// # Errors
    /// When there is no socket of the user that runs the VM.
    pub fn port(&self) -> Result<Option<Port>, LinkError> {
        match self {
            Self::Serial { path, user } => Port::open(path, *user).map(Some),
            Self::Vsock { .. } => Ok(None),
            #[cfg(feature = "outside")]
            Self::Memory(_) => Ok(None),
        }
    }
}

/// The socket of a virtio-serial port. The path comes from a VM's command line: its user must not make us lock or
/// write other files, such as another VM's port.
#[derive(Debug)]
pub struct Port {
    descriptor: OwnedFd,
    /// Its file system.
    pub device: u64,
    pub inode: u64,
}

impl Port {
    fn open(path: &Path, user: u32) -> Result<Self, LinkError> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let descriptor =
            rustix::fs::open(path, flags, Mode::empty()).map_err(LinkError::Connect)?;
        let stat = rustix::fs::fstat(&descriptor).map_err(LinkError::Connect)?;
        if !FileType::from_raw_mode(stat.st_mode).is_socket() {
            return Err(LinkError::Connect(Errno::NOTSOCK));
        }
        if stat.st_uid != user {
            return Err(LinkError::Stranger(stat.st_uid));
        }
        Ok(Self { descriptor, device: stat.st_dev, inode: stat.st_ino })
    }

    /// Connects to this socket, wherever its path leads by now.
    fn connect(&self) -> Result<OwnedFd, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let path = format!("/proc/self/fd/{}", self.descriptor.as_raw_fd());
        net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(socket)
    }
}

impl std::fmt::Display for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Vsock { cid } => write!(f, "vsock (context id {cid})"),
            Self::Serial { path, .. } => write!(f, "the virtio-serial port {}", path.display()),
            #[cfg(feature = "outside")]
            Self::Memory(memory) => write!(f, "the memory of process {}", memory.process.0),
        }
    }
}

/// Why bytes don't get through.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// There is no guest, or no way.
    #[error("no connection: {0}")]
    Connect(Errno),
    /// It is not the VM's: the user that runs one chooses the path.
    #[error("its socket belongs to user {0}, who does not run this VM")]
    Stranger(u32),
    /// There was, but it broke.
    #[error("the connection broke: {0}")]
    Broken(Errno),
    /// The other side hung up.
    #[error("the guest's end was closed")]
    Closed,
    #[error("no answer in time")]
    TimedOut,
    /// The child that reads its memory.
    #[error("{0}")]
    NotStarted(String),
}

#[derive(Debug)]
pub(crate) struct Link {
    descriptor: OwnedFd,
    /// At the other end.
    #[cfg(feature = "outside")]
    child: Option<crate::outside::MemoryChild>,
}

impl Link {
    /// Connects until `deadline`.
    pub(crate) fn open(channel: &Channel, deadline: Instant) -> Result<Self, LinkError> {
        let descriptor = match channel {
            Channel::Vsock { cid } => {
                vsock::connect(*cid, api::guest::VSOCK_PORT).map_err(LinkError::Connect)
            }
            Channel::Serial { path, user } => open_serial(path, *user),
            #[cfg(feature = "outside")]
            Channel::Memory(memory) => {
                let (child, stream) = crate::outside::start(memory)?;
                return Ok(Self { descriptor: stream.into(), child: Some(child) });
            }
        };
        let link = Self::new(descriptor?);
        if let Channel::Vsock { .. } = channel {
            link.wait(PollFlags::OUT, deadline)?;
            net::sockopt::socket_error(&link.descriptor)
                .and_then(|outcome| outcome)
                .map_err(LinkError::Connect)?;
        }
        Ok(link)
    }

    /// A link over an open descriptor, for tests.
    #[cfg(test)]
    pub(crate) fn over(descriptor: OwnedFd) -> Self {
        rustix::io::ioctl_fionbio(&descriptor, true).unwrap();
        Self::new(descriptor)
    }

    fn new(descriptor: OwnedFd) -> Self {
        Self {
            descriptor,
            #[cfg(feature = "outside")]
            child: None,
        }
    }

    /// What answers has been waited for, and works in the background from now on.
    #[cfg(feature = "outside")]
    pub(crate) fn lower_priority(&self) {
        self.child.iter().for_each(crate::outside::MemoryChild::lower_priority);
    }

    /// Sends all of `bytes`.
    pub(crate) fn send(&self, mut bytes: &[u8], deadline: Instant) -> Result<(), LinkError> {
        while !bytes.is_empty() {
            match rustix::io::write(&self.descriptor, bytes) {
                Ok(length) => bytes = &bytes[length..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT, deadline)?,
                Err(Errno::PIPE) => return Err(LinkError::Closed),
                Err(error) => return Err(LinkError::Broken(error)),
            }
        }
        Ok(())
    }

    /// Receives what there is, at least one byte, into `buffer`.
    pub(crate) fn receive(&self, buffer: &mut [u8], deadline: Instant) -> Result<usize, LinkError> {
        loop {
            // A guest that never stops sending does not hold anybody either.
            if deadline <= Instant::now() {
                return Err(LinkError::TimedOut);
            }
            match rustix::io::read(&self.descriptor, &mut *buffer) {
                Ok(0) => return Err(LinkError::Closed),
                Ok(length) => return Ok(length),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(PollFlags::IN, deadline)?,
                Err(error) => return Err(LinkError::Broken(error)),
            }
        }
    }

    fn wait(&self, what: PollFlags, deadline: Instant) -> Result<(), LinkError> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(LinkError::TimedOut);
        }
        let mut polled = [PollFd::from_borrowed_fd(self.descriptor.as_fd(), what)];
        match poll(&mut polled, Some(&timespec(left))) {
            Ok(0) => Err(LinkError::TimedOut),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(LinkError::Broken(error)),
        }
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(time.subsec_nanos()),
    }
}

/// Sockets only: QEMU may give a port's host end as a pseudo terminal, too.
fn open_serial(path: &Path, user: u32) -> Result<OwnedFd, LinkError> {
    let socket = Port::open(path, user)?.connect().map_err(LinkError::Connect)?;
    let listener = net::sockopt::socket_peercred(&socket).map_err(LinkError::Connect)?;
    let listener = listener.uid.as_raw();
    if listener == user { Ok(socket) } else { Err(LinkError::Stranger(listener)) }
}

#[cfg(test)]
mod test {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn only_the_vms_user_is_talked_to() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("port");
        let _listener = UnixListener::bind(&path).unwrap();
        let own = rustix::process::getuid().as_raw();
        let open = |user| {
            let channel = Channel::Serial { path: path.clone(), user };
            Link::open(&channel, Instant::now() + Duration::from_secs(10)).map(drop)
        };
        assert_eq!(open(own), Ok(()));
        assert_eq!(open(own + 1), Err(LinkError::Stranger(own)));
    }

    #[test]
    fn links_to_ports_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let [port, link, file] = ["port", "link", "file"].map(|name| folder.path().join(name));
        let _listener = UnixListener::bind(&port).unwrap();
        std::os::unix::fs::symlink(&port, &link).unwrap();
        std::fs::write(&file, "").unwrap();
        let user = rustix::process::getuid().as_raw();
        let find = |path: &Path| Port::open(path, user).map(drop);
        assert_eq!(find(&port), Ok(()));
        for path in [&link, &file] {
            assert_eq!(find(path), Err(LinkError::Connect(Errno::NOTSOCK)));
        }
    }
}
