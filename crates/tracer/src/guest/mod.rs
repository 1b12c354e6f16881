//! In a guest, while the host drains its rings: which of its pages the rings lie in.

mod pages;

pub use pages::{PagesError, pages_of};

use std::sync::atomic::Ordering;

use crate::slots::{RING_BYTES, RING_MARK};
use bpf::Mapped;

/// Writes a mark into the first `rings` rings, where no probe writes: by it the host knows that it reads the right memory,
/// and that it can read it at all.
pub fn mark(heads: &Mapped, rings: usize, mark: u64) {
    for ring in 0..rings {
        heads.word(ring * RING_BYTES + RING_MARK).store(mark, Ordering::Release);
    }
}
