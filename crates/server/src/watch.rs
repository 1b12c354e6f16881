//! What is wrong in the fleet: the results of new windows go through `detect`, in the order in which they came.
//!
//! Servers that share a store see the same results and come to the same findings. What was learned is stored now and then
//! ([`detector_state`]): a server that starts goes on from there with the results of the last hours.

mod arrived;
mod detector_state;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use catch_panic::catch_panic;
use chrono::{DateTime, TimeDelta, Utc};
use detect::{Change, Detector, Finding, FindingId, Summary, Symptom};
use model::Results;
use object_store::path::Path;
use tokio::sync::{Notify, watch};

use crate::Server;
use crate::object_names::{DayWindow, FAILED, RESULTS};
use crate::results::{LAST, tables};
use crate::totals::Totals;
use arrived::came_since;
use tracing::warn;

/// Results of other servers are found that late, too.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// A look takes at most such a part of the time.
const PART: u32 = 10;
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
/// Results that came before are not read at the start: by then they are in packs.
const HISTORY: TimeDelta = TimeDelta::hours(2);
/// For the analysis of an earlier window.
const LONGEST_WAIT: TimeDelta = TimeDelta::minutes(30);
/// Hosts whose results the store does not give: then this pass is given up.
const MAX_LATER: usize = 10;
/// A step of the wall clock that counts as a clock change.
const STEP: Duration = Duration::from_secs(60);
/// A server that was away has no windows of that time yet: it does not call hosts silent so early.
const PATIENCE: Duration = Duration::from_secs(600);
/// Findings that are over; of more, the first are forgotten.
const MAX_OVER: usize = 1000;
/// Of a table of one window. Larger ones are left out.
const MAX_BYTES: u64 = 64 << 20;

/// A window, and when it, or its results, came into the store.
type Arrived = (DateTime<Utc>, DayWindow);

/// Runs the detector over new results, and holds the findings.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    state: Mutex<State>,
    /// This server made results.
    pub(crate) news: Notify,
    /// Grows when findings changed; 0: what came before this server's start is not looked at yet.
    pub(crate) changes: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    detector: Detector,
    findings: BTreeMap<FindingId, Found>,
    windows: u64,
    /// Windows of the last hours that were taken.
    seen: HashSet<DayWindow>,
    totals: Totals,
    is_changed: bool,
}

/// A finding, and what became of it.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) finding: Finding,
    /// What it was opened for, which stays when others join: alerts are named by it.
    pub(crate) first: Symptom,
    /// It is over since then, s since 1970.
    pub(crate) over_s: Option<u64>,
    /// Only late windows of its host showed it: it may be over by now, and raises no alarm.
    pub(crate) is_late: bool,
}

/// A window that comes later after its end shows the past: it raises no alarm, and is no part of Prometheus' counters.
pub(crate) const LATE_S: u64 = 600;

/// Whether it is that late at this second.
pub(crate) fn is_late(window: &Summary, now_s: u64) -> bool {
    end_s(window) + LATE_S < now_s
}

/// The second in which a window ended.
pub(crate) fn end_s(window: &Summary) -> u64 {
    u64::from(window.start_s) + window.length_ns / 1_000_000_000
}

impl Watch {
    /// All findings, the number of windows that were looked at, and of those that came after later ones of their host.
    pub(crate) fn findings(&self) -> (Vec<Found>, u64, u64) {
        let state = self.lock();
        let late = state.detector.left_out().late;
        (state.findings.values().cloned().collect(), state.windows, late)
    }

    /// What VMs and hosts did.
    pub(crate) fn totals(&self) -> Totals {
        self.lock().totals.clone()
    }

    /// Adds a window to that.
    fn add(&self, summary: &Summary, most_vms: usize) {
        self.lock().totals.take(summary, crate::auth::unix_s(), most_vms);
    }

    /// A finding.
    pub(crate) fn finding(&self, id: FindingId) -> Option<Found> {
        self.lock().findings.get(&id).cloned()
    }

