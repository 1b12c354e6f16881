//! A VM's series, and what is usual for it.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::rule::{Rule, exits_value, rule};
use crate::series::{Event, Series, Shift};
use crate::step::median_of;
use model::VcpuTimeState;

use crate::{Code, Measure, Owner, VmSummary};

/// A finding names the caller that has at least this part of a function's growth.
const MAIN_CALLER: f64 = 0.6;
/// Series of functions, of processes, of exit reasons at most.
const MAX_SERIES: usize = 48;
/// Windows that are remembered.
const WINDOWS: usize = 120;
/// A function or process with a lower share has no series.
const MIN_SHARE: f32 = 0.005;
/// A guest's functions have shares of the time in which it runs, or of this part of its vCPUs' time if it hardly runs.
const MIN_BUSY: f32 = 0.1;
/// Windows over which thieves and exits are averaged.
const USUAL_WINDOWS: f64 = 30.0;
/// Of this many changed modules the build ids are remembered.
const MAX_BUILDS: usize = 16;

/// The memory of a VM: at most 3 * 48 + 5 series of 3.5 KiB, and tables of 16 KiB.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Vm {
    /// Its first window and the last.
    pub(crate) first_s: u32,
    pub(crate) last_s: u32,
    shares: BTreeMap<Measure, Series>,
    exits: Group<String>,
    functions: Group<Code>,
    processes: Group<String>,
    /// Windows with their busy part: what shares of functions are of, as a share of the vCPUs' time.
    windows: VecDeque<(u32, f32)>,
    /// By thief and by exit reason: share of the vCPUs' time, on average.
    pub(crate) thieves: Usual<Owner>,
    pub(crate) reasons: Usual<String>,
    /// The same of functions by their callers.
    #[serde(default)]
    pub(crate) callers: Usual<(Code, String)>,
    builds: BTreeMap<String, String>,
    /// Module, build ids before and after, when.
    rebuilt: VecDeque<(String, String, String, u32)>,
}

/// Averages over the last windows.
#[derive(Debug, Serialize, Deserialize)]
#[serde(bound(deserialize = "K: Ord + Deserialize<'de>"))]
pub(crate) struct Usual<K> {
    shares: BTreeMap<K, f64>,
    n: f64,
}

impl<K> Default for Usual<K> {
    fn default() -> Self {
        Self { shares: BTreeMap::new(), n: 0.0 }
    }
}

impl<K: Ord> Usual<K> {
    pub(crate) fn learn(&mut self, now: impl Iterator<Item = (K, f64)>) {
        self.n = (self.n + 1.0).min(USUAL_WINDOWS);
        self.shares.values_mut().for_each(|share| *share *= 1.0 - 1.0 / self.n);
        for (key, share) in now {
            *self.shares.entry(key).or_default() += share / self.n;
        }
        self.shares.retain(|_, share| 1e-5 < *share);
    }

    /// Whether anything was learned.
    pub(crate) fn is_known(&self) -> bool {
        0.0 < self.n
    }

    pub(crate) fn of(&self, key: &K) -> f64 {
        self.shares.get(key).copied().unwrap_or(0.0)
    }
}

/// What a window's values did.
pub(crate) type Events = Vec<(Measure, Event)>;

/// Series of a kind that a VM has many of.
#[derive(Debug, Serialize, Deserialize)]
#[serde(bound(deserialize = "K: Ord + Deserialize<'de>"))]
struct Group<K> {
    series: BTreeMap<K, Series>,
}

impl<K> Default for Group<K> {
    fn default() -> Self {
        Self { series: BTreeMap::new() }
    }
}

impl<K: Ord + Clone> Group<K> {
    /// Takes the values of a window. A missing value is 0, and a new series was 0 in earlier windows.
    fn take(
        &mut self,
        window: &Window<'_>,
        values: &BTreeMap<&K, f32>,
        measure: impl Fn(K) -> Measure,
        events: &mut Events,
    ) {
        for (key, value) in values {
            if !self.series.contains_key(*key) && self.make_room(*value) {
                let before = window.before.iter().map(|(at_s, _)| *at_s);
                self.series.insert((*key).clone(), Series::absent(before));
            }
        }
        for (key, series) in &mut self.series {
            let value = values.get(key).copied().unwrap_or(0.0);
            let noise = sampling_noise(value, window.samples);
            let event = series.push(window.at_s, value, noise, &window.rule);
            if event != Event::None {
                events.push((measure(key.clone()), event));
            }
        }
    }

