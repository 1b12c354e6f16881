//! Times in the unit that suits the longest.

/// A unit of time, and how many digits it is shown with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Scale {
    pub(super) unit: &'static str,
    ns: u64,
}

/// The unit for times of which the longest is this.
pub(super) fn scale(longest_ns: u64) -> Scale {
    match longest_ns {
        0..1_000 => Scale { unit: "ns", ns: 1 },
        1_000..1_000_000 => Scale { unit: "us", ns: 1_000 },
        1_000_000..1_000_000_000 => Scale { unit: "ms", ns: 1_000_000 },
        _ => Scale { unit: "s", ns: 1_000_000_000 },
    }
}

impl Scale {
    /// Three digits behind the point; none of nanoseconds.
    pub(super) fn text(self, ns: u64) -> String {
        if self.ns == 1 {
            return ns.to_string();
        }
        let thousandths = (u128::from(ns) * 1_000 + u128::from(self.ns) / 2) / u128::from(self.ns);
        format!("{}.{:03}", thousandths / 1_000, thousandths % 1_000)
    }

    pub(super) fn with_unit(self, ns: u64) -> String {
        format!("{} {}", self.text(ns), self.unit)
    }
}

/// Hundredths of a per cent.
pub(super) fn hundredths(part: u64, whole: u64) -> u64 {
    let share = (u128::from(part) * 10_000 + u128::from(whole) / 2) / u128::from(whole.max(1));
    u64::try_from(share).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn times_in_the_unit_that_suits_the_longest() {
        let check =
            |longest, ns, expected: &str| assert_eq!(scale(longest).with_unit(ns), expected);
        check(999, 12, "12 ns");
        check(1_000, 12, "0.012 us");
        check(1_000_000, 1_500, "0.002 ms");
        check(1_000_000_000, 61_999_500_000, "62.000 s");
    }
}
