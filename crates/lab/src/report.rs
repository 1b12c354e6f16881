//! Results as tables of crate `table`.

mod compare;
mod dry_run;
mod load;
mod parts;
mod prose;

use std::collections::BTreeMap;

use model::TimeAccount;
use serde_json::json;
use table::{Cell, Column, Part, Report, Table};

use crate::ladder::{Step, steps};
use crate::plan::Plan;
use crate::prediction::{Model, Point, Predicted};
use crate::remedy::AS_IT_IS;
use crate::run::{Class, CpuUse, Run, Vms};
use crate::statistics::{Interval, line, mean};
use crate::verdict::{effect, verdicts};

pub use compare::{Side, compare};
pub use dry_run::dry_run;
pub use load::load;
pub(crate) use prose::use_in_words;

const VERSION: u32 = 1;
/// Steps that a model needs.
const MIN_FITTED: usize = 3;
/// What is predicted beyond the ladder: these numbers of VMs, and those of the seed's host.
const BEYOND: [u32; 6] = [16, 32, 64, 100, 144, 200];

/// What a plan's measurements show; `problems`: files of them that could not be read.
#[must_use]
pub fn results(plan: &Plan, runs: &[Run], problems: &[String]) -> Report {
    let mut report = Report::default();
    report.fact("Plan", plan.name.clone());
    report.fact("Host", host(runs));
    report.fact("Measurements", measurements(plan, runs));
    report.notes = problems.iter().take(20).cloned().chain(notes(runs)).collect();
    let verdicts = verdicts(plan, runs);
    report.parts.extend(prose::verdicts(plan, &verdicts).into_iter().map(Part::Prose));
    let tables =
        [answers(plan, runs), host_table(plan, runs), time(plan, runs), others(plan, runs)];
    let parts = parts::parts(plan, runs);
    let (effects, predictions) = (effects(plan, runs), predictions(plan, runs));
    report.json = json!({
        "version": VERSION,
        "plan": plan.name,
        "notes": report.notes,
        "verdicts": verdicts.iter().map(prose::json).collect::<Vec<_>>(),
        "answers": tables[0].json(),
        "host": tables[1].json(),
        "loaded": tables[2].json(),
        "idle": tables[3].json(),
        "parts": parts.json(),
        "effects": effects.json(),
        "predictions": predictions.json(),
    });
    let all = tables.into_iter().chain([parts, effects, predictions]);
    report.parts.extend(all.filter(|table| !table.rows.is_empty()).map(Part::Table));
    report.data = Some(each(runs));
    report
}

fn host(runs: &[Run]) -> String {
    let n_cpus = runs.first().map_or(0, |run| run.cpus.len());
    let memory = runs.first().map_or(0, |run| run.host.memory_bytes >> 20);
    format!("{n_cpus} CPUs, {memory} MiB")
}

fn measurements(plan: &Plan, runs: &[Run]) -> String {
    let seconds: f64 = runs.iter().map(Run::seconds).sum();
    let own = runs.iter().map(|run| sum(&[CpuUse::Recorder], &run.use_shares()));
    let own = mean(&own.collect::<Vec<f64>>()).map_or(0.0, |own| own.mean);
    format!(
        "{} of {:.1} s each; a sample every {} ms of each CPU; vmscope itself took {:.1} % of the CPUs",
        runs.len(),
        seconds / runs.len().max(1) as f64,
        plan.ladder.period_ms,
        percent_of(own),
    )
}

/// Each once, with how often.
fn notes(runs: &[Run]) -> Vec<String> {
    let mut notes: Vec<(&str, usize)> = Vec::new();
    for note in runs.iter().flat_map(|run| &run.notes) {
        match notes.iter_mut().find(|(known, _)| known == note) {
            Some((_, n)) => *n += 1,
            None => notes.push((note, 1)),
        }
    }
    let reported = notes.into_iter().take(20);
    reported
        .map(|(note, n)| if n == 1 { note.to_owned() } else { format!("{note} ({n} times)") })
        .collect()
}

