//! What CPUs executed: where kernel time went.

use serde_json::{Value, json};
use table::{Cell, Column, Part, Scale, Table, percent};

use super::{Context, host_side, labels, limited, note_cut};
use crate::findings::Findings;
use crate::group::By;
use crate::kernel::{Class, ClassGroup, Times};

pub(super) fn parts(context: &Context<'_>) -> Vec<Part> {
    let scale = scale(&context.findings);
    let mut names = times(context, By::Name);
    names.title = format!("By command name: {}, in {}", context.whose(), scale.unit());
    let findings = &context.findings;
    let mut calls = calls(findings, context.limit);
    calls.title = format!("System calls: {}", context.whose());
    note_cut(
        &mut calls,
        findings.kernel().calls(findings.timeline, &findings.tasks).len(),
        "system call",
    );
    let mut parts = vec![machine(context).into(), names.into(), calls.into()];
    parts.extend(host_side::kernel(context));
    parts
}

fn scale(findings: &Findings<'_>) -> Scale {
    Scale::ms_or_s(findings.kernel().total().total_ns())
}

/// Classes of all CPUs, and of the selected tasks where those are not all.
fn machine(context: &Context<'_>) -> Table {
    let kernel = context.findings.kernel();
    let (total, of_tasks) = (kernel.total(), kernel.times_of(&context.findings.tasks));
    let (all_ns, tasks_ns) = (total.total_ns(), of_tasks.total_ns());
    let (everyone, tasks) = (context.findings.is_everyone(), of_tasks.classes());
    let scale = scale(&context.findings);
    let unit = scale.unit();
    let title = format!(
        "What all CPUs executed, in any task, in {unit} and % of {} x {} {unit}",
        kernel.cpus.len(),
        scale.show(kernel.wall_ns)
    );
    let share = |title: String| Column::number(title).decimals(1);
    let mut columns =
        vec![Column::name("executes"), Column::number(unit).scale(scale), share("%".to_owned())];
    if !everyone {
        let title = format!("{}, {unit}", context.whose());
        columns.extend([Column::number(title).scale(scale), share("%".to_owned())]);
    }
    columns.extend(kernel.cpus.iter().map(|(cpu, _)| share(format!("CPU {cpu}\n%")).spare()));
    let mut table = Table::new(title, columns);
    let of = |classes: &std::collections::BTreeMap<Class, u64>, class| {
        classes.get(class).copied().unwrap_or(0)
    };
    for (class, ns) in &total.classes() {
        let mut cells = vec![class.name().into(), Cell::ns(*ns), Cell::Share(*ns, all_ns)];
        if !everyone {
            let ns = of(&tasks, class);
            cells.extend([Cell::ns(ns), Cell::Share(ns, tasks_ns)]);
        }
        let cpus = kernel.cpus.iter().map(|(_, times)| of(&times.classes(), class));
        cells.extend(cpus.map(|ns| Cell::Share(ns, kernel.wall_ns)));
        table.row(cells);
    }
    table
}

/// `user 60.0 %, file system calls 10.0 %, ...`: the groups that are not 0, largest first.
pub(super) fn line(times: &Times) -> String {
    let all = times.total_ns();
    let mut groups: Vec<_> = times.groups().into_iter().collect();
    groups.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
    // What would show as 0.0 is left out.
    let shown = groups.into_iter().filter(|(_, ns)| all < ns.saturating_mul(2000));
    let shown = shown.map(|(group, ns)| format!("{} {} %", group.name(), percent(ns, all, 1)));
    shown.collect::<Vec<_>>().join(", ")
}

