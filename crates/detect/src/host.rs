//! A host's VMs and series, and what was usual on it when something changed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::cause::{Contention, uses};
use crate::rule::rule;
use crate::series::{Event, Series, Shift};
use crate::vm::{Usual, Vm};
use model::VcpuTimeState;

use crate::{Code, MAX_VMS, Measure, Owner, SeriesName, Summary};

/// A VM that is not seen for this long is forgotten.
const FORGET_S: u32 = 86_400;
/// Windows that it takes to be overcommitted, and not to be any more.
const WINDOWS: u8 = 3;

/// The memory of a host: that of its VMs, of [`MAX_VMS`] at most, and 64 KiB.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Host {
    pub(crate) vms: BTreeMap<String, Vm>,
    /// CPUs that each owner uses, on average.
    pub(crate) uses: Usual<Owner>,
    samples: Series,
    demand: Demand,
    pub(crate) kernel: String,
    /// The release before, and when it changed.
    pub(crate) kernel_before: Option<(String, u32)>,
    pub(crate) first_s: u32,
}

/// Whether a host's CPUs are wanted by more than they can serve.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Demand {
    usual: f32,
    open: bool,
    /// Windows that say otherwise, and the first of them.
    other: (u8, u32),
}

/// What a window did to the series of a host.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    pub(crate) events: Vec<(SeriesName, Event)>,
    /// Of functions in VMs: by how much they are off, and what 1 is in CPUs.
    pub(crate) deviations: Vec<(Code, f32, f64)>,
}

impl Host {
    pub(crate) fn take(&mut self, window: &Summary) -> Taken {
        let at_s = window.start_s;
        if self.first_s == 0 {
            self.first_s = at_s;
        }
        if self.kernel != window.kernel {
            let before = std::mem::replace(&mut self.kernel, window.kernel.clone());
            self.kernel_before = (!before.is_empty()).then_some((before, at_s));
        }
        let mut taken = Taken::default();
        self.take_host(window, &mut taken);
        for (name, summary) in &window.vms {
            if !self.vms.contains_key(name) && MAX_VMS <= self.vms.len() {
                continue;
            }
            let vm = self.vms.entry(name.clone()).or_default();
            let mut deviations = Vec::new();
            let lengths = (window.length_ns, window.period_ns);
            let events = vm.take(at_s, summary, lengths, &mut deviations);
            let series = |measure| SeriesName {
                host: Some(window.host.clone()),
                vm: Some(name.clone()),
                measure,
            };
            taken.events.extend(events.into_iter().map(|(m, event)| (series(m), event)));
            let cpus = cpus_of(window, summary.guest_ns());
            taken.deviations.extend(deviations.into_iter().map(|(code, d)| (code, d, cpus)));
        }
        let gone_s = 3 * u32::try_from(window.length_ns / 1_000_000_000).unwrap_or(u32::MAX / 3);
        for (name, vm) in
            self.vms.iter_mut().filter(|(_, vm)| gone_s <= at_s.saturating_sub(vm.last_s))
        {
            let series = |measure| SeriesName {
                host: Some(window.host.clone()),
                vm: Some(name.clone()),
                measure,
            };
            taken.events.extend(vm.leave().into_iter().map(|(m, event)| (series(m), event)));
        }
        self.uses.learn(uses(window).into_iter());
        self.vms.retain(|_, vm| at_s.saturating_sub(vm.last_s) < FORGET_S);
        taken
    }

    fn take_host(&mut self, window: &Summary, taken: &mut Taken) {
        let series = |measure| SeriesName { host: Some(window.host.clone()), vm: None, measure };
        let expected = window.samples.saturating_add(window.samples_missing);
        if 0 < expected {
            let missing = window.samples_missing as f32 / expected as f32;
            let rule = rule(&Measure::SamplesMissing);
            let event = self.samples.push(window.start_s, missing, 0.0, &rule);
            taken.events.push((series(Measure::SamplesMissing), event));
        }
        let event = self.demand.take(window);
        taken.events.push((series(Measure::Demand), event));
        taken.events.retain(|(_, event)| *event != Event::None);
    }
}

impl Demand {
    fn take(&mut self, window: &Summary) -> Event {
        let now = Contention::new(window);
        let level = now.wanted;
        let is_over = now.is_overcommitted();
        if is_over == self.open {
            self.other = (0, 0);
            if !self.open {
                let usual = if self.usual <= 0.0 { level } else { self.usual };
                self.usual = usual + (level - usual) / 30.0;
            }
            return if self.open { Event::Lasts(level) } else { Event::None };
        }
        let since_s = if self.other.0 == 0 { window.start_s } else { self.other.1 };
        self.other = (self.other.0 + 1, since_s);
        if self.other.0 < WINDOWS {
            return if self.open { Event::Lasts(level) } else { Event::None };
        }
        self.other = (0, 0);
        self.open = is_over;
        if !is_over {
            return Event::Over;
        }
        Event::Began(Shift {
            began_s: since_s,
            interval_s: (since_s, since_s),
            before: self.usual,
            after: level,
            score: 0.0,
            windows: usize::from(WINDOWS),
        })
    }
}

/// Time as CPUs that were busy all the window long.
pub(crate) fn cpus_of(window: &Summary, ns: u64) -> f64 {
    ns as f64 / window.length_ns.max(1) as f64
}

/// Who takes time from a VM, with what part of it is new.
pub(crate) fn thieves(vm: &Vm, window: &Summary, name: &str) -> Vec<(Owner, f64)> {
    let Some(summary) = window.vms.get(name) else { return Vec::new() };
    let total = summary.total_ns().max(1) as f64;
    let more = |(owner, ns): (&Owner, &u64)| {
        let more = *ns as f64 / total - vm.thieves.of(owner);
        (owner.clone(), more.max(0.0))
    };
    let all: Vec<(Owner, f64)> = summary.thieves.iter().map(more).collect();
    let sum: f64 = all.iter().map(|(_, more)| more).sum();
    let mut parts: Vec<_> = all.into_iter().map(|(o, more)| (o, more / sum.max(1e-9))).collect();
    parts.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    parts
}

/// Whether a VM waited for CPUs in a twentieth of its time.
pub(crate) fn waits(summary: &crate::VmSummary) -> bool {
    summary.total_ns() / 20 < summary.ns(VcpuTimeState::StealOutside)
}
