//! The page.

use std::fmt::Write as _;
use std::io::{self, Write};

use ::microbench::Verdict;
use ::microbench::compare::{Cell, Comparison, Row, Unit};
use ::microbench::tables::{self, Table, Value};

use super::svg::{STYLE as CHART_STYLE, amount};
use super::{bars, curves};
use crate::html::escape::escape;
use crate::html::{fill, hash};

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");

pub(super) fn write(
    comparison: &Comparison<'_>,
    unit: Unit,
    mut out: impl Write,
) -> io::Result<()> {
    let style = format!("{STYLE}{CHART_STYLE}");
    let labels: Vec<&str> = comparison.machines.iter().map(|m| m.label.as_str()).collect();
    let value = |key: &str| match key {
        "title" => escape(&format!("vmscope bench: {}", labels.join(", "))),
        "style" => style.clone(),
        "style_hash" => hash(&style),
        "machines" => machines(comparison),
        "notes" => notes(comparison),
        "tables" => tables::all(comparison, unit).iter().map(table).collect(),
        "charts" => charts(comparison),
        "exits" => exits(comparison),
        "unit" => unit.name().to_owned(),
        "columns" => columns(comparison),
        "rows" => comparison.rows.iter().map(|row| line(row, unit)).collect(),
        other => unreachable!("page.html asks for {other}, which a test would have shown"),
    };
    fill(PAGE, value, &mut out)?;
    out.flush()
}

fn machines(comparison: &Comparison<'_>) -> String {
    let mut text = String::new();
    for (n, machine) in comparison.machines.iter().enumerate() {
        let of = &machine.results.machine;
        let hypervisor = of.hypervisor.as_deref().unwrap_or("-");
        let hz = of.tsc.hz.map_or("?".to_owned(), |hz| format!("{:.3} MHz", hz / 1e6));
        let general = comparison.general[n].map_or("-".to_owned(), |times| format!("x {times:.3}"));
        let _ = writeln!(
            text,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td class=\"number\">{hz}</td><td>{}</td>\
             <td class=\"number\">{}</td><td class=\"number\">{general}</td></tr>",
            escape(&machine.label),
            escape(&of.brand),
            escape(hypervisor),
            escape(&of.plan),
            machine.results.measurements.len(),
        );
    }
    text
}

fn notes(comparison: &Comparison<'_>) -> String {
    let notes = comparison.notes.all();
    if notes.is_empty() {
        return String::new();
    }
    let items: String = notes.iter().map(|note| format!("<li>{}</li>\n", escape(note))).collect();
    format!("<ul class=\"notes\">\n{items}</ul>")
}

fn table(table: &Table) -> String {
    let titles: String = table
        .columns
        .iter()
        .map(|title| format!("<th class=\"number\">{}</th>", escaped_lines(title)))
        .collect();
    let mut rows = String::new();
    let mut section = "";
    for line in &table.rows {
        if line.section != section {
            section = line.section;
            let columns = table.columns.len() + 1;
            let _ = writeln!(
                rows,
                "<tr><td class=\"section\" colspan=\"{columns}\">{section}</td></tr>"
            );
        }
        let cells = line
            .values
            .iter()
            .map(|value| format!("<td class=\"number\">{}</td>", escape(&value.text())));
        let _ =
            writeln!(rows, "<tr><td>{}</td>{}</tr>", escape(&line.name), cells.collect::<String>());
    }
    format!(
        "<section>\n<h2>{}</h2>\n<table>\n<thead><tr><th>{}</th>{titles}</tr></thead>\n<tbody>\n{rows}</tbody>\n\
         </table>\n</section>\n",
        escape(&table.title),
        table.what
    )
}

/// Titles of two lines keep them.
fn escaped_lines(title: &str) -> String {
    title.split('\n').map(escape).collect::<Vec<_>>().join("\n")
}

fn charts(comparison: &Comparison<'_>) -> String {
    let drawings = [("Charts", bars::draw(comparison)), ("Memory", curves::draw(comparison))];
    let drawn = drawings.into_iter().filter_map(|(title, drawing)| Some((title, drawing?)));
    drawn
        .map(|(title, drawing)| {
            format!("<section>\n<h2>{title}</h2>\n{}</section>\n", drawing.inline())
        })
        .collect()
}

/// The most expensive exits first.
fn exits(comparison: &Comparison<'_>) -> String {
    let mut found: Vec<(&Row, usize, f64)> = Vec::new();
    for row in &comparison.rows {
        for (n, cell) in row.cells.iter().enumerate() {
            if let Some(Verdict::Exits { ns, .. }) = cell.verdict {
                found.push((row, n, ns));
            }
        }
    }
    found.sort_by(|one, other| other.2.total_cmp(&one.2));
    let line = |(row, n, ns): &(&Row, usize, f64)| {
        let cell = &row.cells[*n];
        let cost =
            cell.cost.and_then(|cost| cost.ns).map_or(String::new(), |ns| amount(ns, Unit::Ns));
        let ratio =
            cell.against.and_then(|against| against.best()).map_or(String::new(), tables::ratio);
        format!(
            "<tr><td>{}</td><td>{}</td><td>{}</td><td class=\"number\">{cost}</td><td class=\"number\">{ratio}</td>\
             <td class=\"number exits\">{}</td></tr>\n",
            escape(&row.operation),
            row.condition,
            escape(&comparison.machines[*n].label),
            amount(*ns, Unit::Ns)
        )
    };
    if found.is_empty() {
        return "<tr><td colspan=\"6\">none is told to</td></tr>\n".to_owned();
    }
    found.iter().map(line).collect()
}

fn columns(comparison: &Comparison<'_>) -> String {
    let mut text = String::new();
    for (n, machine) in comparison.machines.iter().enumerate() {
        let label = escape(&machine.label);
        let _ = write!(text, "<th class=\"number\">{label}</th>");
        if 0 < n {
            let _ = write!(text, "<th class=\"number\">ratio</th><th>exits?</th>");
        }
    }
    text
}

fn line(row: &Row, unit: Unit) -> String {
    let cells: String =
        row.cells.iter().enumerate().map(|(n, cell)| self::cells(n, cell, unit)).collect();
    format!("<tr><td>{}</td><td>{}</td>{cells}</tr>\n", escape(&row.operation), row.condition)
}

fn cells(machine: usize, cell: &Cell, unit: Unit) -> String {
    let cost = match cell.cost.and_then(|cost| Some((cost.value(unit)?, cost.reliable))) {
        Some((value, reliable)) => {
            format!("<td class=\"number\">{}</td>", Value::Cost { value, reliable }.text())
        }
        None => {
            let why = cell.outcome.as_ref().map_or("not tried".to_owned(), |outcome| outcome.why());
            format!("<td class=\"number why\">{}</td>", escape(&why))
        }
    };
    if machine == 0 {
        return cost;
    }
    let ratio = cell.against.and_then(|against| {
        Some(Value::Ratio { value: against.ratio(unit)?, reliable: against.reliable }.text())
    });
    let verdict = match &cell.verdict {
        Some(Verdict::Exits { ns, .. }) => {
            format!("<td class=\"exits\">exits, {}</td>", amount(*ns, Unit::Ns))
        }
        Some(Verdict::DoesNot) => "<td>does not</td>".to_owned(),
        Some(other) => format!("<td class=\"why\">{}</td>", escape(&other.to_string())),
        None => "<td></td>".to_owned(),
    };
    format!("{cost}<td class=\"number\">{}</td>{verdict}", ratio.unwrap_or_default())
}
