//! Sends what lies in the spool, the newest first: what happens now is worth most. Windows that the server does not take yet
//! because a clock is wrong keep no others waiting.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use model::error_chain;
use tracing::{info, warn};

use crate::backoff::{delay, random};
use crate::http::{Answer, HttpError, Server, is_about_clocks, reason};
use crate::metrics::Metrics;
use crate::spool::{Contents, Spool, Spooled};
use crate::state::{self, State, StateError};

/// Bytes of refused windows that are kept, to find out why.
const REFUSED_BYTES: u64 = 64 << 20;
/// To look at the spool without a notification.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// The longest delay before a window is sent again.
const LONGEST_PUT_OFF: Duration = Duration::from_secs(3600);
/// One that the server does not take, while it may take others.
const PUT_OFF: Duration = Duration::from_secs(600);

/// Wakes the sender thread.
#[derive(Debug, Default)]
pub(crate) struct Notifier {
    state: Mutex<NotifierState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct NotifierState {
    has_rung: bool,
    /// The server changed: what failed with the old one says nothing.
    is_new_server: bool,
    is_over: bool,
}

/// What woke the sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WakeReason {
    Usual,
    NewServer,
    Over,
}

impl Notifier {
    /// There is something to send.
    pub(crate) fn ring(&self) {
        self.state().has_rung = true;
        self.changed.notify_all();
    }

    /// The server may be another one.
    pub(crate) fn new_server(&self) {
        self.state().is_new_server = true;
        self.changed.notify_all();
    }

    /// Nothing is sent any more.
    pub(crate) fn end(&self) {
        self.state().is_over = true;
        self.changed.notify_all();
    }

    /// Waits for a ring; or, `patiently`, through all rings for so long.
    fn wait(&self, limit: Duration, patiently: bool) -> WakeReason {
        let sleeps = |state: &mut NotifierState| {
            !state.is_over && !state.is_new_server && (patiently || !state.has_rung)
        };
        let waited = self.changed.wait_timeout_while(self.state(), limit, sleeps);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        state.has_rung = false;
        match (state.is_over, std::mem::take(&mut state.is_new_server)) {
            (true, _) => WakeReason::Over,
            (false, true) => WakeReason::NewServer,
            (false, false) => WakeReason::Usual,
        }
    }

    fn state(&self) -> MutexGuard<'_, NotifierState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the sender needs.
#[derive(Debug)]
pub(crate) struct Sender {
    pub(crate) state: State,
    pub(crate) spool: Spool,
    pub(crate) refused: Spool,
    /// The configured one, which may change.
    pub(crate) server: Arc<Mutex<Option<String>>>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) bell: Arc<Notifier>,
}

/// What to do with a window after an answer. Pure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The server has it for good.
    Stored,
    /// It never wants it.
    Refused,
    /// Another time.
    Later(Option<Duration>),
    /// The same, for this window only.
    OtherClock(Option<Duration>),
}

pub(crate) fn outcome(answer: &Answer) -> Outcome {
    match answer.status {
        200 | 201 => Outcome::Stored,
        400 | 413 => Outcome::Refused,
        503 if is_about_clocks(answer) => Outcome::OtherClock(answer.retry_after),
        _ => Outcome::Later(answer.retry_after),
    }
}

/// Why a window was not sent.
#[derive(Debug, thiserror::Error)]
enum SendError {
    #[error("this host is not enrolled: run vmscope agent enroll")]
    NotEnrolled,
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error("the server answers {status}: {reason}")]
    Answer { status: u16, reason: String },
    #[error(transparent)]
    State(#[from] StateError),
}

/// A connection, and what the server knows this host by.
#[derive(Debug)]
struct Connection {
    server: Server,
    token: String,
}

/// What the sender knows of a server.
#[derive(Debug, Default)]
struct Known {
    connection: Option<Connection>,
    /// Windows that it does not take before then.
    deferred: BTreeMap<PathBuf, Instant>,
    /// The window that failed last. The cause may be the window, the server or the network.
    failed: Option<PathBuf>,
    /// One that failed, before another one was taken: if it fails again, it is to blame.
    suspect: Option<PathBuf>,
}

impl Known {
    /// The newest window that may be sent; another one than that which failed, if there is one.
    fn next<'a>(&self, contents: &'a Contents) -> Option<&'a Spooled> {
        let due = || {
            let is_due = |window: &&Spooled| !self.deferred.contains_key(&window.path);
            contents.0.iter().rev().filter(is_due)
        };
        due().find(|window| Some(&window.path) != self.failed.as_ref()).or_else(|| due().next())
    }

    fn defer(&mut self, window: &Spooled, time: Duration) {
        self.deferred.insert(window.path.clone(), Instant::now() + time);
    }
}

impl Sender {
    /// Sends until the end.
    pub(crate) fn run(&self) {
        let (mut known, mut failures, mut pause) = (Known::default(), 0_u32, None);
        loop {
            let woken = self.bell.wait(pause.unwrap_or(LOOK_EVERY), pause.is_some());
            match woken {
                WakeReason::Over => return,
                WakeReason::NewServer => (known, failures) = (Known::default(), 0),
                WakeReason::Usual => {}
            }
            pause = None;
            match self.send_all(&mut known) {
                Ok(()) if 0 < failures => {
                    info!("sending works again");
                    failures = 0;
                }
                Ok(()) => {}
                Err((error, requested)) => {
                    failures = failures.saturating_add(1);
                    self.metrics.send_failures.add(1);
                    let wait = delay(failures, random(), requested);
                    if failures.is_power_of_two() {
                        let text = error_chain(&error);
                        let url = self.url().unwrap_or_default();
                        let seconds = wait.as_secs_f64();
                        warn!("failed to send to {url}: {text}; next try in {seconds:.0} s");
                    }
                    // The server, or what it knows us by, may have changed.
                    known.connection = None;
                    pause = Some(wait);
                }
            }
        }
    }

