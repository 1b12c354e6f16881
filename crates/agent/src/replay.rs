//! Recordings sent as windows of hosts that there are not: how much a server can take.
//!
//! ```text
//!  FOLDER/ca.pem       the server's certificate authority
//!  FOLDER/run          what this run's boots are named by, and when it began
//!  FOLDER/HOST.token   of each host
//! ```
//! Which windows a run sends follows from its folder. One that was killed and is started again sends the same windows.

use std::collections::{BTreeMap, HashSet};
use std::fs::{DirBuilder, File};
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use model::BootId;
use recording::window::{HostName, Template, WindowId};
use sha2::{Digest, Sha256};

use crate::backoff::{delay, random};
use crate::enroll::{EnrollError, ask_host_token, trusted, unreachable};
use crate::http::{Answer, HttpError, Server, certificates, reason};
use crate::sender::{Outcome, outcome};
use crate::state::{self, StateError};

/// A killed server is back soon: waits are short, unless it says otherwise.
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// Interval of progress reports.
const TELL_EVERY: Duration = Duration::from_secs(5);
const MOMENT: Duration = Duration::from_millis(50);
/// Reasons of refused windows that are kept.
const MAX_REASONS: usize = 10;

/// What is sent where.
#[derive(Debug)]
pub struct Replay {
    /// `https://HOST[:PORT]`.
    pub server: String,
    /// Enrols hosts.
    pub token: String,
    /// SHA-256 of the certificate authority's certificate, hexadecimal.
    pub fingerprint: String,
    /// Hosts, named `NAME-0001` and so on.
    pub name: String,
    pub hosts: u32,
    /// Windows of each host; `None`: until `limit`.
    pub rounds: Option<u64>,
    /// For how long; `None`: until all rounds are sent.
    pub limit: Option<Duration>,
    /// Windows per second at most, of all hosts together.
    pub rate: Option<f64>,
    /// Windows that are sent at the same time.
    pub connections: usize,
    /// Stores the state that a killed run continues from.
    pub folder: PathBuf,
    /// Recordings, sent in turn.
    pub templates: Vec<Template>,
    /// Gets the name of each window that the server has for good, one a line. Windows that it has already are not sent.
    pub acknowledged: Option<PathBuf>,
}

/// What came of it, so far.
#[derive(Debug, Clone, Default)]
pub struct Replayed {
    /// Since the first window was sent.
    pub took: Duration,
    /// Windows that the server stored.
    pub accepted: u64,
    /// That it had already.
    pub known: u64,
    /// That it does not want.
    pub refused: u64,
    /// Why, and how many.
    pub reasons: BTreeMap<String, u64>,
    /// Times that the server wanted a window later.
    pub put_off: u64,
    /// Times that it did not answer.
    pub unanswered: u64,
    /// Bytes of windows that it has.
    pub bytes: u64,
    /// From a window's first byte until the server had it, one for each.
    pub transfers: Vec<Duration>,
}

impl Replayed {
    /// The time within which such a part of all windows was transferred: 0.5 is the median.
    #[must_use]
    #[expect(clippy::cast_precision_loss, clippy::cast_sign_loss, reason = "an index of a list")]
    #[expect(clippy::cast_possible_truncation, reason = "an index of a list")]
    pub fn transfer(&self, part: f64) -> Duration {
        let mut sorted = self.transfers.clone();
        sorted.sort_unstable();
        let at = (part * sorted.len().saturating_sub(1) as f64).round() as usize;
        sorted.get(at).copied().unwrap_or_default()
    }
}

