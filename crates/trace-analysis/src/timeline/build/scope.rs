//! What a machine's trace covers.

use std::ops::Range;

use model::{HostNs, Machine, MachineId, Tid, TraceEvent, TraceEventKind, TraceTables};
use rustc_hash::{FxHashMap, FxHashSet};

use super::Builder;
use super::inferred_syscalls::SyscallEvidence;

/// What a machine's trace covers.
#[derive(Debug)]
pub(super) struct Scope {
    pub(super) begin: HostNs,
    pub(super) end: HostNs,
    /// The requested part of it, if not all.
    pub(super) range: Option<Range<HostNs>>,
    /// Ascending.
    pub(super) cpus: Vec<u32>,
    pub(super) fault_ends: FaultEnds,
    /// No event is known to be lost or left out by a filter: what no event says did not happen.
    pub(super) complete: bool,
    /// No event is known to be lost; a filter may have left some out.
    pub(super) lossless: bool,
    /// Where a filter left out switches: the tasks whose switches it kept, which are those whose system calls it kept.
    pub(super) traced: Option<FxHashSet<Tid>>,
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

/// Sees all of a machine's events before any is put on the time axis: what one of them means may depend on later ones.
#[derive(Debug)]
pub struct Survey<'a> {
    tables: &'a TraceTables,
    machine: MachineId,
    cpus: FxHashSet<u32>,
    /// The CPU of the last event.
    latest: Option<u32>,
    first: HostNs,
    last: HostNs,
    fault_ends_seen: bool,
    /// Where a filter left out switches: the tasks with system calls.
    callers: Option<FxHashSet<Tid>>,
    chains: Chains,
    evidence: SyscallEvidence<'a>,
    range: Option<Range<HostNs>>,
}

impl<'a> Survey<'a> {
    /// A survey of the events of one machine.
    #[must_use]
    pub fn new(tables: &'a TraceTables, machine: MachineId) -> Self {
        Self {
            tables,
            machine,
            cpus: FxHashSet::default(),
            latest: None,
            first: HostNs(u64::MAX),
            last: HostNs(0),
            fault_ends_seen: false,
            callers: None,
            chains: Chains::default(),
            evidence: SyscallEvidence::new(tables, machine),
            range: None,
        }
    }

    /// The timeline is to be of this range only. What is known at its begin comes from the events before.
    #[must_use]
    pub fn within(self, range: Option<Range<HostNs>>) -> Self {
        Self { range, ..self }
    }

    /// A filter left out switches: where no event tells, anybody may have had a CPU.
    pub fn switches_left_out(&mut self) {
        self.callers = Some(FxHashSet::default());
    }

    /// Takes the next events, of all machines: those of guests tell something of their host's threads.
    pub fn see(&mut self, events: &[TraceEvent]) {
        for event in events {
            if event.machine != self.machine {
                self.evidence.see_other(event);
                continue;
            }
            self.first = self.first.min(event.time);
            self.last = self.last.max(event.time);
            self.fault_ends_seen |= matches!(event.kind, TraceEventKind::FaultExit { .. });
            self.chains.event(event);
            if let (
                Some(callers),
                TraceEventKind::SyscallEnter { task, .. }
                | TraceEventKind::SyscallExit { task, .. },
            ) = (&mut self.callers, &event.kind)
            {
                callers.insert(*task);
            }
            if self.latest.replace(event.cpu) != Some(event.cpu) {
                self.cpus.insert(event.cpu);
            }
        }
    }

    /// Begins the second pass.
    #[must_use]
    pub fn builder(mut self) -> Builder<'a> {
        let (tables, machine) = (self.tables, self.machine);
        let absent = Machine::default();
        let row = tables.machines.get(machine.index()).unwrap_or(&absent);
        let scope = self.scope(row);
        Builder::new(tables, machine, row, scope, self.evidence)
    }

    /// From the tables, or from the events where the tables have nothing.
    fn scope(&mut self, row: &Machine) -> Scope {
        let mut cpus: Vec<u32> = self.cpus.iter().chain(&row.cpus).copied().collect();
        cpus.sort_unstable();
        cpus.dedup();
        let has_times = row.begin < row.end;
        let lossless = row.lost.iter().all(|lost| lost.count == 0);
        let complete = lossless && self.callers.is_none() && self.chains.hold();
        let seen = (self.first.min(self.last), self.last);
        let (begin, end) = if has_times { (row.begin, row.end) } else { seen };
        let fault_ends = match self.fault_ends_seen {
            true => FaultEnds::Seen,
            false => FaultEnds::Estimated { ns: row.fault_estimate_ns.unwrap_or(0) },
        };
        let traced = self.callers.take();
        let range = self.range.take().map(|range| {
            let from = range.start.clamp(begin, end);
            from..range.end.clamp(from, end)
        });
        let end = range.as_ref().map_or(end, |range| range.end);
        Scope { begin, end, range, cpus, fault_ends, complete, lossless, traced }
    }
}

impl Scope {
    /// The CPU's row in `cpus`.
    pub(super) fn row(&self, cpu: u32) -> Option<usize> {
        match self.cpus.get(cpu as usize) {
            Some(number) if *number == cpu => Some(cpu as usize),
            _ => self.cpus.binary_search(&cpu).ok(),
        }
    }
}

/// Whether the switches of a CPU are from the tasks that those before them were to. Where switches are missing of which
/// unknown ones mostly are not.
#[derive(Debug, Default)]
struct Chains {
    running: FxHashMap<u32, Tid>,
    links: u64,
    broken: u64,
}

impl Chains {
    fn event(&mut self, event: &TraceEvent) {
        match event.kind {
            TraceEventKind::Switch { prev, next, .. } => {
                let running = self.running.insert(event.cpu, next);
                self.links += 1;
                self.broken += u64::from(running.is_some_and(|running| running != prev));
            }
            // A thread may take the id of its process's first.
            TraceEventKind::Exec { task, .. } => {
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
