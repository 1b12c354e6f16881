//! Events as packets of one sequence, with their names interned.

use std::collections::HashMap;
use std::io::{self, Write};

use model::HostNs;
use prost::Message;

use super::event::{Event, Fact, Kind};
use super::proto::{
    CLOCK_BOOTTIME, CLOCK_MONOTONIC, CLOCK_REALTIME, Clock, ClockSnapshot, DebugAnnotation,
    Interned, InternedData, SEQ_INCREMENTAL_STATE_CLEARED, SEQ_NEEDS_INCREMENTAL_STATE,
    TYPE_COUNTER, TYPE_INSTANT, TYPE_SLICE_BEGIN, TYPE_SLICE_END, Trace, TracePacket,
    TracePacketDefaults, TrackDescriptor, TrackEvent,
};

/// Which part of a file its packets are. Parts number their packets' names, tracks and arrows apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// The only one, or the one that says what the clock is.
    First,
    /// What was seen in the same time by other means.
    Beside,
}

impl Part {
    fn sequence(self) -> u32 {
        match self {
            Self::First => 1,
            Self::Beside => 2,
        }
    }

    /// Tracks and arrows are numbered from here on.
    pub(crate) fn first_id(self) -> u64 {
        match self {
            Self::First => 1,
            Self::Beside => 1 << 32 | 1,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Writer<W> {
    out: W,
    part: Part,
    buffer: Vec<u8>,
    names: Names,
    categories: Names,
    fact_names: Names,
    fact_texts: Names,
}

/// Ids of names that were written.
#[derive(Debug, Default)]
struct Names(HashMap<String, u64>);

impl Names {
    /// The id of `name`; a new one goes to `new`, for the packet to bring along.
    fn id(&mut self, name: &str, new: &mut Vec<Interned>) -> u64 {
        if let Some(id) = self.0.get(name) {
            return *id;
        }
        let id = self.0.len() as u64 + 1;
        self.0.insert(name.to_owned(), id);
        new.push(Interned { iid: Some(id), name: Some(name.to_owned()) });
        id
    }
}

impl<W: Write> Writer<W> {
    pub(crate) fn new(out: W, part: Part) -> Self {
        let [names, categories, fact_names, fact_texts] = std::array::from_fn(|_| Names::default());
        Self { out, part, buffer: Vec::new(), names, categories, fact_names, fact_texts }
    }

    /// An instant on the host's clock and, if known, in the world's time.
    pub(crate) fn begin(&mut self, instant: HostNs, unix_ns: Option<u64>) -> io::Result<()> {
        let clock = |id, time| Clock { clock_id: Some(id), timestamp: Some(time) };
        let realtime = unix_ns.map(|time| clock(CLOCK_REALTIME, time));
        let own = [clock(CLOCK_MONOTONIC, instant.0), clock(CLOCK_BOOTTIME, instant.0)];
        let clocks = own.into_iter().chain(realtime).collect();
        let primary_trace_clock = Some(CLOCK_MONOTONIC);
        self.first_packet(Some(ClockSnapshot { clocks, primary_trace_clock }))
    }

    /// A machine whose events are on the host's clock. Scheduler events have `CLOCK_BOOTTIME` by definition: here it is
    /// the same, as if the host never slept.
    pub(crate) fn machine(&mut self, machine: u32, instant: HostNs) -> io::Result<()> {
        let clock = |id| Clock { clock_id: Some(id), timestamp: Some(instant.0) };
        let clocks = vec![clock(CLOCK_MONOTONIC), clock(CLOCK_BOOTTIME)];
        let snapshot = ClockSnapshot { clocks, primary_trace_clock: Some(CLOCK_MONOTONIC) };
        self.of_machine(
            machine,
            TracePacket { clock_snapshot: Some(snapshot), ..TracePacket::default() },
        )
    }

    /// A packet of a machine; 0: the host.
    pub(crate) fn of_machine(&mut self, machine: u32, packet: TracePacket) -> io::Result<()> {
        self.packet(TracePacket { machine_id: (machine != 0).then_some(machine), ..packet })
    }

    /// Begins beside a part that said what the clock is.
    pub(crate) fn begin_beside(&mut self) -> io::Result<()> {
        self.first_packet(None)
    }

    fn first_packet(&mut self, clock_snapshot: Option<ClockSnapshot>) -> io::Result<()> {
        self.packet(TracePacket {
            clock_snapshot,
            sequence_flags: Some(SEQ_INCREMENTAL_STATE_CLEARED),
            trace_packet_defaults: Some(TracePacketDefaults {
                timestamp_clock_id: Some(CLOCK_MONOTONIC),
            }),
            first_packet_on_sequence: Some(true),
            ..TracePacket::default()
        })
    }

    pub(crate) fn track(&mut self, descriptor: TrackDescriptor) -> io::Result<()> {
        self.packet(TracePacket { track_descriptor: Some(descriptor), ..TracePacket::default() })
    }

    pub(crate) fn event(&mut self, track: u64, event: Event) -> io::Result<()> {
        let mut new = InternedData::default();
        let timestamp = Some(event.time.0);
        let track_event = Some(self.track_event(track, event, &mut new));
        self.packet(TracePacket {
            timestamp,
            track_event,
            interned_data: (new != InternedData::default()).then_some(new),
            sequence_flags: Some(SEQ_NEEDS_INCREMENTAL_STATE),
            ..TracePacket::default()
        })
    }

    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn track_event(&mut self, track: u64, event: Event, new: &mut InternedData) -> TrackEvent {
        let r#type = match event.kind {
            Kind::End => TYPE_SLICE_END,
            Kind::Begin | Kind::BeginVictim | Kind::BeginWoken => TYPE_SLICE_BEGIN,
            Kind::Instant => TYPE_INSTANT,
            Kind::Count(_) => TYPE_COUNTER,
        };
        let (track_uuid, r#type) = (Some(track), Some(r#type));
        if event.kind == Kind::End {
            return TrackEvent { track_uuid, r#type, ..TrackEvent::default() };
        }
        if let Kind::Count(value) = event.kind {
            let counter_value = Some(value);
            return TrackEvent { track_uuid, r#type, counter_value, ..TrackEvent::default() };
        }
        let facts = event.facts.into_iter();
        TrackEvent {
            track_uuid,
            r#type,
            name_iid: Some(self.names.id(&event.name, &mut new.event_names)),
            category_iids: vec![self.categories.id(event.category, &mut new.event_categories)],
            debug_annotations: facts.map(|(name, fact)| self.fact(name, fact, new)).collect(),
            flow_ids: event.flows_out,
            terminating_flow_ids: event.flows_in,
            counter_value: None,
        }
    }

    fn fact(&mut self, name: &str, fact: Fact, new: &mut InternedData) -> DebugAnnotation {
        let name_iid = Some(self.fact_names.id(name, &mut new.debug_annotation_names));
        let texts = &mut new.debug_annotation_string_values;
        let (uint_value, string_value_iid) = match fact {
            Fact::Number(number) => (Some(number), None),
            Fact::Text(text) => (None, Some(self.fact_texts.id(&text, texts))),
        };
        DebugAnnotation { name_iid, uint_value, string_value_iid }
    }

    fn packet(&mut self, packet: TracePacket) -> io::Result<()> {
        let trusted_packet_sequence_id = Some(self.part.sequence());
        let packet = TracePacket { trusted_packet_sequence_id, ..packet };
        self.buffer.clear();
        Trace { packet: vec![packet] }
            .encode(&mut self.buffer)
            .expect("a vector grows as far as needed");
        self.out.write_all(&self.buffer)
    }
}
