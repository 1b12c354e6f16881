//! One trace at a time: two would trace each other's storing. Samples may be recorded meanwhile.

use std::path::Path;

use super::TraceError;
use crate::CollectError;

const LOCK: &str = "/run/vmscope-trace.lock";

/// Holds the lock until dropped.
#[derive(Debug)]
pub(super) struct Lock {
    _lock: crate::lock::Lock,
}

impl Lock {
    pub(super) fn take() -> Result<Self, TraceError> {
        match crate::lock::Lock::take(Path::new(LOCK)) {
            Ok(lock) => Ok(Self { _lock: lock }),
            Err(CollectError::Busy(path)) => Err(TraceError::Busy(path)),
            Err(CollectError::Lock { path, source }) => Err(TraceError::Lock { path, source }),
            Err(_) => Err(tracer::TracerError::Privilege.into()),
        }
    }
}
