//! Parts of tasks and CPUs within a range, clipped to it.

use std::ops::Range;

use model::HostNs;

use crate::timeline::{Segment, Slice, Task, Timeline};

/// A CPU's slices within a range: clipped, in time order. Empty for a CPU that was not traced.
pub(crate) fn slices(
    timeline: &Timeline,
    cpu: u32,
    range: Range<HostNs>,
) -> impl Iterator<Item = Slice> + '_ {
    let row = timeline.cpus.binary_search_by_key(&cpu, |it| it.number).ok();
    row.into_iter().flat_map(move |row| {
        let slices = &timeline.cpus[row].slices;
        let from_there = slices.rows_from(slices.ended_by(range.start));
        let within = from_there.take_while(move |slice| slice.begin < range.end);
        let clipped = within.map(move |slice| Slice {
            begin: slice.begin.max(range.start),
            end: slice.end.min(range.end),
            ..slice
        });
        clipped.filter(|slice| slice.begin < slice.end)
    })
}

/// A task's segments within a range, with their clipped ranges, in time order.
pub(crate) fn segments(
    task: &Task,
    range: Range<HostNs>,
) -> impl Iterator<Item = (Range<HostNs>, Segment)> + '_ {
    let from_there = task.segments.rows_from(task.segments.ended_by(range.start));
    from_there.take_while(move |segment| segment.begin < range.end).filter_map(move |segment| {
        let clipped = segment.begin.max(range.start)..segment.end.min(range.end);
        (!clipped.is_empty()).then_some((clipped, segment))
    })
}

/// The name a task had at a time.
pub(crate) fn name_at(task: &Task, time: HostNs) -> &str {
    let n = task.names.partition_point(|(since, _)| *since <= time);
    task.names.get(n.saturating_sub(1)).map_or("", |(_, name)| name)
}
