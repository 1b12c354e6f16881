//! One trace: from holding the command back to the finished folder.
//!
//! ```text
//!  hold COMMAND   load probes   read tasks   attach = BEGIN   read tasks again   let COMMAND go
//!  ... look at the rings, sleep, look again: events go to the spools ...
//!  END (COMMAND ended, time is over, a signal)   detach   last look   names of stacks   finish
//! ```
//!
//! With `TracePlan::flight` events go to memory, where only the last seconds stay; the spools are written at the end.
//!
//! What is traced is a list of sources: the host, and guests whose events come from outside of them. They have their own
//! rings, clocks and tables; here they only differ in how their rings are read.
//!
//! Design constraints: while events come in, they are moved to the spools and nothing else is done with them. What
//! fails for one guest ends that guest's trace, never the others'.

mod checkpoints;
mod command;
mod disk_space;
mod file_names;
mod flight;
mod guest;
mod held_tasks;
mod host;
mod machine;
mod plan;
mod poll_interval;
mod realtime;
mod record;
mod snapshots;
mod source;
mod startup_tasks;
mod user_stacks;
mod vcpus;

#[doc(hidden)]
pub use guest::drawn;
pub use guest::{RingReader, VmError, vm_process};
pub use plan::{Flight, GuestPath, Scope, TracePlan, Traced};
pub use record::trace;
pub(crate) use record::trace_beside;
pub use source::SourceError;
