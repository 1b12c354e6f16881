//! What happens on one track, in time order.

use std::collections::VecDeque;
use std::iter::Peekable;
use std::slice::Iter;

use analysis::vcpu_timeline::{CodeLocation, Occupant, Segment, Span, VcpuTimeline};
use model::{HostNs, TimeAccount, TimelineState};
use table::clean;

use super::event::{Event, Fact, Kind, begin, end};
use super::flows::{End, Ends};
use crate::chart::{Named, guest_process, merged};

/// One track: its events are made as they are requested.
#[derive(Debug)]
pub(super) struct Track<'a> {
    pub(super) uuid: u64,
    lane: Lane<'a>,
    ends: Ends,
    ready: VecDeque<Event>,
}

/// What a track shows.
#[derive(Debug)]
pub(super) enum Lane<'a> {
    /// What ran on a pCPU.
    Cpu(Iter<'a, Span>),
    /// A vCPU's states.
    State(Peekable<Iter<'a, Segment>>),
    /// A guest's processes and functions on a vCPU.
    Guest { segments: Iter<'a, Segment>, open: Option<&'a CodeLocation>, to: HostNs },
}

impl<'a> Lane<'a> {
    pub(super) fn guest(timeline: &'a VcpuTimeline) -> Self {
        Self::Guest { segments: timeline.segments.iter(), open: None, to: timeline.to }
    }
}

impl<'a> Track<'a> {
    pub(super) fn new(uuid: u64, lane: Lane<'a>, ends: Ends) -> Self {
        Self { uuid, lane, ends, ready: VecDeque::new() }
    }

    /// When the next event is; `None` at the track's end.
    pub(super) fn peek(&mut self, names: &Named<'a>) -> Option<(HostNs, Kind)> {
        while self.ready.is_empty() && self.step(names) {}
        self.ready.front().map(|event| (event.time, event.kind))
    }

    /// The event that `peek` saw.
    pub(super) fn pop(&mut self) -> Option<Event> {
        self.ready.pop_front()
    }

    /// Makes the events of the next piece; false when there is none.
    fn step(&mut self, names: &Named<'a>) -> bool {
        match &mut self.lane {
            Lane::Cpu(spans) => {
                let Some(span) = spans.next() else { return false };
                let slice = cpu_slice(span, names);
                self.slice(slice, span.to, names);
            }
            Lane::State(segments) => {
                // Function changes of the guest are the other track's.
                let looks = |s: &Segment| (s.state, s.cpu, s.place.filter(|_| is_exit(s.state)));
                let Some(segment) = merged(segments, looks) else { return false };
                let slice = state_slice(&segment, names);
                self.slice(slice, segment.to, names);
            }
            Lane::Guest { segments, open, to } => {
                let Some(segment) = segments.next() else {
                    let was_open = open.take();
                    close(was_open, *to, &mut self.ready);
                    return was_open.is_some();
                };
                guest_events(segment, open, names, &mut self.ready);
            }
        }
        true
    }

    /// A slice with the arrows that begin and end on it.
    fn slice(&mut self, mut begin: Event, to: HostNs, names: &Named<'_>) {
        let from = begin.time;
        let mut instants = Vec::new();
        while let Some(departure) = before(&mut self.ends.departures, to) {
            begin.flows_out.push(departure.flow);
        }
        while let Some(arrival) = before(&mut self.ends.arrivals, to) {
            // A victim is no thief: an arrow to it ends beside its own.
            if arrival.at <= from && begin.kind == Kind::Begin {
                begin.flows_in.push(arrival.flow);
            } else {
                instants.push(arrival_instant(arrival, from, names));
            }
        }
        self.ready.push_back(begin);
        self.ready.extend(instants);
        self.ready.push_back(end(to));
    }
}

/// Takes the first end when it lies before `to`.
fn before(ends: &mut VecDeque<End>, to: HostNs) -> Option<End> {
    if ends.front()?.at < to { ends.pop_front() } else { None }
}

fn cpu_slice(span: &Span, names: &Named<'_>) -> Event {
    let category = match span.who {
        Occupant::Idle => "idle",
        Occupant::Vcpu(_) => "vcpu",
        Occupant::Thread(..) => "process",
        Occupant::Unknown => "unknown",
    };
    let mut begin = begin(span.from, names.occupant(span.who, span.from), category);
    if let Occupant::Thread(_, tid) = span.who {
        begin.facts.push(("thread id", Fact::Number(tid.0.into())));
    }
    begin
}

fn is_exit(state: TimelineState) -> bool {
    matches!(state, TimelineState::StealVmm { .. })
}

fn state_slice(segment: &Segment, names: &Named<'_>) -> Event {
    let chart = &names.chart;
    let category = segment.state.account().name();
    let mut slice = begin(segment.from, chart.state(segment.state), category);
    if segment.state == TimelineState::StealOutside {
        slice.kind = Kind::BeginVictim;
    }
    slice.facts.extend(segment.cpu.map(|cpu| ("cpu", Fact::Number(cpu.0.into()))));
    if let Some(reason) = segment.state.exit_reason() {
        slice.facts.push(("exit reason", Fact::Number(reason.into())));
    }
    if let (TimelineState::StealVmm { .. }, Some(place)) = (segment.state, segment.place) {
        let place = chart.axis.place(place);
        let text = format!("{}: {}", guest_process(place), clean(&place.function));
        slice.facts.push(("guest was in", Fact::Text(text)));
    }
    slice
}

fn arrival_instant(arrival: End, from: HostNs, names: &Named<'_>) -> Event {
    let victim = names.occupant(Occupant::Vcpu(arrival.victim), arrival.at);
    let mut instant = begin(arrival.at.max(from), format!("preempts {victim}"), "preempts");
    instant.kind = Kind::Instant;
    instant.flows_in.push(arrival.flow);
    instant
}

fn guest_events<'a>(
    segment: &Segment,
    open: &mut Option<&'a CodeLocation>,
    names: &Named<'a>,
    ready: &mut VecDeque<Event>,
) {
    let axis = names.chart.axis;
    let in_guest = |state: TimelineState| state.account() == TimeAccount::Guest || is_exit(state);
    let place = segment.place.filter(|_| in_guest(segment.state)).map(|id| axis.place(id));
    let at = segment.from;
    change(*open, place, at, ready);
    *open = place;
    if place.is_some() && is_exit(segment.state) {
        let exit = names.chart.state(segment.state).replacen("vmm", "exit", 1);
        ready.push_back(Event { kind: Kind::Instant, ..begin(at, exit, "vm exit") });
    }
}

