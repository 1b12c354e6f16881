//! Who woke whom.
//!
//! ```text
//!  waker   | running        o wakes cc1   |          the arrow begins as an instant on the waker's track, or on
//!                            \                       the disk's whose request was done,
//!  woken   | asleep: wait4   | waiting for CPU |     and ends on the slice after the sleep
//! ```

use std::cmp::Reverse;
use std::collections::BTreeMap;

use model::HostNs;
use trace_analysis::timeline::{Segments, State, Task, TaskId, Timeline, WokenBy};

/// One end of an arrow; at a waker's, `other` is who is woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct End {
    pub(super) at: HostNs,
    pub(super) flow: u64,
    pub(super) other: TaskId,
}

/// A track that arrows begin on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum From {
    Task(TaskId),
    Disk(u32),
}

/// A wake-up that can be drawn.
#[derive(Debug, Clone, Copy)]
struct Found {
    asleep_ns: u64,
    machine: usize,
    from: From,
    woke_at: HostNs,
    woken: TaskId,
    goes_on: HostNs,
}

/// All arrows' ends, by machine and track, in time order.
#[derive(Debug, Default)]
pub(super) struct Arrows {
    wakes: BTreeMap<(usize, From), Vec<End>>,
    woken: BTreeMap<(usize, TaskId), Vec<End>>,
    left_out: BTreeMap<usize, u64>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct OfMachine<'a> {
    arrows: &'a Arrows,
    machine: usize,
    pub(super) left_out: u64,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct OfTask<'a> {
    pub(super) wakes: &'a [End],
    pub(super) woken: &'a [End],
}

impl Arrows {
    /// At most `most`: those of the longest sleeps.
    pub(super) fn new(timelines: &[Timeline], most: usize) -> Self {
        let mut found: Vec<Found> = Vec::new();
        for (machine, timeline) in timelines.iter().enumerate() {
            for (id, task) in (0..).map(TaskId).zip(&timeline.tasks) {
                found.extend(arrows_to(timeline, machine, id, task));
            }
        }
        found.sort_by_key(|one| Reverse(one.asleep_ns));
        let mut arrows = Self::default();
        for one in found.drain(most.min(found.len())..) {
            *arrows.left_out.entry(one.machine).or_default() += 1;
        }
        for (flow, one) in (1..).zip(found) {
            let end = End { at: one.woke_at, flow, other: one.woken };
            arrows.wakes.entry((one.machine, one.from)).or_default().push(end);
            let end = End { at: one.goes_on, ..end };
            arrows.woken.entry((one.machine, one.woken)).or_default().push(end);
        }
        arrows.wakes.values_mut().for_each(|ends| ends.sort_unstable());
        arrows.woken.values_mut().for_each(|ends| ends.sort_unstable());
        arrows
    }

    pub(super) fn of(&self, machine: usize) -> OfMachine<'_> {
        let left_out = self.left_out.get(&machine).copied().unwrap_or(0);
        OfMachine { arrows: self, machine, left_out }
    }
}

impl<'a> OfMachine<'a> {
    pub(super) fn of_task(&self, id: TaskId) -> OfTask<'a> {
        let Arrows { wakes, woken, .. } = self.arrows;
        let wakes = wakes.get(&(self.machine, From::Task(id)));
        let woken = woken.get(&(self.machine, id));
        OfTask { wakes: wakes.map_or(&[], Vec::as_slice), woken: woken.map_or(&[], Vec::as_slice) }
    }

    pub(super) fn of_disk(&self, disk: usize) -> &'a [End] {
        let disk = u32::try_from(disk).unwrap_or(u32::MAX);
        let wakes = self.arrows.wakes.get(&(self.machine, From::Disk(disk)));
        wakes.map_or(&[], Vec::as_slice)
    }
}

fn arrows_to<'a>(
    timeline: &'a Timeline,
    machine: usize,
    woken: TaskId,
    task: &'a Task,
) -> impl Iterator<Item = Found> + 'a {
    let drawn = task.segments.iter().filter(|segment| segment.begin < segment.end);
    let pairs = drawn.clone().zip(drawn.skip(1));
    pairs.filter_map(move |(asleep, next)| {
        let State::Asleep(sleep) = &asleep.state else { return None };
        let waker = sleep.woken_by?;
        let from =
            from(timeline, waker.by, waker.time).filter(|from| *from != From::Task(woken))?;
        let (woke_at, goes_on) = (waker.time, next.begin);
        let asleep_ns = asleep.end.since(asleep.begin);
        (woke_at <= goes_on).then_some(Found { asleep_ns, machine, from, woke_at, woken, goes_on })
    })
}

/// The track of who woke, when it has a slice then.
fn from(timeline: &Timeline, by: WokenBy, at: HostNs) -> Option<From> {
    match by {
        WokenBy::Task(id) => {
            let waker = timeline.tasks.get(id.index())?;
            covers(&waker.segments, at).then_some(From::Task(id))
        }
        WokenBy::Request { task, row } => {
            let requests = &timeline.tasks.get(task.index())?.requests;
            let disk = requests.get(row as usize)?.disk;
            let busy = &timeline.disks.get(disk as usize)?.busy;
            let after = busy.partition_point(|(begin, _)| *begin <= at);
            let (begin, end) = *busy.get(after.checked_sub(1)?)?;
            (begin < end && at <= end).then_some(From::Disk(disk))
        }
        WokenBy::Interrupt(_) | WokenBy::Unknown => None,
    }
}

/// Whether an instant at `at` has a slice to be in: segments touch, so only those without a length make it harder.
fn covers(segments: &Segments, at: HostNs) -> bool {
    let begun = (0..segments.begun_by(at)).rev().filter_map(|row| segments.get(row));
    begun.into_iter().find(|s| s.begin < s.end).is_some_and(|s| at <= s.end)
}
