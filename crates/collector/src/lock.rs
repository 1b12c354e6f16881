//! What two sessions of a host can't share: a guest's virtio-serial port has one end in the host. All else each has of its
//! own: events, BPF programs, rings, and a session with every guest that has vsock.

use std::fs::{DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use guest::Channel;
use rustix::fs::{FlockOperation, flock};

use crate::GuestError;

/// A port that is ours until this is dropped; the kernel gives it back whatever happens to the process.
#[derive(Debug)]
pub(crate) struct PortLock {
    _file: File,
}

impl PortLock {
    /// Takes the port of a channel that is one.
    ///
    /// # Errors
    /// Those of `take`.
    pub(crate) fn of(channel: &Channel, locks: &Path) -> Result<Option<Self>, GuestError> {
        match channel {
            Channel::Serial { path, .. } => Self::take(path, locks),
            Channel::Vsock { .. } => Ok(None),
        }
    }

    /// Takes the port behind this socket, by a file in the folder of lock files. `None`: there is no such socket, as whoever
    /// opens it will say.
    ///
    /// # Errors
    /// If another session has it, or the file can't be made.
    fn take(socket: &Path, locks: &Path) -> Result<Option<Self>, GuestError> {
        let Ok(metadata) = socket.metadata() else { return Ok(None) };
        let path = locks.join(format!("port-{:x}-{:x}.lock", metadata.dev(), metadata.ino()));
        let failed = |source| GuestError::PortLock { path: path.clone(), source };
        // Root makes the folder; for others systemd or an administrator did.
        DirBuilder::new().recursive(true).mode(0o700).create(locks).map_err(failed)?;
        // Who can't open it can't lock it.
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(&path);
        let file = file.map_err(failed)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self { _file: file })),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(GuestError::PortTaken),
            Err(errno) => Err(failed(errno.into())),
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_port_has_one_user_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let sockets = ["a", "b"].map(|name| folder.path().join(name));
        for socket in &sockets {
            std::fs::write(socket, "").unwrap();
        }
        let locks = folder.path().join("run/vmscope");
        let take = |socket: &Path| PortLock::take(socket, &locks);
        let first = take(&sockets[0]).unwrap();
        assert!(matches!(take(&sockets[0]), Err(GuestError::PortTaken)));
        assert!(take(&sockets[1]).unwrap().is_some());
        drop(first);
        assert!(take(&sockets[0]).unwrap().is_some());
        assert!(take(&folder.path().join("none")).unwrap().is_none());
    }
}
