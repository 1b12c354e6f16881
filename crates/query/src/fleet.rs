//! Sums in memory: how much of its time each VM lost, and what each agent collected, by minutes and by ten minutes. A query over
//! all hosts and a day would read a hundred million rows, from tens of thousands of objects.
//!
//! ```text
//!  catalog: windows of the last days --> those that are not in here --> their rows of `vms`, `hosts`, `health` --> sums
//! ```
//! Design constraints: everything can be read again from the store. Each window counts once, whether its rows are read from
//! its own object or from a pack. What is kept is bounded, and an answer that is not all there is says so.

mod health;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, btree_map};
use std::ops::Add;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use api::http::{FleetAnswer, HealthAnswer, HostTimes, VmTimes};
use arrow::array::{Array, AsArray, PrimitiveArray, RecordBatch, StringViewArray};
use arrow::datatypes::{ArrowPrimitiveType, TimestampMicrosecondType, UInt64Type};
use chrono::{DateTime, TimeDelta, Utc};
use model::TimeAccount;

use crate::catalog::Windows;
use health::Health;

/// Sums are kept so long.
pub(crate) const KEPT: TimeDelta = TimeDelta::days(8);
/// Those of single minutes.
const MINUTES_KEPT_S: i64 = 3 * 3600;
const MINUTE_S: i64 = 60;
const TEN_MINUTES_S: i64 = 600;
/// Lengths of an answer's slots.
const LENGTHS_S: [i64; 12] =
    [60, 120, 300, 600, 1200, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400];
/// Slots of an answer at most.
pub(crate) const MAX_SLOTS: usize = 500;
/// VMs of an answer, and hosts.
const MAX_VMS: usize = 200;
/// VMs of one host, if those of other hosts take the rest.
const MAX_VMS_OF_HOST: usize = 20;
const MAX_HOSTS: usize = 2000;
/// VMs that are kept, of a host and of all; further ones are counted. A host has far fewer, whatever its windows say.
const KEPT_VMS_OF_HOST: usize = 1000;
const KEPT_VMS: usize = 20_000;
/// Bytes of their names, in the same way.
const KEPT_NAMES_OF_HOST: usize = 256 << 10;
const KEPT_NAMES: usize = 16 << 20;

/// Until results that can't be read are tried again.
const TRIED_AGAIN: Duration = Duration::from_secs(60);
/// Windows and objects that are read at once.
const WINDOWS_AT_ONCE: usize = 5000;
const OBJECTS_AT_ONCE: usize = 500;

/// Something of each table that is read.
#[derive(Debug)]
pub(crate) struct Rows<R> {
    pub(crate) vms: R,
    pub(crate) hosts: R,
    pub(crate) health: R,
}

/// The queries that read them.
pub(crate) const ROWS: Rows<&str> = Rows {
    vms: "SELECT host, boot, window_ns, slice, vm, vcpu_ns, steal_outside_ns, steal_vmm_ns, throttled_ns FROM vms",
    hosts: "SELECT host, boot, window_ns, slice, length_ns, cpus, samples, samples_lost, samples_missed, kernel, \
            vmscope_version FROM hosts",
    health: "SELECT host, boot, window_ns, slice, subject, what, count FROM health",
};

/// vCPU time in milliseconds: of ten minutes of the largest VM it fits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Times {
    all: u32,
    outside: u32,
    vmm: u32,
    throttled: u32,
}

impl Add for Times {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            all: self.all.saturating_add(other.all),
            outside: self.outside.saturating_add(other.outside),
            vmm: self.vmm.saturating_add(other.vmm),
            throttled: self.throttled.saturating_add(other.throttled),
        }
    }
}

/// The same of many slots.
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    all: u64,
    outside: u64,
    vmm: u64,
    throttled: u64,
}

impl Sum {
    fn add(&mut self, times: Times) {
        self.all += u64::from(times.all);
        self.outside += u64::from(times.outside);
        self.vmm += u64::from(times.vmm);
        self.throttled += u64::from(times.throttled);
    }

    /// The part of it in accounts for which `counts` is true.
    fn share(&self, counts: impl Fn(TimeAccount) -> bool) -> f64 {
        let parts = [
            (TimeAccount::StealOutside, self.outside),
            (TimeAccount::StealVmm, self.vmm),
            (TimeAccount::Throttled, self.throttled),
        ];
        let part: u64 =
            parts.into_iter().filter(|(account, _)| counts(*account)).map(|(_, ms)| ms).sum();
        part as f64 / self.all as f64
    }
}

