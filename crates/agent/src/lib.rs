//! Collection that never stops: the agent of the fleet.
//!
//! ```text
//!  sampling thread    collector::Recorder: poll, cut at each edge of the clock's windows
//!      | SampledWindow
//!  writer thread      names, tables, one file per window (SCHED_IDLE, idle I/O) --> STATE/spool
//!      | file
//!  sender thread      HTTPS PUT; removed when the server has it for good
//!  metrics thread     what all of them count, for Prometheus
//! ```
//!
//! Design constraints: sampling never waits for the disk's spool or the network. All queues and folders
//! are bounded; what finds no room is counted. What lies in the spool survives a killed agent and a machine without power.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod alignment;
mod backoff;
mod budget;
mod config;
mod enroll;
mod http;
mod metrics;
mod queue;
mod replay;
pub mod report;
mod run;
mod self_priority;
mod sender;
#[cfg(test)]
mod server_test;
mod spool;
mod state;
mod user;
mod window_writer;

pub use cli::config_file::ConfigError;
pub use config::{Config, Windows};
pub use enroll::{EnrollError, Enrollment, enroll};
pub use replay::{Replay, Replayed};
pub use run::{RunError, run};
pub use user::{User, login, login_folder};

/// For tests that feed bytes.
#[doc(hidden)]
pub mod fuzzing {
    use crate::http::{Answer, certificates, is_about_clocks, reason};

    /// What is read of a server's answer, to any request.
    pub fn server_said(text: &str) {
        let answer = Answer { status: 200, text: text.to_owned(), retry_after: None };
        assert!(reason(&answer).chars().all(|c| !c.is_control()));
        is_about_clocks(&answer);
        if let Some(token) = crate::enroll::host_token(&answer) {
            assert!(token.bytes().all(|byte| byte.is_ascii_graphic()));
        }
        // Most texts are no certificates.
        let _ = certificates(text);
    }
}
