//! A limit on what a guest may write: no more than its probes could.
//!
//! A guest may write into its rings itself, and faster than its probes would. Each event costs the recorder time and the
//! disk some bytes, so that is borne for a while only.

use model::HostNs;

use super::super::poll_interval::BURST_SLOTS_PER_S;
use crate::GuestError;

/// Burst: a guest may be ahead of the rate by the events of this time.
const PATIENCE_S: u64 = 10;

/// How far a guest is ahead of what its probes can write.
#[derive(Debug)]
pub(super) struct RateLimit {
    most_per_s: u64,
    ahead: u64,
    last: HostNs,
}

impl RateLimit {
    /// Of a guest with so many rings.
    pub(super) fn for_rings(rings: u32, now: HostNs) -> Self {
        Self::new(u64::from(rings).saturating_mul(BURST_SLOTS_PER_S), now)
    }

    pub(super) fn new(most_per_s: u64, now: HostNs) -> Self {
        Self { most_per_s, ahead: 0, last: now }
    }

    /// So many events have come in.
    ///
    /// # Errors
    /// When they are too many for too long.
    pub(super) fn add(&mut self, now: HostNs, events: u64) -> Result<(), GuestError> {
        let borne = u128::from(self.most_per_s) * u128::from(now.since(self.last)) / 1_000_000_000;
        let borne = u64::try_from(borne).unwrap_or(u64::MAX);
        self.ahead = self.ahead.saturating_sub(borne).saturating_add(events);
        self.last = now;
        if self.ahead <= self.most_per_s.saturating_mul(PATIENCE_S) {
            return Ok(());
        }
        Err(GuestError::TooFast { most_per_s: self.most_per_s })
    }
}

#[cfg(test)]
mod test {
    use super::*;

    /// Looks every 10 ms, each with so many events; after how many seconds the trace ends.
    fn ends_after(events: u64) -> Option<u64> {
        let mut limit = RateLimit::new(1000, HostNs(0));
        let mut looks = (1..=6000).map(|look| HostNs(look * 10_000_000));
        looks.find(|now| limit.add(*now, events).is_err()).map(|now| now.0 / 1_000_000_000)
    }

    #[test]
    fn only_what_goes_on_is_too_much() {
        assert_eq!([5, 10, 20, 100].map(ends_after), [None, None, Some(10), Some(1)]);
    }

    #[test]
    fn a_burst_is_borne() {
        let mut limit = RateLimit::for_rings(2, HostNs(0));
        let second = |n: u64| HostNs(n * 1_000_000_000);
        assert!(limit.add(second(1), 80_000_000).is_ok());
        assert!(limit.add(second(1), 1).is_err());
        assert!(limit.add(second(2), 7_999_999).is_ok());
        assert!(limit.add(second(60), 80_000_000).is_ok());
        assert!(limit.add(second(60), u64::MAX).is_err());
    }
}
