//! Waits by the stacks in which they were spent, as flame graphs want them.

use std::collections::BTreeMap;

use model::{TraceStack, TraceTables};

use super::stack::split_stack;
use super::{Cause, Classifier, Sum};
use crate::group::{By, grouped};
use crate::timeline::{State, TaskId, Timeline};

/// Where time was waited away.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct WaitStack<'a> {
    pub process: String,
    /// Functions of its program, outermost first; none where user stacks were not traced, or it has no program.
    pub user: Vec<&'a str>,
    /// Kernel functions, outermost first; none where no stack was taken.
    pub kernel: Vec<&'a str>,
    pub cause: Cause,
}

/// The waits of these tasks by process, stacks and cause. They add up to the lives of the tasks less what they ran.
#[must_use]
pub fn stacks<'a>(
    tables: &'a TraceTables,
    timeline: &Timeline,
    classifier: &Classifier,
    tasks: &[TaskId],
) -> BTreeMap<WaitStack<'a>, Sum> {
    let of_machine = tables.stacks.iter().filter(|(of, ..)| *of == timeline.machine);
    let by_number: BTreeMap<TraceStack, &'a [String]> =
        of_machine.map(|(_, number, names)| (*number, names.as_slice())).collect();
    let functions = |number: Option<TraceStack>| -> Option<Vec<&'a str>> {
        let names = by_number.get(&number?)?;
        Some(names.iter().rev().map(String::as_str).collect())
    };
    let asleep = tables.tasks.iter().filter(|task| task.machine == timeline.machine);
    let asleep_in: BTreeMap<_, &'a str> =
        asleep.filter_map(|task| Some((task.tid, task.asleep_in.as_deref()?))).collect();
    let mut sums: BTreeMap<WaitStack<'a>, Sum> = BTreeMap::new();
    for (process, ids) in grouped(timeline, By::Process, tasks) {
        for task in ids.iter().filter_map(|id| timeline.tasks.get(id.index())) {
            let found_asleep = || -> Option<Vec<&'a str>> {
                let mut names: Vec<_> = split_stack(asleep_in.get(&task.tid)?).collect();
                names.reverse();
                Some(names)
            };
            // Until it runs again a task that was woken is where it slept.
            let mut slept_at = (None, None);
            for segment in &task.segments {
                let woken_at = std::mem::take(&mut slept_at);
                let Some(wait) = classifier.wait(timeline, task, &segment) else { continue };
                let is_first = task.before && segment.begin == task.begin;
                let (user, kernel) = match &segment.state {
                    State::Asleep(sleep) => {
                        let kernel = functions(sleep.stack);
                        let kernel = kernel.or_else(|| is_first.then(found_asleep).flatten());
                        slept_at = (functions(sleep.user_stack), kernel);
                        slept_at.clone()
                    }
                    State::Runnable { preempted: false } => woken_at,
                    _ => (None, None),
                };
                let stack = WaitStack {
                    process: process.name.clone(),
                    user: user.unwrap_or_default(),
                    kernel: kernel.unwrap_or_default(),
                    cause: wait.cause,
                };
                sums.entry(stack).or_default().add(segment.length_ns());
            }
        }
    }
    sums
}
