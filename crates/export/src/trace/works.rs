//! What the CPUs executed, by task.

use tracing::timeline::{Slice, Timeline};

/// What the CPUs did for each task, in time order.
pub(super) fn works_by_task(timeline: &Timeline) -> Vec<Vec<Slice>> {
    let mut works = vec![Vec::new(); timeline.tasks.len()];
    for slice in timeline.cpus.iter().flat_map(|cpu| &cpu.slices) {
        if let Some(works) = slice.task.and_then(|task| works.get_mut(task.index())) {
            works.push(*slice);
        }
    }
    works.iter_mut().for_each(|works| works.sort_by_key(|slice| slice.begin));
    works
}
