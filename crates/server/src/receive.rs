//! Receiving windows.
//!
//! ```text
//!  body --> spool file --> worker: is it a window? which? --> store, durable --> 201
//!    |  too many, or too many of the host: 429
//!                             |  no: 400, set aside              |  errors: 503
//! ```

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::http::ErrorReply;
use axum::body::BodyDataStream;
use futures_util::StreamExt;
use recording::window::{HostName, WindowId};
use tempfile::NamedTempFile;
use tokio::io::AsyncWriteExt;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use crate::Server;
use crate::auth::unix_s;
use crate::object_names::{DayWindow, day_of};
use crate::store::Created;
use crate::worker::{self, Facts, Task, WorkerError};

/// Nothing came for so long: the agent is gone.
const SILENCE: Duration = Duration::from_secs(20);
/// For a whole body, and for the store to take it.
const BODY_TIME: Duration = Duration::from_secs(600);
const STORE_TIME: Duration = Duration::from_secs(90);
/// Windows of one host that are received at the same time: others find places, too.
const MAX_OF_HOST: usize = 2;
const DAY_S: u64 = 86_400;
/// How far a host's clock may be ahead. What is further ahead is taken when its time has come.
const AHEAD_S: u64 = 3600;
/// What is further ahead than this is never taken.
const FUTURE_S: u64 = 7 * DAY_S;
/// When to try a window again that is not taken because of a clock: clocks are set meanwhile.
const CLOCK_S: RangeInclusive<u64> = 60..=3600;
/// A window's length at most.
const MAX_LENGTH_S: u64 = 3600;
const NS: u64 = 1_000_000_000;

/// Why a window was not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReceiveError {
    /// It will never be.
    #[error("{text}")]
    Refused { reason: &'static str, text: String },
    #[error("the window is too large: at most {0} bytes are accepted")]
    TooLarge(u64),
    #[error("too many windows {0}are being received: send it again later")]
    Busy(&'static str),
    #[error("the window did not arrive completely")]
    Broken,
    /// One of two clocks is wrong: later, in so many seconds.
    #[error("{text}")]
    Clock { text: String, seconds: u32 },
    #[error("{0}")]
    Unavailable(String),
}

impl ReceiveError {
    /// What it is counted as.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Refused { reason, .. } => reason,
            Self::TooLarge(_) => "large",
            Self::Busy(_) => "busy",
            Self::Broken => "broken",
            Self::Clock { .. } => ErrorReply::CLOCK,
            Self::Unavailable(_) => "unavailable",
        }
    }
}

/// Room for one window, until this is dropped.
#[derive(Debug)]
pub(crate) struct UploadSlot<'a> {
    receiver: &'a Receiver,
    host: HostName,
    _permit: SemaphorePermit<'a>,
}

impl Drop for UploadSlot<'_> {
    fn drop(&mut self) {
        let mut hosts = self.receiver.hosts();
        if let Some(n) = hosts.get_mut(&self.host) {
            *n -= 1;
            if *n == 0 {
                hosts.remove(&self.host);
            }
        }
    }
}

/// Receives windows, a limited number at a time.
#[derive(Debug)]
pub(crate) struct Receiver {
    room: Semaphore,
    /// Windows that are being received of each host.
    hosts: Mutex<BTreeMap<HostName, usize>>,
    /// Files that are being received.
    pub(crate) spool: PathBuf,
    max_bytes: u64,
    /// Workers that check what came, at the same time.
    checks: Semaphore,
}

impl Receiver {
    pub(crate) fn new(spool: PathBuf, max_receiving: usize, max_bytes: u64, cpus: usize) -> Self {
        let (room, checks) = (Semaphore::new(max_receiving), Semaphore::new(cpus));
        Self { room, hosts: Mutex::default(), spool, max_bytes, checks }
    }

