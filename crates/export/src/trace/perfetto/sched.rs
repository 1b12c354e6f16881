//! What the kernel's own events would say of a machine: Perfetto's tables `process`, `thread`, `sched` and `thread_state`.
//!
//! | in the trace | here |
//! |---|---|
//! | a task from before | `process_tree` |
//! | a task begins, ends | `task_newtask`, `sched_process_free` |
//! | a CPU changes hands | `sched_switch`, with the state that a task is in from then on |
//! | a task is woken | `sched_waking` by its waker |
//!
//! A guest is a machine of its own: its process ids and CPUs are not the host's.

use std::collections::BTreeMap;
use std::io::{self, Write};

use model::HostNs;
use trace_analysis::timeline::{
    Cpu, Sleep, Slice, State, Task, TaskId, Timeline, Waker, WokenBy, Work,
};

use super::super::names::{Names, short};
use crate::perfetto::proto::{
    CLONE_THREAD, FLAG_HARDIRQ, FtraceEvent, FtraceEventBundle, Process, ProcessTree,
    SchedProcessFree, SchedSwitch, SchedWaking, SystemInfo, TaskNewtask, Thread, TracePacket,
    Utsname,
};
use crate::perfetto::writer::Writer;

/// Events of a packet.
const EVENTS: usize = 512;
/// A thread id that no task has (the kernel's `PID_MAX_LIMIT`): events were lost.
const UNKNOWN_TID: i32 = 1 << 22;
const UNKNOWN: &str = "[unknown]";

/// States as kernels from 4.14 on number them.
const RUNNABLE: i64 = 0;
const INTERRUPTIBLE: i64 = 1;
const UNINTERRUPTIBLE: i64 = 2;
const STOPPED: i64 = 4;
const DEAD: i64 = 0x10;
const PREEMPTED: i64 = 0x100;
/// None of them: readers show NULL.
const NOT_KNOWN: i64 = 0x1000;

/// Writes a machine's events.
///
/// # Errors
/// Only the writer's.
pub(super) fn write<W: Write>(
    names: Names<'_>,
    instant: HostNs,
    writer: &mut Writer<W>,
) -> io::Result<()> {
    let timeline = names.timeline;
    let machine = timeline.machine.0;
    if machine != 0 {
        writer.machine(machine, instant)?;
    }
    let release = release(names);
    if let Some(release) = &release {
        let (sysname, release) = (Some("Linux".to_owned()), Some(release.clone()));
        let system_info = Some(SystemInfo { utsname: Some(Utsname { sysname, release }) });
        writer.of_machine(machine, TracePacket { system_info, ..TracePacket::default() })?;
    }
    let (process_tree, timestamp) = (Some(tree(names)), Some(timeline.begin.0));
    let tree = TracePacket { process_tree, timestamp, ..TracePacket::default() };
    writer.of_machine(machine, tree)?;
    let preempted = if release.is_some() { PREEMPTED } else { RUNNABLE };
    // Of events at one time the first comes first: what begins, what happens, what ends.
    let tasks = || (0..).map(TaskId).zip(&timeline.tasks);
    let mut first_runs = BTreeMap::new();
    for (begin, _, holder) in timeline.cpus.iter().flat_map(runs) {
        if let Holder::Task(id) = holder {
            let first = first_runs.entry(id).or_insert(begin);
            *first = begin.min(*first);
        }
    }
    let begun = tasks().filter(|(_, task)| !task.before).map(|(id, task)| {
        // Before it runs: what comes first would be another thread's.
        let first = first_runs.get(&id).copied().unwrap_or(task.begin).min(task.begin);
        begins(id, task, HostNs(first.0.saturating_sub(1)), names)
    });
    in_packets(machine, 0, begun, writer)?;
    for cpu in &timeline.cpus {
        in_packets(machine, cpu.number, switches(cpu, names, preempted), writer)?;
    }
    let mut others = BTreeMap::<u32, Vec<FtraceEvent>>::new();
    for (id, task) in tasks() {
        for (cpu, event) in wakes(id, task, names) {
            others.entry(cpu).or_default().push(event);
        }
    }
    // Readers have a queue for each CPU: on another one a task might end before it leaves its CPU.
    let left = last_departures(timeline);
    for (id, task) in tasks().filter(|(_, task)| task.exited) {
        // Not before it leaves its CPU: what comes later would be another thread's.
        let (at, cpu) = left.get(&id).copied().unwrap_or((task.end, 0));
        let after = HostNs(at.max(task.end).0.saturating_add(1));
        others.entry(cpu).or_default().push(ends(id, after, names));
    }
    for (cpu, events) in others {
        in_packets(machine, cpu, events.into_iter(), writer)?;
    }
    Ok(())
}

