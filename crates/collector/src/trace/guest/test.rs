//! A drawn guest: its memory is a piece of this process's, its `vmscope-guest` the test.

use std::sync::mpsc::{SyncSender, channel, sync_channel};

use api::guest::{TraceLost, TraceSlots, TraceStackRow};
use model::PrevState;
use probes::FoundVm;

use super::drawn::{self, AHEAD_NS, BASE_NS, MARK, RING_BYTES, SLOTS, clocks, started, vm, wanted};
use super::*;
use crate::trace::plan::GuestPath;

const PAGE: usize = 4096;

struct DrawnGuest {
    memory: Vec<u64>,
    heads: [u64; 2],
    tell: SyncSender<Message>,
    commands: Receiver<Command>,
}

impl DrawnGuest {
    fn new() -> (Self, Guest) {
        let ((commands, taken), (tell, messages)) = (channel(), sync_channel(100));
        let memory = vec![0u64; 4 * PAGE / 8];
        let mut drawn = Self { memory, heads: [0; 2], tell, commands: taken };
        for ring in 0..2 {
            *drawn.word(ring * RING_BYTES + 8) = MARK;
        }
        let guest = new("a", &wanted(MARK), begun(started(), &drawn), (commands, messages));
        let guest = guest.unwrap();
        assert_eq!(guest.machine().path, "guest memory");
        (drawn, guest)
    }

    fn start(&self) -> usize {
        self.memory.as_ptr().addr().next_multiple_of(PAGE)
    }

    /// The word at an offset from the first page.
    fn word(&mut self, offset: usize) -> &mut u64 {
        let skipped = self.start() - self.memory.as_ptr().addr();
        &mut self.memory[(skipped + offset) / 8]
    }

    fn vm(&self) -> FoundVm {
        vm(Pid(std::process::id()), self.start() as u64)
    }

    /// Writes a record of one slot, as the probes do.
    fn write(&mut self, ring: usize, kind: u64, time_ns: u64, payload: u64) {
        let position = self.heads[ring];
        let at = usize::try_from(position).unwrap() % SLOTS;
        let generation = u64::from(tracer::generation(position, SLOTS));
        let slot = PAGE + (ring * SLOTS + at) * 16;
        *self.word(slot + 8) = payload;
        *self.word(slot) = generation << 56 | kind << 48 | time_ns;
        self.heads[ring] += 1;
        *self.word(ring * RING_BYTES) = self.heads[ring];
    }

    /// Says how it ended, and names a stack.
    fn stop(&self) {
        let stopped = TraceStopped {
            end_ns: BASE_NS + 1000,
            functions: vec!["schedule".to_owned()],
            stacks: vec![TraceStackRow { id: 3, functions: vec![0] }],
            ..TraceStopped::default()
        };
        self.tell.send(Message::Stopped(Box::new(stopped), clocks(BASE_NS + 1000))).unwrap();
    }

    fn look(&self, guest_ns: u64) {
        let messages = Message::Looked(Box::new(self.vm()), clocks(guest_ns), None);
        self.tell.send(messages).unwrap();
    }
}

/// Its rings are read in this process.
fn new(
    name: &str,
    wanted: &Wanted,
    begun: Begun,
    ends: (Sender<Command>, Receiver<Message>),
) -> Result<Guest, GuestError> {
    Guest::new(name.to_owned(), wanted, begun, ends, Sandbox::here())
}

fn begun(started: TraceStarted, drawn: &DrawnGuest) -> Begun {
    drawn::begun(started, drawn.vm())
}

fn drain(guest: &mut Guest, ring: u32) -> Vec<TraceEvent> {
    let mut events = Vec::new();
    guest.drain(ring, &mut events).unwrap();
    events
}

const RUNNABLE: u64 = 1;
const EXIT: u64 = 11;
const SYSCALL_ENTER: u64 = 12;

