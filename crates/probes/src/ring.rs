//! The consumer's side of the per-CPU rings.
//!
//! ```text
//!   slots of one CPU:   [ free | published ......... | free ]
//!                              ^ tail (ours)         ^ head (the sampler's)
//! ```
//! The sampler writes a slot, then moves `head`; we read up to `head`, then move `tail`. Head and tail
//! only grow; the slot is their value modulo the number of slots, a power of two.

use std::sync::atomic::Ordering;

use crate::abi::{
    RING_BYTES, RING_DROPPED, RING_HEAD, RING_READ_ERRORS, RING_TAIL, RawStack, SAMPLE_BYTES,
    SAMPLE_VCPU, STACK_BYTES, VCPU_UNKNOWN, field,
};
use crate::mapped::Mapped;

/// The rings of all CPUs.
#[derive(Debug)]
pub(crate) struct Rings {
    pub(crate) heads: Mapped,
    pub(crate) samples: Mapped,
    pub(crate) stacks: Option<Mapped>,
    /// Slots per CPU, a power of two.
    pub(crate) slots: usize,
}

/// A run of consecutive records of one CPU.
#[derive(Debug)]
pub struct Drained<'a> {
    /// The records, 96 bytes each, see bpf/abi/sample.h.
    pub records: &'a [u8],
    stacks: Option<&'a [u8]>,
}

impl<'a> Drained<'a> {
    /// Number of records.
    #[must_use]
    pub fn len(&self) -> usize {
        self.records.len() / SAMPLE_BYTES
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The call stack of record `i`, when call graphs are on.
    #[must_use]
    pub fn stack(&self, i: usize) -> Option<RawStack<'a>> {
        self.stacks.map(|stacks| RawStack(&stacks[i * STACK_BYTES..(i + 1) * STACK_BYTES]))
    }

    /// Whether a guest was interrupted whose vCPU is not in the table: time to look for vCPUs.
    #[must_use]
    pub fn has_unknown_vcpu(&self) -> bool {
        self.records
            .chunks_exact(SAMPLE_BYTES)
            .any(|record| u32::from_le_bytes(field(record, SAMPLE_VCPU.start)) == VCPU_UNKNOWN)
    }
}

/// What a CPU's ring has seen so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RingCounters {
    /// Records written.
    pub written: u64,
    /// Samples lost because the ring was full.
    pub dropped: u64,
    /// vCPU samples whose registers could not all be read.
    pub read_errors: u64,
}

impl Rings {
    /// Hands out what CPU `cpu` has published: at most two runs (before and after the wrap).
    pub(crate) fn drain<E>(
        &self,
        cpu: usize,
        mut take: impl FnMut(Drained<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let ring = cpu * RING_BYTES;
        let head = self.heads.load(ring + RING_HEAD);
        let tail = self.heads.load(ring + RING_TAIL);
        for (slot, n) in runs(tail, head, self.slots) {
            take(self.published(cpu * self.slots + slot, n))?;
        }
        self.heads.word(ring + RING_TAIL).store(head, Ordering::Release);
        Ok(())
    }

    pub(crate) fn counters(&self, cpu: usize) -> RingCounters {
        let ring = cpu * RING_BYTES;
        RingCounters {
            written: self.heads.load(ring + RING_HEAD),
            dropped: self.heads.load(ring + RING_DROPPED),
            read_errors: self.heads.load(ring + RING_READ_ERRORS),
        }
    }

    fn published(&self, slot: usize, n: usize) -> Drained<'_> {
        // SAFETY: `drain` passes slots between tail and head, and moves the tail only afterwards.
        let records = unsafe { self.samples.published(slot * SAMPLE_BYTES, n * SAMPLE_BYTES) };
        let stacks = self.stacks.as_ref().map(|stacks| {
            // SAFETY: as above; a sample's stack is written before the head moves.
            unsafe { stacks.published(slot * STACK_BYTES, n * STACK_BYTES) }
        });
        Drained { records, stacks }
    }
}

/// The published slots as (first slot, number of slots) runs.
fn runs(tail: u64, head: u64, slots: usize) -> impl Iterator<Item = (usize, usize)> {
    let count = usize::try_from(head.wrapping_sub(tail)).unwrap_or(usize::MAX).min(slots);
    let first = usize::try_from(tail % slots as u64).expect("less than the number of slots");
    let before_wrap = count.min(slots - first);
    [(first, before_wrap), (0, count - before_wrap)].into_iter().filter(|(_, n)| 0 < *n)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn published_slots_come_in_order_around_the_wrap() {
        let check = |tail, head, expected: &[(usize, usize)]| {
            assert_eq!(runs(tail, head, 8).collect::<Vec<_>>(), expected, "{tail}..{head}");
        };
        check(0, 0, &[]);
        check(0, 3, &[(0, 3)]);
        check(6, 8, &[(6, 2)]);
        check(6, 11, &[(6, 2), (0, 3)]);
        check(8, 16, &[(0, 8)]);
        check(9, 17, &[(1, 7), (0, 1)]);
    }
}
