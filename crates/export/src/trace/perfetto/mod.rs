//! A trace for ui.perfetto.dev and `trace_processor`.
//!
//! ```text
//!  host                CPUs        cpu 0        make (12)        in it: openat, page fault, timer interrupt
//!                      Disks       vda          busy; instants: requests done     vda requests (a counter)
//!                      make (12)   make (12)    running, waiting for CPU, asleep: wait4  --> woken by cc1
//!  VM web              CPUs        cpu 0        as the guest sees it
//!                                  vcpu 0       from the host's side: ran, stolen by VM db, asleep in the VMM, halted
//! ```
//!
//! Beside these tracks, `sched` has what the kernel's own events would say, for the tables and views that readers know.
//!
//! One group per machine, all on the host's clock. Arrows lead from where a task (or a disk) woke a task to where the
//! woken one waits for its CPU; at most `MAX_ARROWS`, those of the longest sleeps first.
//!
//! A recording that was taken in the same time may stand below (`write_with`): its groups end in `, sampled`.

mod arrows;
mod describe;
mod lanes;
mod nest;
mod sched;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::io::{self, Write};
use std::iter::Peekable;

use trace_analysis::findings::OnHost;
use trace_analysis::timeline::{TaskId, Timeline};
use trace_analysis::waits::Classifier;

use self::arrows::Arrows;
use super::Run;
use super::host_side::on_host;
use super::names::{Names, short};
use crate::perfetto::event::Event;
use crate::perfetto::proto::{CounterDescriptor, TrackDescriptor};
use crate::perfetto::writer::{Part, Writer};
use crate::perfetto::{group, row, write_beside};
use crate::{About, Chart};

/// Arrows of a trace at most.
pub const MAX_ARROWS: usize = 100_000;

/// A track's events in time order.
type Events<'a> = Peekable<Box<dyn Iterator<Item = Event> + 'a>>;

/// Writes `run` as a trace.
///
/// # Errors
/// Only the writer's.
pub fn write(run: Run<'_>, out: impl Write) -> io::Result<()> {
    let arrows = Arrows::new(run.timelines, MAX_ARROWS);
    let machines = run.timelines.iter().map(|timeline| timeline.machine);
    let classifiers: Vec<Classifier> =
        machines.map(|machine| Classifier::new(run.tables, machine)).collect();
    let on_host: Vec<Option<OnHost<'_>>> =
        run.timelines.iter().map(|timeline| on_host(run, timeline)).collect();
    let mut writer = Writer::new(out, Part::First);
    let first = run.timelines.iter().map(|timeline| timeline.begin).min().unwrap_or_default();
    let (instant, unix) = run.instant.map_or((first, None), |(at, unix)| (at, Some(unix)));
    writer.begin(instant, unix)?;
    let mut tracks = Tracks { list: Vec::new(), next_uuid: Part::First.first_id() };
    let parts = run.timelines.iter().zip(&classifiers).zip(&on_host);
    for (number, ((timeline, classifier), on_host)) in parts.enumerate() {
        let names = Names { tables: run.tables, timeline };
        let arrows = arrows.of(number);
        let machine = Machine { names, arrows, classifier, on_host: on_host.as_ref() };
        tracks.machine(machine, rank(number), &mut writer)?;
        sched::write(names, instant, &mut writer)?;
    }
    merge(tracks.list, &mut writer)?;
    writer.finish()
}

/// Writes `run` as a trace, and `sampled` below it: a recording of the same host, on the same clock. Its ids begin
/// where no trace's come to, so both parts are read as one.
///
/// # Errors
/// Only the writer's.
pub fn write_with(
    run: Run<'_>,
    sampled: Chart<'_>,
    about: About<'_>,
    mut out: impl Write,
) -> io::Result<()> {
    write(run, &mut out)?;
    write_beside(sampled, about, run.timelines.len(), out)
}

/// What the tracks of one machine are made from.
#[derive(Clone, Copy)]
struct Machine<'a> {
    names: Names<'a>,
    arrows: arrows::OfMachine<'a>,
    classifier: &'a Classifier,
    on_host: Option<&'a OnHost<'a>>,
}

/// The tracks so far.
struct Tracks<'a> {
    list: Vec<(u64, Events<'a>)>,
    next_uuid: u64,
}

