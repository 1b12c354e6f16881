//! Which waits a CPU quota explains: the readings of what a VM's cgroups were held back are shared among its gaps.

use std::ops::Range;

use model::{HostNs, Throttling};

/// A gap with waits that a quota may explain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wait {
    pub(super) from: u64,
    pub(super) to: u64,
    /// Which of the VM's tracks.
    pub(super) track: usize,
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
    let touched: Vec<_> = waits.iter().map(touched).collect();
    let mut shares = vec![0; waits.len()];
    let mut sharing = Sharing::new(budgets, touched);
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
    /// By budget: none has anything left from this one on until it.
    spent_since: Vec<usize>,
    /// How many budgets may still be looked at for pushing waits aside.
    looks: usize,
}

/// Over how many budgets a wait may push others aside.
const PUSHES: u32 = 8;

/// How many budgets are looked at for that, for each wait and each budget: few, whatever a recording holds.
const LOOKS: usize = 64;

impl Sharing {
    fn new(budgets: Vec<Budget>, touched: Vec<Range<usize>>) -> Self {
        let spent_since = (0..budgets.len()).collect();
        let looks = LOOKS.saturating_mul(budgets.len() + touched.len());
        Self { budgets, touched, spent_since, looks }
    }

    /// Adds to the shares, up to a limit for each.
    fn give(&mut self, shares: &mut [u64], limits: impl Iterator<Item = u64>) {
        let limits: Vec<u64> = limits.collect();
        let mut waits: Vec<usize> = (0..limits.len()).collect();
        waits.sort_by_key(|wait| std::cmp::Reverse(limits[*wait]));
        for wait in &waits {
            shares[*wait] += self.give_rests(*wait, limits[*wait].saturating_sub(shares[*wait]));
        }
        for wait in &waits {
            shares[*wait] += self.push_aside(*wait, limits[*wait].saturating_sub(shares[*wait]));
        }
    }

    /// Gives a wait what budgets have left. It was mostly counted just before it ended: the last budget comes first.
    fn give_rests(&mut self, wait: usize, wanted: u64) -> u64 {
        let touched = self.touched[wait].clone();
        let mut given = 0;
        let mut until = touched.end;
        while given < wanted
            && let Some(budget) = self.last_with_rest(until).filter(|it| touched.start <= *it)
        {
            given += self.give_from(budget, wait, wanted - given, 0);
            until = budget;
        }
        given
    }

    /// Gives a wait what budgets gave to others that further budgets explain as well.
    fn push_aside(&mut self, wait: usize, wanted: u64) -> u64 {
        let mut given = 0;
        for budget in self.touched[wait].clone().rev() {
            if given == wanted || !self.may_look() {
                break;
            }
            given += self.give_from(budget, wait, wanted - given, PUSHES);
        }
        given
    }

    /// The last budget before `until` that has something left.
    fn last_with_rest(&mut self, until: usize) -> Option<usize> {
        let mut at = until;
        while 0 < at && self.budgets[at - 1].left_ns == 0 {
            at = self.spent_since[at - 1];
        }
        let mut passed = until;
        while at < passed {
            passed = std::mem::replace(&mut self.spent_since[passed - 1], at);
        }
        at.checked_sub(1)
    }

    fn may_look(&mut self) -> bool {
        self.looks = self.looks.saturating_sub(1);
        0 < self.looks
    }

    fn give_from(&mut self, budget: usize, wait: usize, wanted: u64, pushes: u32) -> u64 {
        let mut taken = self.take(budget, wanted, pushes, |other, budget| other < budget);
        taken += self.take(budget, wanted - taken, pushes, |other, budget| budget < other);
        if 0 < taken {
            self.budgets[budget].given.push((wait, taken));
        }
        taken
    }

    /// Takes the rest of a budget first, then time that it gave to waits which budgets on one side can explain as well.
    fn take(&mut self, budget: usize, wanted: u64, pushes: u32, aside: Aside) -> u64 {
        let mut taken = wanted.min(self.budgets[budget].left_ns);
        self.budgets[budget].left_ns -= taken;
        let given = if pushes == 0 { 0 } else { self.budgets[budget].given.len() };
        for number in 0..given {
            let (wait, _) = self.budgets[budget].given[number];
            for other in self.touched[wait].clone() {
                if taken == wanted || !self.may_look() {
                    return taken;
                }
                if !aside(other, budget) {
                    continue;
                }
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

#[cfg(test)]
mod test {
    use model::VmId;

    use super::*;

    fn reading(time: u64, throttled_ns: u64) -> Throttling {
        Throttling { vm: VmId(0), time: HostNs(time), throttled_ns }
    }

    fn wait(from: u64, to: u64, gap: usize, preempted: u64) -> Wait {
        Wait { from, to, track: 0, gap, preempted, waiting: 0 }
    }

    /// `added`: what each reading, 10 ns apart, adds. `waits`: from, to, length. `expected`: the share of each wait.
    fn check(added: &[u64], waits: &[(u64, u64, u64)], expected: &[u64]) {
        let mut total = 0;
        let mut sum = |ns: &u64| {
            total += ns;
            total
        };
        let sums: Vec<u64> = std::iter::once(&0).chain(added).map(&mut sum).collect();
        let readings: Vec<_> = (0..).zip(&sums).map(|(n, sum)| reading(10 * n, *sum)).collect();
        let of = |(gap, (from, to, ns)): (usize, &(u64, u64, u64))| wait(*from, *to, gap, *ns);
        let shared = share(readings.iter(), waits.iter().enumerate().map(of).collect());
        let mut got = vec![0; waits.len()];
        shared.iter().for_each(|(wait, ns)| got[wait.gap] = *ns);
        assert_eq!(got, expected, "{added:?} {waits:?}");
    }

    #[test]
    fn longest_waits_come_first() {
        check(&[5, 5], &[(0, 8, 7), (11, 20, 3)], &[5, 3]);
        check(&[5], &[(0, 4, 2), (4, 9, 4)], &[1, 4]);
        // The first could have either; the second has the later one only.
        check(&[5, 5], &[(0, 18, 9), (11, 20, 5)], &[9, 1]);
        check(&[5, 5], &[(0, 18, 5), (11, 20, 5)], &[5, 5]);
    }

    /// Far more pairs of a wait and a reading that it spans than either.
    #[test]
    fn many_waits_over_many_readings_take_few_looks() {
        let n = 30_000;
        let readings: Vec<_> = (0..n).map(|time| reading(time, 3 * time)).collect();
        let waits: Vec<_> =
            (0..20_000).map(|gap| Wait { track: gap, ..wait(0, n, gap, n) }).collect();
        let shared = share(readings.iter(), waits);
        let sum: u64 = shared.iter().map(|(_, ns)| ns).sum();
        assert_eq!(sum, 3 * (n - 1), "all that was read");
    }
}
