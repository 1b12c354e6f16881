//! A profile as a text table, in the manner of the profiler it follows:
//!
//! ```text
//! Total samples:29996 OS:USER:VM:IDLE = 4.71%:0.34%:94.95%:0.00%
//!
//! Samples  %Ratio  Function         Process     Module          VM
//!   16984   56.62  quantum_toffoli  shor (412)  libquantum.so.8  vm1
//! ```

use std::borrow::Cow;
use std::fmt::Write as _;

use model::{Guest, Note, Trigger};

use crate::profile::{Label, Profile, Side, Unresolved, UnresolvedPart};
use crate::{By, View};

/// Longer cells are cut: C++ names can fill pages.
const CELL_CHARS: usize = 80;
/// Reasons shown for unresolved samples; the rest is one line.
const REASONS: usize = 10;

/// The whole report, ready for a terminal.
#[must_use]
pub fn text(profile: &Profile) -> String {
    let mut out = String::new();
    heading(&mut out, profile);
    out.push('\n');
    out += &totals(profile);
    out.push_str("\n\n");
    table(&mut out, profile);
    unresolved(&mut out, profile);
    out
}

/// `text` with everything escaped that could steer a terminal or reorder a line: names come from
/// guests.
#[must_use]
pub fn clean(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if is_unsafe(c) {
            out.extend(c.escape_unicode());
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

fn is_unsafe(c: char) -> bool {
    let invisible = matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}');
    c.is_control() || invisible
}

fn heading(out: &mut String, profile: &Profile) {
    let header = &profile.header;
    let trigger = match header.trigger {
        Trigger::CpuClock => "cpu-clock",
        Trigger::Cycles => "cycles",
    };
    line(out, "Host", &format!("{} (Linux {})", header.hostname, header.kernel));
    let recorded = format!(
        "{} s, {} every {} on {} CPUs (vmscope {})",
        seconds(header.end.since(header.start)),
        trigger,
        duration(header.period_ns),
        header.cpus.len(),
        header.vmscope_version
    );
    line(out, "Recorded", &recorded);
    line(out, "VMs", &vms(profile));
    line(out, "View", &view(profile));
    line(out, "Dropped", &dropped(profile));
    for (name, count) in profile.counters.iter().filter(|(name, _)| dropped_cpu(name).is_none()) {
        line(out, "Counter", &format!("{name} {count}"));
    }
    if !header.complete {
        line(out, "Incomplete", "the recording's writer did not finish; the end is missing");
    }
    for Note { subject, text } in &profile.notes {
        line(out, "note", &format!("{subject}: {text}"));
    }
}

fn line(out: &mut String, title: &str, text: &str) {
    let _ = writeln!(out, "{title}: {}", clean(text));
}

fn vms(profile: &Profile) -> String {
    let vms = profile.vms.iter().map(|summary| {
        let map = match &summary.vm.guest {
            Guest::Mapped { via, .. } => format!("map via {via}"),
            Guest::Unmapped { .. } => "no guest map".to_owned(),
        };
        let plural = if summary.n_vcpus == 1 { "" } else { "s" };
        format!("{} ({} vCPU{plural}, {map})", summary.vm.name, summary.n_vcpus)
    });
    let vms: Vec<String> = vms.collect();
    if vms.is_empty() { "none".to_owned() } else { vms.join(", ") }
}

fn view(profile: &Profile) -> String {
    let selection = &profile.query.selection;
    let mut text = selection.view().name().to_owned();
    if let Some(vm) = &profile.vm {
        let _ = write!(text, " of {vm}");
    }
    if let Some(vcpu) = selection.vcpu() {
        let _ = write!(text, " vcpu{vcpu}");
    }
    let _ = write!(text, ", by {}", profile.query.by.name());
    if let Some(process) = selection.process() {
        let _ = write!(text, ", process {}", process.text());
    }
    text
}

fn dropped(profile: &Profile) -> String {
    let drops = profile
        .counters
        .iter()
        .filter_map(|(name, count)| Some((dropped_cpu(name)?, *count)))
        .collect::<std::collections::BTreeMap<u32, u64>>();
    if drops.is_empty() {
        return "no sample".to_owned();
    }
    let all: u64 = drops.values().sum();
    let each: Vec<String> = drops.iter().map(|(cpu, count)| format!("cpu{cpu} {count}")).collect();
    format!("{} ({})", n_samples(all), each.join(", "))
}

/// The CPU of a counter `samples_dropped_cpuN`.
fn dropped_cpu(counter: &str) -> Option<u32> {
    counter.strip_prefix("samples_dropped_cpu")?.parse().ok()
}

fn totals(profile: &Profile) -> String {
    let shares = &profile.shares;
    let mut parts = vec![("OS", shares.os), ("USER", shares.user)];
    match profile.query.selection.view() {
        View::Unified | View::Host => parts.extend([("VM", shares.vm), ("IDLE", shares.idle)]),
        View::Native => parts.push(("IDLE", shares.idle)),
        View::Guest => parts.push(("NOT-RUNNING", shares.not_running)),
    }
    if shares.unknown > 0 {
        parts.push(("UNKNOWN", shares.unknown));
    }
    let names: Vec<&str> = parts.iter().map(|(name, _)| *name).collect();
    let values: Vec<String> =
        parts.iter().map(|(_, n)| format!("{}%", percent(*n, profile.total))).collect();
    format!("Total samples:{} {} = {}", profile.total, names.join(":"), values.join(":"))
}

fn table(out: &mut String, profile: &Profile) {
    let columns = columns(profile);
    let mut names = vec!["Samples", "%Ratio"];
    names.extend(columns.iter().map(|column| column.name));
    let mut cells: Vec<Vec<String>> = vec![names.into_iter().map(str::to_owned).collect()];
    let numbers = |n: u64| vec![n.to_string(), percent(n, profile.total)];
    for row in &profile.rows {
        let mut line = numbers(row.samples);
        line.extend(columns.iter().map(|column| shortened(&clean(&(column.cell)(&row.label)))));
        cells.push(line);
    }
    if profile.other.rows > 0 {
        let mut line = numbers(profile.other.samples);
        line.push(other_rows(profile.other.rows));
        cells.push(line);
    }
    for line in &cells {
        let _ = writeln!(out, "{}", padded(line, &widths(&cells)).trim_end());
    }
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
        let _ = match n {
            0 => write!(out, "{cell:>width$}"),
            1 => write!(out, "  {cell:>width$}"),
            _ => write!(out, "  {cell:<width$}"),
        };
    }
    out
}

