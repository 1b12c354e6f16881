//! `vmscope exits`: what VMs exit for.

use std::collections::BTreeMap;

use model::VmId;
use serde_json::{Value, json};
use table::{Cell, Column, Keep, Report, Scale, Table, clean, cleaned, ms, percent, with_id};

use crate::report::calls::joined;
use crate::report::vcpu_time::{VERSION, VcpuTime};
use crate::steal::{Cause, ExitRow, Exits, exits as exits_of};

/// Functions named after a reason, reasons named after a function.
const NAMED: usize = 3;

/// What a line stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitsBy {
    Reason,
    /// The guest's function at the exit.
    Function,
    /// The same with its callers.
    Stack,
}

/// What these VMs exit for: how often, how long it takes, and the guest functions that cause it.
#[must_use]
pub fn exits(source: &VcpuTime<'_>, vms: &[VmId], by: ExitsBy) -> Report {
    let found: Vec<(VmId, Exits)> =
        vms.iter().map(|vm| (*vm, exits_of(&source.evidence, *vm))).collect();
    let counted = found.iter().any(|(_, exits)| exits.counted);
    let mut report = source.report();
    if !counted {
        let note = "exits were not counted: record with --exits; times are from samples";
        report.notes.push(note.to_owned());
    }
    let mut data: Option<Table> = None;
    for (vm, exits) in &found {
        let (shown, flat) = match by {
            ExitsBy::Reason => (by_reason(source, *vm, exits), by_reason(source, *vm, exits)),
            ExitsBy::Function | ExitsBy::Stack => {
                (by_function(source, exits, by), causes(source, *vm, &exits.rows, by))
            }
        };
        report.parts.push(Table { title: title(source, *vm, exits), ..shown }.into());
        match &mut data {
            Some(data) => data.rows.extend(flat.rows),
            None => data = Some(flat),
        }
    }
    report.data = data;
    let vm_json = |(vm, exits): &(VmId, Exits)| json!({ "name": cleaned(&source.vm(*vm).name), "exits": exits_json(source, *vm, exits, by) });
    report.json = json!({
        "version": VERSION,
        "recording": source.recording(),
        "counted": counted,
        "vms": found.iter().map(vm_json).collect::<Value>(),
    });
    report
}

fn title(source: &VcpuTime<'_>, vm: VmId, exits: &Exits) -> String {
    let ns: u64 = exits.rows.iter().map(|row| row.time.total_ns()).sum();
    let count: u64 = exits.rows.iter().filter_map(|row| row.count).sum();
    let counted = if exits.counted { format!("{count} exits, ") } else { String::new() };
    let (name, share) = (clean(&source.vm(vm).name), percent(ns, source.wall_ns(vm).max(1), 2));
    format!("VM {name}: {counted}{} ms in the VMM ({share} % of its time)", ms(ns))
}

fn by_reason(source: &VcpuTime<'_>, vm: VmId, exits: &Exits) -> Table {
    let columns = vec![
        Column::csv_only("vm"),
        Column::json_only("reason"),
        Column::csv_only("exit_reason").json("name"),
        Column::number("Count").key("count"),
        Column::number("ms").key("ns").scale(Scale::Ms),
        Column::number("waiting\nms").key("waiting_ns").scale(Scale::Ms),
        Column::data("samples"),
        Column::number("us\neach").key("mean_ns").scale(Scale::Us),
        Column::name("Exit reason"),
        Column::name("Guest functions (ms)"),
    ];
    let mut table = Table::new("", columns);
    for row in &exits.rows {
        let name = source.reason(row.reason);
        let vm = source.vm(vm).name.as_str();
        let times = [row.time.total_ns(), row.time.waiting_ns].map(Cell::ns);
        let who = [vm.into(), row.reason.into(), name.as_str().into(), row.count.into()];
        let mean = row.mean_ns().map_or(Cell::NONE, Cell::ns);
        let names = [name, named(functions(row))].map(Cell::Text);
        let rest = [row.samples.into(), mean].into_iter().chain(names);
        table.row(who.into_iter().chain(times).chain(rest));
    }
    table
}

