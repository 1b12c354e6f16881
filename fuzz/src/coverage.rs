//! Which code an input reached: the counters of `-C instrument-coverage`, which `make fuzz` compiles in.

#![allow(unexpected_cfgs, reason = "only `make fuzz` says it")]

#[cfg(coverage)]
unsafe extern "C" {
    safe fn __llvm_profile_begin_counters() -> *mut u64;
    safe fn __llvm_profile_end_counters() -> *mut u64;
}

/// What was reached so far, by any input.
pub(crate) struct Coverage {
    /// For each counter the powers of two of how often one input has passed it.
    seen: Vec<u8>,
}

impl Coverage {
    pub(crate) fn new() -> Self {
        Self { seen: vec![0; counters().len()] }
    }

    /// Forgets what ran before.
    pub(crate) fn begin(&self) {
        counters().fill(0);
    }

    /// Whether the input that just ran reached something new, or something much more often.
    pub(crate) fn is_new(&mut self) -> bool {
        let mut is_new = false;
        for (count, seen) in counters().iter().zip(&mut self.seen) {
            if *count != 0 {
                let bit = 1_u8 << (count.ilog2() / 2).min(7);
                is_new |= *seen & bit == 0;
                *seen |= bit;
            }
        }
        is_new
    }

    /// How much was reached.
    pub(crate) fn reached(&self) -> usize {
        self.seen.iter().filter(|seen| **seen != 0).count()
    }
}

#[cfg(coverage)]
fn counters() -> &'static mut [u64] {
    let (begin, end) = (__llvm_profile_begin_counters(), __llvm_profile_end_counters());
    let length = (end.addr() - begin.addr()) / size_of::<u64>();
    // SAFETY: the profiling runtime's own array; only this thread works while it is looked at.
    unsafe { std::slice::from_raw_parts_mut(begin, length) }
}

#[cfg(not(coverage))]
fn counters() -> &'static mut [u64] {
    &mut []
}
