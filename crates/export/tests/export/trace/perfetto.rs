//! The Perfetto trace of a drawn trace: its packets as text, and what a reader relies on.

use std::collections::{BTreeMap, BTreeSet};

use export::About;
use export::perfetto::proto::Trace;
use export::trace::Run;
use prost::Message;
use trace_analysis::timeline::{Segments, Timeline};

use super::drawn::{self, Drawing};
use crate::drawn as sampled;
use crate::fixture::{HOSTILE, notes};
use crate::formats::golden;
use crate::perfetto::{arrows, outer_slices, text};

fn bytes(run: Run<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    export::trace::perfetto::write(run, &mut out).unwrap();
    out
}

fn trace(drawing: &Drawing) -> Trace {
    Trace::decode(bytes(drawing.run("small")).as_slice()).unwrap()
}

#[test]
fn a_track_per_cpu_disk_and_thread() {
    golden("trace/small.perfetto.txt", &text(&trace(&drawn::small())));
}

fn uuids(trace: &Trace) -> BTreeMap<String, u64> {
    let tracks: Vec<_> =
        trace.packet.iter().filter_map(|packet| packet.track_descriptor.as_ref()).collect();
    let path = |uuid: u64| {
        let mut names = Vec::new();
        let mut at = tracks.iter().find(|track| track.uuid() == uuid);
        while let Some(track) = at {
            names.insert(0, track.name());
            at = tracks.iter().find(|parent| parent.uuid() == track.parent_uuid());
        }
        names.join("/")
    };
    tracks.iter().map(|track| (path(track.uuid()), track.uuid())).collect()
}

#[test]
fn slices_of_tasks_and_cpus_fill_their_time() {
    let drawing = drawn::small();
    let trace = trace(&drawing);
    let (lengths, uuids) = (outer_slices(&trace), uuids(&trace));
    let check = |path: &str, ms: u64| assert_eq!(lengths[&uuids[path]], ms * drawn::MS, "{path}");
    check("host/CPUs/cpu 0", 24);
    check("host/CPUs/cpu 1", 24);
    check("host/Disks/vda", 8);
    check("host/make (10)/make (10)", 24);
    check("host/cc1 (11)/cc1 (11)", 13);
    check("host/cc1 (12)/cc1 (12)", 18);
    check("host/cc1 (12)/lto (13)", 14);
    check("VM web/CPUs/cpu 0", 10);
    check("VM web/CPUs/vcpu 0", 10);
    check("VM web/make (700)/make (700)", 10);
}

#[test]
fn arrows_have_two_ends() {
    assert_eq!(arrows(&trace(&drawn::small())), 4);
}

#[test]
fn a_task_without_segments_or_works_is_a_track_without_slices() {
    let mut drawing = drawn::small();
    drawing.timelines[0].tasks[1].segments = Segments::default();
    drawing.timelines[0].cpus.clear();
    let trace = trace(&drawing);
    assert!(uuids(&trace).contains_key("host/cc1 (11)/cc1 (11)"));
    outer_slices(&trace);
    let nothing = Drawing { timelines: vec![Timeline::default()], ..drawn::small() };
    assert!(outer_slices(&self::trace(&nothing)).is_empty());
}

#[test]
fn hostile_names_are_written_as_text() {
    for name in HOSTILE {
        let text = text(&trace(&drawn::hostile(name)));
        let unsafe_char =
            |c: char| (c.is_control() && c != '\n') || matches!(c, '\u{2028}' | '\u{202e}');
        assert_eq!(text.find(unsafe_char), None);
        assert!(text.contains("in 0: VM "));
    }
    let long = "x".repeat(1 << 20);
    assert!(bytes(drawn::hostile(&long).run("long")).len() < 50_000);
}

/// A trace and a recording of the same moment.
fn together() -> Trace {
    let (traced, sampled) = (drawn::small(), sampled::small());
    let about = About { view: "unified view", notes: &notes() };
    let mut out = Vec::new();
    let run = traced.run("small");
    export::trace::perfetto::write_with(run, sampled.chart(), about, &mut out).unwrap();
    Trace::decode(out.as_slice()).unwrap()
}

#[test]
fn samples_stand_below_a_trace() {
    golden("trace/with-samples.perfetto.txt", &text(&together()));
}

/// What a reader of both parts as one relies on: no id means two things, and each writer's first packet says so.
#[test]
fn a_trace_and_samples_share_no_ids() {
    let trace = together();
    let mut tracks: BTreeMap<u64, u32> = BTreeMap::new();
    let mut arrows: BTreeMap<u32, BTreeSet<u64>> = BTreeMap::new();
    let mut writers = Vec::new();
    for packet in &trace.packet {
        let writer = packet.trusted_packet_sequence_id.unwrap();
        let first = !writers.contains(&writer);
        assert_eq!(packet.first_packet_on_sequence(), first);
        if first {
            writers.push(writer);
            assert_eq!(packet.trace_packet_defaults.unwrap().timestamp_clock_id, Some(3));
        }
        if let Some(track) = &packet.track_descriptor {
            assert_eq!(tracks.insert(track.uuid(), writer), None, "{}", track.name());
            assert!(track.parent_uuid.is_none_or(|parent| tracks[&parent] == writer));
        }
        if let Some(event) = &packet.track_event {
            assert_eq!(tracks[&event.track_uuid()], writer);
            arrows.entry(writer).or_default().extend(&event.flow_ids);
        }
    }
    assert_eq!(writers, [1, 2]);
    assert!(arrows[&1].is_disjoint(&arrows[&2]), "{arrows:?}");
    assert!(arrows.values().all(|arrows| !arrows.is_empty()));
}

/// Both parts as they are alone, and no two groups of one name.
#[test]
fn nothing_is_lost_beside_each_other() {
    let trace = together();
    let uuids = uuids(&trace);
    assert_eq!(uuids.len(), trace.packet.iter().filter(|p| p.track_descriptor.is_some()).count());
    for path in ["host/CPUs/cpu 0", "VM web/make (700)/make (700)", "Host CPUs, sampled/cpu 0"] {
        assert!(uuids.contains_key(path), "{path}");
    }
    let events = |trace: &Trace| trace.packet.iter().filter(|p| p.track_event.is_some()).count();
    let mut alone = Vec::new();
    let about = About { view: "unified view", notes: &[] };
    export::perfetto::write(sampled::small().chart(), about, &mut alone).unwrap();
    let alone = Trace::decode(alone.as_slice()).unwrap();
    assert_eq!(events(&trace), events(&self::trace(&drawn::small())) + events(&alone));
}
