//! Amdahl's bound for each part of a critical path: how long the command would take without it.
//!
//! Without a part, the rest of the path still takes its time, so the command cannot be faster than that. It may be
//! slower, because another path becomes the longest. A trace cannot show which: without the part, tasks would run and
//! wait in another order. Reports therefore call it a bound.

use std::cmp::Reverse;

use super::summary::{Category, Summary};
use super::{CriticalPath, Locks, PathActivity, PathSegment, Scope, critical_path};
use crate::kernel::Class;
use crate::timeline::Timeline;

/// Something that could be made shorter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Improvement {
    /// What.
    pub target: Target,
    /// How long it is on the path.
    pub on_path_ns: u64,
    /// How long the command would take without it, at best: once it is gone, another path may be the longest.
    pub at_best_ns: u64,
}

/// What could be made shorter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// All of a category.
    Category(Category),
    /// Everything of a class that the kernel does.
    Class(Class),
    /// Everything the kernel does.
    Kernel,
    /// All disks, their queues included.
    Disks,
    /// All waiting for locks, were there no contention. Found on the path that stays with those who wait for locks.
    Locks,
}

impl Improvement {
    /// How many times as fast the command would be, at best; `None` when nothing would remain.
    #[must_use]
    pub fn factor(&self) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
        let ratio = |a: u64, b: u64| a as f64 / b as f64;
        (0 < self.at_best_ns).then(|| ratio(self.at_best_ns + self.on_path_ns, self.at_best_ns))
    }
}

/// What would make the command shorter, best first.
pub(super) fn improvements(
    timeline: &Timeline,
    path: &CriticalPath,
    summary: &Summary,
) -> Vec<Improvement> {
    let wall_ns = summary.wall_ns;
    let improvement =
        |target, on_path_ns| Improvement { target, on_path_ns, at_best_ns: wall_ns - on_path_ns };
    let single = summary.categories.iter().filter(|share| can_improve(&share.of));
    let single = single.map(|share| improvement(Target::Category(share.of.clone()), share.ns));
    let mut improvements: Vec<Improvement> = single.collect();
    let classes = summary.classes.iter().map(|(class, _)| Target::Class(*class));
    let kernel = (1 < summary.classes.len()).then_some(Target::Kernel);
    for target in classes.chain(kernel).chain([Target::Disks]) {
        let parts = || summary.categories.iter().filter(|share| target.has(&share.of));
        // A single category has its own line already.
        if 1 < parts().count() {
            let on_path_ns = parts().map(|share| share.ns).sum();
            improvements.push(improvement(target, on_path_ns));
        }
    }
    let locks_ns = locks_ns(timeline, path.scope);
    if 0 < locks_ns {
        improvements.push(improvement(Target::Locks, locks_ns));
    }
    improvements.sort_by_key(|it| Reverse(it.on_path_ns));
    improvements
}

/// Waits for locks on the path that stays with the waiting tasks.
fn locks_ns(timeline: &Timeline, scope: Scope) -> u64 {
    let staying = critical_path(timeline, Scope { locks: Locks::Stay, ..scope });
    let waits = staying.segments.iter().filter(|segment| segment.activity == PathActivity::Lock);
    waits.map(PathSegment::length_ns).sum()
}

/// Unknown and unfinished parts cannot be improved; locks have their own target.
fn can_improve(category: &Category) -> bool {
    !matches!(category, Category::Unknown | Category::NotOver(_) | Category::Lock)
}

impl Target {
    /// Whether a category is part of it.
    fn has(&self, category: &Category) -> bool {
        match (self, category) {
            (Self::Category(of), category) => of == category,
            (Self::Class(class), Category::Kernel(work)) => Class::from_work(*work) == *class,
            (Self::Kernel, Category::Kernel(_)) => true,
            (Self::Disks, Category::DiskQueue(_) | Category::Disk(..) | Category::UnknownDisk) => {
                true
            }
            _ => false,
        }
    }
}
