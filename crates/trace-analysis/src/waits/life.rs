//! What lives are made of: run time, and waits by cause.

use std::collections::BTreeMap;

use super::cause::{Cause, Group};

/// The number and the length of waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sum {
    pub count: u64,
    pub ns: u64,
    pub longest_ns: u64,
}

/// A task's life within the trace, or the sum of several's.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Life {
    pub running: Sum,
    /// Not on a CPU, by cause; stopped and unknown are among them.
    pub causes: BTreeMap<Cause, Sum>,
}

impl Sum {
    /// Adds a wait.
    pub fn add(&mut self, ns: u64) {
        self.merge(&Self { count: 1, ns, longest_ns: ns });
    }

    /// Adds another's waits.
    pub fn merge(&mut self, other: &Self) {
        self.count = self.count.saturating_add(other.count);
        self.ns = self.ns.saturating_add(other.ns);
        self.longest_ns = self.longest_ns.max(other.longest_ns);
    }
}

impl Life {
    /// All of it: run time, waits, stopped and unknown.
    #[must_use]
    pub fn total_ns(&self) -> u64 {
        self.running.ns.saturating_add(self.sum(|_| true).ns)
    }

    /// Waiting, of known and unknown cause; not stopped, and no kernel task without work.
    #[must_use]
    pub fn waiting(&self) -> Sum {
        self.sum(Cause::is_waiting)
    }

    /// The part of `waiting` whose cause is not known.
    #[must_use]
    pub fn unknown(&self) -> Sum {
        self.sum(|cause| cause.group() == Group::Unknown)
    }

    /// Unknown time as a share of waiting time; 0 without waiting time.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a share to be shown")]
    pub fn unknown_share(&self) -> f64 {
        let waiting = self.waiting().ns;
        if waiting == 0 { 0.0 } else { self.unknown().ns as f64 / waiting as f64 }
    }

    /// Sums by group of causes.
    #[must_use]
    pub fn groups(&self) -> BTreeMap<Group, Sum> {
        let mut groups: BTreeMap<Group, Sum> = BTreeMap::new();
        for (cause, sum) in &self.causes {
            groups.entry(cause.group()).or_default().merge(sum);
        }
        groups
    }

    /// Causes, most time first.
    #[must_use]
    pub fn by_time(&self) -> Vec<(Cause, Sum)> {
        let mut causes: Vec<(Cause, Sum)> = self.causes.iter().map(|(c, s)| (*c, *s)).collect();
        causes.sort_by_key(|(cause, sum)| (std::cmp::Reverse(sum.ns), *cause));
        causes
    }

    /// Adds another's times.
    pub fn merge(&mut self, other: &Self) {
        self.running.merge(&other.running);
        for (cause, sum) in &other.causes {
            self.causes.entry(*cause).or_default().merge(sum);
        }
    }

    fn sum(&self, which: impl Fn(Cause) -> bool) -> Sum {
        let mut sum = Sum::default();
        let chosen = self.causes.iter().filter(|(cause, _)| which(**cause));
        chosen.for_each(|(_, part)| sum.merge(part));
        sum
    }
}
