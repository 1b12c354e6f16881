//! VMs on the NUMA nodes of a host: where they are, how they use memory, and moving them.
//!
//! ```text
//!  /sys, /proc, KVM --> read --> layout::Topology, VMs --+
//!  perf, resctrl, DAMON -> count -> samples -------------+--> layout::Load --> plan --> apply_plan --> numa_maps says so
//! ```
//!
//! Design constraints: reading and counting change nothing, and DAMON's settings are restored. What VMMs say about
//! placement is not believed: `numa_maps` is read before and after. Processes may end at any time; what is left of a plan
//! then goes on. Of a
//! VM all is changed or nothing. Must never decide where something should be: that is `layout`'s.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod access;
mod allowed;
mod apply_plan;
mod cells;
mod count;
mod damon;
mod measure;
mod mover;
mod pages;
mod pin_incoming;
mod pinned;
mod read;
mod resctrl;

pub use allowed::allowed;
pub use apply_plan::{Applied, AppliedPlan, Roots, apply_plan};
pub use cells::HostCell;
pub use count::{Counted, Counters, Watched, count};
pub use measure::measure;
pub use pin_incoming::{Steered, pin_incoming};
pub use read::{
    Host, HostVm, MemoryRange, NumaError, VmProcess, cpu_time, processes, read, started,
};