impl<'a> Tracks<'a> {
    fn machine<W: Write>(
        &mut self,
        machine: Machine<'a>,
        at: i32,
        writer: &mut Writer<W>,
    ) -> io::Result<()> {
        let Machine { names, arrows, classifier, on_host } = machine;
        let described = group(describe::name(names), describe::machine(names, arrows.left_out));
        let top =
            self.describe(TrackDescriptor { sibling_order_rank: Some(at), ..described }, writer)?;
        let timeline = names.timeline;
        let cpus = self.describe(inner_group(top, "CPUs".to_owned(), 0), writer)?;
        for (n, cpu) in timeline.cpus.iter().enumerate() {
            let name = format!("cpu {}", cpu.number);
            self.add(row(cpus, name, rank(2 * n)), lanes::cpu(cpu, names), writer)?;
        }
        let sides =
            on_host.iter().flat_map(|host| host.side.cpus.iter().map(move |cpu| (host, cpu)));
        for (n, (host, cpu)) in sides.enumerate() {
            let name = format!("vcpu {}", cpu.number);
            self.add(row(cpus, name, rank(2 * n + 1)), lanes::vcpu(cpu, host), writer)?;
        }
        if !timeline.disks.is_empty() {
            let disks = self.describe(inner_group(top, "Disks".to_owned(), 1), writer)?;
            for (n, disk) in timeline.disks.iter().enumerate() {
                let name = short(&disk.name);
                let arrows = arrows.of_disk(n);
                let lane = lanes::disk(disk, arrows, names);
                self.add(row(disks, name.clone(), rank(2 * n)), lane, writer)?;
                let counter = TrackDescriptor {
                    counter: Some(CounterDescriptor { unit_name: Some("requests".to_owned()) }),
                    ..row(disks, format!("{name} queued and in flight"), rank(2 * n + 1))
                };
                self.add(counter, lanes::depth(timeline, n), writer)?;
            }
        }
        for (n, (pid, threads)) in processes(timeline).into_iter().enumerate() {
            let name = format!("{} ({pid})", names.task_name(threads[0]));
            let process = self.describe(inner_group(top, name, rank(n + 2)), writer)?;
            for (n, &id) in threads.iter().enumerate() {
                let lane = lanes::task(id, arrows.of_task(id), names, classifier);
                self.add(row(process, names.task(id), rank(n)), lane, writer)?;
            }
        }
        Ok(())
    }

    fn add<W: Write>(
        &mut self,
        descriptor: TrackDescriptor,
        events: impl Iterator<Item = Event> + 'a,
        writer: &mut Writer<W>,
    ) -> io::Result<()> {
        let uuid = self.describe(descriptor, writer)?;
        let events: Box<dyn Iterator<Item = Event> + 'a> = Box::new(events);
        self.list.push((uuid, events.peekable()));
        Ok(())
    }

    fn describe<W: Write>(
        &mut self,
        descriptor: TrackDescriptor,
        writer: &mut Writer<W>,
    ) -> io::Result<u64> {
        let uuid = self.next_uuid;
        self.next_uuid += 1;
        writer.track(TrackDescriptor { uuid: Some(uuid), ..descriptor })?;
        Ok(uuid)
    }
}

fn inner_group(parent: u64, name: String, at: i32) -> TrackDescriptor {
    TrackDescriptor {
        child_ordering: group(String::new(), String::new()).child_ordering,
        ..row(parent, name, at)
    }
}

fn rank(n: usize) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

/// Each process with its threads, the first one first; in the order in which they appeared. A process id that was
/// used again is another process.
fn processes(timeline: &Timeline) -> Vec<(u32, Vec<TaskId>)> {
    let mut list: Vec<(u32, Vec<TaskId>)> = Vec::new();
    let mut current: BTreeMap<u32, usize> = BTreeMap::new();
    for (id, task) in (0..).map(TaskId).zip(&timeline.tasks) {
        let pid = task.pid.0;
        let leads = task.tid.0 == pid;
        match current.get(&pid) {
            Some(&row) if !leads => list[row].1.push(id),
            // The threads of one that was there before may come in any order.
            Some(&row) if task.before && !list[row].1.iter().any(|&id| is_leader(timeline, id)) => {
                list[row].1.insert(0, id);
            }
            _ => {
                current.insert(pid, list.len());
                list.push((pid, vec![id]));
            }
        }
    }
    list
}

fn is_leader(timeline: &Timeline, id: TaskId) -> bool {
    let task = &timeline.tasks[id.index()];
    task.tid.0 == task.pid.0
}

fn merge<W: Write>(mut tracks: Vec<(u64, Events<'_>)>, writer: &mut Writer<W>) -> io::Result<()> {
    let order = |events: &mut Events<'_>, index: usize| {
        events.peek().map(|event| Reverse((event.time, event.kind, index)))
    };
    let mut next = BinaryHeap::new();
    for (index, (_, events)) in tracks.iter_mut().enumerate() {
        next.extend(order(events, index));
    }
    while let Some(Reverse((_, _, index))) = next.pop() {
        let (uuid, events) = &mut tracks[index];
        if let Some(event) = events.next() {
            writer.event(*uuid, event)?;
        }
        next.extend(order(events, index));
    }
    Ok(())
}