    /// Whether there is room for a series that has this value; a much smaller one may have to go.
    fn make_room(&mut self, value: f32) -> bool {
        if value < MIN_SHARE || self.series.len() < MAX_SERIES {
            return MIN_SHARE <= value;
        }
        let closed = self.series.iter().filter(|(_, series)| !series.is_open());
        let least = closed.min_by(|a, b| a.1.normal().total_cmp(&b.1.normal()));
        let least = least.filter(|(_, series)| series.normal() * 2.0 < value);
        let Some(least) = least.map(|(key, _)| key.clone()) else { return false };
        self.series.remove(&least).is_some()
    }

    /// Ends open changes.
    fn leave(&mut self, measure: impl Fn(K) -> Measure, events: &mut Events) {
        for (key, series) in &mut self.series {
            if series.forget_change() {
                events.push((measure(key.clone()), Event::Over));
            }
        }
    }
}

/// What the series of a group have in common in a window.
struct Window<'w> {
    at_s: u32,
    before: &'w VecDeque<(u32, f32)>,
    /// Samples that shares are of; 0: they are none.
    samples: f32,
    rule: Rule,
}

impl Vm {
    pub(crate) fn n_series(&self) -> usize {
        let groups = [self.exits.series.len(), self.processes.series.len()];
        self.shares.len() + self.functions.series.len() + groups.iter().sum::<usize>()
    }

    /// Takes a window. `deviations` gets what functions are off their usual share.
    pub(crate) fn take(
        &mut self,
        at_s: u32,
        vm: &VmSummary,
        (length_ns, period_ns): (u64, u64),
        deviations: &mut Vec<(Code, f32)>,
    ) -> Events {
        let total = vm.total_ns();
        if total == 0 {
            return Events::new();
        }
        if self.last_s == 0 {
            self.first_s = at_s;
        }
        self.last_s = at_s;
        self.note_builds(at_s, vm);
        let mut events = Events::new();
        let samples = total as f32 / period_ns.max(1) as f32;
        for (measure, value) in shares(vm) {
            let rule = rule(&measure);
            let series = self.shares.entry(measure.clone()).or_default();
            let event = series.push(at_s, value, sampling_noise(value, samples), &rule);
            if event != Event::None {
                events.push((measure, event));
            }
        }
        self.take_exits(at_s, vm, length_ns, &mut events);
        self.take_code(at_s, vm, samples, &mut events);
        let floor = rule(&Measure::Function(Code::default())).floor;
        let off = |(code, series): (&Code, &Series)| Some((code.clone(), series.deviation(floor)?));
        deviations.extend(self.functions.series.iter().filter_map(off));
        self.learn_usual(vm);
        events
    }

    fn take_exits(&mut self, at_s: u32, vm: &VmSummary, length_ns: u64, events: &mut Events) {
        if vm.exits.values().all(|exits| exits.count == 0) {
            return;
        }
        let vcpu_s = vm.vcpus.max(1) as f32 * length_ns.max(1) as f32 / 1e9;
        let rate = |count: u64| exits_value(count as f32 / vcpu_s);
        let values = vm.exits.iter().map(|(reason, exits)| (reason, rate(exits.count))).collect();
        let rule = rule(&Measure::Exits(String::new()));
        let window = Window { at_s, before: &self.windows, samples: 0.0, rule };
        self.exits.take(&window, &values, Measure::Exits, events);
    }

