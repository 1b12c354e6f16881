//! How many VMs the host takes, why no more, and how sure that is.

use std::collections::BTreeMap;

use model::TimeAccount;

use crate::ladder::{Step, steps};
use crate::plan::Plan;
use crate::run::{Class, CpuUse, Run, sum};
use crate::statistics::{Interval, change};

/// What is said of a treatment.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    pub treatment: String,
    /// The most VMs with which it, and every step below, kept to the service level; `None`: not even the first.
    pub takes: Option<u32>,
    /// The first step that did not.
    pub fails: Option<Failure>,
}

/// A step that did not keep to the service level.
#[derive(Debug, Clone, PartialEq)]
pub struct Failure {
    pub vms: u32,
    /// The percentile of the service level, ms; `None`: too many requests failed.
    pub percentile_ms: Option<Interval>,
    /// The part of requests that failed.
    pub failed_part: f64,
    /// Requests that were sent in all measurements.
    pub requests: u64,
    /// The percentile of the middle one of its measurements, which decides, ms; `None`: too many requests failed.
    pub decisive_ms: Option<f64>,
    /// How many of its measurements kept to the service level, of how many.
    pub agreeing: (usize, usize),
    pub cause: Cause,
}

/// What the CPUs did at a step, and what the loaded VMs lost.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Cause {
    /// The part of all CPUs' time that was used.
    pub busy: Option<f64>,
    /// Parts of all CPUs' time, the largest first, without idle.
    pub uses: Vec<(CpuUse, f64)>,
    /// The exit reason that took most time of idle VMs, and its part of all CPUs' time.
    pub idle_exit: Option<(String, f64)>,
    /// The part of their time that loaded VMs waited for a CPU.
    pub waited: Option<f64>,
    /// Who had it meanwhile, and which part of the waiting: the largest.
    pub thief: Option<(String, f64)>,
    /// The part of their time that KVM and QEMU took for loaded VMs.
    pub in_vmm: Option<f64>,
}

/// The verdict on each treatment that was measured, in the plan's order. VMs that run already do not say how many a host
/// takes.
#[must_use]
pub fn verdicts(plan: &Plan, runs: &[Run]) -> Vec<Verdict> {
    if !plan.attach.is_empty() {
        return Vec::new();
    }
    let treatments = plan.treatments().into_iter();
    treatments.filter_map(|treatment| verdict(plan, runs, &treatment.name)).collect()
}

fn verdict(plan: &Plan, runs: &[Run], treatment: &str) -> Option<Verdict> {
    let steps = steps(runs, treatment);
    steps.first()?;
    let failing = steps.iter().position(|step| !step.passes(&plan.service));
    let passing = &steps[..failing.unwrap_or(steps.len())];
    let failure = |step: &Step<'_>| Failure {
        vms: step.vms,
        percentile_ms: step.percentile_ms(plan.service.percentile),
        failed_part: step.failed_part().unwrap_or(0.0),
        decisive_ms: step.decisive_ms(plan.service.percentile),
        requests: sum(step.runs.iter().map(|run| run.load.turnarounds.len())),
        agreeing: (step.agreeing(&plan.service), step.runs.len()),
        cause: Cause::from_step(step),
    };
    Some(Verdict {
        treatment: treatment.to_owned(),
        takes: passing.last().map(|step| step.vms),
        fails: failing.map(|at| failure(&steps[at])),
    })
}

impl Cause {
    fn from_step(step: &Step<'_>) -> Self {
        let runs = &step.runs;
        let n_cpus = runs.first().map_or(0, |run| run.cpus.len());
        let busy = step.figure(Run::busy_cpus).map(|cpus| cpus / n_cpus.max(1) as f64);
        let mut uses: BTreeMap<CpuUse, f64> = BTreeMap::new();
        for (which, part) in runs.iter().flat_map(|run| run.use_shares()) {
            *uses.entry(which).or_default() += part / runs.len() as f64;
        }
        let mut uses: Vec<(CpuUse, f64)> =
            uses.into_iter().filter(|(which, _)| *which != CpuUse::Idle).collect();
        uses.sort_by(|a, b| b.1.total_cmp(&a.1));
        let of_loaded = |account: TimeAccount| {
            step.figure(move |run| Some(run.vms.get(&Class::Loaded)?.part(account)))
        };
        Self {
            busy,
            uses,
            idle_exit: largest(runs.iter().flat_map(|run| exits(run, Class::Idle)))
                .map(|(name, part)| (name, part / runs.len() as f64)),
            waited: of_loaded(TimeAccount::StealOutside),
            thief: thief(runs),
            in_vmm: of_loaded(TimeAccount::StealVmm),
        }
    }
}

/// Exit reasons of a class, as parts of all CPUs' time. A halt is not the VMM's work.
fn exits(run: &Run, class: Class) -> Vec<(String, f64)> {
    let all = run.window_ns.max(1) as f64 * run.cpus.len().max(1) as f64;
    let exits = run.vms.get(&class).into_iter().flat_map(|vms| &vms.exits);
    exits.map(|(name, exit)| (name.clone(), exit.ns as f64 / all)).collect()
}

fn thief(runs: &[&Run]) -> Option<(String, f64)> {
    let loaded = || runs.iter().filter_map(|run| run.vms.get(&Class::Loaded));
    let all = sum(loaded().flat_map(|vms| vms.thieves.values().copied()));
    let each = loaded().flat_map(|vms| &vms.thieves);
    largest(each.map(|(name, ns)| (name.clone(), *ns as f64 / all.max(1) as f64)))
}

/// The name with the largest sum.
fn largest(parts: impl Iterator<Item = (String, f64)>) -> Option<(String, f64)> {
    let mut sums: BTreeMap<String, f64> = BTreeMap::new();
    parts.for_each(|(name, part)| *sums.entry(name).or_default() += part);
    sums.into_iter().filter(|(_, sum)| 0.0 < *sum).max_by(|a, b| a.1.total_cmp(&b.1))
}

/// By which part a treatment changes a figure at a number of VMs, from pairs of measurements of one repetition.
#[must_use]
pub fn effect(
    runs: &[Run],
    (base, treatment): (&str, &str),
    vms: u32,
    figure: impl Fn(&Run) -> Option<f64>,
) -> Option<Interval> {
    let of = |name: &str, repetition: u32| {
        let wanted = |run: &&Run| {
            (run.key.vms, run.key.repetition) == (vms, repetition) && run.key.treatment == name
        };
        runs.iter().find(wanted).and_then(&figure)
    };
    let repetitions =
        runs.iter().filter(|run| run.key.vms == vms && run.key.treatment == treatment);
    let pairs: Vec<(f64, f64)> = repetitions
        .filter_map(|run| Some((of(base, run.key.repetition)?, of(treatment, run.key.repetition)?)))
        .collect();
    change(&pairs)
}
