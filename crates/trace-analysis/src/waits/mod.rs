//! What tasks waited for: every stretch in which a task does not run has a cause.
//!
//! ```text
//!  TraceTables --> Classifier --+                +--> lives     per task: run time + causes = its life
//!  (stacks)                     +--> Wait -------+--> rows      per task, process, command name, in total
//!  Timeline --------------------+   (cause)      +--> details   where, which lock, who held it
//!                                                +--> wakers    who ended it
//! ```
//!
//! The meaning of kernel functions is data: `stack_rules.tsv` and `lock_callers.tsv`. A wait without a known cause is
//! unknown, with the reason and the innermost functions of its stack. Idle kernel threads are listed; their time is not
//! waiting time.

mod calls;
mod cause;
mod classify;
mod details;
mod lengths;
mod life;
mod names;
mod rows;
mod rules;
mod stack;
mod stacks;
#[cfg(test)]
mod tests;

use crate::timeline::{Task, Timeline};

pub use cause::{Cause, Group, LockClass, Unknown};
pub use classify::{Classifier, Evidence, Wait};
pub use details::{Detail, Holder, HolderKnown, LockDetail, details, waker_name, wakers};
pub use lengths::{Lengths, lengths};
pub use life::{Life, Sum};
pub use rows::{Row, rows, total};
pub(crate) use stack::split_stack;
pub use stacks::{WaitStack, stacks};

/// What each task's life is made of, in the order of `Timeline::tasks`.
#[must_use]
pub fn lives(timeline: &Timeline, classifier: &Classifier) -> Vec<Life> {
    timeline.tasks.iter().map(|task| life(timeline, classifier, task)).collect()
}

fn life(timeline: &Timeline, classifier: &Classifier, task: &Task) -> Life {
    let mut life = Life::default();
    for segment in &task.segments {
        let sum = match classifier.wait(timeline, task, &segment) {
            None => &mut life.running,
            Some(wait) => life.causes.entry(wait.cause).or_default(),
        };
        sum.add(segment.length_ns());
    }
    debug_assert_eq!(life.total_ns(), task.length_ns(), "segments cover a task's life");
    life
}
