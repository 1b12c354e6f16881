//! CPU and disk of each task: the 3x3 tables.

use std::cmp::Reverse;

use serde_json::{Value, json};
use table::{Cell, Column, Part, Scale, Table, counted, percent};

use super::{Context, labels, limited, note_cut, object};
use crate::states::{self, Use};
use crate::timeline::TaskId;

/// The nine cells, CPU by disk, and unknown: titles, and keys in CSV and JSON.
const CELLS: [(&str, &str, &str); 10] = [
    ("runs\nruns", "cpu_running_disk_running_ns", "time.cpu_running_disk_running_ns"),
    ("runs\nwaits", "cpu_running_disk_waiting_ns", "time.cpu_running_disk_waiting_ns"),
    ("runs\n-", "cpu_running_disk_none_ns", "time.cpu_running_disk_none_ns"),
    ("waits\nruns", "cpu_waiting_disk_running_ns", "time.cpu_waiting_disk_running_ns"),
    ("waits\nwaits", "cpu_waiting_disk_waiting_ns", "time.cpu_waiting_disk_waiting_ns"),
    ("waits\n-", "cpu_waiting_disk_none_ns", "time.cpu_waiting_disk_none_ns"),
    ("-\nruns", "cpu_none_disk_running_ns", "time.cpu_none_disk_running_ns"),
    ("-\nwaits", "cpu_none_disk_waiting_ns", "time.cpu_none_disk_waiting_ns"),
    ("-\n-", "cpu_none_disk_none_ns", "time.cpu_none_disk_none_ns"),
    ("unknown", "unknown_ns", "time.unknown_ns"),
];

pub(super) fn parts(context: &Context<'_>) -> Vec<Part> {
    let mut names = names(context);
    names.title =
        "By command name, in % of their processes' lives (above: the CPU, below: the disk)"
            .to_owned();
    let mut processes = processes(context);
    processes.title = "By process".to_owned();
    vec![total(context).into(), names.into(), processes.into()]
}

/// The table of all tasks, for people.
pub(super) fn total(context: &Context<'_>) -> Table {
    let states = context.findings.states();
    let all = states.total.total_ns();
    let scale = Scale::ms_or_s(all);
    let unit = scale.unit();
    let title = format!(
        "What {} did with CPU and disk: lives of {}, {} {unit}, in {unit} and %",
        context.whose(),
        counted(states.tasks.len() as u64, "task"),
        scale.show(all),
    );
    let mut columns = vec![Column::name("")];
    for title in ["disk runs\nfor it", "waits in the\ndisk's queue", "no disk"] {
        columns.extend([Column::number(title).scale(scale), Column::number("%").decimals(1)]);
    }
    let mut table = Table::new(title, columns);
    let names = ["CPU: runs", "CPU: waits for one", "CPU: neither"];
    for (name, cpu) in names.into_iter().zip(Use::ALL) {
        let cells = Use::ALL.map(|disk| states.total.ns(cpu, disk));
        let cells = cells.into_iter().flat_map(|ns| [Cell::ns(ns), Cell::Share(ns, all)]);
        table.row([name.into()].into_iter().chain(cells));
    }
    let unknown = states.total.unknown_ns;
    if 0 < unknown {
        let share = percent(unknown, all, 1);
        table.notes.push(format!("Not known: {} {unit}, {share} %", scale.show(unknown)));
    }
    table
}

/// A row per command name, longest lives first.
fn names(context: &Context<'_>) -> Table {
    let states = context.findings.states();
    let columns =
        vec![Column::name("command").json("name"), Column::number("processes").json("processes")];
    let mut table = with_cells(columns, &states.total);
    for named in limited(&states.names, context.limit) {
        let first = [named.name.as_str().into(), named.n_processes.into()];
        table.row(first.into_iter().chain(cells(&named.table, &states.total)));
    }
    note_cut(&mut table, states.names.len(), "name");
    table
}

/// A row per process, longest lives first.
pub(super) fn processes(context: &Context<'_>) -> Table {
    let states = context.findings.states();
    let columns = vec![
        Column::name("process"),
        Column::csv_only("process").json("name"),
        Column::data("pid"),
    ];
    let mut table = with_cells(columns, &states.total);
    let mut processes: Vec<&(TaskId, states::Table)> = states.processes.iter().collect();
    processes.sort_by_key(|(_, table)| Reverse(table.total_ns()));
    for (leader, of) in limited(&processes, context.limit) {
        let task = context.findings.task(*leader);
        let first = [labels::task(task).into(), task.name().into(), task.pid.0.into()];
        table.row(first.into_iter().chain(cells(of, &states.total)));
    }
    note_cut(&mut table, processes.len(), "process");
    table
}

fn with_cells(mut columns: Vec<Column>, total: &states::Table) -> Table {
    let scale = Scale::ms_or_s(total.total_ns());
    let life = Column::number(format!("life, {}", scale.unit())).scale(scale);
    columns.push(life.csv("life_ns").json("time.life_ns"));
    columns.extend(shown(total).map(|cell| Column::number(CELLS[cell].0).decimals(1)));
    columns.extend(CELLS.map(|(_, csv, json)| Column::csv_only(csv).json(json)));
    Table::new("", columns)
}

/// The life, the shares that people see, and all times.
fn cells(of: &states::Table, total: &states::Table) -> impl Iterator<Item = Cell> {
    let (all, ns) = (of.total_ns(), ns(of));
    let shares = shown(total).map(move |cell| Cell::Share(ns[cell], all));
    [Cell::ns(all)].into_iter().chain(shares).chain(ns.map(Cell::ns))
}

/// Columns of empty cells are left out, but those of no disk.
fn shown(total: &states::Table) -> impl Iterator<Item = usize> + use<> {
    let total = ns(total);
    (0..CELLS.len()).filter(move |&cell| (cell < 9 && cell % 3 == 2) || 0 < total[cell])
}

fn ns(of: &states::Table) -> [u64; 10] {
    let [[a, b, c], [d, e, f], [g, h, i]] = of.cells;
    [a, b, c, d, e, f, g, h, i, of.unknown_ns]
}

pub(super) fn json(context: &Context<'_>) -> Value {
    let states = context.findings.states();
    let total = [("life_ns", states.total.total_ns())].into_iter();
    json!({
        "tasks": states.tasks.len(),
        "total": object(total.chain(CELLS.map(|(_, key, _)| key).into_iter().zip(ns(&states.total)))),
        "names": names(context).json(),
        "processes": processes(context).json(),
    })
}
