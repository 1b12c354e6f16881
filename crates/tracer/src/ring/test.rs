use std::convert::Infallible;

use model::{MachineId, Tid, TraceEventKind};

use super::*;

const SLOTS: usize = 8;

/// A ring and what the programs do with it.
#[derive(Debug, Clone)]
struct Ring {
    head: u64,
    tail: u64,
    slots: Vec<Slot>,
}

impl Ring {
    fn new(slots: usize) -> Self {
        Self { head: 0, tail: 0, slots: vec![Slot::default(); slots] }
    }

    fn reserve(&mut self, n: u64) -> u64 {
        self.head += n;
        self.head - n
    }

    fn write(&mut self, position: u64, kind: u8, low: u64, payload: u64) {
        let n = self.slots.len() as u64;
        let generation = u64::from(generation(position, self.slots.len()));
        let at = usize::try_from(position % n).unwrap();
        self.slots[at] = Slot { tag: generation << 56 | u64::from(kind) << 48 | low, payload };
    }

    /// The exit of task `time` at `time`: one slot.
    fn exit(&mut self, time: u64) {
        let position = self.reserve(1);
        self.write(position, 11, time, time);
    }

    /// The fork of task `time` at `time`: two slots.
    fn fork(&mut self, time: u64) {
        let position = self.reserve(2);
        self.write(position, 8, time, time);
        self.write(position + 1, 255, 0, time);
    }
}

impl RingMemory for Ring {
    type Error = Infallible;

    fn counters(&self, _: usize) -> Result<(u64, u64), Infallible> {
        Ok((self.head, self.tail))
    }

    fn read_slots(&self, _: usize, first: usize, slots: &mut [Slot]) -> Result<(), Infallible> {
        slots.copy_from_slice(&self.slots[first..first + slots.len()]);
        Ok(())
    }

    fn set_tail(&mut self, _: usize, tail: u64) -> Result<(), Infallible> {
        self.tail = tail;
        Ok(())
    }

    fn lost(&self, _: usize) -> Result<[u64; KINDS], Infallible> {
        Ok([0; KINDS])
    }
}

type Problem = RingError<Infallible>;

fn consumer(slots: usize) -> Consumer {
    Consumer::new(RingId { machine: MachineId(1), cpu: 0 }, slots)
}

fn drain(consumer: &mut Consumer, ring: &mut Ring) -> (Vec<TraceEvent>, Result<(), Problem>) {
    let mut events = Vec::new();
    let result = consumer.drain(ring, HostNs, &mut events);
    (events, result)
}

/// The events' times, after checking that they are what was written then.
fn times(events: &[TraceEvent]) -> Vec<u64> {
    for TraceEvent { time, machine, kind: what, .. } in events {
        let (TraceEventKind::Exit { task } | TraceEventKind::Fork { child: task, .. }) = *what
        else {
            panic!("{what:?}");
        };
        assert_eq!((u64::from(task.0), *machine), (time.0, MachineId(1)));
    }
    events.iter().map(|event| event.time.0).collect()
}

#[test]
fn records_come_in_order_through_many_laps() {
    // 256 generations of 8 slots and then some: the generations' numbers begin again.
    let (mut ring, mut consumer) = (Ring::new(SLOTS), consumer(SLOTS));
    let mut time = 0;
    for n in (0..=5).cycle().take(2000) {
        let begin = time;
        for _ in 0..n {
            time += 1;
            if time % 3 == 0 && ring.head - ring.tail <= 6 {
                ring.fork(time);
            } else {
                ring.exit(time);
            }
        }
        let (events, result) = drain(&mut consumer, &mut ring);
        assert!(result.is_ok());
        assert_eq!(times(&events), (begin + 1..=time).collect::<Vec<_>>());
        assert_eq!(ring.tail, ring.head);
    }
    assert!(260 * SLOTS as u64 <= ring.head, "{}", ring.head);
}

