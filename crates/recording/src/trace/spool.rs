//! The spool of one CPU.

use model::TraceEvent;

use crate::error::Error;

/// Takes the events of one CPU of one machine while tracing.
#[derive(Debug)]
pub struct TraceSpool {}

impl TraceSpool {
    /// Appends events of this CPU, in time order. They are in the file when this returns; after an error none of the
    /// block that failed is.
    ///
    /// # Errors
    /// When one is of another CPU or machine, or they can't be written.
    pub fn append(&mut self, events: &[TraceEvent]) -> Result<(), Error> {
        let _ = events;
        unimplemented!()
    }
}
