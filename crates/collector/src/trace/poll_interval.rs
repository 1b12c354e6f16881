//! How long to sleep between two polls of the rings.

use std::time::Duration;

/// Slots that a burst on one CPU may fill in a second: a million events, some with a second slot, and a factor of two
/// for a reader that is woken late.
pub(super) const BURST_SLOTS_PER_S: u64 = 4_000_000;
const AT_LEAST: Duration = Duration::from_millis(1);
const AT_MOST: Duration = Duration::from_millis(100);
/// How full the fullest ring is to be when it is looked at.
const AIM: f64 = 0.25;

/// Sleeps long while rings stay empty and briefly while they fill.
#[derive(Debug, Clone, Copy)]
pub(super) struct PollInterval {
    at_most: Duration,
    sleep: Duration,
}

impl PollInterval {
    /// For rings of so many slots per CPU: even the longest sleep leaves room for a burst.
    pub(super) fn new(slots: u64) -> Self {
        let at_most = Duration::from_micros(slots.saturating_mul(1_000_000) / BURST_SLOTS_PER_S);
        let at_most = at_most.clamp(AT_LEAST, AT_MOST);
        Self { at_most, sleep: at_most }
    }

    /// The next sleep, after a look that found the fullest ring filled to this share. Shortens at once, lengthens by
    /// half a look.
    pub(super) fn after(&mut self, fill: f64) -> Duration {
        let factor = if fill <= 0.0 { 1.5 } else { (AIM / fill).clamp(0.05, 1.5) };
        self.sleep = self.sleep.mul_f64(factor).clamp(AT_LEAST, self.at_most);
        self.sleep
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn ms(sleep: Duration) -> u128 {
        sleep.as_millis()
    }

    #[test]
    fn the_longest_sleep_leaves_room_for_a_burst() {
        let check = |slots, expected| assert_eq!(ms(PollInterval::new(slots).after(0.0)), expected);
        check(1 << 18, 65);
        check(1 << 16, 16);
        check(1 << 24, 100);
        check(64, 1);
    }

    #[test]
    fn sleeps_follow_the_fill() {
        let mut interval = PollInterval::new(1 << 18);
        let fills = [0.5, 0.5, 0.25, 1.0, 0.0, 0.01, 0.125];
        let sleeps = fills.map(|fill| ms(interval.after(fill)));
        assert_eq!(sleeps, [32, 16, 16, 4, 6, 9, 13]);
        assert_eq!(ms((0..99).map(|_| interval.after(1.0)).last().unwrap()), 1);
        assert_eq!(ms((0..99).map(|_| interval.after(0.0)).last().unwrap()), 65);
    }
}
