//! What was waited for: every stretch in which a task does not run, by cause.
//!
//! ```text
//!  TraceTables --> Classifier --+                +--> lives     per task: run time + causes = its life
//!  (stacks)                     +--> Wait -------+--> rows      per task, process, command name, in total
//!  Timeline --------------------+   (cause)      +--> details   where, which lock, who held it
//!                                                +--> wakers    who ended it
//! ```
//!
//! Which kernel function means what is in `functions` and `callers`: tables. What has no cause is unknown, with the reason, and its
//! stack's innermost functions are kept. Kernel tasks without work are listed, and are no waiting time.

mod callers;
mod calls;
mod cause;
mod classify;
mod details;
mod functions;
mod life;
mod names;
mod rows;
mod stack;
#[cfg(test)]
mod tests;

use crate::timeline::{Task, Timeline};

pub use cause::{Cause, Group, LockClass, Unknown};
pub use classify::{Classifier, Evidence, Wait};
pub use details::{Detail, Holder, HolderKnown, LockDetail, details, waker_name, wakers};
pub use life::{Life, Sum};
pub use rows::{Row, rows, total};

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
