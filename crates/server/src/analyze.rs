//! Analysing windows: each that is stored and has no results. What is to do follows from the store, so nothing is lost when
//! the server is killed.
//!
//! ```text
//!  a window came ----------------> Queue: new ones first; of each host in turn, its newest first
//!  start, every 10 min: raw - results - failed --^    |
//!                                                     v one task per CPU: worker process --> results, `hosts` last
//! ```
//! Two servers may analyse one window: they make the same objects, and only one of them makes each.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::io::Cursor;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use chrono::NaiveDate;
use futures_util::StreamExt;
use object_store::path::Path;
use object_store::{GetResultPayload, ObjectStoreExt};
use query::LastPacks;
use recording::window::HostName;
use serde_json::json;
use tokio::io::{AsyncSeekExt, AsyncWriteExt};
use tokio::sync::Notify;
use tracing::warn;

use crate::Server;
use crate::auth::unix_s;
use crate::object_names::{DayWindow, FAILED, RAW, RESULTS, day_of_prefix};
use crate::results::LAST;
use crate::store::Created;
use crate::worker::{self, Outcome, Task, WorkerError};

/// Windows that wait in memory; of the others the store knows.
const MAX_WAITING: usize = 20_000;
/// How often the store is searched for windows without results.
pub(crate) const SEARCH_EVERY: Duration = Duration::from_secs(600);
/// Until a window is tried again after an error that is not its own, at first and at most.
const PAUSES: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(3600));
/// A window is given up after its worker was stopped this often: another time it would take the machine's memory or
/// hours again.
const MAX_STOPPED: u32 = 8;

/// Windows that wait for analysis.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Those that came just now: taken first.
    new: Waiting,
    found: Waiting,
    /// Those that wait or are being analysed.
    known: HashSet<DayWindow>,
    /// Those that are being analysed; whether each was found again meanwhile: its results may have been removed.
    analyzed: HashMap<DayWindow, bool>,
    /// Of those that were not analysed in the end.
    tries: HashMap<DayWindow, Tries>,
    arrived: u64,
    /// Some were left to the next search.
    left_out: bool,
}

/// How often a window was not analysed, and of these, because its worker was stopped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Tries {
    failed: u32,
    stopped: u32,
}

/// Windows in an order.
type Numbered = BTreeSet<(u64, DayWindow)>;

/// Windows of several hosts, of which none waits for another one's.
#[derive(Debug, Default)]
struct Waiting {
    /// By number: the last is a host's next.
    hosts: BTreeMap<HostName, Numbered>,
    /// Whose turn it was.
    last: Option<HostName>,
    len: usize,
}

impl Waiting {
    fn add(&mut self, number: u64, window: DayWindow) {
        let host = self.hosts.entry(window.id.host.clone()).or_default();
        self.len += usize::from(host.insert((number, window)));
    }

    /// The newest window of the host after the last one.
    fn take_next(&mut self) -> Option<DayWindow> {
        let after = self.last.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.hosts.range((after, Bound::Unbounded)).next();
        let host = next.or_else(|| self.hosts.first_key_value())?.0.clone();
        self.last = Some(host.clone());
        self.take(&host, BTreeSet::pop_last)
    }

    /// The oldest window of the host that has most.
    fn take_excess(&mut self) -> Option<DayWindow> {
        let host = self.hosts.iter().max_by_key(|(_, windows)| windows.len())?.0.clone();
        self.take(&host, BTreeSet::pop_first)
    }

    fn take(
        &mut self,
        host: &HostName,
        pop: fn(&mut Numbered) -> Option<(u64, DayWindow)>,
    ) -> Option<DayWindow> {
        let windows = self.hosts.get_mut(host)?;
        let (_, window) = pop(windows)?;
        if windows.is_empty() {
            self.hosts.remove(host);
        }
        self.len -= 1;
        Some(window)
    }
}

