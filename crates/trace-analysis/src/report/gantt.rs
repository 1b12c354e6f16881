//! The Gantt chart in characters.

use std::collections::BTreeSet;

use table::{Keep, Part, Width, clean, counted, cut, length};

use super::{Context, labels};
use crate::findings::Findings;
use crate::gantt::{Activity, Lane, LaneOf, Lanes, View, cells, lanes};
use crate::timeline::TaskId;

const NAME_CHARS: usize = 24;
const MIN_COLUMNS: usize = 40;
/// For what is no terminal.
const COLUMNS: usize = 100;

const LEGEND: &str = "= own code  # kernel  ! interrupt  w waits for a CPU  d waits for a disk  l waits for a lock\n\
                      . sleeps  s stopped  ? unknown  + runs a VM's CPU; disks: R reads  W writes  B both  q queue only\n";

/// With a VM whose host was traced.
const VCPU_LEGEND: &str =
    "vCPUs as their host's threads had it: + ran  X stolen  v asleep in the VMM  - halted\n";

pub(super) fn parts(context: &Context<'_>, width: Width) -> Vec<Part> {
    let findings = &context.findings;
    let columns = width.columns().unwrap_or(COLUMNS);
    let columns = columns.saturating_sub(NAME_CHARS + 2).max(MIN_COLUMNS);
    let view = View { range: findings.range(), columns };
    let Lanes { lanes, idle_tasks, left_out } = selected(context);
    let (from, to) = (view.range.start, view.range.end);
    let each = to.since(from) as f64 / columns as f64 / 1e6;
    let subject = findings.subject();
    let vcpus = if subject.host_side.is_some() { VCPU_LEGEND } else { "" };
    let legend = format!(
        "Who did what: each character is {each:.3} ms, and the longest in it\n{LEGEND}{vcpus}"
    );
    let mut out = String::new();
    for lane in &lanes {
        let indent = " ".repeat(usize::try_from(lane.depth).unwrap_or(0).min(8));
        let name = cut(
            &format!("{indent}{}", clean(&name(findings, lane))),
            NAME_CHARS,
            Keep::StartAndFrom(" ("),
        );
        let cells = cells(subject, lane, &view);
        let drawn: String =
            cells.iter().map(|cell| cell.map_or(' ', |(activity, _)| letter(activity))).collect();
        out += format!("{name:<NAME_CHARS$}  {drawn}").trim_end();
        out.push('\n');
    }
    let begin = findings.timeline.begin;
    let (from, to) = (length(from.since(begin)), length(to.since(begin)));
    let gap = columns.saturating_sub(to.len());
    out += &format!("{:NAME_CHARS$}  {from:<gap$}{to}\n", "");
    if 0 < left_out {
        out += &format!("{} that ran less are left out: --limit N\n", counted(left_out, "task"));
    }
    if 0 < idle_tasks {
        out += &format!("{} never had a CPU\n", counted(idle_tasks, "other task"));
    }
    vec![legend.into(), out.into()]
}

/// Lanes of CPUs and disks, and of the selected tasks that had a CPU longest.
fn selected(context: &Context<'_>) -> Lanes {
    let findings = &context.findings;
    let limit = context.limit.unwrap_or(usize::MAX);
    if findings.is_everyone() {
        return lanes(findings.subject(), &findings.range(), limit);
    }
    let mut lanes = lanes(findings.subject(), &findings.range(), usize::MAX);
    let mut tasks: Vec<TaskId> = lanes.lanes.iter().filter_map(task_of).collect();
    tasks.retain(|task| findings.admits(*task));
    tasks.sort_by_key(|task| std::cmp::Reverse(findings.lives[task.index()].running.ns));
    lanes.left_out = tasks.len().saturating_sub(limit) as u64;
    lanes.idle_tasks = 0;
    let shown: BTreeSet<TaskId> = tasks.into_iter().take(limit).collect();
    lanes.lanes.retain(|lane| task_of(lane).is_none_or(|task| shown.contains(&task)));
    lanes
}

fn task_of(lane: &Lane) -> Option<TaskId> {
    match lane.of {
        LaneOf::Task(task) => Some(task),
        LaneOf::Cpu(_) | LaneOf::Vcpu(_) | LaneOf::Disk(_) => None,
    }
}

fn name(findings: &Findings<'_>, lane: &Lane) -> String {
    let timeline = findings.timeline;
    match lane.of {
        LaneOf::Cpu(row) => format!("CPU {}", timeline.cpus[row as usize].number),
        LaneOf::Vcpu(row) => format!("vCPU {}", timeline.cpus[row as usize].number),
        LaneOf::Disk(row) => format!("disk {}", timeline.disks[row as usize].name),
        LaneOf::Task(task) => labels::task(findings.task(task)),
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
