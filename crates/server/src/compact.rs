//! Compaction: results of many windows become one object of each table ([`query::packs`]), in longer slices as they get old.
//!
//! ```text
//!  of a day and host:  results of windows --> pack: hosts, other tables --> next list: now the pack counts
//!                      ... 2 h later, when they are not read any more: what the last list replaces is removed
//! ```
//! Every step makes an object or removes an unread one. What is killed between two steps is made again, and of two
//! servers that do the same, one makes the list.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Days, NaiveDate, NaiveTime, TimeDelta, Utc};
use object_store::path::Path;
use query::packs::{LISTS, PACK, Pack, Packs};
use query::{Inputs, QueryError, SLICE_S};
use tracing::warn;

use crate::Server;
use crate::auth::hash;
use crate::config::RollUp;
use crate::object_names::{DayWindow, RESULTS, day_of_prefix};
use crate::results::{LAST, tables};
use crate::store::Created;

const COMPACT_EVERY: Duration = Duration::from_secs(1800);
/// After this time since they came, no results of the same hour are waited for.
const SETTLED: TimeDelta = TimeDelta::hours(1);
/// Number of windows after which a day is packed before it is over.
const MIN_WINDOWS: usize = 60;
/// After midnight a day is over: its windows are in one pack from then on.
const LATE: TimeDelta = TimeDelta::hours(6);
/// What a list replaces stays so long: longer than any query takes.
const REPLACED_STAYS: TimeDelta = TimeDelta::hours(2);
/// After the store has failed for this many hosts, the others wait for the next pass.
const MAX_FAILURES: usize = 10;
/// Windows that are left as they are because their results can't be read.
const MAX_DAMAGED: usize = 100;