impl Queue {
    /// A window that came just now.
    pub(crate) fn add_new(&self, window: DayWindow) {
        let mut state = self.lock();
        state.arrived += 1;
        let number = state.arrived;
        state.add(|state| &mut state.new, number, window);
        self.changed.notify_one();
    }

    /// One that was found.
    pub(crate) fn add_found(&self, time: u64, window: DayWindow) {
        self.lock().add(|state| &mut state.found, time, window);
        self.changed.notify_one();
    }

    async fn next(&self) -> DayWindow {
        loop {
            let next = self.lock().take_next();
            if let Some(window) = next {
                // Another one may wait, too.
                self.changed.notify_one();
                return window;
            }
            self.changed.notified().await;
        }
    }

    fn done(&self, window: &DayWindow) {
        let mut state = self.lock();
        state.known.remove(window);
        state.tries.remove(window);
        if state.analyzed.remove(window) == Some(true) {
            state.add(|state| &mut state.found, unix_s(), window.clone());
            self.changed.notify_one();
        }
    }

    /// Another try may follow.
    fn release(&self, window: &DayWindow) {
        let mut state = self.lock();
        state.known.remove(window);
        state.analyzed.remove(window);
    }

    fn tried(&self, window: &DayWindow, error: &AnalyzeError) -> Tries {
        let mut state = self.lock();
        let tries = state.tries.entry(window.clone()).or_default();
        tries.failed = tries.failed.saturating_add(1);
        tries.stopped += u32::from(matches!(error, AnalyzeError::Stopped(_)));
        *tries
    }

    /// Windows that wait or are being analysed.
    pub(crate) fn len(&self) -> usize {
        self.lock().known.len()
    }

    /// Whether it is time for another search: some were left out, and most of the others are done.
    fn wants_search(&self) -> bool {
        let mut state = self.lock();
        state.len() < MAX_WAITING / 4 && std::mem::take(&mut state.left_out)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn add(&mut self, class: fn(&mut Self) -> &mut Waiting, number: u64, window: DayWindow) {
        if !self.known.insert(window.clone()) {
            self.analyzed.entry(window).and_modify(|is_found_again| *is_found_again = true);
            return;
        }
        class(self).add(number, window);
        if MAX_WAITING < self.len()
            && let Some(excess) = self.found.take_excess().or_else(|| self.new.take_excess())
        {
            self.known.remove(&excess);
            self.tries.remove(&excess);
            self.left_out = true;
        }
    }

    fn take_next(&mut self) -> Option<DayWindow> {
        let window = self.new.take_next().or_else(|| self.found.take_next())?;
        self.analyzed.insert(window.clone(), false);
        Some(window)
    }

    /// Those that wait.
    fn len(&self) -> usize {
        self.new.len + self.found.len
    }
}

/// Why a window has no results yet.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AnalyzeError {
    /// It never will.
    #[error("{0}")]
    Window(String),
    /// Later, perhaps.
    #[error("the store failed: {0}")]
    Store(#[from] object_store::Error),
    /// Later, perhaps.
    #[error("{0}")]
    Machine(String),
    /// Later, but not for ever.
    #[error("{0}")]
    Stopped(String),
}

impl From<WorkerError> for AnalyzeError {
    fn from(error: WorkerError) -> Self {
        match error {
            WorkerError::Failed(text) => Self::Machine(text),
            error @ WorkerError::Stopped(_) => Self::Stopped(error.to_string()),
            error => Self::Window(error.to_string()),
        }
    }
}

impl From<std::io::Error> for AnalyzeError {
    fn from(error: std::io::Error) -> Self {
        Self::Machine(error.to_string())
    }
}

impl Server {
    /// Analyses windows, one after the other, for ever.
    pub(crate) async fn analyze_for_ever(self: Arc<Self>) {
        loop {
            let window = self.queue.next().await;
            let Some(pause) = self.analyze_or_set_aside(&window).await else {
                self.queue.done(&window);
                continue;
            };
            // The others don't wait for it.
            let server = Arc::clone(&self);
            tokio::spawn(async move {
                tokio::time::sleep(pause).await;
                server.queue.release(&window);
                server.queue.add_found(unix_s(), window);
            });
        }
    }