#[test]
fn a_full_ring_is_read_and_an_overfull_one_is_damaged() {
    let mut ring = Ring::new(SLOTS);
    (1..=8).for_each(|time| ring.exit(time));
    let (events, result) = drain(&mut consumer(SLOTS), &mut ring.clone());
    assert!(result.is_ok());
    assert_eq!(times(&events), (1..=8).collect::<Vec<_>>());
    ring.exit(9);
    let (events, result) = drain(&mut consumer(SLOTS), &mut ring);
    assert!(matches!(result, Err(RingError::Counters { head: 9, tail: 0, slots: 8, .. })));
    assert_eq!(events, []);
}

#[test]
fn rings_larger_than_a_chunk_are_read_at_once() {
    let slots = usize::try_from(4 * CHUNK).unwrap();
    let (mut ring, mut consumer) = (Ring::new(slots), consumer(slots));
    for round in 0..3 {
        let begin = round * 5000;
        // Two slots each after an odd one: chunks end within records.
        ring.exit(begin);
        (1..5000).for_each(|n| ring.fork(begin + n));
        let (events, result) = drain(&mut consumer, &mut ring);
        assert!(result.is_ok());
        assert_eq!(times(&events), (begin..begin + 5000).collect::<Vec<_>>());
    }
}

#[test]
fn what_an_interrupted_record_hides_comes_with_it_in_time_order() {
    let (mut ring, mut consumer) = (Ring::new(SLOTS), consumer(SLOTS));
    ring.exit(1);
    let interrupted = ring.reserve(1);
    ring.exit(2);
    ring.fork(3);
    let (events, _) = drain(&mut consumer, &mut ring);
    assert_eq!(times(&events), [1]);
    ring.write(interrupted, 11, 4, 4);
    ring.exit(5);
    let (events, _) = drain(&mut consumer, &mut ring);
    assert_eq!(times(&events), [2, 3, 4, 5]);
}

#[test]
fn a_record_is_taken_whole_or_not_at_all() {
    let (mut ring, mut consumer) = (Ring::new(SLOTS), consumer(SLOTS));
    (1..=7).for_each(|time| ring.exit(time));
    drain(&mut consumer, &mut ring).1.unwrap();
    // Around the wrap.
    let position = ring.reserve(2);
    ring.write(position, 8, 8, 8);
    assert_eq!(drain(&mut consumer, &mut ring).0, []);
    assert_eq!(ring.tail, 7);
    ring.write(position + 1, 255, 0, 8);
    assert_eq!(times(&drain(&mut consumer, &mut ring).0), [8]);
    assert_eq!(ring.tail, 9);
}

#[test]
fn no_event_goes_back_behind_an_earlier_call() {
    let (mut ring, mut consumer) = (Ring::new(SLOTS), consumer(SLOTS));
    ring.exit(5);
    drain(&mut consumer, &mut ring).1.unwrap();
    let position = ring.reserve(1);
    ring.write(position, 11, 3, 7);
    let (events, _) = drain(&mut consumer, &mut ring);
    assert_eq!(
        (events[0].time, &events[0].kind),
        (HostNs(5), &TraceEventKind::Exit { task: Tid(7) })
    );
}

#[test]
fn times_go_on_after_48_bits() {
    let (mut ring, mut consumer) = (Ring::new(SLOTS), consumer(SLOTS));
    let round = 1 << 48;
    for n in 0..6 {
        let time = round / 3 * n;
        let position = ring.reserve(2);
        // An interrupt came between reservation and time: the second is the earlier.
        ring.write(position, 11, time % round, 7);
        ring.write(position + 1, 11, time.saturating_sub(5) % round, 7);
        let (events, result) = drain(&mut consumer, &mut ring);
        assert!(result.is_ok());
        let times: Vec<u64> = events.iter().map(|event| event.time.0).collect();
        assert_eq!(times, [time.saturating_sub(5), time]);
    }
}

