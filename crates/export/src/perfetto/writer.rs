//! Events as packets of one sequence, with their names interned.

use std::collections::HashMap;
use std::io::{self, Write};

use model::Header;
use prost::Message;

use super::proto::{
    CLOCK_MONOTONIC, CLOCK_REALTIME, Clock, ClockSnapshot, DebugAnnotation, Interned, InternedData,
    SEQ_INCREMENTAL_STATE_CLEARED, SEQ_NEEDS_INCREMENTAL_STATE, TYPE_INSTANT, TYPE_SLICE_BEGIN,
    TYPE_SLICE_END, Trace, TracePacket, TracePacketDefaults, TrackDescriptor, TrackEvent,
};
use super::tracks::{Event, Fact, Kind};

const SEQUENCE: u32 = 1;

#[derive(Debug)]
pub(super) struct Writer<W> {
    out: W,
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
    pub(super) fn new(out: W) -> Self {
        let [names, categories, fact_names, fact_texts] = std::array::from_fn(|_| Names::default());
        Self { out, buffer: Vec::new(), names, categories, fact_names, fact_texts }
    }

    /// The recording's first instant on the host's clock and in the world's time.
    pub(super) fn begin(&mut self, header: &Header) -> io::Result<()> {
        let clock = |id, time| Clock { clock_id: Some(id), timestamp: Some(time) };
        let monotonic = clock(CLOCK_MONOTONIC, header.start.0);
        let clocks = vec![monotonic, clock(CLOCK_REALTIME, header.start_unix_ns)];
        let primary_trace_clock = Some(CLOCK_MONOTONIC);
        self.packet(TracePacket {
            clock_snapshot: Some(ClockSnapshot { clocks, primary_trace_clock }),
            sequence_flags: Some(SEQ_INCREMENTAL_STATE_CLEARED),
            trace_packet_defaults: Some(TracePacketDefaults {
                timestamp_clock_id: Some(CLOCK_MONOTONIC),
            }),
            first_packet_on_sequence: Some(true),
            ..TracePacket::default()
        })
    }

    pub(super) fn track(&mut self, descriptor: TrackDescriptor) -> io::Result<()> {
        self.packet(TracePacket { track_descriptor: Some(descriptor), ..TracePacket::default() })
    }

    pub(super) fn event(&mut self, track: u64, event: Event) -> io::Result<()> {
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

    pub(super) fn finish(mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn track_event(&mut self, track: u64, event: Event, new: &mut InternedData) -> TrackEvent {
        let r#type = match event.kind {
            Kind::End => TYPE_SLICE_END,
            Kind::Begin | Kind::BeginVictim => TYPE_SLICE_BEGIN,
            Kind::Instant => TYPE_INSTANT,
        };
        let (track_uuid, r#type) = (Some(track), Some(r#type));
        if event.kind == Kind::End {
            return TrackEvent { track_uuid, r#type, ..TrackEvent::default() };
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
        let packet = TracePacket { trusted_packet_sequence_id: Some(SEQUENCE), ..packet };
        self.buffer.clear();
        Trace { packet: vec![packet] }
            .encode(&mut self.buffer)
            .expect("a vector grows as far as needed");
        self.out.write_all(&self.buffer)
    }
}
