//! What ends a session.

use std::io;

use crate::trace::{SourceError, VmError};

/// Why nothing was recorded, or not to the end.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    /// The sampler.
    #[error(transparent)]
    Probe(#[from] probes::ProbeError),
    /// The probes of a trace.
    #[error(transparent)]
    Tracer(#[from] tracer::TracerError),
    /// The kernel's process events.
    #[error("failed to follow processes: {0}")]
    Sideband(#[from] host::sideband::Error),
    /// A machine can't be traced at all.
    #[error("failed to trace {machine}: {reason}")]
    Machine {
        /// The host, or a VM's name.
        machine: String,
        /// Why.
        reason: SourceError,
    },
    /// A VM can't be traced at all.
    #[error("failed to trace the VM {vm}: {reason}")]
    Vm {
        /// As the user called it.
        vm: String,
        /// Why.
        reason: VmError,
    },
    /// A command for several guests.
    #[error("a command runs in one guest: give one --vm")]
    CommandInGuests,
    /// The command.
    #[error("failed to run {program}")]
    Command {
        /// Its first word.
        program: String,
        /// Why.
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
        /// Which part.
        what: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
}