/// When each task left a CPU, or woke another one, for the last time, and on which CPU. It does so after it was seen to end.
fn last_departures(timeline: &Timeline) -> BTreeMap<TaskId, (HostNs, u32)> {
    let mut left = BTreeMap::new();
    for cpu in &timeline.cpus {
        let mut runs = runs(cpu).peekable();
        while let Some((_, end, holder)) = runs.next() {
            let at = runs.peek().map_or(end, |(begin, ..)| *begin);
            if let Holder::Task(id) = holder {
                let last = left.entry(id).or_insert((at, cpu.number));
                *last = (*last).max((at, cpu.number));
            }
        }
    }
    for segment in timeline.tasks.iter().flat_map(|task| task.segments.iter()) {
        if let Some(Waker { by: WokenBy::Task(by), .. }) = waker(segment.state) {
            let last = left.entry(by).or_insert((segment.end, 0));
            last.0 = last.0.max(segment.end);
        }
    }
    left
}

/// The kernel's release: without one from 4.14 on, readers take numbers of states for those of older kernels.
fn release(names: Names<'_>) -> Option<String> {
    let release = short(&names.machine()?.kernel);
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else { return None };
    ((4, 14) <= (major, minor)).then_some(release)
}

fn in_packets<W: Write>(
    machine: u32,
    cpu: u32,
    mut events: impl Iterator<Item = FtraceEvent>,
    writer: &mut Writer<W>,
) -> io::Result<()> {
    loop {
        let event: Vec<_> = events.by_ref().take(EVENTS).collect();
        if event.is_empty() {
            return Ok(());
        }
        let ftrace_events = Some(FtraceEventBundle { cpu: Some(cpu), event });
        writer.of_machine(machine, TracePacket { ftrace_events, ..TracePacket::default() })?;
    }
}

/// Tasks from before the trace.
fn tree(names: Names<'_>) -> ProcessTree {
    let mut processes = BTreeMap::<u32, Process>::new();
    let mut threads = Vec::new();
    let tasks = (0..).map(TaskId).zip(&names.timeline.tasks);
    for (id, task) in tasks.filter(|(_, task)| task.before) {
        let name = names.task_name(id);
        let pid = signed(task.pid.0);
        let process = processes.entry(task.pid.0).or_default();
        process.pid = Some(pid);
        if task.tid.0 == task.pid.0 {
            process.ppid = Some(signed(task.parent_pid.0));
            process.cmdline = vec![name.clone()];
        }
        let tid = Some(signed(task.tid.0));
        threads.push(Thread { tid, name: Some(name), tgid: Some(pid) });
    }
    ProcessTree { processes: processes.into_values().collect(), threads }
}

fn begins(id: TaskId, task: &Task, at: HostNs, names: Names<'_>) -> FtraceEvent {
    let timeline = names.timeline;
    let parent = task.parent.and_then(|parent| timeline.tasks.get(parent.index()));
    let is_thread = task.tid.0 != task.pid.0;
    // A thread is of its maker's process: readers know no other sign of it.
    let maker = match (is_thread, parent) {
        (true, Some(parent)) if parent.pid == task.pid => parent.tid.0,
        (true, _) => task.pid.0,
        (false, Some(parent)) => parent.tid.0,
        (false, None) => task.parent_pid.0,
    };
    FtraceEvent {
        task_newtask: Some(TaskNewtask {
            pid: Some(signed(task.tid.0)),
            comm: Some(names.task_name(id)),
            clone_flags: Some(if is_thread { CLONE_THREAD } else { 0 }),
        }),
        ..event(at, maker)
    }
}

fn ends(id: TaskId, at: HostNs, names: Names<'_>) -> FtraceEvent {
    let tid = names.timeline.tasks.get(id.index()).map(|task| signed(task.tid.0));
    let (comm, pid) = (Some(names.task_name(id)), tid);
    FtraceEvent { sched_process_free: Some(SchedProcessFree { comm, pid }), ..event(at, 0) }
}

/// Who has a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holder {
    Task(TaskId),
    Idle,
    Unknown,
}

impl Holder {
    fn of(slice: &Slice) -> Self {
        match (slice.task, slice.work) {
            (Some(task), _) => Self::Task(task),
            (None, Work::Unknown) => Self::Unknown,
            (None, _) => Self::Idle,
        }
    }

    fn thread(self, cpu: u32, names: Names<'_>) -> (String, i32) {
        match self {
            Self::Task(id) => {
                let task = names.timeline.tasks.get(id.index());
                (names.task_name(id), task.map_or(UNKNOWN_TID, |task| signed(task.tid.0)))
            }
            Self::Idle => (format!("swapper/{cpu}"), 0),
            Self::Unknown => (UNKNOWN.to_owned(), UNKNOWN_TID),
        }
    }
}

/// Who had a CPU, and from when to when.
fn runs(cpu: &Cpu) -> impl Iterator<Item = (HostNs, HostNs, Holder)> + '_ {
    let runs = cpu.slices.chunk_by(|one, next| Holder::of(one) == Holder::of(next));
    runs.filter_map(|slices| {
        let (first, last) = (slices.first()?, slices.last()?);
        (first.begin < last.end).then(|| (first.begin, last.end, Holder::of(first)))
    })
}

