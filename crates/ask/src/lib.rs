//! Questions about a recording, a trace or a fleet, with answers short enough for an assistant.
//!
//! ```text
//!  recording --> RecordingSource --+
//!  server -----> Fleet ------------+--> Part: rows of a host and time --> questions --> Answer --> JSON or text
//!  trace -----------------------------------------------------------------------------^
//! ```
//!
//! Design constraints: read only. An answer weighs at most [`MAX_WEIGHT`], whatever the question. Names that guests and
//! users chose are values of their own in an answer, bounded and without control characters, never part of a sentence.
//! What is missing from the data is part of each answer.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod answer;
mod facts;
mod fleet;
#[cfg(feature = "mcp")]
mod mcp;
mod missing;
mod question;
mod questions;
mod recorded;
mod source;
mod trace;

pub use answer::{Answer, MAX_WEIGHT, Next, shown, weight};
pub use fleet::{Fleet, Request};
#[cfg(feature = "mcp")]
pub use mcp::{Answers, Tools};
pub use question::{Argument, Arguments, Question};
pub use questions::answer;
pub use recorded::RecordingSource;
pub use source::{AskError, Part, Source, Span};
pub use trace::TraceSource;
