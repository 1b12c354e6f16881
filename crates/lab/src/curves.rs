//! Figures against the number of VMs, for charts.

use model::TimeAccount;
use split::Part;

use crate::ladder::{Step, steps};
use crate::observe::NOT_SPLIT;
use crate::parts::{STOLEN, StepParts};
use crate::plan::Plan;
use crate::prediction::Predicted;
use crate::report::{fitted, use_in_words};
use crate::run::{Class, CpuUse, Run};

/// A figure against the number of VMs, a curve for each treatment.
#[derive(Debug, Clone, PartialEq)]
pub struct Curves {
    pub title: String,
    /// What the figure is in.
    pub unit: &'static str,
    /// The curves; those without points are left out.
    pub series: Vec<Series>,
}

/// One curve.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    pub name: String,
    /// (VMs, figure), upwards.
    pub points: Vec<(u32, f64)>,
}

/// Parts of a whole at each number of VMs.
#[derive(Debug, Clone, PartialEq)]
pub struct Stacks {
    pub title: String,
    /// What the parts are called.
    pub parts: Vec<String>,
    /// VMs, and the parts in the same order; they add up to 1 at most.
    pub stacks: Vec<(u32, Vec<f64>)>,
}

/// Charts of what was measured.
#[must_use]
pub fn curves(plan: &Plan, runs: &[Run]) -> Vec<Curves> {
    let percent = plan.service.percentile;
    let percentile = format!("Turnaround, {percent} % of requests within");
    let per_second = |run: &Run, n: u64| n as f64 / run.seconds().max(1e-9);
    let loaded =
        |run: &Run, account: TimeAccount| Some(100.0 * run.vms.get(&Class::Loaded)?.part(account));
    let mut all = vec![
        by_treatment(plan, runs, &percentile, "ms", &|step| {
            step.percentile_ms(percent).map(|interval| interval.mean)
        }),
        by_treatment(plan, runs, "Mean turnaround", "ms", &|step| {
            step.mean_ms().map(|interval| interval.mean)
        }),
        by_treatment(plan, runs, "Context switches", "/s", &|step| {
            step.figure(|run| Some(per_second(run, run.host.context_switches)))
        }),
        by_treatment(plan, runs, "Threads that ran or could have run", "", &|step| {
            step.figure(|run| run.host.runnable)
        }),
        by_treatment(plan, runs, "Load average", "", &|step| {
            step.figure(|run| run.host.load_average)
        }),
        by_treatment(plan, runs, "Busy CPUs", "", &|step| step.figure(Run::busy_cpus)),
        by_treatment(plan, runs, "loaded VMs waited for a CPU", "%", &|step| {
            step.figure(|run| loaded(run, TimeAccount::StealOutside))
        }),
    ];
    all.extend(plan.treatments().iter().filter_map(|treatment| model(runs, &treatment.name)));
    all.retain(|curves| !curves.series.is_empty());
    all
}

fn by_treatment(
    plan: &Plan,
    runs: &[Run],
    title: &str,
    unit: &'static str,
    of: &dyn Fn(&Step<'_>) -> Option<f64>,
) -> Curves {
    let treatments = plan.treatments().into_iter();
    let series = treatments.map(|treatment| Series {
        points: points(&steps(runs, &treatment.name), of),
        name: treatment.name,
    });
    let series = series.filter(|series| !series.points.is_empty()).collect();
    Curves { title: title.to_owned(), unit, series }
}

fn points(steps: &[Step<'_>], of: &dyn Fn(&Step<'_>) -> Option<f64>) -> Vec<(u32, f64)> {
    steps.iter().filter_map(|step| Some((step.vms, of(step)?))).collect()
}

/// What was measured beside what the model says.
fn model(runs: &[Run], treatment: &str) -> Option<Curves> {
    let steps = steps(runs, treatment);
    let (model, n_fitted) = fitted(&steps)?;
    let measured = points(&steps, &|step| step.mean_ms().map(|interval| interval.mean));
    let last = steps.last()?.vms;
    let reported = (1..=last).filter_map(|vms| match model.predict(vms) {
        Predicted::Ms(ms) => Some((vms, ms)),
        Predicted::Full => None,
    });
    let highest = measured.iter().fold(0.0, |high: f64, (_, ms)| high.max(*ms));
    // Just before the host is full the model goes through the roof, and nothing else would be seen.
    let reported = reported.take_while(|(_, ms)| *ms <= 2.0 * highest);
    let series = vec![
        Series { name: "measured".to_owned(), points: measured },
        Series { name: format!("model, fitted to {n_fitted} steps"), points: reported.collect() },
    ];
    let title = format!("Mean turnaround and the model, {treatment}");
    Some(Curves { title, unit: "ms", series })
}

/// What the CPUs did, for each treatment, and the parts of captured turnarounds.
#[must_use]
pub fn stacks(plan: &Plan, runs: &[Run]) -> Vec<Stacks> {
    let names = plan.treatments().into_iter().map(|treatment| treatment.name);
    let names: Vec<String> = names.collect();
    let cpus = names.iter().map(|name| cpu_stacks(runs, name));
    let parts = names.iter().map(|name| part_stacks(runs, name));
    cpus.chain(parts).filter(|all| !all.stacks.is_empty()).collect()
}

fn cpu_stacks(runs: &[Run], treatment: &str) -> Stacks {
    let share = |step: &Step<'_>, which: CpuUse| {
        step.figure(|run| run.use_shares().get(&which).copied()).unwrap_or(0.0)
    };
    let stacks = steps(runs, treatment)
        .iter()
        .map(|step| (step.vms, CpuUse::SAMPLED.iter().map(|which| share(step, *which)).collect()))
        .collect();
    let parts = CpuUse::SAMPLED.iter().map(|which| use_in_words(*which).to_owned()).collect();
    Stacks {
        title: format!("What the CPUs did, {treatment}, in % of the time sampled"),
        parts,
        stacks,
    }
}

/// Each part without what was stolen in it, then who stole; what is nowhere is left out.
fn part_stacks(runs: &[Run], treatment: &str) -> Stacks {
    let steps = steps(runs, treatment);
    let steps: Vec<(u32, StepParts)> =
        steps.iter().filter_map(|step| Some((step.vms, StepParts::from_step(step)?))).collect();
    let mut names: Vec<&str> = Part::ALL.map(Part::name).into();
    names.push(NOT_SPLIT);
    names.extend(STOLEN.map(|(name, _)| name));
    let share = |all: &StepParts, name: &str| {
        let theft = STOLEN.iter().find(|(known, _)| *known == name);
        let ns = match theft {
            Some((_, theft)) => all.stolen_ns(*theft),
            None => all.parts.iter().find(|(known, _)| *known == name).map_or(0, |(_, part)| {
                STOLEN
                    .iter()
                    .fold(part.ns(), |ns, (_, theft)| ns.saturating_sub(part.stolen_ns(*theft)))
            }),
        };
        ns as f64 / all.ns().max(1) as f64
    };
    names.retain(|name| steps.iter().any(|(_, all)| 0.0 < share(all, name)));
    let stacks =
        steps.iter().map(|(vms, all)| (*vms, names.iter().map(|name| share(all, name)).collect()));
    Stacks {
        title: format!("Captured turnarounds by parts, and what was stolen in them, {treatment}"),
        stacks: stacks.collect(),
        parts: names.into_iter().map(str::to_owned).collect(),
    }
}
