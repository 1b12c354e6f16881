//! Where kernel time went: `--view kernel`.

use std::collections::BTreeMap;

use analysis::Width;
use trace_analysis::group::By;
use trace_analysis::kernel::{CallRow, ClassGroup, KernelTime, Times, TimesRow};

use super::super::grid::{Column, Grid};
use super::report::Findings;
use super::scene::{Scale, percent};
use super::states::left_out;
use super::waits::ms;
use super::{host_side, words};

/// Everything that the view shows.
#[derive(Debug)]
pub(super) struct Kernel<'a> {
    pub(super) time: &'a KernelTime,
    /// While the tasks asked for had a CPU.
    pub(super) tasks: Times,
    pub(super) names: Vec<TimesRow>,
    pub(super) processes: Vec<TimesRow>,
    pub(super) calls: Vec<CallRow>,
}

impl<'a> Kernel<'a> {
    pub(super) fn of(findings: &'a Findings<'_>) -> Self {
        let (timeline, tasks) = (&findings.scene.timeline, &findings.tasks);
        let time = findings.kernel();
        Self {
            tasks: time.times_of(tasks),
            names: time.rows(timeline, By::Name, tasks),
            processes: time.rows(timeline, By::Process, tasks),
            calls: time.calls(timeline, tasks),
            time,
        }
    }

    fn scale(&self) -> Scale {
        Scale::of(self.time.total().total_ns())
    }
}

pub(super) fn text(findings: &Findings<'_>, kernel: &Kernel<'_>, width: Width) -> String {
    let limit = findings.limit.unwrap_or(usize::MAX);
    let cpus = kernel.time.cpus.len() as u64;
    let scale = kernel.scale();
    let unit = scale.unit();
    let mut out = format!(
        "What all CPUs executed, whoever ran, in {unit} and % of {cpus} x {} {unit}\n{}",
        scale.show(kernel.time.wall_ns),
        machine(findings, kernel).text(width)
    );
    out += &format!(
        "\nBy command name: {}, in {unit}\n{}",
        findings.whose(),
        by_name(kernel, limit).text(width)
    );
    out += &left_out(kernel.names.len(), limit, "name");
    out += &format!("\nSystem calls: {}\n{}", findings.whose(), calls(kernel, limit).text(width));
    out += &left_out(kernel.calls.len(), limit, "system call");
    out += &host_side::kernel(findings, width);
    out
}

/// Classes of all CPUs, and of the tasks asked for when those are not all.
fn machine(findings: &Findings<'_>, kernel: &Kernel<'_>) -> Grid {
    let total = kernel.time.total();
    let (all, all_ns) = (total.classes(), total.total_ns());
    let (tasks, tasks_ns) = (kernel.tasks.classes(), kernel.tasks.total_ns());
    let scale = kernel.scale();
    let unit = scale.unit();
    let mut grid = Grid::new(&["executes", &format!(">{unit}"), ">%"]);
    if !findings.is_everyone() {
        grid.push(Column::Number(format!("{}, {unit}", findings.whose())));
        grid.push(Column::Number("%".to_owned()));
    }
    for (number, _) in &kernel.time.cpus {
        grid.push(Column::Spare(format!("CPU {number}\n%")));
    }
    for (class, ns) in &all {
        let mut cells = vec![class.name().to_owned(), scale.show(*ns), percent(*ns, all_ns)];
        if !findings.is_everyone() {
            let ns = tasks.get(class).copied().unwrap_or(0);
            cells.extend([scale.show(ns), percent(ns, tasks_ns)]);
        }
        for (_, times) in &kernel.time.cpus {
            let ns = times.classes().get(class).copied().unwrap_or(0);
            cells.push(percent(ns, kernel.time.wall_ns));
        }
        grid.row(cells);
    }
    grid
}

/// `user 60.0 %, file system calls 10.0 %, ...`: the groups that are not 0, largest first.
pub(super) fn line(times: &Times) -> String {
    let all = times.total_ns();
    let mut groups: Vec<_> = times.groups().into_iter().collect();
    groups.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
    // What would show as 0.0 is left out.
    let shown = groups.into_iter().filter(|(_, ns)| all < ns.saturating_mul(2000));
    let shown = shown.map(|(group, ns)| format!("{} {} %", group.name(), percent(ns, all)));
    shown.collect::<Vec<_>>().join(", ")
}

fn by_name(kernel: &Kernel<'_>, limit: usize) -> Grid {
    let (rows, scale) = (&kernel.names, kernel.scale());
    let mut all = Times::default();
    rows.iter().for_each(|row| all.merge(&row.times));
    let groups = all.groups();
    let shown: Vec<ClassGroup> =
        ClassGroup::ALL.into_iter().filter(|group| groups.contains_key(group)).collect();
    let mut grid = Grid::new(&["command", ">CPU", ">kernel"]);
    for group in &shown {
        grid.push(Column::Spare(group.name().replace("system calls", "calls").replace(' ', "\n")));
    }
    for row in rows.iter().take(limit) {
        let groups: BTreeMap<ClassGroup, u64> = row.times.groups();
        let cells = shown.iter().map(|group| groups.get(group).copied().unwrap_or(0));
        let cells = cells.map(|ns| if ns == 0 { "-".to_owned() } else { scale.show(ns) });
        let kernel = scale.show(row.times.kernel_ns());
        let first = [words::key(&row.key), scale.show(row.times.total_ns()), kernel];
        grid.row(first.into_iter().chain(cells));
    }
    grid
}

fn calls(kernel: &Kernel<'_>, limit: usize) -> Grid {
    let scale = kernel.scale();
    let on_cpu = format!(
        ">on CPU
{}",
        scale.unit()
    );
    let in_all = format!(
        ">in all
{}",
        scale.unit()
    );
    let titles = ["call", ">calls", ">failed", &on_cpu, ">mean, us", &in_all, ">longest, ms"];
    let mut grid = Grid::new(&titles);
    for row in kernel.calls.iter().take(limit) {
        let mean = row.on_cpu_ns as f64 / row.calls.count.max(1) as f64 / 1e3;
        grid.row([
            row.name.clone(),
            row.calls.count.to_string(),
            row.calls.failed.to_string(),
            scale.show(row.on_cpu_ns),
            format!("{mean:.1}"),
            scale.show(row.calls.ns),
            ms(row.calls.longest_ns),
        ]);
    }
    grid
}

pub(super) fn csv(findings: &Findings<'_>, kernel: &Kernel<'_>) -> String {
    let mut grid = Grid::new(&["process", ">pid", "group", "class", "executes", ">ns"]);
    let mut add = |name: &str, pid: &str, times: &Times| {
        for (work, ns) in &times.work {
            let class = trace_analysis::kernel::Class::from_work(*work);
            let words = [name, pid, class.group().name(), class.name()].map(str::to_owned);
            grid.row(words.into_iter().chain([words::work(*work), ns.to_string()]));
        }
    };
    for row in kernel.processes.iter().take(findings.limit.unwrap_or(usize::MAX)) {
        let pid = row.key.pid.map_or("-".to_owned(), |pid| pid.to_string());
        add(&row.key.name, &pid, &row.times);
    }
    if findings.is_everyone() {
        add("(no task)", "-", &kernel.time.idle);
        add("(unknown task)", "-", &kernel.time.unknown);
    }
    grid.csv()
}
