//! What to record, and for which observer.

use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::Duration;

use guest::Limits;
use model::{Header, OffCpuSource, Pid, Trigger};
use rustix::process::Signal;

use crate::{Naming, Roots};

/// What a session takes from the host.
#[derive(Debug, Clone)]
pub struct SessionPlan {
    /// Where Linux keeps what is read.
    pub roots: Roots,
    pub sampling: Sampling,
    /// What tells when a vCPU lost and got its CPU.
    pub off_cpu_source: OffCpuSource,
    /// Whether VM exits are counted.
    pub exits: Exits,
    /// Whether processes' starts, ends and mappings are followed.
    pub process_events: ProcessEvents,
    pub guests: GuestQuestions,
    /// Version to write into headers.
    pub vmscope_version: String,
    /// The host's name to write there; `None`: the machine's.
    pub hostname: Option<String>,
}

/// What to record, and where.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The recording's folder, which must not exist yet.
    pub output: PathBuf,
    /// What to take from the host.
    pub session: SessionPlan,
    /// Snapshots of guests without a channel: (VM's name, file).
    pub guest_maps: Vec<(String, PathBuf)>,
    /// Where guests' symbols are kept by build id.
    pub symbol_store: PathBuf,
}

impl Plan {
    pub(crate) fn naming(&self) -> Naming {
        let proc = self.session.roots.proc.clone();
        Naming::new(proc, self.guest_maps.clone(), self.symbol_store.clone())
    }
}

/// Sampling options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sampling {
    /// What makes the sampling interrupts.
    pub trigger: Trigger,
    /// Nominal time between samples of a CPU, ns.
    pub period_ns: u64,
    /// Trigger's own period: ns for cpu-clock, cycles for the cycle counter.
    pub trigger_period: u64,
    /// Host call stacks.
    pub call_graph: bool,
}

/// Whether VM exits are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exits {
    /// By vCPU and reason.
    Counted,
    NotCounted,
}

/// Whether the kernel reports what processes do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessEvents {
    /// Processes that end during the recording have names.
    Followed,
    /// Who needs names reads `/proc`.
    Ignored,
}

/// Queries to guests during a session.
#[derive(Debug, Clone)]
pub enum GuestQuestions {
    /// To log their processes from the session's begin on, and for a map at its end.
    On {
        /// How long and how much a guest may answer.
        limits: Limits,
        /// Names of VMs whose maps are there already.
        with_map: Vec<String>,
        /// How long sampling waits for their first answers: what ends before a guest's log begins has no name.
        wait: Duration,
    },
    Off,
}

/// Progress messages for the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// Sampling has begun on this many CPUs; these VMs run.
    Sampling { cpus: usize, vms: Vec<String> },
    /// A VM was found in mid-recording.
    VmFound(String),
    /// A VM's process has ended.
    VmEnded(String),
    Tracing {
        cpus: usize,
        /// Probes that can't be used here, with the reason.
        missing: Vec<(String, String)>,
    },
    SoFar {
        /// Events stored.
        events: u64,
        lost: u64,
    },
    /// What the command wrote in a guest, safe to print.
    Output(String),
    /// Nothing is recorded yet, this is being done now.
    Preparing(&'static str),
    /// Nothing comes in any more, this is being done now.
    Finishing(&'static str),
    /// A flight recorder wrote what it holds, or could not; safe to print.
    Written(String),
}

/// What the collector is to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Continue; call again after this time at the latest.
    GoOn(Duration),
    /// The command that the recorder runs is to end: send it this signal (unless it had it) and go on until it has ended.
    /// Without such a command: finish.
    End(Option<Signal>),
    /// End and finish what is recorded.
    Finish,
    /// End at once and leave nothing.
    Discard,
}

/// The observer of a recording: says when it ends, and may show how it goes on.
pub trait Control {
    /// Whether it is to end at once; queried while guests are waited for before anything is recorded.
    fn interrupted(&self) -> bool;
    /// What to do next; queried several times a second, first when recording has begun.
    fn next(&mut self) -> Next;
    /// The command's process on this host, once `next` has started it: its descendants are marked.
    fn command(&self) -> Option<Pid> {
        None
    }
    /// Waits for this long, until `next` would say something new, or until one of `wake` is readable.
    fn wait(&mut self, at_most: Duration, wake: &[BorrowedFd<'_>]);
    /// Whether a flight recorder is to write what it holds, and to go on. Queried as `next`.
    fn wants_snapshot(&mut self) -> bool {
        false
    }
    /// Shows a step of the recording.
    fn show(&mut self, progress: &Progress);
}

/// A finished recording.
#[derive(Debug, Clone)]
pub struct Collected {
    pub header: Header,
    pub summary: recording::Summary,
    /// CPU time that telling their maps cost the guests, ns, by VM.
    pub guest_cpu_ns: Vec<(String, u64)>,
}
