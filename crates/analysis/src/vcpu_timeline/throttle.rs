//! Which waits a CPU quota explains: the readings of what a VM's cgroups were held back are shared among its gaps.

use std::ops::Range;

use model::{HostNs, Throttling};

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

/// What a quota held back between two readings.
#[derive(Debug)]
struct Budget {
    after: u64,
    until: u64,
    left_ns: u64,
    /// To which waits it went.
    given: Vec<(usize, u64)>,
}

/// The gaps and how much of their waits a quota explains, in order of the tracks and their gaps. `readings` are one VM's.
///
/// The kernel counts a time of throttling when it ends: a reading's increase belongs to gaps that touch the reading's
/// interval. The longest waits were most likely throttled: they come first. Where a kernel does not count throttled
/// threads as runnable, their time is in `waiting`: that comes second.
pub(super) fn share<'t>(
    readings: impl Iterator<Item = &'t Throttling>,
    waits: Vec<Wait>,
) -> Vec<(Wait, u64)> {
    let budgets = budgets(readings);
    let touched = |wait: &Wait| {
        let first = budgets.partition_point(|budget| budget.until <= wait.from);
        first..budgets.partition_point(|budget| budget.after < wait.to).max(first)
    };
    let touched = waits.iter().map(touched).collect();
    let mut sharing = Sharing { budgets, touched };
    let mut shares = vec![0; waits.len()];
    sharing.give(&mut shares, waits.iter().map(|wait| wait.preempted));
    sharing.give(&mut shares, waits.iter().map(|wait| wait.preempted.saturating_add(wait.waiting)));
    let mut shared: Vec<_> = waits.into_iter().zip(shares).filter(|(_, ns)| 0 < *ns).collect();
    shared.sort_unstable_by_key(|(wait, _)| (wait.track, wait.gap));
    shared
}

#[derive(Debug)]
struct Sharing {
    budgets: Vec<Budget>,
    /// By wait, the budgets that may explain it.
    touched: Vec<Range<usize>>,
}

/// Over how many budgets a wait may push others aside.
const PUSHES: u32 = 8;

impl Sharing {
    /// Adds to the shares, up to a limit for each.
    fn give(&mut self, shares: &mut [u64], limits: impl Iterator<Item = u64>) {
        let limits: Vec<u64> = limits.collect();
        let mut waits: Vec<usize> = (0..limits.len()).collect();
        waits.sort_by_key(|wait| std::cmp::Reverse(limits[*wait]));
        for pushes in [0, PUSHES] {
            for wait in &waits {
                // It was mostly counted just before it ended.
                for budget in self.touched[*wait].clone().rev() {
                    let wanted = limits[*wait].saturating_sub(shares[*wait]);
                    shares[*wait] += self.give_from(budget, *wait, wanted, pushes);
                }
            }
        }
    }

    fn give_from(&mut self, budget: usize, wait: usize, wanted: u64, pushes: u32) -> u64 {
        let mut taken = self.take(budget, wanted, pushes, |other, budget| other < budget);
        taken += self.take(budget, wanted - taken, pushes, |other, budget| budget < other);
        if 0 < taken {
            self.budgets[budget].given.push((wait, taken));
        }
        taken
    }

    /// Takes what is left of a budget, then what it gave to waits that budgets to one side of it explain as well.
    fn take(&mut self, budget: usize, wanted: u64, pushes: u32, aside: Aside) -> u64 {
        let mut taken = wanted.min(self.budgets[budget].left_ns);
        self.budgets[budget].left_ns -= taken;
        let given = if pushes == 0 { 0 } else { self.budgets[budget].given.len() };
        for number in 0..given {
            let (wait, _) = self.budgets[budget].given[number];
            for other in self.touched[wait].clone().filter(|other| aside(*other, budget)) {
                let given = self.budgets[budget].given[number].1;
                let moved = self.take(other, given.min(wanted - taken), pushes - 1, aside);
                self.budgets[budget].given[number].1 -= moved;
                taken += moved;
                if 0 < moved {
                    self.budgets[other].given.push((wait, moved));
                }
            }
        }
        taken
    }
}

/// Whether the first budget lies to the side of the second to which waits are pushed.
type Aside = fn(usize, usize) -> bool;

fn budgets<'t>(readings: impl Iterator<Item = &'t Throttling>) -> Vec<Budget> {
    let mut before: Option<(HostNs, u64)> = None;
    let mut budgets = Vec::new();
    for reading in readings {
        if let Some((after, ns)) = before
            && ns < reading.throttled_ns
        {
            let left_ns = reading.throttled_ns - ns;
            let (after, until) = (after.0, reading.time.0);
            budgets.push(Budget { after, until, left_ns, given: Vec::new() });
        }
        before = Some((reading.time, reading.throttled_ns));
    }
    budgets
}
