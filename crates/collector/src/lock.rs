//! What two sessions of a host can't share: a guest's virtio-serial port has one end in the host. All else each has of its
//! own: events, BPF programs, rings, and a session with every guest that has vsock.

use std::fs::{DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use guest::{Channel, SessionError};
use rustix::fs::{FlockOperation, flock};

use crate::GuestError;

/// A port that is ours until this is dropped; the kernel gives it back whatever happens to the process.
#[derive(Debug)]
pub(crate) struct PortLock {
    _file: File,
}

impl PortLock {
    /// Takes the port of a channel that is one, by a file in the folder of lock files.
    ///
    /// # Errors
    /// If the port is not there or not the VM's, another session has it, or the lock file can't be made.
    pub(crate) fn for_channel(channel: &Channel, locks: &Path) -> Result<Option<Self>, GuestError> {
        let failed = |source| SessionError::Link { channel: channel.clone(), source };
        match channel.port().map_err(failed)? {
            Some(port) => Self::take((port.device, port.inode), locks).map(Some),
            None => Ok(None),
        }
    }

    fn take((device, inode): (u64, u64), locks: &Path) -> Result<Self, GuestError> {
        let path = locks.join(format!("port-{device:x}-{inode:x}.lock"));
        let failed = |source| GuestError::PortLock { path: path.clone(), source };
        // Root makes the folder; for others systemd or an administrator did.
        DirBuilder::new().recursive(true).mode(0o700).create(locks).map_err(failed)?;
        // Who can't open it can't lock it.
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(&path);
        let file = file.map_err(failed)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { _file: file }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(GuestError::PortTaken),
            Err(errno) => Err(failed(errno.into())),
        }
    }
}

#[cfg(test)]
mod test {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_port_has_one_user_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let user = rustix::process::geteuid().as_raw();
        let sockets = ["a", "b"].map(|name| folder.path().join(name));
        let _listeners = sockets.each_ref().map(|socket| UnixListener::bind(socket).unwrap());
        let locks = folder.path().join("run/vmscope");
        let take = |path: &Path, user| {
            PortLock::for_channel(&Channel::Serial { path: path.to_owned().into(), user }, &locks)
        };
        let first = take(&sockets[0], user).unwrap();
        assert!(matches!(take(&sockets[0], user), Err(GuestError::PortTaken)));
        assert!(take(&sockets[1], user).unwrap().is_some());
        drop(first);
        assert!(take(&sockets[0], user).unwrap().is_some());
        assert!(take(&folder.path().join("none"), user).is_err());
        // The VM of another user, and a link, don't get at it: its lock stays free.
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&sockets[0], &link).unwrap();
        let refused = [take(&sockets[0], user + 1), take(&link, user)];
        assert!(refused.iter().all(|it| matches!(it, Err(GuestError::Session(_)))), "{refused:?}");
        assert!(take(&sockets[0], user).unwrap().is_some());
    }
}