/// Sums by the start of their slot, s since 1970.
#[derive(Debug)]
struct Series<T> {
    minutes: BTreeMap<i64, T>,
    tens: BTreeMap<i64, T>,
}

// Not derived: that would ask for a default of `T`.
impl<T> Default for Series<T> {
    fn default() -> Self {
        Self { minutes: BTreeMap::new(), tens: BTreeMap::new() }
    }
}

impl<T: Copy + Add<Output = T>> Series<T> {
    fn add(&mut self, start_s: i64, more: T) {
        add(&mut self.minutes, slot(start_s, MINUTE_S), more);
        add(&mut self.tens, slot(start_s, TEN_MINUTES_S), more);
    }

    fn forget(&mut self, now: i64, oldest: i64) {
        self.minutes = self.minutes.split_off(&(now - MINUTES_KEPT_S));
        self.tens = self.tens.split_off(&oldest);
    }

    fn range(&self, range: &Range) -> btree_map::Range<'_, i64, T> {
        let slots = if range.is_recent { &self.minutes } else { &self.tens };
        slots.range(slot(range.from, range.base())..range.to)
    }
}

fn add<T: Copy + Add<Output = T>>(slots: &mut BTreeMap<i64, T>, slot: i64, more: T) {
    slots.entry(slot).and_modify(|sum| *sum = *sum + more).or_insert(more);
}

/// The start of the slot that a second is in.
fn slot(second: i64, length_s: i64) -> i64 {
    second.div_euclid(length_s) * length_s
}

/// A range of time, s since 1970.
#[derive(Debug, Clone, Copy)]
struct Range {
    from: i64,
    /// Never before `from`.
    to: i64,
    /// It lies where there are sums of single minutes.
    is_recent: bool,
    /// It begins where the sums do, or would begin before.
    is_cut: bool,
}

impl Range {
    fn for_range(from: DateTime<Utc>, to: DateTime<Utc>, now: DateTime<Utc>) -> Self {
        let (now, oldest) = (now.timestamp(), (now - KEPT).timestamp());
        let from = from.timestamp().max(oldest);
        let to = to.timestamp().max(from);
        Self { from, to, is_recent: now - MINUTES_KEPT_S <= from, is_cut: from == oldest }
    }

    fn base(&self) -> i64 {
        if self.is_recent { MINUTE_S } else { TEN_MINUTES_S }
    }
}

#[derive(Debug, Default)]
struct Host {
    vms: BTreeMap<String, Series<Times>>,
    health: Health,
    /// Windows that count, by boot and start, and when they began (s since 1970).
    windows: BTreeMap<String, BTreeMap<u64, i64>>,
}

#[derive(Debug, Default)]
struct State {
    hosts: BTreeMap<String, Host>,
    n_vms: usize,
    n_notes: usize,
    name_bytes: usize,
    /// Stems of packs and windows that were read, or can't be.
    seen: HashSet<String>,
    /// How many windows those have that can't be, and when they were tried.
    damaged: HashMap<String, (usize, Instant)>,
    /// Windows that are still to be read; `None`: not looked at yet.
    left: Option<usize>,
    /// Rows of VMs that found no room.
    no_room: u64,
    /// Hosts with too many VMs.
    no_room_of_host: BTreeSet<String>,
    /// Rows of earlier versions, which have no such sums.
    without_sums: u64,
}

/// Sums over the fleet.
#[derive(Debug, Default)]
pub(crate) struct FleetTimes {
    state: Mutex<State>,
}

impl FleetTimes {
    /// Those of `windows` that were not read yet, the newest first, in parts whose rows fit into memory.
    pub(crate) fn unread(&self, windows: &Windows) -> Vec<Windows> {
        let mut state = self.lock();
        let listed: HashSet<&str> = windows.names().collect();
        state.seen.retain(|stem| listed.contains(stem.as_str()));
        // What can't be read is made again from its windows.
        let State { seen, damaged, .. } = &mut *state;
        damaged.retain(|stem, (_, tried)| {
            let is_kept = listed.contains(stem.as_str()) && tried.elapsed() < TRIED_AGAIN;
            if !is_kept {
                seen.remove(stem);
            }
            is_kept
        });
        let parts = windows.without(&state.seen).in_parts(WINDOWS_AT_ONCE, OBJECTS_AT_ONCE);
        state.left = Some(parts.iter().map(Windows::len).sum());
        parts
    }

