//! A loop of short system calls, and what one takes.

use std::time::Instant;

/// Calls per batch: so few that most batches are not interrupted.
pub(crate) const CALLS: u32 = 500;
pub(crate) const BATCHES: usize = 500;

/// The time of a call, ns: the mean of each of many batches.
pub(crate) fn batches() -> Vec<f64> {
    (0..BATCHES).map(|_| ns_per_call()).collect()
}

pub(crate) fn ns_per_call() -> f64 {
    let begin = Instant::now();
    call();
    begin.elapsed().as_nanos() as f64 / f64::from(CALLS)
}

/// `CALLS` system calls.
pub(crate) fn call() {
    for _ in 0..CALLS {
        std::hint::black_box(rustix::process::getppid());
    }
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
