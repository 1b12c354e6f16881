//! The run time of a process without steal.

use std::collections::{BTreeMap, BTreeSet};

use model::{OffCpuSource, TimeAccount, TimelineState, VmId};

use super::balance::{add_thieves, vmm_reason};
use super::victims::{Charge, for_each_charge};
use super::{
    AttributionLevel, Stolen, Thief, ThiefNames, TimelineInput, VictimTime, VmmTime, Window,
};
use crate::ProcessFilter;
use crate::vcpu_timeline::{CodeLocation, CodeLocationId, Segment};

/// Names listed in an error.
const LISTED: usize = 8;
/// Standard deviations within which 95 % of a normal distribution lies.
const CONFIDENCE: f64 = 1.96;

/// The code to correct the run time of.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    pub vm: VmId,
    /// Its process; `None`: the whole VM.
    pub process: Option<&'a ProcessFilter>,
    /// A thread by name or id, of that process or of any.
    pub thread: Option<&'a ProcessFilter>,
    /// A function, of that process or of any.
    pub function: Option<&'a str>,
    /// The same with what it calls: of timelines whose places have callers.
    pub callees: Option<&'a str>,
}

/// Time that was stolen from a target.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Correction {
    /// The target's time on the axis.
    pub time: VictimTime,
    /// Type 1 steal by thief; adds up to `time.stolen.outside_ns`.
    pub thieves: BTreeMap<Thief, u64>,
    /// Type 2 by exit reason; adds up to `time.stolen.vmm_ns`.
    pub reasons: BTreeMap<Option<u32>, VmmTime>,
    /// Taken from this VM, not known from whom, and possibly from the target.
    pub unattributed: Stolen,
    /// With 95 % confidence the time taken is off by less.
    pub bound_ns: f64,
    /// Samples of the VM's vCPUs in the window.
    pub all_samples: u64,
}

/// A target that no sample shows.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum UnknownTarget {
    /// No process of that name or id.
    #[error("no sample of process {name:?} in this VM; it has: {known}")]
    Process {
        name: String,
        /// Those with most samples.
        known: String,
    },
    /// No thread of that name or id in the requested processes.
    #[error("no sample of thread {name:?} there; it has: {known}")]
    Thread {
        name: String,
        /// Those with most samples.
        known: String,
    },
    /// No function of that name in the requested threads.
    #[error("no sample of function {name:?} there; it has: {known}")]
    Function {
        name: String,
        /// Those with most samples.
        known: String,
    },
}

/// Inexact instants that a sum of gaps is made of.
#[derive(Debug, Default)]
struct Inexact {
    edges: u64,
}

/// Time that was stolen from the target in the window.
///
/// # Errors
/// When no sample shows the target; the error names what there is.
pub fn correction(
    evidence: &TimelineInput<'_>,
    names: &ThiefNames<'_>,
    target: &Target<'_>,
    window: Window,
) -> Result<Correction, UnknownTarget> {
    check_target(evidence, target)?;
    let wanted: Vec<bool> = evidence.axis.places.iter().map(|place| target.is(place)).collect();
    let is_wanted = |place: CodeLocationId| wanted[place.0 as usize];
    let whose = target.level();
    let (mut found, mut inexact) = (Correction::default(), Inexact::default());
    for_each_charge(evidence, target.vm, whose, window, &mut |charge| {
        found.all_samples += evidence.axis.samples.within(charge.timeline.vcpu, &charge.segment);
        // A switch does not say callers, nor does a stack that is cut.
        let is_known = |place: &CodeLocationId| {
            target.callees.is_none()
                || is_wanted(*place)
                || !evidence.axis.place(*place).callers.is_empty()
        };
        let victim = charge.victim.filter(is_known);
        let is_within =
            || target.callees.is_some() && charge.attribution.is_within(charge.number, is_wanted);
        let is_target = match victim {
            Some(place) => is_wanted(place),
            None => target.is_whole_vm() || is_within(),
        };
        if is_target {
            found.add(evidence, names, charge);
            inexact.add(evidence, charge);
        } else if victim.is_none() && charge.attribution.may_be(charge.number, is_wanted) {
            found.unattributed.add(&charge.segment);
        }
    });
    found.bound_ns = bound_ns(evidence.header.period_ns, &found.time, &inexact);
    Ok(found)
}

/// How far the share that `samples` of `all` samples stand for may be off, ns, with 95 % confidence.
#[must_use]
pub fn share_bound_ns(period_ns: u64, samples: u64, all: u64) -> f64 {
    CONFIDENCE * period_ns as f64 * share_variance(samples, all).sqrt()
}

