//! A comparison as text, and as CSV.

use analysis::{Width, clean};
use microbench::Verdict;
use microbench::compare::{Cell, Comparison, Row, Unit};
use microbench::tables::{self, Table, Value};

use crate::commands::grid::{Column, Grid};

pub(super) fn text(comparison: &Comparison<'_>, unit: Unit, width: Width) -> String {
    let mut out = machines(comparison, width);
    for table in tables::all(comparison, unit) {
        out += &format!("\n{}\n{}", clean(&table.title), grid(&table).text(width));
    }
    out += &exits(comparison, width);
    out += &operations(comparison, unit, width);
    let notes = comparison.notes.all();
    if !notes.is_empty() {
        out += "\nNotes\n";
        notes.iter().for_each(|note| out += &format!("  {}\n", clean(note)));
    }
    out
}

fn machines(comparison: &Comparison<'_>, width: Width) -> String {
    let mut grid =
        Grid::new(&["Machine", "CPU", "Hypervisor", ">TSC\nMHz", ">general\ninstructions"]);
    for (machine, general) in comparison.machines.iter().zip(&comparison.general) {
        let of = &machine.results.machine;
        grid.row([
            machine.label.clone(),
            of.brand.clone(),
            of.hypervisor.clone().unwrap_or_else(|| "-".to_owned()),
            of.tsc.hz.map_or("-".to_owned(), |hz| format!("{:.3}", hz / 1e6)),
            general.map_or("-".to_owned(), |times| format!("x {times:.3}")),
        ]);
    }
    grid.text(width)
}

fn grid(table: &Table) -> Grid {
    let mut grid = Grid::new(&[table.what]);
    table.columns.iter().for_each(|title| grid.push(Column::Number(title.clone())));
    let mut section = "";
    for line in &table.rows {
        if line.section != section {
            section = line.section;
            grid.row([format!("[{section}]")]);
        }
        grid.row([line.name.clone()].into_iter().chain(line.values.iter().map(Value::text)));
    }
    grid
}

/// What exits, and what that costs: the dearest first.
fn exits(comparison: &Comparison<'_>, width: Width) -> String {
    let mut out = String::new();
    for (n, machine) in comparison.machines.iter().enumerate().skip(1) {
        let mut found: Vec<(&Row, f64, f64)> = Vec::new();
        for row in &comparison.rows {
            if let Some(Verdict::Exits { ticks, ns }) = row.cells[n].verdict {
                found.push((row, ticks, ns));
            }
        }
        found.sort_by(|one, other| other.2.total_cmp(&one.2));
        out += &format!(
            "\nWhat exits to the VMM on {}, and what an exit costs\n",
            clean(&machine.label)
        );
        if found.is_empty() {
            out += "none is told to\n";
            continue;
        }
        let mut grid =
            Grid::new(&["Operation", "Condition", ">ratio", ">exit\nticks", ">exit\nns"]);
        for (row, ticks, ns) in found {
            let ratio = row.cells[n].against.and_then(|against| against.best());
            grid.row([
                row.operation.clone(),
                row.condition.to_string(),
                ratio.map_or("-".to_owned(), tables::ratio),
                tables::figure(ticks),
                tables::figure(ns),
            ]);
        }
        out += &grid.text(width);
    }
    out
}

fn operations(comparison: &Comparison<'_>, unit: Unit, width: Width) -> String {
    let mut grid = Grid::new(&["Operation", "Condition"]);
    for (n, machine) in comparison.machines.iter().enumerate() {
        grid.push(Column::Number(machine.label.clone()));
        if 0 < n {
            grid.push(Column::Number("ratio".to_owned()));
            grid.push(Column::Name("exits?".to_owned()));
        }
    }
    for row in &comparison.rows {
        let cells = row.cells.iter().enumerate().flat_map(|(n, cell)| cells(n, cell, unit));
        grid.row([row.operation.clone(), row.condition.to_string()].into_iter().chain(cells));
    }
    let title =
        format!("Every operation, in {} (~: not reliable; =: no difference shown)", unit.name());
    format!("\n{title}\n{}", grid.text(width))
}

fn cells(machine: usize, cell: &Cell, unit: Unit) -> Vec<String> {
    let cost = match cell.cost.and_then(|cost| Some((cost.value(unit)?, cost.reliable))) {
        Some((value, reliable)) => Value::Cost { value, reliable }.text(),
        None => Value::None(cell.outcome.as_ref().map(|outcome| outcome.why()).unwrap_or_default())
            .text(),
    };
    if machine == 0 {
        return vec![cost];
    }
    let ratio = cell.against.and_then(|against| {
        let text = Value::Ratio { value: against.ratio(unit)?, reliable: against.reliable }.text();
        Some(if against.overlap { format!("={text}") } else { text })
    });
    let verdict = cell.verdict.as_ref().map_or(String::new(), Verdict::to_string);
    vec![cost, ratio.unwrap_or_else(|| "-".to_owned()), verdict]
}

/// A line per operation, condition and machine.
pub(super) fn csv(comparison: &Comparison<'_>) -> String {
    let mut grid = Grid::new(&[
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
    ]);
    for row in &comparison.rows {
        for (machine, cell) in comparison.machines.iter().zip(&row.cells) {
            let what = [
                row.operation.clone(),
                row.group.name().to_owned(),
                row.condition.to_string(),
                row.bytes.to_string(),
                machine.label.clone(),
            ];
            grid.row(what.into_iter().chain(fields(cell)));
        }
    }
    grid.csv()
}

fn fields(cell: &Cell) -> Vec<String> {
    let number = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
    let yes_no = |value: Option<bool>| value.map_or(String::new(), |value| value.to_string());
    let (cost, against) = (cell.cost.as_ref(), cell.against.as_ref());
    let outcome = cell.outcome.as_ref();
    let (exit_ticks, exit_ns) = match cell.verdict {
        Some(Verdict::Exits { ticks, ns }) => (Some(ticks), Some(ns)),
        _ => (None, None),
    };
    vec![
        outcome.map(|outcome| outcome.status().to_owned()).unwrap_or_default(),
        outcome.map(|outcome| outcome.why()).unwrap_or_default(),
        number(cost.map(|cost| cost.ticks)),
        number(cost.and_then(|cost| cost.ns)),
        number(cost.and_then(|cost| cost.adds)),
        number(cost.map(|cost| cost.low)),
        number(cost.map(|cost| cost.high)),
        yes_no(cost.map(|cost| cost.reliable)),
        yes_no(cost.map(|cost| cost.effective)),
        number(against.and_then(|against| against.ticks)),
        number(against.and_then(|against| against.ns)),
        number(against.and_then(|against| against.adds)),
        yes_no(against.map(|against| against.overlap)),
        cell.verdict.as_ref().map(Verdict::to_string).unwrap_or_default(),
        number(exit_ticks),
        number(exit_ns),
    ]
}
