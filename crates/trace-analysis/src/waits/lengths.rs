//! How long waits took: percentiles, and when the longest was.

use std::collections::BTreeMap;

use model::HostNs;

use super::{Cause, Classifier};
use crate::timeline::{TaskId, Timeline};

/// Buckets for each power of two: a percentile is known to 1 part in 64.
const FINE: u64 = 32;

/// The lengths of waits for one cause.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lengths {
    pub count: u64,
    /// The longest: its length, begin and task; the first of several.
    pub longest: Option<(u64, HostNs, TaskId)>,
    /// How many in each bucket.
    buckets: BTreeMap<u64, u64>,
}

/// The waits of some tasks by cause.
#[must_use]
pub fn lengths(
    timeline: &Timeline,
    classifier: &Classifier,
    tasks: &[TaskId],
) -> BTreeMap<Cause, Lengths> {
    let mut all: BTreeMap<Cause, Lengths> = BTreeMap::new();
    for (id, task) in tasks.iter().filter_map(|id| Some((id, timeline.tasks.get(id.index())?))) {
        for segment in &task.segments {
            if let Some(wait) = classifier.wait(timeline, task, &segment) {
                let lengths = all.entry(wait.cause).or_default();
                lengths.add(segment.length_ns(), segment.begin, *id);
            }
        }
    }
    all
}

impl Lengths {
    fn add(&mut self, ns: u64, begin: HostNs, task: TaskId) {
        self.count += 1;
        *self.buckets.entry(bucket(ns)).or_default() += 1;
        if self.longest.is_none_or(|longest| longest.0 < ns) {
            self.longest = Some((ns, begin, task));
        }
    }

    /// As many of a hundred are as long as this or shorter.
    #[must_use]
    pub fn percentile(&self, percent: u64) -> u64 {
        let rank = (self.count * percent).div_ceil(100).max(1);
        let mut seen = 0;
        let reaches = |(_, count): &(&u64, &u64)| {
            seen += **count;
            rank <= seen
        };
        let found = self.buckets.iter().find(reaches).map_or(0, |(bucket, _)| middle(*bucket));
        found.min(self.longest.map_or(0, |longest| longest.0))
    }
}

/// Short lengths have a bucket each, longer ones share it with those that have the same upper six bits.
fn bucket(ns: u64) -> u64 {
    let shift = u64::from((ns / FINE).checked_ilog2().unwrap_or(0));
    shift * FINE + (ns >> shift)
}

fn middle(bucket: u64) -> u64 {
    let shift = (bucket / FINE).saturating_sub(1);
    let first = (bucket - shift * FINE) << shift;
    first + ((1 << shift) - 1) / 2
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn buckets_are_fine() {
        for ns in (0..2000).chain([1_000_000, 123_456_789, 98_765_432_101, u64::MAX / 2]) {
            let found = middle(bucket(ns));
            assert!(found.abs_diff(ns) <= ns / 60, "{ns}: {found}");
        }
    }

    #[test]
    fn percentiles() {
        let mut lengths = Lengths::default();
        assert_eq!((lengths.percentile(50), lengths.longest), (0, None));
        for ns in 1..=20 {
            lengths.add(ns, HostNs(100 + ns), TaskId(7));
        }
        assert_eq!([50, 90, 99].map(|percent| lengths.percentile(percent)), [10, 18, 20]);
        lengths.add(20, HostNs(500), TaskId(8));
        assert_eq!(lengths.longest, Some((20, HostNs(120), TaskId(7))));
        lengths.add(1_000_000, HostNs(600), TaskId(9));
        assert_eq!(lengths.longest, Some((1_000_000, HostNs(600), TaskId(9))));
        assert!(lengths.percentile(100).abs_diff(1_000_000) < 16_000);
    }
}