#[test]
fn events_wait_for_the_clocks_next_reading() {
    let (mut drawn, mut guest) = DrawnGuest::new();
    drawn.write(0, RUNNABLE, 100, 5 << 32 | 6);
    drawn.write(0, RUNNABLE, 300, 6 << 32 | 5);
    assert_eq!(drain(&mut guest, 0), []);
    drawn.look(BASE_NS + 200);
    let event = |time, prev, next| TraceEvent {
        time: HostNs(BASE_NS + AHEAD_NS + time),
        machine: MachineId(1),
        cpu: 0,
        kind: TraceEventKind::Switch {
            prev: Tid(prev),
            prev_state: PrevState::Runnable,
            stack: None,
            user_stack: None,
            next: Tid(next),
        },
    };
    assert_eq!(drain(&mut guest, 0), [event(100, 5, 6)]);
    drawn.look(BASE_NS + 400);
    assert_eq!(drain(&mut guest, 0), [event(300, 6, 5)]);
    assert_eq!(*drawn.word(64), 2, "the tail tells the probes where there is room");
    let row = guest.machine();
    assert_eq!((row.clock_error_ns, row.ended_early), (Some(3), None));
    assert_eq!((row.vm_process, row.vcpu_threads), (Some(drawn.vm().pid), vec![Tid(99), Tid(100)]));
}

/// The call that began a program with other rights has no end.
#[test]
fn programs_whose_calls_are_not_seen_are_counted() {
    const EXEC: u64 = 9;
    const MORE: u64 = 255;
    let (mut drawn, mut guest) = DrawnGuest::new();
    drawn.write(0, SYSCALL_ENTER, 100, 59 << 32 | 7);
    drawn.write(0, EXEC, 110, 7);
    drawn.write(0, MORE, 0, 0);
    drawn.write(0, EXIT, 120, 7);
    drawn.look(BASE_NS + 200);
    assert_eq!(drain(&mut guest, 0).len(), 3);
    assert_eq!(guest.machine().missing, []);
    drawn.stop();
    guest.stop();
    let missing = guest.machine().missing;
    assert!(missing.len() == 1 && missing[0].1.contains(" 1 program"), "{missing:?}");
}

#[test]
fn the_command_s_end_is_seen_in_the_ring() {
    let (mut drawn, mut guest) = DrawnGuest::new();
    drawn.write(1, EXIT, 100, 49);
    drawn.look(BASE_NS + 200);
    assert_eq!(drain(&mut guest, 1).len(), 1);
    assert!(!guest.command_ended());
    drawn.write(1, EXIT, 250, 50);
    drawn.look(BASE_NS + 300);
    assert_eq!(drain(&mut guest, 1).len(), 1);
    assert!(guest.command_ended());
}

/// Its trace ends with a reason, and what came before is kept; with names, if it can still be queried.
fn check_end(harm: impl FnOnce(&mut DrawnGuest), expected: &str) {
    let (mut drawn, mut guest) = DrawnGuest::new();
    drawn.write(0, RUNNABLE, 100, 5 << 32 | 6);
    assert_eq!(drain(&mut guest, 0), []);
    harm(&mut drawn);
    let mut events = drain(&mut guest, 0);
    events.extend(drain(&mut guest, 1));
    events.extend(drain(&mut guest, 0));
    let row = guest.machine();
    assert!(row.ended_early.as_ref().is_some_and(|text| text.contains(expected)), "{row:?}");
    assert_eq!(events.len(), 1, "{expected}");
    assert!(guest.command_ended());
    let is_requested = !guest.worker.left;
    drawn.stop();
    assert!(HostNs(0) < row.end && row.end <= probes::now());
    assert_eq!(guest.stop(), row.end);
    assert_eq!(guest.tables().stacks.len(), usize::from(is_requested));
}

#[test]
fn a_bad_guest_ends_its_own_trace_with_a_reason() {
    check_end(|drawn| drawn.write(0, 200, 150, 0), "unknown event kind 200");
    check_end(|drawn| *drawn.word(0) = 1 << 60, "is damaged");
    check_end(
        |drawn| drawn.tell.send(Message::Failed(GuestError::NoAnswer)).unwrap(),
        "no answer in time",
    );
    check_end(
        |drawn| {
            let vm = FoundVm { slots: vec![], ..drawn.vm() };
            let messages = Message::Looked(Box::new(vm), clocks(BASE_NS + 150), None);
            drawn.tell.send(messages).unwrap();
        },
        "no longer where it was",
    );
    check_end(|drawn| drawn.look(BASE_NS), "its clock ran backwards");
    check_end(
        |drawn| drawn.tell.send(Message::Slots(vec![Default::default()])).unwrap(),
        "without a request",
    );
}

