//! Loops of short sleeps: a program that looks again and again whether something has happened.

use std::collections::{BTreeMap, BTreeSet};

use super::summary::category;
use super::{Category, CriticalPath};
use crate::span;
use crate::timeline::Timeline;

/// Sleeps that make a loop, and how long each takes at most.
const MIN_SLEEPS: u64 = 10;
const MAX_SLEEP_NS: u64 = 100_000_000;

/// The programs that poll: by the names of the tasks that sleep.
#[derive(Debug, Default)]
pub(super) struct Polls(BTreeSet<String>);

impl Polls {
    /// Of what a path goes through.
    pub(super) fn new(timeline: &Timeline, path: &CriticalPath) -> Self {
        let mut sleeps: BTreeMap<&str, u64> = BTreeMap::new();
        for segment in &path.segments {
            let is_timer = category(timeline, &segment.activity) == Category::Timer;
            if is_timer && segment.length_ns() <= MAX_SLEEP_NS {
                let task = timeline.tasks.get(segment.task.index());
                let name = task.map_or("", |task| span::name_at(task, segment.begin));
                *sleeps.entry(name).or_default() += 1;
            }
        }
        let loops = sleeps.into_iter().filter(|(_, count)| MIN_SLEEPS <= *count);
        Self(loops.map(|(name, _)| name.to_owned()).collect())
    }

    /// What a wait of a task of this name counts as.
    pub(super) fn category(&self, of: Category, name: &str, ns: u64) -> Category {
        match of {
            Category::Timer if ns <= MAX_SLEEP_NS && self.0.contains(name) => Category::Polling,
            of => of,
        }
    }
}
