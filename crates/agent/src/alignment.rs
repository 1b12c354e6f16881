//! Where windows end: at the same instants of the wall clock on all hosts. Pure.
//!
//! ```text
//!  wall clock   :00        :01        :02        :03
//!                |          |    jump! |          |
//!  windows       |--- 60 s -|------ 31 to 90 s ------|--- 60 s ...
//! ```
//! Lengths are measured by a clock that never jumps: when the wall clock does, the next edge moves, and no window is shorter
//! than half of its length or longer than one and a half.

use std::time::Duration;

/// How long the window lasts that begins when the wall clock says `unix_ns`.
pub(crate) fn length(unix_ns: u64, window: Duration) -> Duration {
    let window_ns = u64::try_from(window.as_nanos()).unwrap_or(u64::MAX).max(1);
    let to_edge = window_ns - unix_ns % window_ns;
    let length_ns = if to_edge < window_ns / 2 { to_edge + window_ns } else { to_edge };
    Duration::from_nanos(length_ns)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn windows_end_at_full_minutes() {
        let check = |unix_s: f64, expected_s: f64| {
            let unix = Duration::from_secs_f64(unix_s);
            let unix_ns = u64::try_from(unix.as_nanos()).unwrap();
            let length = length(unix_ns, Duration::from_secs(60));
            assert!((length.as_secs_f64() - expected_s).abs() < 1e-6, "at {unix_s}: {length:?}");
        };
        check(0.0, 60.0);
        check(600.0, 60.0);
        // A little late, as always.
        check(600.004, 59.996);
        // A little early: the clock was set back by some ms.
        check(599.996, 60.004);
        // The agent started, or the clock jumped.
        check(625.0, 35.0);
        check(630.0, 30.0);
        check(635.0, 85.0);
        check(1e9 + 1.0, 19.0 + 60.0);
    }
}
