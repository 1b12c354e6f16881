//! The tasks that come from one task.

use crate::processes::Processes;
use crate::timeline::{Task, TaskId, Timeline};

/// A task and all that it and its descendants made, ascending. Of tasks that were there before the trace, the threads of
/// a process come from its first one, and processes from their parent process.
#[must_use]
pub fn tree(timeline: &Timeline, root: TaskId) -> Vec<TaskId> {
    let processes = Processes::new(timeline);
    let mut below: Vec<Vec<TaskId>> = vec![Vec::new(); timeline.tasks.len()];
    for id in (0..).zip(&timeline.tasks).map(|(row, _)| TaskId(row)) {
        if let Some(list) = processes.above(id).and_then(|above| below.get_mut(above.index())) {
            list.push(id);
        }
    }
    let mut tree = Vec::new();
    let mut open = vec![root];
    while let Some(id) = open.pop() {
        // `append` empties the list, so tables in which a task is its own ancestor cannot loop forever.
        if let Some(list) = below.get_mut(id.index()) {
            open.append(list);
            tree.push(id);
        }
    }
    tree.sort_unstable();
    tree.dedup();
    tree.retain(|id| timeline.tasks.get(id.index()).is_none_or(|it| was_there(timeline, it)));
    tree
}

/// Every task. Of a part of a trace: those that were there then.
#[must_use]
pub fn all(timeline: &Timeline) -> Vec<TaskId> {
    let rows = (0..).zip(&timeline.tasks).filter(|(_, task)| was_there(timeline, task));
    rows.map(|(row, _)| TaskId(row)).collect()
}

/// Not so of one that ended before the part of the trace that is looked at.
fn was_there(timeline: &Timeline, task: &Task) -> bool {
    timeline.begin < task.end || !task.exited
}

#[cfg(test)]
mod test {
    use model::{Pid, Tid};

    use super::*;
    use crate::timeline::build::random::senseless;
    use crate::timeline::{Segments, Task};

    /// `(thread, process, parent process, row of the parent)`: those without a row were there before.
    fn timeline(tasks: &[(u32, u32, u32, Option<u32>)]) -> Timeline {
        let task = |(tid, pid, parent_pid, parent): &(u32, u32, u32, Option<u32>)| Task {
            tid: Tid(*tid),
            pid: Pid(*pid),
            parent_pid: Pid(*parent_pid),
            parent: parent.map(TaskId),
            before: parent.is_none(),
            names: Vec::new(),
            kernel: false,
            begin: model::HostNs(0),
            end: model::HostNs(0),
            exited: false,
            segments: Segments::default(),
            requests: Vec::new(),
        };
        Timeline { tasks: tasks.iter().map(task).collect(), ..Timeline::default() }
    }

    #[test]
    fn who_comes_from_whom() {
        let family = timeline(&[
            (1, 1, 0, None),
            (10, 10, 1, None),
            (11, 10, 1, None),
            (20, 20, 10, None),
            (30, 30, 10, Some(2)),
            (31, 30, 10, Some(4)),
            (40, 40, 1, Some(0)),
            (10, 10, 40, Some(6)),
        ]);
        let check = |root: u32, expected: &[u32]| {
            let tree: Vec<u32> = tree(&family, TaskId(root)).iter().map(|id| id.0).collect();
            assert_eq!(tree, expected);
        };
        check(0, &[0, 1, 2, 3, 4, 5, 6, 7]);
        check(1, &[1, 2, 3, 4, 5]);
        check(2, &[2, 4, 5]);
        check(4, &[4, 5]);
        check(5, &[5]);
        check(6, &[6, 7]);
        check(99, &[]);
    }

    #[test]
    fn its_own_ancestor() {
        let circle = timeline(&[(1, 1, 2, None), (2, 2, 1, None)]);
        assert_eq!(tree(&circle, TaskId(0)), [TaskId(0), TaskId(1)]);
    }

    #[test]
    fn any_timeline_has_trees() {
        for timeline in senseless() {
            for root in all(&timeline).into_iter().take(5) {
                let tree = tree(&timeline, root);
                assert!(tree.contains(&root));
                assert!(tree.windows(2).all(|pair| pair[0] < pair[1]));
            }
        }
    }
}
