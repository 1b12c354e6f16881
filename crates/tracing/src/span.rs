//! Parts of tasks and CPUs within a range, clipped to it.

use std::ops::Range;

use model::HostNs;

use crate::timeline::{Segment, Slice, Task, Timeline};

/// A CPU's slices within a range: clipped, in time order, without overlap. Empty for a CPU that was not traced.
pub(crate) fn slices(
    timeline: &Timeline,
    cpu: u32,
    range: Range<HostNs>,
) -> impl Iterator<Item = Slice> + '_ {
    let row = timeline.cpus.binary_search_by_key(&cpu, |it| it.number).ok();
    let all = row.map_or(&[][..], |row| &timeline.cpus[row].slices);
    let first = all.partition_point(|slice| slice.end <= range.start);
    let mut from = range.start;
    all[first..].iter().take_while(move |slice| slice.begin < range.end).filter_map(move |slice| {
        let clipped =
            Slice { begin: slice.begin.max(from), end: slice.end.min(range.end), ..*slice };
        from = from.max(clipped.end);
        (clipped.begin < clipped.end).then_some(clipped)
    })
}

/// A task's segments within a range, with their clipped ranges, in time order, without overlap.
pub(crate) fn segments(
    task: &Task,
    range: Range<HostNs>,
) -> impl Iterator<Item = (Range<HostNs>, &Segment)> + '_ {
    let first = task.segments.partition_point(|segment| segment.end <= range.start);
    let mut from = range.start;
    let rest = task.segments[first..].iter();
    rest.take_while(move |segment| segment.begin < range.end).filter_map(move |segment| {
        let clipped = segment.begin.max(from)..segment.end.min(range.end);
        from = from.max(clipped.end);
        (clipped.start < clipped.end).then_some((clipped, segment))
    })
}

/// The name a task had at a time.
pub(crate) fn name_at(task: &Task, time: HostNs) -> &str {
    let n = task.names.partition_point(|(since, _)| *since <= time);
    task.names.get(n.saturating_sub(1)).map_or("", |(_, name)| name)
}
