//! Typed tables and the reports they make up, and their renderers: text, CSV, JSON, HTML, Markdown. It knows no product: a crate that
//! finds something out has its own module `report`, which builds a `Report` of it.
//!
//! ```text
//!  a product's results --> Report --+--> text   aligned columns that fit the terminal
//!                          facts    +--> CSV    RFC 4180, safe to open in a spreadsheet
//!                          notes    +--> JSON   the documented objects
//!                          tables   +--> HTML   fragments for a page
//!                                   +--> Markdown for comments
//! ```
//!
//! A report is built once. A `Column` says under which title people see it and under which keys CSV and JSON have it;
//! a `Cell` is a typed value (a time in ns, a share of a whole), never formatted text. The renderers alone format,
//! cut and escape.
//!
//! Design constraints: pure and deterministic. No I/O, no clock, no `unsafe`. Names come from guests and are hostile:
//! every renderer escapes what could steer a terminal, run in a spreadsheet or become markup.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod csv;
mod format;
mod html;
mod json;
mod markdown;
mod report;
mod table;
mod text;

pub use csv::field;
pub use format::{
    clean, clean_lines, cleaned, counted, duration, figure, grouped, length, ms, percent, seconds,
    share, short_module, size, time, utc, with_id,
};
pub use html::escape;
pub use json::pretty;
pub use markdown::{NO_MENTION, push_markdown};
pub use report::{Fact, LISTED, Part, Report};
pub use table::{Cell, Column, Row, Scale, Table, Unit};
pub use text::{Keep, NAME_CHARS, Width, cut, indented, wrapped};
