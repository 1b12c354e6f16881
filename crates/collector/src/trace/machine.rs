//! A machine being traced: its rings, and the spools or the memory its events go to.

use std::time::Duration;

use model::{HostNs, Machine, MachineId, Tid, TraceEvent, TraceTables};
use recording::trace::{TraceSpool, TraceWriter};

use super::flight::HeldEvents;
use super::plan::Flight;
use super::poll_interval::PollInterval;
use super::source::{Source, SourceError};

/// Memory for this many events is kept between polls.
const KEPT_EVENTS: usize = 1 << 18;
/// Its rings are looked at so often at the end at most: a guest's may go on filling.
const LAST_LOOKS: usize = 3;

/// Where a machine's events go.
#[derive(Debug)]
enum Store {
    /// To files, by CPU.
    Spools(Vec<(u32, TraceSpool)>),
    /// To memory: the last seconds.
    Held(HeldEvents),
}

/// A machine being traced.
#[derive(Debug)]
pub(super) struct TracedMachine {
    id: MachineId,
    source: Box<dyn Source>,
    poll_interval: PollInterval,
    store: Store,
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
        let (store, events) = (Store::Spools(Vec::new()), Vec::new());
        Self { id, source, poll_interval, store, begin, end, ended_early: None, events, stored: 0 }
    }

    /// Events go to files.
    pub(super) fn open_spools(&mut self, writer: &TraceWriter) -> Result<(), recording::Error> {
        let mut spools = Vec::new();
        for cpu in self.source.machine().cpus {
            spools.push((cpu, writer.spool(self.id, cpu)?));
        }
        self.store = Store::Spools(spools);
        Ok(())
    }

    /// Events go to memory.
    pub(super) fn hold(&mut self, flight: Flight) {
        self.store = Store::Held(HeldEvents::new(flight, self.id, &self.source.machine().cpus));
    }

    pub(super) fn start(&mut self) -> Result<(), SourceError> {
        self.begin = self.source.start()?;
        if let Store::Held(held) = &mut self.store {
            held.start(self.begin);
        }
        Ok(())
    }

    /// Drains the rings, and returns how long to sleep until the next poll.
    pub(super) fn look(&mut self) -> Result<Duration, recording::Error> {
        let mut fullest: f64 = 0.0;
        for row in 0..self.store.cpus() {
            if self.ended_early.is_some() {
                break;
            }
            self.events.clear();
            match self.source.drain(self.store.cpu(row), &mut self.events) {
                Ok(fill) => fullest = fullest.max(fill),
                Err(reason) => {
                    self.end = probes::now().min(self.end);
                    self.ended_early = Some(reason);
                }
            }
            let (begin, end) = (self.begin, self.end);
            self.events.retain(|event| begin <= event.time && event.time <= end);
            if !self.events.is_empty() {
                self.store.append(row, &self.events)?;
                self.stored += self.events.len() as u64;
            }
        }
        if let Store::Held(held) = &mut self.store {
            held.limit(probes::now().min(self.end), &mut *self.source);
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

    /// Events that a trace would have that is written now.
    pub(super) fn events(&self) -> u64 {
        match &self.store {
            Store::Spools(_) => self.stored,
            Store::Held(held) => held.events(),
        }
    }

    /// Events in memory, for a trace that ends at `end`. `None`: they are in files.
    pub(super) fn held(&mut self, end: HostNs) -> Option<&HeldEvents> {
        match &mut self.store {
            Store::Spools(_) => None,
            Store::Held(held) => {
                held.end_at(end.min(self.end), &mut *self.source);
                Some(held)
            }
        }
    }

    /// Whether this task began its program before the trace begins that would be written now.
    pub(super) fn has_begun_program(&self, task: Tid) -> bool {
        matches!(&self.store, Store::Held(held) if held.has_begun_program(task))
    }

    /// When the recorder began.
    pub(super) fn began(&self) -> HostNs {
        self.begin
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
        let mut row = Machine { begin, end, ended_early, ..row };
        if let Store::Held(held) = &self.store {
            held.amend(&mut row);
        }
        row
    }

    /// Adds what is known by now to the trace's tables.
    pub(super) fn add_to(&mut self, tables: &mut TraceTables) {
        let mut found = self.source.tables();
        if let Store::Held(held) = &self.store {
            held.amend_tables(&mut found);
        }
        let id = self.id;
        tables.machines.push(self.row());
        tables.tasks.extend(found.tasks);
        tables.stacks.extend(found.stacks.into_iter().map(|(stack, names)| (id, stack, names)));
        tables.files.extend(found.files);
        tables.disks.extend(found.disks.into_iter().map(|(dev, name)| (id, dev, name)));
    }
}

impl Store {
    fn cpus(&self) -> usize {
        match self {
            Self::Spools(spools) => spools.len(),
            Self::Held(held) => held.queues.len(),
        }
    }

    fn cpu(&self, row: usize) -> u32 {
        match self {
            Self::Spools(spools) => spools[row].0,
            Self::Held(held) => held.queues[row].0,
        }
    }

    fn append(&mut self, row: usize, events: &[TraceEvent]) -> Result<(), recording::Error> {
        match self {
            Self::Spools(spools) => spools[row].1.append(events),
            Self::Held(held) => {
                held.queues[row].1.append(events);
                Ok(())
            }
        }
    }
}