/// All steps of all treatments, in the plan's order.
fn all_steps<'r>(plan: &Plan, runs: &'r [Run]) -> Vec<(String, Step<'r>)> {
    let treatments = plan.treatments().into_iter();
    treatments
        .flat_map(|treatment| {
            let steps = steps(runs, &treatment.name).into_iter();
            steps.map(move |step| (treatment.name.clone(), step)).collect::<Vec<_>>()
        })
        .collect()
}

fn step_columns() -> Vec<Column> {
    vec![Column::name("Remedy").key("treatment"), Column::number("VMs").key("vms")]
}

fn real(title: &str, key: &'static str) -> Column {
    Column::number(title.to_owned()).key(key).decimals(1)
}

fn cell(value: Option<f64>) -> Cell {
    value.map_or(Cell::NONE, Cell::Real)
}

fn percent_of(part: f64) -> f64 {
    100.0 * part
}

/// How requests were answered.
fn answers(plan: &Plan, runs: &[Run]) -> Table {
    let mut columns = step_columns();
    columns.extend([
        Column::number("loaded").key("loaded"),
        Column::number("runs").key("runs"),
        real("sent/s", "sent_per_s"),
        real("answers/s", "answered_per_s"),
        real("failed %", "failed_percent"),
        real("p50 ms", "p50_ms"),
        real("p95 ms", "p95_ms"),
        real("from", "p95_low_ms"),
        real("to", "p95_high_ms"),
        real("p99 ms", "p99_ms"),
        real("mean ms", "mean_ms"),
        Column::name("Service level").key("passes"),
    ]);
    let mut table = Table::new("Turnaround by number of VMs", columns);
    for (treatment, step) in all_steps(plan, runs) {
        let of_load =
            |of: fn(&crate::run::Load) -> f64| cell(step.figure(move |run| Some(of(&run.load))));
        let percentile = |percent| step.percentile_ms(percent);
        let mean = |interval: Option<Interval>| cell(interval.map(|interval| interval.mean));
        if step.runs.iter().all(|run| run.load.turnarounds.is_empty()) {
            continue;
        }
        let p95 = percentile(95.0);
        let (good, all) = (step.agreeing(&plan.service), step.runs.len());
        let verdict = if step.passes(&plan.service) { "kept" } else { "not kept" };
        table.row([
            treatment.into(),
            step.vms.into(),
            step.runs.first().map_or(0, |run| run.loaded).into(),
            (all as u64).into(),
            of_load(crate::run::Load::sent_per_s),
            of_load(crate::run::Load::answered_per_s),
            cell(step.failed_part().map(percent_of)),
            mean(percentile(50.0)),
            mean(p95),
            cell(p95.and_then(|p95| p95.low)),
            cell(p95.and_then(|p95| p95.high)),
            mean(percentile(99.0)),
            mean(step.mean_ms()),
            format!("{verdict}, {good} of {all}").into(),
        ]);
    }
    table.notes.push(
        "Turnaround: from when a request was meant to be sent. From, to: the mean p95, with 95 % confidence over the runs."
            .to_owned(),
    );
    table
}

