//! The Gantt chart in characters: `--view gantt`.

use std::collections::BTreeSet;
use std::ops::Range;

use analysis::text::{Keep, cut};
use analysis::{Width, clean};
use model::HostNs;
use trace_analysis::gantt::{Activity, Lane, LaneOf, Lanes, View, cells, lanes, pieces};
use trace_analysis::timeline::TaskId;

use super::super::grid::Grid;
use super::report::Findings;
use super::scene::{counted, length};
use super::words;

const NAME_CHARS: usize = 24;
const LEAST_COLUMNS: usize = 40;
/// For what is no terminal.
const COLUMNS: usize = 100;
/// Pieces of a lane at most in CSV.
const CSV_COLUMNS: usize = 2000;

const LEGEND: &str = "= own code  # kernel  ! interrupt  w waits for a CPU  d waits for a disk  l waits for a lock\n\
                      . sleeps  s stopped  ? unknown  + runs a VM's CPU; disks: R reads  W writes  B both  q queue only\n";

/// With a VM whose host was traced.
const VCPU_LEGEND: &str =
    "vCPUs as their host's threads had it: + ran  X stolen  v asleep in the VMM  - halted\n";

/// What is drawn.
#[derive(Debug)]
pub(super) struct Chart {
    pub(super) range: Range<HostNs>,
    pub(super) lanes: Lanes,
}

impl Chart {
    pub(super) fn of(findings: &Findings<'_>) -> Self {
        let subject = findings.subject();
        let range = findings.range();
        let limit = findings.limit.unwrap_or(usize::MAX);
        if findings.is_everyone() {
            let lanes = lanes(subject, &range, limit);
            return Self { range, lanes };
        }
        let mut lanes = lanes(subject, &range, usize::MAX);
        lanes.idle_tasks = 0;
        lanes.lanes.retain(|lane| task_of(lane).is_none_or(|task| findings.admits(task)));
        lanes.left_out = keep_busiest(findings, &mut lanes.lanes, limit);
        Self { range, lanes }
    }
}

fn task_of(lane: &Lane) -> Option<TaskId> {
    match lane.of {
        LaneOf::Task(task) => Some(task),
        LaneOf::Cpu(_) | LaneOf::Vcpu(_) | LaneOf::Disk(_) => None,
    }
}

/// Keeps the lanes of so many tasks, those that had a CPU longest; how many went.
fn keep_busiest(findings: &Findings<'_>, lanes: &mut Vec<Lane>, limit: usize) -> u64 {
    let ran = |task: TaskId| findings.lives[task.index()].running.ns;
    let mut tasks: Vec<TaskId> = lanes.iter().filter_map(task_of).collect();
    tasks.sort_by_key(|task| std::cmp::Reverse(ran(*task)));
    let gone: BTreeSet<TaskId> = tasks.into_iter().skip(limit).collect();
    lanes.retain(|lane| task_of(lane).is_none_or(|task| !gone.contains(&task)));
    gone.len() as u64
}

pub(super) fn text(findings: &Findings<'_>, chart: &Chart, width: Width) -> String {
    let columns = width.columns().unwrap_or(COLUMNS);
    let columns = columns.saturating_sub(NAME_CHARS + 2).max(LEAST_COLUMNS);
    let view = View { range: chart.range.clone(), columns };
    let ns = chart.range.end.since(chart.range.start);
    let each = ns as f64 / columns as f64 / 1e6;
    let subject = findings.subject();
    let vcpus = if subject.host_side.is_some() { VCPU_LEGEND } else { "" };
    let mut out = format!(
        "Who did what: each character is {each:.3} ms, and the longest in it\n{LEGEND}{vcpus}\n"
    );
    for lane in &chart.lanes.lanes {
        let name = clean(&name(findings, lane)).into_owned();
        let name = format!("{}{name}", " ".repeat(usize::try_from(lane.depth).unwrap_or(0).min(8)));
        let name = cut(&name, NAME_CHARS, Keep::StartAndFrom(" ("));
        let cells = cells(subject, lane, &view);
        let drawn: String =
            cells.iter().map(|cell| cell.map_or(' ', |(activity, _)| letter(activity))).collect();
        out += format!("{name:<NAME_CHARS$}  {drawn}").trim_end();
        out.push('\n');
    }
    let from = length(chart.range.start.since(findings.scene.timeline.begin));
    let to = length(chart.range.end.since(findings.scene.timeline.begin));
    let gap = columns.saturating_sub(to.len());
    out += &format!("{:NAME_CHARS$}  {:<gap$}{to}\n", "", from);
    let Lanes { idle_tasks, left_out, .. } = chart.lanes;
    if 0 < left_out {
        out += &format!("{} that ran less are left out: --limit N\n", counted(left_out, "task"));
    }
    if 0 < idle_tasks {
        out += &format!("{} never had a CPU\n", counted(idle_tasks, "other task"));
    }
    out
}

