//! Why a guest can't be queried or traced, or not any longer.

use std::path::PathBuf;

use api::guest::SERIAL_PORT_NAME;
use guest::SessionError;
use probes::ProbeError;
use tracer::RingError;
use tracer::outside::{ClockError, LayoutError, MemoryError, SentError};

/// What ends the questions to a guest, or its trace; never anything else.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// Its VM has no channel to it.
    #[error(
        "it has no vsock device and no virtio-serial port {SERIAL_PORT_NAME}: add one and run vmscope-guest in it \
         (or record with --guest-map, its snapshot)"
    )]
    NoChannel,
    /// Neither a program in it nor its memory tells.
    #[error("its memory: {memory}; its vmscope-guest: {program}")]
    NoWay { program: Box<GuestError>, memory: Box<GuestError> },
    #[error("its process runs several VMs")]
    SeveralVms,
    /// By the host's administrator.
    #[error("{} keeps it from being read", path.display())]
    MemoryOff { path: PathBuf },
    #[error("failed to read {}: {source}", path.display())]
    Policy { path: PathBuf, source: std::io::Error },
    /// Another session talks through its port.
    #[error(
        "another vmscope has its virtio-serial port, which serves one at a time: wait for it to end, or give the VM a \
         vsock device"
    )]
    PortTaken,
    /// Whether another session has one is unknown.
    #[error(
        "failed to lock {}: {source} (make its folder for this user, or name one in RUNTIME_DIRECTORY)",
        path.display()
    )]
    PortLock { path: PathBuf, source: std::io::Error },
    #[error("the VM is gone")]
    VmGone,
    /// The VM has ended, and its channel may lead to another one by now.
    #[error("it ended while recording")]
    EndedMeanwhile,
    /// It is there and says nothing.
    #[error("no answer in time")]
    NoAnswer,
    /// It was not waited for as long as others: its user runs too many like it.
    #[error(
        "no answer in time: {guests} guests of user {user} do not answer, and share one time limit"
    )]
    NotWaitedFor {
        /// The user that runs the VM.
        user: u32,
        /// Guests of that user without an answer.
        guests: u32,
    },
    /// Its user runs too many VMs.
    #[error("it was not queried: user {user} runs more than {most} VMs, the limit for one user")]
    TooManyOfUser {
        /// The user that runs the VM.
        user: u32,
        /// Its guests that are queried.
        most: usize,
    },
    /// It can't be reached, refused, or sent an invalid answer.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The host's kernel does not report what we need of its VM.
    #[error(transparent)]
    Probes(#[from] ProbeError),
    /// The VM's memory can't be read.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The child process that reads it has failed: the file system that it lies in may not answer.
    #[error("the VM's memory was not read: {0}")]
    MemoryChild(#[from] sandbox::Failure),
    /// Its description of its rings is invalid.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// It sent what fits none of its rings.
    #[error(transparent)]
    Sent(#[from] SentError),
    /// The rings in its memory are invalid.
    #[error(transparent)]
    Ring(#[from] RingError<MemoryError>),
    /// It sent an invalid answer.
    #[error(transparent)]
    SentRing(#[from] RingError<SentError>),
    /// Its clock is invalid.
    #[error(transparent)]
    Clock(#[from] ClockError),
    /// It can't be shown that it is this VM's guest that would run the command.
    #[error("COMMAND was not run: another guest may be answering on this channel: {0}")]
    CommandRefused(#[source] Box<GuestError>),
    /// It says that it has more CPUs than its VM.
    #[error("it claims {claimed} CPUs, but has at most {most}")]
    Cpus {
        /// By what it says.
        claimed: usize,
        /// By KVM.
        most: usize,
    },
    /// It sends more than its rings hold.
    #[error("it sends more events at the end than its rings hold")]
    TooManyAtEnd,
    /// It writes more than its probes could.
    #[error(
        "its rings fill faster than probes can write: by more than {most_per_s} events a second"
    )]
    TooFast {
        /// What probes can write.
        most_per_s: u64,
    },
    /// It sent events though the host reads them itself.
    #[error("it sent events without a request")]
    Unrequested,
    /// It can't say where its rings lie.
    #[error("the guest can't find its rings: {0}")]
    NoPages(String),
    /// Its registers and memory are encrypted.
    #[error("its memory is encrypted")]
    Encrypted,
    /// No thread could be started for it.
    #[error("failed to start a thread to query it: {0}")]
    Thread(#[source] std::io::Error),
    /// The thread that asks it has ended.
    #[error("the query failed")]
    WorkerEnded,
    #[error("the recording has ended")]
    RecorderEnded,
}

impl GuestError {
    /// Of both ways. What most VMs lack is not worth a mention.
    pub(crate) fn no_way(program: Self, memory: Self) -> Self {
        Self::NoWay { program: Box::new(program), memory: Box::new(memory) }
    }

    /// Whether it is at work on an answer that did not come in time.
    pub(crate) fn is_late(&self) -> bool {
        match self {
            Self::NoWay { program, memory } => program.is_late() || memory.is_late(),
            error => matches!(error, Self::Session(SessionError::Late { .. })),
        }
    }

    /// Whether its memory was searched, which takes time, and has no kernel that can be read.
    pub(crate) fn was_memory_searched(&self) -> bool {
        let is_refused = |error: &Self| matches!(error, Self::Session(SessionError::Refused(_)));
        matches!(self, Self::NoWay { memory, .. } if is_refused(memory))
    }
}