/// What the host did.
fn host_table(plan: &Plan, runs: &[Run]) -> Table {
    let mut columns = step_columns();
    columns.extend([
        Column::number("switches/s").key("context_switches_per_s").decimals(0),
        Column::number("runnable").key("runnable").decimals(2),
        Column::number("load avg").key("load_average").decimals(2),
        real("busy %", "busy_percent"),
        real("loaded VMs %", "loaded_percent"),
        real("other VMs %", "idle_percent"),
        real("of it VMM %", "idle_vmm_percent"),
        real("generator %", "generator_percent"),
        real("vmscope %", "recorder_percent"),
        real("host %", "host_percent"),
        real("unsampled %", "unsampled_percent"),
        real("free MiB", "available_mib"),
        real("merged MiB", "merged_mib"),
    ]);
    let mut table = Table::new("The host", columns);
    for (treatment, step) in all_steps(plan, runs) {
        let uses = |wanted: &'static [CpuUse]| {
            let part = step.figure(move |run| {
                let shares = run.use_shares();
                Some(sum(wanted, &shares))
            });
            cell(part.map(percent_of))
        };
        let n_cpus = step.runs.first().map_or(1, |run| run.cpus.len().max(1)) as f64;
        let busy = step.figure(Run::busy_cpus).map(|busy| percent_of(busy / n_cpus));
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        table.row([
            treatment.into(),
            step.vms.into(),
            cell(
                step.figure(|run| Some(run.host.context_switches as f64 / run.seconds().max(1e-9))),
            ),
            cell(step.figure(|run| run.host.runnable)),
            cell(step.figure(|run| run.host.load_average)),
            cell(busy),
            uses(&[CpuUse::LoadedGuest, CpuUse::LoadedVmm]),
            uses(&[CpuUse::IdleGuest, CpuUse::IdleVmm]),
            uses(&[CpuUse::IdleVmm]),
            uses(&[CpuUse::Generator]),
            uses(&[CpuUse::Recorder]),
            uses(&[CpuUse::Host]),
            cell(step.figure(|run| Some(percent_of(run.unsampled_part())))),
            cell(step.figure(|run| Some(mib(run.host.available_bytes)))),
            cell(step.figure(|run| run.host.merged_bytes.map(mib))),
        ]);
    }
    table.notes.push(
        "Per cent of all CPUs' time that was sampled. Runnable: threads that ran or waited for a CPU, on average."
            .to_owned(),
    );
    table
}

/// Time of loaded VMs by use.
fn time(plan: &Plan, runs: &[Run]) -> Table {
    let mut columns = step_columns();
    columns.extend([
        real("guest", "guest_percent"),
        real("halt", "halt_percent"),
        real("polling", "halt_polling_percent"),
        real("steal type 1", "steal_outside_percent"),
        real("by idle VMs", "by_idle_percent"),
        real("by loaded VMs", "by_loaded_percent"),
        real("steal type 2", "steal_vmm_percent"),
        real("throttled", "throttled_percent"),
        real("other", "other_percent"),
        Column::number("exits/s").key("exits_per_s").decimals(0),
    ]);
    let mut table = Table::new("Time of the loaded VMs, in %", columns);
    for (treatment, step) in all_steps(plan, runs) {
        let of =
            |of: &dyn Fn(&Vms) -> f64| cell(step.figure(|run| run.vms.get(&Class::Loaded).map(of)));
        let part = |account: TimeAccount| of(&move |vms: &Vms| percent_of(vms.part(account)));
        let by = |thief: &'static str| {
            of(&move |vms: &Vms| {
                let ns = vms.thieves.get(thief).copied().unwrap_or(0);
                100.0 * ns as f64 / vms.wall_ns().max(1) as f64
            })
        };
        table.row([
            treatment.into(),
            step.vms.into(),
            part(TimeAccount::Guest),
            part(TimeAccount::Halt),
            part(TimeAccount::HaltPolling),
            part(TimeAccount::StealOutside),
            by("idle VMs"),
            by("loaded VMs"),
            part(TimeAccount::StealVmm),
            part(TimeAccount::Throttled),
            of(&|vms: &Vms| {
                let rare = [TimeAccount::Paused, TimeAccount::NotSampled, TimeAccount::Unknown];
                percent_of(rare.map(|account| vms.part(account)).iter().sum::<f64>())
            }),
            cell(step.figure(|run| per_second(run, Class::Loaded, Vms::n_exits))),
        ]);
    }
    table
}

