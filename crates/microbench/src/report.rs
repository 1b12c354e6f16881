//! Results and comparisons as tables.

use table::{Cell as Shown, Column, Part, Report, Table};

use crate::compare::{Cell, Comparison, Row, Unit};
use crate::json::List;
use crate::results::{Outcome, Results};
use crate::tables::{self, Value, marked, ratio};
use crate::verdict::Verdict;

/// The keys of a comparison's CSV.
const KEYS: [&str; 21] = [
    "operation",
    "group",
    "condition",
    "bytes",
    "machine",
    "status",
    "reason",
    "ticks",
    "ns",
    "adds",
    "low_ticks",
    "high_ticks",
    "reliable",
    "effective",
    "ratio_ticks",
    "ratio_ns",
    "ratio_adds",
    "overlap",
    "verdict",
    "exit_ticks",
    "exit_ns",
];

/// Names, then numbers.
fn columns(names: &[&str], numbers: &[&str]) -> Vec<Column> {
    let names = names.iter().map(|title| Column::name(*title));
    names.chain(numbers.iter().map(|title| Column::number(*title))).collect()
}

/// A comparison, costs in `unit`: machines, the original's tables, exits, every operation.
#[must_use]
pub fn comparison(comparison: &Comparison<'_>, unit: Unit) -> Report {
    let mut parts: Vec<Part> = vec![machines(comparison).into()];
    parts.extend(tables::all(comparison, unit).iter().map(|table| original(table).into()));
    let others = 1..comparison.machines.len();
    parts.extend(others.map(|machine| exits(comparison, machine).into()));
    parts.push(operations(comparison, unit).into());
    let notes = comparison.notes.all();
    if !notes.is_empty() {
        let lines = notes.iter().map(|note| format!("  {}\n", table::clean(note)));
        parts.push(format!("Notes\n{}", lines.collect::<String>()).into());
    }
    Report { parts, data: Some(data(comparison)), ..Report::default() }
}

/// A table of the compared machines.
#[must_use]
pub fn machines(comparison: &Comparison<'_>) -> Table {
    let numbers = ["TSC\nMHz", "general\ninstructions"];
    let mut table = Table::new("", columns(&["Machine", "CPU", "Hypervisor"], &numbers));
    for (machine, general) in comparison.machines.iter().zip(&comparison.general) {
        let about = &machine.results.machine;
        table.row([
            machine.label.as_str().into(),
            about.brand.as_str().into(),
            about.hypervisor.as_deref().unwrap_or("-").into(),
            about.tsc.hz.map(|hz| format!("{:.3}", hz / 1e6)).into(),
            general.map(|times| format!("x {times:.3}")).into(),
        ]);
    }
    table
}

/// One of the original's tables; its sections are rows of one cell.
#[must_use]
pub fn original(table: &tables::Table) -> Table {
    let titles: Vec<&str> = table.columns.iter().map(String::as_str).collect();
    let mut shown = Table::new(table.title.as_str(), columns(&[table.what], &titles));
    let mut section = "";
    for line in &table.rows {
        if line.section != section {
            section = line.section;
            shown.row([format!("[{section}]").into()]);
        }
        let values = line.values.iter().map(|value| value.text(table.unit).into());
        shown.row([line.name.as_str().into()].into_iter().chain(values));
    }
    shown
}

/// What exits on a machine, and what that costs: the most expensive first.
#[must_use]
pub fn exits(comparison: &Comparison<'_>, machine: usize) -> Table {
    let mut found: Vec<(&Row, f64, f64)> = Vec::new();
    for row in &comparison.rows {
        if let Some(Verdict::Exits { ticks, ns }) = row.cells[machine].verdict {
            found.push((row, ticks, ns));
        }
    }
    found.sort_by(|one, other| other.2.total_cmp(&one.2));
    let label = &comparison.machines[machine].label;
    let title = format!("What exits to the VMM on {label}, and what an exit costs");
    let numbers = ["ratio", "exit\nticks", "exit\nns"];
    let mut table = Table::new(title, columns(&["Operation", "Condition"], &numbers));
    if found.is_empty() {
        table.notes.push("No operation is known to exit.".to_owned());
    }
    for (row, ticks, ns) in found {
        let against = row.cells[machine].against.and_then(|against| against.best());
        table.row([
            row.operation.as_str().into(),
            row.condition.to_string().into(),
            against.map(ratio).into(),
            Unit::Ticks.figure(ticks).into(),
            Unit::Ns.figure(ns).into(),
        ]);
    }
    table
}

/// Every operation under every condition.
#[must_use]
pub fn operations(comparison: &Comparison<'_>, unit: Unit) -> Table {
    let unit_name = unit.name();
    let title =
        format!("Every operation, in {unit_name} (~: not reliable; =: no difference shown)");
    let mut table = Table::new(title, columns(&["Operation", "Condition"], &[]));
    for (n, machine) in comparison.machines.iter().enumerate() {
        table.columns.push(Column::number(machine.label.as_str()));
        if 0 < n {
            table.columns.extend([Column::number("ratio"), Column::name("exits?")]);
        }
    }
    for row in &comparison.rows {
        let cells = row.cells.iter().enumerate().flat_map(|(n, cell)| shown(n, cell, unit));
        let names = [row.operation.as_str().into(), row.condition.to_string().into()];
        table.row(names.into_iter().chain(cells));
    }
    table
}

