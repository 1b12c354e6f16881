//! Which waits a CPU quota explains: the readings of what a VM's cgroups were held back, used up in time order.

use model::{HostNs, Throttling};

/// What a quota held back between two readings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Budget {
    after: u64,
    until: u64,
    ns: u64,
}

/// A wait that a quota may explain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wait {
    pub(super) from: u64,
    pub(super) to: u64,
    /// Which of the VM's tracks.
    pub(super) track: usize,
    /// Which gap of it.
    pub(super) gap: usize,
    pub(super) ns: u64,
}

/// A wait and how much of it a quota explains, in order of the tracks and their gaps. `readings` are one VM's.
///
/// The kernel counts a time of throttling when it ends: a reading's increase belongs to a wait that ends in the reading's
/// interval.
pub(super) fn share<'t>(
    readings: impl Iterator<Item = &'t Throttling>,
    mut waits: Vec<Wait>,
) -> Vec<(Wait, u64)> {
    let mut budgets = budgets(readings);
    waits.sort_unstable_by_key(|wait| (wait.to, wait.from, wait.track, wait.gap));
    let mut first = 0;
    let mut shared = Vec::new();
    for wait in waits {
        while budgets.get(first).is_some_and(|budget| budget.ns == 0) {
            first += 1;
        }
        let mut ns = 0;
        for budget in budgets.iter_mut().skip(first).filter(|budget| wait.from <= budget.until) {
            if wait.to <= budget.after || ns == wait.ns {
                break;
            }
            let taken = budget.ns.min(wait.ns - ns);
            budget.ns -= taken;
            ns += taken;
        }
        if 0 < ns {
            shared.push((wait, ns));
        }
    }
    shared.sort_unstable_by_key(|(wait, _)| (wait.track, wait.gap));
    shared
}

fn budgets<'t>(readings: impl Iterator<Item = &'t Throttling>) -> Vec<Budget> {
    let mut before: Option<(HostNs, u64)> = None;
    let mut budgets = Vec::new();
    for reading in readings {
        if let Some((after, ns)) = before
            && ns < reading.throttled_ns
        {
            let ns = reading.throttled_ns - ns;
            budgets.push(Budget { after: after.0, until: reading.time.0, ns });
        }
        before = Some((reading.time, reading.throttled_ns));
    }
    budgets
}
