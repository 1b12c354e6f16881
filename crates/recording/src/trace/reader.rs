//! Reading a trace.

use std::path::{Path, PathBuf};

use model::{HostNs, TraceEvent, TraceTables};

use super::events::Events;
use super::manifest::{self, Contents};
use super::spool::EventCodec;
use super::{TraceHeader, tables};
use crate::batches::{Batches, Source};
use crate::error::{Error, Folder};
use crate::files::{self, EVENTS, TRACE_MANIFEST, machine_spool};
use crate::folder::{find, verify};
use crate::reader::{killed, note, spooled};
use crate::schema::TableSchema;
use crate::spool::{SpoolReader, Survey};

/// Events of a trace at most: a timeline holds some 20 bytes for each.
pub const MAX_EVENTS: u64 = 1 << 27;

/// An open trace: complete, or what a killed writer left (`TraceHeader::complete` and a note say so).
#[derive(Debug)]
pub struct Trace {
    /// Facts about it as a whole.
    pub header: TraceHeader,
    /// All tables but the events.
    pub tables: TraceTables,
    dir: PathBuf,
    source: Source,
    /// How many there are, where that is known before they are read.
    events: Option<u64>,
}

/// The events of a trace in time order, batch by batch.
#[derive(Debug)]
pub struct TraceEvents {
    stream: Batches<Events, EventCodec>,
    batch: Vec<TraceEvent>,
    /// How many there are to refer to.
    machines: usize,
    path: PathBuf,
    limit: u64,
    given: u64,
}

