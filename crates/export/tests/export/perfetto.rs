//! The Perfetto trace of a drawn axis: its packets as text, and what a reader relies on.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use export::perfetto::proto::{
    DebugAnnotation, Interned, InternedData, SEQ_INCREMENTAL_STATE_CLEARED,
    SEQ_NEEDS_INCREMENTAL_STATE, TYPE_COUNTER, TYPE_INSTANT, TYPE_SLICE_BEGIN, TYPE_SLICE_END,
    Trace, TracePacket, TrackEvent,
};
use export::{About, Chart};
use prost::Message;

use crate::drawn::{self, Drawing, MS, VCPUS};
use crate::fixture::{HOSTILE, notes};
use crate::formats::golden;

fn bytes(chart: Chart<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    let about = About { view: "unified view", notes: &notes() };
    export::perfetto::write(chart, about, &mut out).unwrap();
    out
}

fn trace(chart: Chart<'_>) -> Trace {
    Trace::decode(bytes(chart).as_slice()).unwrap()
}

/// Names as a reader collects them, packet after packet.
#[derive(Default)]
struct Names([HashMap<u64, String>; 4]);

impl Names {
    fn learn(&mut self, data: &InternedData) {
        let InternedData { event_names, event_categories, .. } = data;
        let facts = (&data.debug_annotation_names, &data.debug_annotation_string_values);
        for (known, new) in self.0.iter_mut().zip([event_names, event_categories, facts.0, facts.1])
        {
            for Interned { iid, name } in new {
                assert_eq!(known.insert(iid.unwrap(), name.clone().unwrap()), None);
            }
        }
    }

    fn fact(&self, fact: &DebugAnnotation) -> String {
        let text = fact.string_value_iid.map(|iid| self.0[3][&iid].clone());
        let value = text.or(fact.uint_value.map(|number| number.to_string())).unwrap();
        format!(" {}={value}", self.0[2][&fact.name_iid.unwrap()])
    }

    fn event(&self, event: &TrackEvent) -> String {
        let kind = match event.r#type.unwrap() {
            TYPE_SLICE_BEGIN => "begin",
            TYPE_SLICE_END => return "end".to_owned(),
            TYPE_COUNTER => return format!("count {}", event.counter_value()),
            TYPE_INSTANT => "instant",
            other => panic!("event type {other}"),
        };
        let name = &self.0[0][&event.name_iid.unwrap()];
        let category = &self.0[1][&event.category_iids[0]];
        let facts: String = event.debug_annotations.iter().map(|fact| self.fact(fact)).collect();
        let arrow = |way: &str, ids: &[u64]| -> String {
            ids.iter().map(|id| format!(" {way}{id}")).collect()
        };
        let (out, into) = (arrow("->", &event.flow_ids), arrow("<-", &event.terminating_flow_ids));
        format!("{kind} {name} [{category}]{facts}{out}{into}")
    }
}

pub(crate) fn text(trace: &Trace) -> String {
    let mut out = String::new();
    let mut writers: HashMap<u32, Names> = HashMap::new();
    for packet in &trace.packet {
        let names = writers.entry(packet.trusted_packet_sequence_id.unwrap()).or_default();
        packet.interned_data.iter().for_each(|data| names.learn(data));
        if let Some(clocks) = &packet.clock_snapshot {
            writeln!(
                out,
                "clocks {:?}",
                clocks.clocks.iter().map(|c| (c.clock_id(), c.timestamp())).collect::<Vec<_>>()
            )
            .unwrap();
        }
        if let Some(track) = &packet.track_descriptor {
            let (uuid, parent, name) = (track.uuid(), track.parent_uuid(), track.name());
            writeln!(
                out,
                "track {uuid} in {parent}: {name} {}",
                track.description().replace('\n', "; ")
            )
            .unwrap();
        }
        kernel_text(packet, &mut out);
        if let Some(event) = &packet.track_event {
            let ms = (packet.timestamp() - 5_000 * MS) / MS;
            writeln!(out, "{ms:>2} track {} {}", event.track_uuid(), names.event(event)).unwrap();
        }
    }
    out
}

