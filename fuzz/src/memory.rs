//! Counts what a target allocates. One that takes more than it may leaves its input, and ends the program.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The program's allocator.
pub(crate) struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
/// Beyond this the input is given up at once: the machine has no more.
static LIMIT: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Begins to count for one input; it may take `limit` bytes more than are live now.
pub(crate) fn begin(limit: usize) -> usize {
    let live = LIVE.load(Ordering::Relaxed);
    PEAK.store(live, Ordering::Relaxed);
    LIMIT.store(live.saturating_add(limit), Ordering::Relaxed);
    live
}

/// How much more than `live` was allocated at a time since.
pub(crate) fn peak_since(live: usize) -> usize {
    LIMIT.store(usize::MAX, Ordering::Relaxed);
    PEAK.load(Ordering::Relaxed).saturating_sub(live)
}

fn add(bytes: usize) {
    let live = LIVE.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
    PEAK.fetch_max(live, Ordering::Relaxed);
    if LIMIT.load(Ordering::Relaxed) < live {
        LIMIT.store(usize::MAX, Ordering::Relaxed);
        crate::give_up("takes more memory than it may");
    }
}

// SAFETY: the system's allocator does it all; this counts.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        add(size);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
