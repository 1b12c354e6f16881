//! Trace events to explanations: what every task, CPU and disk of a machine did or waited for, at every moment.
//!
//! Design constraints: pure and deterministic; no IO, no clock, no `unsafe`. Any events in any order give an answer
//! and a list of problems, never a panic. Totals that must add up do so to the nanosecond.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod compare;
mod cover;
pub mod critical_path;
pub mod files;
pub mod findings;
pub mod gantt;
pub mod group;
pub mod host_side;
pub mod kernel;
mod processes;
pub mod profile;
pub mod report;
mod span;
pub mod states;
#[cfg(test)]
mod test_timelines;
pub mod timeline;
pub mod tree;
pub mod waits;
