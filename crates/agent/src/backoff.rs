//! How long to wait before the next try. Pure.

use std::time::Duration;

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(300);
/// A server can't send agents away for longer.
const LONGEST_REQUESTED: Duration = Duration::from_secs(3600);

/// After so many failures in a row: twice as long each time, and by `random` (0 to 1) up to half of it shorter, so that a
/// fleet does not come back all at once. Not before the time that the server requested.
pub(crate) fn delay(failures: u32, random: f64, requested: Option<Duration>) -> Duration {
    let doubled = FIRST * 2_u32.saturating_pow(failures.saturating_sub(1).min(16));
    let own = doubled.min(LONGEST).mul_f64(1.0 - random.clamp(0.0, 1.0) / 2.0);
    // Also those that the server sends away come back one after the other.
    let requested = requested.unwrap_or_default().min(LONGEST_REQUESTED);
    own.max(requested + requested.mul_f64(random.clamp(0.0, 1.0) / 4.0))
}

/// A number from 0 to 1 that differs from agent to agent: no secret.
#[expect(clippy::cast_precision_loss, reason = "any number will do")]
pub(crate) fn random() -> f64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    (RandomState::new().build_hasher().finish() >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn it_doubles_and_ends() {
        let check = |failures, random, requested: Option<u64>, expected_ms: u128| {
            let delay = delay(failures, random, requested.map(Duration::from_secs));
            assert_eq!(delay.as_millis(), expected_ms, "{failures} {random} {requested:?}");
        };
        check(1, 0.0, None, 1000);
        check(1, 1.0, None, 500);
        check(2, 0.0, None, 2000);
        check(5, 0.5, None, 12_000);
        check(9, 0.0, None, 256_000);
        check(10, 0.0, None, 300_000);
        check(u32::MAX, 0.0, None, 300_000);
        check(1, 0.0, Some(20), 20_000);
        check(1, 1.0, Some(20), 25_000);
        check(9, 0.0, Some(20), 256_000);
        check(1, 0.0, Some(1 << 40), 3_600_000);
        assert!((0.0..1.0).contains(&random()) && random() != random());
    }
}
