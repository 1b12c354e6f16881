//! System calls, counted while events go by.

use std::collections::BTreeMap;

use model::HostNs;
use rustc_hash::FxHashMap;

use super::tasks::Tasks;
use crate::timeline::{Calls, TaskId};

/// System calls, counted while events go by.
#[derive(Debug, Default)]
pub(super) struct CallCounts {
    sums: FxHashMap<(TaskId, u16), Calls>,
    /// Those under way, with their number and begin.
    under_way: FxHashMap<TaskId, (u16, HostNs)>,
}

impl CallCounts {
    /// A task begins a call; one that seems to be under way ended unseen.
    pub(super) fn begin(&mut self, task: TaskId, number: u16, now: HostNs) {
        if let Some((number, begin)) = self.under_way.insert(task, (number, now)) {
            self.sums.entry((task, number)).or_default().add(now.since(begin));
        }
        self.sums.entry((task, number)).or_default().count += 1;
    }

    /// The number and the begin of the call that a task is in.
    pub(super) fn under_way(&self, task: TaskId) -> Option<(u16, HostNs)> {
        self.under_way.get(&task).copied()
    }

    /// It ends the call, if its begin was seen.
    pub(super) fn end(&mut self, task: TaskId, failed: bool, now: HostNs) {
        let Some((number, begin)) = self.under_way.remove(&task) else { return };
        let calls = self.sums.entry((task, number)).or_default();
        calls.failed += u64::from(failed);
        calls.add(now.since(begin));
    }

    /// Counts from here on: also calls that are under way.
    pub(super) fn restart(&mut self, now: HostNs) {
        self.sums.clear();
        for (task, (number, begin)) in &mut self.under_way {
            *begin = now;
            self.sums.entry((*task, *number)).or_default().count += 1;
        }
    }

    /// The call that a task is in goes on as another's.
    pub(super) fn hand_over(&mut self, from: TaskId, to: TaskId, now: HostNs) {
        let Some((number, _)) = self.under_way.remove(&from) else { return };
        if let Some(calls) = self.sums.get_mut(&(from, number)) {
            calls.count -= 1;
        }
        self.begin(to, number, now);
    }

    /// What is still under way lasts to the end of its task's life, or to the trace's.
    pub(super) fn finish(mut self, tasks: &Tasks, end: HostNs) -> BTreeMap<(TaskId, u16), Calls> {
        for (task, (number, begin)) in self.under_way {
            let end = tasks[task].ended_at().unwrap_or(end);
            self.sums.entry((task, number)).or_default().add(end.since(begin));
        }
        self.sums.into_iter().filter(|(_, calls)| 0 < calls.count).collect()
    }
}

impl Calls {
    fn add(&mut self, ns: u64) {
        self.ns += ns;
        self.longest_ns = self.longest_ns.max(ns);
    }
}