/// Why results were not packed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CompactError {
    #[error("the store failed: {0}")]
    Store(#[from] object_store::Error),
    #[error("{0}")]
    Query(#[from] QueryError),
    /// What is packed is not known.
    #[error("a list of packs can't be read: {0}")]
    List(object_store::Error),
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

/// The results of a day and host.
#[derive(Debug, Default)]
struct HostDay {
    /// `BOOT-START`, and when their results came.
    windows: Vec<(String, DateTime<Utc>)>,
    /// Names of packs, of which the last list may know.
    packs: Vec<String>,
    /// Lists by number, and when they were made.
    lists: BTreeMap<u32, (Path, DateTime<Utc>)>,
}

/// What is to become a pack.
#[derive(Debug, PartialEq, Eq)]
struct Plan {
    windows: Vec<String>,
    packs: Vec<Arc<Pack>>,
    slice_s: u32,
}

fn plan(
    packs: &Packs,
    windows: &[(String, DateTime<Utc>)],
    day: NaiveDate,
    now: DateTime<Utc>,
    roll_up: &RollUp,
) -> Option<Plan> {
    let is_due =
        |(name, came): &&(String, DateTime<Utc>)| SETTLED <= now - came && !packs.contains(name);
    let windows: Vec<_> = windows.iter().filter(is_due).map(|(name, _)| name.clone()).collect();
    let end = (day + Days::new(1)).and_time(NaiveTime::MIN).and_utc();
    if now < end + LATE {
        let is_enough = MIN_WINDOWS <= windows.len();
        return is_enough.then(|| Plan { windows, packs: Vec::new(), slice_s: SLICE_S });
    }
    let packs: Vec<_> = packs.packs.iter().filter(|pack| !pack.is_damaged).cloned().collect();
    let coarsest = packs.iter().map(|pack| pack.slice_s).max().unwrap_or(SLICE_S);
    let slice_s = roll_up.slice_s((now - end).num_days()).unwrap_or(SLICE_S).max(coarsest);
    let is_one = packs.len() == 1 && packs[0].slice_s == slice_s && windows.is_empty();
    let is_little = slice_s == SLICE_S && packs.len() + windows.len() < 2;
    let is_nothing = packs.is_empty() && windows.is_empty();
    (!is_one && !is_little && !is_nothing).then_some(Plan { windows, packs, slice_s })
}

impl Server {
    /// Packs and rolls up, for ever.
    pub(crate) async fn compact_for_ever(self: Arc<Self>) {
        loop {
            tokio::time::sleep(COMPACT_EVERY).await;
            let now = Utc::now();
            let compacted = match self.believes(now.date_naive()).await {
                // By a wrong clock all results would be old, and lose their details.
                Ok(false) => continue,
                Ok(true) => self.compact(now).await,
                Err(error) => Err(error.into()),
            };
            if let Err(error) = compacted {
                self.metrics.store_error("compact");
                warn!("failed to pack results: {error}");
            }
        }
    }

    /// Packs what is to be packed, and removes what packs have replaced.
    pub(crate) async fn compact(&self, now: DateTime<Utc>) -> Result<(), CompactError> {
        let days = self.store.prefixes(&format!("{RESULTS}/{LAST}")).await?;
        let (mut failures, mut failed) = (0, None);
        for day in days.iter().rev().filter_map(day_of_prefix) {
            for (host, host_day) in self.host_days(day).await? {
                // If that fails, its results stay as they are, and the others' turn comes.
                let Err(error) = self.compact_host(day, &host, host_day, now).await else {
                    continue;
                };
                let is_of_host = matches!(error, CompactError::Query(_) | CompactError::List(_));
                failures += usize::from(!is_of_host);
                if MAX_FAILURES <= failures {
                    return Err(error);
                }
                self.metrics.store_error("compact");
                warn!("failed to pack results of {host} of {day}: {error}");
                failed = failed.or((!is_of_host).then_some(error));
            }
        }
        failed.map_or(Ok(()), Err)
    }

    async fn host_days(&self, day: NaiveDate) -> object_store::Result<BTreeMap<String, HostDay>> {
        let mut hosts: BTreeMap<String, HostDay> = BTreeMap::new();
        let parts = |path: &Path| {
            let (folder, file) = path.as_ref().rsplit_once('/')?;
            let (_, host) = folder.rsplit_once("/host=")?;
            Some((host.to_owned(), file.to_owned()))
        };
        for object in self.store.list(&format!("{LISTS}/day={day}")).await? {
            let Some((host, file)) = parts(&object.location) else { continue };
            let Some(number) = file.strip_suffix(".json").and_then(|n| n.parse().ok()) else {
                continue;
            };
            let list = (object.location, object.last_modified);
            hosts.entry(host).or_default().lists.insert(number, list);
        }
        for object in self.store.list(&format!("{RESULTS}/{LAST}/day={day}")).await? {
            let Some((host, file)) = parts(&object.location) else { continue };
            let Some(name) = file.strip_suffix(".parquet").map(str::to_owned) else { continue };
            let host_day = hosts.entry(host).or_default();
            let parent = format!("{RESULTS}/{LAST}");
            if name.starts_with(PACK) {
                host_day.packs.push(name);
            } else if DayWindow::from_path(&object.location, &parent, ".parquet").is_some() {
                host_day.windows.push((name, object.last_modified));
            }
        }
        Ok(hosts)
    }

    async fn compact_host(
        &self,
        day: NaiveDate,
        host: &str,
        mut host_day: HostDay,
        now: DateTime<Utc>,
    ) -> Result<(), CompactError> {
        let (number, packs) = match host_day.lists.last_key_value() {
            Some((number, (path, _))) => {
                (*number, self.engine.read_packs(path).await.map_err(CompactError::List)?)
            }
            None => (0, Arc::default()),
        };
        self.remove_replaced(day, host, &host_day, &packs, now).await?;
        for _ in 0..MAX_DAMAGED {
            let plan = plan(&packs, &host_day.windows, day, now, &self.config.roll_up);
            let Some(plan) = plan else { break };
            match self.pack(day, host, number + 1, &packs, &plan).await {
                Err(CompactError::Query(QueryError::Damaged(object)))
                    if host_day.leave_out(&object) =>
                {
                    self.metrics.store_error("results");
                    warn!("{object} can't be read, and is packed without");
                }
                done => return done,
            }
        }
        Ok(())
    }

    async fn pack(
        &self,
        day: NaiveDate,
        host: &str,
        number: u32,
        before: &Packs,
        plan: &Plan,
    ) -> Result<(), CompactError> {
        let Plan { windows, packs, slice_s } = plan;
        let mut pack = Pack::from_windows(*slice_s, windows.iter(), packs);
        let content = format!("{slice_s} {:?} {packs:?}", pack.windows);
        pack.name = format!("{PACK}{number:08}-{}", &hash(&content)[..16]);
        // The table by which packs are found is the first, and the last to be removed.
        let mut tables: Vec<_> = tables().collect();
        tables.reverse();
        for (table, _) in tables {
            let mut file = tempfile::NamedTempFile::new_in(&self.receiver.spool)?;
            let inputs = Inputs { day, host, windows, packs, slice_s: *slice_s };
            self.engine.rewrite(table, inputs, file.reopen()?).await?;
            recording::seal::seal(file.as_file_mut())?;
            let path = result(table, day, host, &pack.name);
            self.store.create_from(&path, file.path()).await?;
            // It may be another server's.
            let size = self.store.size(&path).await?.unwrap_or(0);
            pack.bytes.insert(table.to_owned(), size);
        }
        let is_kept = |old: &&Arc<Pack>| !packs.iter().any(|merged| merged.name == old.name);
        let mut list = Packs { packs: before.packs.iter().filter(is_kept).cloned().collect() };
        list.packs.push(Arc::new(pack));
        let path = Path::from(format!("{LISTS}/day={day}/host={host}/{number:08}.json"));
        if self.store.create(&path, list.content().into()).await? == Created::Now {
            self.metrics.packs.inc();
        }
        Ok(())
    }

    /// Says in the next list of packs that one is damaged, and has its windows analysed again: how many are stored.
    pub(crate) async fn give_up_pack(
        &self,
        day: NaiveDate,
        host: &str,
        name: &str,
    ) -> Result<Option<usize>, CompactError> {
        let host_days = self.host_days(day).await?;
        let last = host_days.get(host).and_then(|host_day| host_day.lists.last_key_value());
        let Some((number, (path, _))) = last else { return Ok(None) };
        let packs = self.engine.read_packs(path).await.map_err(CompactError::List)?;
        let given_up = |pack: &Arc<Pack>| {
            let is_damaged = pack.is_damaged || pack.name == name;
            Arc::new(Pack { is_damaged, ..pack.as_ref().clone() })
        };
        let next = Packs { packs: packs.packs.iter().map(given_up).collect() };
        if next == *packs {
            return Ok(None);
        }
        let path = Path::from(format!("{LISTS}/day={day}/host={host}/{:08}.json", number + 1));
        if self.store.create(&path, next.content().into()).await? == Created::Before {
            // Of another pack: this one is given up the next time.
            let source = "another list was made meanwhile".into();
            return Err(object_store::Error::AlreadyExists { path: path.into(), source }.into());
        }
        let mut n_stored = 0;
        let mut add = |time, window| {
            n_stored += 1;
            self.queue.add_found(time, window);
        };
        self.without_results_of(day, &mut add).await?;
        Ok(Some(n_stored))
    }

    async fn remove_replaced(
        &self,
        day: NaiveDate,
        host: &str,
        host_day: &HostDay,
        packs: &Packs,
        now: DateTime<Utc>,
    ) -> object_store::Result<()> {
        let Some((last, (_, made))) = host_day.lists.last_key_value() else { return Ok(()) };
        if now - made < REPLACED_STAYS {
            return Ok(());
        }
        // Another server may be making one of the next list's packs.
        let is_old = |name: &&String| {
            let number = name.strip_prefix(PACK).and_then(|rest| rest.split('-').next());
            let number = number.and_then(|number| number.parse::<u32>().ok());
            let is_known = packs.packs.iter().any(|pack| pack.name == **name);
            number.is_some_and(|number| number <= *last) && !is_known
        };
        let windows = host_day.windows.iter().map(|(name, _)| name);
        let windows = windows.filter(|name| packs.contains(name));
        for name in windows.chain(host_day.packs.iter().filter(is_old)) {
            for (table, _) in tables() {
                self.store.delete(&result(table, day, host, name)).await?;
            }
        }
        for (_, (path, _)) in host_day.lists.range(..last) {
            self.store.delete(path).await?;
        }
        Ok(())
    }
}

impl HostDay {
    /// Does without a window whose results can't be read; false: the object is a pack's.
    fn leave_out(&mut self, object: &str) -> bool {
        let name = object.rsplit('/').next().unwrap_or_default().trim_end_matches(".parquet");
        let before = self.windows.len();
        self.windows.retain(|(window, _)| window != name);
        self.windows.len() < before
    }
}

fn result(table: &str, day: NaiveDate, host: &str, name: &str) -> Path {
    Path::from(format!("{RESULTS}/{table}/day={day}/host={host}/{name}.parquet"))
}

#[cfg(test)]
mod test;
