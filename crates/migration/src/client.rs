//! What `vmscope migrate` does: orders it of this host's daemon.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use api::layout::{DaemonEvent, Order};

use crate::channel::{Channel, ChannelError};

/// Between two looks whether the order is still wanted.
const TICK: Duration = Duration::from_millis(200);

/// An order that a daemon carries out.
#[derive(Debug)]
pub struct Ordered {
    channel: Channel,
}

/// Why the daemon does not carry it out.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    #[error("failed to reach the layout daemon at {}: {source}; start it: vmscope layout daemon", path.display())]
    NoDaemon {
        /// Its socket.
        path: PathBuf,
        source: std::io::Error,
    },
    /// It ended, or sent an invalid message.
    #[error("lost the layout daemon: {0}; a migration that had begun continues")]
    Lost(String),
}

impl From<ChannelError> for OrderError {
    fn from(error: ChannelError) -> Self {
        Self::Lost(error.to_string())
    }
}

impl Ordered {
    /// Gives an order to the daemon at `socket`.
    ///
    /// # Errors
    /// When it can't be reached.
    pub fn new(socket: &Path, order: &Order) -> Result<Self, OrderError> {
        let no_daemon = |source| OrderError::NoDaemon { path: socket.to_owned(), source };
        let mut channel = Channel::local(UnixStream::connect(socket).map_err(no_daemon)?, TICK)?;
        channel.send(order)?;
        Ok(Self { channel })
    }

    /// What it says next, if it says something within a moment.
    ///
    /// # Errors
    /// When it is gone.
    pub fn poll(&mut self) -> Result<Option<DaemonEvent>, OrderError> {
        Ok(self.channel.poll()?)
    }

    /// Does not want it any more. It says what came of it.
    ///
    /// # Errors
    /// When it is gone.
    pub fn cancel(&mut self) -> Result<(), OrderError> {
        Ok(self.channel.send(&Order::Cancel)?)
    }
}
