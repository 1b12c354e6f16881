//! The host's clocks, where the edge reads them.

use model::HostNs;
use rustix::time::{ClockId, clock_gettime};

/// `CLOCK_MONOTONIC`, the clock of every sample.
#[must_use]
pub fn now() -> HostNs {
    HostNs(read(ClockId::Monotonic))
}

/// `CLOCK_REALTIME`, ns since 1970.
#[must_use]
pub fn unix_now_ns() -> u64 {
    read(ClockId::Realtime)
}

fn read(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}
