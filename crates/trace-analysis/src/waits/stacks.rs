//! Waits by the kernel stack in which they were spent, as flame graphs want them.

use std::collections::BTreeMap;

use model::{TraceStack, TraceTables};

use super::stack::split_stack;
use super::{Cause, Classifier};
use crate::group::{By, grouped};
use crate::timeline::{State, TaskId, Timeline};

/// Where time was waited away.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct WaitStack<'a> {
    /// The process' name.
    pub process: String,
    /// Kernel functions, outermost first; none where no stack was taken.
    pub functions: Vec<&'a str>,
    /// What for.
    pub cause: Cause,
}

/// The waits of these tasks by process, stack and cause, ns. They add up to the lives of the tasks less what they ran.
#[must_use]
pub fn stacks<'a>(
    tables: &'a TraceTables,
    timeline: &Timeline,
    classifier: &Classifier,
    tasks: &[TaskId],
) -> BTreeMap<WaitStack<'a>, u64> {
    let of_machine = tables.stacks.iter().filter(|(of, ..)| *of == timeline.machine);
    let by_number: BTreeMap<TraceStack, &'a [String]> =
        of_machine.map(|(_, number, names)| (*number, names.as_slice())).collect();
    let asleep = tables.tasks.iter().filter(|task| task.machine == timeline.machine);
    let asleep_in: BTreeMap<_, &'a str> =
        asleep.filter_map(|task| Some((task.tid, task.asleep_in.as_deref()?))).collect();
    let mut sums = BTreeMap::new();
    for (process, ids) in grouped(timeline, By::Process, tasks) {
        for task in ids.iter().filter_map(|id| timeline.tasks.get(id.index())) {
            for segment in &task.segments {
                let Some(wait) = classifier.wait(timeline, task, &segment) else { continue };
                let number = match &segment.state {
                    State::Asleep(sleep) => sleep.stack,
                    _ => None,
                };
                let is_first = task.before && segment.begin == task.begin;
                let mut functions: Vec<&str> = match number.and_then(|it| by_number.get(&it)) {
                    Some(names) => names.iter().map(String::as_str).collect(),
                    None if is_first && matches!(segment.state, State::Asleep(_)) => asleep_in
                        .get(&task.tid)
                        .map(|it| split_stack(it).collect())
                        .unwrap_or_default(),
                    None => Vec::new(),
                };
                functions.reverse();
                let stack =
                    WaitStack { process: process.name.clone(), functions, cause: wait.cause };
                *sums.entry(stack).or_default() += segment.length_ns();
            }
        }
    }
    sums
}
