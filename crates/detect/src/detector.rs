//! Windows in, changes of findings out.
//!
//! ```text
//!  window --> reorder --> host, its VMs --> series --began--> filter: moved cost
//!                             |                                  |
//!                             +--> pools over VMs --began--------+--> cause --> joins an open finding, or opens one
//! ```

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::cause::{cause, near_s};
use crate::host::{Host, cpus_of};
use crate::open::{Open, Root};
use crate::pool::Pools;
use crate::rule::exits_per_s;
use crate::series::{Event, Shift};
use crate::vm::Vm;
use crate::{Cause, Change, Finding, FindingId, Measure, SeriesName, Summary, Symptom};

/// Windows of a host that wait for one that is late.
const HELD: usize = 1;
/// A host is silent after this many missing windows, but not before `SILENT_S`.
const SILENT_WINDOWS: u64 = 3;
const SILENT_S: u64 = 180;
/// A level has changed if it did by this part of the effect.
const NEWS: f64 = 0.5;

/// Finds changes. The same windows in the same order give the same changes.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Detector {
    hosts: BTreeMap<String, Feed>,
    pools: Pools,
    open: BTreeMap<FindingId, Open>,
    left_out: LeftOut,
}

/// What gave no finding, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LeftOut {
    /// Windows that were taken before.
    pub duplicate: u64,
    /// Windows that came after later ones of their host.
    pub late: u64,
    /// Windows without a host or a length.
    pub invalid: u64,
    /// Functions that only took over cost of others of their process.
    pub moved: u64,
}

/// A host, with its windows in order.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Feed {
    host: Host,
    waiting: BTreeMap<(u32, u64), Summary>,
    /// Start and end of the last window taken.
    last: Option<((u32, u64), u64)>,
    length_ns: u64,
}

impl Detector {
    /// A detector without history.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes a window. One that leaves a gap to the one before waits for the next.
    pub fn take(&mut self, window: Summary) -> Vec<Change> {
        if window.host.is_empty() || window.length_ns == 0 {
            self.left_out.invalid += 1;
            return Vec::new();
        }
        let host = window.host.clone();
        let feed = self.hosts.entry(host.clone()).or_default();
        let key = (window.start_s, window.window_ns);
        let last = feed.last.map(|(key, _)| key);
        if last == Some(key) || feed.waiting.contains_key(&key) {
            self.left_out.duplicate += 1;
            return Vec::new();
        }
        if last.is_some_and(|last| key < last) {
            self.left_out.late += 1;
            return Vec::new();
        }
        feed.waiting.insert(key, window);
        let mut changes = self.end_silence(&host);
        while let Some(window) = self.hosts.get_mut(&host).and_then(Feed::next) {
            changes.extend(self.process(&window));
        }
        changes
    }

    /// Says what time it is, s since 1970: hosts whose windows have stopped are found.
    pub fn tick(&mut self, now_s: u32) -> Vec<Change> {
        let mut changes = Vec::new();
        for (name, feed) in &self.hosts {
            let Some((key, end_ns)) = feed.last else { continue };
            let limit_ns = (SILENT_WINDOWS * feed.length_ns).max(SILENT_S * 1_000_000_000);
            let series = windows_of(name);
            let is_known = self.open.values().any(|open| open.lasting.contains(&series));
            if is_known || u64::from(now_s) * 1_000_000_000 <= end_ns.saturating_add(limit_ns) {
                continue;
            }
            let began_s = u32::try_from(end_ns / 1_000_000_000).unwrap_or(key.0);
            let symptom = Symptom {
                labels: BTreeMap::new(),
                series,
                began_s,
                interval_s: (began_s, began_s),
                before: 1.0,
                after: 0.0,
                score: 0.0,
                cpus: 0.0,
                is_over: false,
            };
            let open = Open::new(symptom, Cause::Silent, began_s);
            changes.push(Change::Opened(open.finding.clone()));
            self.open.insert(open.finding.id, open);
        }
        changes
    }

    /// Findings that are open.
    pub fn open(&self) -> impl Iterator<Item = &Finding> {
        self.open.values().map(|open| &open.finding)
    }

    /// How many series are watched.
    #[must_use]
    pub fn series(&self) -> usize {
        let vms = self.hosts.values().flat_map(|feed| feed.host.vms.values());
        // Two of each host: samples, and demand.
        vms.map(Vm::n_series).sum::<usize>() + 2 * self.hosts.len() + self.pools.len()
    }

    /// What gave no finding.
    #[must_use]
    pub fn left_out(&self) -> LeftOut {
        self.left_out
    }

    fn end_silence(&mut self, host: &str) -> Vec<Change> {
        self.end(&windows_of(host));
        self.changes()
    }

