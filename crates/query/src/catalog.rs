//! Which objects hold the results of which windows. A window counts when it is in a pack, or its own row in `hosts`, which is
//! stored last, is there; so a query sees all tables of a window, or none, and none twice.
//!
//! The lists of packs are read first: what they don't name stays where it is for hours.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use chrono::{DateTime, Days, NaiveDate, Utc};
use futures_util::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};

use crate::checked::Damage;
use crate::packs::{LISTS, PACK, Pack, Packs};
use crate::rewrite::SLICE_S;

/// Where the windows are, their results, and the table that is stored last.
const RAW: Root<'_> = Root { prefix: "raw/v1", table: None, end: ".window" };
const FAILED: Root<'_> = Root { prefix: "failed/v1", table: None, end: ".json" };
const LAST: Root<'_> = Root::table("hosts");
const PACKS: Root<'_> = Root { prefix: LISTS, table: None, end: ".json" };
pub(crate) const RESULTS: &str = "results/v1";
/// Lists of packs that are read at the same time.
const READING: usize = 32;
/// How long a list is used again.
const FRESH: Duration = Duration::from_secs(5);
/// At most one part in this many of the time is spent on listing windows without results.
const PART: u32 = 20;
/// Lists that are remembered.
const MAX_LISTS: usize = 4096;
/// Of `day=YYYY-MM-DD`.
const DAY_LENGTH: usize = 14;
/// Bytes of a list of packs: a day's has some 100 KiB.
const MAX_LIST_BYTES: u64 = 16 << 20;
/// Objects of one query; of more, the newest count.
const MAX_OBJECTS: usize = 50_000;

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
    pub host: Option<String>,
}

impl Scope {
    /// What to say of a range that does not begin and end between slices of this length.
    pub(crate) fn cut_slices(&self, slice_s: u32) -> Option<String> {
        let cuts =
            |time: DateTime<Utc>| time.timestamp_micros() % (i64::from(slice_s) * 1_000_000) != 0;
        let is_cut = SLICE_S < slice_s && [self.from, self.to].into_iter().flatten().any(cuts);
        is_cut.then(|| {
            format!("old results have slices of {slice_s} s: those that begin within the range count as a whole")
        })
    }

    fn has(&self, day: NaiveDate) -> bool {
        // A window that begins before midnight ends after it.
        let from = self.from.map(|time| time.date_naive() - Days::new(1));
        let to = self.to.map(|time| time.date_naive());
        from.is_none_or(|from| from <= day) && to.is_none_or(|to| day <= to)
    }
}

/// Windows whose results a query sees.
#[derive(Debug, Clone)]
pub(crate) struct Windows {
    /// Those with results of their own, `day=.../host=.../BOOT-START`.
    stems: BTreeSet<String>,
    /// Packs, in the same way.
    packs: BTreeMap<String, Arc<Pack>>,
    packed: usize,
    /// When they were listed: what is known from before does not count.
    found: Instant,
    /// Of the scope, but too many.
    left_out: usize,
    /// Stored, but without results so far.
    without_results: usize,
    /// Stored, and there will be none.
    failed: usize,
    /// With results that can't be read.
    damaged: usize,
    /// Lists of packs that can't be read.
    damaged_lists: usize,
}

impl Windows {
    fn none(found: Instant) -> Self {
        let (stems, packs) = (BTreeSet::new(), BTreeMap::new());
        let (packed, left_out, without_results, failed) = (0, 0, 0, 0);
        let (damaged, damaged_lists) = (0, 0);
        Self {
            stems,
            packs,
            packed,
            found,
            left_out,
            without_results,
            failed,
            damaged,
            damaged_lists,
        }
    }

    /// Some of a day and host.
    pub(crate) fn chosen(
        day: NaiveDate,
        host: &str,
        windows: &[String],
        packs: &[Arc<Pack>],
    ) -> Self {
        let stem = |name: &str| format!("day={day}/host={host}/{name}");
        let stems = windows.iter().map(|name| stem(name)).collect();
        let packs = packs.iter().map(|pack| (stem(&pack.name), Arc::clone(pack))).collect();
        Self { stems, packs, ..Self::none(Instant::now()) }
    }

    /// Lengths of the shortest and the longest slices.
    pub(crate) fn slices_s(&self) -> (u32, u32) {
        let packs = || self.packs.values().map(|pack| pack.slice_s);
        let single = (!self.stems.is_empty()).then_some(SLICE_S);
        let shortest = packs().chain(single).min().unwrap_or(SLICE_S);
        (shortest, packs().max().unwrap_or(SLICE_S))
    }

