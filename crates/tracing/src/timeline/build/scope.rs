//! What a machine's trace covers.

use model::{HostNs, Machine, MachineId, Tid, TraceEvent, What};
use rustc_hash::{FxHashMap, FxHashSet};

/// What a machine's trace covers.
#[derive(Debug)]
pub(super) struct Scope {
    pub(super) begin: HostNs,
    pub(super) end: HostNs,
    /// Ascending.
    pub(super) cpus: Vec<u32>,
    pub(super) fault_ends: FaultEnds,
    /// No event is known to be lost or left out by a filter: what no event says did not happen.
    pub(super) complete: bool,
    /// No event is known to be lost; a filter may have left some out.
    pub(super) lossless: bool,
}

/// How the length of a page fault is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FaultEnds {
    /// By its end.
    Seen,
    /// Its end is not seen.
    Estimated {
        /// As long as they take on this machine.
        ns: u64,
    },
}

impl Scope {
    /// By what the tables say; what they leave open, by the events.
    pub(super) fn of(row: &Machine, machine: MachineId, events: &[TraceEvent]) -> Self {
        let mut cpus: FxHashSet<u32> = row.cpus.iter().copied().collect();
        let (mut first, mut last) = (HostNs(u64::MAX), HostNs(0));
        let mut ends_seen = false;
        let mut latest = None;
        let mut chains = Chains::default();
        for event in events.iter().filter(|event| event.machine == machine) {
            (first, last) = (first.min(event.time), last.max(event.time));
            ends_seen |= matches!(event.what, What::FaultExit { .. });
            chains.event(event);
            if latest.replace(event.cpu) != Some(event.cpu) {
                cpus.insert(event.cpu);
            }
        }
        let mut cpus: Vec<u32> = cpus.into_iter().collect();
        cpus.sort_unstable();
        let told = row.begin < row.end;
        let lossless = row.lost.iter().all(|lost| lost.count == 0);
        let complete = lossless && chains.hold();
        let (begin, end) = if told { (row.begin, row.end) } else { (first.min(last), last) };
        let fault_ends = match ends_seen {
            true => FaultEnds::Seen,
            false => FaultEnds::Estimated { ns: row.fault_estimate_ns.unwrap_or(0) },
        };
        Self { begin, end, cpus, fault_ends, complete, lossless }
    }

    /// Row of `cpus`.
    pub(super) fn row(&self, cpu: u32) -> Option<usize> {
        match self.cpus.get(cpu as usize) {
            Some(number) if *number == cpu => Some(cpu as usize),
            _ => self.cpus.binary_search(&cpu).ok(),
        }
    }
}

/// Whether the switches of a CPU are from the tasks that those before them were to. Where a filter left out switches, most
/// are not.
#[derive(Debug, Default)]
struct Chains {
    running: FxHashMap<u32, Tid>,
    links: u64,
    broken: u64,
}

impl Chains {
    fn event(&mut self, event: &TraceEvent) {
        match event.what {
            What::Switch { prev, next, .. } => {
                let running = self.running.insert(event.cpu, next);
                self.links += 1;
                self.broken += u64::from(running.is_some_and(|running| running != prev));
            }
            // A thread may take the id of its process's first.
            What::Exec { task, .. } => {
                self.running.insert(event.cpu, task);
            }
            _ => {}
        }
    }

    /// All but a few in a hundred: kernels miss some switches when nothing is left out.
    fn hold(&self) -> bool {
        self.broken * 50 <= self.links
    }
}
