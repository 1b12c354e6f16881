//! Why a trace can't begin or go on.

use std::path::PathBuf;

use model::Pid;

use crate::DecodeError;

/// The probes could not be used at all; the text says what to do. (Single probes that can't be are no error: see
/// `Tracer::missing`.)
#[derive(Debug, thiserror::Error)]
pub enum TracerError {
    /// No privilege.
    #[error("tracing needs root (or CAP_BPF and CAP_PERFMON): run it with sudo")]
    Privilege,
    #[error(
        "this kernel has no type information (/sys/kernel/btf/vmlinux): use a kernel built with CONFIG_DEBUG_INFO_BTF"
    )]
    NoBtf,
    /// The maps could not be made.
    #[error("the kernel refused the trace probes: {0}")]
    Load(String),
    /// Not one probe could be used.
    #[error("the kernel refused all trace probes; {probe}: {reason}")]
    NoProbe {
        /// The first that failed.
        probe: String,
        reason: String,
    },
    /// The options make no sense.
    #[error("{0}")]
    Options(String),
    /// A process can't be followed.
    #[error("failed to look for the processes below {process}")]
    Follow {
        /// The ancestor of the traced tasks.
        process: Pid,
        #[source]
        source: std::io::Error,
    },
    /// A folder is no control group.
    #[error("{folder} is not a cgroup that can be traced")]
    Cgroup {
        folder: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// The object and this program do not belong together.
    #[error("the BPF object has no map {0}: build vmscope again")]
    NoMap(&'static str),
    /// A map could not be shared.
    #[error("failed to set up BPF map {map}")]
    Map {
        /// Its name in the BPF object.
        map: &'static str,
        #[source]
        source: std::io::Error,
    },
}

/// A ring can't be drained any further.
#[derive(Debug, thiserror::Error)]
pub enum RingError<E> {
    /// Its memory could not be read or written.
    #[error("the trace ring of CPU {cpu} can't be read: {source}")]
    Memory { cpu: u32, source: E },
    /// Head and tail contradict each other.
    #[error("the trace ring of CPU {cpu} is damaged: head {head}, tail {tail}, {slots} slots")]
    Counters {
        cpu: u32,
        /// Where the programs write next.
        head: u64,
        /// What was taken so far.
        tail: u64,
        slots: u64,
    },
    /// A slot holds what no probe writes.
    #[error("the trace ring of CPU {cpu} is corrupt at slot {position}: {error}")]
    Decode {
        cpu: u32,
        /// The slot's position since the begin.
        position: u64,
        error: DecodeError,
    },
}
