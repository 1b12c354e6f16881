//! Lives put together: per task, process, command name.

use std::cmp::Reverse;

use super::Life;
use crate::group::{By, Key, grouped};
use crate::timeline::{TaskId, Timeline};

/// Lives of tasks that belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub key: Key,
    /// Its tasks, ascending.
    pub tasks: Vec<TaskId>,
    /// What they ran and waited for.
    pub life: Life,
}

/// Rows of the given tasks, most waiting time first, then in the order in which they were first seen.
#[must_use]
pub fn rows(timeline: &Timeline, lives: &[Life], by: By, tasks: &[TaskId]) -> Vec<Row> {
    let row = |(key, tasks): (Key, Vec<TaskId>)| {
        let life = total(lives, &tasks);
        Row { key, tasks, life }
    };
    let mut rows: Vec<Row> = grouped(timeline, by, tasks).into_iter().map(row).collect();
    rows.sort_by_key(|row| Reverse(row.life.waiting().ns));
    rows
}

/// The given tasks' lives in one.
#[must_use]
pub fn total(lives: &[Life], tasks: &[TaskId]) -> Life {
    let mut sum = Life::default();
    tasks.iter().filter_map(|id| lives.get(id.index())).for_each(|life| sum.merge(life));
    sum
}
