//! Which process a task is of, and which task is above it.

use std::collections::BTreeMap;

use model::Pid;

use crate::timeline::{TaskId, Timeline};

/// First threads by process id. A process id that is used again is another process.
#[derive(Debug)]
pub(crate) struct Processes<'a> {
    timeline: &'a Timeline,
    /// In the order they were first seen.
    leaders: BTreeMap<Pid, Vec<TaskId>>,
}

impl<'a> Processes<'a> {
    pub(crate) fn new(timeline: &'a Timeline) -> Self {
        let mut leaders: BTreeMap<Pid, Vec<TaskId>> = BTreeMap::new();
        for (row, task) in (0..).zip(&timeline.tasks) {
            if task.tid.0 == task.pid.0 {
                leaders.entry(task.pid).or_default().push(TaskId(row));
            }
        }
        Self { timeline, leaders }
    }

    /// The process' first thread; the task itself when that was not seen.
    pub(crate) fn leader_of(&self, id: TaskId) -> TaskId {
        let task = self.timeline.tasks.get(id.index());
        task.and_then(|task| self.leader(task.pid, id)).unwrap_or(id)
    }

    /// Who made the task. For one that was there before: its process' first thread, or its parent process'.
    pub(crate) fn above(&self, id: TaskId) -> Option<TaskId> {
        let task = self.timeline.tasks.get(id.index())?;
        let before = || self.leader(task.pid, id).filter(|leader| *leader != id);
        let parent = task.parent.filter(|parent| parent.index() < self.timeline.tasks.len());
        parent.or_else(before).or_else(|| self.leader(task.parent_pid, id))
    }

    /// The first thread of the process that had this id when a task was first seen.
    fn leader(&self, pid: Pid, seen: TaskId) -> Option<TaskId> {
        let leaders = self.leaders.get(&pid)?;
        let older = leaders.partition_point(|leader| *leader <= seen);
        let begin = |id: TaskId| self.timeline.tasks[id.index()].begin;
        // Of those that were there before, a child may come ahead of its parent.
        let first = leaders.first().filter(|first| begin(**first) <= begin(seen));
        leaders[..older].last().or(first).copied()
    }
}
