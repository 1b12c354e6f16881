//! Making a trace.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use model::{Counter, MachineId, TraceEvent, TraceEventKind, TraceStack, TraceTables};

use super::events::Events;
use super::spool::EventCodec;
use super::{TraceHeader, TraceSpool, manifest, tables};
use crate::batches::convert;
use crate::error::{Error, Folder};
use crate::files::{self, EVENTS, machine_spool};
use crate::fit::fit_trace;
use crate::folder::PartialFolder;
use crate::manifest::{FileEntry, Files};
use crate::spool::{Place, SpoolWriter};

/// Writes one trace.
///
/// ```text
///  create ---> NAME.partial/ with trace.json, the tables so far, and growing spools
///    |  \____ dropped or killed: that is what stays, and what Trace::open reads
///    v
///  finish ---> tables, events, trace.json (complete), spools removed ---> NAME/
///    \_______ failed: NAME.partial/ stays
/// ```
#[derive(Debug)]
pub struct TraceWriter {
    folder: PartialFolder,
}

/// What a finished trace holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceSummary {
    pub path: PathBuf,
    pub events: u64,
    /// Bytes of `events.parquet`.
    pub event_bytes: u64,
    /// Bytes of all files.
    pub bytes: u64,
}

impl TraceWriter {
    /// Begins a trace that will be the folder `path`. `header` and `tables` are what is known so far: at least the
    /// machines.
    ///
    /// # Errors
    /// When the name is taken or nothing can be written there.
    pub fn create(path: &Path, header: &TraceHeader, tables: &TraceTables) -> Result<Self, Error> {
        let folder = PartialFolder::create(path, Folder::Trace).map_err(Error::of_trace)?;
        let writer = Self { folder };
        match writer.checkpoint(header, tables) {
            Ok(()) => Ok(writer),
            Err(error) => {
                writer.discard()?;
                Err(error)
            }
        }
    }

    /// Where the trace is until it is finished.
    #[must_use]
    pub fn partial_path(&self) -> &Path {
        self.folder.partial()
    }

    /// Begins the spool of a machine's CPU; once per machine and CPU. Events of a machine that no table has when the
    /// writer is killed are not read: `checkpoint` first.
    ///
    /// # Errors
    /// When it can't be created.
    pub fn spool(&self, machine: MachineId, cpu: u32) -> Result<TraceSpool, Error> {
        let place = (machine, cpu);
        let path = self.folder.dir.join(machine_spool(place));
        SpoolWriter::create(&path, place).map(TraceSpool).map_err(Error::of_trace)
    }

    /// Stores what is known so far, so that it is not lost should the writer be killed: for rare events, such as a
    /// VM that joins.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn checkpoint(&self, header: &TraceHeader, tables: &TraceTables) -> Result<(), Error> {
        let dir = &self.folder.dir;
        let header = TraceHeader { complete: false, ..header.clone() };
        tables::write(dir, tables)
            .and_then(|_| manifest::write(dir, &header, tables.command.as_ref(), &Files::new()))
            .map_err(Error::of_trace)?;
        Ok(())
    }

    /// Turns the spools into `events.parquet`, adds the tables and gives the trace its name. All events must have been
    /// appended to the spools. Events of machines that `tables` lacks are left out; the header counts them as
    /// `events_without_machine_row`, those of stacks that it lacks as `events_without_stack_row`.
    ///
    /// # Errors
    /// When something can't be written; what was traced then stays under the partial name.
    pub fn finish(self, header: &TraceHeader, tables: &TraceTables) -> Result<TraceSummary, Error> {
        self.finish_files(header, tables).map_err(Error::of_trace)
    }

    fn finish_files(
        self,
        header: &TraceHeader,
        tables: &TraceTables,
    ) -> Result<TraceSummary, Error> {
        let dir = &self.folder.dir;
        let (tables, left_out) = fit_trace(tables);
        let tables = &*tables;
        let written = tables::write(dir, tables)?;
        let mut files: Files = written.into_iter().map(|(n, e)| (n.to_owned(), e)).collect();
        let spools = files::find_spools(dir, machine_spool)?;
        let (events, lost) = write_events(dir, &spools, tables)?;
        let (rows, event_bytes) = (events.rows, events.bytes);
        files.insert(EVENTS.to_owned(), events);
        let mut header = TraceHeader { complete: true, ..header.clone() };
        header.notes.extend(left_out);
        for (name, count) in lost.counters().into_iter().filter(|(_, count)| 0 < *count) {
            *header.counters.entry(name.to_owned()).or_insert(0) += count;
        }
        let manifest_bytes = manifest::write(dir, &header, tables.command.as_ref(), &files)?;
        let spools: Vec<_> = spools.into_iter().map(|(_, path)| path).collect();
        Ok(TraceSummary {
            path: self.folder.publish(&spools)?,
            events: rows,
            event_bytes,
            bytes: manifest_bytes + files.values().map(|entry| entry.bytes).sum::<u64>(),
        })
    }

    /// Removes everything written so far.
    ///
    /// # Errors
    /// When it can't be removed.
    pub fn discard(self) -> Result<(), Error> {
        self.folder.discard()
    }
}

/// What was lost on the way from the spools to the table.
#[derive(Debug, Default)]
struct Lost {
    spool_bytes: u64,
    without_machine: u64,
    without_stack: u64,
}

impl Lost {
    fn counters(&self) -> [(&'static str, u64); 3] {
        [
            (Counter::SpoolBytesLost.name(), self.spool_bytes),
            ("events_without_machine_row", self.without_machine),
            ("events_without_stack_row", self.without_stack),
        ]
    }
}

fn write_events(
    dir: &Path,
    spools: &[(Place, PathBuf)],
    tables: &TraceTables,
) -> Result<(FileEntry, Lost), Error> {
    let stacks: BTreeSet<_> =
        tables.stacks.iter().map(|(machine, number, _)| (*machine, *number)).collect();
    let mut lost = Lost::default();
    let (events, spool_bytes) = convert::<Events, EventCodec>(dir, spools, |slice, writer| {
        let before = slice.len();
        slice.retain(|event| event.machine.index() < tables.machines.len());
        lost.without_machine += (before - slice.len()) as u64;
        let lacks_stack = |event: &&TraceEvent| {
            let mut named = stacks_of(&event.kind).into_iter().flatten();
            named.any(|stack| !stacks.contains(&(event.machine, stack)))
        };
        lost.without_stack += slice.iter().filter(lacks_stack).count() as u64;
        if slice.is_empty() { Ok(()) } else { writer.write(&*slice) }
    })?;
    lost.spool_bytes = spool_bytes;
    Ok((events, lost))
}

fn stacks_of(what: &TraceEventKind) -> [Option<TraceStack>; 2] {
    match *what {
        TraceEventKind::Switch { stack, user_stack, .. } => [stack, user_stack],
        TraceEventKind::LockBegin { stack, .. } => [stack, None],
        _ => [None, None],
    }
}

impl TraceSummary {
    /// Bytes of `events.parquet` per event; 0 without events.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a figure to show")]
    pub fn bytes_per_event(&self) -> f64 {
        self.event_bytes as f64 / self.events.max(1) as f64
    }
}