    /// Ids of those that are open.
    pub(crate) fn open(&self) -> Vec<String> {
        let state = self.lock();
        let open = state.findings.iter().filter(|(_, found)| found.over_s.is_none());
        open.map(|(id, _)| id.to_string()).collect()
    }

    /// How many are open.
    pub(crate) fn n_open(&self) -> usize {
        self.lock().findings.values().filter(|found| found.over_s.is_none()).count()
    }

    /// Takes a window whose results came at this time. False: the detection panicked over it, and begins anew.
    fn take(&self, summary: Summary, came_s: u64, now_s: u64) -> bool {
        let mut state = self.lock();
        state.windows += 1;
        let (host, is_late) = (summary.host.clone(), is_late(&summary, now_s));
        let Some(changes) = catch_panic(|| state.detector.take(summary)) else {
            state.detector = Detector::new();
            return false;
        };
        state.apply(changes, came_s, is_late);
        if !is_late {
            state.end_lateness(&host);
        }
        true
    }

    fn tick(&self, now_s: u64) {
        let mut state = self.lock();
        let changes = state.detector.tick(u32::try_from(now_s).unwrap_or(u32::MAX));
        state.apply(changes, now_s, false);
    }

    /// Has alerts sent again: what is said about findings changed.
    pub(crate) fn requeue_alerts(&self) {
        self.changes.send_if_modified(|n| {
            let is_ready = 0 < *n;
            *n += u64::from(is_ready);
            is_ready
        });
    }

