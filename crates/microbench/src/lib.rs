//! Results of the self-booting micro-benchmark (`boot/`): reading what it says, comparing machines.
//!
//! ```text
//!  serial log --> lines --+
//!                         +--> Results --> Comparison --> tables
//!  QR texts ----> qr -----+      ^             |
//!                                |             +--> verdicts: what exits to the VMM, what that costs
//!                                v             |
//!                               json <---------+--> report: the same as tables of crate view
//! ```
//!
//! Design constraints: no IO, no clock, no `unsafe`. What is read comes from a machine that may have crashed, over
//! a line that may have lost bytes: it is bounded in size, whatever can be understood is kept, and what is lost is
//! said. A figure is never made up.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod catalogue;
pub mod compare;
pub mod json;
pub mod lines;
pub mod qr;
pub mod report;
pub mod tables;

mod bounded;
mod condition;
mod results;
mod verdict;

pub use bounded::Notes;
pub use compare::{Comparison, Labelled, compare};
pub use condition::{Condition, Mode};
pub use results::{
    Batch, Ending, Figures, InForce, Machine, Measurement, Outcome, Results, Spread, Tsc,
};
pub use verdict::Verdict;