impl Trace {
    /// Opens the trace at `path`, or the unfinished one that would have got that name.
    ///
    /// # Errors
    /// When there is none, it is incomplete though finished, damaged, or newer than this program. A recording of
    /// samples is distinguished from a trace: the error names the command that reads it.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let dir = find(path, Folder::Trace)?;
        let contents = manifest::read(&dir)?;
        let complete = contents.header.complete;
        let trace =
            if complete { Self::complete(&dir, contents) } else { Self::killed(&dir, contents) }?;
        let machines = trace.tables.machines.len();
        match &trace.tables.command {
            Some(command) if machines <= command.machine.index() => Err(Error::damaged(
                &dir.join(TRACE_MANIFEST),
                "its command refers to a row that does not exist",
            )),
            _ => Ok(trace),
        }
    }

    /// How many events there are, where that is known before they are read.
    #[must_use]
    pub fn known_events(&self) -> Option<u64> {
        self.events
    }

    /// Begins to read the events of all machines, in time order. Events of one CPU that were recorded out of time
    /// order are given as they were recorded.
    ///
    /// # Errors
    /// When they can't be read, or are known to be more than `MAX_EVENTS`.
    pub fn batches(&self) -> Result<TraceEvents, Error> {
        self.batches_up_to(MAX_EVENTS)
    }

    /// The same for a trace of at most `limit` events.
    ///
    /// # Errors
    /// When they can't be read, or are known to be more.
    pub fn batches_up_to(&self, limit: u64) -> Result<TraceEvents, Error> {
        if self.events.is_some_and(|events| limit < events) {
            return Err(Error::TooManyEvents { path: self.dir.clone(), limit });
        }
        let stream = Batches::open(&self.source)?;
        let machines = self.tables.machines.len();
        let path = self.dir.clone();
        Ok(TraceEvents { stream, batch: Vec::new(), machines, path, limit, given: 0 })
    }

    /// Shows all events to `see`, batch by batch in time order.
    ///
    /// # Errors
    /// When they can't be read or are more than `MAX_EVENTS`; `see` may then have seen some.
    pub fn for_each_batch(&self, see: &mut dyn FnMut(&[TraceEvent])) -> Result<(), Error> {
        let mut events = self.batches()?;
        while let Some(batch) = events.next_batch()? {
            see(batch);
        }
        Ok(())
    }

    /// All events of a short trace in time order: each takes 56 bytes of memory.
    ///
    /// # Errors
    /// When they can't be read or are more than `MAX_EVENTS`.
    pub fn events(&self) -> Result<Vec<TraceEvent>, Error> {
        let mut all = Vec::new();
        self.for_each_batch(&mut |batch| all.extend_from_slice(batch))?;
        Ok(all)
    }

    fn complete(dir: &Path, contents: Contents) -> Result<Self, Error> {
        let Contents { header, command, files } = contents;
        let is_there = |table: &&TableSchema| {
            let is_there = files.contains_key(table.file) || dir.join(table.file).exists();
            is_there || !tables::is_optional(table)
        };
        for table in tables::SCHEMAS.iter().filter(is_there) {
            verify(dir, table.file, &files, Folder::Trace)?;
        }
        let (tables, _) = tables::read(dir)?;
        Ok(Self {
            header,
            tables: TraceTables { command, ..tables },
            dir: dir.to_owned(),
            source: Source::Table(dir.join(EVENTS)),
            events: files.get(EVENTS).map(|entry| entry.rows),
        })
    }

    fn killed(dir: &Path, contents: Contents) -> Result<Self, Error> {
        let Contents { header, command, .. } = contents;
        let (tables, missing) = tables::read(dir)?;
        let tables = TraceTables { command, ..tables };
        let table = dir.join(EVENTS);
        let mut trace = Self {
            header,
            tables,
            dir: dir.to_owned(),
            source: Source::Table(table),
            events: None,
        };
        if !dir.join(EVENTS).is_file() {
            trace.read_spools()?;
        }
        trace.header.notes.push(note(dir, killed(&missing)));
        Ok(trace)
    }

    /// Takes the events from the spools, and from the events what the tables can't know yet: when they end.
    fn read_spools(&mut self) -> Result<(), Error> {
        let (known, unknown): (Vec<_>, Vec<_>) = files::find_spools(&self.dir, machine_spool)?
            .into_iter()
            .partition(|((machine, _), _)| machine.index() < self.tables.machines.len());
        let mut sum = Survey::default();
        for ((machine, cpu), path) in &known {
            let spool = SpoolReader::<EventCodec>::open(path, (*machine, *cpu))?;
            let survey = spool.survey(&mut |_| {})?;
            sum.add(&survey);
            let machine = &mut self.tables.machines[machine.index()];
            if let Err(place) = machine.cpus.binary_search(cpu) {
                machine.cpus.insert(place, *cpu);
            }
            if 0 < survey.records {
                let [first, last] = survey.keys.map(HostNs);
                widen((&mut machine.begin, &mut machine.end), first, last);
                widen((&mut self.header.begin, &mut self.header.end), first, last);
            }
        }
        self.header.notes.push(note(&self.dir, spooled("events", &sum)));
        if !unknown.is_empty() {
            let text =
                format!("{} spools of machines that no table has were left out", unknown.len());
            self.header.notes.push(note(&self.dir, text));
        }
        self.events = Some(sum.records);
        self.source = Source::Spools(known);
        Ok(())
    }
}

/// Makes a span of time cover another. A span that never began has no begin to keep.
fn widen((begin, end): (&mut HostNs, &mut HostNs), first: HostNs, last: HostNs) {
    *begin = if *begin == HostNs(0) { first } else { first.min(*begin) };
    *end = last.max(*end);
}

impl TraceEvents {
    /// The next batch in time order, at most a few 100,000 events; `None` at the end.
    ///
    /// # Errors
    /// When it can't be read, or there are more events than the limit.
    pub fn next_batch(&mut self) -> Result<Option<&[TraceEvent]>, Error> {
        let more = self.stream.next(&mut self.batch)?;
        if self.batch.iter().any(|event| self.machines <= event.machine.index()) {
            let reason = "an event refers to a row that does not exist";
            return Err(Error::damaged(&self.path.join(EVENTS), reason));
        }
        self.given += self.batch.len() as u64;
        if self.limit < self.given {
            return Err(Error::TooManyEvents { path: self.path.clone(), limit: self.limit });
        }
        Ok(more.then_some(self.batch.as_slice()))
    }
}