    /// After which time it is to be tried again; `None`: nothing is left to do.
    async fn analyze_or_set_aside(&self, window: &DayWindow) -> Option<Duration> {
        let error = self.analyze(window).await.err()?;
        let Tries { failed, stopped } = self.queue.tried(window, &error);
        let again = match error {
            AnalyzeError::Window(reason) => Err(reason),
            AnalyzeError::Stopped(reason) if MAX_STOPPED <= stopped => {
                Err(format!("{reason}, {stopped} times"))
            }
            error => Ok(error),
        };
        let pause = PAUSES.0.saturating_mul(1 << failed.saturating_sub(1).min(7)).min(PAUSES.1);
        match again {
            Ok(error) => {
                self.metrics.store_error("analysis");
                let after = pause.as_secs();
                warn!("failed to analyse {}, again in {after} s: {error}", window.id);
            }
            Err(reason) => {
                self.metrics.analyses_failed.inc();
                warn!("{} can't be analysed: {reason}", window.id);
                let noted = self.note_failed(window, &reason).await;
                if noted.is_ok() {
                    return None;
                }
                self.metrics.store_error("failed");
            }
        }
        Some(pause)
    }

    /// Notes that a window has no results and never will.
    pub(crate) async fn note_failed(
        &self,
        window: &DayWindow,
        reason: &str,
    ) -> object_store::Result<()> {
        let note = json!({ "window": window.id.to_string(), "reason": reason });
        self.store.create(&window.failed(), Bytes::from(note.to_string())).await?;
        Ok(())
    }

    /// Analyses a window that is in the store, unless that was done. Its tables are there when this returns.
    pub(crate) async fn analyze(&self, window: &DayWindow) -> Result<Created, AnalyzeError> {
        let packs = self.engine.packs(window.day, Some(window.id.host.as_str())).await?;
        if self.store.size(&window.result(LAST)).await?.is_some() || is_packed(&packs, window) {
            return Ok(Created::Before);
        }
        let Some(file) = self.fetch(&window.raw()).await? else { return Ok(Created::Before) };
        let began = Instant::now();
        let outcome = self.work(Task::Analyze, &window.id.host, file).await?;
        let mut created = Created::Before;
        for (table, bytes) in outcome.tables()? {
            let mut sealed = Cursor::new(bytes);
            let no_table = |error| AnalyzeError::Window(format!("its table {table}: {error}"));
            recording::seal::seal(&mut sealed).map_err(no_table)?;
            let sealed = sealed.into_inner().into();
            created = self.store.create(&window.result(table), sealed).await?;
        }
        self.engine.damage().forget(&window.stem());
        if created == Created::Now {
            self.watch.news.notify_one();
            self.queue_profile(window);
            self.metrics.windows_analyzed.inc();
            self.metrics.analysis_seconds.observe(began.elapsed().as_secs_f64());
            let facts = &outcome.facts;
            let length = facts.end_ns.saturating_sub(facts.start().0);
            let end = facts.start_unix_ns.saturating_add(length) / 1_000_000_000;
            let age = u32::try_from(unix_s().saturating_sub(end)).unwrap_or(u32::MAX);
            self.metrics.analysis_age_seconds.observe(age.into());
        }
        Ok(created)
    }

    pub(crate) async fn work(
        &self,
        task: Task,
        host: &HostName,
        file: File,
    ) -> Result<Outcome, AnalyzeError> {
        let (scratch, host) = (self.receiver.spool.clone(), host.clone());
        let work = move || worker::run(task, &host, file, &scratch);
        let done = tokio::task::spawn_blocking(work).await;
        Ok(done.map_err(|error| AnalyzeError::Machine(error.to_string()))??)
    }

