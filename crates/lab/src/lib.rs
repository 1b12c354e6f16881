//! The consolidation laboratory, without touching a machine: what is measured, in which order, and what it means.
//!
//! ```text
//!  Plan --> treatments, ladders, blocks (who is measured when)
//!  Run, Run, ... --+--> steps: each treatment at each number of VMs --+--> verdicts with their causes
//!                  |                                                  +--> effects of remedies, by pairs of runs
//!                  |                                                  +--> prediction beyond what was measured
//!                  +--> report: tables of crate view
//! ```
//!
//! Design constraints: pure and deterministic. No I/O, no clock, no `unsafe`. A figure that was not measured is unknown, not
//! zero. `docs/lab.md` explains plans, figures and the model.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod curves;
pub mod ladder;
pub mod observe;

mod parts;
mod plan;
pub mod prediction;
mod remedy;
pub mod report;
mod run;
pub mod statistics;
mod turnaround;
pub mod verdict;

pub use plan::{
    Application, Arrivals, Attached, Choose, HostPlan, Ladder, LoadPlan, MAX_PLAN_BYTES, MAX_VMS,
    Plan, PlanError, Rungs, ServiceLevel, Targets, VmPlan,
};
pub use remedy::{AS_IT_IS, Groups, GuestSettings, HostSwitches, Remedy, Scope, Treatment};
pub use run::{Class, Cpu, CpuUse, Exit, Host, Load, MAX_RUN_BYTES, PartTime, Run, RunKey, Vms};
pub use turnaround::Turnarounds;