    fn process(&mut self, window: &Summary) -> Vec<Change> {
        let Some(feed) = self.hosts.get_mut(&window.host) else { return Vec::new() };
        let mut taken = feed.host.take(window);
        let n_events = taken.events.len();
        taken.events.retain(|(series, event)| match event {
            Event::Began(shift) => !feed.has_moved(series, shift),
            _ => true,
        });
        self.left_out.moved += (n_events - taken.events.len()) as u64;
        let mut began = Vec::new();
        for (series, event) in taken.events {
            match event {
                Event::Began(shift) => began.push(symptom(window, series, &shift)),
                event => self.follow(&series, event),
            }
        }
        let length_s = u32::try_from(window.length_ns / 1_000_000_000).unwrap_or(u32::MAX);
        for (code, deviation, cpus) in &taken.deviations {
            let at = (window.start_s, length_s);
            match self.pools.take(code, at, *deviation, *cpus) {
                Some((series, Event::Began(shift), cpus)) => {
                    let symptom = symptom(window, series, &shift);
                    let cpus = (symptom.after - symptom.before) * cpus;
                    began.push(Symptom { cpus, ..symptom });
                }
                Some((series, event, _)) => self.follow(&series, event),
                None => {}
            }
        }
        began.sort_by(|a, b| {
            a.series.measure.cmp(&b.series.measure).then_with(|| a.series.cmp(&b.series))
        });
        let mut opened = BTreeSet::new();
        for symptom in began {
            opened.extend(self.place(window, symptom));
        }
        let mut changes: Vec<Change> = Vec::new();
        for id in &opened {
            let open = self.open.get_mut(id).into_iter();
            changes.extend(open.map(|open| {
                open.is_changed = false;
                Change::Opened(open.finding.clone())
            }));
        }
        changes.extend(self.changes());
        changes
    }

    /// Puts a symptom into the finding that it belongs to, or into a new one, whose name it returns.
    fn place(&mut self, window: &Summary, symptom: Symptom) -> Option<FindingId> {
        let cause = match (&symptom.series.host, self.hosts.get(&window.host)) {
            (Some(_), Some(feed)) => cause(&feed.host, window, &symptom),
            _ => Cause::in_pool(&symptom.series.measure),
        };
        let root = Root::new(&window.host, &cause);
        let near_s = near_s(window);
        let found = self.open.values_mut().find(|open| open.is_joined_by(&symptom, &root, near_s));
        if let Some(open) = found {
            open.join(symptom, cause, root);
            return None;
        }
        let mut open = Open::new(symptom, cause, window.start_s);
        open.root = root;
        let id = open.finding.id;
        self.open.insert(id, open);
        Some(id)
    }

    /// Takes what a series does whose change is known.
    fn follow(&mut self, series: &SeriesName, event: Event) {
        let Event::Lasts(level) = event else { return self.end(series) };
        let level = shown(&series.measure, level);
        let holds = |open: &&mut Open| open.lasting.contains(series);
        let Some(open) = self.open.values_mut().find(holds) else { return };
        let Some(symptom) = open.symptom(series) else { return };
        let effect = symptom.after - symptom.before;
        if (level - symptom.after).abs() < NEWS * effect.abs() {
            return;
        }
        symptom.cpus *= (level - symptom.before) / effect;
        symptom.after = level;
        open.news();
    }

    fn end(&mut self, series: &SeriesName) {
        for open in self.open.values_mut().filter(|open| open.lasting.contains(series)) {
            open.lasting.remove(series);
            if let Some(symptom) = open.symptom(series) {
                symptom.is_over = true;
                open.news();
            }
        }
    }

    fn changes(&mut self) -> Vec<Change> {
        let mut changes = Vec::new();
        self.open.retain(|id, open| {
            if open.lasting.is_empty() {
                changes.push(Change::Resolved(*id));
            } else if std::mem::take(&mut open.is_changed) {
                changes.push(Change::Updated(open.finding.clone()));
            }
            !open.lasting.is_empty()
        });
        changes
    }
}

impl Feed {
    /// The next window in order, unless one before it may still come.
    fn next(&mut self) -> Option<Summary> {
        let (key, window) = self.waiting.first_key_value()?;
        let (start_ns, key) = (u64::from(key.0) * 1_000_000_000, *key);
        let latest = |(_, end_ns): ((u32, u64), u64)| end_ns + window.length_ns / 2;
        let adjoins = self.last.map(latest).is_none_or(|latest| start_ns <= latest);
        if !adjoins && self.waiting.len() <= HELD {
            return None;
        }
        self.length_ns = window.length_ns;
        self.last = Some((key, start_ns.saturating_add(window.length_ns)));
        self.waiting.remove(&key)
    }

    /// Whether a function's change is no news, because others of its process lost as much.
    fn has_moved(&mut self, series: &SeriesName, shift: &Shift) -> bool {
        let (Some(vm), Measure::Function(code)) = (&series.vm, &series.measure) else {
            return false;
        };
        let Some(vm) = self.host.vms.get_mut(vm) else { return false };
        let has_moved = vm.has_moved(code, shift);
        if has_moved {
            vm.accept(code);
        }
        has_moved
    }
}

fn windows_of(host: &str) -> SeriesName {
    SeriesName { host: Some(host.to_owned()), vm: None, measure: Measure::Windows }
}

/// A level as people read it.
fn shown(measure: &Measure, level: f32) -> f64 {
    match measure {
        Measure::Exits(_) => exits_per_s(f64::from(level)),
        _ => f64::from(level),
    }
}

fn symptom(window: &Summary, series: SeriesName, shift: &Shift) -> Symptom {
    let (before, after) =
        (shown(&series.measure, shift.before), shown(&series.measure, shift.after));
    let vm = series.vm.as_ref().and_then(|name| window.vms.get(name));
    let of = vm.map_or(0, |vm| match series.measure {
        Measure::Exits(_) => 0,
        Measure::Function(_) | Measure::Process(_) => vm.guest_ns().max(vm.total_ns() / 10),
        Measure::Useful => vm.demand_ns(),
        _ => vm.total_ns(),
    });
    Symptom {
        labels: vm.map(|vm| vm.labels.clone()).unwrap_or_default(),
        began_s: shift.began_s,
        interval_s: shift.interval_s,
        before,
        after,
        score: shift.score,
        cpus: (after - before).abs() * cpus_of(window, of),
        is_over: false,
        series,
    }
}