/// Type 2 is estimated from `k` of `n` samples: binomial. Edges of gaps lie anywhere in a period: a variance of a
/// twelfth.
fn bound_ns(period_ns: u64, time: &VictimTime, inexact: &Inexact) -> f64 {
    let all = time.samples + time.vmm_samples;
    let variance = share_variance(time.vmm_samples, all) + inexact.edges as f64 / 12.0;
    CONFIDENCE * period_ns as f64 * variance.sqrt()
}

fn share_variance(samples: u64, all: u64) -> f64 {
    let (samples, all) = (samples as f64, all.max(1) as f64);
    samples * (1.0 - samples / all).max(0.0)
}

impl Target<'_> {
    fn is(&self, place: &CodeLocation) -> bool {
        let is_below =
            |name: &str| place.function == name || place.callers.iter().any(|it| **it == *name);
        self.is_in_thread(place)
            && self.function.is_none_or(|function| place.function == function)
            && self.callees.is_none_or(is_below)
    }

    fn is_in_thread(&self, place: &CodeLocation) -> bool {
        let is_thread = |thread: &ProcessFilter| {
            place.thread.as_ref().is_some_and(|name| thread.matches(name, place.tid))
        };
        self.is_in_process(place) && self.thread.is_none_or(is_thread)
    }

    fn is_in_process(&self, place: &CodeLocation) -> bool {
        self.process.is_none_or(|process| process.matches(&place.process, place.pid))
    }

    fn is_whole_vm(&self) -> bool {
        let names = [self.function, self.callees];
        self.process.is_none() && self.thread.is_none() && names == [None; 2]
    }

    fn level(&self) -> AttributionLevel {
        match (self.callees, self.function, self.thread) {
            (Some(_), ..) => AttributionLevel::Stack,
            (None, Some(_), _) => AttributionLevel::Function,
            (None, None, Some(_)) => AttributionLevel::Thread,
            (None, None, None) => AttributionLevel::Process,
        }
    }
}

impl Correction {
    fn add(&mut self, evidence: &TimelineInput<'_>, names: &ThiefNames<'_>, charge: &Charge<'_>) {
        let samples = evidence.axis.samples.within(charge.timeline.vcpu, &charge.segment);
        self.time.add_charge(charge, samples);
        let victim = charge.timeline.vcpu;
        add_thieves(&mut self.thieves, evidence.axis, victim, &charge.segment, names);
        if let Some(reason) = vmm_reason(charge.segment.state) {
            let Segment { state, .. } = charge.segment;
            self.reasons.entry(reason).or_default().add(state, charge.segment.length_ns());
        }
    }
}

impl Inexact {
    fn add(&mut self, evidence: &TimelineInput<'_>, charge: &Charge<'_>) {
        let whole: &Segment = &charge.timeline.segments[charge.number];
        let clipped = [whole.from != charge.segment.from, whole.to != charge.segment.to];
        self.edges += match (evidence.axis.off_cpu_source, charge.segment.state) {
            (OffCpuSource::Switches, _) => 0,
            // The kernel counts how long, not when.
            (_, TimelineState::StealOutside) if evidence.axis.samples.waits_are_known() => {
                clipped.into_iter().filter(|cut| *cut).count() as u64
            }
            (
                _,
                TimelineState::StealOutside
                | TimelineState::Throttled
                | TimelineState::StealVmmWaiting { .. },
            ) => 2,
            _ => 0,
        };
    }
}

fn check_target(evidence: &TimelineInput<'_>, target: &Target<'_>) -> Result<(), UnknownTarget> {
    let places = seen_places(evidence, target.vm);
    if let Some(process) = target.process
        && !places.iter().any(|(place, _)| target.is_in_process(place))
    {
        let processes = places.iter().map(|(place, ns)| (place.process.as_str(), *ns));
        return Err(UnknownTarget::Process {
            name: process.text().to_owned(),
            known: most(processes),
        });
    }
    if let Some(thread) = target.thread
        && !places.iter().any(|(place, _)| target.is_in_thread(place))
    {
        let there = places.iter().filter(|(place, _)| target.is_in_process(place));
        let threads = there.filter_map(|(place, ns)| Some((place.thread.as_deref()?, *ns)));
        return Err(UnknownTarget::Thread { name: thread.text().to_owned(), known: most(threads) });
    }
    if let Some(function) = target.function.or(target.callees)
        && !places.iter().any(|(place, _)| target.is(place))
    {
        let there = places.iter().filter(|(place, _)| target.is_in_thread(place));
        let functions = there.map(|(place, ns)| (place.function.as_str(), *ns));
        return Err(UnknownTarget::Function { name: function.to_owned(), known: most(functions) });
    }
    Ok(())
}

