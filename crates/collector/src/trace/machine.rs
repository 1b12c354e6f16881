//! A machine being traced: its rings, and the spools its events go to.

use std::time::Duration;

use model::{HostNs, Machine, MachineId, Tid, TraceEvent, TraceTables};
use recording::trace::{TraceSpool, TraceWriter};

use super::poll_interval::PollInterval;
use super::source::{Source, SourceError};

/// Memory for this many events is kept between polls.
const KEPT_EVENTS: usize = 1 << 18;
/// Its rings are looked at so often at the end at most: a guest's may go on filling.
const LAST_LOOKS: usize = 3;

/// A machine being traced.
#[derive(Debug)]
pub(super) struct TracedMachine {
    id: MachineId,
    source: Box<dyn Source>,
    poll_interval: PollInterval,
    spools: Vec<(u32, TraceSpool)>,
    begin: HostNs,
    end: HostNs,
    ended_early: Option<SourceError>,
    /// Of one look at one ring: kept for its memory.
    events: Vec<TraceEvent>,
    /// Events stored.
    pub(super) stored: u64,
}

impl TracedMachine {
    pub(super) fn new(id: MachineId, source: Box<dyn Source>) -> Self {
        let poll_interval = PollInterval::new(source.ring_slots());
        let (begin, end) = (HostNs(0), HostNs(u64::MAX));
        let (spools, events) = (Vec::new(), Vec::new());
        Self { id, source, poll_interval, spools, begin, end, ended_early: None, events, stored: 0 }
    }

    pub(super) fn open_spools(&mut self, writer: &TraceWriter) -> Result<(), recording::Error> {
        for cpu in self.source.machine().cpus {
            self.spools.push((cpu, writer.spool(self.id, cpu)?));
        }
        Ok(())
    }

    pub(super) fn start(&mut self) -> Result<(), SourceError> {
        self.begin = self.source.start()?;
        Ok(())
    }

    /// Drains the rings, and returns how long to sleep until the next poll.
    pub(super) fn look(&mut self) -> Result<Duration, recording::Error> {
        let mut fullest: f64 = 0.0;
        for (cpu, spool) in &mut self.spools {
            if self.ended_early.is_some() {
                break;
            }
            self.events.clear();
            match self.source.drain(*cpu, &mut self.events) {
                Ok(fill) => fullest = fullest.max(fill),
                Err(reason) => {
                    self.end = probes::now().min(self.end);
                    self.ended_early = Some(reason);
                }
            }
            let (begin, end) = (self.begin, self.end);
            self.events.retain(|event| begin <= event.time && event.time <= end);
            if !self.events.is_empty() {
                spool.append(&self.events)?;
                self.stored += self.events.len() as u64;
            }
        }
        self.events.clear();
        self.events.shrink_to(KEPT_EVENTS);
        Ok(self.poll_interval.after(fullest))
    }

    /// Has its probes detached, as far as that takes no waiting.
    pub(super) fn ask_to_stop(&mut self) {
        self.source.ask_to_stop();
    }

    /// Detaches its probes. Its trace ends at `end`, or earlier.
    pub(super) fn stop(&mut self, end: HostNs) {
        self.end = self.source.stop().min(end).min(self.end);
    }

    /// Stores what still lies in the rings.
    pub(super) fn last_looks(&mut self) -> Result<(), recording::Error> {
        for _ in 0..LAST_LOOKS {
            let before = self.stored;
            self.look()?;
            if self.stored == before {
                break;
            }
        }
        Ok(())
    }

    /// Events lost so far.
    pub(super) fn lost(&self) -> u64 {
        self.source.machine().n_lost()
    }

    pub(super) fn id(&self) -> MachineId {
        self.id
    }

    pub(super) fn source(&self) -> &dyn Source {
        &*self.source
    }

    pub(super) fn run_command(&mut self) -> Result<Option<Tid>, SourceError> {
        self.source.run_command()
    }

    /// Its row of the trace's machines. While it is traced it covers the time up to now.
    pub(super) fn row(&self) -> Machine {
        let (begin, end) = (self.begin, self.end.min(probes::now()));
        let row = self.source.machine();
        // A source that ended by itself says when.
        let end = if row.ended_early.is_some() { row.end.min(end) } else { end };
        let ended_early = self.ended_early.as_ref().map(SourceError::to_string).or(row.ended_early);
        Machine { begin, end, ended_early, ..row }
    }

    /// Adds what is known by now to the trace's tables.
    pub(super) fn add_to(&mut self, tables: &mut TraceTables) {
        let found = self.source.tables();
        let id = self.id;
        tables.machines.push(self.row());
        tables.tasks.extend(found.tasks);
        tables.stacks.extend(found.stacks.into_iter().map(|(stack, names)| (id, stack, names)));
        tables.disks.extend(found.disks.into_iter().map(|(dev, name)| (id, dev, name)));
    }
}