/// By name: several processes may run the same function.
fn functions(row: &ExitRow) -> Vec<(String, u64)> {
    let mut functions: BTreeMap<&str, u64> = BTreeMap::new();
    for (cause, ns) in &row.causes {
        *functions.entry(cause.function.as_deref().unwrap_or("[unknown]")).or_default() += ns;
    }
    functions.into_iter().map(|(name, ns)| (name.to_owned(), ns)).collect()
}

/// The same the other way round.
fn by_function(source: &VcpuTime<'_>, exits: &Exits, by: ExitsBy) -> Table {
    let mut functions: BTreeMap<&Cause, Vec<(String, u64)>> = BTreeMap::new();
    for row in &exits.rows {
        for (cause, ns) in &row.causes {
            functions.entry(cause).or_default().push((source.reason(row.reason), *ns));
        }
    }
    let sum = |reasons: &[(String, u64)]| reasons.iter().map(|(_, ns)| ns).sum::<u64>();
    let mut rows: Vec<_> = functions.into_iter().collect();
    rows.sort_by_key(|(_, reasons)| std::cmp::Reverse(sum(reasons)));
    let function = if by == ExitsBy::Stack { "Stack" } else { "Function" };
    let names = [
        Column::name(function).keep(Keep::Start, 3),
        Column::name("Process"),
        Column::name("Exit reasons (ms)"),
    ];
    let columns = std::iter::once(Column::number("ms").scale(Scale::Ms)).chain(names);
    let mut table = Table::new("", columns.collect());
    for (cause, reasons) in rows {
        let text = |name: &Option<String>| name.clone().unwrap_or("[unknown]".to_owned());
        let process = with_id(&text(&cause.process), cause.pid);
        let ns = Cell::ns(sum(&reasons));
        let function = joined(&text(&cause.function), &cause.callers);
        let names = [function, process, named(reasons)].map(Cell::Text);
        table.row(std::iter::once(ns).chain(names));
    }
    table
}

/// A line for each reason and what caused it.
fn causes(source: &VcpuTime<'_>, vm: VmId, rows: &[ExitRow], by: ExitsBy) -> Table {
    let keys = ["process", "pid", "function", "module", "ns"].map(Column::data);
    let columns = ["vm", "exit_reason"].map(Column::csv_only).into_iter().chain(keys);
    let of_stack = [Column::csv_only("stack"), Column::json_only("callers")];
    let columns = columns.chain(of_stack.into_iter().filter(|_| by == ExitsBy::Stack));
    let mut table = Table::new("", columns.collect());
    for row in rows {
        for (cause, ns) in &row.causes {
            let Cause { process, pid, function, module, callers } = cause;
            let who = [source.vm(vm).name.as_str().into(), source.reason(row.reason).into()];
            let names = [process.clone().into(), (*pid).into(), function.clone().into()];
            let stack = function.as_ref().map(|function| joined(function, callers));
            let callers = callers.iter().map(|caller| cleaned(caller)).collect();
            let of_stack = [stack.into(), Cell::Json(callers)];
            let of_stack = of_stack.into_iter().filter(|_| by == ExitsBy::Stack);
            let rest = [module.clone().into(), Cell::ns(*ns)].into_iter().chain(of_stack);
            table.row(who.into_iter().chain(names).chain(rest));
        }
    }
    table
}

fn exits_json(source: &VcpuTime<'_>, vm: VmId, exits: &Exits, by: ExitsBy) -> Value {
    let mut objects = by_reason(source, vm, exits).json();
    for (n, row) in exits.rows.iter().enumerate() {
        objects[n]["causes"] = causes(source, vm, std::slice::from_ref(row), by).json();
    }
    objects
}

/// `a 1.500, b 0.500, 3 more`.
fn named(mut parts: Vec<(String, u64)>) -> String {
    parts.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
    let more = parts.len().saturating_sub(NAMED);
    let mut names: Vec<String> =
        parts.iter().take(NAMED).map(|(name, ns)| format!("{name} {}", ms(*ns))).collect();
    if 0 < more {
        names.push(format!("{more} more"));
    }
    names.join(", ")
}
