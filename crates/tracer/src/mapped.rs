//! BPF maps' memory, shared with the kernel.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::RingMemory;
use crate::slots::{
    KINDS, RING_BYTES, RING_FIRST, RING_HEAD, RING_LOST, RING_ROOM, RING_TAIL, SLOT_BYTES, Slot,
};

/// An mmapped array map. The kernel writes it at any time; all is read and written word by word, atomically.
#[derive(Debug)]
pub struct Mapped {
    start: NonNull<u8>,
    len: usize,
}

impl Mapped {
    /// Maps the first `len` bytes of the map `fd`, rounded up to whole pages.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn new(fd: BorrowedFd<'_>, len: usize) -> std::io::Result<Self> {
        let len = len.next_multiple_of(rustix::param::page_size());
        // SAFETY: a fresh shared mapping at an address of the kernel's choice aliases nothing of ours.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                fd,
                0,
            )
        }?;
        let start = NonNull::new(start.cast()).ok_or(std::io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, len })
    }

    /// Where it begins in this process: aligned to pages.
    #[must_use]
    pub fn address(&self) -> usize {
        self.start.as_ptr().addr()
    }

    /// Its length in bytes, whole pages.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.len
    }

    /// The 8-byte word at `offset`, which kernel and user space share.
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.len, "words lie inside the mapping");
        // SAFETY: the assertion keeps the address inside the mapping.
        let word = unsafe { self.start.add(offset) };
        // SAFETY: the address is inside the mapping and aligned (both asserted; mappings are page
        // aligned), lives as long as `self`, and is only ever accessed atomically by both sides.
        unsafe { AtomicU64::from_ptr(word.as_ptr().cast()) }
    }
}

// SAFETY: the mapping belongs to this value alone, and is only accessed atomically.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: exactly the range that `new` mapped, and no reference outlives `self`.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

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
