//! Times name their clock.

/// Nanoseconds of the host's `CLOCK_MONOTONIC`, the one time axis of a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct HostNs(pub u64);

impl HostNs {
    /// The latest that is stored, in this century: differences and sums of two times are numbers.
    pub const MAX: Self = Self((1 << 62) - 1);

    /// Nanoseconds from `earlier` to `self`; 0 when `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: HostNs) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// How a guest's `CLOCK_MONOTONIC` was brought onto the host's, and how well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Clock {
    /// Host time minus guest time, in ns.
    pub host_minus_guest_ns: i64,
    /// The true offset lies within this many ns of the stated one (half a round trip).
    pub error_ns: u64,
}

impl Clock {
    /// A guest time on the host's axis; saturates at the axis' ends.
    #[must_use]
    pub fn to_host(self, guest_ns: u64) -> HostNs {
        HostNs(guest_ns.saturating_add_signed(self.host_minus_guest_ns)).min(HostNs::MAX)
    }

    /// A time of the host on the guest's clock; 0: the guest was not there yet.
    #[must_use]
    pub fn to_guest(self, host: HostNs) -> u64 {
        host.0.saturating_add_signed(self.host_minus_guest_ns.saturating_neg())
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn guest_time_moves_onto_the_host_axis() {
        let clock = Clock { host_minus_guest_ns: -5, error_ns: 1 };
        assert_eq!(clock.to_host(12), HostNs(7));
        assert_eq!(clock.to_host(2), HostNs(0));
        assert_eq!(clock.to_guest(HostNs(7)), 12);
        assert_eq!(clock.to_host(u64::MAX), HostNs::MAX);
    }
}