fn shortened(cell: &str) -> String {
    match cell.char_indices().nth(CELL_CHARS) {
        None => cell.to_owned(),
        Some(_) => cell.chars().take(CELL_CHARS - 3).chain("...".chars()).collect(),
    }
}

struct Column {
    name: &'static str,
    cell: fn(&Label) -> String,
}

fn columns(profile: &Profile) -> Vec<Column> {
    let unified = profile.query.selection.view() == View::Unified;
    let vm = unified.then_some(Column { name: "VM", cell: vm_cell });
    let process = Column { name: "Process", cell: process_cell };
    let mut columns = match profile.query.by {
        By::Function => vec![
            Column { name: "Function", cell: |label| or_dash(label.function.as_deref()) },
            process,
            Column { name: "Module", cell: short_module_cell },
        ],
        By::Process => vec![process],
        By::Thread => vec![Column { name: "Thread", cell: thread_cell }, process],
        By::Module => {
            vec![Column { name: "Module", cell: |label| or_dash(label.module.as_deref()) }]
        }
        By::Vm => return vec![Column { name: "VM", cell: whose_cell }],
        By::Cpu => return vec![Column { name: "CPU", cell: cpu_cell }],
    };
    columns.extend(vm);
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
        Some(Side::Idle) => crate::label::IDLE.to_owned(),
        Some(Side::NotRunning) => crate::label::NOT_RUNNING.to_owned(),
        Some(Side::Guest | Side::Vmm) | None => vm_cell(label),
    }
}

fn cpu_cell(label: &Label) -> String {
    match (label.cpu, label.vcpu, label.side) {
        (Some(cpu), _, _) => format!("cpu{cpu}"),
        (_, Some(vcpu), Some(Side::NotRunning)) => {
            format!("vcpu{vcpu} {}", crate::label::NOT_RUNNING)
        }
        (_, Some(vcpu), _) => format!("vcpu{vcpu}"),
        (None, None, _) => crate::label::UNKNOWN.to_owned(),
    }
}

fn unresolved(out: &mut String, profile: &Profile) {
    if profile.unresolved.is_empty() {
        return;
    }
    let sum = |list: &[Unresolved]| list.iter().map(|u| u.samples).sum::<u64>();
    let all = sum(&profile.unresolved);
    let share = percent(all, profile.total);
    let _ = writeln!(out, "\nNot named: {} ({share}%)", n_samples(all));
    for Unresolved { part, subject, reason, samples } in profile.unresolved.iter().take(REASONS) {
        let part = match part {
            UnresolvedPart::Function => "function",
            UnresolvedPart::Process => "process",
        };
        let text = format!("{subject}: {reason}");
        let _ = writeln!(out, "{samples:>7}  {part:<8}  {}", shortened(&clean(&text)));
    }
    if let Some(rest @ [_, ..]) = profile.unresolved.get(REASONS..) {
        let _ = writeln!(out, "{:>7}  (other {} reasons)", sum(rest), rest.len());
    }
}

/// How the rows that a limit cut off are called.
pub(crate) fn other_rows(rows: usize) -> String {
    if rows == 1 { "(other 1 row)".to_owned() } else { format!("(other {rows} rows)") }
}

/// "1 sample", "2 samples".
pub(crate) fn n_samples(n: u64) -> String {
    if n == 1 { "1 sample".to_owned() } else { format!("{n} samples") }
}

/// Per cent with two decimals; 0.00 of nothing.
pub(crate) fn percent(part: u64, total: u64) -> String {
    format!("{:.2}", 100.0 * part as f64 / total.max(1) as f64)
}

fn seconds(ns: u64) -> String {
    format!("{:.3}", ns as f64 / 1e9)
}

fn duration(ns: u64) -> String {
    match ns {
        ns if ns % 1_000_000 == 0 => format!("{} ms", ns / 1_000_000),
        ns if ns % 1_000 == 0 => format!("{} us", ns / 1_000),
        ns => format!("{ns} ns"),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn cleaned() {
        let check = |raw: &str, expected: &str| assert_eq!(clean(raw), expected);
        check("compute_a", "compute_a");
        check("日本", "日本");
        check("a\x1b[2Jb", "a\\u{1b}[2Jb");
        check("a\u{9b}2Jb\r\n", "a\\u{9b}2Jb\\u{d}\\u{a}");
        check("a\u{202e}b", "a\\u{202e}b");
    }

    #[test]
    fn long_cells_are_cut() {
        assert_eq!(shortened(&"é".repeat(80)), "é".repeat(80));
        assert_eq!(shortened(&"é".repeat(81)), format!("{}...", "é".repeat(77)));
    }

    #[test]
    fn durations() {
        for (ns, expected) in [(1_000_000, "1 ms"), (2_500_000, "2500 us"), (999, "999 ns")] {
            assert_eq!(duration(ns), expected);
        }
    }
}
