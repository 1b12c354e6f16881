//! The consumer's side of the per-CPU rings.
//!
//! ```text
//!   slots of one CPU:   [ free | published ......... | free ]
//!                              ^ tail (ours)         ^ head (the program's)
//! ```
//! The program writes a slot, then moves `head`; we read up to `head`, then move `tail`. Head and tail
//! only grow; the slot is their value modulo the number of slots, a power of two.

use std::sync::atomic::Ordering;

use crate::abi::{RING_BYTES, RING_DROPPED, RING_HEAD, RING_READ_ERRORS, RING_TAIL, RING_UNKNOWN};
use bpf::Mapped;

/// The rings of all CPUs.
#[derive(Debug)]
pub(crate) struct Rings {
    pub(crate) heads: Mapped,
    pub(crate) records: Mapped,
    pub(crate) record_bytes: usize,
    /// Slots per CPU, a power of two.
    pub(crate) slots: usize,
}

/// What a CPU's ring has seen so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RingCounters {
    /// Records written.
    pub written: u64,
    /// Records lost because the ring was full.
    pub dropped: u64,
    /// vCPU samples whose registers could not all be read.
    pub read_errors: u64,
    /// Samples that interrupted a guest whose vCPU is not in the table: time to look for vCPUs.
    pub unknown_vcpus: u64,
}

impl Rings {
    /// Hands out what CPU `cpu` has published: at most two runs (before and after the wrap), each with the
    /// number of its first slot among all CPUs' slots. Only when all were taken the kernel may write there again.
    pub(crate) fn drain<E>(
        &self,
        cpu: usize,
        mut take: impl FnMut(usize, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let ring = cpu * RING_BYTES;
        let head = self.heads.load(ring + RING_HEAD);
        let tail = self.heads.load(ring + RING_TAIL);
        for (slot, n) in runs(tail, head, self.slots) {
            let first = cpu * self.slots + slot;
            let (offset, len) = (first * self.record_bytes, n * self.record_bytes);
            // SAFETY: these slots lie between tail and head, and the tail moves only below.
            let records = unsafe { self.records.published(offset, len) };
            take(first, records)?;
        }
        self.heads.word(ring + RING_TAIL).store(head, Ordering::Release);
        Ok(())
    }

    /// Appends `n` published records to `to`, from `skip` behind the tail on. Fewer if there are fewer.
    pub(crate) fn copy(&self, cpu: usize, skip: usize, n: usize, to: &mut Vec<u8>) {
        let ring = cpu * RING_BYTES;
        let tail = self.heads.load(ring + RING_TAIL).wrapping_add(skip as u64);
        let published = self.heads.load(ring + RING_HEAD).wrapping_sub(tail);
        let n = published.min(n as u64);
        for (slot, n) in runs(tail, tail.wrapping_add(n), self.slots) {
            let first = cpu * self.slots + slot;
            let (offset, len) = (first * self.record_bytes, n * self.record_bytes);
            // SAFETY: these slots lie between tail and head, and the tail moves only in `release`.
            to.extend_from_slice(unsafe { self.records.published(offset, len) });
        }
    }

    /// The kernel may write again where the first `n` records were.
    pub(crate) fn release(&self, cpu: usize, n: usize) {
        let tail = cpu * RING_BYTES + RING_TAIL;
        let moved = self.heads.load(tail).wrapping_add(n as u64);
        self.heads.word(tail).store(moved, Ordering::Release);
    }

    pub(crate) fn counters(&self, cpu: usize) -> RingCounters {
        let ring = cpu * RING_BYTES;
        RingCounters {
            written: self.heads.load(ring + RING_HEAD),
            dropped: self.heads.load(ring + RING_DROPPED),
            read_errors: self.heads.load(ring + RING_READ_ERRORS),
            unknown_vcpus: self.heads.load(ring + RING_UNKNOWN),
        }
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
