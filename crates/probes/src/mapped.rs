//! A BPF map's memory, shared with the kernel.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// An mmapped array map. The kernel writes it at any time; what may be read when is the ring
/// protocol's business (see `ring`).
#[derive(Debug)]
pub(crate) struct Mapped {
    start: NonNull<u8>,
    len: usize,
}

impl Mapped {
    pub(crate) fn new(fd: BorrowedFd<'_>, len: usize) -> std::io::Result<Self> {
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

    /// The 8-byte word at `offset`, which kernel and user space share.
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.len, "words lie inside the mapping");
        // SAFETY: the assertion keeps the address inside the mapping.
        let word = unsafe { self.start.add(offset) };
        // SAFETY: the address is inside the mapping and aligned (both asserted; mappings are page
        // aligned), lives as long as `self`, and is only ever accessed atomically by both sides.
        unsafe { AtomicU64::from_ptr(word.as_ptr().cast()) }
    }

    /// The 4-byte word at `offset`, which kernel and user space share.
    pub(crate) fn half_word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.len, "words lie inside the mapping");
        // SAFETY: the assertion keeps the address inside the mapping.
        let word = unsafe { self.start.add(offset) };
        // SAFETY: as in `word`.
        unsafe { AtomicU32::from_ptr(word.as_ptr().cast()) }
    }

    pub(crate) fn load(&self, offset: usize) -> u64 {
        self.word(offset).load(Ordering::Acquire)
    }

    /// Bytes that the kernel has published and will not write again before the ring's tail moves.
    ///
    /// # Safety
    /// The range must lie between the ring's tail and head, and the tail must not move while the
    /// slice lives.
    pub(crate) unsafe fn published(&self, offset: usize, len: usize) -> &[u8] {
        assert!(offset + len <= self.len, "slots lie inside the mapping");
        // SAFETY: the assertion keeps the address inside the mapping.
        let start = unsafe { self.start.add(offset) };
        // SAFETY: inside the mapping, and the caller guarantees that nobody writes there meanwhile.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), len) }
    }
}

// SAFETY: the mapping belongs to this value alone and may be used from any one thread.
unsafe impl Send for Mapped {}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: exactly the range that `new` mapped, and no reference outlives `self`.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}
