//! How much earlier than in the trace, for each target.

use model::HostNs;

/// How much earlier than in the trace something is, for each target, in ns.
#[derive(Debug, Clone, Default)]
pub(super) struct Earlier(Vec<u64>);

impl Earlier {
    /// Nothing is earlier.
    pub(super) fn none(n_targets: usize) -> Self {
        Self(vec![0; n_targets])
    }

    pub(super) fn ns(&self, target: usize) -> u64 {
        self.0.get(target).copied().unwrap_or(0)
    }

    /// The targets of a mask take this much less time.
    pub(super) fn add(&mut self, mask: u64, ns: u64) {
        let mut rest = mask;
        while rest != 0 {
            if let Some(sum) = self.0.get_mut(rest.trailing_zeros() as usize) {
                *sum += ns;
            }
            rest &= rest - 1;
        }
    }

    /// After a wait of this length, which ends no earlier than `by` lets it.
    pub(super) fn until(&mut self, slept_ns: u64, by: &Self) {
        for (target, sum) in self.0.iter_mut().enumerate() {
            *sum = (*sum + slept_ns).min(by.ns(target));
        }
    }

    /// After a wait of this length, less what `by` was spared since the wait began.
    pub(super) fn less(&mut self, slept_ns: u64, by: &Self, at_begin: &Self) {
        for (target, sum) in self.0.iter_mut().enumerate() {
            *sum += by.ns(target).saturating_sub(at_begin.ns(target)).min(slept_ns);
        }
    }

    /// The targets of a mask are what they were before, and this much earlier.
    pub(super) fn replace(&mut self, mask: u64, before: &Self, ns: u64) {
        for (target, sum) in self.0.iter_mut().enumerate() {
            if mask >> target & 1 == 1 {
                *sum = before.ns(target) + ns;
            }
        }
    }
}

/// When the last of some tasks ends, for each target. Empty: none has.
#[derive(Debug, Clone, Default)]
pub(super) struct Ended(Vec<u64>);

impl Ended {
    pub(super) fn add(&mut self, time: HostNs, earlier: &Earlier) {
        self.0.resize(earlier.0.len().max(self.0.len()), 0);
        for (target, last) in self.0.iter_mut().enumerate() {
            *last = (*last).max(time.0.saturating_sub(earlier.ns(target)));
        }
    }

    /// Who waits for all of them goes on no earlier.
    pub(super) fn hold(&self, time: HostNs, earlier: &mut Earlier) {
        for (sum, last) in earlier.0.iter_mut().zip(&self.0) {
            *sum = (*sum).min(time.0.saturating_sub(*last));
        }
    }
}
