//! Traces: the events of machines' tasks, CPUs and disks. The folder is described in `docs/formats.md`.
//!
//! ```text
//!  tracer --TraceEvents--> TraceSpool (one per machine and CPU) --+
//!                                                                 +-- TraceWriter::finish --> NAME/ --> Trace::open
//!  everyone else --model::TraceTables-----------------------------+
//! ```

mod header;
mod reader;
mod spool;
mod writer;

pub use header::TraceHeader;
pub use reader::{MAX_EVENTS, Trace, TraceEvents};
pub use spool::TraceSpool;
pub use writer::{TraceSummary, TraceWriter};
