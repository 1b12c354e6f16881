//! One collection: from finding the VMs to the finished recording.
//!
//! Design constraints: while samples are taken it only moves bytes from the rings to the spool; names
//! are found out afterwards. Whatever fails for one VM is that VM's note, never the collection's end.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod collect;
mod error;
mod finish;
mod guest_tables;
mod guests;
mod host_tables;
mod live;
mod lock;
mod plan;
mod stacks;
mod switches;
mod throttling;
pub mod trace;
mod tracers;
mod vm_table;

pub use collect::collect;
pub use error::CollectError;
pub use live::{Live, LiveOptions, Names, Window};
pub use plan::{Collected, Control, Exits, Next, Plan, Progress, Sampling};
