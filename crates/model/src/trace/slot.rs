//! Slots: what BPF programs write into the rings of a trace.

use super::{LockKind, TaskName, TraceStack};
use crate::Tid;

/// A slot of a ring: `struct trace_slot` of `bpf/abi/trace.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Slot {
    /// Generation, kind, time or data.
    pub tag: u64,
    /// By kind.
    pub payload: u64,
}

/// Bytes of a slot.
pub const SLOT_BYTES: usize = 16;

const _: () = assert!(size_of::<Slot>() == SLOT_BYTES, "as in the header");

/// A slot that continues a record.
pub const SLOT_MORE: u8 = 255;
/// Where a tag's kind begins.
pub const SLOT_KIND_SHIFT: u32 = 48;
const LOW_MASK: u64 = (1 << SLOT_KIND_SHIFT) - 1;

/// `LCB_F_*` of include/trace/events/lock.h.
const LOCK_SPIN: u64 = 1;
const LOCK_READ: u64 = 1 << 1;
const LOCK_WRITE: u64 = 1 << 2;
const LOCK_RT: u64 = 1 << 3;
const LOCK_PERCPU: u64 = 1 << 4;
const LOCK_MUTEX: u64 = 1 << 5;
/// `TRACE_LOCK_FUTEX`.
const LOCK_FUTEX: u64 = 1 << 16;

impl Slot {
    /// The generation of the ring in which it was written.
    #[must_use]
    pub fn generation(self) -> u8 {
        self.tag.to_be_bytes()[0]
    }

    /// The kind of the slot.
    #[must_use]
    pub fn kind(self) -> u8 {
        self.tag.to_be_bytes()[1]
    }

    /// Time or data: 48 bits.
    #[must_use]
    pub fn low(self) -> u64 {
        self.tag & LOW_MASK
    }
}

/// The slots of one record: as many as its kind has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record<'a>(pub(super) &'a [Slot]);

impl Record<'_> {
    /// The payload of a slot.
    pub(super) fn payload(self, slot: usize) -> u64 {
        self.0[slot].payload
    }

    /// The 48 bits of data of a slot that is not the first.
    pub(super) fn data(self, slot: usize) -> u64 {
        self.0[slot].low()
    }

    /// The upper half of a payload.
    pub(super) fn high(self, slot: usize) -> u32 {
        let [a, b, c, d, ..] = self.payload(slot).to_be_bytes();
        u32::from_be_bytes([a, b, c, d])
    }

    /// The lower half of a payload.
    pub(super) fn low(self, slot: usize) -> u32 {
        let [.., a, b, c, d] = self.payload(slot).to_be_bytes();
        u32::from_be_bytes([a, b, c, d])
    }

    /// A payload that is one 32-bit value.
    pub(super) fn whole(self, slot: usize) -> Option<u32> {
        u32::try_from(self.payload(slot)).ok()
    }

    /// The task in the first payload's lower half.
    pub(super) fn task(self) -> Tid {
        Tid(self.low(0))
    }

    /// The task in the first payload's upper half.
    pub(super) fn other_task(self) -> Tid {
        Tid(self.high(0))
    }

    /// A task's name: 6 bytes in the data, 8 in the payload.
    pub(super) fn name(self, slot: usize) -> TaskName {
        let mut bytes = [0; 14];
        bytes[..6].copy_from_slice(&self.0[slot].tag.to_le_bytes()[..6]);
        bytes[6..].copy_from_slice(&self.payload(slot).to_le_bytes());
        TaskName::new(&bytes)
    }
}

/// The value with this number, of a list in the order of numbers.
pub(super) fn value<T: Copy>(values: &[T], number: u64) -> Option<T> {
    values.get(usize::try_from(number).ok()?).copied()
}

/// What `bpf_get_stackid()` returned: negative for none.
pub(super) fn stack(id: u32) -> Option<TraceStack> {
    (id <= i32::MAX as u32).then_some(TraceStack(id))
}

/// Row of a user stack and one; 0 for none.
pub(super) fn user_stack(row_and_one: u32) -> Option<TraceStack> {
    TraceStack::of_user(row_and_one.checked_sub(1)?)
}

/// A mutex that is spun for carries both flags, and so do reader-writer spinlocks.
pub(super) fn lock_kind(flags: u64) -> LockKind {
    let has = |flag| flags & flag != 0;
    if has(LOCK_FUTEX) {
        LockKind::Futex
    } else if has(LOCK_MUTEX) {
        LockKind::Mutex
    } else if has(LOCK_PERCPU) || has(LOCK_RT) {
        LockKind::Other
    } else if has(LOCK_SPIN) {
        LockKind::Spin
    } else if has(LOCK_WRITE) {
        LockKind::SemWrite
    } else if has(LOCK_READ) {
        LockKind::SemRead
    } else {
        LockKind::Other
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn user_stacks_have_numbers_of_their_own() {
        let check = |value, expected: Option<u32>| {
            assert_eq!(user_stack(value), expected.map(TraceStack), "{value}");
        };
        check(0, None);
        check(1, Some(1 << 30));
        check(1 << 30, Some((1 << 31) - 1));
        check((1 << 30) + 1, None);
        check(u32::MAX, None);
        assert!(!TraceStack(16_383).is_user() && TraceStack(1 << 30).is_user());
    }

    #[test]
    fn lock_flags() {
        let check = |flags, expected| assert_eq!(lock_kind(flags), expected, "{flags:#x}");
        check(LOCK_SPIN, LockKind::Spin);
        check(LOCK_SPIN | LOCK_READ, LockKind::Spin);
        check(LOCK_MUTEX, LockKind::Mutex);
        check(LOCK_MUTEX | LOCK_SPIN, LockKind::Mutex);
        check(LOCK_READ, LockKind::SemRead);
        check(LOCK_WRITE, LockKind::SemWrite);
        check(LOCK_PERCPU | LOCK_READ, LockKind::Other);
        check(LOCK_RT | LOCK_WRITE, LockKind::Other);
        check(LOCK_FUTEX, LockKind::Futex);
        check(0, LockKind::Other);
        check(1 << 47, LockKind::Other);
    }
}
