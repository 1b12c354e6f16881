//! A comparison as JSON.

use api::bench::{Compared, Comparison, Cost, Ratio, Table, TableRow};
use microbench::compare::{self, Unit};
use microbench::{Verdict, tables};

use super::super::file::machine_to_json;

pub(super) fn comparison(comparison: &compare::Comparison<'_>, unit: Unit) -> Comparison {
    let compared = |(machine, general): (&microbench::Labelled, &Option<f64>)| Compared {
        label: machine.label.clone(),
        machine: machine_to_json(&machine.results.machine),
        general_ratio: *general,
    };
    Comparison {
        version: api::bench::VERSION,
        machines: comparison.machines.iter().zip(&comparison.general).map(compared).collect(),
        tables: tables::all(comparison, unit).into_iter().map(table).collect(),
        operations: comparison.rows.iter().map(row).collect(),
        notes: comparison.notes.all(),
    }
}

fn table(table: tables::Table) -> Table {
    let row = |line: &tables::Line| TableRow {
        section: line.section.to_owned(),
        name: line.name.clone(),
        values: line.values.iter().map(tables::Value::number).collect(),
    };
    Table {
        id: table.id.to_owned(),
        title: table.title,
        columns: table.columns.iter().map(|title| title.replace('\n', " ")).collect(),
        rows: table.rows.iter().map(row).collect(),
    }
}

fn row(row: &compare::Row) -> api::bench::Row {
    api::bench::Row {
        operation: row.operation.clone(),
        group: row.group.name().to_owned(),
        condition: row.condition.to_string(),
        bytes: row.bytes,
        machines: row.cells.iter().map(cell).collect(),
    }
}

fn cell(cell: &compare::Cell) -> api::bench::Cell {
    let (exit_ticks, exit_ns) = match cell.verdict {
        Some(Verdict::Exits { ticks, ns }) => (Some(ticks), Some(ns)),
        _ => (None, None),
    };
    let why = match &cell.verdict {
        Some(Verdict::CantSay(why)) => Some(why.to_string()),
        _ => None,
    };
    api::bench::Cell {
        status: cell.outcome.as_ref().map(|outcome| outcome.status().to_owned()),
        reason: cell.outcome.as_ref().map(|outcome| outcome.why()).filter(|why| !why.is_empty()),
        cost: cell.cost.map(|cost| Cost {
            ticks: cost.ticks,
            ns: cost.ns,
            adds: cost.adds,
            low: cost.low,
            high: cost.high,
            reliable: cost.reliable,
            effective: cost.effective,
        }),
        ratio: cell.against.map(|against| Ratio {
            ticks: against.ticks,
            ns: against.ns,
            adds: against.adds,
            reliable: against.reliable,
            overlap: against.overlap,
        }),
        verdict: cell.verdict.as_ref().map(|verdict| verdict.name().to_owned()),
        why,
        exit_ticks,
        exit_ns,
    }
}
