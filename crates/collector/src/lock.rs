//! Locks of a host: two sessions would sample each other and charge it to the host, two traces trace each other's storing.
//! Samples and a trace may be recorded at the same time.

use std::fs::{File, OpenOptions};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

use crate::CollectError;

/// Holds the lock until dropped; the kernel releases it whatever happens to the process.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Of sampling, in the folder of lock files.
    pub(crate) fn samples(locks: &Path) -> Result<Self, CollectError> {
        Self::take(&locks.join("vmscope-record.lock"), "`vmscope record` or `vmscope top`")
    }

    /// Of tracing.
    pub(crate) fn trace(locks: &Path) -> Result<Self, CollectError> {
        Self::take(&locks.join("vmscope-trace.lock"), "`vmscope trace record`")
    }

    fn take(path: &Path, what: &'static str) -> Result<Self, CollectError> {
        let error = |source| CollectError::Lock { path: path.to_owned(), source };
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path).map_err(
            |source| match source.kind() {
                std::io::ErrorKind::PermissionDenied => probes::ProbeError::Privilege.into(),
                _ => error(source),
            },
        )?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { _file: file }),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                Err(CollectError::Busy { what, path: path.to_owned() })
            }
            Err(errno) => Err(error(errno.into())),
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_second_one_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let first = Lock::samples(folder.path()).unwrap();
        let busy = Lock::samples(folder.path()).unwrap_err().to_string();
        assert!(busy.starts_with("`vmscope record` or `vmscope top` is already running"), "{busy}");
        let trace = Lock::trace(folder.path()).unwrap();
        let busy = Lock::trace(folder.path()).unwrap_err().to_string();
        assert!(busy.starts_with("`vmscope trace record` is already running"), "{busy}");
        drop((first, trace));
        Lock::samples(folder.path()).unwrap();
    }
}