/// Closes slices that end and opens new ones: a process, and its function in it.
fn change(
    was: Option<&CodeLocation>,
    is: Option<&CodeLocation>,
    at: HostNs,
    ready: &mut VecDeque<Event>,
) {
    let function = |place: &CodeLocation| clean(&place.function).into_owned();
    let open_function = |place: &CodeLocation, ready: &mut VecDeque<Event>| {
        let kernel = if place.kernel { "guest kernel" } else { "guest user" };
        let mut slice = begin(at, function(place), kernel);
        let module = place.module.as_deref().map(|module| Fact::Text(clean(module).into_owned()));
        slice.facts.extend(module.map(|module| ("module", module)));
        ready.push_back(slice);
    };
    if let (Some(was), Some(is)) = (was, is)
        && (&was.process, was.pid) == (&is.process, is.pid)
    {
        if (&was.function, was.kernel) != (&is.function, is.kernel) {
            ready.push_back(end(at));
            open_function(is, ready);
        }
        return;
    }
    close(was, at, ready);
    if let Some(place) = is {
        ready.push_back(begin(at, guest_process(place), "guest process"));
        open_function(place, ready);
    }
}

fn close(open: Option<&CodeLocation>, at: HostNs, ready: &mut VecDeque<Event>) {
    if open.is_some() {
        ready.extend([end(at), end(at)]);
    }
}
