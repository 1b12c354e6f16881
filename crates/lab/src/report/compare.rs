//! Two folders of results side by side: two hosts, two kernels, or one plan run twice.

use serde_json::json;
use table::{Cell, Column, Report, Table};

use crate::ladder::{Step, steps};
use crate::plan::Plan;
use crate::report::{cell, host, real, step_columns};
use crate::run::Run;
use crate::statistics::difference;
use crate::verdict::{Verdict, verdicts};

const VERSION: u32 = 1;

/// Results that are compared.
#[derive(Debug, Clone, Copy)]
pub struct Side<'a> {
    pub name: &'a str,
    pub plan: &'a Plan,
    pub runs: &'a [Run],
}

/// What differs between two results. Turnarounds are compared by the first plan's percentile.
#[must_use]
pub fn compare(a: Side<'_>, b: Side<'_>) -> Report {
    let mut report = Report::default();
    for (title, side) in [("A", a), ("B", b)] {
        report.fact(title, format!("{}, {}, {}", side.name, side.plan.name, host(side.runs)));
    }
    report.notes = notes(a, b);
    let (takes, turnarounds) = (takes(a, b), turnarounds(a, b));
    report.json = json!({
        "version": VERSION,
        "a": a.name,
        "b": b.name,
        "notes": report.notes,
        "verdicts": takes.json(),
        "turnarounds": turnarounds.json(),
    });
    report.data = Some(turnarounds.clone());
    report.parts.extend([takes.into(), turnarounds.into()]);
    report
}

/// What makes the two hard to compare.
fn notes(a: Side<'_>, b: Side<'_>) -> Vec<String> {
    let same_name = Plan { name: a.plan.name.clone(), ..b.plan.clone() };
    let mut notes = Vec::new();
    for (what, differs) in [
        ("loads", a.plan.load != b.plan.load),
        ("service levels", a.plan.service != b.plan.service),
        ("VMs", a.plan.vm != b.plan.vm),
    ] {
        if differs {
            notes.push(format!("The plans have different {what}."));
        }
    }
    if notes.is_empty() && same_name != *a.plan {
        notes.push("The plans differ in their hosts, steps or remedies.".to_owned());
    }
    notes
}

/// Names of treatments that either has, the first one's order first.
fn treatments(a: Side<'_>, b: Side<'_>) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for treatment in a.plan.treatments().into_iter().chain(b.plan.treatments()) {
        if !names.contains(&treatment.name) {
            names.push(treatment.name);
        }
    }
    names
}

fn takes(a: Side<'_>, b: Side<'_>) -> Table {
    let columns = vec![
        Column::name("Remedy").key("treatment"),
        Column::number("A takes").key("a_takes"),
        Column::number("B takes").key("b_takes"),
        Column::name("Verdicts").key("verdicts"),
    ];
    let mut table = Table::new("VMs at the service level", columns);
    let (in_a, in_b) = (verdicts(a.plan, a.runs), verdicts(b.plan, b.runs));
    for name in treatments(a, b) {
        let of = |verdicts: &[Verdict]| {
            let verdict = verdicts.iter().find(|verdict| verdict.treatment == name)?;
            Some((verdict.takes, verdict.fails.is_some()))
        };
        let takes = |verdict: Option<(Option<u32>, bool)>| {
            verdict.map_or(Cell::NONE, |(takes, _)| takes.unwrap_or(0).into())
        };
        let (verdict_a, verdict_b) = (of(&in_a), of(&in_b));
        let says = match (verdict_a, verdict_b) {
            (Some(a), Some(b)) if a == b => "agree",
            (Some(_), Some(_)) => "differ",
            _ => "one only",
        };
        table.row([name.as_str().into(), takes(verdict_a), takes(verdict_b), says.into()]);
    }
    table
}

fn turnarounds(a: Side<'_>, b: Side<'_>) -> Table {
    let percent = a.plan.service.percentile;
    let mut columns = step_columns();
    let change = |title: &str, key| Column::number(title.to_owned()).key(key).decimals(1);
    columns.extend([
        Column::number("A runs").key("a_runs"),
        Column::number("B runs").key("b_runs"),
        real("A ms", "a_ms"),
        real("B ms", "b_ms"),
        change("B to A %", "change_percent"),
        change("from", "change_low_percent"),
        change("to", "change_high_percent"),
        Column::name("Sure").key("sure"),
    ]);
    let mut table = Table::new(format!("Turnaround, {percent} % of requests within"), columns);
    for name in treatments(a, b) {
        let of_b = steps(b.runs, &name);
        for step in steps(a.runs, &name) {
            let Some(other) = of_b.iter().find(|other| other.vms == step.vms) else { continue };
            table.row(row(&name, &step, other, percent));
        }
    }
    table.notes.push(
        "By steps that both have. From, to: 95 % confidence (Welch), of runs at different times."
            .to_owned(),
    );
    table
}

fn row(name: &str, a: &Step<'_>, b: &Step<'_>, percent: f64) -> [Cell; 10] {
    let change = a.percentiles_ms(percent).zip(b.percentiles_ms(percent));
    let change = change.and_then(|(a, b)| difference(&a, &b));
    let signed =
        |value: Option<f64>| value.map_or(Cell::NONE, |value| Cell::RealChange(100.0 * value));
    let ms = |step: &Step<'_>| cell(step.percentile_ms(percent).map(|interval| interval.mean));
    [
        name.into(),
        a.vms.into(),
        (a.runs.len() as u64).into(),
        (b.runs.len() as u64).into(),
        ms(a),
        ms(b),
        signed(change.map(|change| change.mean)),
        signed(change.and_then(|change| change.low)),
        signed(change.and_then(|change| change.high)),
        change.map_or(Cell::NONE, |change| if change.is_sure() { "yes" } else { "no" }.into()),
    ]
}