    /// Takes the rows of those of the windows that are readable; those that count already are passed over.
    pub(crate) fn take(
        &self,
        windows: &Windows,
        readable: &Windows,
        rows: &Rows<Vec<RecordBatch>>,
    ) {
        let mut fresh = Fresh::default();
        let mut state = self.lock();
        for rows in &rows.hosts {
            state.take_hosts(rows, &mut fresh);
        }
        for rows in &rows.vms {
            state.take_vms(rows, &mut fresh);
        }
        for rows in &rows.health {
            state.take_notes(rows, &mut fresh);
        }
        state.left = state.left.map(|left| left.saturating_sub(windows.len()));
        state.seen.extend(windows.names().map(str::to_owned));
        let read: HashSet<&str> = readable.names().collect();
        let damaged = windows.names().filter(|name| !read.contains(name));
        state
            .damaged
            .extend(damaged.map(|name| (name.to_owned(), (windows.len_of(name), Instant::now()))));
        for ((host, boot, start), began_s) in fresh.windows {
            let host = state.hosts.entry(host).or_default();
            host.windows.entry(boot).or_default().insert(start, began_s);
        }
    }

    /// Forgets what is too old.
    pub(crate) fn forget(&self, now: DateTime<Utc>) {
        let (now, mut state) = (now.timestamp(), self.lock());
        let oldest = now - KEPT.num_seconds();
        for series in state.hosts.values_mut().flat_map(|host| host.vms.values_mut()) {
            series.forget(now, oldest);
        }
        for host in state.hosts.values_mut() {
            host.vms.retain(|_, series| !series.tens.is_empty());
            host.health.forget(now, oldest);
            // Scopes begin with the day before.
            let is_listed = |_: &u64, began_s: &mut i64| oldest - 2 * 86_400 <= *began_s;
            host.windows.values_mut().for_each(|windows| windows.retain(is_listed));
            host.windows.retain(|_, windows| !windows.is_empty());
        }
        let State { hosts, no_room_of_host, .. } = &mut *state;
        no_room_of_host.retain(|name| hosts.get(name).is_some_and(|host| !host.vms.is_empty()));
        state.n_vms = state.hosts.values().map(|host| host.vms.len()).sum();
        state.n_notes = state.hosts.values().map(|host| host.health.n_notes()).sum();
        let names = state.hosts.values().flat_map(|host| host.vms.keys());
        state.name_bytes = names.map(String::len).sum();
    }

    /// What the hosts' agents collected and noted in a range.
    pub(crate) fn health(
        &self,
        from: DateTime<Utc>,
        to: DateTime<Utc>,
        now: DateTime<Utc>,
    ) -> HealthAnswer {
        let (range, state) = (Range::for_range(from, to, now), self.lock());
        let mut answer = HealthAnswer {
            hosts: Vec::new(),
            notes: Vec::new(),
            reading: state.left.map_or(1, |left| left as u64),
            partial: state.lacks(range.is_cut),
        };
        for (name, host) in &state.hosts {
            answer.hosts.extend(host.health.collected(name, &range));
            answer.notes.extend(host.health.notes(name, &range));
        }
        answer.partial.extend(health::lacks(&range, now, &answer));
        answer.notes.sort_by(health::by_windows);
        answer.notes.truncate(health::MAX_NOTES);
        answer.hosts.truncate(MAX_HOSTS);
        answer
    }

