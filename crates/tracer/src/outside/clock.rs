//! A guest's clock on its host's.
//!
//! ```text
//!  host   (TSC, ns) pair A                                  (TSC, ns) pair B
//!              |      ask                         answer        |
//!  guest       |       '---> (TSC, ns) pair G ------'           |
//!                                 |
//!     guest TSC --KVM's offset and scale--> host TSC, between A's and B's --> host ns
//! ```
//! Each question gives a sample: one instant on both clocks. Between samples both clocks are taken to run evenly; how far
//! that is from the truth is measured at the samples themselves, each against its neighbours.
//!
//! A guest may lie about its pair. But the instant must lie between question and answer, so a sample is never further from
//! the truth than that; and no event is put before the trace's begin or after the present.

use model::HostNs;

use crate::ClockPair;

/// How a vCPU's time-stamp counter follows from its host's: guest = (host * ratio >> fraction bits) + offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TscScale {
    /// Added, wrapping.
    pub offset: u64,
    /// Fixed-point factor.
    pub ratio: u64,
    /// Bits of `ratio` behind the point.
    pub fraction_bits: u32,
}

/// An instant on both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockSample {
    pub guest_ns: u64,
    pub host: HostNs,
    /// How far from it the truth may be, ns.
    pub error_ns: u64,
}

/// Why one clock can't be computed from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ClockError {
    /// The guest's counter does not lie between question and answer.
    #[error("its time-stamp counter is not the host's with KVM's offset: off by {off_ns} ns")]
    Outside {
        /// How far it lies outside, ns.
        off_ns: u64,
    },
    /// A clock stood still or ran back.
    #[error("its clock ran backwards")]
    Backwards,
    /// The scale is none.
    #[error("KVM's scale of its time-stamp counter is 0")]
    Scale,
}

impl TscScale {
    /// From what KVM holds. The ratio has 32 bits behind the point on AMD and 48 on Intel; which, its size tells.
    #[must_use]
    pub fn new(offset: u64, ratio: u64) -> Self {
        let fraction_bits = if ratio < 1 << 40 { 32 } else { 48 };
        Self { offset, ratio, fraction_bits }
    }

    /// The host's counter when the guest's was `guest`.
    ///
    /// # Errors
    /// When the scale is 0.
    pub fn host_tsc(self, guest: u64) -> Result<u64, ClockError> {
        let scaled = u128::from(guest.wrapping_sub(self.offset)) << self.fraction_bits;
        let host = scaled.checked_div(u128::from(self.ratio)).ok_or(ClockError::Scale)?;
        Ok(u64::try_from(host).unwrap_or(u64::MAX))
    }
}

/// The instant at which the guest read `pair`, which was between the host's pairs `queried` and `answered`.
///
/// `skew_ns` is how far the host's CPUs' counters are apart.
///
/// # Errors
/// When the guest's counter says something else.
pub fn sample_clock(
    requested: ClockPair,
    pair: ClockPair,
    answered: ClockPair,
    scale: TscScale,
    skew_ns: u64,
) -> Result<ClockSample, ClockError> {
    let tsc = scale.host_tsc(pair.tsc)?;
    let ticks = answered.tsc.saturating_sub(requested.tsc);
    let length_ns = answered.ns.saturating_sub(requested.ns);
    if ticks == 0 || length_ns == 0 {
        return Err(ClockError::Backwards);
    }
    let in_ns = |of: u64| scale_up(of, length_ns, ticks);
    let host_width_ns = in_ns(requested.width.max(answered.width));
    // The guest's width is in its own ticks: as good as the host's for a bound.
    let guest_width_ns = in_ns(pair.width);
    let tolerance_ns = host_width_ns.saturating_add(skew_ns);
    let off_ns = in_ns(requested.tsc.saturating_sub(tsc).max(tsc.saturating_sub(answered.tsc)));
    if tolerance_ns < off_ns {
        return Err(ClockError::Outside { off_ns });
    }
    let since_ns = in_ns(tsc.saturating_sub(requested.tsc)).min(length_ns);
    Ok(ClockSample {
        guest_ns: pair.ns,
        host: HostNs(requested.ns + since_ns),
        error_ns: (host_width_ns / 2).saturating_add(guest_width_ns / 2).saturating_add(skew_ns),
    })
}