    /// How many.
    pub(crate) fn len(&self) -> usize {
        self.stems.len() + self.packed
    }

    fn n_objects(&self) -> usize {
        self.stems.len() + self.packs.len()
    }

    /// Whether a window, `day=.../host=.../BOOT-START`, is one of them.
    fn has(&self, stem: &str) -> bool {
        self.stems.contains(stem)
            || stem.rsplit_once('/').is_some_and(|(folder, window)| {
                let begin = format!("{folder}/{PACK}");
                let mut packs = self.packs.range(begin.clone()..);
                packs
                    .by_ref()
                    .take_while(|(name, _)| name.starts_with(&begin))
                    .any(|(_, pack)| pack.contains(window))
            })
    }

    /// Names of their objects.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.stems.iter().chain(self.packs.keys()).map(String::as_str)
    }

    /// Those whose objects are not in a set.
    pub(crate) fn without(&self, seen: &HashSet<String>) -> Self {
        let stems = self.stems.iter().filter(|stem| !seen.contains(*stem)).cloned().collect();
        let packs = self.packs.iter().filter(|(stem, _)| !seen.contains(*stem));
        let packs: BTreeMap<_, _> =
            packs.map(|(stem, pack)| (stem.clone(), Arc::clone(pack))).collect();
        let packed = packs.values().map(|pack| pack.len()).sum();
        Self { stems, packs, packed, ..Self::none(self.found) }
    }

    /// In parts of so many windows and objects, those of the newest day first.
    pub(crate) fn in_parts(&self, most_windows: usize, most_objects: usize) -> Vec<Self> {
        let single = self.stems.iter().map(|stem| (stem, None));
        let mut all: Vec<_> =
            single.chain(self.packs.iter().map(|(stem, pack)| (stem, Some(pack)))).collect();
        // Names begin with the day; single windows are newer than packs.
        all.sort_by_key(|(stem, pack)| std::cmp::Reverse((stem.get(..DAY_LENGTH), pack.is_none())));
        let mut parts: Vec<Self> = Vec::new();
        for (stem, pack) in all {
            let is_full =
                |part: &Self| most_windows <= part.len() || most_objects <= part.n_objects();
            if parts.last().is_none_or(is_full) {
                parts.push(Self::none(self.found));
            }
            let Some(part) = parts.last_mut() else { continue };
            match pack {
                Some(pack) => {
                    part.packed += pack.len();
                    part.packs.insert(stem.clone(), Arc::clone(pack));
                }
                None => drop(part.stems.insert(stem.clone())),
            }
        }
        parts
    }

    /// How many windows an object has.
    pub(crate) fn len_of(&self, name: &str) -> usize {
        self.packs.get(name).map_or(1, |pack| pack.len())
    }

    /// Whether an object, of any table, holds results of some of them.
    pub(crate) fn has_object(&self, object: &str) -> bool {
        let stem = object.find("day=").and_then(|at| object[at..].strip_suffix(".parquet"));
        stem.is_some_and(|stem| self.stems.contains(stem) || self.packs.contains_key(stem))
    }

    /// Does without windows and packs, `day=.../host=.../NAME`; false: none is one of them.
    pub(crate) fn leave_out_all(&mut self, stems: &[String]) -> bool {
        let before = self.damaged;
        for stem in stems {
            if let Some(pack) = self.packs.remove(stem) {
                self.packed = self.packed.saturating_sub(pack.len());
                self.damaged += pack.len();
            } else {
                self.damaged += usize::from(self.stems.remove(stem));
            }
        }
        before < self.damaged
    }

    /// Why an answer about them is not all there is.
    pub(crate) fn lacks(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        if 0 < self.left_out {
            let (seen, more) = (self.len(), self.left_out);
            reasons.push(format!("{more} older windows were left out, {seen} were read"));
        }
        if 0 < self.without_results {
            reasons.push(format!("{} windows have no results yet", self.without_results));
        }
        if 0 < self.failed {
            reasons.push(format!("{} windows can't be analysed", self.failed));
        }
        if 0 < self.damaged {
            reasons.push(format!("results of {} windows can't be read", self.damaged));
        }
        if 0 < self.damaged_lists {
            let text = "can't be read: results of further windows may be missing";
            reasons.push(format!("{} lists of packs {text}", self.damaged_lists));
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

/// The last list of packs of each `day=.../host=...` that can be read.
#[derive(Debug, Default)]
pub struct LastPacks {
    folders: BTreeMap<String, Arc<Packs>>,
    /// Later lists that can't be read, and why.
    pub damaged: Vec<String>,
}

impl LastPacks {
    /// Whether a window, `BOOT-START`, of a folder, `day=.../host=...`, is in a pack.
    #[must_use]
    pub fn contains(&self, folder: &str, window: &str) -> bool {
        self.folders.get(folder).is_some_and(|packs| packs.contains(window))
    }

    /// How many windows of damaged packs are in no other, and have no results of their own.
    fn damaged_windows(&self, has_own: impl Fn(&str) -> bool) -> usize {
        let mut found = 0;
        for (folder, packs) in &self.folders {
            let damaged = packs.packs.iter().filter(|pack| pack.is_damaged);
            let names: BTreeSet<_> = damaged.flat_map(|pack| pack.names()).collect();
            let is_lost =
                |name: &&String| !packs.contains(name) && !has_own(&format!("{folder}/{name}"));
            found += names.iter().filter(is_lost).count();
        }
        found
    }
}

/// Lists objects, and remembers the lists for a moment.
#[derive(Debug)]
pub(crate) struct Catalog {
    pub(crate) objects: Arc<dyn ObjectStore>,
    pub(crate) damage: Arc<Damage>,
    lists: Mutex<HashMap<String, (Instant, List)>>,
    /// Lists of packs, which never change.
    packs: Mutex<HashMap<Path, Arc<Packs>>>,
    without_results: Mutex<HashMap<String, WithoutResults>>,
}

/// Windows of a day that had no results.
#[derive(Debug)]
struct WithoutResults {
    made: Instant,
    stays: Duration,
    /// By stem: whether there will never be any.
    stems: Arc<BTreeMap<String, bool>>,
}

impl Catalog {
    pub(crate) fn new(objects: Arc<dyn ObjectStore>, damage: Arc<Damage>) -> Self {
        Self {
            objects,
            damage,
            lists: Mutex::default(),
            packs: Mutex::default(),
            without_results: Mutex::default(),
        }
    }

    /// Fails if the store does not give an object: then its content is not known to be damaged.
    pub(crate) async fn is_given(&self, object: &str) -> object_store::Result<()> {
        match self.objects.head(&Path::from(object)).await {
            Ok(_) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The windows of a scope that have results, and how many have none yet.
    pub(crate) async fn windows(&self, scope: &Scope) -> object_store::Result<Windows> {
        let mut windows = self.with_results(scope).await?;
        if windows.left_out == 0 {
            for day in self.days(RAW, scope).await? {
                let stems = self.without_results(day, scope, &windows).await?;
                let new = stems.iter().filter(|(stem, _)| !windows.has(stem));
                let (new, failed) =
                    new.fold((0, 0), |(n, failed), (_, is)| (n + 1, failed + usize::from(*is)));
                windows.without_results += new - failed;
                windows.failed += failed;
            }
        }
        Ok(windows)
    }

    /// The windows of a scope that have results.
    pub(crate) async fn with_results(&self, scope: &Scope) -> object_store::Result<Windows> {
        let fresh = Instant::now().checked_sub(FRESH);
        let begin = fresh.unwrap_or_else(Instant::now);
        let mut packed = LastPacks::default();
        for day in self.days(PACKS, scope).await? {
            let LastPacks { folders, damaged } = self.packs(day, scope, begin).await?;
            packed.folders.extend(folders);
            packed.damaged.extend(damaged);
        }
        let mut windows = Windows::none(begin);
        windows.damaged_lists = packed.damaged.len();
        let days = self.days(LAST, scope).await?;
        for day in days.into_iter().rev() {
            let day_of = format!("day={day}/");
            for (folder, packs) in packed.folders.range(day_of.clone()..) {
                if !folder.starts_with(&day_of) {
                    break;
                }
                windows.add_packs(folder, packs);
            }
            let (listed, list) = self.list(LAST, day, scope, begin).await?;
            // Other tables that are listed later have what this list has.
            windows.found = windows.found.max(listed);
            for (stem, _) in list.iter().rev() {
                windows.add(stem, &packed);
            }
        }
        windows.damaged += packed.damaged_windows(|stem| windows.stems.contains(stem));
        Ok(windows)
    }

    /// Windows of a day that had no results when they were listed. Most lists of windows take long and say nothing new.
    async fn without_results(
        &self,
        day: NaiveDate,
        scope: &Scope,
        windows: &Windows,
    ) -> object_store::Result<Arc<BTreeMap<String, bool>>> {
        let (prefix, failed) = (prefix(RAW, day, scope), prefix(FAILED, day, scope));
        let remembered = || self.without_results.lock().unwrap_or_else(PoisonError::into_inner);
        remembered().retain(|_, known| known.made.elapsed() < known.stays);
        let known = remembered().get(&prefix).map(|known| Arc::clone(&known.stems));
        if let Some(stems) = known {
            return Ok(stems);
        }
        let (made, mut stems) = (Instant::now(), BTreeMap::new());
        let mut listed = self.objects.list(Some(&Path::from(prefix.as_str())));
        while let Some(object) = listed.try_next().await? {
            let stem = stem(RAW, &object).filter(|stem| !windows.has(stem));
            stems.extend(stem.map(|stem| (stem, false)));
        }
        if !stems.is_empty() {
            let mut listed = self.objects.list(Some(&Path::from(failed)));
            while let Some(object) = listed.try_next().await? {
                let known = stem(FAILED, &object).and_then(|stem| stems.get_mut(&stem));
                known.into_iter().for_each(|is_failed| *is_failed = true);
            }
        }
        let (stays, stems) = (FRESH.max(made.elapsed() * PART), Arc::new(stems));
        let known = WithoutResults { made, stays, stems: Arc::clone(&stems) };
        let mut remembered = remembered();
        if MAX_LISTS <= remembered.len() {
            remembered.clear();
        }
        remembered.insert(prefix, known);
        Ok(stems)
    }

    /// The last lists of packs of a day. In place of one that can't be read counts the one before, if it is still there.
    pub(crate) async fn packs(
        &self,
        day: NaiveDate,
        scope: &Scope,
        begin: Instant,
    ) -> object_store::Result<LastPacks> {
        let (_, list) = self.list(PACKS, day, scope, begin).await?;
        // The list is ordered: of a folder's the last one is the last here.
        let mut folders: BTreeMap<String, Vec<Path>> = BTreeMap::new();
        for (stem, object) in list.iter() {
            let Some((folder, _)) = stem.rsplit_once('/') else { continue };
            folders.entry(folder.to_owned()).or_default().push(object.location.clone());
        }
        let read = folders.into_iter().map(async |(folder, paths)| {
            let mut damaged = Vec::new();
            for path in paths.into_iter().rev() {
                match self.read_packs(&path).await {
                    Ok(packs) => return (Some((folder, packs)), damaged),
                    Err(error) => damaged.push(format!("{path}: {error}")),
                }
            }
            (None, damaged)
        });
        let mut last = LastPacks::default();
        let mut read = std::pin::pin!(futures_util::stream::iter(read).buffer_unordered(READING));
        while let Some((packs, damaged)) = read.next().await {
            last.folders.extend(packs);
            last.damaged.extend(damaged);
        }
        Ok(last)
    }

    /// A list of packs.
    pub(crate) async fn read_packs(&self, path: &Path) -> object_store::Result<Arc<Packs>> {
        let remembered = || self.packs.lock().unwrap_or_else(PoisonError::into_inner);
        let known = remembered().get(path).map(Arc::clone);
        if let Some(packs) = known {
            return Ok(packs);
        }
        let damaged = |source| object_store::Error::Generic { store: "list of packs", source };
        let found = self.objects.get(path).await?;
        if MAX_LIST_BYTES < found.meta.size {
            return Err(damaged(format!("it has {} bytes", found.meta.size).into()));
        }
        let content = found.bytes().await?;
        let packs = Packs::parse(&content).map_err(|error| damaged(error.into()))?;
        let packs = Arc::new(packs);
        let mut remembered = remembered();
        if MAX_LISTS <= remembered.len() {
            remembered.clear();
        }
        remembered.insert(path.clone(), Arc::clone(&packs));
        Ok(packs)
    }

    /// The objects of a table with the results of these windows. If some are missing, these are damage, and an error.
    pub(crate) async fn files(
        &self,
        table: &str,
        scope: &Scope,
        windows: &Windows,
    ) -> object_store::Result<Vec<ObjectMeta>> {
        let object = |(stem, pack): (&String, &Arc<Pack>)| {
            let folder = stem.rsplit_once('/').map_or("", |(folder, _)| folder);
            pack.object(table, folder)
        };
        let mut files: Vec<_> = windows.packs.iter().map(object).collect();
        let table = Root::table(table);
        let mut missing: BTreeSet<&String> = windows.stems.iter().collect();
        for day in self.days(table, scope).await? {
            let (_, list) = self.list(table, day, scope, windows.found).await?;
            let seen = list.iter().filter(|(stem, _)| missing.remove(stem));
            files.extend(seen.map(|(_, object)| object.clone()));
        }
        let name = |stem: &String| Path::from(format!("{}/{stem}{}", table.path(), table.end));
        let missing: Vec<_> = missing.into_iter().map(name).collect();
        missing.iter().for_each(|object| self.damage.add(object));
        match missing.first() {
            None => Ok(files),
            Some(object) => {
                let (path, source) = (object.to_string(), "the results of a window".into());
                Err(object_store::Error::NotFound { path, source })
            }
        }
    }

    async fn days(&self, root: Root<'_>, scope: &Scope) -> object_store::Result<Vec<NaiveDate>> {
        let prefix = Path::from(root.path());
        let found = self.objects.list_with_delimiter(Some(&prefix)).await?;
        let day = |path: &Path| path.filename()?.strip_prefix("day=")?.parse().ok();
        let days: BTreeSet<_> = found.common_prefixes.iter().filter_map(day).collect();
        Ok(days.into_iter().filter(|day| scope.has(*day)).collect())
    }

    /// A list that is not older than `begin`, and when it was begun.
    async fn list(
        &self,
        root: Root<'_>,
        day: NaiveDate,
        scope: &Scope,
        begin: Instant,
    ) -> object_store::Result<(Instant, List)> {
        let prefix = prefix(root, day, scope);
        if let Some(list) = self.remembered(&prefix, begin) {
            return Ok(list);
        }
        let listed_at = Instant::now();
        let listed: Vec<ObjectMeta> =
            self.objects.list(Some(&Path::from(prefix.as_str()))).try_collect().await?;
        let named = |object: ObjectMeta| Some((stem(root, &object)?, object));
        let mut list: Vec<_> = listed.into_iter().filter_map(named).collect();
        list.sort_by(|a, b| a.0.cmp(&b.0));
        let list = Arc::new(list);
        let mut lists = self.lists.lock().unwrap_or_else(PoisonError::into_inner);
        if MAX_LISTS <= lists.len() {
            lists.clear();
        }
        lists.insert(prefix, (listed_at, Arc::clone(&list)));
        Ok((listed_at, list))
    }

    /// A list that was begun after an instant, and when.
    fn remembered(&self, prefix: &str, begin: Instant) -> Option<(Instant, List)> {
        let mut lists = self.lists.lock().unwrap_or_else(PoisonError::into_inner);
        lists.retain(|_, (time, _)| time.elapsed() < FRESH);
        let (time, list) = lists.get(prefix)?;
        (begin <= *time).then(|| (*time, Arc::clone(list)))
    }
}

impl Windows {
    fn add_packs(&mut self, folder: &str, packs: &Packs) {
        for pack in packs.packs.iter().filter(|pack| !pack.is_damaged) {
            if MAX_OBJECTS <= self.n_objects() {
                self.left_out += pack.len();
            } else {
                self.packed += pack.len();
                self.packs.insert(format!("{folder}/{}", pack.name), Arc::clone(pack));
            }
        }
    }

    fn add(&mut self, stem: &str, packed: &LastPacks) {
        let is_pack = stem.rsplit('/').next().is_some_and(|name| name.starts_with(PACK));
        if is_pack || is_packed(stem, packed) {
            return;
        }
        if MAX_OBJECTS <= self.n_objects() {
            self.left_out += 1;
        } else {
            self.stems.insert(stem.to_owned());
        }
    }
}

/// The folder of a day, or of a host in it.
fn prefix(root: Root<'_>, day: NaiveDate, scope: &Scope) -> String {
    let host = scope.host.as_ref().map_or(String::new(), |host| format!("/host={host}"));
    format!("{}/day={day}{host}", root.path())
}

/// An object's name below its table, without its end.
fn stem(root: Root<'_>, object: &ObjectMeta) -> Option<String> {
    let stem = object.location.as_ref().strip_prefix(&root.path())?.strip_prefix('/')?;
    Some(stem.strip_suffix(root.end)?.to_owned())
}

/// Whether a window, `day=.../host=.../BOOT-START`, is in a pack.
fn is_packed(stem: &str, packed: &LastPacks) -> bool {
    stem.rsplit_once('/').is_some_and(|(folder, window)| packed.contains(folder, window))
}
