//! What VMs' processes say and hold: answers of QEMU, and the memory in which guests' rings lie.

use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};

use api::guest::{TraceSlots, TraceStackRow, TraceStopped};
use collector::trace::RingReader;
use collector::trace::drawn::{DrawnGuest, MARK, RING_BYTES, SLOTS};
use model::{HostNs, MachineId, Pid};
use sandbox::Sandbox;
use tracer::outside::{Addresses, ClockSample, GuestRings, ProcessMemory, TakenSlots};
use tracer::{Consumer, RingId, SLOT_BYTES};

use super::{MIB, Numbers, Target};

const PAGE: usize = 4096;
/// Of rings' heads, then of the slots of two rings.
const PAGES: usize = 3;

pub(super) fn targets() -> Vec<Target> {
    let target = |name, run, seeds| Target { longest: 1 << 16, ..Target::new(name, run, seeds) };
    vec![
        Target {
            words: &[
                b"\"id\": 2",
                b"\"return\":",
                b"\"event\":",
                b"\"error\":",
                b"{",
                b"[",
                b"\n",
                b"null",
            ],
            ..target("qmp", qmp, seed_qmp)
        },
        target("guest-rings", guest_rings, || vec![seed_memory()]),
        Target { budget: 512 * MIB, ..target("traced-guest", traced_guest, seed_traces) },
    ]
}

/// A QEMU's answers about its vCPUs' threads and its migration, and its events. One QEMU in eight never stops talking: the
/// session must end it.
fn qmp(bytes: &[u8]) {
    drop(match bytes.len() % 8 {
        0 => qmp::fuzzing::feed_without_end(bytes),
        _ => qmp::fuzzing::feed(bytes),
    });
}

/// Pages of this process's own memory, which are a guest's.
struct Memory(Vec<[u8; PAGE]>);

impl Memory {
    /// Its pages are filled with bytes, as far as there are.
    fn hold(&mut self, bytes: &[u8]) {
        self.0.resize(PAGES, [0; PAGE]);
        for (n, byte) in self.0.as_flattened_mut().iter_mut().enumerate() {
            *byte = bytes.get(n).copied().unwrap_or(0);
        }
    }

    fn address(&self) -> u64 {
        self.0.as_ptr().addr() as u64
    }
}

fn memory() -> std::sync::MutexGuard<'static, Memory> {
    static MEMORY: Mutex<Memory> = Mutex::new(Memory(Vec::new()));
    MEMORY.lock().unwrap_or_else(PoisonError::into_inner)
}

fn own_memory() -> &'static ProcessMemory {
    static OWN: OnceLock<ProcessMemory> = OnceLock::new();
    let open = || ProcessMemory::open(Path::new("/proc"), Pid(std::process::id()));
    OWN.get_or_init(|| open().expect("one's own memory can be opened"))
}

/// Two rings in memory that holds anything, from any position on, then read as they are.
fn guest_rings(bytes: &[u8]) {
    let mut input = Numbers(bytes);
    let (from, at_most) = (input.u64(), usize::from(input.u8()) * 8);
    let mut memory = memory();
    memory.hold(input.0);
    let start = memory.address();
    let addresses = &Addresses {
        heads: vec![start],
        slots: vec![start + 2 * PAGE as u64, start + PAGE as u64],
    };
    let rings = GuestRings { memory: own_memory().file(), slots_per_ring: SLOTS, addresses };
    for (cpu, ring) in (0..).zip(0..2) {
        let (head, slots) = rings.take(ring, from, at_most).expect("the memory is there");
        assert!(slots.len() <= at_most.min(SLOTS) * SLOT_BYTES, "{}", slots.len());
        let taken = &mut TakenSlots::new(SLOTS, from, head, &slots);
        // A reader begins at 0.
        let mut consumer = Consumer::new(RingId { machine: MachineId(1), cpu }, SLOTS);
        let mut events = Vec::new();
        let _ = consumer.drain_some(taken, SLOTS, HostNs, &mut events);
        assert!(events.len() <= SLOTS && events.is_sorted_by_key(|event| event.time));
        let read = rings.head(ring).expect("the memory is there");
        let _ = (tracer::outside::mark(&read), tracer::outside::lost(&read));
        rings.free(ring, from).expect("the memory is there");
    }
}

