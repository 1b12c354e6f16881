//! The latest events of one CPU, in memory.

use std::collections::VecDeque;
use std::sync::Arc;

use model::{HostNs, MachineId, TraceEvent};

use super::TraceSpool;
use super::record::{Before, EVENT_BYTES, decode, encode};
use crate::error::Error;
use crate::spool::Place;

/// Events of a block at most: as many as are decoded to drop some of them.
const BLOCK_EVENTS: usize = 2048;

/// The latest events of one CPU of a machine, encoded as in a spool. Old ones can be dropped.
///
/// ```text
///  append --> [open block] --full--> [sealed] [sealed] ... [sealed] --drop_before--> events
/// ```
/// A clone shares the sealed blocks.
#[derive(Debug, Clone)]
pub struct EventQueue {
    place: Place,
    sealed: VecDeque<Arc<Block>>,
    open: Block,
    before: Before,
    /// Events of the first block that were dropped.
    dropped: usize,
    bytes: u64,
    events: u64,
}

#[derive(Debug, Clone, Default)]
struct Block {
    bytes: Vec<u8>,
    events: usize,
    last: HostNs,
}

impl EventQueue {
    /// An empty one, for events of this CPU.
    #[must_use]
    pub fn new(machine: MachineId, cpu: u32) -> Self {
        Self {
            place: (machine, cpu),
            sealed: VecDeque::new(),
            open: Block::default(),
            before: Before::default(),
            dropped: 0,
            bytes: 0,
            events: 0,
        }
    }

    /// Appends events of this CPU, in time order.
    pub fn append(&mut self, events: &[TraceEvent]) {
        for event in events {
            if self.open.events == BLOCK_EVENTS {
                self.seal();
            }
            let mut room = [0; EVENT_BYTES];
            let length = encode(event.time, &event.kind, &mut self.before, &mut room);
            self.open.bytes.extend_from_slice(&room[..length]);
            self.open.events += 1;
            self.open.last = event.time;
            self.bytes += length as u64;
        }
        self.events += events.len() as u64;
    }

    fn seal(&mut self) {
        self.before = Before::default();
        let mut block = std::mem::take(&mut self.open);
        block.bytes.shrink_to_fit();
        self.sealed.push_back(Arc::new(block));
    }

    /// Events held.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Bytes that they take.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The last event's time in the oldest block; `None`: it is empty.
    #[must_use]
    pub fn oldest(&self) -> Option<HostNs> {
        let first = self.sealed.front().map_or(&self.open, |block| block);
        (0 < self.events).then_some(first.last)
    }

    /// Drops the events before `time`, and appends them to `dropped`.
    pub fn drop_before(&mut self, time: HostNs, dropped: &mut Vec<TraceEvent>) {
        while 0 < self.events {
            if self.sealed.is_empty() {
                self.seal();
            }
            let Some(first) = self.sealed.front() else { return };
            let begin = dropped.len();
            let rest = first.decode(self.place).skip(self.dropped);
            dropped.extend(rest.take_while(|event| event.time < time));
            let n = dropped.len() - begin;
            self.events -= n as u64;
            self.dropped += n;
            if self.dropped < first.events {
                return;
            }
            self.dropped = 0;
            self.bytes -= first.bytes.len() as u64;
            self.sealed.pop_front();
        }
    }

    /// Writes the events up to `end` to a spool of the same CPU.
    ///
    /// # Errors
    /// When they can't be written.
    pub fn append_to(&self, spool: &mut TraceSpool, end: HostNs) -> Result<u64, Error> {
        let blocks = self.sealed.iter().map(|block| &**block).chain([&self.open]);
        let (mut skip, mut written) = (self.dropped, 0);
        let mut events = Vec::new();
        for block in blocks {
            let is_held = |event: &TraceEvent| event.time <= end;
            events.clear();
            events.extend(block.decode(self.place).skip(skip).filter(is_held));
            spool.append(&events)?;
            written += events.len() as u64;
            skip = 0;
        }
        Ok(written)
    }
}

impl Block {
    fn decode(&self, (machine, cpu): Place) -> impl Iterator<Item = TraceEvent> + '_ {
        let (mut bytes, mut before) = (self.bytes.as_slice(), Before::default());
        (0..self.events).map(move |_| {
            let event = decode(&mut bytes, &mut before);
            let (time, kind) = event.expect("a block holds what was encoded into it");
            TraceEvent { time, machine, cpu, kind }
        })
    }
}

#[cfg(test)]
mod test {
    use model::{Tid, TraceEventKind};

    use super::*;

    fn event(time: u64) -> TraceEvent {
        let kind = TraceEventKind::Exit { task: Tid(7) };
        TraceEvent { time: HostNs(time), machine: MachineId::HOST, cpu: 3, kind }
    }

    /// Appends events of these times in pieces and drops those before each of `cuts`.
    fn check(times: std::ops::Range<u64>, piece: usize, cuts: &[u64]) {
        let all: Vec<TraceEvent> = times.clone().map(event).collect();
        let mut queue = EventQueue::new(MachineId::HOST, 3);
        all.chunks(piece).for_each(|events| queue.append(events));
        let mut dropped = Vec::new();
        for &cut in cuts {
            queue.drop_before(HostNs(cut), &mut dropped);
            let n = dropped.len();
            assert!(dropped.iter().all(|event| event.time < HostNs(cut)), "{cut}");
            assert_eq!(dropped, all[..n]);
            assert_eq!(queue.events(), (all.len() - n) as u64);
            assert_eq!(queue.oldest().is_none(), n == all.len());
            assert_eq!(queue.bytes() == 0, n == all.len());
            // What is appended after a drop is there, too.
            let mut copy = queue.clone();
            copy.append(&[event(u64::MAX)]);
            let mut rest = Vec::new();
            copy.drop_before(HostNs(u64::MAX), &mut rest);
            assert_eq!(rest, all[n..]);
            assert_eq!(copy.events(), 1);
        }
    }

    #[test]
    fn what_is_not_dropped_is_held() {
        check(0..0, 1, &[0, 9]);
        check(0..10, 3, &[0, 4, 4, 5, 10, 11]);
        check(0..10_000, 100, &[1, 2047, 2048, 2049, 6000, 9999, 10_000]);
        check(5..5000, 5000, &[3, 2053, 4999, 6000]);
    }
}
