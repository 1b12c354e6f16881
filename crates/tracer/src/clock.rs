//! Two clocks read at one moment: the CPU's time-stamp counter and `CLOCK_MONOTONIC`.

use std::arch::x86_64::_rdtsc;

use rustix::time::{ClockId, clock_gettime};

/// What both clocks said at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct ClockPair {
    /// The time-stamp counter, in the middle of `width`.
    pub tsc: u64,
    /// `CLOCK_MONOTONIC`, ns: read somewhere within `width`.
    pub ns: u64,
    /// Ticks of the counter from before reading `ns` to after.
    pub width: u64,
}

impl ClockPair {
    /// The tightest of so many readings, at least one.
    #[must_use]
    pub fn tightest(readings: u32) -> Self {
        let pairs = (0..readings.max(1)).map(|_| Self::read());
        pairs.min_by_key(|pair| pair.width).unwrap_or_default()
    }

    fn read() -> Self {
        let before = read_tsc();
        let ns = now_ns();
        let width = read_tsc().saturating_sub(before);
        Self { tsc: before.wrapping_add(width / 2), ns, width }
    }
}

fn read_tsc() -> u64 {
    // SAFETY: every x86-64 CPU has the instruction; reading the counter has no other effect.
    unsafe { _rdtsc() }
}

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn pairs_go_forward() {
        let (first, second) = (ClockPair::tightest(100), ClockPair::tightest(0));
        assert!(first.tsc < second.tsc && first.ns < second.ns);
        assert!(0 < first.width);
    }
}
