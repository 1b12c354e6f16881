//! CPU and disk of each task: the 3x3 tables of `--view states`.

use analysis::Width;
use trace_analysis::states::{States, Table, Use};

use super::super::grid::{Column, Grid};
use super::report::Findings;
use super::scene::{Scale, counted, percent};
use super::words;

/// Titles of the nine cells, CPU by disk.
const CELLS: [&str; 9] = [
    "runs\nruns",
    "runs\nwaits",
    "runs\n-",
    "waits\nruns",
    "waits\nwaits",
    "waits\n-",
    "-\nruns",
    "-\nwaits",
    "-\n-",
];

pub(super) fn text(findings: &Findings<'_>, states: &States, width: Width) -> String {
    let mut out = total(findings, states, width);
    let title =
        "\nBy command name, in % of their processes' lives (above: the CPU, below: the disk)\n";
    out += title;
    let mut grid = columns(&["command", ">processes"], &states.total);
    let limit = findings.limit.unwrap_or(usize::MAX);
    for named in states.names.iter().take(limit) {
        let first = [named.name.clone(), named.n_processes.to_string()];
        grid.row(first.into_iter().chain(shares(&named.table, &states.total)));
    }
    out += &grid.text(width);
    out += &left_out(states.names.len(), limit, "name");
    out += "\nBy process\n";
    let mut grid = columns(&["process"], &states.total);
    let mut processes: Vec<_> = states.processes.iter().collect();
    processes.sort_by_key(|(_, table)| std::cmp::Reverse(table.total_ns()));
    for (leader, table) in processes.iter().take(limit) {
        let name = words::task(findings.scene.task(*leader));
        grid.row([name].into_iter().chain(shares(table, &states.total)));
    }
    out += &grid.text(width);
    out += &left_out(states.processes.len(), limit, "process");
    out
}

/// The table of all tasks.
pub(super) fn total(findings: &Findings<'_>, states: &States, width: Width) -> String {
    let all = states.total.total_ns();
    let scale = Scale::of(all);
    let unit = scale.unit();
    let mut out = format!(
        "What {} did with CPU and disk: lives of {}, {} {unit}, in {unit} and %\n",
        findings.whose(),
        counted(states.tasks.len() as u64, "task"),
        scale.show(all),
    );
    let titles =
        ["", ">disk runs\nfor it", ">%", ">waits in the\ndisk's queue", ">%", ">no disk", ">%"];
    let mut grid = Grid::new(&titles);
    let names = ["CPU: runs", "CPU: waits for one", "CPU: neither"];
    for (name, cpu) in names.into_iter().zip(Use::ALL) {
        let cells = Use::ALL.map(|disk| states.total.ns(cpu, disk));
        let cells = cells.into_iter().flat_map(|ns| [scale.show(ns), percent(ns, all)]);
        grid.row(std::iter::once(name.to_owned()).chain(cells));
    }
    out += &grid.text(width);
    if 0 < states.total.unknown_ns {
        let ns = states.total.unknown_ns;
        out += &format!("Not known: {} {unit}, {} %\n", scale.show(ns), percent(ns, all));
    }
    out
}

pub(super) fn csv(findings: &Findings<'_>, states: &States) -> String {
    let mut grid = Grid::new(&["process", ">pid", ">life_ns"]);
    let uses = ["running", "waiting", "none"];
    let cells = uses.iter().flat_map(|cpu| uses.iter().map(move |disk| (cpu, disk)));
    for (cpu, disk) in cells {
        grid.push(Column::Number(format!("cpu_{cpu}_disk_{disk}_ns")));
    }
    grid.push(Column::Number("unknown_ns".to_owned()));
    for (leader, table) in states.processes.iter().take(findings.limit.unwrap_or(usize::MAX)) {
        let task = findings.scene.task(*leader);
        let first = [task.name().to_owned(), task.pid.to_string(), table.total_ns().to_string()];
        let cells = table.cells.as_flattened().iter().chain([&table.unknown_ns]);
        grid.row(first.into_iter().chain(cells.map(u64::to_string)));
    }
    grid.csv()
}

/// Columns of cells that are nobody's are left out, but those of no disk.
fn shown(total: &Table) -> impl Iterator<Item = usize> {
    let cells = total.cells;
    (0..9).filter(move |&cell| cell % 3 == 2 || 0 < cells.as_flattened()[cell])
}

fn columns(first: &[&str], total: &Table) -> Grid {
    let mut grid = Grid::new(first);
    grid.push(Column::Number(format!("life, {}", Scale::of(total.total_ns()).unit())));
    shown(total).for_each(|cell| grid.push(Column::Number(CELLS[cell].to_owned())));
    if 0 < total.unknown_ns {
        grid.push(Column::Number("unknown".to_owned()));
    }
    grid
}

fn shares(table: &Table, total: &Table) -> Vec<String> {
    let all = table.total_ns();
    let cells = shown(total).map(|cell| table.cells.as_flattened()[cell]);
    let unknown = (0 < total.unknown_ns).then_some(table.unknown_ns);
    let shares = cells.chain(unknown).map(|ns| percent(ns, all));
    std::iter::once(Scale::of(total.total_ns()).show(all)).chain(shares).collect()
}

/// How many rows a limit cut off.
pub(super) fn left_out(rows: usize, limit: usize, what: &str) -> String {
    match rows.checked_sub(limit) {
        None | Some(0) => String::new(),
        Some(n) => format!("({} more: --limit 0)\n", counted(n as u64, what)),
    }
}
