//! What happened between two looks at a vCPU, from the counters of its waits.
//!
//! ```text
//!  a                                                                                 b
//!  |..on CPU..|.polled.|..halted..|..waiting in VMM..|..throttled..|..preempted..|..on CPU..|
//! ```
//!
//! The counters are exact, but for one thing: KVM's halt time ends when the vCPU runs again, so the wait for a CPU
//! after a wake-up is counted twice, as halted and as runnable. It belongs to the second.

use model::Waits;

use super::track::{Doing, Point};

/// A gap without halts or preemption holds two bits of on-CPU time, of half a period each on average.
const LONE_SLACK: u64 = 1;
/// Where a vCPU came and went between, it may have been on a CPU more often without a sample hitting it: that this lasts
/// longer than so many periods has a probability of 2 %.
const BURSTS_SLACK: u64 = 4;

/// A gap's time off the CPU, in ns. Together at most the gap's length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Gap {
    pub(super) length: u64,
    /// On a CPU, in this gap or in the poll that the gap's first sample is in.
    pub(super) polled: u64,
    pub(super) halted: u64,
    pub(super) waiting: u64,
    pub(super) throttled: u64,
    pub(super) preempted: u64,
}

/// What happened to the counters between two points.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Difference {
    pub(super) waits: Waits,
    /// A counter went backwards.
    pub(super) backwards: bool,
}

/// `None`: not counted.
pub(super) fn difference(a: &Point, b: &Point) -> Option<Difference> {
    let (a, b) = (a.waits?, b.waits?);
    let pairs =
        [(a.halted_ns, b.halted_ns), (a.polled_ns, b.polled_ns), (a.runnable_ns, b.runnable_ns)];
    let [halted_ns, polled_ns, runnable_ns] = pairs.map(|(a, b)| b.saturating_sub(a));
    let backwards = pairs.iter().any(|(a, b)| b < a);
    Some(Difference { waits: Waits { halted_ns, polled_ns, runnable_ns }, backwards })
}

impl Gap {
    /// The gap between `a` and `b`, as the counters tell it.
    pub(super) fn new(a: &Point, b: &Point, waits: Waits, period_ns: u64) -> Self {
        let length = b.time.saturating_sub(a.time);
        let halt_wait = waits.halted_ns.min(length);
        let runnable = waits.runnable_ns.min(length);
        let polled = waits.polled_ns.min(length);
        let apart = match halt_wait {
            0 => runnable,
            // As much of it as can't be wake-ups: the rest would leave more time on a CPU than samples miss.
            _ => runnable
                .min(length - halt_wait)
                .min((length - halt_wait).saturating_sub(polled + 2 * period_ns)),
        };
        let after_wake = (runnable - apart).min(halt_wait);
        let halted = (halt_wait - after_wake).min(length - runnable);
        Self { length, polled, halted, preempted: runnable, ..Self::default() }
    }

    /// Off the CPU.
    pub(super) fn off(&self) -> u64 {
        self.halted + self.waiting + self.throttled + self.preempted
    }

    /// On a CPU.
    pub(super) fn on(&self) -> u64 {
        self.length.saturating_sub(self.off())
    }

    /// What the counters don't explain and samples do not show to be on a CPU: it slept in the VMM. `absent` counts the
    /// beats at which its CPU was seen without it.
    pub(super) fn find_waiting(&mut self, a: &Point, b: &Point, absent: u64, period_ns: u64) {
        let in_vmm = |point: &Point| matches!(point.doing, Doing::Vmm { halted: false, .. });
        let off = self.off();
        let explained = match off {
            0 => 0,
            _ if in_vmm(a) || in_vmm(b) => off / period_ns,
            _ => off / period_ns + 1,
        };
        if absent <= explained {
            return;
        }
        let lone = self.halted == 0 && self.polled == 0 && self.preempted <= period_ns / 2;
        let slack = if lone { LONE_SLACK } else { BURSTS_SLACK }.saturating_mul(period_ns);
        let on = self.on().saturating_sub(self.polled);
        let unseen = absent.saturating_mul(period_ns).saturating_sub(off);
        self.waiting = on.saturating_sub(slack).min(unseen);
    }

    /// Takes what a quota held back out of the waits; what is left of `budget`. Kernels that take throttled threads off
    /// their queues (6.18 on) don't count them as runnable.
    pub(super) fn throttle(&mut self, budget: u64) -> u64 {
        let of_preempted = self.preempted.min(budget);
        let of_waiting = self.waiting.min(budget - of_preempted);
        self.preempted -= of_preempted;
        self.waiting -= of_waiting;
        self.throttled += of_preempted + of_waiting;
        budget - of_preempted - of_waiting
    }
}
