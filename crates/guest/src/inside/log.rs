//! The log of processes that start, exec and end while the host samples: two sources that wake nobody.
//! The BPF program knows page tables and FS bases, perf's side band knows names and mappings.

use std::path::Path;

use api::guest::{GuestImage, GuestMapping};
use host::sideband::{self, Sideband};

use super::processes::Modules;
use super::program::LogProgram;
use super::timeline::{Event, EventKind};
use crate::walk::Layout;

/// Ring of each CPU: about 4,000 processes that start and end.
const RING_BYTES: usize = 4 << 20;
/// Rings of all CPUs.
const ALL_RINGS_BYTES: usize = 64 << 20;

/// A log under way.
#[derive(Debug)]
pub(crate) struct Log {
    /// `CLOCK_MONOTONIC` when both sources ran, ns.
    pub(crate) started_ns: u64,
    /// Processes alive just after that.
    pub(crate) before: Vec<GuestImage>,
    /// Why it is not complete.
    pub(crate) problems: Vec<String>,
    program: Option<LogProgram>,
    sideband: Option<Sideband>,
}

impl Log {
    /// Starts both sources, or those that work.
    pub(crate) fn start(layout: Option<&Layout>) -> Self {
        let mut problems = Vec::new();
        let program = match layout.map(LogProgram::start) {
            Some(Ok(program)) => Some(program),
            failed => {
                let reason = failed.and_then(Result::err).map(|error| error.to_string());
                let reason = reason.as_deref().unwrap_or("the kernel's layout is unknown");
                problems.push(format!("failed to log processes that start with BPF: {reason}"));
                None
            }
        };
        let cpus = online_cpus(Path::new("/sys"));
        let ring_bytes = (ALL_RINGS_BYTES / cpus.len().max(1)).clamp(1 << 16, RING_BYTES);
        let sideband = Sideband::open(&cpus, ring_bytes)
            .map_err(|error| {
                problems.push(format!("failed to log the mappings of processes that end: {error}"))
            })
            .ok();
        let started_ns = super::now_ns();
        Self { started_ns, before: Vec::new(), problems, program, sideband }
    }

    /// Ends both sources; all they saw, in time order. Adds to `problems` what was lost.
    pub(crate) fn finish(
        self,
        page_offset: u64,
        modules: &mut Modules,
        problems: &mut Vec<String>,
    ) -> Vec<Event> {
        let mut events = Vec::new();
        let has_program = self.program.is_some();
        match self.program.map(|program| program.finish(page_offset)) {
            Some(Ok((noted, lost))) => {
                events = noted;
                note_loss(lost, "starts and ends of processes", problems);
            }
            Some(Err(error)) => {
                problems.push(format!("failed to read the log of processes: {error}"))
            }
            None => {}
        }
        if let Some(mut sideband) = self.sideband {
            sideband.drain(&mut |event| events.extend(translate(event, has_program, modules)));
            note_loss(sideband.lost(), "names and mappings of processes", problems);
        }
        // Stable: of one instant, the program's events first.
        events.sort_by_key(|event| event.time_ns);
        events
    }
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

/// The CPUs that are online; CPU 0 if nobody says.
pub(crate) fn online_cpus(sys: &Path) -> Vec<u32> {
    let text = std::fs::read_to_string(sys.join("devices/system/cpu/online")).unwrap_or_default();
    let cpus = parse_cpu_list(text.trim());
    if cpus.is_empty() { vec![0] } else { cpus }
}

/// The kernel's lists: `0-3,5`.
fn parse_cpu_list(text: &str) -> Vec<u32> {
    const MAX_CPUS: u32 = 8192;
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse().ok()?, last.parse().ok()?);
        (first <= last && last < MAX_CPUS).then_some(first..=last)
    };
    text.split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn cpu_lists() {
        for (text, expected) in
            [("0", &[0][..]), ("0-2,5", &[0, 1, 2, 5]), ("", &[]), ("3-1,x,0-4294967295,7", &[7])]
        {
            assert_eq!(parse_cpu_list(text), expected, "{text}");
        }
    }
}
