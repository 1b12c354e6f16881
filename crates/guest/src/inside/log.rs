//! The log of processes that start, exec and end while the host samples: two sources that wake no task.
//! The BPF program knows page tables and FS bases, perf's side band knows names and mappings.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use api::guest::GuestMapping;
use host::sideband::{self, Sideband};

use super::cpus::{CpuWatch, online_cpus};
use super::processes::Modules;
use super::program::{LoadedProgram, LogProgram};
use super::timeline::{Event, EventKind};

/// Ring of each CPU: about 4,000 processes that start and end.
const RING_BYTES: usize = 4 << 20;
/// Rings of all CPUs.
const ALL_RINGS_BYTES: usize = 64 << 20;

/// A log under way.
#[derive(Debug)]
pub(crate) struct Log {
    /// `CLOCK_MONOTONIC` when both sources ran, ns.
    pub(crate) started_ns: u64,
    /// Why it is not complete.
    pub(crate) problems: Vec<String>,
    program: Option<LogProgram>,
    /// The program's, taken from its ring, not handed over yet.
    held: Vec<Event>,
    sideband: Option<Arc<Mutex<Sideband>>>,
    _cpus: Option<CpuWatch>,
    /// Losses of each source that were reported.
    reported_lost: [u64; 2],
}

impl Log {
    /// Starts both sources, or those that work. `program`: why there is none, when there is none.
    pub(crate) fn start(program: Result<LoadedProgram, String>) -> Self {
        let mut problems = Vec::new();
        let attached = program
            .and_then(|program| program.attach().map_err(|error| error.to_string()))
            .map_err(|reason| {
                problems.push(format!("failed to log processes that start with BPF: {reason}"));
            });
        let program = attached.ok();
        let cpus = online_cpus(Path::new("/sys"));
        let ring_bytes = (ALL_RINGS_BYTES / cpus.len().max(1)).clamp(1 << 16, RING_BYTES);
        let sideband = Sideband::open(&cpus, ring_bytes)
            .map_err(|error| {
                problems.push(format!("failed to log the mappings of processes that end: {error}"))
            })
            .ok();
        let sideband = sideband.map(|sideband| Arc::new(Mutex::new(sideband)));
        let cpus = sideband.clone().map(|sideband| {
            CpuWatch::start(move || {
                // What can't be logged there is missing as it would be without.
                let _ = lock(&sideband).set_cpus(&online_cpus(Path::new("/sys")), ring_bytes);
            })
        });
        let cpus = cpus.and_then(|cpus| {
            cpus.map_err(|error| {
                problems.push(format!("failed to watch for CPUs that come online: {error}"));
            })
            .ok()
        });
        let started_ns = super::now_ns();
        let (held, reported_lost) = (Vec::new(), [0; 2]);
        Self { started_ns, problems, program, held, sideband, _cpus: cpus, reported_lost }
    }

    /// What both sources saw before `until_ns` and was not handed over yet, in time order.
    pub(crate) fn drain(
        &mut self,
        until_ns: u64,
        page_offset: u64,
        modules: &mut Modules,
    ) -> Vec<Event> {
        let has_program = self.program.is_some();
        if let Some(program) = &mut self.program {
            self.held.extend(program.drain(page_offset));
        }
        let mut events: Vec<Event> =
            self.held.extract_if(.., |event| event.time_ns < until_ns).collect();
        if let Some(sideband) = &self.sideband {
            let take = &mut |event| events.extend(translate(event, has_program, modules));
            lock(sideband).drain_before(until_ns, take);
        }
        // Stable: of one instant, the program's events first.
        events.sort_by_key(|event| event.time_ns);
        events
    }

    /// What makes it incomplete, with what was lost since `new_losses`.
    pub(crate) fn take_problems(&mut self) -> Vec<String> {
        let losses = self.new_losses();
        self.problems.extend(losses);
        std::mem::take(&mut self.problems)
    }

    /// Ends it. What is left is for the next log.
    pub(crate) fn end(self) -> Option<LoadedProgram> {
        self.program.map(LogProgram::detach)
    }

    /// What was lost since the last call.
    pub(crate) fn new_losses(&mut self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut note = |lost: u64, reported: &mut u64, what| {
            let before = std::mem::replace(reported, lost);
            note_loss(lost.saturating_sub(before), what, &mut problems);
        };
        let sideband = self.sideband.as_ref().map_or(0, |sideband| lock(sideband).lost());
        note(sideband, &mut self.reported_lost[1], "names and mappings of processes");
        match self.program.as_ref().map(LogProgram::lost) {
            Some(Ok(lost)) => {
                note(lost, &mut self.reported_lost[0], "starts and ends of processes")
            }
            Some(Err(error)) => {
                problems.push(format!("failed to read the log of processes: {error}"));
            }
            None => {}
        }
        problems
    }
}

fn lock(sideband: &Mutex<Sideband>) -> MutexGuard<'_, Sideband> {
    sideband.lock().unwrap_or_else(PoisonError::into_inner)
}

fn note_loss(lost: u64, what: &str, problems: &mut Vec<String>) {
    if 0 < lost {
        problems.push(format!("the log had no room for {lost} {what}"));
    }
}

/// Forks and exits are the program's, when it runs: it knows more of them.
fn translate(event: sideband::Event, has_program: bool, modules: &mut Modules) -> Option<Event> {
    let kind = match event.kind {
        sideband::EventKind::Comm { name, exec } => EventKind::Named { name, exec },
        sideband::EventKind::Map { start, length, offset, path, build_id } => {
            let build_id = build_id.map(|id| id.bytes().to_vec());
            let module = modules.number_of_logged(&path, build_id)?;
            let end = start.checked_add(length)?;
            EventKind::Mapped(GuestMapping { start, end, offset, module })
        }
        _ if has_program => return None,
        sideband::EventKind::Fork { parent } => {
            EventKind::Fork { parent, name: String::new(), cr3: None, fs_base: 0 }
        }
        sideband::EventKind::Exit => EventKind::Exit { fs_base: 0 },
    };
    Some(Event { time_ns: event.time_ns, pid: event.pid, tid: event.tid, kind })
}
