//! Slots that were copied out of a guest's ring, for one look at it.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use super::memory::MemoryError;
use super::sent::slot;
use crate::RingMemory;
use crate::slots::{KINDS, SLOT_BYTES, Slot};

/// What lay in a ring from a position on.
#[derive(Debug)]
pub struct TakenSlots {
    slots_per_ring: u64,
    first: u64,
    head: u64,
    tail: u64,
    slots: Vec<Slot>,
}

impl TakenSlots {
    /// What `GuestRings::take` said of a ring of so many slots, from position `first` on.
    #[must_use]
    pub fn new(slots_per_ring: usize, first: u64, head: u64, bytes: &[u8]) -> Self {
        let slots_per_ring = slots_per_ring as u64;
        let slots: Vec<Slot> = bytes.as_chunks::<SLOT_BYTES>().0.iter().map(slot).collect();
        let there = head.wrapping_sub(first);
        // Its reader says what is wrong with a head that is out of reach.
        let is_sane = there <= slots_per_ring;
        let head = if is_sane { first.wrapping_add(there.min(slots.len() as u64)) } else { head };
        Self { slots_per_ring, first, head, tail: first, slots }
    }

    /// The first position that was not read yet.
    #[must_use]
    pub fn tail(&self) -> u64 {
        self.tail
    }
}

impl RingMemory for TakenSlots {
    type Error = MemoryError;

    fn counters(&self, _ring: usize) -> Result<(u64, u64), MemoryError> {
        Ok((self.head, self.tail))
    }

    fn read_slots(
        &self,
        _ring: usize,
        first: usize,
        slots: &mut [Slot],
    ) -> Result<(), MemoryError> {
        let ours = self.first.checked_rem(self.slots_per_ring).unwrap_or(0);
        let round = (first as u64).wrapping_add(self.slots_per_ring).wrapping_sub(ours);
        let at = round.checked_rem(self.slots_per_ring).unwrap_or(0);
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        let from = self.slots.get(at..at.saturating_add(slots.len()));
        slots.copy_from_slice(from.ok_or(MemoryError::Unreadable)?);
        Ok(())
    }

    /// The taker tells the guest.
    fn set_tail(&mut self, _ring: usize, tail: u64) -> Result<(), MemoryError> {
        self.tail = tail;
        Ok(())
    }

    fn lost(&self, _ring: usize) -> Result<[u64; KINDS], MemoryError> {
        Ok([0; KINDS])
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn bytes(tags: std::ops::Range<u64>) -> Vec<u8> {
        tags.flat_map(|tag| [tag, 0]).flat_map(u64::to_le_bytes).collect()
    }

    #[test]
    fn slots_lie_where_they_lay() {
        // Positions 6 to 9 of a ring of 4 slots: slots 2, 3, 0 and 1.
        let taken = TakenSlots::new(4, 6, 10, &bytes(6..10));
        assert_eq!(taken.counters(0), Ok((10, 6)));
        let mut slots = [Slot::default(); 2];
        for (first, expected) in [(2, [6, 7]), (0, [8, 9]), (3, [7, 8])] {
            taken.read_slots(0, first, &mut slots).unwrap();
            assert_eq!(slots.map(|slot| slot.tag), expected, "{first}");
        }
        assert_eq!(taken.read_slots(0, 1, &mut slots), Err(MemoryError::Unreadable));
    }

    #[test]
    fn more_than_was_copied_is_not_there() {
        let head = |first, head, n| TakenSlots::new(4, first, head, &bytes(0..n)).counters(0);
        assert_eq!(head(6, 10, 2), Ok((8, 6)));
        assert_eq!(head(6, 7, 4), Ok((7, 6)));
        assert_eq!(head(u64::MAX, 1, 2), Ok((1, u64::MAX)));
        // Out of reach: as it is.
        assert_eq!(head(6, 11, 4), Ok((11, 6)));
        assert_eq!(head(6, 5, 0), Ok((5, 6)));
    }
}
