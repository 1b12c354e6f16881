//! The reader's side of the per-CPU rings, whatever memory they lie in.
//!
//! ```text
//!   positions:   tail                      head
//!                 | written | written | .. |      a slot is written when its generation is its position's
//!                 ^ ours               ^ reserved, being written
//! ```
//! The programs reserve positions by adding to `head`, then write payloads, then tags. We take whole records up to the
//! first slot that is not written yet, then move `tail`.
//!
//! An interrupt may reserve and write between another record's reservation and its writing; its record comes later in
//! the ring and has the earlier time. All such records are there when the interrupted one is, so ordering what one call
//! takes brings them in order.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use model::{HostNs, TraceEvent};

use crate::slots::{KINDS, RingId, Slot, decode, generation};
use crate::{DecodeError, RingError};

/// Memory that rings lie in: the maps of this kernel, or pages of a guest.
pub trait RingMemory {
    /// Why memory could not be read.
    type Error;

    /// A CPU's head and tail.
    ///
    /// # Errors
    /// If the memory can't be read.
    fn counters(&self, ring: usize) -> Result<(u64, u64), Self::Error>;

    /// Copies slots, the first of them being slot `first` of a CPU's ring. They lie in one piece: this never has to
    /// wrap. It must copy upwards, a slot's tag before its payload.
    ///
    /// # Errors
    /// If the memory can't be read.
    fn read_slots(&self, ring: usize, first: usize, slots: &mut [Slot]) -> Result<(), Self::Error>;

    /// Lets the programs write where we have read.
    ///
    /// # Errors
    /// If the memory can't be written.
    fn set_tail(&mut self, ring: usize, tail: u64) -> Result<(), Self::Error>;

    /// A CPU's losses, by kind.
    ///
    /// # Errors
    /// If the memory can't be read.
    fn lost(&self, ring: usize) -> Result<[u64; KINDS], Self::Error>;
}

/// Takes records out of one CPU's ring.
#[derive(Debug)]
pub struct Consumer {
    base: RingId,
    /// Slots of the ring, a power of two.
    slots: usize,
    /// Next position to take. The ring's own copy is only written: who can write the ring can write nonsense there.
    tail: u64,
    /// Time of the last event handed out: none goes back behind it.
    last: HostNs,
    /// The latest of the programs' times, which begin again after 2^48 ns.
    latest: u64,
    buffer: Vec<Slot>,
}

/// Slots that are copied at once: so many that the cache holds them.
const CHUNK: u64 = 4096;

impl Consumer {
    /// A reader of the ring of CPU `base.cpu`, which has `slots` slots and of which nothing was taken yet.
    ///
    /// # Panics
    /// If `slots` is no power of two.
    #[must_use]
    pub fn new(base: RingId, slots: usize) -> Self {
        assert!(slots.is_power_of_two(), "rings have a power of two slots");
        Self { base, slots, tail: 0, last: HostNs(0), latest: 0, buffer: Vec::new() }
    }

    /// Appends the events that are there, in time order, and frees their room. At most as many slots as the ring has are
    /// taken at once. `clock` turns the programs' times (ns since their base) into the host's.
    ///
    /// # Errors
    /// If the memory can't be read, or holds what no probe writes; what came before it was appended.
    pub fn drain<M: RingMemory>(
        &mut self,
        memory: &mut M,
        clock: impl Fn(u64) -> HostNs,
        events: &mut Vec<TraceEvent>,
    ) -> Result<(), RingError<M::Error>> {
        self.drain_some(memory, self.slots, clock, events)
    }

    /// The same, but of at most so many slots: whole records, so that fewer than 3 may give none.
    ///
    /// # Errors
    /// As above.
    pub fn drain_some<M: RingMemory>(
        &mut self,
        memory: &mut M,
        slots: usize,
        clock: impl Fn(u64) -> HostNs,
        events: &mut Vec<TraceEvent>,
    ) -> Result<(), RingError<M::Error>> {
        let first = events.len();
        let result = self.take(memory, slots, clock, events);
        self.order(&mut events[first..]);
        result
    }