    fn take_code(&mut self, at_s: u32, vm: &VmSummary, samples: f32, events: &mut Events) {
        let busy = (vm.guest_ns() as f32 / vm.total_ns() as f32).max(MIN_BUSY);
        let share = |ns: u64| ns as f32 / (vm.total_ns() as f32 * busy);
        let functions = vm.functions.iter().map(|f| (&f.code, share(f.ns))).collect();
        let processes = vm.processes.iter().map(|(name, ns)| (name, share(*ns))).collect();
        let rule_of_functions = rule(&Measure::Function(Code::default()));
        let rule_of_processes = rule(&Measure::Process(String::new()));
        let before = &self.windows;
        let window = Window { at_s, before, samples: samples * busy, rule: rule_of_functions };
        self.functions.take(&window, &functions, Measure::Function, events);
        let window = Window { rule: rule_of_processes, ..window };
        self.processes.take(&window, &processes, Measure::Process, events);
        self.windows.push_back((at_s, busy));
        if WINDOWS < self.windows.len() {
            self.windows.pop_front();
        }
    }

    /// Who takes and what exits, while that is as usual.
    fn learn_usual(&mut self, vm: &VmSummary) {
        let total = vm.total_ns() as f64;
        let is_usual = |measure| !self.shares.get(&measure).is_some_and(Series::is_open);
        if is_usual(Measure::StealOutside) {
            let shares = vm.thieves.iter().map(|(owner, ns)| (owner.clone(), *ns as f64 / total));
            self.thieves.learn(shares);
        }
        if is_usual(Measure::StealVmm) {
            let shares = vm.exits.iter().map(|(reason, e)| (reason.clone(), e.ns as f64 / total));
            self.reasons.learn(shares);
        }
        let is_open = |code| self.functions.series.get(code).is_some_and(Series::is_open);
        let usual = vm.callers.iter().filter(|it| !is_open(&it.code));
        let usual = usual.map(|it| ((it.code.clone(), it.caller.clone()), it.ns as f64 / total));
        // What grew is not usual, and stays as it was.
        let before = self.callers.shares.iter().filter(|((code, _), _)| is_open(code));
        let before = before.map(|(key, share)| (key.clone(), *share));
        let now: Vec<_> = usual.chain(before).collect();
        self.callers.learn(now.into_iter());
    }

    /// The caller behind most of a function's growth, if there is one.
    pub(crate) fn grown_caller(&self, summary: &VmSummary, code: &Code) -> Option<String> {
        if !self.callers.is_known() {
            return None;
        }
        let total = summary.total_ns().max(1) as f64;
        let of_code = summary.callers.iter().filter(|it| it.code == *code);
        let grown: Vec<_> = of_code
            .map(|it| {
                let usual = self.callers.of(&(code.clone(), it.caller.clone()));
                (&it.caller, (it.ns as f64 / total - usual).max(0.0))
            })
            .collect();
        let all: f64 = grown.iter().map(|(_, more)| more).sum();
        let most = grown.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
        most.filter(|(_, more)| MAIN_CALLER * all < *more).map(|(caller, _)| caller.clone())
    }

    fn note_builds(&mut self, at_s: u32, vm: &VmSummary) {
        for (module, build) in &vm.builds {
            let before = self.builds.insert(module.clone(), build.clone());
            if let Some(before) = before.filter(|before| before != build) {
                self.rebuilt.push_back((module.clone(), before, build.clone(), at_s));
            }
        }
        // A module that is not seen for a while keeps its build id; their number is bounded.
        while 4 * MAX_SERIES < self.builds.len() {
            self.builds.pop_first();
        }
        while MAX_BUILDS < self.rebuilt.len() {
            self.rebuilt.pop_front();
        }
    }

    /// Build ids of a module before and after, if it changed within `near_s` of an instant.
    pub(crate) fn rebuilt(&self, module: &str, at_s: u32, near_s: u32) -> Option<(String, String)> {
        let near = |(m, _, _, at): &&(_, _, _, u32)| m == module && at.abs_diff(at_s) <= near_s;
        self.rebuilt
            .iter()
            .rev()
            .find(near)
            .map(|(_, before, after, _)| (before.clone(), after.clone()))
    }

