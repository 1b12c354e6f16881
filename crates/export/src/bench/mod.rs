//! A comparison of machines by the micro-benchmark: one HTML page, and its charts as SVG.
//!
//! The page has no script at all. Charts are drawn here and not by one, so that they are files of their own, too.

mod bars;
mod curves;
mod svg;

use std::io::{self, Write};

use ::microbench::compare::{Comparison, Unit};
use ::microbench::{report, tables};
use table::{Column, Table};

use crate::page::Page;

/// The kind of a chart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chart {
    /// A bar per operation and machine, on a logarithmic scale.
    Bars,
    /// The latency of memory by the size of what is read.
    Latency,
}

/// Writes the page.
///
/// # Errors
/// Only the writer's.
pub fn html(comparison: &Comparison<'_>, unit: Unit, mut out: impl Write) -> io::Result<()> {
    let labels: Vec<&str> = comparison.machines.iter().map(|m| m.label.as_str()).collect();
    let mut page = Page::new(&format!("vmscope bench: {}", labels.join(", ")));
    page.header(&machines(comparison).html(usize::MAX));
    page.notes(&comparison.notes.all());
    for table in tables::all(comparison, unit) {
        add(&mut page, report::original(&table));
    }
    for (title, drawing) in
        [("Costs", bars::draw(comparison)), ("Memory", curves::draw(comparison))]
    {
        page.section(title, "", &drawing.map(|drawing| drawing.inline()).unwrap_or_default());
    }
    for machine in 1..comparison.machines.len() {
        add(&mut page, report::exits(comparison, machine));
    }
    add(&mut page, report::operations(comparison, unit));
    page.write(&mut out)
}

/// A table as a section of its own.
fn add(page: &mut Page, mut table: Table) {
    let title = std::mem::take(&mut table.title);
    page.section(&title, &table.notes.join(" "), &table.html(usize::MAX));
}

/// The page has room for the plan, too.
fn machines(comparison: &Comparison<'_>) -> Table {
    let mut table = report::machines(comparison);
    table.columns.extend([Column::name("Plan"), Column::number("Results")]);
    for (row, machine) in table.rows.iter_mut().zip(comparison.machines) {
        let results = &machine.results;
        row.push(results.machine.plan.as_str().into());
        row.push((results.measurements.len() as u64).into());
    }
    table
}

/// A chart as an SVG file of its own; `None`: there is nothing to draw.
#[must_use]
pub fn svg(comparison: &Comparison<'_>, chart: Chart) -> Option<String> {
    let drawing = match chart {
        Chart::Bars => bars::draw(comparison)?,
        Chart::Latency => curves::draw(comparison)?,
    };
    Some(drawing.file())
}

/// Nanoseconds where every machine's clock is known, else ticks.
fn common_unit(comparison: &Comparison<'_>) -> Unit {
    let knows = |machine: &::microbench::Labelled| machine.results.machine.tsc.hz.is_some();
    if comparison.machines.iter().all(knows) { Unit::Ns } else { Unit::Ticks }
}