/// A trace of a guest: it writes its rings, says what its clock is and what it lost, sends slots, and ends.
fn traced_guest(bytes: &[u8]) {
    let mut input = Numbers(bytes);
    let is_sent = input.u8() & 1 == 1;
    let mut memory = memory();
    memory.hold(&seed_memory()[8 + 1..]);
    let place = (Pid(std::process::id()), memory.address());
    let guest = DrawnGuest::new(place, is_sent, Sandbox::<RingReader>::here());
    let mut guest = guest.expect("it carries the mark");
    let sample = |input: &mut Numbers<'_>| ClockSample {
        guest_ns: input.u64(),
        host: HostNs(input.u64() & HostNs::MAX.0),
        error_ns: u64::from(input.u32()),
    };
    let (mut position, mut stored) = (0, 0);
    while !input.0.is_empty() {
        match input.u8() & 7 {
            0 | 1 => {
                let at = usize::from(input.u8()) * 48;
                let n = usize::from(input.u8());
                for byte in memory.0.as_flattened_mut().iter_mut().skip(at).take(n) {
                    *byte = input.u8();
                }
            }
            2 => {
                let (cpu, n) = (u32::from(input.u8()), usize::from(input.u8()) * SLOT_BYTES);
                let mut slots = input.bytes(n);
                for slot in slots.chunks_exact_mut(SLOT_BYTES) {
                    slot[7] = tracer::generation(position, SLOTS);
                    position += 1;
                }
                guest.send(vec![TraceSlots { ring: cpu & 3, bytes: slots }]);
            }
            3 => guest.look(place, sample(&mut input), None),
            4 => guest.look((place.0, input.u64()), sample(&mut input), Some(1)),
            _ => stored += guest.drain(u32::from(input.u8() & 1)).len(),
        }
    }
    let stacks = vec![TraceStackRow { id: 1, functions: vec![0] }];
    let functions = vec!["schedule".to_owned()];
    let end_ns = u64::from(input.u32());
    let stopped = TraceStopped { end_ns, functions, stacks, ..TraceStopped::default() };
    guest.stop(stopped, ClockSample { guest_ns: u64::MAX / 2, host: HostNs(1 << 60), error_ns: 0 });
    stored += guest.drain(0).len() + guest.drain(1).len();
    drop(guest.ended_early());
    assert!(stored <= bytes.len() + 4 * SLOTS, "{stored} events of {} bytes", bytes.len());
}

fn seed_qmp() -> Vec<Vec<u8>> {
    let lines = [
        r#"{"QMP": {"version": {"qemu": {"micro": 0, "minor": 2, "major": 7}}, "capabilities": []}}"#,
        r#"{"return": {}, "id": 1}"#,
        r#"{"event": "RESUME", "timestamp": {"seconds": 1, "microseconds": 2}}"#,
        r#"{"return": {}, "id": 2}"#,
        r#"{"return": [{"cpu-index": 0, "thread-id": 77}, {"cpu-index": 1, "thread-id": 78}], "id": 3}"#,
        r#"{"return": {"status": "completed", "ram": {"transferred": 7}, "total-time": 3}, "id": 4}"#,
        r#"{"error": {"class": "GenericError", "desc": "no"}, "id": 5}"#,
    ];
    // One that stops before it answers for the second time, and says something else for ever.
    let endless = |line: &str| {
        let text = [&lines[..3], &[line]].concat().join("\n");
        let length = text.len().next_multiple_of(8);
        format!("{text:length$}").into_bytes()
    };
    let mut seeds = vec![lines.join("\n").into_bytes(), lines.join("\r\n").into_bytes()];
    seeds.extend(["{}", lines[2], r#"{"return": {}}"#].map(endless));
    seeds
}

/// Where to read from and how much; then heads, of which one says that something lies in its ring, and slots.
fn seed_memory() -> Vec<u8> {
    let mut memory = vec![0; PAGES * PAGE];
    for ring in 0..2 {
        memory[ring * RING_BYTES + 8..][..8].copy_from_slice(&MARK.to_le_bytes());
    }
    memory[0] = 3;
    for n in 0..3_u64 {
        let generation = u64::from(tracer::generation(n, SLOTS));
        let at = PAGE + usize::try_from(n).unwrap_or(0) * SLOT_BYTES;
        let (tag, time) = ((generation << 56) | (1 << 48), (n + 1) * 10);
        let slot = [tag | time, (n << 32) | (n + 1)];
        memory[at..at + SLOT_BYTES].copy_from_slice(&slot.map(u64::to_le_bytes).concat());
    }
    [&0_u64.to_le_bytes()[..], &[32], &memory].concat()
}

/// Drains between what is written, said or sent.
fn seed_traces() -> Vec<Vec<u8>> {
    let look = [&[3][..], &[0x20; 8], &[0x30; 8], &[1; 4]].concat();
    let drain = [5, 0, 5, 1];
    let write = [&[0, 0, 8][..], &[9, 0, 0, 0, 0, 0, 0, 0]].concat();
    let slots = [&[2, 0, 2][..], &[10, 0, 0, 0, 0, 0, 1, 0], &[1; 8], &[20, 0, 0, 0, 0, 0, 1, 0]];
    let slots = [&slots.concat()[..], &[1; 8]].concat();
    vec![
        [&[0][..], &drain, &look, &drain, &write, &drain, &look, &drain].concat(),
        [&[1][..], &slots, &drain, &look, &slots, &drain].concat(),
    ]
}
