//! Where the memory and the vCPUs of VMs should lie on a host's NUMA nodes, also of VMs that are still on their way.
//!
//! ```text
//!  Topology --+                                  +--> Plan: vCPUs, memory and moves, with reasons and predicted gain
//!             +--> parts --> Policy --> choices --+
//!  Load ------+      |                            +--> "nothing is worth moving"
//!                    a VM that arrives looks like one that runs in the layout it would get by default
//! ```
//!
//! Policies choose a node for each part of a VM and never hear of migration. `plan` does the rest for all of them: it
//! keeps to the nodes' capacity, orders the moves so that each has room, predicts the gain with one memory model, and
//! drops plans that are not worth it. `simulate` plays a migration with the same model.
//!
//! Design constraints: pure and deterministic. No I/O, no clock, no `unsafe`. The same input gives the same plan.
//! `docs/layout.md` explains policies, model and files.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::cast_possible_truncation))]

mod activity;
mod file;
mod load;
mod model;
mod moves;
mod plan;
mod policy;
pub mod report;
mod simulate;
mod topology;

pub use activity::Activity;
pub use file::{FileError, MAX_FILE_BYTES, read_case, read_counters, read_topology};
pub use load::{
    Allowed, Arrival, CACHE_LINE, Cell, Load, LoadError, MAX_VCPUS, MAX_VMS, Placed, Sample,
    Source, Vm,
};
pub use model::Model;
pub use moves::Move;
pub use plan::{
    Misfit, Options, Outcome, Plan, SavedVm, VmPlan, default_placement, plan, read_plan,
};
pub use policy::{
    AsymSched, Choice, Class, Dino, External, MemoryChoice, POLICIES, Part, Policy, Room, Simple,
    policy_named,
};
pub use simulate::{
    Case, Curve, Migration, Rank, Ranking, Simulation, Strategy, WayResult, random_case,
    rank_policies, simulate,
};
pub use topology::{HugePage, MAX_CPUS, MAX_NODES, Node, NodeBytes, Topology, TopologyError};
