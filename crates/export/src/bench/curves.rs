//! The latency of memory by the size of what is read.

use ::microbench::Condition;
use ::microbench::compare::{Comparison, Row};

use super::common_unit;
use super::svg::{Scale, cost_text, mark_text};
use crate::drawing::Drawing;

const WIDTH: f64 = 980.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 90.0;
const TOP: f64 = 64.0;
const PLOT: (f64, f64) = (860.0, 300.0);
/// How the operations are called.
const LATENCY: &str = "latency-";

pub(super) fn draw(comparison: &Comparison<'_>) -> Option<Drawing> {
    let unit = common_unit(comparison);
    let condition = condition(comparison)?;
    let rows: Vec<&Row> = points(comparison).filter(|row| row.condition == condition).collect();
    let costs = |row: &Row| {
        let values = row.cells.iter().map(|cell| cell.cost.and_then(|cost| cost.value(unit)));
        values.collect::<Vec<_>>()
    };
    let all = rows.iter().flat_map(|row| costs(row)).flatten();
    // Upwards, so from the bottom.
    let scale = Scale::over(all, 0.0, PLOT.1)?;
    let y = |value: f64| TOP + PLOT.1 - scale.place(value);
    let doublings = |bytes: u64| (bytes.max(1) as f64).log2();
    let (first, last) = (doublings(rows.first()?.bytes), doublings(rows.last()?.bytes));
    let x = |bytes: u64| LEFT + PLOT.0 * (doublings(bytes) - first) / (last - first).max(1.0);
    let mut drawing = Drawing::new(WIDTH, HEIGHT, "Latency by size");
    let title = format!("Latency of a load by the size of what is read, {condition}");
    drawing.text((0.0, 16.0), "head", &title);
    drawing.legend(comparison.machines.iter().map(|machine| machine.label.as_str()), (0.0, 40.0));
    for mark in scale.marks() {
        drawing.line((LEFT, y(mark)), (LEFT + PLOT.0, y(mark)));
        drawing.text((LEFT - 8.0, y(mark) + 4.0), "faint end", &mark_text(mark, unit));
    }
    for row in &rows {
        drawing.text((x(row.bytes), TOP + PLOT.1 + 20.0), "faint middle", &size(row.bytes));
    }
    for (n, machine) in comparison.machines.iter().enumerate() {
        let places: Vec<(&Row, f64)> =
            rows.iter().filter_map(|row| Some((*row, costs(row)[n]?))).collect();
        let curve: Vec<(f64, f64)> =
            places.iter().map(|(row, value)| (x(row.bytes), y(*value))).collect();
        drawing.curve(&curve, n);
        for (row, value) in places {
            let text = cost_text(row, n, value, unit);
            let says = format!("{}: {} {text}", machine.label, size(row.bytes));
            drawing.point((x(row.bytes), y(value)), n, &says);
        }
    }
    Some(drawing)
}

fn points<'c>(comparison: &'c Comparison<'_>) -> impl Iterator<Item = &'c Row> {
    let mut rows: Vec<&Row> = comparison
        .rows
        .iter()
        .filter(|row| row.operation.starts_with(LATENCY) && 0 < row.bytes)
        .filter(|row| row.cells.iter().any(|cell| cell.cost.is_some()))
        .collect();
    rows.sort_by_key(|row| row.bytes);
    rows.into_iter()
}

/// The one with most sizes, level 0 first; one size is no curve.
fn condition(comparison: &Comparison<'_>) -> Option<Condition> {
    let sizes =
        |condition: Condition| points(comparison).filter(|row| row.condition == condition).count();
    let conditions = points(comparison).map(|row| row.condition);
    let best =
        conditions.max_by_key(|condition| (sizes(*condition), std::cmp::Reverse(*condition)))?;
    (1 < sizes(best)).then_some(best)
}

/// `64 KiB`.
pub(super) fn size(bytes: u64) -> String {
    match bytes {
        n if n < 1 << 10 => format!("{n} B"),
        n if n < 1 << 20 => format!("{} KiB", n >> 10),
        n => format!("{} MiB", n >> 20),
    }
}
