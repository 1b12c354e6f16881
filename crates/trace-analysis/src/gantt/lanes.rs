//! Which lanes there are, and where they go.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use model::HostNs;

use super::Subject;
use crate::processes::Processes;
use crate::span;
use crate::timeline::{State, TaskId, Timeline};

/// Lanes from top to bottom: CPUs (each with its vCPU below), disks, tasks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lanes {
    /// The lanes. Tasks come by birth, each below its parent's and after its elder siblings' descendants.
    pub lanes: Vec<Lane>,
    /// Tasks that were there and never had a CPU in the range.
    pub idle_tasks: u64,
    /// Tasks that had a CPU, and were left out because there were too many.
    pub left_out: u64,
}

/// A lane of a drawing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lane {
    pub of: LaneOf,
    /// How many ancestors above have lanes.
    pub depth: u32,
    /// For tasks: the line to draw it in when lines are shared, from 0: below its parent's, and no two tasks of a line
    /// live at the same time.
    pub line: u32,
    /// When it is there, within the range.
    pub life: Range<HostNs>,
}

/// Whose a lane is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LaneOf {
    /// Row of `Timeline::cpus`.
    Cpu(u32),
    /// The same from the host's side: row of `HostSide::cpus`.
    Vcpu(u32),
    /// Row of `Timeline::disks`.
    Disk(u32),
    Task(TaskId),
}

/// How far up a task's ancestors are looked for.
const ANCESTORS: usize = 64;
/// How many lines below its parent's a task looks for room before it takes a new one.
const NEAR_LINES: usize = 1000;

/// The lanes of a range. Of the tasks at most `max_tasks`: those that had a CPU longest, and their ancestors.
#[must_use]
pub fn lanes(subject: Subject<'_>, range: &Range<HostNs>, max_tasks: usize) -> Lanes {
    let timeline = subject.timeline;
    let range = range.start.max(timeline.begin)..range.end.min(timeline.end);
    let rows = |n: usize| 0..u32::try_from(n).unwrap_or(u32::MAX);
    let machine = |of| Lane { of, depth: 0, line: 0, life: range.clone() };
    let both = |row| {
        let vcpu = subject.host_side.is_some().then_some(LaneOf::Vcpu(row));
        std::iter::once(LaneOf::Cpu(row)).chain(vcpu)
    };
    let cpus = rows(timeline.cpus.len()).flat_map(both);
    let disks = rows(timeline.disks.len()).map(LaneOf::Disk);
    let mut lanes: Vec<Lane> = cpus.chain(disks).map(machine).collect();

    let there = rows(timeline.tasks.len()).map(TaskId);
    let there = there.filter(|id| !life(timeline, *id, &range).is_empty());
    let (busy, idle): (Vec<_>, Vec<_>) =
        there.map(|id| (cpu_ns(timeline, id, &range), id)).partition(|(ns, _)| 0 < *ns);
    let chosen = choose(timeline, &range, &busy, max_tasks);
    let n_shown = busy.iter().filter(|(_, id)| chosen.contains(id)).count();
    lanes.extend(in_order(timeline, &range, &chosen));
    let idle_shown = chosen.len() - n_shown;
    Lanes {
        lanes,
        idle_tasks: (idle.len() - idle_shown) as u64,
        left_out: (busy.len() - n_shown) as u64,
    }
}

fn life(timeline: &Timeline, id: TaskId, range: &Range<HostNs>) -> Range<HostNs> {
    let task = &timeline.tasks[id.index()];
    task.begin.max(range.start)..task.end.min(range.end)
}

fn cpu_ns(timeline: &Timeline, id: TaskId, range: &Range<HostNs>) -> u64 {
    let segments = span::segments(&timeline.tasks[id.index()], range.clone());
    let running = segments.filter(|(_, segment)| matches!(segment.state, State::Running { .. }));
    running.map(|(clipped, _)| clipped.end.since(clipped.start)).sum()
}

/// Those that had a CPU longest, with the ancestors they are drawn below.
fn choose(
    timeline: &Timeline,
    range: &Range<HostNs>,
    busy: &[(u64, TaskId)],
    max_tasks: usize,
) -> BTreeSet<TaskId> {
    let processes = Processes::new(timeline);
    let mut by_cpu = busy.to_vec();
    by_cpu.sort_by_key(|&(ns, id)| (Reverse(ns), id));
    let mut chosen = BTreeSet::new();
    for (_, id) in by_cpu {
        let up = std::iter::successors(Some(id), |id| processes.above(*id)).take(ANCESTORS);
        for id in up.filter(|id| !life(timeline, *id, range).is_empty()) {
            if chosen.len() == max_tasks || !chosen.insert(id) {
                break;
            }
        }
    }
    chosen
}

/// Each below its parent's, the elder before the younger.
fn in_order(timeline: &Timeline, range: &Range<HostNs>, chosen: &BTreeSet<TaskId>) -> Vec<Lane> {
    let processes = Processes::new(timeline);
    let birth = |id: TaskId| (timeline.tasks[id.index()].begin, id);
    let mut by_birth: Vec<TaskId> = chosen.iter().copied().collect();
    by_birth.sort_by_key(|id| birth(*id));
    let mut ends: Vec<HostNs> = Vec::new();
    let mut lines: BTreeMap<TaskId, u32> = BTreeMap::new();
    let mut below: BTreeMap<Option<TaskId>, Vec<TaskId>> = BTreeMap::new();
    for id in by_birth {
        let up = std::iter::successors(processes.above(id), |id| processes.above(*id));
        let above = up.take(ANCESTORS).find(|id| chosen.contains(id));
        // No parent is younger than its child: events can claim so, and even that two made each other.
        let above = above.filter(|above| birth(*above) < birth(id));
        let first = above.and_then(|above| lines.get(&above)).map_or(0, |line| line + 1);
        lines.insert(id, free_line(&mut ends, first, life(timeline, id, range)));
        below.entry(above).or_default().push(id);
    }
    let mut lanes = Vec::with_capacity(chosen.len());
    let mut next = |above, depth| {
        let ids = below.remove(&above).unwrap_or_default();
        ids.into_iter().rev().map(move |id| (id, depth))
    };
    let mut stack: Vec<(TaskId, u32)> = next(None, 0).collect();
    while let Some((id, depth)) = stack.pop() {
        let life = life(timeline, id, range);
        lanes.push(Lane { of: LaneOf::Task(id), depth, line: lines[&id], life });
        stack.extend(next(Some(id), depth + 1));
    }
    lanes
}

/// The first line from `first` on that is free, or a new one; `ends` says when each line's last task ended.
fn free_line(ends: &mut Vec<HostNs>, first: u32, life: Range<HostNs>) -> u32 {
    let first = (first as usize).min(ends.len());
    let near = ends[first..].iter().take(NEAR_LINES);
    let free = near.clone().position(|end| *end <= life.start);
    let line = match free {
        Some(after) => first + after,
        None if near.len() < NEAR_LINES => first + near.len(),
        None => ends.len(),
    };
    if ends.len() == line {
        ends.push(life.end);
    }
    ends[line] = life.end;
    u32::try_from(line).unwrap_or(u32::MAX)
}
