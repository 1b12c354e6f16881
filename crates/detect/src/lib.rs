//! What is wrong in a fleet, since when, and why: result tables of windows in, findings with their cause out.
//!
//! ```text
//!  result rows --> Summary --> Detector --> Change: a finding was opened, updated, resolved
//! ```
//!
//! Design constraints: pure and deterministic. No I/O, no clock, no `unsafe`; time is what windows and callers say. Memory
//! is bounded per host and per VM, however many names a guest invents. `docs/detection.md` says what is found and how well.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::cast_possible_truncation))]

mod cause;
mod detector;
mod explain;
mod finding;
mod host;
mod hours;
mod open;
mod pool;
pub mod report;
mod rows;
mod rule;
pub mod runs;
mod season;
mod series;
mod step;
mod summary;
mod vm;

pub use detector::{Detector, LeftOut};
pub use explain::explain;
pub use finding::{
    Action, Advice, BadFindingId, Cause, Change, Finding, FindingId, MAX_SYMPTOMS, Measure,
    SeriesName, Symptom,
};
pub use summary::{
    CallerTime, Code, ExitUse, FunctionTime, MAX_CALLERS, MAX_FUNCTIONS, MAX_OTHERS, MAX_VMS,
    NAME_BYTES, Owner, OwnerUse, Summary, VmSummary,
};
