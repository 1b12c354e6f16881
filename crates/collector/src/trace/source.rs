//! A machine whose events are traced.

use std::convert::Infallible;
use std::fmt::Debug;
use std::io;
use std::path::PathBuf;

use model::{HostNs, Machine, Tid, TraceEvent, TraceFile, TraceStack, TraceTask};
use tracer::{RingError, TracerError};

use crate::GuestError;

/// What ends a machine's trace.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error(transparent)]
    Tracer(#[from] TracerError),
    #[error(transparent)]
    Ring(#[from] RingError<Infallible>),
    #[error("failed to read {}: {source}", path.display())]
    Tasks {
        /// Where they are listed.
        path: PathBuf,
        source: io::Error,
    },
    #[error(transparent)]
    Guest(#[from] GuestError),
}

/// The host from within, or a guest from outside. Its events come with the row it was given among the trace's machines.
pub(super) trait Source: Debug {
    /// Its row as far as it is known: at first name, kernel, CPUs and missing probes; at the end all of it.
    fn machine(&self) -> Machine;

    /// Slots of each CPU's ring.
    fn ring_slots(&self) -> u64;

    /// Attaches the probes. Returns when its trace begins: events before that are left out.
    ///
    /// # Errors
    /// Why this machine can't be traced.
    fn start(&mut self) -> Result<HostNs, SourceError>;

    /// Moves what has come in on a CPU to `events`, and says how full its ring was, from 0 to 1.
    ///
    /// # Errors
    /// Why this machine's trace ends here.
    fn drain(&mut self, cpu: u32, events: &mut Vec<TraceEvent>) -> Result<f64, SourceError>;

    /// Has the probes detached, if others do that, without waiting for it: there are more machines to ask.
    fn ask_to_stop(&mut self) {}

    /// Detaches the probes. Returns when its trace ends: events after that are left out. What lies in the rings is
    /// drained afterwards.
    fn stop(&mut self) -> HostNs;

    /// Lets the command go that waits in this machine, if one does. Returns its first task.
    ///
    /// # Errors
    /// Why it can't begin.
    fn run_command(&mut self) -> Result<Option<Tid>, SourceError> {
        Ok(None)
    }

    /// Whether its command has ended, or can't be traced any longer.
    fn command_ended(&self) -> bool {
        false
    }

    /// How its command ended, when it did by itself.
    fn exit_code(&self) -> Option<i32> {
        None
    }

    /// What its command wrote, safe to print.
    fn output(&self) -> Option<String> {
        None
    }

    /// What the user should know of this machine's trace, at its end.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Tasks and stacks as far as they are known. Costs what is new since the last time.
    fn tables(&mut self) -> SourceTables;
}

/// Everything of a machine but its row and its events.
#[derive(Debug, Clone, Default)]
pub(super) struct SourceTables {
    /// Tasks of its begin.
    pub(super) tasks: Vec<TraceTask>,
    /// Stacks: functions innermost first, ascending by number.
    pub(super) stacks: Vec<(TraceStack, Vec<String>)>,
    /// Disks: `(dev_t, name)`.
    pub(super) disks: Vec<(u32, String)>,
    pub(super) files: Vec<TraceFile>,
}

/// That programs with other rights were executed, whose system calls perf events of single tasks do not see.
pub(super) fn missing_calls(unseen_programs: u64) -> Option<(String, String)> {
    let reason =
        || format!("those of {unseen_programs} programs with other rights (setuid, setgid)");
    (0 < unseen_programs).then(|| ("system calls".to_owned(), reason()))
}
