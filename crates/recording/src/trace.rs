//! Traces: the events of machines' tasks, CPUs and disks. The folder is described in `docs/formats.md`.
//!
//! ```text
//!  tracer --TraceEvents--> TraceSpool (one per machine and CPU) --+
//!                                                                 +-- TraceWriter::finish --> NAME/ --> Trace::open
//!  everyone else --model::TraceTables-----------------------------+
//! ```

mod events;
mod header;
mod manifest;
mod queue;
mod reader;
mod record;
mod spool;
mod tables;
mod writer;

pub use crate::files::{TRACE_IN_RECORDING as FOLDER_IN_RECORDING, partial as partial_path};
pub use header::TraceHeader;
pub use manifest::FORMAT_VERSION;
pub use queue::EventQueue;
pub use reader::{MAX_EVENTS, Trace, TraceEvents};
pub use spool::TraceSpool;
pub use tables::SCHEMAS;
pub use writer::{TraceSummary, TraceWriter};
