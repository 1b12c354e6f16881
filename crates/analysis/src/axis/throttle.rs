//! Which waits a CPU quota explains: the readings of what a VM's cgroups were held back, used up in time order.

use model::{HostNs, Throttling};

/// What a quota held back between two readings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Budget {
    after: u64,
    until: u64,
    ns: u64,
}

/// A gap whose waits a quota may explain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wait {
    pub(super) from: u64,
    pub(super) to: u64,
    /// Which of the VM's tracks.
    pub(super) track: usize,
    /// Which gap of it.
    pub(super) gap: usize,
    pub(super) preempted: u64,
    pub(super) waiting: u64,
}

/// The gaps and how much of their waits a quota explains, in order of the tracks and their gaps. `readings` are one VM's.
///
/// The kernel counts a time of throttling when it ends, and the thread runs soon after: a reading's increase belongs to
/// gaps that end in the reading's interval or just after it. Of these the longest waits were most likely throttled.
/// Where a kernel does not count throttled threads as runnable, their time is in `waiting`: that comes second.
pub(super) fn share<'t>(
    readings: impl Iterator<Item = &'t Throttling>,
    mut waits: Vec<Wait>,
    period_ns: u64,
) -> Vec<(Wait, u64)> {
    waits.sort_unstable_by_key(|wait| (wait.to, wait.track));
    let mut budgets = budgets(readings);
    let mut shares = vec![0; waits.len()];
    let preempted = |wait: &Wait| wait.preempted;
    let all = |wait: &Wait| wait.preempted.saturating_add(wait.waiting);
    for budget in &mut budgets {
        use_up(budget, &waits, &mut shares, preempted, period_ns);
    }
    for budget in &mut budgets {
        use_up(budget, &waits, &mut shares, all, period_ns);
    }
    let mut shared: Vec<_> = waits.into_iter().zip(shares).filter(|(_, ns)| 0 < *ns).collect();
    shared.sort_unstable_by_key(|(wait, _)| (wait.track, wait.gap));
    shared
}

/// Gives a budget to the waits in its time, up to each one's `limit`.
fn use_up(
    budget: &mut Budget,
    waits: &[Wait],
    shares: &mut [u64],
    limit: impl Fn(&Wait) -> u64,
    period_ns: u64,
) {
    if budget.ns == 0 {
        return;
    }
    let last = budget.until.saturating_add(period_ns.saturating_mul(2));
    let first = waits.partition_point(|wait| wait.to <= budget.after);
    let end = waits.partition_point(|wait| wait.to <= last).max(first);
    let mut open: Vec<usize> = (first..end)
        .filter(|n| waits[*n].from <= budget.until && shares[*n] < limit(&waits[*n]))
        .collect();
    open.sort_by_key(|n| std::cmp::Reverse(limit(&waits[*n]) - shares[*n]));
    for number in open {
        let taken = budget.ns.min(limit(&waits[number]) - shares[number]);
        shares[number] += taken;
        budget.ns -= taken;
    }
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