/// Of a machine that is not the baseline also the ratio and the verdict.
fn shown(machine: usize, cell: &Cell, unit: Unit) -> Vec<Shown> {
    let cost = match cell.cost.and_then(|cost| Some((cost.value(unit)?, cost.reliable))) {
        Some((value, reliable)) => Value::Cost { value, reliable },
        None => Value::None(cell.outcome.as_ref().map(Outcome::why).unwrap_or_default()),
    };
    if machine == 0 {
        return vec![cost.text(unit).into()];
    }
    let ratio = cell.against.and_then(|against| {
        let text = Value::Ratio { value: against.ratio(unit)?, reliable: against.reliable };
        let text = text.text(unit);
        Some(if against.overlap { format!("={text}") } else { text })
    });
    let verdict = cell.verdict.as_ref().map_or(String::new(), Verdict::to_string);
    vec![cost.text(unit).into(), ratio.into(), verdict.into()]
}

/// A row per operation, condition and machine, with all that is known of it.
fn data(comparison: &Comparison<'_>) -> Table {
    let mut table = Table::new("", KEYS.map(Column::data).to_vec());
    for row in &comparison.rows {
        for (machine, cell) in comparison.machines.iter().zip(&row.cells) {
            let of_row = [
                row.operation.as_str().into(),
                row.group.name().into(),
                row.condition.to_string().into(),
                row.bytes.into(),
                machine.label.as_str().into(),
            ];
            table.row(of_row.into_iter().chain(fields(cell)));
        }
    }
    table
}

fn fields(cell: &Cell) -> [Shown; 16] {
    // With all digits that it has.
    let number = |value: Option<f64>| value.map(|value| value.to_string()).into();
    let flag = |value: Option<bool>| value.map_or(Shown::NONE, Shown::Flag);
    let (cost, against) = (cell.cost.as_ref(), cell.against.as_ref());
    let (exit_ticks, exit_ns) = match cell.verdict {
        Some(Verdict::Exits { ticks, ns }) => (Some(ticks), Some(ns)),
        _ => (None, None),
    };
    [
        cell.outcome.as_ref().map(Outcome::status).into(),
        cell.outcome.as_ref().map(Outcome::why).into(),
        number(cost.map(|cost| cost.ticks)),
        number(cost.and_then(|cost| cost.ns)),
        number(cost.and_then(|cost| cost.adds)),
        number(cost.map(|cost| cost.low)),
        number(cost.map(|cost| cost.high)),
        flag(cost.map(|cost| cost.reliable)),
        flag(cost.map(|cost| cost.effective)),
        number(against.and_then(|against| against.ticks)),
        number(against.and_then(|against| against.ns)),
        number(against.and_then(|against| against.adds)),
        flag(against.map(|against| against.overlap)),
        cell.verdict.as_ref().map(Verdict::to_string).into(),
        number(exit_ticks),
        number(exit_ns),
    ]
}

/// Every result of one machine.
#[must_use]
pub fn results(results: &Results) -> Table {
    let numbers = ["ticks", "ns", "min", "p99"];
    let mut table = Table::new("", columns(&["Operation", "Condition"], &numbers));
    table.columns.push(Column::name("Remark"));
    let hz = results.machine.tsc.hz;
    for measurement in &results.measurements {
        let (numbers, remark) = match &measurement.outcome {
            Outcome::Measured(figures) => {
                let (ticks, single) = (figures.ticks(), figures.single);
                let ns = ticks.zip(hz).map(|(ticks, hz)| ticks * 1e9 / hz);
                let ineffective = figures.ineffective.as_ref();
                let remark = match ineffective.map(|why| format!("not in force: {why}")) {
                    Some(why) => why,
                    None if figures.is_reliable() => String::new(),
                    None => "not reliable".to_owned(),
                };
                let cost = |value: Option<f64>, unit: Unit| {
                    value.map(|value| marked(unit.figure(value), figures.is_reliable()))
                };
                let shots = [single.map(|it| it.min), single.map(|it| it.p99)];
                let [min, p99] = shots.map(|value| value.map(table::figure));
                ([cost(ticks, Unit::Ticks), cost(ns, Unit::Ns), min, p99], remark)
            }
            outcome => ([None, None, None, None], outcome.why()),
        };
        let names = [measurement.operation.clone(), measurement.condition.to_string()];
        let numbers = numbers.map(Shown::from);
        table.row(names.map(Shown::from).into_iter().chain(numbers).chain([remark.into()]));
    }
    table
}

/// What an image knows.
#[must_use]
pub fn list(list: &List<'_>) -> Report {
    let mut table = Table::new("", columns(&["Group", "Operation", "What it does"], &[]));
    for operation in &list.operations {
        table.row([operation.group.name(), operation.name, operation.title].map(Shown::from));
    }
    let plans = format!("Plans: {}", list.plans.join(", "));
    let conditions = format!("Conditions: {}", list.conditions.join(", "));
    Report { parts: vec![table.into(), plans.into(), conditions.into()], ..Report::default() }
}
