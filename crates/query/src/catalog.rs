//! Which objects hold the results of which windows. A window counts when its row in `hosts`, which is stored last, is
//! there; so a query sees all tables of a window, or none.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use chrono::{DateTime, Days, NaiveDate, Utc};
use futures_util::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore};

/// Where the windows are, their results, and the table that is stored last.
const RAW: Root<'_> = Root { prefix: "raw/v1", table: None, end: ".window" };
const LAST: Root<'_> = Root::table("hosts");
const RESULTS: &str = "results/v1";
/// How long a list is used again.
const FRESH: Duration = Duration::from_secs(5);
/// Lists that are remembered.
const MAX_LISTS: usize = 4096;
/// Windows of one query; of more, the newest count.
const MAX_WINDOWS: usize = 50_000;

/// Where objects of windows lie, by day and host.
#[derive(Debug, Clone, Copy)]
struct Root<'a> {
    prefix: &'a str,
    table: Option<&'a str>,
    end: &'a str,
}

impl<'a> Root<'a> {
    const fn table(table: &'a str) -> Self {
        Self { prefix: RESULTS, table: Some(table), end: ".parquet" }
    }

    fn path(&self) -> String {
        let table = self.table.map_or(String::new(), |table| format!("/{table}"));
        format!("{}{table}", self.prefix)
    }
}

/// Which results a query is about. Absent: all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    /// The earliest instant.
    pub from: Option<DateTime<Utc>>,
    /// The instant after the last.
    pub to: Option<DateTime<Utc>>,
    /// Of one host.
    pub host: Option<String>,
}

impl Scope {
    fn has(&self, day: NaiveDate) -> bool {
        // A window that begins before midnight ends after it.
        let from = self.from.map(|time| time.date_naive() - Days::new(1));
        let to = self.to.map(|time| time.date_naive());
        from.is_none_or(|from| from <= day) && to.is_none_or(|to| day <= to)
    }
}

/// Windows whose results a query sees.
#[derive(Debug, Clone, Default)]
pub(crate) struct Windows {
    /// `day=.../host=.../BOOT-START`.
    pub(crate) stems: BTreeSet<String>,
    /// Of the scope, but too many.
    left_out: usize,
    /// Stored, but without results so far.
    without_results: usize,
    /// With results that can't be read.
    damaged: usize,
}

impl Windows {
    /// Does without the window that an object belongs to; false: it has none.
    pub(crate) fn leave_out(&mut self, object: &str) -> bool {
        let begin = object.find("day=").unwrap_or(0);
        let is_out = self.stems.remove(object[begin..].trim_end_matches(".parquet"));
        self.damaged += usize::from(is_out);
        is_out
    }

    /// Why an answer about them is not all there is.
    pub(crate) fn lacks(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        if 0 < self.left_out {
            let (seen, more) = (self.stems.len(), self.left_out);
            reasons.push(format!("{more} older windows were left out: {seen} were looked at"));
        }
        if 0 < self.without_results {
            reasons.push(format!("{} windows have no results yet", self.without_results));
        }
        if 0 < self.damaged {
            reasons.push(format!("results of {} windows can't be read", self.damaged));
        }
        reasons
    }
}

/// The result object that a text names.
pub(crate) fn object_in(text: &str) -> Option<&str> {
    let rest = &text[text.find(RESULTS)?..];
    let end = rest.find(".parquet")? + ".parquet".len();
    Some(&rest[..end])
}

type List = Arc<Vec<(String, ObjectMeta)>>;

/// Lists objects, and remembers the lists for a moment.
#[derive(Debug)]
pub(crate) struct Catalog {
    pub(crate) objects: Arc<dyn ObjectStore>,
    lists: Mutex<HashMap<String, (Instant, List)>>,
}

impl Catalog {
    pub(crate) fn new(objects: Arc<dyn ObjectStore>) -> Self {
        Self { objects, lists: Mutex::default() }
    }

    /// The windows of a scope that have results.
    pub(crate) async fn windows(&self, scope: &Scope) -> object_store::Result<Windows> {
        let mut windows = Windows::default();
        for day in self.days(LAST, scope).await?.into_iter().rev() {
            let list = self.list(LAST, day, scope).await?;
            for (stem, _) in list.iter().rev() {
                if MAX_WINDOWS <= windows.stems.len() {
                    windows.left_out += 1;
                } else {
                    windows.stems.insert(stem.clone());
                }
            }
        }
        if windows.left_out == 0 {
            for day in self.days(RAW, scope).await? {
                let list = self.list(RAW, day, scope).await?;
                let is_new = |(stem, _): &&(String, _)| !windows.stems.contains(stem);
                windows.without_results += list.iter().filter(is_new).count();
            }
        }
        Ok(windows)
    }

    /// The objects of a table with the results of these windows.
    pub(crate) async fn files(
        &self,
        table: &str,
        scope: &Scope,
        windows: &Windows,
    ) -> object_store::Result<Vec<ObjectMeta>> {
        let (table, mut files) = (Root::table(table), Vec::new());
        for day in self.days(table, scope).await? {
            let list = self.list(table, day, scope).await?;
            let seen = list.iter().filter(|(stem, _)| windows.stems.contains(stem));
            files.extend(seen.map(|(_, object)| object.clone()));
        }
        Ok(files)
    }

    async fn days(&self, root: Root<'_>, scope: &Scope) -> object_store::Result<Vec<NaiveDate>> {
        let prefix = Path::from(root.path());
        let found = self.objects.list_with_delimiter(Some(&prefix)).await?;
        let day = |path: &Path| path.filename()?.strip_prefix("day=")?.parse().ok();
        let days: BTreeSet<_> = found.common_prefixes.iter().filter_map(day).collect();
        Ok(days.into_iter().filter(|day| scope.has(*day)).collect())
    }

    async fn list(
        &self,
        root: Root<'_>,
        day: NaiveDate,
        scope: &Scope,
    ) -> object_store::Result<List> {
        let host = scope.host.as_ref().map_or(String::new(), |host| format!("/host={host}"));
        let prefix = format!("{}/day={day}{host}", root.path());
        if let Some(list) = self.remembered(&prefix) {
            return Ok(list);
        }
        let listed: Vec<ObjectMeta> =
            self.objects.list(Some(&Path::from(prefix.as_str()))).try_collect().await?;
        let root_path = root.path();
        let stem = |object: ObjectMeta| {
            let stem = object.location.as_ref().strip_prefix(&root_path)?.strip_prefix('/')?;
            Some((stem.strip_suffix(root.end)?.to_owned(), object))
        };
        let mut list: Vec<_> = listed.into_iter().filter_map(stem).collect();
        list.sort_by(|a, b| a.0.cmp(&b.0));
        let list = Arc::new(list);
        let mut lists = self.lists.lock().unwrap_or_else(PoisonError::into_inner);
        if MAX_LISTS <= lists.len() {
            lists.clear();
        }
        lists.insert(prefix, (Instant::now(), Arc::clone(&list)));
        Ok(list)
    }

    fn remembered(&self, prefix: &str) -> Option<List> {
        let mut lists = self.lists.lock().unwrap_or_else(PoisonError::into_inner);
        lists.retain(|_, (time, _)| time.elapsed() < FRESH);
        lists.get(prefix).map(|(_, list)| Arc::clone(list))
    }
}
