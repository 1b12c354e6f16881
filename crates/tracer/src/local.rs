//! The rings of this kernel: BPF maps' memory.

use std::sync::atomic::Ordering;

use bpf::Mapped;

use crate::RingMemory;
use crate::slots::{
    KINDS, RING_BYTES, RING_FIRST, RING_HEAD, RING_LOST, RING_ROOM, RING_TAIL, SLOT_BYTES, Slot,
};

/// The rings of this kernel.
#[derive(Debug)]
pub struct LocalRings {
    /// `struct trace_ring` of every CPU, 512 bytes each, by the CPU's number.
    pub heads: Mapped,
    /// The slots: `slots_per_cpu` of 16 bytes for each CPU.
    pub slots: Mapped,
    /// Slots of a ring, a power of two.
    pub slots_per_cpu: usize,
}

impl LocalRings {
    /// Tells the programs where the slots of a ring lie, and that they may write them, all but `margin`.
    pub(crate) fn give_room(&self, ring: usize, margin: u64) {
        let (at, slots) = (ring * RING_BYTES, self.slots_per_cpu as u64);
        self.heads.word(at + RING_FIRST).store(ring as u64 * slots, Ordering::Relaxed);
        self.heads.word(at + RING_ROOM).store(slots - margin, Ordering::Release);
    }
}

impl RingMemory for LocalRings {
    type Error = std::convert::Infallible;

    fn counters(&self, ring: usize) -> Result<(u64, u64), Self::Error> {
        let at = ring * RING_BYTES;
        let head = self.heads.word(at + RING_HEAD).load(Ordering::Acquire);
        Ok((head, self.heads.word(at + RING_TAIL).load(Ordering::Relaxed)))
    }

    fn read_slots(&self, ring: usize, first: usize, slots: &mut [Slot]) -> Result<(), Self::Error> {
        let start = (ring * self.slots_per_cpu + first) * SLOT_BYTES;
        for (slot, at) in slots.iter_mut().zip((start..).step_by(SLOT_BYTES)) {
            slot.tag = self.slots.word(at).load(Ordering::Acquire);
            slot.payload = self.slots.word(at + 8).load(Ordering::Relaxed);
        }
        Ok(())
    }

    fn set_tail(&mut self, ring: usize, tail: u64) -> Result<(), Self::Error> {
        self.heads.word(ring * RING_BYTES + RING_TAIL).store(tail, Ordering::Release);
        Ok(())
    }

    fn lost(&self, ring: usize) -> Result<[u64; KINDS], Self::Error> {
        let at = |kind| ring * RING_BYTES + RING_LOST + kind * 8;
        Ok(std::array::from_fn(|kind| self.heads.word(at(kind)).load(Ordering::Relaxed)))
    }
}
