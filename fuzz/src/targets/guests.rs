//! What a guest says, writes into its rings, or leaves in a snapshot file.

use api::guest::{FunctionSymbol, GuestMap, HEADER_BYTES, MAGIC, ModuleSymbols, Response, VERSION};
use guest::{CachedMap, MapSpan, SampleKey, fuzzing};
use model::{Clock, Guest, HostNs, Machine, MachineId, Pid, Tables, TraceTables, Vm, VmId};
use symbols::{Function, FunctionTable};
use trace_analysis::findings::Findings;
use trace_analysis::timeline;
use tracer::outside::{ClockSample, GuestClock, SentRings, TscScale, sample_clock};
use tracer::{ClockPair, Consumer, RingId, RingMemory, SLOT_BYTES};

use super::{MIB, Numbers, Target};

// The answers of the reader's own tests.
#[path = "../../../crates/guest/tests/common/mod.rs"]
mod common;

pub(super) fn targets() -> Vec<Target> {
    let seeds = || seed_responses().iter().map(content).collect();
    let target = |name, run, seeds| Target { budget: 512 * MIB, ..Target::new(name, run, seeds) };
    vec![
        target("answers", answers, seeds),
        Target { words: &[&MAGIC], ..target("snapshot", snapshot, || vec![seed_snapshot()]) },
        Target { longest: 1 << 16, ..target("rings", rings, seed_rings) },
        Target { longest: 4096, ..target("clock", clock, || vec![(0..=255).collect()]) },
    ]
}

/// A message without its frame: the frame is put around it, so that it is always whole.
fn content(response: &Response) -> Vec<u8> {
    fuzzing::frame(response)[HEADER_BYTES..].to_vec()
}

fn framed(content: &[u8]) -> Vec<u8> {
    let length = u32::try_from(content.len()).unwrap_or(0);
    [&MAGIC[..], &[0; 8], &length.to_le_bytes(), content].concat()
}

fn answers(content: &[u8]) {
    for response in fuzzing::responses(&framed(content)) {
        match response {
            Response::Map(map) => merge(&map),
            Response::Symbols(answers) => answers.into_iter().for_each(functions),
            other => drop(fuzzing::check_trace(other)),
        }
    }
}

/// As a recording takes it: twice in one session, then again in another.
fn merge(map: &GuestMap) {
    let mut known = CachedMap::default();
    known.add(map.clone());
    known.add(map.clone());
    known.next_module(|_| false);
    known.add_new_session(map.clone());
    let unmapped = Guest::Unmapped { reason: String::new() };
    let vm = |name: &str| Vm {
        name: name.to_owned(),
        pid: Pid(1),
        started: None,
        ended: None,
        labels: model::VmLabels::default(),
        guest: unmapped.clone(),
    };
    let mut tables = Tables { vms: vec![vm("a"), vm("b")], ..Tables::default() };
    let clock = Clock { host_minus_guest_ns: i64::MAX, error_ns: 7 };
    let merged = guest::merge(
        known.into_map().0,
        VmId(1),
        clock,
        MapSpan::default(),
        SampleKey::Task,
        &mut tables,
    );
    assert!(tables.images.iter().all(|image| image.owner == model::Owner::Vm(VmId(1))));
    drop((merged, analysis::Resolver::new(&tables)));
}

fn functions(answer: ModuleSymbols) {
    let Ok(functions) = guest::functions(answer) else { return };
    let offsets: Vec<u64> = functions.iter().map(|function| function.offset).collect();
    let function = |f: FunctionSymbol| Function { offset: f.offset, size: f.size, name: f.name };
    let table = FunctionTable::new(functions.into_iter().map(function));
    for offset in offsets {
        let _ = (table.find(offset), table.find(offset.wrapping_sub(1)));
    }
}

fn snapshot(bytes: &[u8]) {
    let path = super::written("snapshot", bytes);
    if let Ok(map) = guest::read_snapshot(&path, &mut fuzzing::Here, &mut functions) {
        merge(&map);
    }
}

