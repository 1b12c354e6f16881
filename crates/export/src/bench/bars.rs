//! A bar per operation and machine.

use ::microbench::catalogue::Group;
use ::microbench::compare::{Comparison, Row};

use super::common_unit;
use super::svg::{Scale, cost_text, mark_text};
use crate::drawing::Drawing;

const WIDTH: f64 = 980.0;
const NAMES: f64 = 250.0;
const PLOT: f64 = 590.0;
const BAR: f64 = 11.0;
const GAP: f64 = 7.0;
const HEADING: f64 = 24.0;
const TOP: f64 = 76.0;

pub(super) fn draw(comparison: &Comparison<'_>) -> Option<Drawing> {
    let unit = common_unit(comparison);
    let value =
        |row: &Row, machine: usize| row.cells[machine].cost.and_then(|cost| cost.value(unit));
    let rows = rows(comparison);
    let machines = comparison.machines.len();
    let values = rows.iter().flat_map(|row| (0..machines).filter_map(|n| value(row, n)));
    let scale = Scale::over(values, NAMES, PLOT)?;
    let groups: Vec<Vec<&Row>> = grouped(&rows);
    let of_row = BAR * machines as f64 + GAP;
    let height = TOP + 20.0 + HEADING * groups.len() as f64 + of_row * rows.len() as f64;
    let mut drawing = Drawing::new(WIDTH, height, "What operations cost");
    drawing.text((0.0, 16.0), "head", "What operations cost, on a logarithmic scale");
    drawing.legend(comparison.machines.iter().map(|machine| machine.label.as_str()), (0.0, 40.0));
    for mark in scale.marks() {
        let x = scale.place(mark);
        drawing.line((x, TOP - 8.0), (x, height - 12.0));
        drawing.text((x, TOP - 14.0), "faint middle", &mark_text(mark, unit));
    }
    let mut y = TOP;
    for group in groups {
        drawing.text((0.0, y + 14.0), "head", group[0].group.name());
        y += HEADING;
        for row in group {
            let middle = y + (of_row - GAP) / 2.0 + 4.0;
            drawing.text(
                (NAMES - 8.0, middle),
                "end",
                &format!("{}  {}", row.operation, row.condition),
            );
            for n in 0..machines {
                let Some(value) = value(row, n) else { continue };
                let (top, length) = (y + BAR * n as f64, scale.place(value) - NAMES);
                let text = cost_text(row, n, value, unit);
                let says = format!("{}: {} {text}", comparison.machines[n].label, row.operation);
                drawing.bar((NAMES, top), (length.max(1.0), BAR - 1.0), n, &says);
                if machines <= 3 {
                    drawing.text((NAMES + length + 5.0, top + BAR - 2.0), "value", &text);
                }
            }
            y += of_row;
        }
    }
    Some(drawing)
}

/// Every operation that has a cost, once: under the condition where most machines have one, level 0 and a warm TLB
/// first.
fn rows<'c>(comparison: &'c Comparison<'_>) -> Vec<&'c Row> {
    let mut chosen: Vec<&Row> = Vec::new();
    for row in &comparison.rows {
        if costs(row) == 0 {
            continue;
        }
        match chosen.iter_mut().find(|other| other.operation == row.operation) {
            None => chosen.push(row),
            Some(other) if rank(other) < rank(row) => *other = row,
            Some(_) => {}
        }
    }
    chosen
}

fn costs(row: &Row) -> usize {
    row.cells.iter().filter(|cell| cell.cost.is_some()).count()
}

/// What a condition has in common with how most software runs.
fn rank(row: &Row) -> (usize, bool, u8, bool) {
    let condition = row.condition;
    let is_plain = !condition.no_cache && !condition.cold && !condition.large_pages;
    (costs(row), is_plain, 3 - condition.ring.min(3), condition.mode == ::microbench::Mode::Long)
}

fn grouped<'c>(rows: &[&'c Row]) -> Vec<Vec<&'c Row>> {
    let of =
        |group: Group| rows.iter().copied().filter(|row| row.group == group).collect::<Vec<_>>();
    Group::ALL.into_iter().map(of).filter(|rows| !rows.is_empty()).collect()
}