    /// A stored window as a file; `None`: it is there no longer.
    pub(crate) async fn fetch(&self, path: &Path) -> Result<Option<File>, AnalyzeError> {
        let found = match self.store.objects().get(path).await {
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            found => found?,
        };
        let mut stream = match found.payload {
            GetResultPayload::File(file, _) => return Ok(Some(file)),
            GetResultPayload::Stream(stream) => stream,
        };
        let file = tempfile::tempfile_in(&self.receiver.spool)?;
        let mut written = tokio::fs::File::from_std(file.try_clone()?);
        while let Some(chunk) = stream.next().await {
            written.write_all(&chunk?).await?;
        }
        written.flush().await?;
        written.rewind().await?;
        Ok(Some(file))
    }

    /// Finds windows without results, the newest days first, and when they came (seconds since 1970).
    pub(crate) async fn without_results(
        &self,
        found_one: &mut (dyn FnMut(u64, DayWindow) + Send),
    ) -> object_store::Result<()> {
        let mut days = self.store.prefixes(RAW).await?;
        days.reverse();
        for day in days.iter().filter_map(day_of_prefix) {
            self.without_results_of(day, found_one).await?;
        }
        Ok(())
    }

    /// The same of one day.
    pub(crate) async fn without_results_of(
        &self,
        day: NaiveDate,
        found_one: &mut (dyn FnMut(u64, DayWindow) + Send),
    ) -> object_store::Result<()> {
        let found = async |parent: &str, end: &str| -> object_store::Result<Vec<_>> {
            let listed = self.store.list(&format!("{parent}/day={day}")).await?;
            let window = |object: &object_store::ObjectMeta| {
                let window = DayWindow::from_path(&object.location, parent, end)?;
                Some((object.last_modified, window))
            };
            Ok(listed.iter().filter_map(window).collect())
        };
        let mut done: HashSet<DayWindow> = HashSet::new();
        let results = format!("{RESULTS}/{LAST}");
        done.extend(found(&results, ".parquet").await?.into_iter().map(|(_, window)| window));
        done.extend(found(FAILED, ".json").await?.into_iter().map(|(_, window)| window));
        let packs = self.engine.packs(day, None).await?;
        for list in &packs.damaged {
            self.metrics.store_error("packs");
            warn!("a list of packs can't be read: {list}");
        }
        for (time, window) in found(RAW, ".window").await? {
            if !done.contains(&window) && !is_packed(&packs, &window) {
                found_one(u64::try_from(time.timestamp()).unwrap_or(0), window);
            }
        }
        Ok(())
    }

    /// Searches at the start, from time to time, and when windows were left out.
    pub(crate) async fn search_for_ever(self: Arc<Self>) {
        loop {
            let mut add = |time, window| self.queue.add_found(time, window);
            if let Err(error) = self.without_results(&mut add).await {
                self.metrics.store_error("search");
                warn!("the search for windows to analyse failed: {error}");
                tokio::time::sleep(Duration::from_secs(10)).await;
                continue;
            }
            let began = Instant::now();
            while began.elapsed() < SEARCH_EVERY && !self.queue.wants_search() {
                tokio::time::sleep(Duration::from_secs(5)).await;
            }
        }
    }
}

fn is_packed(packs: &LastPacks, window: &DayWindow) -> bool {
    packs.contains(&window.folder(), &window.name())
}

#[cfg(test)]
mod test {
    use super::*;

    fn window(number: u32) -> DayWindow {
        window_of("kvm1", number)
    }

    fn window_of(host: &str, number: u32) -> DayWindow {
        let id = format!("{host}/{}/{number:020}", "0".repeat(32)).parse().unwrap();
        DayWindow { day: Default::default(), id }
    }

