//! What ends a collection.

use std::path::PathBuf;

/// Why nothing was recorded.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    /// Another collection runs.
    #[error("another recording is running on this host: wait for its end ({} is locked)", .0.display())]
    Busy(PathBuf),
    /// The lock file can't be made.
    #[error("failed to lock {}", path.display())]
    Lock {
        /// The lock file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The sampler.
    #[error(transparent)]
    Probe(#[from] probes::ProbeError),
    /// The kernel's process events.
    #[error("failed to follow processes: {0}")]
    Sideband(String),
    /// The recording can't be written.
    #[error(transparent)]
    Recording(#[from] recording::Error),
    /// The user ended it too early.
    #[error("interrupted before sampling began: nothing was recorded")]
    Interrupted,
    /// The caller asked for it.
    #[error("nothing was recorded")]
    Discarded,
    /// `/proc` or `/sys` can't be read.
    #[error("failed to read {what}")]
    Host {
        /// Which part.
        what: &'static str,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}