/// Two rings of 256 slots, filled again and again, and what is made of the events.
fn rings(bytes: &[u8]) {
    const SLOTS: usize = 256;
    let mut memory = SentRings::new(2, SLOTS).expect("sizes are within bounds");
    let consumer = |cpu| Consumer::new(RingId { machine: MachineId(0), cpu }, SLOTS);
    let mut consumers = [0, 1].map(consumer);
    let mut positions = [0; 2];
    let mut events = Vec::new();
    let mut input = Numbers(bytes);
    while !input.0.is_empty() {
        let (ring, count) = (usize::from(input.u8() & 1), usize::from(input.u8()) + 1);
        let mut slots = input.bytes(count * SLOT_BYTES);
        slots.truncate(slots.len() / SLOT_BYTES * SLOT_BYTES);
        for slot in slots.chunks_exact_mut(SLOT_BYTES) {
            // Wrong generations are slots without an event yet: some stay wrong.
            if slot[7] != 0xff {
                slot[7] = tracer::generation(positions[ring], SLOTS);
            }
            positions[ring] += 1;
        }
        let before = events.len();
        if memory.put(ring, &slots).is_err()
            || consumers[ring].drain_some(&mut memory, SLOTS, HostNs, &mut events).is_err()
        {
            break;
        }
        assert!(events[before..].is_sorted_by_key(|event| event.time));
        if memory.counters(ring).is_ok_and(|(head, tail)| head.wrapping_sub(tail) == SLOTS as u64) {
            break;
        }
    }
    events.sort_by_key(|event| event.time);
    let machine = Machine { cpus: vec![0, 1], ..Machine::default() };
    let tables = TraceTables { machines: vec![machine], ..TraceTables::default() };
    let timeline = timeline::build(&tables, MachineId(0), &events);
    let findings = Findings::new(&tables, &timeline, None);
    let _ = (findings.profile(), findings.states(), findings.kernel(), findings.life());
    let first = events.iter().map(|event| event.kind).find_map(|kind| match kind {
        model::TraceEventKind::Switch { next, .. } => Some(next),
        _ => None,
    });
    if let Some(task) = first {
        let _ = findings.of_tree(task).path();
    }
}

fn clock(bytes: &[u8]) {
    let mut input = Numbers(bytes);
    let sample = |input: &mut Numbers<'_>| ClockSample {
        guest_ns: input.u64(),
        host: HostNs(input.u64() & HostNs::MAX.0),
        error_ns: u64::from(input.u32()),
    };
    let mut clock = GuestClock::new(sample(&mut input));
    while !input.0.is_empty() {
        if clock.push(sample(&mut input)).is_err() {
            break;
        }
        let _ = (clock.host(input.u64()), clock.error_ns(), clock.drift_ppm());
        let mut pair =
            || ClockPair { tsc: input.u64(), ns: input.u64(), width: input.u64(), cpu: 0 };
        let pairs = (pair(), pair(), pair());
        let _ = sample_clock(pairs.0, pairs.1, pairs.2, TscScale::new(input.u64(), input.u64()), 5);
    }
}

fn seed_responses() -> Vec<Response> {
    let [started, stopped] = common::trace();
    vec![
        Response::Hello { version: VERSION, now_ns: 5 },
        Response::LogStarted { now_ns: 5, problem: Some("none".into()) },
        Response::Map(Box::new(common::map())),
        Response::Symbols(vec![common::symbols()]),
        Response::Error("no".into()),
        started,
        stopped,
    ]
}

fn seed_snapshot() -> Vec<u8> {
    let symbols = Response::Symbols(vec![common::symbols()]);
    [Response::Map(Box::new(common::map())), symbols].iter().flat_map(fuzzing::frame).collect()
}

/// One record of each kind, in order of time.
fn seed_rings() -> Vec<Vec<u8>> {
    let slot = |kind: u64, n: u64| {
        let tag = kind << 48 | (n * 1000 + kind * 10);
        [tag.to_le_bytes(), (n << 32 | (n + 1)).to_le_bytes()].concat()
    };
    let of_kind = |kind: u64| {
        let slots: Vec<u8> = (1..6).flat_map(|n| slot(kind, n)).collect();
        [vec![0, 4], slots].concat()
    };
    let each: Vec<Vec<u8>> = (0..64).map(of_kind).collect();
    let all = each.concat();
    each.into_iter().chain([all]).collect()
}