#[test]
fn losses_after_its_end_are_none() {
    const LOST_SWITCHES: usize = 128 + 8;
    let (mut drawn, mut guest) = DrawnGuest::new();
    *drawn.word(LOST_SWITCHES) = 3;
    *drawn.word(0) = 1 << 60;
    assert_eq!(drain(&mut guest, 0), []);
    *drawn.word(LOST_SWITCHES) = 500;
    drawn.look(BASE_NS + 200);
    drawn.stop();
    guest.stop();
    let lost: Vec<u64> = guest.machine().lost.iter().map(|row| row.count).collect();
    assert_eq!(lost, [3]);
    assert!(matches!(drawn.commands.try_recv(), Ok(Command::Stop)), "its probes are not needed");
}

#[test]
fn a_worker_that_is_gone_ends_the_trace() {
    let (drawn, mut guest) = DrawnGuest::new();
    let DrawnGuest { memory: _memory, tell, .. } = drawn;
    drop(tell);
    guest.stop();
    assert_eq!(guest.machine().ended_early.as_deref(), Some("the query failed"));
}

#[test]
fn memory_that_does_not_hold_the_mark_is_not_believed() {
    let (drawn, guest) = DrawnGuest::new();
    let (commands, taken) = channel();
    let wanted = wanted(1);
    let started = TraceStarted { command: None, ..guest.started.clone() };
    let parts = begun(started, &drawn);
    let guest = new("", &wanted, parts, (commands, sync_channel(1).1)).unwrap();
    let row = guest.machine();
    assert_eq!(row.path, "vsock");
    assert!(row.missing[0].1.contains("is it encrypted?"), "{row:?}");
    assert!(matches!(taken.try_recv(), Ok(Command::Send)));
}

#[test]
fn a_command_runs_in_no_other_guest() {
    let (drawn, guest) = DrawnGuest::new();
    for path in [GuestPath::Memory, GuestPath::Link] {
        let with_mark = |mark| {
            let wanted = Wanted { path, ..wanted(mark) };
            let parts = begun(guest.started.clone(), &drawn);
            new("", &wanted, parts, (channel().0, sync_channel(1).1))
        };
        assert!(with_mark(MARK).is_ok());
        let refused = with_mark(1).unwrap_err().to_string();
        assert!(refused.starts_with("COMMAND was not run: another guest may be"), "{refused}");
    }
}

#[test]
fn sizes_that_can_not_be_are_refused() {
    let (drawn, guest) = DrawnGuest::new();
    let wanted = wanted(MARK);
    for (rings, slots_per_ring) in [(u32::MAX, 256), (3, 256), (2, 255), (2, u32::MAX), (0, 256)] {
        let started = TraceStarted { rings, slots_per_ring, ..guest.started.clone() };
        let parts = begun(started, &drawn);
        let ends = (channel().0, sync_channel(1).1);
        assert!(new("", &wanted, parts, ends).is_err());
    }
}

/// Records of one slot, at these positions of a ring and times.
fn sent(positions: std::ops::Range<u64>) -> TraceSlots {
    let generation = |position| u64::from(tracer::generation(position, SLOTS));
    let slot = |position| [generation(position) << 56 | RUNNABLE << 48 | position, 5 << 32 | 6];
    TraceSlots { ring: 0, bytes: positions.flat_map(slot).flat_map(u64::to_le_bytes).collect() }
}

#[test]
fn losses_before_its_begin_are_none() {
    const LOST: usize = 128;
    let (drawn, guest) = DrawnGuest::new();
    let mut started = guest.started;
    let row = |ring, counts: &[u64]| TraceLost { ring, counts: counts.to_vec() };
    started.lost = vec![row(0, &[0, 2, 9]), row(1, &[0; 64]), row(7, &[1])];
    let parts = begun(started, &drawn);
    let (commands, messages) = (channel().0, sync_channel(1).1);
    let mut guest = new("", &wanted(MARK), parts, (commands, messages)).unwrap();
    let mut drawn = drawn;
    for (at, count) in [(8, 3), (16, 4), (RING_BYTES + 8, 5)] {
        *drawn.word(LOST + at) = count;
    }
    guest.on_message(Message::Looked(Box::new(drawn.vm()), clocks(BASE_NS + 100), None));
    let lost: Vec<_> = guest.machine().lost.iter().map(|row| (row.cpu, row.count)).collect();
    assert_eq!(lost, [(0, 1), (1, 5)]);
}