/// `value * numerator / denominator`, at most what 64 bits hold.
fn scale_up(value: u64, numerator: u64, denominator: u64) -> u64 {
    let product = u128::from(value) * u128::from(numerator) / u128::from(denominator.max(1));
    u64::try_from(product).unwrap_or(u64::MAX)
}

/// A guest's clock: its samples so far, in time order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestClock {
    samples: Vec<ClockSample>,
    /// Furthest that a sample lies from the line between its neighbours, ns.
    max_residual_ns: u64,
}

impl GuestClock {
    /// Of which one instant is known.
    #[must_use]
    pub fn new(first: ClockSample) -> Self {
        Self { samples: vec![first], max_residual_ns: 0 }
    }

    /// One more instant, after all others.
    ///
    /// # Errors
    /// If it is not.
    pub fn push(&mut self, sample: ClockSample) -> Result<(), ClockError> {
        let last = self.last();
        if sample.guest_ns <= last.guest_ns || sample.host <= last.host {
            return Err(ClockError::Backwards);
        }
        if let [.., before, middle] = self.samples[..] {
            let straight = between(before, sample, middle.guest_ns);
            let residual = straight.abs_diff(i128::from(middle.host.0));
            self.max_residual_ns =
                self.max_residual_ns.max(u64::try_from(residual).unwrap_or(u64::MAX));
        }
        self.samples.push(sample);
        Ok(())
    }

    /// The host's time when the guest's was `guest_ns`. Before the first and after the last sample the clocks run on as
    /// between the nearest two, or alike when there is one.
    #[must_use]
    pub fn host(&self, guest_ns: u64) -> HostNs {
        let after = self.samples.partition_point(|sample| sample.guest_ns <= guest_ns);
        let first = after.clamp(1, (self.samples.len() - 1).max(1)) - 1;
        let host = match self.samples[first..] {
            [from, to, ..] => between(from, to, guest_ns),
            [only] => i128::from(only.host.0) + i128::from(guest_ns) - i128::from(only.guest_ns),
            [] => 0,
        };
        HostNs(u64::try_from(host.max(0)).unwrap_or(u64::MAX))
    }

    /// How far from the truth a time may be, ns: the worst sample's error, and how much the clocks bent between samples.
    #[must_use]
    pub fn error_ns(&self) -> u64 {
        let worst = self.samples.iter().map(|sample| sample.error_ns).max().unwrap_or(0);
        worst.saturating_add(self.max_residual_ns)
    }

    /// Furthest that a sample lies from the line between its neighbours, ns.
    #[must_use]
    pub fn max_residual_ns(&self) -> u64 {
        self.max_residual_ns
    }

    /// How much faster the guest's clock ran than the host's, in parts per million; 0 with one sample.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a rate to show")]
    pub fn drift_ppm(&self) -> f64 {
        let (first, last) = (self.samples[0], self.last());
        let host = last.host.0 - first.host.0;
        let guest = last.guest_ns - first.guest_ns;
        if host == 0 { 0.0 } else { (guest as f64 - host as f64) / host as f64 * 1e6 }
    }

    /// The latest instant that is known.
    #[must_use]
    pub fn last(&self) -> ClockSample {
        self.samples[self.samples.len() - 1]
    }

    /// How many instants are known.
    #[must_use]
    pub fn samples(&self) -> usize {
        self.samples.len()
    }
}

/// The host's time on the line through two samples.
fn between(from: ClockSample, to: ClockSample, guest_ns: u64) -> i128 {
    let guest = i128::from(to.guest_ns) - i128::from(from.guest_ns);
    let host = i128::from(to.host.0) - i128::from(from.host.0);
    let since = i128::from(guest_ns) - i128::from(from.guest_ns);
    // `push` has seen to it that samples ascend.
    i128::from(from.host.0).saturating_add(since.saturating_mul(host) / guest.max(1))
}

#[cfg(test)]
mod test {
    use super::*;

    const HALF: u64 = 1 << 31;

    fn pair(tsc: u64, ns: u64, width: u64) -> ClockPair {
        ClockPair { tsc, ns, width, cpu: 0 }
    }

