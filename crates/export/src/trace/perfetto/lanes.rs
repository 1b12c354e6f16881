//! What happens on each sort of track, in time order. Stretches without a length are not drawn.

use model::HostNs;
use trace_analysis::findings::OnHost;
use trace_analysis::host_side::{CpuSide, VcpuState};
use trace_analysis::kernel::syscall_label;
use trace_analysis::timeline::{
    Cpu, Disk, Request, Segment, Slice, State, Task, TaskId, Timeline, Work,
};
use trace_analysis::waits::Classifier;

use super::super::host_side::{stolen_by, thread};
use super::super::names::{Names, lock_name, short, work_name};
use super::arrows::{End, OfTask};
use super::nest::{Nested, nest};
use crate::perfetto::event::{Event, Fact, Kind, begin, count, end};

/// Who has a CPU, and what it executes.
pub(super) fn cpu<'a>(cpu: &'a Cpu, names: Names<'a>) -> impl Iterator<Item = Event> + 'a {
    let same = |one: &Slice, next: &Slice| match (one.task, next.task) {
        (None, None) => one.work == next.work,
        (one, next) => one == next,
    };
    cpu.slices.chunk_by(same).flat_map(move |slices| {
        let (first, last) = (slices[0], slices[slices.len() - 1]);
        if last.end <= first.begin {
            return Vec::new();
        }
        let (name, category) = match first.task {
            Some(task) => (names.task(task), "task"),
            None => (work_name(first.work), category(first.work)),
        };
        let mut events = vec![begin(first.begin, name, category)];
        if first.task.is_some() {
            nest(&slices).iter().for_each(|nested| executed(nested, &mut events));
        }
        events.push(end(last.end));
        events
    })
}

/// What a VM's CPU was from the host's side.
pub(super) fn vcpu<'a>(cpu: &'a CpuSide, host: &'a OnHost<'a>) -> impl Iterator<Item = Event> + 'a {
    cpu.segments.iter().flat_map(move |segment| {
        let slice = |name: &str, category| begin(segment.begin, name.to_owned(), category);
        let first = match segment.state {
            VcpuState::Ran => slice("ran", "running"),
            VcpuState::Stolen(by) => {
                let mut stolen = slice(&format!("stolen {}", stolen_by(host, by)), "stolen");
                stolen.facts.extend(by.map(|by| ("thread", Fact::Text(thread(host, by)))));
                stolen
            }
            VcpuState::AsleepInVmm => slice("asleep in the VMM", "vmm"),
            VcpuState::Halted => slice("halted", "idle"),
            VcpuState::Asleep => slice("asleep", "asleep"),
            VcpuState::Unknown => slice("unknown", "unknown"),
        };
        [first, end(segment.end)]
    })
}

/// A disk's busy times; in them the instants at which a request's end woke a task.
pub(super) fn disk<'a>(
    disk: &'a Disk,
    mut wakes: &'a [End],
    names: Names<'a>,
) -> impl Iterator<Item = Event> + 'a {
    let busy = disk.busy.iter().filter(|(begin, end)| begin < end);
    busy.flat_map(move |&(from, to)| {
        let mut events = vec![begin(from, "busy".to_owned(), "disk")];
        events.extend(take(&mut wakes, |at| at <= to).iter().map(|wake| wakes_up(wake, names)));
        events.push(end(to));
        events
    })
}

/// How many requests a disk has: from when they are queued to when they are done.
pub(super) fn depth(timeline: &Timeline, disk: usize) -> impl Iterator<Item = Event> + use<> {
    let requests = timeline.tasks.iter().flat_map(|task| &task.requests);
    let of_disk = requests.filter(|request| request.disk as usize == disk);
    let mut changes: Vec<(HostNs, i64)> = of_disk.flat_map(changes).collect();
    changes.sort_unstable();
    let mut depth = 0;
    let at_once =
        changes.chunk_by(|one, next| one.0 == next.0).map(<[_]>::to_vec).collect::<Vec<_>>();
    at_once.into_iter().map(move |changes| {
        depth += changes.iter().map(|(_, by)| by).sum::<i64>();
        count(changes[0].0, depth)
    })
}

fn changes(request: &Request) -> impl Iterator<Item = (HostNs, i64)> + use<> {
    std::iter::once((request.queued, 1)).chain(request.done.map(|done| (done, -1)))
}

