//! How long requests took, from when they were meant to be sent.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The longest turnaround that is reported, ns: an hour. Longer ones count as an hour.
const LONGEST_NS: u64 = 3_600_000_000_000;
/// Digits of a turnaround that are kept.
const DIGITS: u8 = 3;

/// Turnarounds of requests. Those that failed took longer than any other.
#[derive(Debug, Clone, PartialEq)]
pub struct Turnarounds {
    answered: Histogram<u64>,
    failed: BTreeMap<String, u64>,
}

impl Turnarounds {
    /// None yet.
    ///
    /// # Panics
    /// Never: the bounds are constants that make sense.
    #[must_use]
    pub fn new() -> Self {
        let answered = Histogram::new_with_bounds(1, LONGEST_NS, DIGITS)
            .expect("from 1 ns to an hour with three digits");
        Self { answered, failed: BTreeMap::new() }
    }

    /// A request that was answered.
    pub fn add(&mut self, ns: u64) {
        self.answered.saturating_record(ns);
    }

    /// A request that was not, and why.
    pub fn add_failed(&mut self, why: &str) {
        *self.failed.entry(why.to_owned()).or_default() += 1;
    }

    /// How many were answered.
    #[must_use]
    pub fn n_answered(&self) -> u64 {
        self.answered.len()
    }

    /// The number of failed requests.
    #[must_use]
    pub fn n_failed(&self) -> u64 {
        self.failed.values().fold(0, |sum, n| sum.saturating_add(*n))
    }

    /// Why, and how often.
    #[must_use]
    pub fn failed(&self) -> &BTreeMap<String, u64> {
        &self.failed
    }

    /// The number of requests.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.n_answered().saturating_add(self.n_failed())
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// So many per cent of all requests took no longer than this, ns. `None`: there are none, or the one that it would be
    /// failed.
    #[must_use]
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rank is between 1 and the number of requests"
    )]
    pub fn percentile(&self, percent: f64) -> Option<u64> {
        let rank = (percent / 100.0 * self.len() as f64).ceil().max(1.0) as u64;
        let answered = self.n_answered();
        if answered < rank {
            return None;
        }
        Some(self.answered.value_at_quantile(rank as f64 / answered as f64))
    }

    /// The mean of those that were answered, ns.
    #[must_use]
    pub fn mean(&self) -> Option<f64> {
        (0 < self.n_answered()).then(|| self.answered.mean())
    }

    /// The longest of those that were answered, ns.
    #[must_use]
    pub fn longest(&self) -> Option<u64> {
        (0 < self.n_answered()).then(|| self.answered.max())
    }

    /// Adds another's requests.
    pub fn merge(&mut self, other: &Self) {
        for value in other.answered.iter_recorded() {
            self.answered.saturating_record_n(value.value_iterated_to(), value.count_at_value());
        }
        for (why, n) in &other.failed {
            let sum = self.failed.entry(why.clone()).or_default();
            *sum = sum.saturating_add(*n);
        }
    }
}

impl Default for Turnarounds {
    fn default() -> Self {
        Self::new()
    }
}

/// As files have it: `[ns, how many]` for each turnaround that differs.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    answered: Vec<[u64; 2]>,
    failed: BTreeMap<String, u64>,
}

impl Serialize for Turnarounds {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let each = self.answered.iter_recorded();
        let each = each.map(|value| [value.value_iterated_to(), value.count_at_value()]);
        Form { answered: each.collect(), failed: self.failed.clone() }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Turnarounds {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let form = Form::deserialize(deserializer)?;
        let mut all = Self { failed: form.failed, ..Self::new() };
        for [ns, n] in form.answered {
            all.answered.saturating_record_n(ns, n);
        }
        Ok(all)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn percentiles_are_of_all_requests() {
        let mut all = Turnarounds::new();
        assert_eq!((all.percentile(50.0), all.mean(), all.longest()), (None, None, None));
        (1..=98).for_each(|n| all.add(n * 1_000_000));
        let is = |all: &Turnarounds, percent, ms: u64| {
            let found = all.percentile(percent).unwrap() as f64 / 1e6;
            assert!((found - ms as f64).abs() < 0.01 * ms as f64, "{percent}: {found} {ms}");
        };
        is(&all, 50.0, 49);
        is(&all, 100.0, 98);
        // The two that failed are the longest: the 98th per cent is the longest that was answered.
        all.add_failed("timeout");
        all.add_failed("timeout");
        is(&all, 50.0, 50);
        is(&all, 98.0, 98);
        assert_eq!(all.percentile(98.1), None);
        assert_eq!((all.len(), all.n_failed()), (100, 2));
    }

    #[test]
    fn they_come_back_as_written() {
        let mut all = Turnarounds::new();
        [1, 999, 1_000_000, 123_456_789, u64::MAX].into_iter().for_each(|ns| all.add(ns));
        all.add_failed("refused");
        let back: Turnarounds =
            serde_json::from_str(&serde_json::to_string(&all).unwrap()).unwrap();
        assert_eq!(back, all);
        let mut twice = all.clone();
        twice.merge(&back);
        assert_eq!((twice.len(), twice.percentile(10.0)), (12, all.percentile(10.0)));
    }
}