    #[test]
    fn counters_follow_kvm_s_offset_and_scale() {
        let check = |offset, ratio, guest, host| {
            assert_eq!(TscScale::new(offset, ratio).host_tsc(guest), host, "{offset} {ratio:#x}");
        };
        check(0, 1 << 32, 1000, Ok(1000));
        check(5, 1 << 48, 1005, Ok(1000));
        // As in a guest that was started later: the offset is below zero.
        check(0u64.wrapping_sub(49_504_034_706), 1 << 32, 1, Ok(49_504_034_707));
        check(0, HALF, 500, Ok(1000));
        check(10, 3 << 47, 1510, Ok(1000));
        check(0, 0, 7, Err(ClockError::Scale));
        check(0, 1, u64::MAX, Ok(u64::MAX));
    }

    /// Host: 2 ticks a ns, queried at tick 2000 = 5000 ns, answered at tick 4000 = 6000 ns.
    #[test]
    fn a_sample_lies_where_the_guest_s_counter_says() {
        let check = |guest: ClockPair, skew_ns, expected| {
            let scale = TscScale::new(100_000, 1 << 32);
            let (requested, answered) = (pair(2000, 5000, 40), pair(4000, 6000, 20));
            assert_eq!(
                sample_clock(requested, guest, answered, scale, skew_ns),
                expected,
                "{guest:?}"
            );
        };
        let at = |host, error_ns| Ok(ClockSample { guest_ns: 77, host: HostNs(host), error_ns });
        check(pair(103_000, 77, 0), 0, at(5500, 10));
        check(pair(103_000, 77, 60), 7, at(5500, 10 + 15 + 7));
        check(pair(102_000, 77, 0), 0, at(5000, 10));
        // Outside by no more than the host's pairs are wide: as near as can be.
        check(pair(104_030, 77, 0), 0, at(6000, 10));
        check(pair(101_970, 77, 0), 0, at(5000, 10));
        check(pair(104_100, 77, 0), 0, Err(ClockError::Outside { off_ns: 50 }));
        check(pair(5, 77, 0), 0, Err(ClockError::Outside { off_ns: u64::MAX / 2 - 51_997 }));
    }

    #[test]
    fn times_lie_between_samples_and_run_on_beyond_them() {
        let at = |guest_ns, host| ClockSample { guest_ns, host: HostNs(host), error_ns: 10 };
        let mut clock = GuestClock::new(at(1000, 51_000));
        let check = |clock: &GuestClock, guest, host| assert_eq!(clock.host(guest), HostNs(host));
        check(&clock, 990, 50_990);
        check(&clock, 2000, 52_000);
        clock.push(at(2000, 53_000)).unwrap();
        for (guest, host) in [(500, 50_000), (1000, 51_000), (1500, 52_000), (2500, 54_000)] {
            check(&clock, guest, host);
        }
        assert_eq!(clock.error_ns(), 10);
        clock.push(at(3000, 54_000)).unwrap();
        // The middle one lies 500 ns above the line through the others.
        assert_eq!(clock.error_ns(), 510);
        for (guest, host) in [(1500, 52_000), (2000, 53_000), (2500, 53_500), (4000, 55_000)] {
            check(&clock, guest, host);
        }
        assert!((clock.drift_ppm() - (2000.0 - 3000.0) / 3000.0 * 1e6).abs() < 1e-6);
        assert_eq!(clock.push(at(3000, 55_000)), Err(ClockError::Backwards));
        assert_eq!(clock.push(at(4000, 54_000)), Err(ClockError::Backwards));
    }

    /// Whatever a guest says: times never go back, and samples stay between question and answer.
    #[test]
    fn lies_move_times_no_further_than_the_question_was_long() {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            // Small, large and near the edges alike.
            match state % 4 {
                0 => state >> 40,
                1 => u64::MAX - (state >> 50),
                _ => state,
            }
        };
        let mut clock =
            GuestClock::new(ClockSample { guest_ns: random(), host: HostNs(1), error_ns: 0 });
        for round in 1..20_000u64 {
            let requested = pair(round * 1000, round * 2000, 8);
            let answered = pair(round * 1000 + 500, round * 2000 + 1000, 8);
            let guest = pair(random(), random(), random());
            let scale = TscScale::new(random(), random());
            let Ok(sample) = sample_clock(requested, guest, answered, scale, 3) else { continue };
            assert!(requested.ns <= sample.host.0 && sample.host.0 <= answered.ns);
            let _ = clock.push(sample);
            let (one, other) = (random(), random());
            assert!(clock.host(one.min(other)) <= clock.host(one.max(other)));
            let _ = (clock.error_ns(), clock.drift_ppm());
        }
    }
}
