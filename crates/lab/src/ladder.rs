//! What is measured next, and whether a step keeps to the service level.

use std::collections::BTreeSet;

use crate::plan::{Plan, Rungs, ServiceLevel};
use crate::remedy::Treatment;
use crate::run::{Run, RunKey};
use crate::statistics::{Interval, mean, mean_of_sizes, median};

/// All measurements of a treatment at a number of VMs.
#[derive(Debug, Clone)]
pub struct Step<'r> {
    /// VMs that ran.
    pub vms: u32,
    /// In the order of repetitions.
    pub runs: Vec<&'r Run>,
}

/// The steps of a treatment, upwards; those without a measurement are left out.
#[must_use]
pub fn steps<'r>(runs: &'r [Run], treatment: &str) -> Vec<Step<'r>> {
    let mut of_treatment: Vec<&Run> =
        runs.iter().filter(|run| run.key.treatment == treatment).collect();
    of_treatment.sort_by_key(|run| (run.key.vms, run.key.repetition));
    let mut steps: Vec<Step<'r>> = Vec::new();
    for run in of_treatment {
        match steps.last_mut() {
            Some(step) if step.vms == run.key.vms => step.runs.push(run),
            _ => steps.push(Step { vms: run.key.vms, runs: vec![run] }),
        }
    }
    steps
}

/// The treatments of a ladder that are measured with so many VMs: those that kept to the service level with less.
fn going_on(plan: &Plan, rungs: &Rungs, runs: &[Run], vms: u32) -> Vec<usize> {
    let treatments = plan.treatments();
    let goes_on = |number: &usize| {
        let steps = steps(runs, &treatments[*number].name);
        let mut before = steps.iter().filter(|step| step.vms < vms);
        plan.ladder.to_the_end || before.all(|step| step.passes(&plan.service))
    };
    rungs.treatments.iter().copied().filter(goes_on).collect()
}

/// The next step of a ladder that has something to be measured, and what, in order.
#[must_use]
pub fn left(plan: &Plan, rungs: &Rungs, runs: &[Run]) -> Option<(u32, Vec<(Treatment, RunKey)>)> {
    let treatments = plan.treatments();
    let done: BTreeSet<&RunKey> = runs.iter().map(|run| &run.key).collect();
    plan.ladder.vms.iter().find_map(|&vms| {
        let going = going_on(plan, rungs, runs, vms);
        let mut order = order(plan, &going, vms);
        order.retain(|(_, key)| !done.contains(key));
        let order = order.into_iter().map(|(number, key)| (treatments[number].clone(), key));
        let order: Vec<_> = order.collect();
        (!order.is_empty()).then_some((vms, order))
    })
}

/// The measurements of a step in the order in which they are made: each repetition has each treatment once, in random order,
/// so that what changes slowly on the host is the same for all.
fn order(plan: &Plan, treatments: &[usize], vms: u32) -> Vec<(usize, RunKey)> {
    let seed = plan.ladder.seed.wrapping_mul(1_000_003).wrapping_add(u64::from(vms));
    let mut random = fastrand::Rng::with_seed(seed);
    let all = plan.treatments();
    let mut order = Vec::new();
    for repetition in 0..plan.ladder.repetitions {
        let mut shuffled = treatments.to_vec();
        random.shuffle(&mut shuffled);
        order.extend(shuffled.into_iter().map(|number| {
            (number, RunKey { vms, treatment: all[number].name.clone(), repetition })
        }));
    }
    order
}

impl Step<'_> {
    /// A percentile of the turnaround in ms, as the mean of the measurements' percentiles. `None`: too many failed in one.
    #[must_use]
    pub fn percentile_ms(&self, percent: f64) -> Option<Interval> {
        mean_of_sizes(&self.percentiles_ms(percent)?)
    }

    /// A percentile of the turnaround of each measurement, ms. `None`: too many failed in one.
    #[must_use]
    pub fn percentiles_ms(&self, percent: f64) -> Option<Vec<f64>> {
        let of_run =
            |run: &&Run| run.load.turnarounds.percentile(percent).map(|ns| ns as f64 / 1e6);
        self.runs.iter().map(of_run).collect()
    }

    /// A percentile of the middle measurement, ms: more than half of the measurements have that or more. `None`: too many
    /// failed in it.
    #[must_use]
    pub fn decisive_ms(&self, percent: f64) -> Option<f64> {
        let of_run = |run: &&Run| run.load.turnarounds.percentile(percent);
        let mut sorted: Vec<Option<u64>> = self.runs.iter().map(of_run).collect();
        // Those that failed took longest.
        sorted.sort_by_key(|ns| ns.unwrap_or(u64::MAX));
        sorted.get(sorted.len() / 2)?.map(|ns| ns as f64 / 1e6)
    }

    /// The mean turnaround in ms of what was answered.
    #[must_use]
    pub fn mean_ms(&self) -> Option<Interval> {
        let of_run = |run: &&Run| run.load.turnarounds.mean().map(|ns| ns / 1e6);
        mean_of_sizes(&self.runs.iter().filter_map(of_run).collect::<Vec<f64>>())
    }

    /// The mean of a figure over the measurements that have it.
    #[must_use]
    pub fn figure(&self, of_run: impl Fn(&Run) -> Option<f64>) -> Option<f64> {
        let values: Vec<f64> = self.runs.iter().filter_map(|run| of_run(run)).collect();
        mean(&values).map(|interval| interval.mean)
    }

    /// Whether it keeps to the service level: the middle one of its measurements does.
    #[must_use]
    pub fn passes(&self, service: &ServiceLevel) -> bool {
        let agree = self.agreeing(service);
        self.runs.len() < 2 * agree
    }

    /// How many of its measurements keep to the service level.
    #[must_use]
    pub fn agreeing(&self, service: &ServiceLevel) -> usize {
        self.runs.iter().filter(|run| keeps_to(run, service)).count()
    }

    /// The part of requests that failed.
    #[must_use]
    pub fn failed_part(&self) -> Option<f64> {
        median(&self.runs.iter().map(|run| run.load.failed_part()).collect::<Vec<f64>>())
    }
}

