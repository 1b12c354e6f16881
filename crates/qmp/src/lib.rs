//! QMP: asking a running QEMU, and hearing its events.
//!
//! ```text
//!  connect --> greeting --> qmp_capabilities --> command --> answer    (events may come at any time)
//! ```
//!
//! Design constraints: a QEMU is as hostile as the guest that may have taken it over. What it says is bounded in size, number
//! and time, all checked at every message, and the kernel's answer is taken where it has one: a vCPU's thread must be one of QEMU's, and where
//! memory lies is not read here at all. QEMU has one user of a monitor at a time: a second one is kept waiting, and is
//! refused.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod migration;
mod session;

pub use migration::{CAPABILITIES, Migration, MigrationState};
pub use session::{Event, Session};

use std::io;
use std::time::Duration;

/// Why a QMP command was not sent, or failed.
#[derive(Debug, thiserror::Error)]
pub enum QmpError {
    /// There is no such socket, or it has no listener.
    #[error("failed to connect to QEMU's monitor: {0}")]
    Connect(io::Error),
    /// Another user than the VM's listens there.
    #[error("the monitor's socket is owned by user {0}, not by the VM's user")]
    Stranger(u32),
    /// Another program has the monitor.
    #[error(
        "another program uses this monitor: give QEMU a second one (-qmp unix:PATH,server=on,wait=off)"
    )]
    InUse,
    #[error("lost QEMU's monitor: {0}")]
    Broken(#[from] io::Error),
    #[error("QEMU ended")]
    Ended,
    #[error("QEMU did not answer within {} s", .0.as_secs())]
    TimedOut(Duration),
    /// What it said is too long, or no QMP.
    #[error("QEMU's monitor sent an invalid QMP message: {0}")]
    Garbled(&'static str),
    /// It does not want to.
    #[error("QEMU refused {command}: {reason}")]
    Refused { command: String, reason: String },
}

/// What QEMU would have to say for this session to go through, fed from bytes: for fuzzing.
#[doc(hidden)]
pub mod fuzzing {
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;

    use super::session::MAX_MESSAGES;
    use super::{QmpError, Session};

    /// Starts a session, and asks for all that is ever needed. `said` is all that QEMU says.
    ///
    /// # Errors
    /// When that is none of the answers it should be.
    pub fn feed(said: &[u8]) -> Result<(), QmpError> {
        let (ours, mut theirs) = UnixStream::pair()?;
        // The kernel keeps so much.
        theirs.set_nonblocking(true)?;
        let _ = theirs.write_all(said);
        theirs.shutdown(std::net::Shutdown::Write)?;
        converse(ours, said.len())
    }

    /// The same with a QEMU that says `said`, and then its last line again and again, for as long as it is listened to.
    ///
    /// # Errors
    /// As of [`feed`].
    pub fn feed_without_end(said: &[u8]) -> Result<(), QmpError> {
        let (ours, mut theirs) = UnixStream::pair()?;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let line = said.trim_ascii_end().rsplit(|byte| *byte == b'\n').next();
                let line = [line.unwrap_or_default(), b"\n"].concat();
                let mut went = theirs.write_all(said);
                while went.is_ok() {
                    went = theirs.write_all(&line);
                }
            });
            converse(ours, MAX_MESSAGES)
        })
    }

    fn converse(ours: UnixStream, most_events: usize) -> Result<(), QmpError> {
        let mut session = Session::on(ours)?;
        session.ask("cont", None)?;
        let threads = session.vcpu_threads();
        let migration = session.migration();
        let events = session.take_events();
        assert!(events.len() <= most_events, "events come from what was said");
        session.wait("RESUME")?;
        (threads.map(drop)).and(migration.map(drop))
    }
}
