//! Every report as typed tables, and the renderers for them.
//!
//! ```text
//!  results of an analysis --> Report --+--> text   aligned columns that fit the terminal
//!                             facts    +--> CSV    RFC 4180, safe to open in a spreadsheet
//!                             notes    +--> JSON   the documented objects
//!                             tables   +--> HTML   fragments for a page
//! ```
//!
//! A view is built once. A `Column` says under which title people see it and under which keys CSV and JSON have it;
//! a `Cell` is a typed value (a time in ns, a share of a whole), never formatted text. The renderers alone format,
//! cut and escape.
//!
//! Design constraints: pure and deterministic. No I/O, no clock, no `unsafe`. Names come from guests and are hostile:
//! every renderer escapes what could steer a terminal, run in a spreadsheet or become markup.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod agreement;
mod answer;
mod correct;
mod csv;
mod exits;
mod findings;
mod fleet;
mod format;
mod html;
mod json;
mod layout;
mod profile;
mod recording;
mod report;
mod split;
mod steal;
mod table;
mod text;
mod top;
pub mod trace;
mod vcpu_time;

pub use agreement::agreement;
pub use answer::{QueryAnswer, query_answer};
pub use correct::{CorrectQuery, TakenExceedsRun, correct, correct_all};
pub use exits::{ExitsBy, exits};
pub use findings::{action_in_words, cause_in_words, findings, measure_in_words, symptom_in_words};
pub use fleet::{Capacity, ReplayFigures, capacity, findings_listing, replay};
pub use layout::{
    MeasuredVm, MovedVm, layout_apply, layout_plan, layout_simulation, memory_by_node,
    mib_and_bytes, nodes, size, vcpus_by_node,
};
pub use profile::profile;
pub use recording::{dropped, missed};
pub use split::{SplitBy, SplitQuery, SplitRecording, split};
pub use steal::{StealBy, StealQuery, steal};
pub use top::{top, top_thief};
pub use vcpu_time::VcpuTime;

pub use csv::field;
pub use format::{
    clean, clean_lines, counted, duration, figure, grouped, length, ms, percent, seconds, share,
    short_module, time, utc, with_id,
};
pub use html::escape;
pub use json::pretty;
pub use report::{Fact, Part, Report};
pub use table::{Cell, Column, Row, Scale, Table, Unit};
pub use text::{Keep, Width, cut, indented, wrapped};