    /// What the hosts and VMs lost in a range, in at most so many slots.
    pub(crate) fn answer(
        &self,
        from: DateTime<Utc>,
        to: DateTime<Utc>,
        slots: usize,
        now: DateTime<Utc>,
    ) -> FleetAnswer {
        let (range, state) = (Range::for_range(from, to, now), self.lock());
        let Range { from, to, .. } = range;
        let most = i64::try_from(slots.clamp(1, MAX_SLOTS)).unwrap_or(1);
        let mut lengths = LENGTHS_S.into_iter().filter(|length| range.base() <= *length);
        let length = lengths.find(|length| to - from <= length * most).unwrap_or(86_400);
        let start = slot(from, length);
        let count = (to - start).max(1).unsigned_abs().div_ceil(length.unsigned_abs());
        let count = usize::try_from(count).unwrap_or(0).min(MAX_SLOTS + 1);
        let (mut hosts, mut vms) = (Vec::new(), Vec::new());
        for (name, host) in &state.hosts {
            let (mut cells, mut whole) = (vec![Sum::default(); count], Sum::default());
            for (vm, series) in &host.vms {
                let mut of_vm = Sum::default();
                for (slot, times) in series.range(&range) {
                    let cell = usize::try_from((slot - start).div_euclid(length)).unwrap_or(0);
                    cells.get_mut(cell).into_iter().for_each(|cell| cell.add(*times));
                    of_vm.add(*times);
                    whole.add(*times);
                }
                if of_vm.all != 0 {
                    vms.push((name, vm, of_vm));
                }
            }
            if whole.all != 0 {
                hosts.push((whole.share(TimeAccount::is_stolen), name, cells));
            }
        }
        let mut partial = state.lacks(range.is_cut);
        hosts.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
        if MAX_HOSTS < hosts.len() {
            partial.push(format!("there are more than {MAX_HOSTS} hosts"));
        }
        let host = |(_, name, cells): (f64, &String, Vec<Sum>)| HostTimes {
            host: name.clone(),
            stolen: cells.iter().map(stolen).collect(),
        };
        let vm = |(host, vm, sum): &OfVm<'_>| VmTimes {
            host: (*host).clone(),
            vm: (*vm).clone(),
            ns: ns(sum.all),
            outside_ns: ns(sum.outside),
            vmm_ns: ns(sum.vmm),
            throttled_ns: ns(sum.throttled),
        };
        FleetAnswer {
            start_unix_s: u64::try_from(start).unwrap_or(0),
            slot_s: u64::try_from(length).unwrap_or(1),
            hosts: hosts.into_iter().take(MAX_HOSTS).map(host).collect(),
            vms: most_lost(vms).iter().map(vm).collect(),
            reading: state.left.map_or(1, |left| left as u64),
            partial,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A VM: its host, its name, and its sums.
type OfVm<'s> = (&'s String, &'s String, Sum);

/// The VMs that lost most. One host's leave room for others', whatever its windows say.
fn most_lost(mut vms: Vec<OfVm<'_>>) -> Vec<OfVm<'_>> {
    let lost = |(_, _, sum): &OfVm<'_>| sum.share(|_| true);
    let order = |a: &OfVm<'_>, b: &OfVm<'_>| {
        lost(b).total_cmp(&lost(a)).then_with(|| (a.0, a.1).cmp(&(b.0, b.1)))
    };
    vms.sort_by(order);
    let mut of_host: HashMap<&String, usize> = HashMap::new();
    let (mut shown, further): (Vec<_>, Vec<_>) = vms.into_iter().partition(|(host, ..)| {
        let before = of_host.entry(host).or_default();
        *before += 1;
        *before <= MAX_VMS_OF_HOST
    });
    shown.extend(further);
    shown.truncate(MAX_VMS);
    shown.sort_by(order);
    shown
}

impl State {
    /// `None`: a column is missing, which is never so.
    fn take_vms(&mut self, rows: &RecordBatch, fresh: &mut Fresh) -> Option<()> {
        let keys = Keys::from_batch(rows)?;
        let (vm, all) = (texts(rows, "vm")?, numbers::<UInt64Type>(rows, "vcpu_ns")?);
        let lost = ["steal_outside_ns", "steal_vmm_ns", "throttled_ns"]
            .map(|name| numbers::<UInt64Type>(rows, name));
        for (row, host, began_us) in keys.of_new_windows(self, fresh) {
            let [Some(outside), Some(vmm), Some(throttled)] =
                lost.map(|column| column.filter(|c| !c.is_null(row)).map(|c| ms(c.value(row))))
            else {
                self.without_sums += 1;
                continue;
            };
            let times = Times { all: ms(all.value(row)), outside, vmm, throttled };
            self.add(host, vm.value(row), began_us.div_euclid(1_000_000), times);
        }
        Some(())
    }

    fn add(&mut self, host: &str, vm: &str, start_s: i64, times: Times) {
        let host_name = host;
        let host = self.hosts.entry(host.to_owned()).or_default();
        if !host.vms.contains_key(vm) {
            let of_host = host.vms.keys().map(String::len);
            let is_full_host = KEPT_VMS_OF_HOST <= host.vms.len()
                || KEPT_NAMES_OF_HOST < of_host.sum::<usize>() + vm.len();
            if is_full_host {
                self.no_room_of_host.insert(host_name.to_owned());
                return;
            }
            if KEPT_VMS <= self.n_vms || KEPT_NAMES < self.name_bytes + vm.len() {
                self.no_room += 1;
                return;
            }
            self.n_vms += 1;
            self.name_bytes += vm.len();
        }
        host.vms.entry(vm.to_owned()).or_default().add(start_s, times);
    }

    /// Why an answer is not all there is.
    fn lacks(&self, is_cut: bool) -> Vec<String> {
        let mut reasons = Vec::new();
        if is_cut {
            reasons.push(format!("only the last {} days are shown", KEPT.num_days()));
        }
        match self.left {
            None => reasons.push("results are still being read".to_owned()),
            Some(0) => {}
            Some(n) => reasons.push(format!("results of {n} windows are still being read")),
        }
        let damaged: usize = self.damaged.values().map(|(windows, _)| windows).sum();
        if 0 < damaged {
            reasons.push(format!("results of {damaged} windows can't be read"));
        }
        if 0 < self.no_room {
            reasons.push(format!("there are more than {KEPT_VMS} VMs, or their names are long"));
        }
        if let Some(host) = self.no_room_of_host.first() {
            let text = match self.no_room_of_host.len() {
                1 => format!("host {host} has"),
                n => format!("host {host} and {} others have", n - 1),
            };
            reasons.push(format!(
                "{text} more than {KEPT_VMS_OF_HOST} VMs, or VMs with long names: only the first are shown"
            ));
        }
        if 0 < self.without_sums {
            reasons.push("results of earlier versions are not shown".to_owned());
        }
        reasons
    }
}

/// Windows whose rows are being taken for the first time: host, boot, start, and when they began.
#[derive(Debug, Default)]
pub(crate) struct Fresh {
    windows: BTreeMap<(String, String, u64), i64>,
    /// The last row's window, and whether it is one of them.
    last: Option<((String, String, u64), bool)>,
}

impl Fresh {
    fn is_new(&mut self, state: &State, key: (&str, &str, u64), began_s: i64) -> bool {
        if let Some(((host, boot, start), is_new)) = &self.last
            && (host.as_str(), boot.as_str(), *start) == key
        {
            return *is_new;
        }
        let (host, boot, start) = key;
        let counted = state.hosts.get(host).and_then(|host| host.windows.get(boot));
        let is_new = !counted.is_some_and(|starts| starts.contains_key(&start));
        let key = (host.to_owned(), boot.to_owned(), start);
        if is_new {
            self.windows.insert(key.clone(), began_s);
        }
        self.last = Some((key, is_new));
        is_new
    }
}

/// The columns that say which window a row is of.
struct Keys<'r> {
    host: &'r StringViewArray,
    boot: &'r StringViewArray,
    window: &'r PrimitiveArray<UInt64Type>,
    slice: &'r PrimitiveArray<TimestampMicrosecondType>,
}

impl<'r> Keys<'r> {
    fn from_batch(rows: &'r RecordBatch) -> Option<Self> {
        let (host, boot) = (texts(rows, "host")?, texts(rows, "boot")?);
        Some(Self {
            host,
            boot,
            window: numbers(rows, "window_ns")?,
            slice: numbers(rows, "slice")?,
        })
    }

    /// The rows of windows that do not count yet, with their hosts and when their slices began (µs since 1970).
    fn of_new_windows(&self, state: &State, fresh: &mut Fresh) -> Vec<(usize, &'r str, i64)> {
        let (mut rows, host) = (Vec::new(), self.host);
        for row in 0..host.len() {
            let (host, began_us) = (host.value(row), self.slice.value(row));
            let key = (host, self.boot.value(row), self.window.value(row));
            if fresh.is_new(state, key, began_us.div_euclid(1_000_000)) {
                rows.push((row, host, began_us));
            }
        }
        rows
    }
}

fn texts<'r>(rows: &'r RecordBatch, name: &str) -> Option<&'r StringViewArray> {
    rows.column_by_name(name)?.as_string_view_opt()
}

fn numbers<'r, T: ArrowPrimitiveType>(
    rows: &'r RecordBatch,
    name: &str,
) -> Option<&'r PrimitiveArray<T>> {
    rows.column_by_name(name)?.as_primitive_opt()
}

fn ms(ns: u64) -> u32 {
    u32::try_from(ns / 1_000_000).unwrap_or(u32::MAX)
}

fn ns(ms: u64) -> u64 {
    ms * 1_000_000
}

/// To a hundredth of a percent; `None`: no vCPU was there.
fn stolen(sum: &Sum) -> Option<f64> {
    let part = sum.share(TimeAccount::is_stolen);
    (sum.all != 0).then_some((part * 10_000.0).round() / 10_000.0)
}
