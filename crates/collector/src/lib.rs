//! From finding the VMs to the finished recording: a session with the host's kernel, and what is done with its windows.
//!
//! Design constraints: while samples are taken it only moves bytes from the rings to the spool; names
//! are found out afterwards. Whatever fails for one VM is that VM's note, never the session's end.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod beside;
mod error;
mod finish;
mod guest_error;
mod guest_stacks;
mod guest_tables;
mod guests;
mod host_tables;
mod known_stacks;
mod lock;
mod memory;
mod names;
mod plan;
mod record;
mod resets;
mod roots;
pub mod running;
mod session;
mod sink;
mod sources;
mod stacks;
mod throttled_queues;
mod throttling;
pub mod trace;
mod vm_table;
mod windows;

pub use error::CollectError;
pub use finish::Naming;
pub use guest_error::GuestError;
pub use names::{Answers, LiveSymbolizer};
pub use plan::{
    Collected, Control, Exits, GuestQuestions, Next, Plan, ProcessEvents, Progress, Sampling,
    SessionPlan,
};
pub use record::{Recorder, SampledWindow, record, record_with_trace};
pub use roots::Roots;
pub use throttling::Quotas;
pub use windows::{Window, Windows};

/// Is a child process that reads a VM's memory (a guest's rings, or all of a guest), if this process was started for that: a
/// program's first call. `None`: it was not.
#[must_use]
pub fn serve_child() -> Option<std::process::ExitCode> {
    sandbox::serve::<trace::RingReader>().or_else(guest::outside::serve_if_child)
}