    /// A host with a backlog keeps no others waiting, neither for their new windows nor for old ones.
    #[tokio::test]
    async fn hosts_take_turns() {
        let queue = Queue::default();
        for number in 0..4 {
            queue.add_new(window_of("kvm2", number));
            queue.add_found(number.into(), window_of("kvm2", 10 + number));
        }
        queue.add_found(1, window_of("kvm3", 11));
        queue.add_new(window_of("kvm1", 0));
        queue.add_new(window_of("kvm3", 0));
        queue.add_new(window_of("kvm3", 1));
        let mut order = Vec::new();
        for _ in 0..12 {
            let DayWindow { id, .. } = queue.next().await;
            order.push(format!("{}:{}", id.host, id.start.0));
        }
        let new = ["kvm1:0", "kvm2:3", "kvm3:1", "kvm2:2", "kvm3:0", "kvm2:1", "kvm2:0"];
        let found = ["kvm2:13", "kvm3:11", "kvm2:12", "kvm2:11", "kvm2:10"];
        assert_eq!(order, [&new[..], &found].concat());
    }

    #[test]
    fn tries_are_counted_until_a_window_is_done() {
        let (queue, window) = (Queue::default(), window(1));
        let stopped = AnalyzeError::Stopped("was killed".to_owned());
        let failed = AnalyzeError::Machine("the disk is full".to_owned());
        assert_eq!(queue.tried(&window, &failed), Tries { failed: 1, stopped: 0 });
        queue.release(&window);
        assert_eq!(queue.tried(&window, &stopped), Tries { failed: 2, stopped: 1 });
        queue.done(&window);
        assert_eq!(queue.tried(&window, &stopped), Tries { failed: 1, stopped: 1 });
    }

    #[test]
    fn a_backlog_makes_room_for_others() {
        let queue = Queue::default();
        for number in 0..MAX_WAITING as u32 {
            queue.add_new(window_of("kvm2", number));
        }
        queue.add_found(0, window_of("kvm1", 0));
        queue.add_new(window_of("kvm3", 0));
        let state = queue.lock();
        let waiting = |waiting: &Waiting| waiting.hosts.values().map(BTreeSet::len).sum::<usize>();
        assert_eq!([waiting(&state.new), waiting(&state.found)], [state.new.len, state.found.len]);
        assert_eq!((state.len(), state.known.len()), (MAX_WAITING, MAX_WAITING));
        assert!(state.known.contains(&window_of("kvm3", 0)) && state.left_out);
    }

    #[tokio::test]
    async fn new_windows_go_first_and_none_twice() {
        let queue = Queue::default();
        queue.add_found(5, window(5));
        queue.add_found(9, window(9));
        queue.add_found(9, window(9));
        queue.add_new(window(1));
        queue.add_new(window(2));
        queue.add_new(window(9));
        let mut order = Vec::new();
        for _ in 0..4 {
            order.push(queue.next().await);
        }
        assert_eq!(order, [2, 1, 9, 5].map(window));
        assert_eq!(queue.len(), 4);
        order.iter().for_each(|window| queue.done(window));
        assert_eq!(queue.len(), 0);
    }

    /// As when its results are damaged just after they were written.
    #[tokio::test]
    async fn a_window_found_during_its_analysis_is_analysed_again() {
        let queue = Queue::default();
        queue.add_found(1, window(1));
        assert_eq!(queue.next().await, window(1));
        queue.add_found(2, window(1));
        queue.add_found(3, window(1));
        queue.done(&window(1));
        assert_eq!((queue.len(), queue.next().await), (1, window(1)));
        queue.done(&window(1));
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn the_queue_is_bounded_and_says_that_some_are_left_out() {
        let queue = Queue::default();
        for number in 0..MAX_WAITING as u32 + 10 {
            queue.add_found(number.into(), window(number));
        }
        assert_eq!(queue.len(), MAX_WAITING);
        assert!(!queue.wants_search());
        queue.lock().found = Waiting::default();
        assert!(queue.wants_search() && !queue.wants_search());
    }
}