    /// A place to receive a window of this host and size in.
    fn place(&self, host: &HostName, bytes: Option<u64>) -> Result<UploadSlot<'_>, ReceiveError> {
        if bytes.is_some_and(|bytes| self.max_bytes < bytes) {
            return Err(ReceiveError::TooLarge(self.max_bytes));
        }
        let mut hosts = self.hosts();
        if hosts.get(host).is_some_and(|n| MAX_OF_HOST <= *n) {
            return Err(ReceiveError::Busy("of this host "));
        }
        let permit = self.room.try_acquire().map_err(|_| ReceiveError::Busy(""))?;
        *hosts.entry(host.clone()).or_default() += 1;
        Ok(UploadSlot { receiver: self, host: host.clone(), _permit: permit })
    }

    fn hosts(&self) -> MutexGuard<'_, BTreeMap<HostName, usize>> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn spool(&self, body: &mut BodyDataStream) -> Result<NamedTempFile, ReceiveError> {
        let full = |error: std::io::Error| ReceiveError::Unavailable(format!("the spool: {error}"));
        let spooled = tempfile::Builder::new().prefix("put-").tempfile_in(&self.spool);
        let spooled = spooled.map_err(full)?;
        let mut file = tokio::fs::File::from_std(spooled.reopen().map_err(full)?);
        let mut left = self.max_bytes;
        while let Some(chunk) =
            timeout(SILENCE, body.next()).await.map_err(|_| ReceiveError::Broken)?
        {
            let chunk = chunk.map_err(|_| ReceiveError::Broken)?;
            left = left
                .checked_sub(chunk.len() as u64)
                .ok_or(ReceiveError::TooLarge(self.max_bytes))?;
            file.write_all(&chunk).await.map_err(full)?;
        }
        file.flush().await.map_err(full)?;
        Ok(spooled)
    }
}

impl Server {
    /// Whether a window of this name and size may be sent now.
    pub(crate) fn admit(
        &self,
        host: &HostName,
        boot: &str,
        start: &str,
        bytes: Option<u64>,
    ) -> Result<(WindowId, UploadSlot<'_>), ReceiveError> {
        let id = WindowId::parse(host.as_str(), boot, start)
            .map_err(|error| refused("name", error.to_string()))?;
        Ok((id, self.receiver.place(host, bytes)?))
    }

    /// Takes a window. When this returns, it is stored durably.
    pub(crate) async fn receive(
        self: &Arc<Self>,
        id: &WindowId,
        body: &mut BodyDataStream,
    ) -> Result<Created, ReceiveError> {
        let spooled = timeout(BODY_TIME, self.receiver.spool(body)).await;
        let spooled = spooled.map_err(|_| ReceiveError::Broken)??;
        match self.check(id, &spooled).await {
            Ok(window) => self.keep(window, &spooled).await,
            Err(ReceiveError::Refused { reason, text }) => {
                self.set_aside(id, &spooled, &text).await;
                Err(ReceiveError::Refused { reason, text })
            }
            Err(error) => Err(error),
        }
    }

    async fn check(
        &self,
        id: &WindowId,
        spooled: &NamedTempFile,
    ) -> Result<DayWindow, ReceiveError> {
        let failed = |error: std::io::Error| ReceiveError::Unavailable(error.to_string());
        let turn = self.receiver.checks.acquire().await;
        let _turn = turn.map_err(|_| ReceiveError::Unavailable("the server stops".into()))?;
        let (file, scratch) = (spooled.reopen().map_err(failed)?, self.receiver.spool.clone());
        let host = id.host.clone();
        let checked =
            tokio::task::spawn_blocking(move || worker::run(Task::Check, &host, file, &scratch))
                .await;
        match checked.map_err(|error| failed(error.into()))? {
            Ok(outcome) => {
                let window = placed(id, &outcome.facts)?;
                self.check_time(outcome.facts.start_unix_ns / NS).await?;
                Ok(window)
            }
            Err(WorkerError::Failed(text)) => Err(ReceiveError::Unavailable(text)),
            Err(error @ WorkerError::Stopped(_)) => {
                Err(ReceiveError::Unavailable(error.to_string()))
            }
            Err(error) => Err(refused("damaged", error.to_string())),
        }
    }

