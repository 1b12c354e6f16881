//! Why something inside a guest could not be read or done.

use std::io;
use std::path::PathBuf;

use crate::frame::FrameError;

/// Why something could not be read or done inside the guest.
#[derive(Debug, thiserror::Error)]
pub enum InsideError {
    /// A file could not be opened or read.
    #[error("failed to read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// A file has unexpected content.
    #[error("{}: {text}", path.display())]
    Content {
        path: PathBuf,
        /// What is wrong with it.
        text: String,
    },
    /// The kernel does not say where it keeps something.
    #[error("the kernel's type information has no {0}")]
    NoField(#[from] linux::types::MissingField),
    /// The kernel does not name something.
    #[error(
        "/proc/kallsyms does not name {0} (not root, or a kernel without CONFIG_KALLSYMS_ALL?)"
    )]
    NoSymbol(&'static str),
    /// Neither processes nor the kernel could be read.
    #[error("{0}")]
    NothingRead(String),
    /// An answer can't be sent.
    #[error("the answer would be {0}")]
    Answer(FrameError),
    /// The service for the host could not go on.
    #[error("failed to {step}: {source}")]
    Serve { step: &'static str, source: io::Error },
    /// A thread of the service panicked.
    #[error("a thread ended unexpectedly")]
    Thread,
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

    /// For `map_err` on a step of the service.
    pub(crate) fn serve(step: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self::Serve { step, source }
    }
}
