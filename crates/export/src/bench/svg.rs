//! Costs on a logarithmic scale.

use ::microbench::compare::{Row, Unit};

/// A logarithmic scale over whole powers of ten.
pub(super) struct Scale {
    first: i32,
    last: i32,
    /// Where it begins, and how long it is.
    at: f64,
    length: f64,
}

impl Scale {
    /// `None`: there is no value above 0.
    pub(super) fn over(values: impl Iterator<Item = f64>, at: f64, length: f64) -> Option<Self> {
        let logs = values.filter(|value| 0.0 < *value).map(f64::log10);
        let (low, high) = logs.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), log| {
            (low.min(log), high.max(log))
        });
        if high < low {
            return None;
        }
        let (first, last) = (whole(low.floor()), whole(high.ceil()));
        Some(Self { first, last: last.max(first + 1), at, length })
    }

    pub(super) fn place(&self, value: f64) -> f64 {
        let decades = f64::from(self.last - self.first);
        let log = value.max(f64::MIN_POSITIVE).log10() - f64::from(self.first);
        self.at + self.length * (log / decades).clamp(0.0, 1.0)
    }

    /// The powers of ten on it.
    pub(super) fn marks(&self) -> impl Iterator<Item = f64> + use<> {
        (self.first..=self.last).map(|power| 10f64.powi(power))
    }
}

/// Logarithms of numbers that are no less than 10^-308 and no more than 10^308.
#[allow(clippy::cast_possible_truncation, reason = "between -308 and 308")]
fn whole(log: f64) -> i32 {
    log as i32
}

/// `1.5 ns`, `2.30 us`, `36 ticks`.
fn amount(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Ns => table::time(value),
        other => format!("{} {}", table::figure(value), other.name()),
    }
}

/// What the row's operation costs on a machine; `~` in front: not reliable.
pub(super) fn cost_text(row: &Row, machine: usize, value: f64, unit: Unit) -> String {
    let is_reliable = row.cells[machine].cost.is_some_and(|cost| cost.reliable);
    ::microbench::tables::marked(amount(value, unit), is_reliable)
}

/// A power of ten, which needs no digits behind the point: `10 ns`, `0.1 ns`.
pub(super) fn mark_text(mark: f64, unit: Unit) -> String {
    let text = amount(mark, unit);
    let (number, unit) = text.split_once(' ').unwrap_or((&text, ""));
    let number = if number.contains('.') {
        number.trim_end_matches('0').trim_end_matches('.')
    } else {
        number
    };
    format!("{number} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_a_scale() {
        let check = |power: i32, unit, expected: &str| {
            assert_eq!(mark_text(10f64.powi(power), unit), expected);
        };
        check(-1, Unit::Ns, "0.1 ns");
        check(0, Unit::Ns, "1 ns");
        check(2, Unit::Ns, "100 ns");
        check(4, Unit::Ns, "10 us");
        check(9, Unit::Ns, "1 s");
        check(1, Unit::Ticks, "10 ticks");
        check(7, Unit::Ticks, "10 M ticks");
    }

    #[test]
    fn a_scale_spans_whole_powers_of_ten() {
        let scale = Scale::over([0.0, 3.0, 250.0].into_iter(), 10.0, 300.0).unwrap();
        assert_eq!(scale.marks().collect::<Vec<_>>(), [1.0, 10.0, 100.0, 1000.0]);
        let places = [1.0, 10.0, 1000.0, 1e9, 0.0].map(|value| scale.place(value).round());
        assert_eq!(places, [10.0, 110.0, 310.0, 310.0, 10.0]);
        assert!(Scale::over([0.0].into_iter(), 0.0, 1.0).is_none());
    }
}