    /// Whether the window is of a time that is stored. Of two clocks that differ either may be wrong: a window is refused for
    /// good only by a clock that is believed.
    async fn check_time(&self, start: u64) -> Result<(), ReceiveError> {
        let now = unix_s();
        let (ahead, age) = (start.saturating_sub(now), now.saturating_sub(start));
        let is_old = u64::from(self.config.raw_days) * DAY_S < age;
        if ahead <= AHEAD_S && !is_old {
            return Ok(());
        }
        if ahead <= FUTURE_S && !is_old {
            let text = format!("it begins {ahead} s in the future: set the host's clock");
            return Err(other_clock(text, ahead - AHEAD_S));
        }
        match self.believes(day_of(now.saturating_mul(NS))).await {
            Ok(false) => {
                let text = "the server's clock may be wrong: set it, or see its journal".to_owned();
                Err(other_clock(text, *CLOCK_S.end()))
            }
            Ok(true) if is_old => {
                Err(refused("old", format!("it is older than {} days", self.config.raw_days)))
            }
            Ok(true) => Err(refused("future", format!("it begins {ahead} s in the future"))),
            Err(error) => Err(ReceiveError::Unavailable(format!("the store failed: {error}"))),
        }
    }

    async fn keep(
        self: &Arc<Self>,
        window: DayWindow,
        spooled: &NamedTempFile,
    ) -> Result<Created, ReceiveError> {
        let path = window.raw();
        let stored = timeout(STORE_TIME, self.store.create_from(&path, spooled.path())).await;
        let created = match stored {
            Ok(Ok(created)) => created,
            Ok(Err(error)) => {
                self.metrics.store_error("window");
                return Err(ReceiveError::Unavailable(format!("the store failed: {error}")));
            }
            Err(_) => {
                self.metrics.store_error("late");
                return Err(ReceiveError::Unavailable("the store is too slow".to_owned()));
            }
        };
        match created {
            Created::Now => {
                let bytes = spooled.as_file().metadata().map_or(0, |data| data.len());
                self.metrics.windows_stored.inc();
                self.metrics.bytes_stored.inc_by(bytes);
            }
            Created::Before => {
                self.metrics.windows_known.inc();
            }
        }
        // Also one that is known: it may have been stored by a write whose answer was lost.
        self.queue.add_new(window);
        Ok(created)
    }

    async fn set_aside(&self, id: &WindowId, spooled: &NamedTempFile, text: &str) {
        match self.refused.keep(id, spooled.path(), text).await {
            Ok(true) => {}
            Ok(false) => {
                self.metrics.refused_not_kept.inc();
            }
            Err(_) => self.metrics.store_error("refused"),
        }
    }
}

/// The window's day and name, if it is the one that it is said to be.
fn placed(id: &WindowId, facts: &Facts) -> Result<DayWindow, ReceiveError> {
    if facts.boot() != Some(id.boot) {
        return Err(refused("identity", "its recording is of another boot".to_owned()));
    }
    if facts.start() != id.start {
        return Err(refused("identity", "its recording begins at another time".to_owned()));
    }
    if facts.end_ns < facts.start().0 {
        return Err(refused("length", "it ends before it begins".to_owned()));
    }
    if MAX_LENGTH_S * NS < facts.end_ns.saturating_sub(facts.start().0) {
        return Err(refused("length", format!("it is longer than {MAX_LENGTH_S} s")));
    }
    Ok(DayWindow { day: day_of(facts.start_unix_ns), id: id.clone() })
}

fn other_clock(text: String, seconds: u64) -> ReceiveError {
    let seconds = seconds.clamp(*CLOCK_S.start(), *CLOCK_S.end());
    ReceiveError::Clock { text, seconds: u32::try_from(seconds).unwrap_or(u32::MAX) }
}

fn refused(reason: &'static str, text: String) -> ReceiveError {
    ReceiveError::Refused { reason, text }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_window_ends_after_its_begin_and_is_no_longer_than_an_hour() {
        let boot = "0".repeat(32);
        let id: WindowId = format!("kvm1/{boot}/{:020}", 5 * NS).parse().unwrap();
        let placed = |end_ns: u64| {
            let facts = serde_json::json!({
                "boot": boot, "start_ns": 5 * NS, "start_unix_ns": 1_760_000_000 * NS, "end_ns": end_ns,
            });
            placed(&id, &serde_json::from_value(facts).unwrap()).map(|window| window.id)
        };
        assert_eq!(placed(15 * NS).unwrap(), id);
        assert_eq!(placed(5 * NS).unwrap(), id);
        for (end_ns, text) in [
            (5 * NS - 1, "it ends before it begins"),
            (0, "it ends before it begins"),
            (3606 * NS, "it is longer than 3600 s"),
        ] {
            let refused = placed(end_ns).unwrap_err();
            assert_eq!((refused.reason(), refused.to_string().as_str()), ("length", text));
        }
    }
}
