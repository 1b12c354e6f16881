//! Which targets a stretch of time is part of: a bit for each.

use model::HostNs;
use rustc_hash::FxHashMap;

use super::super::summary::{category, disk_parts, executed};
use super::super::{Category, PathActivity, Polls, Target};
use super::earlier::Earlier;
use crate::span;
use crate::timeline::{Request, Slice, Task, Timeline, Work};

/// Which targets a stretch of time is part of.
pub(super) struct Masks<'a> {
    timeline: &'a Timeline,
    targets: &'a [Target],
    polls: &'a Polls,
    /// Own code, by the program's name.
    user: FxHashMap<&'a str, u64>,
    /// Other work, as it is met.
    work: FxHashMap<Work, u64>,
    pub(super) cpu_wait: u64,
    pub(super) waking_up: u64,
    pub(super) locks: u64,
    pub(super) stopped: u64,
}

impl<'a> Masks<'a> {
    pub(super) fn new(timeline: &'a Timeline, polls: &'a Polls, targets: &'a [Target]) -> Self {
        let mut user: FxHashMap<&str, u64> = FxHashMap::default();
        for (bit, target) in targets.iter().enumerate() {
            if let Target::Category(Category::User(name)) = target {
                *user.entry(name).or_default() |= 1 << bit;
            }
        }
        let of = |wanted: &Category| mask(targets, |target| target.has(wanted));
        Self {
            timeline,
            targets,
            polls,
            user,
            work: FxHashMap::default(),
            cpu_wait: of(&Category::CpuWait),
            waking_up: of(&Category::WakingUp),
            stopped: of(&Category::Stopped),
            locks: mask(targets, |target| *target == Target::Locks),
        }
    }

    /// Of what a CPU does for a task.
    pub(super) fn work(&mut self, task: &Task, slice: &Slice) -> u64 {
        if slice.work == Work::User {
            let name = span::name_at(task, slice.begin);
            return self.user.get(name).copied().unwrap_or(0);
        }
        let targets = self.targets;
        let of_work = || mask(targets, |target| target.has(&executed("", slice.work)));
        *self.work.entry(slice.work).or_insert_with(of_work)
    }

    /// Of a wait that no task ended.
    pub(super) fn wait(
        &self,
        task: &Task,
        activity: &PathActivity,
        begin: HostNs,
        end: HostNs,
    ) -> u64 {
        let name = span::name_at(task, begin);
        let of = category(self.timeline, activity);
        let of = self.polls.category(of, name, end.since(begin));
        mask(self.targets, |target| target.has(&of))
    }

    /// Makes earlier what waits for a request.
    pub(super) fn disk(&self, request: &Request, woken: HostNs, earlier: &mut Earlier) {
        let lower = request.lower.and_then(|(task, row)| {
            self.timeline.tasks.get(task.index())?.requests.get(row as usize)
        });
        for (activity, ns) in disk_parts(lower.unwrap_or(request), woken) {
            let of = category(self.timeline, &activity);
            earlier.add(mask(self.targets, |target| target.has(&of)), ns);
        }
    }
}

fn mask(targets: &[Target], is_part: impl Fn(&Target) -> bool) -> u64 {
    let bits = targets.iter().enumerate().filter(|(_, target)| is_part(target));
    bits.fold(0, |mask, (bit, _)| mask | 1 << bit)
}