/// Events of a class a second, all its VMs together.
fn per_second(run: &Run, class: Class, count: impl Fn(&Vms) -> Option<u64>) -> Option<f64> {
    Some(count(run.vms.get(&class)?)? as f64 / run.seconds().max(1e-9))
}

/// Several uses together. (A sum of none would be a negative zero.)
fn sum(wanted: &[CpuUse], shares: &BTreeMap<CpuUse, f64>) -> f64 {
    wanted.iter().filter_map(|which| shares.get(which)).fold(0.0, |sum, share| sum + share)
}

/// What each of the other VMs cost.
fn others(plan: &Plan, runs: &[Run]) -> Table {
    let mut columns = step_columns();
    columns.extend([
        Column::number("idle VMs").key("idle"),
        Column::number("CPU % each").key("cpu_percent_each").decimals(2),
        Column::number("of it VMM %").key("vmm_percent_each").decimals(2),
        real("exits/s each", "exits_per_s_each"),
        real("interrupts/s each", "injected_per_s_each"),
        real("MiB each", "private_mib_each"),
        real("MiB huge each", "huge_mib_each"),
        Column::name("Most VMM time for").key("top_exit"),
        real("steal type 1 %", "steal_outside_percent"),
    ]);
    let mut table = Table::new("The other VMs", columns);
    for (treatment, step) in all_steps(plan, runs) {
        let n = step.figure(|run| Some(f64::from(run.vms.get(&Class::Idle)?.n)));
        let Some(n) = n.filter(|n| 0.0 < *n) else { continue };
        let each = |wanted: &'static [CpuUse]| {
            let part = step.figure(move |run| {
                let shares = run.use_shares();
                Some(sum(wanted, &shares) * run.cpus.len() as f64)
            });
            cell(part.map(|part| percent_of(part) / n))
        };
        let rate = |count: fn(&Vms) -> Option<u64>| {
            let all = step.figure(move |run| per_second(run, Class::Idle, count));
            cell(all.map(|all| all / n))
        };
        let mebibytes = |bytes: fn(&Vms) -> Option<u64>| {
            let all = step.figure(move |run| Some(bytes(run.vms.get(&Class::Idle)?)? as f64));
            cell(all.map(|all| all / f64::from(1 << 20) / n))
        };
        table.row([
            treatment.into(),
            step.vms.into(),
            cell_count(n),
            each(&[CpuUse::IdleGuest, CpuUse::IdleVmm]),
            each(&[CpuUse::IdleVmm]),
            rate(Vms::n_exits),
            rate(|vms| vms.injected),
            mebibytes(|vms| vms.private_bytes),
            mebibytes(|vms| vms.huge_bytes),
            top_exit(&step).map_or(Cell::NONE, Cell::from),
            cell(step.figure(|run| {
                Some(percent_of(run.vms.get(&Class::Idle)?.part(TimeAccount::StealOutside)))
            })),
        ]);
    }
    table.notes.push(
        "MiB: memory that a VM's process shares with no other; huge: in huge pages, shared or not."
            .to_owned(),
    );
    table.notes.extend(memory(plan, runs));
    table
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number of VMs")]
fn cell_count(n: f64) -> Cell {
    Cell::from(n.round() as u64)
}

fn top_exit(step: &Step<'_>) -> Option<String> {
    let exits = step.runs.last()?.vms.get(&Class::Idle)?.exits.iter();
    exits.max_by_key(|(_, exit)| exit.ns).map(|(name, _)| name.clone())
}

/// Memory that each further VM took, as the line through what was free at each step.
fn memory(plan: &Plan, runs: &[Run]) -> Option<String> {
    let of_first_ladder = plan.ladders().into_iter().next()?;
    let all = plan.treatments();
    let names: Vec<&String> = of_first_ladder.treatments.iter().map(|n| &all[*n].name).collect();
    let free = runs.iter().filter(|run| names.contains(&&run.key.treatment));
    let points: Vec<(f64, f64)> = free
        .map(|run| (f64::from(run.key.vms), run.host.available_bytes as f64 / f64::from(1 << 20)))
        .collect();
    let (_, slope) = line(&points)?;
    Some(format!("The host had {:.1} MiB less for each further VM.", -slope))
}

