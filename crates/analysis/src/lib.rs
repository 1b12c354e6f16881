//! Samples and tables to profiles.
//!
//! ```text
//!  tables --> Resolver --+--> Aggregator   --> Profile
//!  samples --------------+--> FlowBuilder  --> Flow    (what exports start from)
//! ```
//! `report` has their reports.
//!
//! Design constraints: pure and deterministic. No IO, no clock, no async, no `unsafe`; on bad input
//! it returns what it could do and a list of problems, it does not fail. It must never drop a sample
//! silently: what can't be named is counted under `[unknown]` or its VM's name, with the reason.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod calls;
pub mod exit_reason;
pub mod flow;
pub mod overview;
pub mod report;
pub mod results;
pub mod steal;
pub mod vcpu_timeline;

mod aggregate;
mod filter;
mod guest_time;
mod label;
mod nodes;
mod profile;
mod query;
mod share;
#[cfg(test)]
mod testing;
mod unsampled;

pub use aggregate::Aggregator;
pub use nodes::{GuestTimeByNode, NodeMemory, Nodes, VmNodes};
pub use profile::{
    GuestStacks, Label, Other, Profile, Row, Shares, Side, Unnamed, Unresolved, VmSummary,
};
pub use query::{By, ProcessFilter, Query, SelectError, Selection, View};
pub use resolve::Resolver;
pub use unsampled::Unsampled;
