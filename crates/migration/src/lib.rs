//! Live migrations to hosts that are ready for them: the layout daemon.
//!
//! ```text
//!  host that the VM leaves                               host that it goes to
//!  monitor: counts how VMs use memory                    monitor
//!  source:  QMP, counters -------- channel (TLS) ------> destination: plan, residents moved, QEMU started or found,
//!  watch:   migrations of others --------^                 its memory and vCPUs in place; then QEMU sends the VM
//! ```
//!
//! Design constraints: a migration is QEMU's, from its beginning on: whatever becomes of the daemons, the VM runs on exactly one
//! host. A peer that refuses, says nonsense or is gone costs the layout, never the migration. No command that a peer sends
//! is run. What peers say is bounded and checked (`offer`); where memory and threads are is read from the kernel, never
//! believed. Must never decide where something should be: that is `layout`'s.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod arrange;
mod arrivals;
mod channel;
mod client;
mod config;
mod daemon;
mod destination;
mod frame;
/// For tests that feed bytes.
#[doc(hidden)]
pub mod fuzzing;
mod identity;
mod incoming;
mod monitor;
mod offer;
mod peers;
mod records;
mod report;
mod source;
mod template;
mod this_host;
mod watch;

/// Where the kernel shows processes, and everything else.
const PROC: &str = "/proc";
const SYS: &str = "/sys";

pub use client::{OrderError, Ordered};
pub use daemon::{DaemonError, serve};
/// What counts how VMs use memory, from its name in `api::layout::Counters`.
fn source_in_words(name: &str) -> &'static str {
    offer::source_named(name).name()
}

pub use cli::config_file::ConfigError;
pub use config::{Config, Incoming, NO_POLICY, is_policy, policies};
pub use identity::{Identity, IdentityError};
pub use peers::{Peer, parse_peers, read_peers};
pub use report::report;
pub use template::Template;
