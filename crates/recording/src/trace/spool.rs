//! The spool of one CPU of a machine in a trace.

use model::{HostNs, TraceEvent};

use super::record::{Before, EVENT_BYTES, decode, encode};
use crate::error::Error;
use crate::spool::{Codec, Place, SpoolWriter};

/// Takes the events of one CPU of one machine while tracing.
#[derive(Debug)]
pub struct TraceSpool(pub(super) SpoolWriter<EventCodec>);

impl TraceSpool {
    /// Appends events of this CPU, in time order. They are in the file when this returns; after an error none of the
    /// block that failed is.
    ///
    /// # Errors
    /// When one is of another CPU or machine, or they can't be written.
    pub fn append(&mut self, events: &[TraceEvent]) -> Result<(), Error> {
        let is_foreign = |event: &&TraceEvent| (event.machine, event.cpu) != self.0.place();
        if let Some(TraceEvent { machine, cpu, .. }) = events.iter().find(is_foreign) {
            let reason =
                format!("an event of machine {}, CPU {cpu} is in the wrong spool", machine.0);
            return Err(Error::Encode { path: self.0.path().to_owned(), reason });
        }
        self.0.append(events).map_err(Error::of_trace)
    }
}

#[derive(Debug)]
pub(super) enum EventCodec {}

impl Codec for EventCodec {
    type Record = TraceEvent;
    type Item = TraceEvent;
    type Before = Before;
    const KIND: [u8; 4] = *b"VTE1";
    const BYTES: usize = EVENT_BYTES;
    const RECORDS: usize = 2048;

    fn encode(event: &TraceEvent, before: &mut Before, room: &mut [u8]) -> usize {
        encode(event.time, &event.kind, before, room)
    }

    fn decode(bytes: &mut &[u8], (machine, cpu): Place, before: &mut Before) -> Option<TraceEvent> {
        let (time, kind) = decode(bytes, before)?;
        Some(TraceEvent { time, machine, cpu, kind })
    }

    fn record_time(event: &TraceEvent) -> HostNs {
        event.time
    }

    fn time(event: &TraceEvent) -> HostNs {
        event.time
    }
}