/// A task's states; in them what it executes and whom it wakes.
pub(super) fn task<'a>(
    id: TaskId,
    arrows: OfTask<'a>,
    names: Names<'a>,
    classifier: &'a Classifier,
) -> impl Iterator<Item = Event> + 'a {
    let OfTask { mut wakes, mut woken } = arrows;
    let task = &names.timeline.tasks[id.index()];
    let segments = &task.segments;
    let last_end = segments.end();
    segments.iter().filter(|segment| segment.begin < segment.end).flat_map(move |segment| {
        let mut first = state(task, &segment, names, classifier);
        let arrived = take(&mut woken, |at| at <= segment.begin);
        if !arrived.is_empty() {
            first.kind = Kind::BeginWoken;
            first.flows_in.extend(arrived.iter().map(|end| end.flow));
        }
        let mut events = vec![first];
        let mut inner = Vec::new();
        if let State::Running { cpu } = segment.state {
            let works = names.timeline.executed(cpu, segment.begin..segment.end);
            let works: Vec<Slice> = works.filter(|slice| slice.task == Some(id)).collect();
            nest(&works).iter().for_each(|nested| executed(nested, &mut inner));
        }
        if let State::Asleep(sleep) = &segment.state {
            inner.extend(
                sleep.lock.iter().map(|wait| begin(segment.begin, names.lock(wait), "lock")),
            );
            inner.extend(sleep.lock.iter().map(|_| end(segment.end)));
        }
        let is_last = segment.end == last_end;
        let wakes = take(&mut wakes, |at| at < segment.end || is_last);
        let instants = wakes.iter().map(|wake| wakes_up(wake, names)).collect();
        events.extend(in_time_order(inner, instants));
        events.push(end(segment.end));
        events
    })
}

/// Instants between events; after those of the same time.
fn in_time_order(events: Vec<Event>, instants: Vec<Event>) -> Vec<Event> {
    let mut all = Vec::with_capacity(events.len() + instants.len());
    let mut instants = instants.into_iter().peekable();
    for event in events {
        while let Some(instant) = instants.next_if(|instant| instant.time < event.time) {
            all.push(instant);
        }
        all.push(event);
    }
    all.extend(instants);
    all
}

/// The first ends that are `wanted`, off `ends`.
fn take<'a>(ends: &mut &'a [End], wanted: impl Fn(HostNs) -> bool) -> &'a [End] {
    let (taken, rest) = ends.split_at(ends.partition_point(|end| wanted(end.at)));
    *ends = rest;
    taken
}

fn executed(nested: &Nested, events: &mut Vec<Event>) {
    events.push(begin(nested.begin, work_name(nested.work), category(nested.work)));
    for inner in &nested.inner {
        events.push(begin(inner.begin, work_name(inner.work), category(inner.work)));
        events.push(end(inner.end));
    }
    events.push(end(nested.end));
}

fn category(work: Work) -> &'static str {
    match work {
        Work::Idle => "idle",
        Work::User | Work::KernelTask => "task",
        Work::Syscall(_) => "system call",
        Work::Vcpu => "vcpu",
        Work::Fault { .. } => "page fault",
        Work::Interrupt(_) => "interrupt",
        Work::Unknown => "unknown",
    }
}

fn wakes_up(wake: &End, names: Names<'_>) -> Event {
    let mut instant = begin(wake.at, format!("wakes {}", names.task(wake.other)), "wakes");
    instant.kind = Kind::Instant;
    instant.flows_out.push(wake.flow);
    instant
}

fn state(task: &Task, segment: &Segment, names: Names<'_>, classifier: &Classifier) -> Event {
    let slice = |name: &str, category| begin(segment.begin, name.to_owned(), category);
    match &segment.state {
        State::Running { cpu } => {
            let mut slice = slice("running", "running");
            slice.facts.push(("cpu", Fact::Number((*cpu).into())));
            slice
        }
        State::Runnable { preempted } => {
            let mut slice = slice("waiting for CPU", "waiting");
            let why = if *preempted { "preempted" } else { "woken or made" };
            slice.facts.push(("because", Fact::Text(why.to_owned())));
            slice
        }
        State::Asleep(sleep) => {
            let wait = classifier.wait(names.timeline, task, segment);
            let (cause, at) =
                wait.map_or(("unknown", ""), |wait| (wait.cause.name(), wait.function));
            let group = wait.map_or("asleep", |wait| wait.cause.group().name());
            let mut event = slice(&format!("asleep: {cause}"), group);
            let mut fact = |name, text: Option<String>| {
                event.facts.extend(text.map(|text| (name, Fact::Text(text))));
            };
            fact("system call", sleep.syscall.map(syscall_label));
            fact("evidence", (!at.is_empty()).then(|| short(at)));
            fact("in", sleep.stack.and_then(|stack| names.stack(stack)));
            fact("woken by", sleep.woken_by.map(|waker| names.woken_by(waker.by)));
            if let Some(wait) = &sleep.lock {
                fact("lock", Some(format!("{} at {:#x}", lock_name(wait.kind), wait.lock)));
                fact("holder", wait.owner.map(|(owner, _)| names.task(owner)));
                fact("waits in", wait.stack.and_then(|stack| names.stack(stack)));
            }
            event
        }
        State::Stopped { .. } => slice("stopped", "stopped"),
        State::Unknown => slice("unknown", "unknown"),
    }
}