/// A CPU's switches, from and to an unknown thread at the trace's edges.
fn switches<'a>(
    cpu: &'a Cpu,
    names: Names<'a>,
    preempted: i64,
) -> impl Iterator<Item = FtraceEvent> + 'a {
    let runs = runs(cpu).map(|(begin, end, holder)| (begin, holder, Some(end)));
    let last = std::iter::once((names.timeline.end, Holder::Unknown, None));
    let switches = runs.chain(last).scan((Holder::Unknown, None), move |before, next| {
        let (begin, holder, end) = next;
        let (was, until) = std::mem::replace(before, (holder, end));
        // Where the last run ends earlier, nothing is known of the time up to the next one.
        let at = if end.is_none() { until.unwrap_or(begin) } else { begin };
        // From an unknown thread to an unknown one is no switch.
        let changed = was != holder;
        Some(changed.then(|| switch(cpu.number, at, (was, holder), names, preempted)))
    });
    switches.flatten()
}

fn switch(
    cpu: u32,
    at: HostNs,
    (was, next): (Holder, Holder),
    names: Names<'_>,
    preempted: i64,
) -> FtraceEvent {
    let (prev_comm, prev_pid) = was.thread(cpu, names);
    let (next_comm, next_pid) = next.thread(cpu, names);
    let prev_state = match was {
        Holder::Task(id) => match state_after(id, at, names.timeline) {
            PREEMPTED => preempted,
            state => state,
        },
        Holder::Idle | Holder::Unknown => RUNNABLE,
    };
    FtraceEvent {
        sched_switch: Some(SchedSwitch {
            prev_comm: Some(prev_comm),
            prev_pid: Some(prev_pid),
            prev_state: Some(prev_state),
            next_comm: Some(next_comm),
            next_pid: Some(next_pid),
        }),
        ..event(at, u32::try_from(prev_pid).unwrap_or(0))
    }
}

/// What a task is in when it leaves a CPU.
fn state_after(id: TaskId, at: HostNs, timeline: &Timeline) -> i64 {
    let Some(task) = timeline.tasks.get(id.index()) else { return NOT_KNOWN };
    if task.exited && task.end <= at {
        return DEAD;
    }
    // At the trace's end it goes on as it is.
    let is_end = timeline.end <= at;
    match task.segments.at(at).map(|segment| segment.state) {
        Some(State::Runnable { preempted: true }) => PREEMPTED,
        Some(State::Runnable { preempted: false } | State::Running { .. }) => RUNNABLE,
        Some(State::Asleep(sleep)) if sleep.uninterruptible => UNINTERRUPTIBLE,
        Some(State::Asleep(_)) => INTERRUPTIBLE,
        Some(State::Stopped { .. }) => STOPPED,
        Some(State::Unknown) | None if is_end => RUNNABLE,
        Some(State::Unknown) | None => NOT_KNOWN,
    }
}

/// When a task was woken, and on which CPU its waker was then.
fn wakes<'a>(
    id: TaskId,
    task: &'a Task,
    names: Names<'a>,
) -> impl Iterator<Item = (u32, FtraceEvent)> + 'a {
    task.segments.iter().filter_map(move |segment| {
        let waker = waker(segment.state)?;
        let (cpu, by) = woken_from(waker, names.timeline);
        let is_interrupt = matches!(waker.by, WokenBy::Interrupt(_) | WokenBy::Request { .. });
        let (comm, pid) = (Some(names.task_name(id)), Some(signed(task.tid.0)));
        let event = FtraceEvent {
            common_flags: is_interrupt.then_some(FLAG_HARDIRQ),
            sched_waking: Some(SchedWaking { comm, pid }),
            ..event(segment.end, by)
        };
        Some((cpu, event))
    })
}

fn waker(state: State) -> Option<Waker> {
    match state {
        State::Asleep(Sleep { woken_by, .. }) | State::Stopped { woken_by } => woken_by,
        _ => None,
    }
}

/// The waker's CPU, and its thread; 0 in an interrupt.
fn woken_from(waker: Waker, timeline: &Timeline) -> (u32, u32) {
    match waker.by {
        WokenBy::Task(by) => {
            let Some(task) = timeline.tasks.get(by.index()) else { return (0, 0) };
            match task.segments.at(waker.time).map(|segment| segment.state) {
                Some(State::Running { cpu }) => (cpu, task.tid.0),
                _ => (0, task.tid.0),
            }
        }
        WokenBy::Interrupt(_) | WokenBy::Request { .. } => (0, 0),
        WokenBy::Unknown => (0, UNKNOWN_TID.unsigned_abs()),
    }
}

fn event(time: HostNs, by: u32) -> FtraceEvent {
    FtraceEvent { timestamp: Some(time.0), pid: Some(by), ..FtraceEvent::default() }
}

/// Ids of threads are positive in kernels; what an odd trace has beyond is unknown.
fn signed(id: u32) -> i32 {
    i32::try_from(id).unwrap_or(UNKNOWN_TID)
}
