//! Waits in detail: where in the kernel, for which lock, who held it, who ended them.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use model::{HostNs, Interrupt, LockKind};

use super::{Cause, Classifier, Evidence, Sum, Wait};
use crate::kernel::interrupt_name;
use crate::timeline::{LockWait, Sleep, State, TaskId, Timeline, Waker, WokenBy, Work};

/// Waits that are alike.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Detail {
    pub cause: Cause,
    /// The kernel function that tells; see `Wait::function`.
    pub function: String,
    /// The evidence for the cause.
    pub evidence: Evidence,
    /// The lock, where its events tell.
    pub lock: Option<LockDetail>,
}

/// A lock that was waited for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LockDetail {
    pub address: u64,
    pub kind: LockKind,
    pub holder: Option<Holder>,
}

/// Who holds a lock.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holder {
    pub name: String,
    /// The system call it was in, by its number on x86-64; `None`: none, or not known.
    pub syscall: Option<u16>,
    /// By what it is known.
    pub known: HolderKnown,
}

/// By what a lock's holder is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum HolderKnown {
    /// The lock named it when the wait began.
    ByLock,
    /// It let the lock go, which ended the wait. A semaphore that is held by readers has no owner.
    ByWakeup,
}

/// Waits by where, for which lock and behind whom, most time first.
#[must_use]
pub fn details(
    timeline: &Timeline,
    classifier: &Classifier,
    tasks: &[TaskId],
) -> Vec<(Detail, Sum)> {
    let rows = grouped(timeline, classifier, tasks, |wait, state| {
        let lock = match state {
            State::Asleep(sleep) if is_lock(wait.cause) => {
                sleep.lock.as_ref().map(|lock| LockDetail::from_wait(timeline, sleep, lock))
            }
            _ => None,
        };
        (wait.cause, wait.function, wait.evidence, lock)
    });
    let detail = |((cause, function, evidence, lock), sum): (_, Sum)| {
        (Detail { cause, function: str::to_owned(function), evidence, lock }, sum)
    };
    rows.into_iter().map(detail).collect()
}

/// Waits by cause and who ended them, most time first: a task's name, an interrupt, a disk; `None`: not known, or the
/// trace ended first.
#[must_use]
pub fn wakers(
    timeline: &Timeline,
    classifier: &Classifier,
    tasks: &[TaskId],
) -> Vec<((Cause, Option<String>), Sum)> {
    let rows = grouped(timeline, classifier, tasks, |wait, state| {
        let by = match state {
            State::Asleep(sleep) => {
                sleep.woken_by.and_then(|it| Ender::from_woken_by(timeline, it.by))
            }
            _ => None,
        };
        (wait.cause, by)
    });
    rows.into_iter().map(|((cause, by), sum)| ((cause, by.map(Ender::name)), sum)).collect()
}

/// What to call who woke a task.
#[must_use]
pub fn waker_name(timeline: &Timeline, by: WokenBy) -> Option<String> {
    Ender::from_woken_by(timeline, by).map(Ender::name)
}

/// Kinds of tasks that end waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Ender<'a> {
    Task(&'a str),
    Interrupt(Interrupt),
    Disk(&'a str),
}

impl<'a> Ender<'a> {
    fn from_woken_by(timeline: &'a Timeline, by: WokenBy) -> Option<Self> {
        match by {
            WokenBy::Task(task) => Some(Self::Task(timeline.tasks.get(task.index())?.name())),
            WokenBy::Interrupt(interrupt) => Some(Self::Interrupt(interrupt)),
            WokenBy::Request { task, row } => {
                let requests = &timeline.tasks.get(task.index())?.requests;
                let disk = requests.get(usize::try_from(row).ok()?)?.disk;
                Some(Self::Disk(&timeline.disks.get(usize::try_from(disk).ok()?)?.name))
            }
            WokenBy::Unknown => None,
        }
    }

    fn name(self) -> String {
        match self {
            Self::Task(name) => name.to_owned(),
            Self::Interrupt(interrupt) => interrupt_name(interrupt),
            Self::Disk(name) => format!("disk {name}"),
        }
    }
}

impl LockDetail {
    fn from_wait(timeline: &Timeline, sleep: &Sleep, lock: &LockWait) -> Self {
        let holder = owner(timeline, lock).or_else(|| match lock.kind {
            // Not only holders wake who waits for a futex.
            LockKind::Futex => None,
            _ => releaser(timeline, sleep),
        });
        Self { address: lock.lock, kind: lock.kind, holder }
    }
}

fn owner(timeline: &Timeline, lock: &LockWait) -> Option<Holder> {
    let (task, syscall) = lock.owner?;
    let name = timeline.tasks.get(task.index())?.name().to_owned();
    Some(Holder { name, syscall, known: HolderKnown::ByLock })
}

fn releaser(timeline: &Timeline, sleep: &Sleep) -> Option<Holder> {
    let Waker { time, by: WokenBy::Task(id) } = sleep.woken_by? else { return None };
    let name = timeline.tasks.get(id.index())?.name().to_owned();
    let syscall = syscall_at(timeline, id, time);
    Some(Holder { name, syscall, known: HolderKnown::ByWakeup })
}

/// The system call that a task executed at a time.
fn syscall_at(timeline: &Timeline, id: TaskId, time: HostNs) -> Option<u16> {
    let segments = &timeline.tasks.get(id.index())?.segments;
    let segment = segments.get(segments.ended_by(time))?;
    let State::Running { cpu } = segment.state else { return None };
    let row = timeline.cpus.binary_search_by_key(&cpu, |cpu| cpu.number).ok()?;
    let slices = &timeline.cpus[row].slices;
    let slice = slices.get(slices.ended_by(time))?;
    match slice.work {
        Work::Syscall(number) if slice.task == Some(id) => Some(number),
        _ => None,
    }
}

fn is_lock(cause: Cause) -> bool {
    matches!(cause, Cause::InodeLock | Cause::Lock(_) | Cause::Futex)
}

fn grouped<'a, K: Ord>(
    timeline: &'a Timeline,
    classifier: &'a Classifier,
    tasks: &[TaskId],
    key: impl Fn(Wait<'a>, &State) -> K,
) -> Vec<(K, Sum)> {
    let mut sums: BTreeMap<K, Sum> = BTreeMap::new();
    let tasks = tasks.iter().filter_map(|id| timeline.tasks.get(id.index()));
    for (task, segment) in tasks.flat_map(|task| task.segments.iter().map(move |it| (task, it))) {
        if let Some(wait) = classifier.wait(timeline, task, &segment) {
            let key = key(wait, &segment.state);
            sums.entry(key).or_default().add(segment.length_ns());
        }
    }
    let mut rows: Vec<(K, Sum)> = sums.into_iter().collect();
    rows.sort_by_key(|(_, sum)| Reverse(sum.ns));
    rows
}
