//! What holds for every timeline, whatever the events.

use model::HostNs;

use crate::timeline::{State, Timeline};

/// Each task's segments touch and cover its life, each CPU's slices touch and cover the trace, disks' busy times are
/// disjoint and ascending, requests with files are those of the disks, and a CPU's task runs on it.
///
/// # Errors
/// The first that does not hold.
pub(super) fn check(timeline: &Timeline) -> Result<(), String> {
    let whole = (timeline.begin, timeline.end);
    for task in &timeline.tasks {
        let parts = task.segments.iter().map(|segment| (segment.begin, segment.end));
        covers((task.begin, task.end), parts).map_err(|why| format!("task {}: {why}", task.tid))?;
        covers_at_most(whole, (task.begin, task.end))
            .map_err(|why| format!("task {}: {why}", task.tid))?;
        if task.names.is_empty() {
            return Err(format!("task {} has no name", task.tid));
        }
    }
    for cpu in &timeline.cpus {
        let parts = cpu.slices.iter().map(|slice| (slice.begin, slice.end));
        covers(whole, parts).map_err(|why| format!("CPU {}: {why}", cpu.number))?;
    }
    for disk in &timeline.disks {
        for (begin, end) in &disk.busy {
            covers_at_most(whole, (*begin, *end)).map_err(|why| format!("{}: {why}", disk.name))?;
        }
        if disk.busy.windows(2).any(|pair| pair[1].0 <= pair[0].1) {
            return Err(format!("{}: busy times touch or overlap", disk.name));
        }
    }
    same_requests(timeline)?;
    same_running_time(timeline)
}

/// Where files were traced, requests by what they hold are all that disks did.
fn same_requests(timeline: &Timeline) -> Result<(), String> {
    let by_content = timeline.files.requests.values().fold([0; 3], |[count, read, written], of| {
        [count + of.count, read + of.read_bytes, written + of.write_bytes]
    });
    let by_disk = timeline.disks.iter().fold([0; 3], |[count, read, written], disk| {
        [count + disk.requests, read + disk.bytes[0], written + disk.bytes[1]]
    });
    match by_content {
        [0, ..] => Ok(()),
        _ if by_content == by_disk => Ok(()),
        _ => Err(format!("requests hold {by_content:?}, disks did {by_disk:?}")),
    }
}

/// The parts touch, none is empty, and together they are the whole.
fn covers(
    whole: (HostNs, HostNs),
    parts: impl Iterator<Item = (HostNs, HostNs)>,
) -> Result<(), String> {
    let mut at = whole.0;
    for (begin, end) in parts {
        if begin != at || end <= begin {
            return Err(format!("{}..{} follows {}", begin.0, end.0, at.0));
        }
        at = end;
    }
    if at == whole.1 { Ok(()) } else { Err(format!("ends at {}, not {}", at.0, whole.1.0)) }
}

fn covers_at_most(whole: (HostNs, HostNs), part: (HostNs, HostNs)) -> Result<(), String> {
    let within = whole.0 <= part.0 && part.0 <= part.1 && part.1 <= whole.1;
    let message = || format!("{}..{} is not within the trace", part.0.0, part.1.0);
    if within { Ok(()) } else { Err(message()) }
}

/// Tasks run as long as CPUs have tasks.
fn same_running_time(timeline: &Timeline) -> Result<(), String> {
    let mut by_tasks = vec![0_u64; timeline.tasks.len()];
    for (sum, task) in by_tasks.iter_mut().zip(&timeline.tasks) {
        let running = |state: &State| matches!(state, State::Running { .. });
        let segments = task.segments.iter().filter(|segment| running(&segment.state));
        *sum = segments.map(|segment| segment.end.since(segment.begin)).sum();
    }
    for slice in timeline.cpus.iter().flat_map(|cpu| &cpu.slices) {
        let Some(id) = slice.task else { continue };
        let left = by_tasks[id.index()].checked_sub(slice.end.since(slice.begin));
        by_tasks[id.index()] = left.ok_or("a CPU has a task longer than that runs")?;
    }
    let wrong = by_tasks.iter().position(|left| *left != 0);
    wrong.map_or(Ok(()), |row| Err(format!("task row {row} runs {} ns on no CPU", by_tasks[row])))
}
