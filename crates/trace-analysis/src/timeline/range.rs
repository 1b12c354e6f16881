//! The last part of a timeline.

use model::HostNs;

use super::{Disk, Segments, Slices, State, Task, TaskId, Timeline, WokenBy};
use crate::span;

impl Timeline {
    /// What it is from a time on. Tasks that ended before stay as rows without a life, which ids of tasks refer to.
    pub(super) fn since(mut self, from: HostNs) -> Self {
        let kept: Vec<Vec<Option<u32>>> =
            self.tasks.iter_mut().map(|task| keep_requests(task, from)).collect();
        for task in &mut self.tasks {
            cut_task(task, from, self.end, &kept);
        }
        for request in self.tasks.iter_mut().flat_map(|task| &mut task.requests) {
            let new = |(task, row): (TaskId, u32)| {
                let row = kept.get(task.index()).and_then(|rows| *rows.get(row as usize)?)?;
                Some((task, row))
            };
            request.lower = request.lower.and_then(new);
        }
        let range = from..self.end;
        let slices: Vec<Slices> = self
            .cpus
            .iter()
            .map(|cpu| {
                let mut slices = Slices::beginning(from);
                for slice in span::slices(&self, cpu.number, range.clone()) {
                    slices.push(slice.end, slice.task, slice.work);
                }
                slices
            })
            .collect();
        for (cpu, slices) in self.cpus.iter_mut().zip(slices) {
            cpu.slices = slices;
        }
        self.disks.iter_mut().for_each(|disk| cut_disk(disk, from));
        self.begin = from;
        self
    }
}

/// Leaves out requests that were done before. The new row of each.
fn keep_requests(task: &mut Task, from: HostNs) -> Vec<Option<u32>> {
    let mut n_kept = 0;
    let mut rows = Vec::with_capacity(task.requests.len());
    task.requests.retain(|request| {
        let keep = request.done.is_none_or(|done| from <= done);
        rows.push(keep.then_some(n_kept));
        n_kept += u32::from(keep);
        keep
    });
    rows
}

fn cut_task(task: &mut Task, from: HostNs, end: HostNs, kept: &[Vec<Option<u32>>]) {
    let mut segments = Segments::beginning(from.max(task.begin));
    for (range, segment) in span::segments(task, from..end) {
        segments.push(range.end, with_rows(segment.state, kept));
    }
    task.segments = segments;
    task.before |= task.begin < from;
    task.begin = task.begin.max(from);
    task.end = task.end.max(from);
}

/// A task that was woken by a request that is left out was woken by an unknown one.
fn with_rows(mut state: State, kept: &[Vec<Option<u32>>]) -> State {
    if let State::Asleep(sleep) = &mut state
        && let Some(waker) = &mut sleep.woken_by
        && let WokenBy::Request { task, row } = waker.by
    {
        let new = kept.get(task.index()).and_then(|rows| *rows.get(row as usize)?);
        waker.by = new.map_or(WokenBy::Unknown, |row| WokenBy::Request { task, row });
    }
    state
}

fn cut_disk(disk: &mut Disk, from: HostNs) {
    disk.busy.retain(|(_, end)| from < *end);
    if let Some((begin, _)) = disk.busy.first_mut() {
        *begin = from.max(*begin);
    }
}

#[cfg(test)]
mod test {
    use model::MachineId;

    use super::*;
    use crate::timeline::build::random::{Random, senseless_traces};
    use crate::timeline::{Survey, build};

    /// Parts that touch add up to the whole, and the whole as a range is the whole. That ranges are covered is asserted
    /// when a timeline is built.
    #[test]
    fn parts_add_up() {
        let random = &mut Random(11);
        for (tables, mut events) in senseless_traces() {
            // Those after the end would be moved to it, and are no part of a range that ends there.
            let end = build(&tables, MachineId::HOST, &events).end;
            events.retain(|event| event.time <= end);
            let part = |range| {
                let mut survey = Survey::new(&tables, MachineId::HOST).within(range);
                survey.see(&events);
                let mut builder = survey.builder();
                builder.see(&events);
                builder.finish()
            };
            let whole = part(None);
            assert_eq!(part(Some(whole.begin..whole.end)).cpus, whole.cpus);
            let at = HostNs(whole.begin.0 + random.below(whole.length_ns() + 1));
            let parts = [part(Some(whole.begin..at)), part(Some(at..whole.end))];
            let lived =
                |timeline: &Timeline| -> u64 { timeline.tasks.iter().map(Task::length_ns).sum() };
            let busy = |timeline: &Timeline| -> u64 {
                let busy = timeline.disks.iter().flat_map(|disk| &disk.busy);
                busy.map(|(begin, end)| end.since(*begin)).sum()
            };
            assert_eq!(parts.iter().map(Timeline::length_ns).sum::<u64>(), whole.length_ns());
            assert_eq!(lived(&parts[1]), lived(&whole.clone().since(at)));
            assert_eq!(busy(&parts[1]), busy(&whole.since(at)));
        }
    }
}
