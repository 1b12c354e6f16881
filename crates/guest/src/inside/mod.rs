//! What runs inside a guest: reads its kernel and processes, keeps a log while the host samples, and
//! answers the host. Nothing here runs, polls or wakes up until the host asks.

mod btf;
mod command;
mod cpus;
mod elf;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod job;
mod kcore;
mod kernel;
mod load;
mod log;
mod ports;
mod processes;
mod program;
mod serve;
mod snapshot;
mod timeline;
mod trace;

pub use crate::vsock::listen::HostProcesses;
pub use command::{HELD, become_command};
pub use error::InsideError;
pub use serve::serve;
pub use snapshot::write_snapshot;
pub use trace::Commands;

use crate::now_ns;