pub(super) fn csv(findings: &Findings<'_>, chart: &Chart) -> String {
    let view = View { range: chart.range.clone(), columns: CSV_COLUMNS };
    let mut grid = Grid::new(&["lane", ">begin_ns", ">end_ns", "doing", ">ns"]);
    let begin = findings.scene.timeline.begin;
    for lane in &chart.lanes.lanes {
        for piece in pieces(findings.subject(), lane, &view) {
            for (activity, ns) in &piece.shares {
                let (from, to) = (piece.begin.since(begin), piece.end.since(begin));
                let cells =
                    [from.to_string(), to.to_string(), self::activity(*activity).to_owned()];
                let lane = [name(findings, lane)].into_iter();
                grid.row(lane.chain(cells).chain([ns.to_string()]));
            }
        }
    }
    grid.csv()
}

pub(super) fn name(findings: &Findings<'_>, lane: &Lane) -> String {
    let timeline = &findings.scene.timeline;
    let row = |row: u32| usize::try_from(row).unwrap_or(usize::MAX);
    match lane.of {
        LaneOf::Cpu(cpu) => format!("CPU {}", timeline.cpus[row(cpu)].number),
        LaneOf::Vcpu(cpu) => format!("vCPU {}", timeline.cpus[row(cpu)].number),
        LaneOf::Disk(disk) => format!("disk {}", timeline.disks[row(disk)].name),
        LaneOf::Task(task) => words::task(findings.scene.task(task)),
    }
}

fn letter(activity: Activity) -> char {
    match activity {
        Activity::User => '=',
        Activity::Kernel => '#',
        Activity::Interrupt => '!',
        Activity::Idle => ' ',
        Activity::CpuWait => 'w',
        Activity::DiskWait => 'd',
        Activity::LockWait => 'l',
        Activity::Asleep => '.',
        Activity::Stopped => 's',
        Activity::Reads => 'R',
        Activity::Writes => 'W',
        Activity::ReadsAndWrites => 'B',
        Activity::Queued => 'q',
        Activity::Ran => '+',
        Activity::Stolen => 'X',
        Activity::AsleepInVmm => 'v',
        Activity::Halted => '-',
        Activity::Unknown => '?',
    }
}

/// In CSV and JSON.
pub(super) fn activity(activity: Activity) -> &'static str {
    match activity {
        Activity::User => "user",
        Activity::Kernel => "kernel",
        Activity::Interrupt => "interrupt",
        Activity::Idle => "idle",
        Activity::CpuWait => "cpu_wait",
        Activity::DiskWait => "disk_wait",
        Activity::LockWait => "lock_wait",
        Activity::Asleep => "asleep",
        Activity::Stopped => "stopped",
        Activity::Reads => "reads",
        Activity::Writes => "writes",
        Activity::ReadsAndWrites => "reads_and_writes",
        Activity::Queued => "queued",
        Activity::Ran => "ran",
        Activity::Stolen => "stolen",
        Activity::AsleepInVmm => "asleep_in_vmm",
        Activity::Halted => "halted",
        Activity::Unknown => "unknown",
    }
}