/// What was executed for command names or processes. Groups of classes have columns where they were executed.
fn times(context: &Context<'_>, by: By) -> Table {
    let findings = &context.findings;
    let scale = scale(findings);
    let rows = findings.kernel().rows(findings.timeline, by, &findings.tasks);
    let mut all = Times::default();
    rows.iter().for_each(|row| all.merge(&row.times));
    let groups = all.groups();
    let shown: Vec<ClassGroup> =
        ClassGroup::ALL.into_iter().filter(|group| groups.contains_key(group)).collect();
    let mut columns = vec![
        Column::name("command"),
        Column::json_only("name"),
        Column::json_only("pid"),
        Column::number("CPU").scale(scale),
        Column::number("kernel").scale(scale).json("kernel_ns"),
        Column::json_only("classes"),
    ];
    let title =
        |group: &ClassGroup| group.name().replace("system calls", "calls").replace(' ', "\n");
    columns.extend(shown.iter().map(|group| Column::number(title(group)).scale(scale).spare()));
    let mut table = Table::new("", columns);
    for row in limited(&rows, context.limit) {
        let groups = row.times.groups();
        let executed = shown.iter().map(|group| groups.get(group).copied().unwrap_or(0));
        let first = [
            labels::key(&row.key).into(),
            row.key.name.as_str().into(),
            row.key.pid.map(|pid| pid.0).into(),
            Cell::ns(row.times.total_ns()),
            Cell::ns(row.times.kernel_ns()),
            Cell::Json(classes(&row.times)),
        ];
        table.row(first.into_iter().chain(executed.map(|ns| Cell::ns(ns).or_none())));
    }
    note_cut(&mut table, rows.len(), "name");
    table
}

/// System calls, most CPU time first.
#[must_use]
pub fn calls(findings: &Findings<'_>, limit: Option<usize>) -> Table {
    let scale = scale(findings);
    let unit = scale.unit();
    let columns = vec![
        Column::json_only("number"),
        Column::name("call").json("name"),
        Column::json_only("class"),
        Column::number("calls").json("count"),
        Column::number("failed").json("failed"),
        Column::number(format!("on CPU\n{unit}")).scale(scale).json("on_cpu_ns"),
        Column::number("mean, us").decimals(1),
        Column::number(format!("in all\n{unit}")).scale(scale).json("ns"),
        Column::number("longest, ms").scale(Scale::Ms).json("longest_ns"),
    ];
    let mut table = Table::new("System calls", columns);
    let rows = findings.kernel().calls(findings.timeline, &findings.tasks);
    for row in limited(&rows, limit) {
        table.row([
            u32::from(row.number).into(),
            row.name.as_str().into(),
            row.class.name().into(),
            row.calls.count.into(),
            row.calls.failed.into(),
            Cell::ns(row.on_cpu_ns),
            Cell::Real(row.on_cpu_ns as f64 / row.calls.count.max(1) as f64 / 1e3),
            Cell::ns(row.calls.ns),
            Cell::ns(row.calls.longest_ns),
        ]);
    }
    table
}

/// For CSV: a row per process and what it executed.
pub(super) fn data(context: &Context<'_>) -> Table {
    let columns = ["process", "pid", "group", "class", "executes", "ns"];
    let mut table = Table::new("", columns.map(Column::csv_only).to_vec());
    let mut add = |name: &str, pid: Option<u32>, times: &Times| {
        for (work, ns) in &times.work {
            let class = Class::from_work(*work);
            table.row([
                name.into(),
                pid.into(),
                class.group().name().into(),
                class.name().into(),
                labels::work(*work).into(),
                Cell::ns(*ns),
            ]);
        }
    };
    let (findings, kernel) = (&context.findings, context.findings.kernel());
    let rows = kernel.rows(findings.timeline, By::Process, &findings.tasks);
    for row in limited(&rows, context.limit) {
        add(&row.key.name, row.key.pid.map(|pid| pid.0), &row.times);
    }
    if findings.is_everyone() {
        add("(no task)", None, &kernel.idle);
        add("(unknown task)", None, &kernel.unknown);
    }
    table
}

pub(super) fn json(context: &Context<'_>) -> Value {
    let (findings, kernel) = (&context.findings, context.findings.kernel());
    let cpu = |(cpu, times): &(u32, Times)| json!({ "cpu": cpu, "classes": classes(times) });
    json!({
        "machine": classes(&kernel.total()),
        "cpus": kernel.cpus.iter().map(cpu).collect::<Value>(),
        "tasks": classes(&kernel.times_of(&findings.tasks)),
        "names": times(context, By::Name).json(),
        "processes": times(context, By::Process).json(),
        "calls": calls(findings, context.limit).json(),
    })
}

fn classes(times: &Times) -> Value {
    let class = |(class, ns): (Class, u64)| json!({ "class": class.name(), "group": class.group().name(), "ns": ns });
    times.classes().into_iter().map(class).collect()
}