#[test]
fn a_trace_begins_while_the_guest_prepares_whatever_it_says() {
    let check = |begin_ns: u64, end_ns: u64, expected: (u64, u64)| {
        let (drawn, mut guest) = DrawnGuest::new();
        guest.started.begin_ns = begin_ns;
        assert_eq!(guest.start().unwrap(), HostNs(BASE_NS + AHEAD_NS + expected.0 - 100));
        let stopped = TraceStopped { end_ns, ..TraceStopped::default() };
        drawn.tell.send(Message::Stopped(Box::new(stopped), clocks(BASE_NS + 1000))).unwrap();
        assert_eq!(guest.stop(), HostNs(BASE_NS + AHEAD_NS + expected.1 - 100));
    };
    check(BASE_NS + 5, BASE_NS + 700, (105, 800));
    check(0, 0, (0, 0));
    check(u64::MAX, 7, (200, 200));
}

#[test]
fn answers_over_the_link_that_wait_are_no_fault_of_the_guest() {
    let (drawn, guest) = DrawnGuest::new();
    let wanted = Wanted { path: GuestPath::Link, ..wanted(MARK) };
    let (tell, messages) = sync_channel(100);
    let parts = begun(guest.started.clone(), &drawn);
    let mut guest = new("", &wanted, parts, (channel().0, messages)).unwrap();
    for positions in [0..200, 200..400, 400..656] {
        tell.send(Message::Slots(vec![sent(positions)])).unwrap();
    }
    tell.send(Message::Looked(Box::new(drawn.vm()), clocks(BASE_NS + 1000), None)).unwrap();
    assert_eq!(drain(&mut guest, 0).len(), 656);
    assert_eq!(guest.machine().ended_early, None);
    tell.send(Message::Slots(vec![sent(656..656 + 257)])).unwrap();
    assert_eq!(drain(&mut guest, 0), []);
    assert!(guest.machine().ended_early.unwrap().contains("4112 bytes of events at once"));
}

#[test]
fn a_look_takes_no_more_than_its_share() {
    let (mut drawn, mut guest) = DrawnGuest::new();
    guest.queue.slots_per_look = 100;
    (0..250).for_each(|time| drawn.write(0, RUNNABLE, time, 5 << 32 | 6));
    drawn.look(BASE_NS + 500);
    let looks: Vec<usize> = (0..4).map(|_| drain(&mut guest, 0).len()).collect();
    assert_eq!(looks, [100, 100, 50, 0]);
    (250..500).for_each(|time| drawn.write(0, RUNNABLE, time, 5 << 32 | 6));
    drawn.stop();
    guest.stop();
    assert_eq!(drain(&mut guest, 0).len(), 250, "all that is left at the end");
}

#[test]
fn a_guest_that_writes_more_than_probes_can_ends_its_trace() {
    let (mut drawn, mut guest) = DrawnGuest::new();
    guest.queue.rate_limit = RateLimit::new(10, probes::now());
    (0..200).for_each(|time| drawn.write(1, RUNNABLE, time, 5 << 32 | 6));
    assert_eq!(drain(&mut guest, 1).len(), 200, "what came before is kept");
    let ended_early = guest.machine().ended_early.unwrap_or_default();
    assert!(ended_early.contains("faster than probes can write"), "{ended_early}");
}

/// Xorshift: Marsaglia, "Xorshift RNGs" (2003).
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[test]
fn whatever_lies_in_its_memory_draining_ends() {
    let seed = &mut 0x9e37_79b9_7f4a_7c15;
    let (mut failed, mut events) = (0, 0);
    for _ in 0..3000 {
        let (mut drawn, mut guest) = DrawnGuest::new();
        for _ in 0..random(seed) % 20 {
            let kind = 1 + random(seed) % 30;
            let (time, payload) = (random(seed) % 1000, (random(seed) % 100) << 32 | 7);
            drawn.write((random(seed) % 2) as usize, kind, time, payload);
        }
        for _ in 0..random(seed) % 4 {
            let offset = match random(seed) % 3 {
                0 => (random(seed) % 48) as usize * 8,
                _ => PAGE + (random(seed) % 64) as usize * 8,
            };
            *drawn.word(offset) = random(seed) >> (random(seed) % 64);
        }
        drawn.look(random(seed) >> 20);
        for ring in [0, 1, 0, 1] {
            let drained = drain(&mut guest, ring);
            assert!(drained.len() <= SLOTS);
            assert!(drained.is_sorted_by_key(|event| event.time));
            events += drained.len();
        }
        failed += usize::from(guest.machine().ended_early.is_some());
    }
    assert!(0 < failed && failed < 3000 && 0 < events, "{failed} failed, {events} events");
}
