//! Every process: `--view process`.

use analysis::Width;
use model::{HostNs, Pid};
use trace_analysis::group::{By, Key};
use trace_analysis::host_side::Share;
use trace_analysis::kernel::{Class, Times};
use trace_analysis::timeline::TaskId;
use trace_analysis::waits::{Group, Life, rows};

use super::super::grid::{Column, Grid};
use super::report::Findings;
use super::scene::{Scale, counted};
use super::states::left_out;
use super::{host_side, words};

/// A process and all its figures.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) key: Key,
    pub(super) parent: Pid,
    pub(super) threads: u64,
    pub(super) begin: HostNs,
    pub(super) end: HostNs,
    pub(super) before: bool,
    pub(super) exited: bool,
    pub(super) times: Times,
    pub(super) life: Life,
    pub(super) calls: u64,
    pub(super) requests: u64,
    pub(super) request_bytes: u64,
    /// What became of its CPU time on the host.
    pub(super) host: Option<Share>,
}

impl Process {
    /// Its own code.
    pub(super) fn user_ns(&self) -> u64 {
        self.times.classes().get(&Class::User).copied().unwrap_or(0)
    }

    fn group_ns(&self, group: Group) -> u64 {
        self.life.groups().get(&group).map_or(0, |sum| sum.ns)
    }
}

/// Most CPU time first.
pub(super) fn of(findings: &Findings<'_>) -> Vec<Process> {
    let timeline = &findings.scene.timeline;
    let time = findings.kernel();
    let rows = rows(timeline, &findings.lives, By::Process, &findings.tasks);
    let process = |row: trace_analysis::waits::Row| {
        let tasks = || row.tasks.iter().map(|id| findings.scene.task(*id));
        let requests = || tasks().flat_map(|task| &task.requests).filter(|it| it.done.is_some());
        let calls = |id: &TaskId| timeline.calls.range((*id, 0)..=(*id, u16::MAX));
        Process {
            parent: tasks().next().map_or(Pid(0), |task| task.parent_pid),
            threads: row.tasks.len() as u64,
            begin: tasks().map(|task| task.begin).min().unwrap_or(timeline.begin),
            end: tasks().map(|task| task.end).max().unwrap_or(timeline.end),
            before: tasks().any(|task| task.before),
            exited: tasks().all(|task| task.exited),
            times: time.times_of(&row.tasks),
            calls: row.tasks.iter().flat_map(calls).map(|(_, calls)| calls.count).sum(),
            requests: requests().count() as u64,
            request_bytes: requests().map(|request| u64::from(request.bytes)).sum(),
            host: host_side::of_task(findings, &row.tasks),
            key: row.key,
            life: row.life,
        }
    };
    let mut processes: Vec<Process> = rows.into_iter().map(process).collect();
    processes.sort_by_key(|process| std::cmp::Reverse(process.life.running.ns));
    processes
}

pub(super) fn text(findings: &Findings<'_>, processes: &[Process], width: Width) -> String {
    let limit = findings.limit.unwrap_or(usize::MAX);
    let begin = findings.scene.timeline.begin;
    let longest = processes.iter().map(|process| process.life.total_ns()).max().unwrap_or(0);
    let scale = Scale::of(longest.max(findings.scene.wall_ns()));
    let mut grid = Grid::new(&["process"]);
    let first = ["parent", "from"].map(|title| Column::Spare(title.to_owned()));
    first.into_iter().for_each(|column| grid.push(column));
    let titles = ["life", "own\ncode", "kernel", "waits:\nCPU", "disk", "locks", "others"];
    titles.into_iter().for_each(|title| grid.push(Column::Number(title.to_owned())));
    let last = ["calls", "MB"].map(|title| Column::Spare(title.to_owned()));
    last.into_iter().for_each(|column| grid.push(column));
    for process in processes.iter().take(limit) {
        let life = process.life.total_ns();
        let disk = process.group_ns(Group::Disk) + process.group_ns(Group::FileServer);
        let locks = process.group_ns(Group::InodeLock) + process.group_ns(Group::OtherLocks);
        let cpu = process.group_ns(Group::Cpu);
        let others = life - process.life.running.ns - cpu - disk - locks;
        grid.row([
            words::key(&process.key),
            process.parent.to_string(),
            if process.before { "-".to_owned() } else { scale.show(process.begin.since(begin)) },
            scale.show(life),
            scale.show(process.user_ns()),
            scale.show(process.times.kernel_ns()),
            scale.show(cpu),
            scale.show(disk),
            scale.show(locks),
            scale.show(others),
            process.calls.to_string(),
            format!("{:.1}", process.request_bytes as f64 / 1e6),
        ]);
    }
    let n = counted(processes.len() as u64, "process");
    let mut out =
        format!("{n}, most CPU time first; lives are sums over threads, in {}\n", scale.unit());
    out += &grid.text(width);
    out += &left_out(processes.len(), limit, "process");
    out += &host_side::processes(findings, width);
    out
}

pub(super) fn csv(findings: &Findings<'_>, processes: &[Process]) -> String {
    let titles = [
        "process",
        ">pid",
        ">parent_pid",
        ">threads",
        ">begin_ns",
        ">end_ns",
        ">life_ns",
        ">user_ns",
        ">kernel_ns",
        ">cpu_wait_ns",
        ">disk_wait_ns",
        ">waiting_ns",
        ">unknown_ns",
        ">calls",
        ">requests",
        ">request_bytes",
    ];
    let mut grid = Grid::new(&titles);
    if findings.host.is_some() {
        let titles = ["ran_ns", "stolen_ns", "asleep_in_vmm_ns", "host_unknown_ns"];
        titles.into_iter().for_each(|title| grid.push(Column::Number(title.to_owned())));
    }
    let begin = findings.scene.timeline.begin;
    for process in processes.iter().take(findings.limit.unwrap_or(usize::MAX)) {
        let numbers = [
            process.key.pid.map_or(0, |pid| pid.0).into(),
            process.parent.0.into(),
            process.threads,
            process.begin.since(begin),
            process.end.since(begin),
            process.life.total_ns(),
            process.user_ns(),
            process.times.kernel_ns(),
            process.group_ns(Group::Cpu),
            process.group_ns(Group::Disk),
            process.life.waiting().ns,
            process.life.unknown().ns,
            process.calls,
            process.requests,
            process.request_bytes,
        ];
        let host = process.host.iter().flat_map(host_side::numbers);
        let numbers = numbers.into_iter().chain(host).map(|n: u64| n.to_string());
        grid.row(std::iter::once(process.key.name.clone()).chain(numbers));
    }
    grid.csv()
}
