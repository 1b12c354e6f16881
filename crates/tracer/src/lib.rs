//! The trace probes (`bpf/tracer.bpf.c`), in a host or in a guest: loading, attaching, draining their rings.
//!
//! ```text
//!  Tracer::load ----> start ----> drain(cpu), again and again ----> stop ----> drain(cpu) ----> lost, stacks
//!  maps, programs     attach      rings to events                   detach     the rest
//! ```
//! The same rings are drained from the outside, by any process that can read the memory they lie in: `Consumer` over
//! `RingMemory`.
//!
//! Design constraints: while a trace runs, nothing here wakes or asks the kernel but by reading shared memory. What lies in
//! a ring may come from a guest, so it is hostile: whatever is found there, decoding ends with events or with an error.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod by_task;
mod cgroup;
mod clock;
mod error;
mod family;
mod fault;
mod files;
pub mod guest;
mod load;
mod local;
pub mod outside;
mod probes;
mod ring;
mod slots;
mod symbols;
mod user_stacks;

pub use by_task::Executions;
pub use clock::ClockPair;
pub use error::{RingError, TracerError};
pub use fault::fault_estimate;
pub use files::{StoredFile, StoredFiles};
pub use load::{Filter, Layout, Options, Tracer};
pub use local::LocalRings;
pub use probes::error_chain;
pub use ring::{Consumer, RingMemory};
pub use slots::{DecodeError, KINDS, RingId, SLOT_BYTES, Slot, decode, generation, lost_events};
pub use symbols::Symbols;
pub use user_stacks::{UserStack, UserStacks};
