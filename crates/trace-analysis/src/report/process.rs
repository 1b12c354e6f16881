//! Every process: its life, CPU time, waits and disk requests.

use model::Pid;
use table::{Cell, Column, Part, Scale, Table, counted};

use super::waits::life_json;
use super::{Context, host_side, labels, limited, note_cut};
use crate::findings::Findings;
use crate::group::By;
use crate::kernel::Class;
use crate::timeline::TaskId;
use crate::waits::{Group, Row};

pub(super) fn parts(context: &Context<'_>) -> Vec<Part> {
    let n = context.findings.lives_by(By::Process).len();
    let mut table = processes(&context.findings, context.limit);
    note_cut(&mut table, n, "process");
    let mut parts = vec![table.into()];
    parts.extend(host_side::processes(context).map(Part::from));
    parts
}

/// A row per process, most CPU time first.
#[must_use]
pub fn processes(findings: &Findings<'_>, limit: Option<usize>) -> Table {
    let mut rows = findings.lives_by(By::Process);
    rows.sort_by_key(|row| std::cmp::Reverse(row.life.running.ns));
    let longest = rows.iter().map(|row| row.life.total_ns()).max().unwrap_or(0);
    let scale = Scale::ms_or_s(longest.max(findings.timeline.length_ns()));
    let title = format!(
        "{}, most CPU time first; lives are sums over threads, in {}",
        counted(rows.len() as u64, "process"),
        scale.unit()
    );
    let mut table = Table::new(title, columns(scale, findings.host.is_some()));
    for row in limited(&rows, limit) {
        table.row(cells(findings, row));
    }
    table
}

fn columns(scale: Scale, has_host: bool) -> Vec<Column> {
    let time = |title: &str| Column::number(title).scale(scale);
    let mut columns = vec![
        Column::name("process"),
        Column::csv_only("process").json("name"),
        Column::data("pid"),
        Column::number("parent").spare().key("parent_pid"),
        Column::json_only("kernel"),
        Column::data("threads"),
        time("from").spare(),
        Column::data("begin_ns"),
        Column::data("end_ns"),
        Column::json_only("before"),
        Column::json_only("exited"),
        time("life").csv("life_ns"),
        time("own\ncode").key("user_ns"),
        time("kernel").key("kernel_ns"),
        time("waits:\nCPU").csv("cpu_wait_ns"),
        time("disk"),
        Column::csv_only("disk_wait_ns"),
        time("locks"),
        time("others"),
        Column::csv_only("waiting_ns"),
        Column::csv_only("unknown_ns"),
        Column::csv_only("stopped_ns"),
        Column::json_only("life"),
        Column::number("calls").spare().key("calls"),
        Column::data("requests"),
        Column::data("request_bytes"),
        Column::number("MB").spare().decimals(1),
    ];
    if has_host {
        let host = ["ran_ns", "stolen_ns", "asleep_in_vmm_ns", "host_unknown_ns"];
        columns.extend(host.map(Column::csv_only));
    }
    columns
}

fn cells(findings: &Findings<'_>, row: &Row) -> impl Iterator<Item = Cell> {
    let timeline = findings.timeline;
    let tasks = || row.tasks.iter().map(|id| findings.task(*id));
    let requests = || tasks().flat_map(|task| &task.requests).filter(|it| it.done.is_some());
    let calls = |id: &TaskId| timeline.calls.range((*id, 0)..=(*id, u16::MAX));
    let n_calls: u64 = row.tasks.iter().flat_map(calls).map(|(_, calls)| calls.count).sum();
    let moved = requests().filter(|request| !request.for_loop);
    let request_bytes: u64 = moved.map(|request| u64::from(request.bytes)).sum();
    let begin = tasks().map(|task| task.begin).min().unwrap_or(timeline.begin);
    let end = tasks().map(|task| task.end).max().unwrap_or(timeline.end);
    let (begin_ns, end_ns) = (begin.since(timeline.begin), end.since(timeline.begin));
    let before = tasks().any(|task| task.before);
    let times = findings.kernel().times_of(&row.tasks);
    let groups = row.life.groups();
    let group = |group| groups.get(&group).map_or(0, |sum| sum.ns);
    let disk = group(Group::Disk) + group(Group::FileServer);
    let locks = group(Group::InodeLock) + group(Group::OtherLocks);
    let (life, cpu) = (row.life.total_ns(), group(Group::Cpu));
    let host =
        findings.host.as_ref().map(|host| host_side::numbers(&host.side.share_of(&row.tasks)));
    let cells = [
        labels::key(&row.key).into(),
        row.key.name.as_str().into(),
        row.key.pid.map_or(0, |pid| pid.0).into(),
        tasks().next().map_or(Pid(0), |task| task.parent_pid).0.into(),
        Cell::Flag(row.key.kernel),
        (row.tasks.len() as u64).into(),
        if before { Cell::NONE } else { Cell::ns(begin_ns) },
        Cell::ns(begin_ns),
        Cell::ns(end_ns),
        Cell::Flag(before),
        Cell::Flag(tasks().all(|task| task.exited)),
        Cell::ns(life),
        Cell::ns(times.classes().get(&Class::User).copied().unwrap_or(0)),
        Cell::ns(times.kernel_ns()),
        Cell::ns(cpu),
        Cell::ns(disk),
        Cell::ns(group(Group::Disk)),
        Cell::ns(locks),
        Cell::ns(life - row.life.running.ns - cpu - disk - locks),
        Cell::ns(row.life.waiting().ns),
        Cell::ns(row.life.unknown().ns),
        Cell::ns(group(Group::Stopped)),
        Cell::Json(life_json(&row.life)),
        n_calls.into(),
        (requests().count() as u64).into(),
        Cell::bytes(request_bytes),
        Cell::Real(request_bytes as f64 / 1e6),
    ];
    cells.into_iter().chain(host.into_iter().flatten().map(Cell::ns))
}
