//! The way to a guest: bytes in and out of a file descriptor, never without a deadline.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use host::sockets::{SocketError, SocketFile, VmmSocket};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net;

use crate::vsock;

/// How to reach a guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Channel {
    Vsock {
        /// The guest's context id.
        cid: u32,
    },
    /// A Unix socket of a VMM with a vsock device of its own: it takes `CONNECT PORT`, and answers `OK PORT`.
    VsockSocket {
        path: VmmSocket,
        /// The user that runs the VM: no other user's socket is used.
        user: u32,
    },
    /// Its virtio-serial port: the VMM's UNIX socket.
    Serial {
        path: VmmSocket,
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
    pub fn port(&self) -> Result<Option<SocketFile>, LinkError> {
        match self {
            Self::Serial { path, user } => Ok(path.find(*user).map(Some)?),
            Self::Vsock { .. } | Self::VsockSocket { .. } => Ok(None),
            #[cfg(feature = "outside")]
            Self::Memory(_) => Ok(None),
        }
    }
}

impl std::fmt::Display for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Vsock { cid } => write!(f, "vsock (context id {cid})"),
            Self::VsockSocket { path, .. } => write!(f, "the vsock socket {path}"),
            Self::Serial { path, .. } => write!(f, "the virtio-serial port {path}"),
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

impl From<SocketError> for LinkError {
    fn from(error: SocketError) -> Self {
        match error {
            SocketError::Connect(errno) => Self::Connect(errno),
            SocketError::Stranger(user) => Self::Stranger(user),
        }
    }
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
            Channel::VsockSocket { path, user } | Channel::Serial { path, user } => {
                path.connect(*user).map_err(LinkError::from)
            }
            #[cfg(feature = "outside")]
            Channel::Memory(memory) => {
                let (child, stream) = crate::outside::start(memory)?;
                return Ok(Self { descriptor: stream.into(), child: Some(child) });
            }
        };
        let link = Self::new(descriptor?);
        match channel {
            Channel::Vsock { .. } => {
                link.wait(PollFlags::OUT, deadline)?;
                net::sockopt::socket_error(&link.descriptor)
                    .and_then(|outcome| outcome)
                    .map_err(LinkError::Connect)?;
            }
            Channel::VsockSocket { .. } => link.ask_for_port(deadline)?,
            _ => {}
        }
        Ok(link)
    }

    /// Has the VMM connect to our port of the guest. One on which nothing listens ends the connection.
    fn ask_for_port(&self, deadline: Instant) -> Result<(), LinkError> {
        const MAX_ANSWER: usize = 32;
        self.send(format!("CONNECT {}\n", api::guest::VSOCK_PORT).as_bytes(), deadline)?;
        let (mut answer, mut byte) = (Vec::new(), [0]);
        // What follows the line is the guest's.
        while byte != *b"\n" && answer.len() < MAX_ANSWER {
            match self.receive(&mut byte, deadline) {
                Err(LinkError::Closed | LinkError::Broken(Errno::CONNRESET)) => {
                    return Err(LinkError::Connect(Errno::CONNREFUSED));
                }
                received => received?,
            };
            answer.extend(byte);
        }
        let is_ok = answer.starts_with(b"OK ") && byte == *b"\n";
        if is_ok { Ok(()) } else { Err(LinkError::Connect(Errno::PROTO)) }
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
            let channel = Channel::Serial { path: path.clone().into(), user };
            Link::open(&channel, Instant::now() + Duration::from_secs(10)).map(drop)
        };
        assert_eq!(open(own), Ok(()));
        assert_eq!(open(own + 1), Err(LinkError::Stranger(own)));
    }

    #[test]
    fn a_vmm_with_a_vsock_of_its_own_connects_to_the_port() {
        use std::io::{Read as _, Write as _};
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("v.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let user = rustix::process::getuid().as_raw();
        let check = |answer: &'static [u8], expected: Result<&[u8], LinkError>| {
            let vmm = std::thread::scope(|scope| {
                let vmm = scope.spawn(|| {
                    let (mut host, _) = listener.accept().unwrap();
                    let mut request = [0; 13];
                    host.read_exact(&mut request).unwrap();
                    assert!(request.starts_with(b"CONNECT "), "{request:?}");
                    host.write_all(answer).unwrap();
                });
                let deadline = Instant::now() + Duration::from_secs(10);
                let channel = Channel::VsockSocket { path: path.clone().into(), user };
                let link = Link::open(&channel, deadline);
                vmm.join().unwrap();
                link.and_then(|link| {
                    let mut rest = [0; 8];
                    link.receive(&mut rest, deadline).map(|n| rest[..n].to_vec())
                })
            });
            assert_eq!(vmm, expected.map(<[u8]>::to_vec));
        };
        check(b"OK 1073741824\nhello", Ok(b"hello"));
        check(b"", Err(LinkError::Connect(Errno::CONNREFUSED)));
        check(b"NO\n", Err(LinkError::Connect(Errno::PROTO)));
        check(&[b'1'; 100], Err(LinkError::Connect(Errno::PROTO)));
    }
}
