//! What can go wrong with an experiment.

use std::io;
use std::path::{Path, PathBuf};

/// Why an experiment could not be carried out.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or folder could not be used.
    #[error("failed to {action} {}", path.display())]
    Io {
        /// Verb.
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// A VM, its image or its network.
    #[error(transparent)]
    Vm(#[from] testbed::Error),
    #[error("recording failed")]
    Record(#[from] collector::CollectError),
    #[error("reading a recording failed")]
    Recording(#[from] recording::Error),
    /// A setting of a plan that this host can't have.
    #[error("{0}")]
    Setup(&'static str),
    #[error(transparent)]
    Capture(#[from] crate::capture::CaptureError),
    /// A network interface whose packets were to be captured.
    #[error(transparent)]
    Interface(#[from] crate::capture::InterfaceError),
    #[error("the load generator {0}")]
    Generator(String),
    /// A file that is not what it should be.
    #[error("{}: {problem}", path.display())]
    Form { path: PathBuf, problem: String },
    /// VMs that end again and again.
    #[error("VM {name} ended {times} times by itself")]
    Unstable {
        /// The last one.
        name: String,
        times: u32,
    },
    /// A VM that was to be measured is not found.
    #[error("failed to find VM {name}")]
    Attach {
        /// As the plan has it.
        name: String,
        source: Box<collector::trace::VmError>,
    },
    /// A VM whose packets were to be captured.
    #[error("VM {name} has no tap: give its name without an address")]
    NoTap {
        /// As the plan has it.
        name: String,
    },
    /// A VM that was measured is gone.
    #[error("VM {name} ended while it was measured")]
    Ended {
        /// As the plan has it.
        name: String,
    },
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }
}