/// What a packet says in the kernel's words.
fn kernel_text(packet: &TracePacket, out: &mut String) {
    let machine = packet.machine_id();
    for process in packet.process_tree.iter().flat_map(|tree| &tree.processes) {
        let (pid, parent) = (process.pid(), process.ppid());
        writeln!(out, "machine {machine} process {pid} of {parent}: {}", process.cmdline.join(" "))
            .unwrap();
    }
    for thread in packet.process_tree.iter().flat_map(|tree| &tree.threads) {
        let (tid, pid, name) = (thread.tid(), thread.tgid(), thread.name());
        writeln!(out, "machine {machine} thread {tid} of {pid}: {name}").unwrap();
    }
    if let Some(utsname) = packet.system_info.as_ref().and_then(|info| info.utsname.as_ref()) {
        writeln!(out, "machine {machine} {} {}", utsname.sysname(), utsname.release()).unwrap();
    }
    let Some(bundle) = &packet.ftrace_events else { return };
    for event in &bundle.event {
        let ms = (event.timestamp() - 5_000 * MS) / MS;
        write!(out, "{ms:>2} machine {machine} cpu {} by {}", bundle.cpu(), event.pid()).unwrap();
        let flags = event.common_flags.map(|flags| format!(" flags {flags:#x}"));
        out.push_str(&flags.unwrap_or_default());
        if let Some(it) = &event.sched_switch {
            let (from, to) = (it.prev_comm(), it.next_comm());
            let (pid, state, next) = (it.prev_pid(), it.prev_state(), it.next_pid());
            write!(out, " switch {from} ({pid}) {state:#x} -> {to} ({next})").unwrap();
        }
        if let Some(it) = &event.sched_waking {
            write!(out, " waking {} ({})", it.comm(), it.pid()).unwrap();
        }
        if let Some(it) = &event.task_newtask {
            write!(out, " new {} ({}) {:#x}", it.comm(), it.pid(), it.clone_flags()).unwrap();
        }
        if let Some(it) = &event.sched_process_free {
            write!(out, " free {} ({})", it.comm(), it.pid()).unwrap();
        }
        out.push('\n');
    }
}

#[test]
fn a_track_per_cpu_and_two_per_vcpu() {
    golden("drawn.perfetto.txt", &text(&trace(drawn::small().chart())));
}

#[test]
fn one_sequence_begins_with_its_clock() {
    let trace = trace(drawn::small().chart());
    assert!(trace.packet.iter().all(|packet| packet.trusted_packet_sequence_id == Some(1)));
    let first = &trace.packet[0];
    assert_eq!(first.sequence_flags, Some(SEQ_INCREMENTAL_STATE_CLEARED));
    assert_eq!(first.clock_snapshot.as_ref().unwrap().primary_trace_clock, Some(3));
    assert_eq!(first.trace_packet_defaults.unwrap().timestamp_clock_id, Some(3));
    for packet in trace.packet.iter().filter(|packet| packet.track_event.is_some()) {
        assert_eq!(packet.sequence_flags, Some(SEQ_NEEDS_INCREMENTAL_STATE));
    }
}

/// Lengths of the slices in no other slice, by track.
pub(crate) fn outer_slices(trace: &Trace) -> BTreeMap<u64, u64> {
    let mut open: HashMap<u64, Vec<u64>> = HashMap::new();
    let mut lengths: BTreeMap<u64, u64> = BTreeMap::new();
    let mut last = 0;
    for packet in &trace.packet {
        let Some(event) = &packet.track_event else { continue };
        assert!(last <= packet.timestamp(), "time goes on");
        last = packet.timestamp();
        let stack = open.entry(event.track_uuid()).or_default();
        match event.r#type() {
            TYPE_SLICE_BEGIN => stack.push(last),
            TYPE_SLICE_END => {
                let begin = stack.pop().unwrap();
                if stack.is_empty() {
                    *lengths.entry(event.track_uuid()).or_default() += last - begin;
                }
            }
            TYPE_INSTANT => assert!(!stack.is_empty(), "instants lie in slices"),
            other => assert_eq!(other, TYPE_COUNTER),
        }
    }
    assert!(open.values().all(Vec::is_empty), "every slice ends");
    lengths
}