#[test]
fn the_end_of_all_time_is_no_trouble() {
    let end = u64::MAX - ((1 << 47) - 1);
    for (latest, low, expected) in [
        (0, (1 << 48) - 1, 0),
        (end, 0, u64::MAX << 48),
        (u64::MAX, (1 << 47) - 1, u64::MAX - (1 << 47)),
        (u64::MAX, (1 << 48) - 1, u64::MAX),
    ] {
        assert_eq!(super::unwrapped(latest, low), expected, "{latest:x} {low:x}");
    }
}

#[test]
fn no_more_is_taken_than_wanted() {
    let (mut ring, mut consumer) = (Ring::new(SLOTS), consumer(SLOTS));
    ring.exit(1);
    ring.fork(2);
    (3..=7).for_each(|time| ring.exit(time));
    let mut some = |slots| {
        let mut events = Vec::new();
        consumer.drain_some(&mut ring, slots, HostNs, &mut events).unwrap();
        times(&events)
    };
    assert_eq!(
        [some(2), some(1), some(3), some(100)],
        [vec![1], vec![], vec![2, 3], vec![4, 5, 6, 7]]
    );
}

#[test]
fn a_corrupt_slot_ends_it_where_it_lies() {
    let check = |kind, low, expected: DecodeError| {
        let (mut ring, mut consumer) = (Ring::new(SLOTS), consumer(SLOTS));
        ring.exit(1);
        let position = ring.reserve(2);
        ring.write(position, kind, low, u64::MAX);
        ring.write(position + 1, 11, 0, 0);
        for _ in 0..2 {
            let (_, result) = drain(&mut consumer, &mut ring);
            match result {
                Err(RingError::Decode { position: 1, error, .. }) => {
                    assert_eq!(error, expected);
                }
                result => panic!("{kind}: {result:?}"),
            }
        }
        assert_eq!(ring.tail, 1);
    };
    check(0, 0, DecodeError::Kind(0));
    check(40, 0, DecodeError::Kind(40));
    check(255, 0, DecodeError::Kind(255));
    check(8, 0, DecodeError::Cut(8));
    check(12, 0, DecodeError::Value(12));
    check(18, 0, DecodeError::Value(18));
}

/// Xorshift: the same numbers in every run.
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// A guest that writes what it likes, when it likes, where it likes.
#[test]
fn mutated_rings_end_with_events_or_an_error() {
    let mut seed = 0x9e37_79b9_7f4a_7c15;
    for _ in 0..3000 {
        let slots = 64;
        let (mut ring, mut consumer) = (Ring::new(slots), consumer(slots));
        let mut last = 0;
        for round in 1..=8_u64 {
            (0..random(&mut seed) % 30).for_each(|n| {
                let time = round * 1000 + n;
                if n % 2 == 0 { ring.exit(time) } else { ring.fork(time) }
            });
            for _ in 0..random(&mut seed) % 4 {
                mutate(&mut ring, &mut seed);
            }
            let (events, result) = drain(&mut consumer, &mut ring);
            assert!(events.len() <= slots);
            for event in events {
                assert!(last <= event.time.0 && event.cpu == 0);
                last = event.time.0;
            }
            if result.is_err() {
                break;
            }
        }
    }
}

fn mutate(ring: &mut Ring, seed: &mut u64) {
    let value = random(seed);
    let n = ring.slots.len() as u64;
    let at = usize::try_from(random(seed) % n).unwrap();
    let slot = &mut ring.slots[at];
    match random(seed) % 6 {
        0 => slot.tag = value,
        1 => slot.payload = value,
        2 => slot.tag ^= 1 << (value % 64),
        // Another kind with the right generation: deepest into the decoder.
        3 | 4 => slot.tag = slot.tag & !(0xff << 48) | (value % 30) << 48,
        _ => ring.head = ring.head.wrapping_add(value % 200).wrapping_sub(100),
    }
}
