//! Making a trace.

use std::path::{Path, PathBuf};

use model::{MachineId, TraceTables};

use super::{TraceHeader, TraceSpool};
use crate::error::Error;

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
    dir: PathBuf,
}

/// What a finished trace holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceSummary {
    /// Where it is.
    pub path: PathBuf,
    /// Events.
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
        let _ = (path, header, tables);
        unimplemented!()
    }

    /// Where the trace is until it is finished.
    #[must_use]
    pub fn partial_path(&self) -> &Path {
        &self.dir
    }

    /// Begins the spool of a machine's CPU; once per machine and CPU.
    ///
    /// # Errors
    /// When it can't be created.
    pub fn spool(&self, machine: MachineId, cpu: u32) -> Result<TraceSpool, Error> {
        let _ = (machine, cpu);
        unimplemented!()
    }

    /// Stores what is known so far, so that it is not lost should the writer be killed.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn checkpoint(&self, header: &TraceHeader, tables: &TraceTables) -> Result<(), Error> {
        let _ = (header, tables);
        unimplemented!()
    }

    /// Turns the spools into `events.parquet`, adds the tables and gives the trace its name. All events must have been
    /// appended to the spools.
    ///
    /// # Errors
    /// When something can't be written; what was traced then stays under the partial name.
    pub fn finish(self, header: &TraceHeader, tables: &TraceTables) -> Result<TraceSummary, Error> {
        let _ = (header, tables);
        unimplemented!()
    }

    /// Removes everything written so far.
    ///
    /// # Errors
    /// When it can't be removed.
    pub fn discard(self) -> Result<(), Error> {
        unimplemented!()
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