impl Replay {
    /// Enrols the hosts that are not enrolled yet, then sends. `tell` hears from time to time what was sent so far; when
    /// `stop` is set nothing more is sent.
    ///
    /// # Errors
    /// When the server is another one, can't be reached at first, or does not enrol the hosts; when the folder can't be
    /// written.
    pub fn run(
        &self,
        stop: &AtomicBool,
        mut tell: impl FnMut(&Replayed),
    ) -> Result<Replayed, EnrollError> {
        let run = self.prepare(stop)?;
        tell(&Replayed::default());
        let began = Instant::now();
        let over = || {
            stop.load(Ordering::Relaxed) || self.limit.is_some_and(|limit| limit < began.elapsed())
        };
        let (next, turns) = (AtomicU64::new(0), AtomicU64::new(0));
        let replayed = Mutex::new(Replayed::default());
        let failed: Mutex<Option<EnrollError>> = Mutex::new(None);
        std::thread::scope(|scope| {
            let sender = || {
                let sent = Sender { replay: self, run: &run, began, turns: &turns, over: &over };
                if let Err(error) = sent.send_all(&next, &replayed) {
                    *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                    stop.store(true, Ordering::Relaxed);
                }
            };
            // A server takes two windows of a host at a time.
            let most = run.hosts.len().saturating_mul(2).max(1);
            let threads: Vec<_> =
                (0..self.connections.clamp(1, most)).map(|_| scope.spawn(sender)).collect();
            let mut reported = Instant::now();
            while !threads.iter().all(std::thread::ScopedJoinHandle::is_finished) {
                std::thread::sleep(MOMENT);
                if TELL_EVERY < reported.elapsed() {
                    reported = Instant::now();
                    tell(&Replayed { took: began.elapsed(), ..lock(&replayed).clone() });
                }
            }
        });
        if let Some(error) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(error);
        }
        let replayed = replayed.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(Replayed { took: began.elapsed(), ..replayed })
    }

    /// The recording that a host sends in a round. Each host begins with another one, so one round sends all.
    fn template(&self, host: usize, round: u64) -> Option<&Template> {
        let n = self.templates.len().max(1);
        let round = usize::try_from(round % n as u64).unwrap_or_default();
        self.templates.get((host + round) % n)
    }

    /// Length of what a host sends in a round, ns.
    #[must_use]
    pub fn length_ns(&self, host: usize, round: u64) -> u64 {
        let header = self.template(host, round).map(Template::header);
        header.map_or(0, |header| header.end.since(header.start))
    }

    /// How long ago a window begins: they go into the past, one behind the other, so none is of the future, and none of two
    /// at a time. The last of a known number of rounds ends now, and the first is sent first; else they go back in time.
    fn back_ns(&self, host: usize, round: u64) -> u64 {
        let rounds = self.rounds.map_or(0..round + 1, |rounds| round..rounds);
        rounds.map(|round| self.length_ns(host, round)).sum()
    }

    fn prepare(&self, stop: &AtomicBool) -> Result<Run, EnrollError> {
        let folder = &self.folder;
        let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(|source| StateError::new("create", folder, source))?;
        let known = folder.join("ca.pem");
        let authority = match state::read(&known) {
            Ok(authority) if certificates(&authority).is_ok() => authority,
            _ => {
                let (_, authority) = trusted(&self.server, &self.fingerprint)?;
                state::write(&known, &authority)?;
                authority
            }
        };
        let server = Server::known_by(&self.server, &authority)
            .map_err(|error| unreachable(&self.server, &error))?;
        let (name, began_ns) = run_of(&folder.join("run"))?;
        let mut hosts = Vec::new();
        for number in 1..=self.hosts {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let host: HostName = format!("{}-{number:04}", self.name).parse()?;
            let kept = folder.join(format!("{host}.token"));
            let token = match state::read(&kept) {
                Ok(token) => token,
                Err(_) => {
                    let token = ask_host_token(&server, &self.server, &self.token, &host)?;
                    state::write(&kept, &token)?;
                    token
                }
            };
            hosts.push((host, token));
        }
        let (acknowledged, done) = match &self.acknowledged {
            Some(file) => {
                let done = std::fs::read_to_string(file).unwrap_or_default();
                let opened = File::options().append(true).create(true).open(file);
                let opened = opened.map_err(|source| StateError::new("open", file, source))?;
                (Some(opened), done.lines().map(str::to_owned).collect())
            }
            None => (None, HashSet::new()),
        };
        Ok(Run { authority, name, began_ns, hosts, acknowledged, done })
    }
}

/// Which windows a run sends.
#[derive(Debug)]
struct Run {
    authority: String,
    name: String,
    began_ns: u64,
    hosts: Vec<(HostName, String)>,
    /// As `Replay::acknowledged`.
    acknowledged: Option<File>,
    /// Windows that a killed run sent.
    done: HashSet<String>,
}

impl Run {
    /// A boot of its own for each window: the recording's times of a boot stay as they are.
    fn boot(&self, host: &HostName, round: u64) -> BootId {
        let hash = Sha256::digest(format!("{}/{host}/{round}", self.name));
        let mut boot = [0; 16];
        boot.copy_from_slice(&hash[..16]);
        BootId(boot)
    }
}

/// Reads or makes what names a run.
fn run_of(file: &Path) -> Result<(String, u64), EnrollError> {
    let text = match state::read(file) {
        Ok(text) => text,
        Err(_) => {
            let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
            let text = format!("{:016x}{:016x} {now}", random().to_bits(), random().to_bits());
            state::write(file, &text)?;
            text
        }
    };
    let (name, began) = text.split_once(' ').unwrap_or_default();
    let began = began
        .parse()
        .map_err(|_| EnrollError::State(format!("{} is not a replay file", file.display())))?;
    Ok((name.to_owned(), began))
}

