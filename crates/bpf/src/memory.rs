//! Memory of BPF array maps, shared with the kernel.
//!
//! Programs write there at any time. Words are only ever read and written atomically. The owner of a map's layout decides
//! what may be read when.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// An mmapped array map (`BPF_F_MMAPABLE`).
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
    ///
    /// # Panics
    /// If it does not lie inside, or is not aligned.
    #[must_use]
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.len, "words lie inside the mapping");
        // SAFETY: the assertion keeps the address inside the mapping.
        let word = unsafe { self.start.add(offset) };
        // SAFETY: the address is inside the mapping and aligned (both asserted; mappings are page
        // aligned), lives as long as `self`, and is only ever accessed atomically by both sides.
        unsafe { AtomicU64::from_ptr(word.as_ptr().cast()) }
    }

    /// The 4-byte word at `offset`, which kernel and user space share.
    ///
    /// # Panics
    /// As `word`.
    #[must_use]
    pub fn half_word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.len, "words lie inside the mapping");
        // SAFETY: the assertion keeps the address inside the mapping.
        let word = unsafe { self.start.add(offset) };
        // SAFETY: as in `word`.
        unsafe { AtomicU32::from_ptr(word.as_ptr().cast()) }
    }

    /// The 8-byte word at `offset`, and all that was written before it.
    ///
    /// # Panics
    /// As `word`.
    #[must_use]
    pub fn load(&self, offset: usize) -> u64 {
        self.word(offset).load(Ordering::Acquire)
    }

    /// Bytes that the kernel has published and will not write again until it is allowed to.
    ///
    /// # Panics
    /// If they do not lie inside.
    ///
    /// # Safety
    /// No writer may touch the range while the slice lives: in a ring, it lies between tail and head, and the tail
    /// stays.
    #[must_use]
    pub unsafe fn published(&self, offset: usize, len: usize) -> &[u8] {
        assert!(offset + len <= self.len, "slots lie inside the mapping");
        // SAFETY: the assertion keeps the address inside the mapping.
        let start = unsafe { self.start.add(offset) };
        // SAFETY: inside the mapping, and the caller guarantees that no one writes at the same time.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), len) }
    }
}

// SAFETY: the mapping belongs to this value alone, and words are only accessed atomically.
unsafe impl Send for Mapped {}
// SAFETY: as above; a reader of plain bytes promises that there is no writer.
unsafe impl Sync for Mapped {}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: exactly the range that `new` mapped, and no reference outlives `self`.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}