/// The places that the VM's guest was seen at, and how long.
fn seen_places<'a>(evidence: &TimelineInput<'a>, vm: VmId) -> Vec<(&'a CodeLocation, u64)> {
    let mut seen: BTreeMap<CodeLocationId, u64> = BTreeMap::new();
    let segments = evidence.timelines(vm).flat_map(|timeline| &timeline.segments);
    for segment in segments.filter(|segment| segment.state.account() != TimeAccount::Halt) {
        if let Some(place) = segment.place {
            *seen.entry(place).or_default() += segment.length_ns();
        }
    }
    seen.into_iter().map(|(place, ns)| (evidence.axis.place(place), ns)).collect()
}

/// The names with most time.
fn most<'a>(times: impl Iterator<Item = (&'a str, u64)>) -> String {
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    times.for_each(|(name, ns)| *sums.entry(name).or_default() += ns);
    let ranked: BTreeSet<_> =
        sums.iter().map(|(name, ns)| (std::cmp::Reverse(*ns), *name)).collect();
    let mut names: Vec<&str> = ranked.iter().take(LISTED).map(|(_, name)| *name).collect();
    if LISTED < ranked.len() {
        names.push("...");
    }
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

#[cfg(test)]
mod test {
    use super::super::testing::{Drawn, MS, VM_A};
    use super::*;
    use crate::vcpu_timeline::VcpuTimelines;
    use model::HostNs;

    struct Ask<'a> {
        process: Option<&'a str>,
        thread: Option<&'a str>,
        function: Option<&'a str>,
        callees: Option<&'a str>,
        ms: std::ops::Range<u64>,
    }

    const ALL: Ask<'_> =
        Ask { process: None, thread: None, function: None, callees: None, ms: 0..100 };
    const APP: Ask<'_> = Ask { process: Some("app"), ..ALL };

    fn corrected(
        drawn: &Drawn,
        off_cpu_source: OffCpuSource,
        ask: &Ask<'_>,
    ) -> Result<Correction, UnknownTarget> {
        let process = ask.process.map(ProcessFilter::new);
        let thread = ask.thread.map(ProcessFilter::new);
        let (process, thread) = (process.as_ref(), thread.as_ref());
        let (function, callees) = (ask.function, ask.callees);
        let target = Target { vm: VM_A, process, thread, function, callees };
        let window = Window { from: HostNs(ask.ms.start * MS), to: HostNs(ask.ms.end * MS) };
        let axis = VcpuTimelines { off_cpu_source, ..drawn.axis.clone() };
        let evidence = TimelineInput { axis: &axis, ..drawn.evidence() };
        correction(&evidence, &ThiefNames::new(&drawn.tables), &target, window)
    }

    /// `run type 1:type 2:throttled, maybe type 1:type 2:throttled` in ms.
    fn check(line: &str, ask: &Ask<'_>, expected: &str) {
        let drawn = Drawn::new(&[line], &"2".repeat(line.len()));
        let found = corrected(&drawn, OffCpuSource::Switches, ask).unwrap();
        let stolen = |Stolen { outside_ns, vmm_ns, throttled_ns }| {
            format!("{}:{}:{}", outside_ns / MS, vmm_ns / MS, throttled_ns / MS)
        };
        let (run, taken) = (found.time.run_ns() / MS, stolen(found.time.stolen));
        let text = format!("{run} {taken}, maybe {}", stolen(found.unattributed));
        assert_eq!(text, expected, "{line}");
        assert_eq!(found.thieves.values().sum::<u64>(), found.time.stolen.outside_ns);
        let vmm: u64 = found.reasons.values().map(VmmTime::total_ns).sum();
        assert_eq!(vmm, found.time.stolen.vmm_ns);
    }

    #[test]
    fn targets() {
        let line = "f..g.1wxx.x-.t.";
        check(line, &ALL, "5 6:2:1, maybe 0:0:0");
        check(line, &APP, "2 3:1:0, maybe 2:1:1");
        check(line, &Ask { function: Some("f"), ..ALL }, "1 0:1:0, maybe 5:1:1");
        check(line, &Ask { function: Some("x"), ..ALL }, "3 1:0:0, maybe 2:1:1");
        check(line, &Ask { process: Some("2"), ..ALL }, "3 1:0:0, maybe 2:1:1");
        check(line, &Ask { thread: Some("t3"), ..ALL }, "3 1:0:0, maybe 2:1:1");
        let line = "f..f.h.h1ff";
        check(line, &Ask { thread: Some("t1"), ..ALL }, "4 2:1:0, maybe 1:0:0");
        check(line, &Ask { thread: Some("2"), ..APP }, "2 1:0:0, maybe 1:0:0");
        check(line, &Ask { thread: Some("1"), function: Some("f"), ..APP }, "4 2:1:0, maybe 1:0:0");
    }

    #[test]
    fn a_function_with_what_it_calls() {
        let line = "d..e.dd1d..ff";
        check(line, &Ask { callees: Some("d"), ..ALL }, "4 0:1:0, maybe 5:0:0");
        check(line, &Ask { callees: Some("f"), ..ALL }, "7 5:1:0, maybe 0:0:0");
        // Where a switch says the function only.
        check("ddFdd", &Ask { callees: Some("d"), ..ALL }, "4 1:0:0, maybe 0:0:0");
        check("ddFee", &Ask { callees: Some("d"), ..ALL }, "2 0:0:0, maybe 1:0:0");
        check("dkKe", &Ask { callees: Some("d"), ..ALL }, "1 0:0:0, maybe 1:0:0");
        let unknown = Ask { callees: Some("z"), ..ALL };
        let drawn = Drawn::new(&[line], "");
        let error = corrected(&drawn, OffCpuSource::Switches, &unknown).unwrap_err();
        assert!(error.to_string().contains("no sample of function \"z\""), "{error}");
    }

    #[test]
    fn only_the_window_counts() {
        check("ff....ff", &Ask { ms: 0..4, ..APP }, "2 2:0:0, maybe 0:0:0");
        check("ff....ff", &Ask { ms: 3..7, ..APP }, "1 3:0:0, maybe 0:0:0");
        check("ff....ff", &Ask { ms: 50..60, ..APP }, "0 0:0:0, maybe 0:0:0");
    }

    /// In periods.
    fn check_bound(
        line: &str,
        off_cpu_source: OffCpuSource,
        ms: std::ops::Range<u64>,
        variance: f64,
    ) {
        let found =
            corrected(&Drawn::new(&[line], ""), off_cpu_source, &Ask { ms, ..APP }).unwrap();
        let bound = found.bound_ns / MS as f64;
        assert!((bound - 1.96 * variance.sqrt()).abs() < 1e-9, "{line} {bound} {variance}");
    }

    #[test]
    fn bounds() {
        // Type 1 is counted by the kernel; what a window cuts lies somewhere in its gap.
        check_bound("ff..ff..ff", OffCpuSource::Samples, 0..10, 0.0);
        check_bound("ff....ff", OffCpuSource::Samples, 3..8, 1.0 / 12.0);
        check_bound("ff....ff", OffCpuSource::Switches, 3..8, 0.0);
        // Edges of other gaps are known to a period.
        check_bound("ffttffwf", OffCpuSource::Samples, 0..8, 4.0 / 12.0);
        check_bound("ffttffwf", OffCpuSource::Switches, 0..8, 0.0);
        // Type 2: one sample of four.
        check_bound("f1ff", OffCpuSource::Switches, 0..4, 1.0 * (1.0 - 1.0 / 4.0));
    }

    #[test]
    fn shares() {
        let check = |samples, all, variance: f64| {
            assert!((share_bound_ns(10, samples, all) - 19.6 * variance.sqrt()).abs() < 1e-9);
        };
        check(0, 0, 0.0);
        check(5, 10, 2.5);
        check(10, 10, 0.0);
        check(1, 100, 0.99);
    }

    #[test]
    fn unknown_targets() {
        let drawn = Drawn::new(&["ffgx.hhh"], "");
        let check = |ask: &Ask<'_>, expected: &str| {
            let error = corrected(&drawn, OffCpuSource::Samples, ask).unwrap_err();
            assert_eq!(error.to_string(), expected);
        };
        let nosuch = Some("nosuch");
        let process = "no sample of process \"nosuch\" in this VM; it has: app, other";
        check(&Ask { process: nosuch, ..ALL }, process);
        let thread = "no sample of thread \"nosuch\" there; it has: t1, t2";
        check(&Ask { thread: nosuch, ..APP }, thread);
        let function = "no sample of function \"nosuch\" there; it has: h, f, g";
        check(&Ask { function: nosuch, ..APP }, function);
        let function = "no sample of function \"nosuch\" there; it has: h, f, g, x";
        check(&Ask { function: nosuch, ..ALL }, function);
    }
}
