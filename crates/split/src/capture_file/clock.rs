//! How an interface counts time.

use crate::CaptureNs;

const NS_PER_S: u64 = 1_000_000_000;
/// Of `NS_PER_S`.
const DIGITS: u32 = 9;

/// Units since an instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Clock {
    pub(super) unit: Unit,
    /// Where it begins, in seconds since 1970.
    pub(super) offset_s: i64,
}

/// What a clock counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    /// 10^-n seconds.
    Decimal(u32),
    /// 2^-n seconds.
    Binary(u32),
}

impl Unit {
    pub(super) const MICROSECOND: Self = Self::Decimal(6);
    pub(super) const NANOSECOND: Self = Self::Decimal(9);

    /// As pcapng has it in a byte.
    pub(super) fn from_resolution(resolution: u8) -> Self {
        let exponent = u32::from(resolution & 0x7f);
        if resolution & 0x80 == 0 { Self::Decimal(exponent) } else { Self::Binary(exponent) }
    }

    /// So many of them, in whole nanoseconds.
    fn ns(self, units: u64) -> u128 {
        let units = u128::from(units);
        match self {
            Self::Decimal(digits) if digits <= DIGITS => units * 10_u128.pow(DIGITS - digits),
            // More digits than any number of units has leave nothing.
            Self::Decimal(digits) => {
                10_u128.checked_pow(digits - DIGITS).map_or(0, |per_ns| units / per_ns)
            }
            Self::Binary(bits) => (units * u128::from(NS_PER_S)).checked_shr(bits).unwrap_or(0),
        }
    }
}

impl Clock {
    /// `None`: an instant before 1970, or later than nanoseconds can say.
    pub(super) fn time(self, units: u64) -> Option<CaptureNs> {
        let offset = i128::from(self.offset_s) * i128::from(NS_PER_S);
        let ns = i128::try_from(self.unit.ns(units)).ok()?.checked_add(offset)?;
        u64::try_from(ns).ok().map(CaptureNs).filter(|at| *at < CaptureNs::LAST)
    }

    /// Nanoseconds per tick of its clock; 0: less than one.
    pub(super) fn tick_ns(self) -> u64 {
        u64::try_from(self.unit.ns(1)).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn units_of_all_resolutions() {
        let time = |resolution, offset_s, units| {
            let clock = Clock { unit: Unit::from_resolution(resolution), offset_s };
            clock.time(units).map(|at| at.0)
        };
        let s = 1_700_000_000_u64;
        assert_eq!(time(6, 0, s * 1_000_000 + 3), Some(s * NS_PER_S + 3000));
        assert_eq!(time(9, 0, s * NS_PER_S + 3), Some(s * NS_PER_S + 3));
        assert_eq!(time(0, 0, s), Some(s * NS_PER_S));
        // 2^-20 and 2^-30 seconds: half a second, and the shortest that is a nanosecond.
        assert_eq!(time(0x80 | 20, 0, s << 20 | 1 << 19), Some(s * NS_PER_S + NS_PER_S / 2));
        assert_eq!(time(0x80 | 30, 0, s << 30 | 2), Some(s * NS_PER_S + 1));
        // The longest time of each resolution, and resolutions that no time has.
        assert_eq!(time(12, 0, u64::MAX), Some(u64::MAX / 1000));
        assert_eq!(time(19, 0, u64::MAX), Some(1_844_674_407));
        assert_eq!([time(127, 0, u64::MAX), time(255, 0, u64::MAX)], [Some(0); 2]);
        assert_eq!(time(255, 5, u64::MAX), Some(5 * NS_PER_S));
        assert_eq!(time(9, -1, 2 * NS_PER_S), Some(NS_PER_S));
        // Before 1970, and after 2554.
        assert_eq!([time(9, -3, 2 * NS_PER_S), time(9, i64::MIN, 0)], [None; 2]);
        assert_eq!([time(6, 0, u64::MAX), time(0, 0, u64::MAX), time(9, 0, u64::MAX)], [None; 3]);
        assert_eq!([time(128, 0, u64::MAX), time(0, i64::MAX, u64::MAX)], [None; 2]);
    }
}