/// One of those who send at the same time.
struct Sender<'a, F> {
    replay: &'a Replay,
    run: &'a Run,
    began: Instant,
    /// Windows that are due.
    turns: &'a AtomicU64,
    over: &'a F,
}

impl<F: Fn() -> bool> Sender<'_, F> {
    fn send_all(&self, next: &AtomicU64, sum: &Mutex<Replayed>) -> Result<(), EnrollError> {
        let url = &self.replay.server;
        let failed = |error: HttpError| unreachable(url, &error);
        let server = Server::known_by(url, &self.run.authority).map_err(failed)?;
        let hosts = self.run.hosts.len() as u64;
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(round) = number.checked_div(hosts) else { return Ok(()) };
            if self.replay.rounds.is_some_and(|rounds| rounds <= round) {
                return Ok(());
            }
            if (self.over)() {
                return Ok(());
            }
            let host = usize::try_from(number % hosts).unwrap_or_default();
            self.send(&server, round, host, sum)?;
        }
    }

    /// Sends a window until the server has it or does not want it.
    fn send(
        &self,
        server: &Server,
        round: u64,
        host: usize,
        sum: &Mutex<Replayed>,
    ) -> Result<(), EnrollError> {
        let Some(template) = self.replay.template(host, round) else { return Ok(()) };
        let header = template.header();
        let begins = self.run.began_ns.saturating_sub(self.replay.back_ns(host, round));
        let (host, token) = &self.run.hosts[host];
        let boot = self.run.boot(host, round);
        let id = WindowId { host: host.clone(), boot, start: header.start };
        if self.run.done.contains(&id.to_string()) {
            return Ok(());
        }
        self.wait_for_turn();
        let path = format!("/v1/windows/{boot}/{}", id.start_text());
        let mut failures = 0_u32;
        while !(self.over)() {
            let window = template.window(host, boot, begins);
            let window = window.map_err(|error| EnrollError::State(error.to_string()))?;
            let (bytes, began) = (window.bytes, Instant::now());
            let requested = match server.put(&path, token, bytes, window.content) {
                Err(_) => {
                    lock(sum).unanswered += 1;
                    None
                }
                Ok(answer) => match outcome(&answer) {
                    Outcome::Later(_) if matches!(answer.status, 401 | 403 | 404) => {
                        return Err(crate::enroll::refused(&self.replay.server, &answer));
                    }
                    Outcome::Later(requested) | Outcome::OtherClock(requested) => {
                        lock(sum).put_off += 1;
                        requested
                    }
                    Outcome::Refused => {
                        lock(sum).refuse(&answer);
                        return Ok(());
                    }
                    Outcome::Stored => {
                        self.acknowledge(&id)?;
                        lock(sum).stored(&answer, bytes, began.elapsed());
                        return Ok(());
                    }
                },
            };
            failures = failures.saturating_add(1);
            let wait = delay(failures, random(), requested);
            let most = requested.map_or(LONGEST_WAIT, |requested| requested.saturating_mul(2));
            self.sleep_until(Instant::now() + wait.min(most));
        }
        Ok(())
    }

    /// Keeps to the rate.
    fn wait_for_turn(&self) {
        let turn = self.turns.fetch_add(1, Ordering::Relaxed);
        if let Some(rate) = self.replay.rate {
            #[expect(clippy::cast_precision_loss, reason = "windows are counted in thousands")]
            self.sleep_until(self.began + Duration::from_secs_f64(turn as f64 / rate));
        }
    }

    fn acknowledge(&self, id: &WindowId) -> Result<(), EnrollError> {
        let Some(mut file) = self.run.acknowledged.as_ref() else { return Ok(()) };
        // At once and in one piece: a test that kills this program reads it.
        let written = file.write_all(format!("{id}\n").as_bytes());
        written.map_err(|error| EnrollError::State(error.to_string()))
    }

    fn sleep_until(&self, time: Instant) {
        while !(self.over)() {
            let left = time.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(MOMENT));
        }
    }
}

impl Replayed {
    fn stored(&mut self, answer: &Answer, bytes: u64, took: Duration) {
        let count = if answer.status == 201 { &mut self.accepted } else { &mut self.known };
        *count += 1;
        self.bytes += bytes;
        self.transfers.push(took);
    }

    fn refuse(&mut self, answer: &Answer) {
        self.refused += 1;
        let reason = reason(answer);
        if self.reasons.len() < MAX_REASONS || self.reasons.contains_key(&reason) {
            *self.reasons.entry(reason).or_default() += 1;
        }
    }
}

fn lock(sum: &Mutex<Replayed>) -> MutexGuard<'_, Replayed> {
    sum.lock().unwrap_or_else(PoisonError::into_inner)
}
