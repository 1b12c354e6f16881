//! One collection at a time: two would sample each other and charge it to the host.

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
    pub(crate) fn take(path: &Path) -> Result<Self, CollectError> {
        let error = |source| CollectError::Lock { path: path.to_owned(), source };
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path).map_err(
            |source| match source.kind() {
                std::io::ErrorKind::PermissionDenied => probes::ProbeError::Privilege.into(),
                _ => error(source),
            },
        )?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { _file: file }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(CollectError::Busy(path.to_owned())),
            Err(errno) => Err(error(errno.into())),
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_second_one_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let first = Lock::take(&path).unwrap();
        assert!(matches!(Lock::take(&path), Err(CollectError::Busy(_))));
        drop(first);
        Lock::take(&path).unwrap();
    }
}