fn tracks(trace: &Trace) -> BTreeMap<String, u64> {
    let tracks = trace.packet.iter().filter_map(|packet| packet.track_descriptor.as_ref());
    tracks.map(|t| (format!("{}/{}", t.parent_uuid(), t.name()), t.uuid())).collect()
}

#[test]
fn slices_of_a_vcpu_add_up_to_its_time() {
    for drawing in [drawn::small(), drawn::long(50)] {
        let trace = trace(drawing.chart());
        let lengths = outer_slices(&trace);
        let wall = drawing.axis.timelines[0].length_ns();
        let tracks = tracks(&trace);
        let mut seen = 0;
        for (name, uuid) in tracks.iter().filter(|(name, _)| !name.starts_with("0/")) {
            if !name.ends_with("guest") {
                assert_eq!(lengths[uuid], wall, "{name}");
                seen += 1;
            }
        }
        assert_eq!(seen, 2 + VCPUS.len());
    }
}

/// Counts the arrows. Each begins on a slice and ends once, no earlier than it begins.
pub(crate) fn arrows(trace: &Trace) -> usize {
    let mut begun: HashMap<u64, u64> = HashMap::new();
    let mut ended = 0;
    for packet in &trace.packet {
        let Some(event) = &packet.track_event else { continue };
        for id in &event.flow_ids {
            assert_eq!(begun.insert(*id, packet.timestamp()), None);
        }
        for id in &event.terminating_flow_ids {
            assert!(begun[id] <= packet.timestamp());
            ended += 1;
        }
    }
    assert_eq!(ended, begun.len());
    ended
}

#[test]
fn arrows_have_two_ends() {
    assert_ne!(arrows(&trace(drawn::long(20).chart())), 0);
}

#[test]
fn a_wait_has_few_arrows() {
    assert_eq!(arrows(&trace(drawn::waiting(10).chart())), 10);
    assert_eq!(arrows(&trace(drawn::waiting(1000).chart())), 16);
}

#[test]
fn one_vm_is_shown_with_all_cpus() {
    let drawing = drawn::small();
    let chart = Chart { vm: Some(model::VmId(1)), vcpu: Some(1), ..drawing.chart() };
    let trace = trace(chart);
    let names: Vec<String> = tracks(&trace).into_keys().collect();
    assert_eq!(
        names,
        ["0/Host CPUs", "0/vm db (2000)", "1/cpu 0", "1/cpu 1", "4/vcpu1", "4/vcpu1 guest"]
    );
    // The thief's own track is not there: the arrow ends on its CPU.
    let text = text(&trace);
    assert!(text.contains("11 track 2 begin web vcpu0 [vcpu] <-2"), "{text}");
}

#[test]
fn hostile_names_are_written_as_text() {
    for name in HOSTILE {
        let Drawing { axis, tables, header } = drawn::hostile(name);
        let chart = Chart { axis: &axis, tables: &tables, header: &header, vm: None, vcpu: None };
        let text = text(&trace(chart));
        let unsafe_char =
            |c: char| (c.is_control() && c != '\n') || matches!(c, '\u{2028}' | '\u{202e}');
        assert_eq!(text.find(unsafe_char), None);
        assert!(text.contains("in 0: vm "));
    }
}

#[test]
fn the_same_axis_gives_the_same_bytes() {
    assert_eq!(bytes(drawn::long(3).chart()), bytes(drawn::long(3).chart()));
}