    /// Sends window after window. An error: why not, and how long the server wants to be left alone.
    fn send_all(&self, known: &mut Known) -> Result<(), (SendError, Option<Duration>)> {
        let Some(url) = self.url() else { return Ok(()) };
        loop {
            let contents = self.spool.contents().map_err(|error| (error.into(), None))?;
            self.metrics.spool_bytes.set(contents.bytes());
            self.metrics.spool_windows.set(contents.0.len() as u64);
            let now = Instant::now();
            known.deferred.retain(|path, until| now < *until && path.exists());
            self.metrics.deferred.set(known.deferred.len() as u64);
            let Some(window) = known.next(&contents) else { return Ok(()) };
            if known.connection.is_none() {
                known.connection = Some(self.connect(&url).map_err(|error| (error, None))?);
            }
            match self.send(known, window) {
                Ok(()) => known.suspect = known.failed.take(),
                Err((error, _)) if known.suspect.as_ref() == Some(&window.path) => {
                    let (boot, start, reason) = (&window.boot, &window.start, error_chain(&error));
                    warn!("window {boot}-{start} is sent again later: {reason}");
                    known.defer(window, PUT_OFF);
                    (known.suspect, known.connection) = (None, None);
                }
                Err(failed) => {
                    known.failed = Some(window.path.clone());
                    return Err(failed);
                }
            }
            // A new server or the end is looked at before the next one.
            if self.bell.state().is_over || self.bell.state().is_new_server {
                return Ok(());
            }
        }
    }

    fn url(&self) -> Option<String> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn connect(&self, url: &str) -> Result<Connection, SendError> {
        let token = state::read(&self.state.host_token()).map_err(|_| SendError::NotEnrolled)?;
        let authority = state::read(&self.state.authority()).map_err(|_| SendError::NotEnrolled)?;
        let server = Server::known_by(url, &authority)?;
        Ok(Connection { server, token: token.trim().to_owned() })
    }

    fn send(
        &self,
        known: &mut Known,
        window: &Spooled,
    ) -> Result<(), (SendError, Option<Duration>)> {
        let Some(connection) = &known.connection else { return Ok(()) };
        // It may have made room for a newer one.
        let Ok(file) = File::open(&window.path) else { return Ok(()) };
        let path = format!("/v1/windows/{}/{}", window.boot, window.start);
        let answer = connection.server.put(&path, &connection.token, window.bytes, file);
        let answer = answer.map_err(|error| (error.into(), None))?;
        let failed = |error: StateError| (SendError::from(error), None);
        match outcome(&answer) {
            Outcome::Stored => {
                self.spool.remove(window).map_err(failed)?;
                self.metrics.windows_sent.add(1);
            }
            Outcome::Refused => {
                let reason = reason(&answer);
                warn!("the server refused window {}-{}: {reason}", window.boot, window.start);
                self.spool.quarantine(window, &self.refused).map_err(failed)?;
                self.refused.enforce_limit(REFUSED_BYTES).map_err(failed)?;
                self.metrics.windows_refused.add(1);
            }
            Outcome::OtherClock(requested) => {
                if known.deferred.is_empty() {
                    let name = format!("{}-{}", window.boot, window.start);
                    warn!("window {name} is sent again later: {}", reason(&answer));
                }
                let wait = requested.unwrap_or(LOOK_EVERY).min(LONGEST_PUT_OFF);
                known.defer(window, wait);
            }
            Outcome::Later(requested) => {
                let (status, reason) = (answer.status, reason(&answer));
                return Err((SendError::Answer { status, reason }, requested));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn only_what_the_server_has_for_good_is_removed() {
        let check = |status, expected| {
            let retry_after = Some(Duration::from_secs(7));
            assert_eq!(outcome(&Answer { status, text: String::new(), retry_after }), expected);
        };
        let later = Outcome::Later(Some(Duration::from_secs(7)));
        [200, 201].into_iter().for_each(|status| check(status, Outcome::Stored));
        [400, 413].into_iter().for_each(|status| check(status, Outcome::Refused));
        let others = [100, 202, 204, 302, 401, 403, 404, 408, 409, 429, 500, 503];
        others.into_iter().for_each(|status| check(status, later));
        let text =
            "{\"error\": \"it begins 4000 s in the future\", \"reason\": \"clock\"}".to_owned();
        let answer = Answer { status: 503, text, retry_after: None };
        assert_eq!(outcome(&answer), Outcome::OtherClock(None));
    }

    #[test]
    fn a_bell_wakes_the_sender() {
        let bell = Notifier::default();
        let (moment, hour) = (Duration::from_millis(1), Duration::from_secs(3600));
        assert_eq!(bell.wait(moment, false), WakeReason::Usual);
        bell.ring();
        assert_eq!(bell.wait(hour, false), WakeReason::Usual);
        bell.ring();
        assert_eq!(bell.wait(moment, true), WakeReason::Usual);
        bell.new_server();
        assert_eq!(bell.wait(hour, true), WakeReason::NewServer);
        bell.end();
        assert_eq!(bell.wait(hour, true), WakeReason::Over);
    }
}
