//! When windows came into the store, and which of them have no results yet.
//!
//! ```text
//!  raw/v1/day=DAY/host=HOST/BOOT-START.window   what a look lists of it: the last windows of each boot
//!    BOOT-...  taken  taken  taken | new  waiting
//!                            ^ the last that was taken: the list begins after it
//! ```
//! A day has 8,640 windows of each host, and results of a few hours: those are packed, and their own objects removed. So
//! what a look costs is the same at any time of the day.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use chrono::{DateTime, Days, NaiveDate, Utc};
use futures_util::{FutureExt, StreamExt, TryStreamExt};
use model::BootId;
use object_store::ObjectMeta;
use object_store::path::Path;
use recording::window::HostName;

use super::{Arrived, State};
use crate::Server;
use crate::object_names::{DayWindow, RAW, day_of_prefix};

/// Hosts that are listed at the same time.
const AT_ONCE: usize = 16;

/// The last windows of a host that were taken.
#[derive(Debug, Default)]
struct Taken {
    /// Of the last day; those of days before are late.
    day: NaiveDate,
    boots: HashMap<(NaiveDate, BootId), DayWindow>,
}

impl Taken {
    fn add(&mut self, window: &DayWindow) {
        self.day = self.day.max(window.day);
        let last = self.boots.entry((window.day, window.id.boot)).or_insert_with(|| window.clone());
        if last.id.start < window.id.start {
            *last = window.clone();
        }
    }

    /// The name of the last window of the same boot and day that was taken.
    fn last(&self, window: &Path) -> Option<Path> {
        let DayWindow { day, id } = DayWindow::from_path(window, RAW, ".window")?;
        self.boots.get(&(day, id.boot)).map(DayWindow::raw)
    }
}

impl State {
    fn taken(&self, hosts: impl Iterator<Item = HostName>) -> BTreeMap<HostName, Arc<Taken>> {
        let mut found: BTreeMap<_, Taken> = hosts.map(|host| (host, Taken::default())).collect();
        for window in &self.seen {
            if let Some(taken) = found.get_mut(&window.id.host) {
                taken.add(window);
            }
        }
        found.into_iter().map(|(host, taken)| (host, Arc::new(taken))).collect()
    }
}

/// The days on which windows begin that come now: a host's clock may be another one.
pub(super) fn days(now: DateTime<Utc>) -> [NaiveDate; 3] {
    let today = now.date_naive();
    [today - Days::new(1), today, today + Days::new(1)]
}

/// Of objects of windows those that came since then, and when.
pub(super) fn came_since(
    since: DateTime<Utc>,
    objects: Vec<ObjectMeta>,
    prefix: &str,
    end: &str,
) -> impl Iterator<Item = Arrived> {
    let came = objects.into_iter().filter(move |object| since <= object.last_modified);
    came.filter_map(move |object| {
        Some((object.last_modified, DayWindow::from_path(&object.location, prefix, end)?))
    })
}

impl Server {
    /// Windows of the hosts of `new` that came since then. Those before one of their boot that was taken are left out: they
    /// are late, whenever they have results.
    pub(super) async fn came_with(
        &self,
        new: &[Arrived],
        now: DateTime<Utc>,
        since: DateTime<Utc>,
    ) -> object_store::Result<Vec<Arrived>> {
        if new.is_empty() {
            return Ok(Vec::new());
        }
        let hosts = new.iter().map(|(_, window)| window.id.host.clone());
        let hosts = self.watch.lock().taken(hosts);
        let stored = self.store.prefixes(RAW).await?;
        let stored: Vec<_> = stored.iter().filter_map(day_of_prefix).collect();
        let days = days(now).into_iter().filter(|day| stored.contains(day));
        let lists = days.flat_map(|day| {
            let hosts = hosts.iter().filter(move |(_, taken)| taken.day <= day);
            hosts.map(move |(host, taken)| {
                (format!("{RAW}/day={day}/host={host}"), Arc::clone(taken))
            })
        });
        let lists: Vec<_> = lists.collect();
        let listed = lists.into_iter().map(|(folder, taken)| {
            let store = self.store.clone();
            async move { store.list_without(&folder, |window| taken.last(window)).await }.boxed()
        });
        let listed = futures_util::stream::iter(listed).buffer_unordered(AT_ONCE);
        let objects: Vec<Vec<ObjectMeta>> = listed.try_collect().await?;
        Ok(came_since(since, objects.concat(), RAW, ".window").collect())
    }
}

#[cfg(test)]
mod test;