/// What remedies change, by pairs of measurements.
fn effects(plan: &Plan, runs: &[Run]) -> Table {
    let mut columns = step_columns();
    let percentile = plan.service.percentile;
    let change = |title: String, key: &'static str| Column::number(title).key(key).decimals(1);
    columns.extend([
        Column::number("pairs").key("pairs"),
        change(format!("p{percentile} %"), "percentile_percent"),
        change("from".to_owned(), "percentile_low_percent"),
        change("to".to_owned(), "percentile_high_percent"),
        change("mean %".to_owned(), "mean_percent"),
        change("switches %".to_owned(), "switches_percent"),
        change("busy %".to_owned(), "busy_percent"),
        Column::name("Sure").key("sure"),
    ]);
    let mut table = Table::new("What remedies change", columns);
    let treatments = plan.treatments();
    let base_guest = treatments.first().map(|base| base.guest.clone());
    for (treatment, step) in all_steps(plan, runs) {
        if treatment == AS_IT_IS {
            continue;
        }
        let of = |figure: &dyn Fn(&Run) -> Option<f64>| {
            effect(runs, (AS_IT_IS, &treatment), step.vms, figure)
        };
        let Some(change) =
            of(&|run| run.load.turnarounds.percentile(percentile).map(|ns| ns as f64))
        else {
            continue;
        };
        let signed =
            |value: Option<f64>| value.map_or(Cell::NONE, |value| Cell::RealChange(100.0 * value));
        let mean = |interval: Option<Interval>| signed(interval.map(|interval| interval.mean));
        let same_guests = treatments
            .iter()
            .any(|one| one.name == treatment && Some(&one.guest) == base_guest.as_ref());
        let sure = match (change.is_sure(), same_guests) {
            (true, true) => "yes",
            (false, _) => "no",
            (true, false) => "yes, but by other VMs at another time",
        };
        table.row([
            treatment.as_str().into(),
            step.vms.into(),
            (change.n as u64).into(),
            signed(Some(change.mean)),
            signed(change.low),
            signed(change.high),
            mean(of(&|run| run.load.turnarounds.mean())),
            mean(of(&|run| Some(run.host.context_switches as f64))),
            mean(of(&Run::busy_cpus)),
            sure.into(),
        ]);
    }
    table.notes.push(
        "Compared with no remedy, run by run, in random order. From, to: 95 % confidence."
            .to_owned(),
    );
    table
}

/// The model of each treatment, fitted to the lower two thirds of its steps.
fn predictions(plan: &Plan, runs: &[Run]) -> Table {
    let mut columns = step_columns();
    columns.extend([
        Column::number("CPUs busy").key("cpus_busy").decimals(2),
        real("predicted ms", "predicted_ms"),
        real("measured ms", "measured_ms"),
        Column::number("error %").key("error_percent").decimals(1),
        Column::name("Says").key("says"),
    ]);
    let mut table = Table::new("Mean turnaround by a queueing model", columns);
    for treatment in plan.treatments() {
        let steps = steps(runs, &treatment.name);
        let Some((model, fitted)) = fitted(&steps) else { continue };
        let last = steps.last().map_or(0, |step| step.vms);
        let measured = steps.iter().map(|step| (step.vms, Some(step)));
        let beyond = BEYOND.into_iter().filter(|vms| last < *vms).map(|vms| (vms, None));
        for (number, (vms, step)) in measured.chain(beyond).enumerate() {
            let found = step.and_then(Step::mean_ms).map(|interval| interval.mean);
            let (reported, error, says) = match model.predict(vms) {
                Predicted::Ms(ms) => {
                    let error = found.map(|found| 100.0 * (ms / found - 1.0));
                    (Some(ms), error, if number < fitted { "fitted" } else { "predicted" })
                }
                Predicted::Full => (None, None, "the host is full"),
            };
            table.row([
                treatment.name.as_str().into(),
                vms.into(),
                Cell::Real(model.utilisation(vms) * f64::from(model.cpus)),
                cell(reported),
                cell(found),
                error.map_or(Cell::NONE, Cell::RealChange),
                says.into(),
            ]);
        }
        if let Some(most) = model.most_vms() {
            table.notes.push(format!(
                "{}: {:.3} CPUs for each VM, {:.2} without any: the CPUs are full with {} VMs.",
                treatment.name,
                model.cpus_per_vm,
                model.base_cpus,
                most.saturating_add(1),
            ));
        }
    }
    table
}

