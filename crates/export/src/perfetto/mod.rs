//! Perfetto's trace format: what ui.perfetto.dev and `trace_processor` read.
//!
//! ```text
//!  Host CPUs          cpu 0           who had it: web vcpu0, postgres (300), [idle]
//!                     cpu 1
//!  vm web (1000)      vcpu0           its states: guest user, vmm: npf, preempted --flow--> the thief
//!                     vcpu0 guest     the guest's process, in it its function; instants: VM exits
//! ```
//!
//! Events are merged from all tracks in time order and written as they come: nothing but the arrows is
//! collected first. At equal times ends come first, then victims, then everything else, so that a
//! reader has seen an arrow's begin before its end.

pub mod proto;

mod flows;
mod tracks;

pub(crate) mod event;
pub(crate) mod writer;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, Write};

use table::clean;

use self::flows::{Flows, Key};
use self::proto::{ORDERING_EXPLICIT, SIBLING_MERGE_NONE, TrackDescriptor};
use self::tracks::{Lane, Track};
use self::writer::{Part, Writer};
use crate::About;
use crate::chart::{Chart, Group, Named};

/// Writes `chart` as a trace.
///
/// # Errors
/// Only the writer's.
pub fn write(chart: Chart<'_>, about: About<'_>, out: impl Write) -> io::Result<()> {
    let mut writer = Writer::new(out, Part::First);
    writer.begin(chart.header.start, Some(chart.header.start_unix_ns))?;
    write_tracks(chart, about, Groups::Alone, writer)
}

/// Writes `chart` behind a part of the file that shows something else of the same time, in `n_groups` groups.
///
/// # Errors
/// Only the writer's.
pub(crate) fn write_beside(
    chart: Chart<'_>,
    about: About<'_>,
    n_groups: usize,
    out: impl Write,
) -> io::Result<()> {
    let mut writer = Writer::new(out, Part::Beside);
    writer.begin_beside()?;
    write_tracks(chart, about, Groups::Below(n_groups), writer)
}

fn write_tracks<W: Write>(
    chart: Chart<'_>,
    about: About<'_>,
    place: Groups,
    mut writer: Writer<W>,
) -> io::Result<()> {
    let names = Named::new(chart);
    let groups = chart.groups();
    let first_id = place.part().first_id();
    let flows = Flows::new(chart, &groups, first_id);
    let mut tracks = Tracks { flows, list: Vec::new(), next_uuid: first_id, place };
    tracks.add_cpus(chart, about, &mut writer)?;
    for (number, group) in (1..).zip(&groups) {
        tracks.add_vm(chart, group, number, &mut writer)?;
    }
    merge(tracks.list, &names, &mut writer)?;
    writer.finish()
}

/// Where a chart's groups of tracks are in the file.
#[derive(Debug, Clone, Copy)]
enum Groups {
    /// Nothing else is there.
    Alone,
    /// Below so many others: their names say that they come from samples.
    Below(usize),
}

impl Groups {
    fn part(self) -> Part {
        match self {
            Self::Alone => Part::First,
            Self::Below(_) => Part::Beside,
        }
    }

    fn group(self, number: usize, name: String, description: String) -> TrackDescriptor {
        match self {
            Self::Alone => group(name, description),
            Self::Below(others) => TrackDescriptor {
                sibling_order_rank: Some(i32::try_from(others + number).unwrap_or(i32::MAX)),
                ..group(format!("{name}, sampled"), description)
            },
        }
    }
}

/// The tracks so far.
struct Tracks<'a> {
    flows: Flows,
    list: Vec<Track<'a>>,
    next_uuid: u64,
    place: Groups,
}

impl<'a> Tracks<'a> {
    fn add_cpus<W: Write>(
        &mut self,
        chart: Chart<'a>,
        about: About<'_>,
        writer: &mut Writer<W>,
    ) -> io::Result<()> {
        let group = self.place.group(0, "Host CPUs".to_owned(), host(chart, about));
        let group = self.describe(group, writer)?;
        for cpu in &chart.axis.cpus {
            let uuid =
                self.describe(row(group, format!("cpu {}", cpu.cpu), self.rank()), writer)?;
            let key = Key::Cpu(cpu.cpu);
            self.list.push(Track::new(uuid, Lane::Cpu(cpu.spans.iter()), self.flows.take(key)));
        }
        Ok(())
    }

    fn add_vm<W: Write>(
        &mut self,
        chart: Chart<'a>,
        (vm, timelines): &Group<'a>,
        number: usize,
        writer: &mut Writer<W>,
    ) -> io::Result<()> {
        let pid = chart.tables.vms[vm.index()].pid;
        let name = format!("{} ({pid})", chart.vm(*vm));
        let group = self.describe(self.place.group(number, name, String::new()), writer)?;
        for timeline in timelines {
            let name = chart.vcpu(timeline.vcpu);
            let uuid = self.describe(row(group, name.clone(), self.rank()), writer)?;
            let flows = self.flows.take(Key::Vcpu(timeline.vcpu));
            let lane = Lane::State(timeline.segments.iter().peekable());
            self.list.push(Track::new(uuid, lane, flows));
            let name = format!("{name} guest");
            let uuid = self.describe(row(group, name, self.rank()), writer)?;
            self.list.push(Track::new(uuid, Lane::guest(timeline), flows::Ends::default()));
        }
        Ok(())
    }

    fn rank(&self) -> i32 {
        i32::try_from(self.list.len()).unwrap_or(i32::MAX)
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

pub(crate) fn group(name: String, description: String) -> TrackDescriptor {
    TrackDescriptor {
        name: Some(name),
        description: (!description.is_empty()).then_some(description),
        child_ordering: Some(ORDERING_EXPLICIT),
        ..TrackDescriptor::default()
    }
}

pub(crate) fn row(parent: u64, name: String, rank: i32) -> TrackDescriptor {
    TrackDescriptor {
        parent_uuid: Some(parent),
        name: Some(name),
        sibling_order_rank: Some(rank),
        sibling_merge_behavior: Some(SIBLING_MERGE_NONE),
        ..TrackDescriptor::default()
    }
}

/// What the recording is, and what was missed.
fn host(chart: Chart<'_>, about: About<'_>) -> String {
    let first = format!("recorded by vmscope on {}", clean(&chart.header.hostname));
    let notes = about.notes.iter();
    let notes = notes.map(|note| format!("{}: {}", clean(&note.subject), clean(&note.text)));
    std::iter::once(first).chain(notes).collect::<Vec<_>>().join("\n")
}

fn merge<'a, W: Write>(
    mut tracks: Vec<Track<'a>>,
    names: &Named<'a>,
    writer: &mut Writer<W>,
) -> io::Result<()> {
    let mut next = BinaryHeap::new();
    for (index, track) in tracks.iter_mut().enumerate() {
        next.extend(track.peek(names).map(|order| Reverse((order, index))));
    }
    while let Some(Reverse((_, index))) = next.pop() {
        let track = &mut tracks[index];
        if let Some(event) = track.pop() {
            writer.event(track.uuid, event)?;
        }
        next.extend(track.peek(names).map(|order| Reverse((order, index))));
    }
    Ok(())
}