    fn take<M: RingMemory>(
        &mut self,
        memory: &mut M,
        at_most: usize,
        clock: impl Fn(u64) -> HostNs,
        events: &mut Vec<TraceEvent>,
    ) -> Result<(), RingError<M::Error>> {
        let (cpu, ring) = (self.base.cpu, self.base.cpu as usize);
        let failed = |source| RingError::Memory { cpu, source };
        let mut budget = at_most.min(self.slots) as u64;
        loop {
            // Again and again: an interrupt's record must be taken with the one that it came on top of.
            let (head, _) = memory.counters(ring).map_err(failed)?;
            let ready = head.wrapping_sub(self.tail);
            if (self.slots as u64) < ready {
                let (tail, slots) = (self.tail, self.slots as u64);
                return Err(RingError::Counters { cpu, head, tail, slots });
            }
            self.copy(memory, ready.min(budget).min(CHUNK)).map_err(failed)?;
            let before = self.tail;
            let result = self.decode(&clock, events);
            let taken = self.tail.wrapping_sub(before);
            if 0 < taken {
                memory.set_tail(ring, self.tail).map_err(failed)?;
            }
            result.map_err(|error| {
                let position = self.tail;
                RingError::Decode { cpu, position, error }
            })?;
            budget = budget.saturating_sub(taken);
            if taken == 0 {
                return Ok(());
            }
        }
    }

    /// Copies `n` slots from the tail on into the buffer, in two pieces around the wrap.
    fn copy<M: RingMemory>(&mut self, memory: &M, n: u64) -> Result<(), M::Error> {
        let ring = self.base.cpu as usize;
        let n = usize::try_from(n).unwrap_or(0);
        let first = self.tail.checked_rem(self.slots as u64).unwrap_or(0);
        let first = usize::try_from(first).unwrap_or(0);
        let before_wrap = n.min(self.slots.saturating_sub(first));
        self.buffer.resize(n, Slot::default());
        let (low, high) = self.buffer.split_at_mut(before_wrap);
        for (at, piece) in [(first, low), (0, high)] {
            if !piece.is_empty() {
                memory.read_slots(ring, at, piece)?;
            }
        }
        Ok(())
    }

    /// Turns whole records at the begin of the buffer into events, up to the first slot that is not written yet, and moves
    /// the tail behind them.
    fn decode(
        &mut self,
        clock: impl Fn(u64) -> HostNs,
        events: &mut Vec<TraceEvent>,
    ) -> Result<(), DecodeError> {
        let mut at = 0;
        while let Some(first) = self.buffer.get(at) {
            if first.generation() != generation(self.tail, self.slots) {
                break;
            }
            let n = model::record_slots(first.kind()).ok_or(DecodeError::Kind(first.kind()))?;
            let end = at.saturating_add(n);
            let Some(record) = self.buffer.get(at..end) else { break };
            let is_written = |(slot, position): (&Slot, u64)| {
                slot.generation() == generation(position, self.slots)
            };
            if !record.iter().zip(self.tail..).all(is_written) {
                break;
            }
            let time = unwrapped(self.latest, first.low());
            events.push(decode(record, self.base, clock(time))?);
            self.latest = self.latest.max(time);
            self.tail = self.tail.wrapping_add(n as u64);
            at = end;
        }
        Ok(())
    }

    /// Brings what one call took into time order. Nothing goes back behind the call before: a record that was cut off by the
    /// budget might.
    fn order(&mut self, events: &mut [TraceEvent]) {
        if !events.is_sorted_by_key(|event| event.time) {
            events.sort_by_key(|event| event.time);
        }
        for event in events.iter_mut().take_while(|event| event.time < self.last) {
            event.time = self.last;
        }
        self.last = events.last().map_or(self.last, |event| event.time);
    }
}

/// The time whose low 48 bits these are and that is the nearest to `latest`: 78 hours are one round.
fn unwrapped(latest: u64, low: u64) -> u64 {
    const ROUND: u64 = 1 << 48;
    let time = latest & !(ROUND - 1) | low;
    if time.saturating_add(ROUND / 2) < latest {
        time.saturating_add(ROUND)
    } else if latest.saturating_add(ROUND / 2) < time {
        time.saturating_sub(ROUND)
    } else {
        time
    }
}

#[cfg(test)]
mod test;
