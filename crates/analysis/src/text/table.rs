//! The table of rows.

use std::fmt::Write as _;

use super::cut::{Keep, cut};
use super::fit::fitting;
use super::{Width, clean, other_rows, percent};
use crate::label::{IDLE, UNKNOWN};
use crate::profile::{Label, Profile, Row, Side};
use crate::{By, View};

/// Columns before the names, right-aligned.
const NUMBERS: usize = 2;
const GAP: usize = 2;

struct Column {
    name: &'static str,
    cell: fn(&Label) -> String,
    keep: Keep,
    /// How much wider than another it may stay when a line does not fit.
    weight: usize,
}

pub(super) fn table(out: &mut String, profile: &Profile, width: Width) {
    let columns = columns(profile);
    let mut lines = vec![titles(&columns)];
    lines.extend(profile.rows.iter().map(|row| cells(row, &columns, profile.total)));
    if profile.other.rows > 0 {
        let mut line = numbers(profile.other.samples, profile.total);
        line.push(other_rows(profile.other.rows));
        lines.push(line);
    }
    let of_names = columns.iter().map(|column| column.weight);
    let weights: Vec<usize> = [0; NUMBERS].into_iter().chain(of_names).collect();
    let widths = fitting(widths(&lines), &weights, GAP, width.columns());
    for line in &mut lines {
        let names = line.iter_mut().zip(&widths).skip(NUMBERS).zip(&columns);
        names.for_each(|((cell, width), column)| *cell = cut(cell, *width, column.keep));
        let _ = writeln!(out, "{}", padded(line, &widths).trim_end());
    }
}

fn titles(columns: &[Column]) -> Vec<String> {
    let names = columns.iter().map(|column| column.name);
    ["Samples", "%Ratio"].into_iter().chain(names).map(str::to_owned).collect()
}

fn numbers(samples: u64, total: u64) -> Vec<String> {
    vec![samples.to_string(), percent(samples, total)]
}

fn cells(row: &Row, columns: &[Column], total: u64) -> Vec<String> {
    let mut cells = numbers(row.samples, total);
    cells.extend(columns.iter().map(|column| clean(&(column.cell)(&row.label)).into_owned()));
    cells
}

fn widths(lines: &[Vec<String>]) -> Vec<usize> {
    let mut widths: Vec<usize> = Vec::new();
    for line in lines {
        widths.resize(widths.len().max(line.len()), 0);
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = (*width).max(cell.chars().count());
        }
    }
    widths
}

/// Two right-aligned numbers, then left-aligned text.
fn padded(cells: &[String], widths: &[usize]) -> String {
    let mut out = String::new();
    for (n, (cell, width)) in cells.iter().zip(widths).enumerate() {
        let gap = if n == 0 { 0 } else { GAP };
        let _ = match n < NUMBERS {
            true => write!(out, "{:gap$}{cell:>width$}", ""),
            false => write!(out, "{:gap$}{cell:<width$}", ""),
        };
    }
    out
}

fn columns(profile: &Profile) -> Vec<Column> {
    let column = |name, cell: fn(&Label) -> String, keep| Column { name, cell, keep, weight: 2 };
    let function = |label: &Label| or_dash(label.function.as_deref());
    let process = column("Process", process_cell, Keep::StartAndFrom(" ("));
    let mut columns = match profile.query.by {
        By::Function => vec![
            Column { weight: 3, ..column("Function", function, Keep::Start) },
            process,
            column("Module", short_module_cell, Keep::StartAndFrom("+0x")),
        ],
        By::Process => vec![process],
        By::Thread => vec![column("Thread", thread_cell, Keep::StartAndFrom(" (")), process],
        By::Module => {
            vec![column("Module", |label| or_dash(label.module.as_deref()), Keep::PathEnd)]
        }
        By::Vm => return vec![column("VM", whose_cell, Keep::Start)],
        By::Cpu => return vec![column("CPU", cpu_cell, Keep::Start)],
    };
    let tells_vms_apart = match profile.query.selection.view() {
        View::Unified => true,
        View::Host | View::Native => profile.query.by != By::Module,
        View::Guest => false,
    };
    columns.extend(tells_vms_apart.then(|| column("VM", vm_cell, Keep::Start)));
    columns
}

fn or_dash(text: Option<&str>) -> String {
    text.unwrap_or("-").to_owned()
}

fn with_id(name: Option<&str>, id: Option<u32>) -> String {
    match (name, id) {
        (Some(name), Some(id)) => format!("{name} ({id})"),
        (name, _) => or_dash(name),
    }
}

fn process_cell(label: &Label) -> String {
    with_id(label.process.as_deref(), label.pid)
}

fn thread_cell(label: &Label) -> String {
    with_id(label.thread.as_deref(), label.tid)
}

/// The file's name without its folder; where there are no symbols, with the offset.
fn short_module_cell(label: &Label) -> String {
    let path = label.module.as_deref().unwrap_or("-");
    let name = if path.starts_with('/') { path.rsplit('/').next() } else { None };
    let name = name.filter(|name| !name.is_empty()).unwrap_or(path);
    label.offset.map_or_else(|| name.to_owned(), |offset| format!("{name}+{offset:#x}"))
}

fn vm_cell(label: &Label) -> String {
    match (&label.vm, label.side) {
        (Some(vm), Some(Side::Vmm)) => format!("{vm} (vmm)"),
        (vm, _) => or_dash(vm.as_deref()),
    }
}

fn whose_cell(label: &Label) -> String {
    match label.side {
        Some(Side::Host) => "[host]".to_owned(),
        Some(Side::Idle) => IDLE.to_owned(),
        side => side.and_then(Side::line).unwrap_or_else(|| vm_cell(label)),
    }
}

fn cpu_cell(label: &Label) -> String {
    let line = label.side.and_then(Side::line);
    match (label.cpu, label.vcpu, line) {
        (Some(cpu), _, _) => format!("cpu{cpu}"),
        (None, Some(vcpu), Some(line)) => format!("vcpu{vcpu} {line}"),
        (None, Some(vcpu), None) => format!("vcpu{vcpu}"),
        (None, None, _) => UNKNOWN.to_owned(),
    }
}
