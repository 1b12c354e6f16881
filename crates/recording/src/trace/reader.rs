//! Reading a trace.

use std::path::Path;

use model::{TraceEvent, TraceTables};

use super::TraceHeader;
use crate::error::Error;

/// Events that `Trace::events` gives at most: 4 GiB of memory.
pub const MAX_EVENTS: u64 = 1 << 26;

/// An open trace: complete, or what a killed writer left (`TraceHeader::complete` and a note say so).
#[derive(Debug)]
pub struct Trace {
    /// Facts about it as a whole.
    pub header: TraceHeader,
    /// All tables but the events.
    pub tables: TraceTables,
}

/// The events of a trace in time order, batch by batch.
#[derive(Debug)]
pub struct TraceEvents {}

impl Trace {
    /// Opens the trace at `path`, or the unfinished one that would have got that name.
    ///
    /// # Errors
    /// When there is none, it is incomplete though finished, damaged, or newer than this program. A recording of
    /// samples is told from a trace: the error names the command that reads it.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let _ = path;
        unimplemented!()
    }

    /// Begins to read the events of all machines, in time order.
    ///
    /// # Errors
    /// When they can't be read.
    pub fn batches(&self) -> Result<TraceEvents, Error> {
        unimplemented!()
    }

    /// Shows all events to `see`, batch by batch in time order.
    ///
    /// # Errors
    /// When they can't be read; `see` has then seen those before.
    pub fn for_each_batch(&self, see: &mut dyn FnMut(&[TraceEvent])) -> Result<(), Error> {
        let _ = see;
        unimplemented!()
    }

    /// All events in time order.
    ///
    /// # Errors
    /// When they can't be read or are more than `MAX_EVENTS`.
    pub fn events(&self) -> Result<Vec<TraceEvent>, Error> {
        unimplemented!()
    }
}

impl TraceEvents {
    /// The next batch in time order, at most a few 100,000 events; `None` at the end.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn next_batch(&mut self) -> Result<Option<&[TraceEvent]>, Error> {
        unimplemented!()
    }
}
