//! Tasks that belong together: processes, command names.

use std::collections::BTreeMap;

use model::{Pid, Tid};

use crate::processes::Processes;
use crate::timeline::{TaskId, Timeline};

/// What a row of a table stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    Task,
    Process,
    /// All processes of one name.
    Name,
}

/// Who a row stands for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Last name of the task, or of the process' first thread.
    pub name: String,
    /// The process; `None` when the row stands for all of one name.
    pub pid: Option<Pid>,
    /// The thread; `None` when the row stands for more than one task.
    pub tid: Option<Tid>,
    /// The kernel's own.
    pub kernel: bool,
}

/// Groups the given tasks, in their order. Tasks that are not in the timeline are left out.
#[must_use]
pub fn grouped(timeline: &Timeline, by: By, tasks: &[TaskId]) -> Vec<(Key, Vec<TaskId>)> {
    let processes = Processes::new(timeline);
    let mut rows: Vec<(Key, Vec<TaskId>)> = Vec::new();
    let mut known: BTreeMap<(Option<TaskId>, &str, bool), usize> = BTreeMap::new();
    for &id in tasks {
        let first = processes.leader_of(id);
        let (Some(task), Some(leader)) =
            (timeline.tasks.get(id.index()), timeline.tasks.get(first.index()))
        else {
            continue;
        };
        let (key, name) = match by {
            By::Task => ((Some(id), "", task.kernel), task.name()),
            By::Process => ((Some(first), "", task.kernel), leader.name()),
            By::Name => ((None, leader.name(), leader.kernel), leader.name()),
        };
        let row = *known.entry(key).or_insert_with(|| {
            let pid = (by != By::Name).then_some(task.pid);
            let tid = (by == By::Task).then_some(task.tid);
            let key = Key { name: name.to_owned(), pid, tid, kernel: key.2 };
            rows.push((key, Vec::new()));
            rows.len() - 1
        });
        rows[row].1.push(id);
    }
    rows
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::test_timelines::DrawnTimeline;
    use crate::tree::all;

    /// A process of two threads, a child, and another process.
    fn drawn() -> Timeline {
        let lines = [
            ("make", "", "0000"),
            ("make", "", " 11 "),
            ("cc1", "make", " 0  "),
            ("sh", "", "1111"),
        ];
        let mut timeline = DrawnTimeline::new(&lines, &[]).timeline;
        timeline.tasks[1].pid = timeline.tasks[0].pid;
        timeline.tasks[1].parent = Some(TaskId(0));
        timeline.tasks[1].names[0].1 = "make:worker".to_owned();
        timeline
    }

    #[test]
    fn rows_of_a_table() {
        let timeline = drawn();
        let check = |by, expected: &[&str]| {
            let row = |(key, tasks): (Key, Vec<TaskId>)| {
                let or_dash = |id: Option<u32>| id.map_or("-".to_owned(), |id| id.to_string());
                let tasks: Vec<String> = tasks.iter().map(|id| id.0.to_string()).collect();
                let (pid, tid) = (or_dash(key.pid.map(|it| it.0)), or_dash(key.tid.map(|it| it.0)));
                format!("{} {pid} {tid}: {}", key.name, tasks.join(" "))
            };
            let rows = grouped(&timeline, by, &all(&timeline));
            assert_eq!(rows.into_iter().map(row).collect::<Vec<_>>(), expected);
        };
        check(By::Task, &["make 1 1: 0", "make:worker 1 2: 1", "cc1 3 3: 2", "sh 4 4: 3"]);
        check(By::Process, &["make 1 -: 0 1", "cc1 3 -: 2", "sh 4 -: 3"]);
        check(By::Name, &["make - -: 0 1", "cc1 - -: 2", "sh - -: 3"]);
        assert_eq!(grouped(&timeline, By::Task, &[TaskId(9)]), []);
    }
}
