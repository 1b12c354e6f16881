//! A guest's rings, whose slots the guest sends.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use crate::RingMemory;
use crate::slots::{KINDS, SLOT_BYTES, Slot};

use super::layout::{Claim, LayoutError};

/// Copies of a guest's rings, filled by what it sends.
#[derive(Debug)]
pub struct SentRings {
    slots_per_ring: usize,
    rings: Vec<Ring>,
}

#[derive(Debug, Clone)]
struct Ring {
    head: u64,
    tail: u64,
    lost: [u64; KINDS],
    /// As many as came so far, at most `slots_per_ring`.
    slots: Vec<Slot>,
}

impl Ring {
    const EMPTY: Self = Self { head: 0, tail: 0, lost: [0; KINDS], slots: Vec::new() };
}

/// Why what a guest sent can't be taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SentError {
    /// Of a CPU that it has not.
    #[error("it sent events of CPU {0}, which does not exist")]
    Ring(usize),
    /// Not whole slots, or more than a ring holds.
    #[error("it sent {0} bytes of events at once")]
    Length(usize),
}

impl SentRings {
    /// Empty rings.
    ///
    /// # Errors
    /// When their sizes are out of bounds.
    pub fn new(rings: usize, slots_per_ring: usize) -> Result<Self, LayoutError> {
        Claim { slots_per_ring, rings, ..Claim::default() }.check_sizes()?;
        Ok(Self { slots_per_ring, rings: vec![Ring::EMPTY; rings] })
    }

    /// Takes slots that the guest sent: those that follow the ones it sent before.
    ///
    /// # Errors
    /// When they are not whole, or more than there is room for.
    pub fn put(&mut self, ring: usize, bytes: &[u8]) -> Result<(), SentError> {
        let capacity = self.slots_per_ring;
        let ring = self.rings.get_mut(ring).ok_or(SentError::Ring(ring))?;
        let used = usize::try_from(ring.head.wrapping_sub(ring.tail)).unwrap_or(capacity);
        let free = capacity.saturating_sub(used);
        if !bytes.len().is_multiple_of(SLOT_BYTES) || free < bytes.len() / SLOT_BYTES {
            return Err(SentError::Length(bytes.len()));
        }
        for slot in bytes.as_chunks::<SLOT_BYTES>().0 {
            ring.push(self::slot(slot), capacity);
        }
        Ok(())
    }

    /// Takes a ring's counters of losses, by kind; unknown kinds are left out.
    ///
    /// # Errors
    /// When there is no such ring.
    pub fn set_lost(&mut self, ring: usize, lost: &[u64]) -> Result<(), SentError> {
        let ring = self.rings.get_mut(ring).ok_or(SentError::Ring(ring))?;
        ring.lost.iter_mut().zip(lost).for_each(|(to, from)| *to = *from);
        Ok(())
    }
}

impl Ring {
    fn push(&mut self, slot: Slot, capacity: usize) {
        let at = self.head.checked_rem(capacity as u64).unwrap_or(0);
        let at = usize::try_from(at).unwrap_or(0);
        match self.slots.get_mut(at) {
            Some(place) => *place = slot,
            None => self.slots.push(slot),
        }
        self.head = self.head.wrapping_add(1);
    }
}

pub(super) fn slot(bytes: &[u8; SLOT_BYTES]) -> Slot {
    let word = |at: usize| bytes[at..].first_chunk().copied().map_or(0, u64::from_le_bytes);
    Slot { tag: word(0), payload: word(8) }
}

impl RingMemory for SentRings {
    type Error = SentError;

    fn counters(&self, ring: usize) -> Result<(u64, u64), SentError> {
        let ring = self.rings.get(ring).ok_or(SentError::Ring(ring))?;
        Ok((ring.head, ring.tail))
    }

    fn read_slots(&self, ring: usize, first: usize, slots: &mut [Slot]) -> Result<(), SentError> {
        let from = &self.rings.get(ring).ok_or(SentError::Ring(ring))?.slots;
        let end = first.saturating_add(slots.len());
        let from = from.get(first..end).ok_or(SentError::Length(slots.len()))?;
        slots.copy_from_slice(from);
        Ok(())
    }

    fn set_tail(&mut self, ring: usize, tail: u64) -> Result<(), SentError> {
        let ring = self.rings.get_mut(ring).ok_or(SentError::Ring(ring))?;
        ring.tail = tail.min(ring.head);
        Ok(())
    }

    fn lost(&self, ring: usize) -> Result<[u64; KINDS], SentError> {
        Ok(self.rings.get(ring).ok_or(SentError::Ring(ring))?.lost)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn bytes(tags: std::ops::Range<u64>) -> Vec<u8> {
        tags.flat_map(|tag| [tag, tag * 10]).flat_map(u64::to_le_bytes).collect()
    }

    #[test]
    fn slots_lie_where_the_guest_had_them() {
        let mut rings = SentRings::new(2, 4).unwrap();
        rings.put(1, &bytes(0..3)).unwrap();
        assert_eq!(rings.counters(1), Ok((3, 0)));
        rings.set_tail(1, 2).unwrap();
        rings.put(1, &bytes(3..6)).unwrap();
        assert_eq!(rings.counters(1), Ok((6, 2)));
        let mut slots = [Slot::default(); 2];
        rings.read_slots(1, 0, &mut slots).unwrap();
        assert_eq!(slots, [Slot { tag: 4, payload: 40 }, Slot { tag: 5, payload: 50 }]);
        rings.set_lost(1, &[0, 7]).unwrap();
        assert_eq!(rings.lost(1).unwrap()[..3], [0, 7, 0]);
        assert_eq!(rings.counters(0), Ok((0, 0)));
    }

    #[test]
    fn what_can_not_be_is_refused() {
        let mut rings = SentRings::new(1, 4).unwrap();
        assert_eq!(rings.put(1, &[]), Err(SentError::Ring(1)));
        assert_eq!(rings.put(0, &[0; 15]), Err(SentError::Length(15)));
        assert_eq!(rings.put(0, &bytes(0..5)), Err(SentError::Length(80)));
        rings.put(0, &bytes(0..4)).unwrap();
        assert_eq!(rings.put(0, &bytes(0..1)), Err(SentError::Length(16)));
        assert!(rings.set_lost(3, &[]).is_err());
        assert!(SentRings::new(1, 5).is_err());
        // A tail beyond the head would let `put` count below zero.
        rings.set_tail(0, 100).unwrap();
        assert_eq!(rings.counters(0), Ok((4, 4)));
        rings.put(0, &bytes(0..4)).unwrap();
    }
}