/// The model, and how many steps it was fitted to.
pub(crate) fn fitted(steps: &[Step<'_>]) -> Option<(Model, usize)> {
    let points: Vec<Point> = steps
        .iter()
        .filter_map(|step| {
            let (busy_cpus, mean) = (step.figure(Run::busy_cpus)?, step.mean_ms()?.mean);
            Some(Point { vms: step.vms, busy_cpus, turnaround_ms: mean })
        })
        .collect();
    let lower = (points.len() - points.len() / 3).max(points.len().min(MIN_FITTED));
    let cpus = u32::try_from(steps.first()?.runs.first()?.cpus.len()).ok()?;
    Some((Model::fit(cpus, &points[..lower])?, lower))
}

/// A line per measurement, for CSV.
fn each(runs: &[Run]) -> Table {
    let columns = [
        "treatment",
        "vms",
        "repetition",
        "loaded",
        "began_unix_ms",
        "seconds",
        "sent",
        "answered",
        "failed",
        "p50_ns",
        "p95_ns",
        "p99_ns",
        "longest_ns",
        "mean_ns",
        "context_switches",
        "runnable",
        "load_average",
        "busy_cpus",
        "available_bytes",
        "merged_bytes",
    ]
    .map(Column::csv_only);
    let accounts = [
        TimeAccount::Guest,
        TimeAccount::Halt,
        TimeAccount::HaltPolling,
        TimeAccount::StealOutside,
        TimeAccount::StealVmm,
        TimeAccount::Throttled,
    ]
    .map(TimeAccount::name);
    let more = [Class::Loaded, Class::Idle].into_iter().flat_map(|class| {
        accounts.map(|account| Column::number("").csv(format!("{}_{account}_ns", class.name())))
    });
    let mut table = Table::new("", columns.into_iter().chain(more).collect());
    for run in runs {
        let turnarounds = &run.load.turnarounds;
        let of = |value: Option<u64>| value.map_or(Cell::NONE, Cell::count);
        let percentile = |percent| of(turnarounds.percentile(percent));
        let account = |class: Class, account: &str| {
            of(run.vms.get(&class).and_then(|vms| vms.accounts.get(account).copied()))
        };
        let first = [
            run.key.treatment.as_str().into(),
            run.key.vms.into(),
            (run.key.repetition + 1).into(),
            run.loaded.into(),
            Cell::count(run.began_unix_ms),
            Cell::Real(run.seconds()),
            Cell::count(turnarounds.len()),
            Cell::count(turnarounds.n_answered()),
            Cell::count(turnarounds.n_failed()),
            percentile(50.0),
            percentile(95.0),
            percentile(99.0),
            of(turnarounds.longest()),
            cell(turnarounds.mean()),
            Cell::count(run.host.context_switches),
            cell(run.host.runnable),
            cell(run.host.load_average),
            cell(run.busy_cpus()),
            Cell::count(run.host.available_bytes),
            of(run.host.merged_bytes),
        ];
        let more = [Class::Loaded, Class::Idle]
            .into_iter()
            .flat_map(|class| accounts.map(|name| account(class, name)));
        table.row(first.into_iter().chain(more));
    }
    table
}
