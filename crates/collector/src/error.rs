//! What ends a session.

use std::io;

use crate::trace::{SourceError, VmError};

/// Why nothing was recorded, or not to the end.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    #[error(transparent)]
    Probe(#[from] probes::ProbeError),
    /// The probes of a trace.
    #[error(transparent)]
    Tracer(#[from] tracer::TracerError),
    #[error("failed to follow processes: {0}")]
    Sideband(#[from] host::sideband::Error),
    /// A machine can't be traced at all.
    #[error("failed to trace {machine}: {reason}")]
    Machine {
        /// The host, or a VM's name.
        machine: String,
        reason: SourceError,
    },
    /// A VM can't be traced at all.
    #[error("failed to trace the VM {vm}: {reason}")]
    Vm {
        /// As the user called it.
        vm: String,
        reason: VmError,
    },
    /// A command for several guests.
    #[error("a command runs in one guest: give one --vm")]
    CommandInGuests,
    #[error("failed to run {program}")]
    Command {
        /// Its first word.
        program: String,
        #[source]
        source: io::Error,
    },
    /// The recording or the trace can't be written.
    #[error(transparent)]
    Recording(#[from] recording::Error),
    /// The user ended it too early.
    #[error("interrupted before sampling began: nothing was recorded")]
    Interrupted,
    /// The caller requested it.
    #[error("nothing was recorded")]
    Discarded,
    /// `/proc` or `/sys` can't be read.
    #[error("failed to read {what}")]
    Host {
        what: &'static str,
        #[source]
        source: io::Error,
    },
}