fn keeps_to(run: &Run, service: &ServiceLevel) -> bool {
    let longest = run.load.turnarounds.percentile(service.percentile);
    longest.is_some_and(|ns| ns as f64 <= service.within_ms * 1e6)
        && run.load.failed_part() <= service.errors
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::run::Load;
    use crate::turnaround::Turnarounds;

    fn plan() -> Plan {
        let text = "name = \"x\"\n[load]\nrate = 10\n[ladder]\nvms = [1, 2, 4]\nrepetitions = 3\n\
                    [service]\nwithin_ms = 100\npercentile = 90\n\
                    [[remedy]]\nname = \"nice\"\nnice = 19\n[[remedy]]\nname = \"weight\"\ncpu_weight = 1\n";
        Plan::parse(text).unwrap()
    }

    fn run(vms: u32, treatment: &str, repetition: u32, ms: u64, failed: u64) -> Run {
        let mut turnarounds = Turnarounds::new();
        (failed..100).for_each(|_| turnarounds.add(ms * 1_000_000));
        (0..failed).for_each(|_| turnarounds.add_failed("timeout"));
        let key = RunKey { vms, treatment: treatment.to_owned(), repetition };
        Run::new(key, 1, Load { length_ns: 1, turnarounds, late_p99_ns: 0, cpu_ns: 0 })
    }

    #[test]
    fn the_middle_measurement_decides() {
        let check = |runs: [(u64, u64); 3], expected| {
            let runs: Vec<Run> =
                (0..).zip(runs).map(|(n, (ms, f))| run(2, "a", n, ms, f)).collect();
            let steps = steps(&runs, "a");
            assert_eq!(steps[0].passes(&plan().service), expected);
        };
        check([(50, 0), (50, 0), (50, 0)], true);
        check([(50, 0), (150, 0), (50, 0)], true);
        check([(50, 0), (150, 0), (50, 2)], false);
        check([(50, 20), (50, 20), (50, 20)], false);
        check([(101, 0), (101, 0), (101, 0)], false);
    }

    #[test]
    fn treatments_go_on_until_they_fail() {
        let plan = plan();
        let rungs = &plan.ladders()[0];
        let runs =
            [run(1, "as it is", 0, 50, 0), run(2, "as it is", 0, 500, 0), run(2, "nice", 0, 50, 0)];
        assert_eq!(going_on(&plan, rungs, &runs, 1), [0, 1, 2]);
        assert_eq!(going_on(&plan, rungs, &runs, 2), [0, 1, 2]);
        assert_eq!(going_on(&plan, rungs, &runs, 4), [1, 2]);
    }

    #[test]
    fn what_is_left_is_what_was_not_measured() {
        let text = "name = \"x\"\n[load]\nrate = 10\n[ladder]\nvms = [1, 2]\nrepetitions = 1\n\
                    [service]\nwithin_ms = 100\n";
        let plan = Plan::parse(text).unwrap();
        let rungs = &plan.ladders()[0];
        let next = |runs: &[Run]| {
            let left = left(&plan, rungs, runs);
            left.map(|(vms, order)| (vms, order.len()))
        };
        assert_eq!(next(&[]), Some((1, 1)));
        assert_eq!(next(&[run(1, "as it is", 0, 50, 0)]), Some((2, 1)));
        assert_eq!(next(&[run(1, "as it is", 0, 500, 0)]), None);
        assert_eq!(next(&[run(1, "as it is", 0, 50, 0), run(2, "as it is", 0, 50, 0)]), None);
    }

    #[test]
    fn each_repetition_has_each_treatment_once_in_another_order() {
        let plan = plan();
        let order = order(&plan, &[0, 1, 2], 4);
        assert_eq!(order.len(), 9);
        let mut orders = Vec::new();
        for (number, block) in order.chunks(3).enumerate() {
            let mut treatments: Vec<usize> =
                block.iter().map(|(treatment, _)| *treatment).collect();
            assert!(block.iter().all(|(_, key)| key.repetition as usize == number && key.vms == 4));
            orders.push(treatments.clone());
            treatments.sort_unstable();
            assert_eq!(treatments, [0, 1, 2]);
        }
        assert!(orders.iter().any(|order| *order != orders[0]), "{orders:?}");
        assert_eq!(super::order(&plan, &[0, 1, 2], 4), order);
    }
}