    /// Which kind of lost time, stolen or throttled, grew most.
    pub(crate) fn most_lost(&self, vm: &VmSummary) -> Option<Measure> {
        let is_lost = |measure: &Measure| {
            matches!(measure, Measure::StealOutside | Measure::StealVmm | Measure::Throttled)
        };
        let usual = |measure: &Measure| self.shares.get(measure).map_or(0.0, Series::normal);
        let grown = shares(vm).into_iter().filter(|(measure, _)| is_lost(measure));
        let grown = grown.map(|(measure, share)| (share - usual(&measure), measure));
        let most = grown.max_by(|a, b| a.0.total_cmp(&b.0));
        most.filter(|(growth, _)| 0.0 < *growth).map(|(_, measure)| measure)
    }

    /// A function's change is no news: its level is normal from now on.
    pub(crate) fn accept(&mut self, code: &Code) {
        if let Some(series) = self.functions.series.get_mut(code) {
            series.accept();
        }
    }

    /// The VM is gone: its open changes are over.
    pub(crate) fn leave(&mut self) -> Events {
        let mut events = Events::new();
        for (measure, series) in &mut self.shares {
            if series.forget_change() {
                events.push((measure.clone(), Event::Over));
            }
        }
        self.exits.leave(Measure::Exits, &mut events);
        self.functions.leave(Measure::Function, &mut events);
        self.processes.leave(Measure::Process, &mut events);
        events
    }

    /// Whether other functions of the process lost what a function won: the cost has only moved.
    ///
    /// In a guest that is always busy, all functions lose when one wins; only who loses much more than the others gave.
    pub(crate) fn has_moved(&self, code: &Code, shift: &Shift) -> bool {
        let n = self.windows.len().saturating_sub(shift.windows);
        let busy = |from: usize, to: usize| median_of(self.windows.range(from..to).map(|w| w.1));
        let (busy_before, busy_after) =
            (busy(n.saturating_sub(60), n), busy(n, self.windows.len()));
        let rise = shift.after * busy_after - shift.before * busy_before;
        let mut others = Vec::new();
        for (other, series) in &self.functions.series {
            if other != code && !series.is_open() {
                let (before, after) = series.around(shift.windows);
                others.push((other, before * busy_before, after * busy_after));
            }
        }
        let sum_before: f32 = others.iter().map(|(_, before, _)| before).sum();
        let sum_after: f32 = others.iter().map(|(_, _, after)| after).sum();
        let gave = |(other, before, after): &&(&Code, f32, f32)| {
            let rest = (sum_after - after) / (sum_before - before).max(1e-6);
            other.process == code.process && *after <= before * 0.6 && after / before <= rest - 0.3
        };
        let given: f32 = others.iter().filter(gave).map(|(_, before, after)| before - after).sum();
        0.7 * rise <= given
    }
}

/// Shares of the VM's time, one of each kind.
fn shares(vm: &VmSummary) -> Vec<(Measure, f32)> {
    let total = vm.total_ns() as f32;
    let share = |states: &[VcpuTimeState]| vm.ns_in(states) as f32 / total;
    let mut shares = vec![
        (Measure::Throttled, share(&[VcpuTimeState::Throttled])),
        (Measure::StealOutside, share(&[VcpuTimeState::StealOutside])),
        (Measure::StealVmm, share(&[VcpuTimeState::StealVmm, VcpuTimeState::StealVmmWaiting])),
        (Measure::HaltPolling, share(&[VcpuTimeState::HaltPolling])),
    ];
    let demand = vm.demand_ns() as f32;
    if total / 20.0 <= demand {
        shares.push((Measure::Useful, vm.guest_ns() as f32 / demand));
    }
    shares
}

/// Standard deviation of a share that `n` samples tell.
fn sampling_noise(share: f32, n: f32) -> f32 {
    if n <= 1.0 {
        return 0.0;
    }
    let share = share.max(1.0 / n).min(0.5);
    (share * (1.0 - share) / n).sqrt()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_share_of_a_sample_or_two_has_noise() {
        for n in [0.0, 1.0, 1.1, 1.9, 2.0, 100.0] {
            for share in [0.0, 0.3, 1.0] {
                assert!((0.0..=0.5).contains(&sampling_noise(share, n)), "{share} of {n}");
            }
        }
    }
}