    /// Tells who waits for changes that all windows so far are taken.
    fn publish(&self) {
        let is_changed = std::mem::take(&mut self.lock().is_changed);
        if is_changed || *self.changes.borrow() == 0 {
            self.changes.send_modify(|n| *n += 1);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Drops from `seen` what is no longer listed, and from `new` what was seen.
    fn forget(&mut self, listed: &HashSet<DayWindow>, new: &mut Vec<Arrived>) {
        self.seen.retain(|window| listed.contains(window));
        new.retain(|(_, window)| !self.seen.contains(window));
    }

    /// What is open after a window that is not late holds now.
    fn end_lateness(&mut self, host: &str) {
        for found in self.findings.values_mut().filter(|found| found.is_late) {
            let is_of_host = found.first.series.host.as_deref().is_none_or(|of| of == host);
            if is_of_host && found.over_s.is_none() {
                found.is_late = false;
                self.is_changed = true;
            }
        }
    }

    fn apply(&mut self, changes: Vec<Change>, now_s: u64, is_late: bool) {
        self.is_changed |= !changes.is_empty();
        for change in changes {
            match change {
                Change::Opened(finding) | Change::Updated(finding) => {
                    let known = self.findings.get(&finding.id);
                    let is_late = is_late && known.is_none_or(|known| known.is_late);
                    let first = known.map(|found| found.first.clone());
                    let Some(first) = first.or_else(|| finding.symptoms.first().cloned()) else {
                        continue;
                    };
                    let found = Found { finding, first, over_s: None, is_late };
                    self.findings.insert(found.finding.id, found);
                }
                Change::Resolved(id) => {
                    if let Some(found) = self.findings.get_mut(&id) {
                        found.over_s = Some(now_s);
                    }
                }
            }
        }
        let over = self.findings.iter().filter_map(|(id, found)| Some((found.over_s?, *id)));
        let mut over: Vec<_> = over.collect();
        let excess = over.len().saturating_sub(MAX_OVER);
        over.sort_unstable();
        for (_, id) in over.into_iter().take(excess) {
            self.findings.remove(&id);
        }
    }
}

/// Why a window's results were not looked at.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WatchError {
    #[error("the store failed: {0}")]
    Store(#[from] object_store::Error),
    #[error("{0} is damaged or missing")]
    Damaged(Path),
    #[error("{0}")]
    Results(String),
}

impl From<std::io::Error> for WatchError {
    fn from(error: std::io::Error) -> Self {
        Self::Results(error.to_string())
    }
}

impl Server {
    /// Looks at new results, for ever.
    pub(crate) async fn watch_for_ever(self: Arc<Self>) {
        let mut patient_since = Instant::now();
        let mut clock = (Instant::now(), SystemTime::now());
        self.recall().await;
        loop {
            let looked = Instant::now();
            // By a clock that was set, hosts seem silent until their next windows come.
            if STEP < step(&mut clock, (looked, SystemTime::now())) {
                patient_since = looked;
            }
            if let Err(error) = self.look().await {
                self.metrics.store_error("watch");
                warn!("the search for new results failed: {error}");
            } else {
                if PATIENCE < patient_since.elapsed() && self.queue.len() <= self.n_workers() {
                    self.watch.tick(crate::auth::unix_s());
                }
                self.watch.publish();
                self.store_learned(detector_state::EVERY).await;
            }
            tokio::time::sleep((looked.elapsed() * PART).clamp(SHORTEST_PAUSE, LOOK_EVERY)).await;
            let _ = tokio::time::timeout(LOOK_EVERY, self.watch.news.notified()).await;
        }
    }

    /// Takes the windows with results that were not seen.
    async fn look(&self) -> object_store::Result<()> {
        let now = Utc::now();
        let since = now - HISTORY;
        let (mut new, mut done) = (Vec::new(), HashSet::new());
        for day in arrived::days(now) {
            let results = format!("{RESULTS}/{LAST}");
            let listed = self.store.list(&format!("{results}/day={day}")).await?;
            new.extend(came_since(since, listed, &results, ".parquet"));
            let listed = self.store.list(&format!("{FAILED}/day={day}")).await?;
            done.extend(came_since(since, listed, FAILED, ".json").map(|(_, window)| window));
        }
        done.extend(new.iter().map(|(_, window)| window.clone()));
        self.watch.lock().forget(&done, &mut new);
        let raw = self.came_with(&new, now, since).await?;
        let arrived: HashMap<_, _> = raw.iter().map(|(time, window)| (window, *time)).collect();
        for (time, window) in &mut new {
            *time = arrived.get(window).copied().unwrap_or(*time);
        }
        let is_waiting =
            |(time, window): &&Arrived| now - LONGEST_WAIT <= *time && !done.contains(window);
        let waiting: Vec<Arrived> = raw.iter().filter(is_waiting).cloned().collect();
        // Whose results the store does not give now.
        let mut later = HashSet::new();
        for (came, window) in in_order(new, &waiting) {
            if later.contains(&window.id.host) {
                continue;
            }
            match self.summary(&window).await {
                Ok(Some(summary)) => {
                    if self.started <= came {
                        self.watch.add(&summary, self.config.metrics_vms);
                    }
                    if !self.watch.take(summary, seconds(came), crate::auth::unix_s()) {
                        self.metrics.unwatched.inc();
                        warn!("detection failed over {} and begins anew", window.id);
                    }
                }
                // It was packed meanwhile.
                Ok(None) => {}
                Err(error @ (WatchError::Store(_) | WatchError::Damaged(_)))
                    if now - LONGEST_WAIT <= came =>
                {
                    self.metrics.store_error("watch");
                    warn!("results of {} are looked at later: {error}", window.id);
                    later.insert(window.id.host);
                    if MAX_LATER <= later.len() {
                        break;
                    }
                    continue;
                }
                Err(error) => {
                    self.metrics.unwatched.inc();
                    warn!("results of {} were not looked at: {error}", window.id);
                }
            }
            self.watch.lock().seen.insert(window);
        }
        Ok(())
    }

    /// A window's results, summed up; `None`: they are not there any more.
    async fn summary(&self, window: &DayWindow) -> Result<Option<Summary>, WatchError> {
        let Some(results) = self.results(window).await? else { return Ok(None) };
        let none = || WatchError::Results("the table hosts is empty".to_owned());
        let summary = Summary::from_results(&results).ok_or_else(none)?;
        // A worker that a hostile window took over could name another host.
        if summary.host != window.id.host.as_str() {
            return Err(WatchError::Results("they are of another host".to_owned()));
        }
        Ok(Some(summary))
    }

    /// A window's results; `None`: they are not there any more.
    pub(crate) async fn results(&self, window: &DayWindow) -> Result<Option<Results>, WatchError> {
        let folder = tempfile::tempdir_in(&self.receiver.spool)?;
        for (table, file) in tables() {
            let path = window.result(table);
            match self.store.size(&path).await? {
                None => return self.not_there(window, path.clone()).await,
                Some(bytes) if MAX_BYTES < bytes => {
                    return Err(WatchError::Results(format!("{path} has {bytes} bytes")));
                }
                Some(_) => {}
            }
            let Some(content) = self.store.get(&path).await? else { return Ok(None) };
            if !recording::seal::is_intact(&content) {
                self.engine.damage().add(&path);
                return Err(WatchError::Damaged(path));
            }
            std::fs::write(folder.path().join(file), content)?;
        }
        let read =
            tokio::task::spawn_blocking(move || recording::results::read(folder.path())).await;
        let failed = |error: &dyn std::fmt::Display| WatchError::Results(error.to_string());
        Ok(Some(read.map_err(|error| failed(&error))?.map_err(|error| failed(&error))?))
    }
}

impl Server {
    /// Why an object of a window's results is not there.
    async fn not_there(
        &self,
        window: &DayWindow,
        path: Path,
    ) -> Result<Option<Results>, WatchError> {
        if self.store.size(&window.result(LAST)).await?.is_none() {
            return Ok(None);
        }
        self.engine.damage().add(&path);
        Err(WatchError::Damaged(path))
    }
}

/// By how much more or less than the time since the last call a clock went on.
fn step(last: &mut (Instant, SystemTime), now: (Instant, SystemTime)) -> Duration {
    let (then, clock_then) = std::mem::replace(last, now);
    let expected = clock_then.checked_add(now.0 - then).unwrap_or(clock_then);
    now.1.duration_since(expected).unwrap_or_else(|back| back.duration())
}

/// Windows in order of arrival, those of a boot by their start. Of a host's windows those that arrived after one that
/// still waits for its analysis are left to the next look: a backlog is analysed the newest first.
fn in_order(mut new: Vec<Arrived>, waiting: &[Arrived]) -> Vec<Arrived> {
    let mut first_waiting = HashMap::new();
    for (time, window) in waiting {
        let first = first_waiting.entry(&window.id.host).or_insert(*time);
        *first = (*first).min(*time);
    }
    new.retain(|(time, window)| {
        first_waiting.get(&window.id.host).is_none_or(|first| time < first)
    });
    let mut boots = HashMap::new();
    for (time, window) in &new {
        let first = boots.entry((window.id.host.clone(), window.id.boot)).or_insert(*time);
        *first = (*first).min(*time);
    }
    let mut hosts: BTreeMap<String, (Vec<_>, Vec<_>)> = BTreeMap::new();
    for (time, window) in new {
        let boot = boots.get(&(window.id.host.clone(), window.id.boot)).copied();
        let (times, windows) = hosts.entry(window.id.host.to_string()).or_default();
        times.push(time);
        windows.push((boot, window));
    }
    let mut ordered = Vec::new();
    for (mut times, mut windows) in hosts.into_values() {
        times.sort();
        windows.sort();
        ordered.extend(times.into_iter().zip(windows.into_iter().map(|(_, window)| window)));
    }
    ordered.sort();
    ordered
}

fn seconds(time: DateTime<Utc>) -> u64 {
    u64::try_from(time.timestamp()).unwrap_or(0)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_clock_that_is_set_is_seen() {
        let (mut last, s) = ((Instant::now(), SystemTime::now()), Duration::from_secs);
        let (time, clock) = (last.0 + s(30), last.1);
        assert_eq!(step(&mut last, (time, clock + s(30))), s(0));
        assert_eq!(step(&mut last, (time + s(30), clock + s(3660))), s(3600));
        assert_eq!(step(&mut last, (time + s(60), clock + s(60))), s(3630));
    }

    /// A window of a boot, which arrived at this second.
    fn arrived((host, boot, start, s): (&str, u8, u32, i64)) -> Arrived {
        let boot = format!("{boot:02x}").repeat(16);
        let id = format!("{host}/{boot}/{start:020}").parse().unwrap();
        (DateTime::from_timestamp(s, 0).unwrap(), DayWindow { day: Default::default(), id })
    }

    #[test]
    fn windows_are_taken_as_they_arrived_and_those_of_a_boot_by_their_start() {
        let listed =
            [("b", 1, 3, 10), ("b", 1, 1, 11), ("a", 9, 7, 12), ("b", 1, 2, 13), ("a", 2, 5, 14)];
        let expected =
            [("b", 1, 1, 10), ("b", 1, 2, 11), ("a", 9, 7, 12), ("b", 1, 3, 13), ("a", 2, 5, 14)];
        assert_eq!(in_order(listed.map(arrived).into(), &[]), expected.map(arrived));
    }

    #[test]
    fn windows_wait_for_those_that_arrived_before() {
        let listed = [("a", 1, 1, 10), ("a", 1, 3, 12), ("b", 1, 3, 12)].map(arrived);
        let waiting = [("a", 1, 4, 13), ("a", 1, 2, 11)].map(arrived);
        let [first, _, other] = listed.clone();
        assert_eq!(in_order(listed.into(), &waiting), [first, other]);
    }

    fn symptom() -> Symptom {
        let measure = detect::Measure::StealOutside;
        Symptom {
            labels: Default::default(),
            series: detect::SeriesName { host: None, vm: None, measure },
            began_s: 1,
            interval_s: (1, 1),
            before: 0.0,
            after: 0.2,
            score: 1.0,
            cpus: 1.0,
            is_over: false,
        }
    }

    #[test]
    fn findings_that_are_over_are_forgotten_in_time() {
        let mut state = State::default();
        let finding = |id: u64| Finding {
            id: FindingId(id),
            found_s: 1,
            cause: detect::Cause::Unknown,
            symptoms: vec![symptom()],
            n_more: 0,
            advice: Vec::new(),
        };
        for id in 0..MAX_OVER as u64 + 10 {
            let changes = vec![Change::Opened(finding(id)), Change::Resolved(FindingId(id))];
            state.apply(changes, id, false);
        }
        state.apply(vec![Change::Opened(finding(9))], 9, false);
        assert_eq!(state.findings.len(), MAX_OVER + 1);
        assert!(state.findings[&FindingId(9)].over_s.is_none());
        assert!(!state.findings.contains_key(&FindingId(8)));
    }

    /// Windows of two hours ago, which an agent sends once it can: their findings alarm once they hold now, too.
    #[test]
    fn the_past_raises_no_alarm() {
        let finding = |id: u64, host: &str| {
            let mut symptom = symptom();
            symptom.series.host = Some(host.to_owned());
            Finding {
                id: FindingId(id),
                found_s: 1,
                cause: detect::Cause::Unknown,
                symptoms: vec![symptom],
                n_more: 0,
                advice: Vec::new(),
            }
        };
        let mut state = State::default();
        let check = |state: &State, expected: &[u64]| {
            let late = state.findings.iter().filter(|(_, found)| found.is_late);
            assert_eq!(late.map(|(id, _)| id.0).collect::<Vec<_>>(), expected);
        };
        state.apply(vec![Change::Opened(finding(1, "a"))], 100, false);
        let opened = [(1, "a"), (2, "a"), (3, "a"), (4, "b")];
        let changes = opened.map(|(id, host)| Change::Updated(finding(id, host)));
        state.apply(changes.into(), 7300, true);
        check(&state, &[2, 3, 4]);
        state.apply(vec![Change::Resolved(FindingId(3))], 7301, true);
        state.end_lateness("a");
        check(&state, &[3, 4]);
        state.end_lateness("b");
        check(&state, &[3]);
    }

    #[test]
    fn windows_are_late_by_their_end() {
        let window = Summary { start_s: 1000, length_ns: 600_000_000_000, ..Summary::default() };
        assert!(!is_late(&window, 1600));
        assert!(!is_late(&window, 2200));
        assert!(is_late(&window, 2201));
    }
}
