//! What would make the command shorter: parts of its critical path, with how long it would take without each, by a
//! replay of the trace (`replay`).

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::summary::{Category, Summary, executed};
use super::{CriticalPath, Locks, PathActivity, PathSegment, Polls, Scope, critical_path, replay};
use crate::kernel::Class;
use crate::span;
use crate::timeline::{Slice, TaskId, Timeline, Work};

/// Something that could be made shorter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Improvement {
    pub target: Target,
    pub on_path_ns: u64,
    /// How long the path waits for CPUs that the part needs: it goes with the part.
    pub cpu_waits_ns: u64,
    /// How long the command took.
    pub wall_ns: u64,
    /// How long the command would take without the part, wherever it is: by the replay.
    pub without_ns: u64,
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
    /// All waiting for locks, were there no contention: locks of the kernel and of files, and futexes whose holder is
    /// known. On the path that stays with those who wait for locks.
    Locks,
}

impl Improvement {
    /// How many times as fast the command would be; `None` when nothing would remain.
    #[must_use]
    pub fn factor(&self) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
        let ratio = |a: u64, b: u64| a as f64 / b as f64;
        (0 < self.without_ns).then(|| ratio(self.wall_ns, self.without_ns))
    }
}

/// What would make the command shorter, best first.
pub(super) fn improvements(
    timeline: &Timeline,
    path: &CriticalPath,
    polls: &Polls,
    summary: &Summary,
) -> Vec<Improvement> {
    let mut improvements = parts(timeline, path, summary);
    improvements.sort_by_key(|it| Reverse(it.on_path_ns + it.cpu_waits_ns));
    improvements.truncate(replay::MAX_TARGETS);
    let targets: Vec<Target> = improvements.iter().map(|it| it.target.clone()).collect();
    let without = replay::without(timeline, path.scope, polls, &targets);
    for (improvement, without_ns) in improvements.iter_mut().zip(without) {
        improvement.without_ns = without_ns;
    }
    improvements.sort_by_key(|it| (it.without_ns, Reverse(it.on_path_ns + it.cpu_waits_ns)));
    improvements
}

/// What could be left out.
fn parts(timeline: &Timeline, path: &CriticalPath, summary: &Summary) -> Vec<Improvement> {
    let wall_ns = summary.wall_ns;
    let waits = cpu_waits(timeline, path);
    let improvement = |target: Target, on_path_ns| {
        let cpu_waits_ns = waits_for(&target, &waits);
        Improvement { target, on_path_ns, cpu_waits_ns, wall_ns, without_ns: wall_ns }
    };
    let mut improvements = single(summary, &waits);
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
    improvements
}

/// Each part of the path, and each program that is not on it but had a CPU that it waited for.
fn single(summary: &Summary, waits: &CpuWaits) -> Vec<Improvement> {
    let mut parts: BTreeMap<&Category, [u64; 2]> = BTreeMap::new();
    for share in summary.categories.iter().filter(|share| can_improve(&share.of)) {
        parts.insert(&share.of, [share.ns, 0]);
    }
    for ([lost_at, meanwhile], ns) in waits {
        let meanwhile = meanwhile.as_ref().filter(|it| Some(*it) != lost_at.as_ref());
        if let Some(part) = lost_at.as_ref().and_then(|work| parts.get_mut(work)) {
            part[1] += ns;
        }
        match meanwhile {
            Some(work @ Category::User(_)) => parts.entry(work).or_default()[1] += ns,
            Some(work) => parts.get_mut(work).into_iter().for_each(|part| part[1] += ns),
            None => {}
        }
    }
    let improvement = |(of, [on_path_ns, cpu_waits_ns]): (&Category, [u64; 2])| Improvement {
        target: Target::Category(of.clone()),
        on_path_ns,
        cpu_waits_ns,
        wall_ns: summary.wall_ns,
        without_ns: summary.wall_ns,
    };
    parts.into_iter().map(improvement).collect()
}

/// Waits for a CPU on the path, by the work at which the waiting task had lost its CPU, and by the work that the CPU did
/// meanwhile.
type CpuWaits = BTreeMap<[Option<Category>; 2], u64>;

fn cpu_waits(timeline: &Timeline, path: &CriticalPath) -> CpuWaits {
    let mut waits = CpuWaits::new();
    let before = [None].into_iter().chain(path.segments.iter().map(Some));
    for (segment, before) in path.segments.iter().zip(before) {
        let PathActivity::CpuWait { cpu, .. } = segment.activity else { continue };
        let lost_at = before.and_then(|before| lost_at(timeline, segment, before));
        let range = segment.begin..segment.end;
        let slices = cpu.into_iter().flat_map(|cpu| span::slices(timeline, cpu, range.clone()));
        let mut rest_ns = segment.length_ns();
        for slice in slices {
            let meanwhile = slice.task.map(|task| category(timeline, task, &slice));
            *waits.entry([lost_at.clone(), meanwhile]).or_default() += slice.length_ns();
            rest_ns -= slice.length_ns();
        }
        *waits.entry([lost_at, None]).or_default() += rest_ns;
    }
    waits
}

/// What a task did when it lost its CPU, not counting the interrupt that took it; `None`: it was woken or made.
fn lost_at(timeline: &Timeline, wait: &PathSegment, before: &PathSegment) -> Option<Category> {
    let PathActivity::Running { cpu, .. } = before.activity else { return None };
    let range = before.begin..before.end;
    let own = span::slices(timeline, cpu, range)
        .filter(|slice| slice.task == Some(wait.task) && !matches!(slice.work, Work::Interrupt(_)));
    own.last()
        .filter(|_| before.task == wait.task)
        .map(|slice| category(timeline, wait.task, &slice))
}

fn category(timeline: &Timeline, task: TaskId, slice: &Slice) -> Category {
    let task = timeline.tasks.get(task.index());
    executed(task.map_or("", |task| span::name_at(task, slice.begin)), slice.work)
}

fn waits_for(target: &Target, waits: &CpuWaits) -> u64 {
    let is_of = |works: &[Option<Category>; 2]| works.iter().flatten().any(|work| target.has(work));
    waits.iter().filter(|(works, _)| is_of(works)).map(|(_, ns)| ns).sum()
}

/// Waits for locks on the path that stays with the waiting tasks.
fn locks_ns(timeline: &Timeline, scope: Scope) -> u64 {
    let staying = critical_path(timeline, Scope { locks: Locks::Stay, ..scope });
    let waits = staying.segments.iter().filter(|segment| segment.activity == PathActivity::Lock);
    waits.map(PathSegment::length_ns).sum()
}

/// Unknown and unfinished parts cannot be left out, and a loop that polls waits for something else; locks have their own
/// target.
fn can_improve(category: &Category) -> bool {
    use Category::{Lock, NotOver, Polling, Unknown};
    !matches!(category, Unknown | NotOver(_) | Lock | Polling)
}

impl Target {
    /// Whether a category is part of it.
    #[must_use]
    pub fn has(&self, category: &Category) -> bool {
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
