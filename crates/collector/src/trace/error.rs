//! What keeps a trace from being made.

use std::io;
use std::path::PathBuf;

/// Why nothing was traced, or not to the end.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// Another trace runs.
    #[error("another trace is being recorded on this host: wait for its end ({} is locked)", .0.display())]
    Busy(PathBuf),
    /// The lock file can't be made.
    #[error("failed to lock {}", path.display())]
    Lock {
        /// The lock file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The host's probes.
    #[error(transparent)]
    Tracer(#[from] tracer::TracerError),
    /// A machine can't be traced at all.
    #[error("failed to trace {machine}: {reason}")]
    Machine {
        /// The host, or a VM's name.
        machine: String,
        /// Why.
        reason: String,
    },
    /// A VM can't be traced at all.
    #[error("failed to trace the VM {vm}: {reason}")]
    Vm {
        /// As the user called it.
        vm: String,
        /// Why.
        reason: String,
    },
    /// A command for several guests.
    #[error("a command runs in one guest: give one --vm")]
    CommandInGuests,
    /// The trace can't be written.
    #[error(transparent)]
    Recording(#[from] recording::Error),
    /// The command.
    #[error("failed to run {program}")]
    Command {
        /// Its first word.
        program: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// `/proc` or `/sys` can't be read.
    #[error("failed to read {what}")]
    Host {
        /// Which part.
        what: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
}
