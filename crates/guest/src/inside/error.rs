//! What can go wrong inside a guest.

use std::io;
use std::path::PathBuf;

/// Why something could not be read or done inside the guest.
#[derive(Debug, thiserror::Error)]
pub enum InsideError {
    /// A file could not be opened or read.
    #[error("failed to read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file does not hold what it should.
    #[error("{}: {text}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        text: String,
    },
    /// The kernel does not say where it keeps something.
    #[error("the kernel's type information has no {0}")]
    NoField(&'static str),
    /// The kernel does not name something.
    #[error(
        "/proc/kallsyms does not name {0} (not root, or a kernel without CONFIG_KALLSYMS_ALL?)"
    )]
    NoSymbol(&'static str),
    /// Events could not be collected.
    #[error("{0}")]
    Log(String),
    /// The answer could not be written.
    #[error("failed to write: {0}")]
    Write(io::Error),
    /// There is nothing to listen on.
    #[error("{0}")]
    NoChannel(String),
}

impl InsideError {
    /// For `map_err` on reads of `path`.
    pub(crate) fn read(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        |source| Self::Read { path: path.into(), source }
    }
}
