//! What happened between two looks at a vCPU, from the counters of its waits.
//!
//! ```text
//!  a                                                                                 b
//!  |..on CPU..|.polled.|..halted..|..waiting in VMM..|..throttled..|..preempted..|..on CPU..|
//! ```
//!
//! The counters are exact, but for one thing: KVM's halt time ends when the vCPU runs again, so the wait for a CPU
//! after a wake-up is counted twice, as halted and as runnable. It belongs to the second.

use model::WaitCounters;

use super::track::{Activity, Point};

/// How much time on a CPU the samples at a gap's ends don't show, in periods.
///
/// Between two runs of many samples it is half a period of either on average. A vCPU that comes and goes between samples
/// may have been on a CPU more often in the gap: that this adds up to more than four periods has a probability of 2 %.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UncoveredTime(u64);

impl UncoveredTime {
    const AT_THE_ENDS: Self = Self(1);
    const IN_BURSTS: Self = Self(4);

    /// By how many samples a vCPU's runs have.
    pub(super) fn from_points(points: &[Point], period_ns: u64) -> Self {
        let differences = || points.windows(2).filter_map(|pair| difference(&pair[0], &pair[1]));
        let is_gap = |waits: &WaitCounters| period_ns / 2 < waits.halted_ns.max(waits.runnable_ns);
        let pairs = differences().count();
        let gaps = differences().filter(|d| is_gap(&d.waits)).count();
        if 2 * gaps <= pairs { Self::AT_THE_ENDS } else { Self::IN_BURSTS }
    }

    /// In a gap with these waits; without any it can't have come and gone, but to and from the VMM.
    pub(super) fn ns(self, waits: &WaitCounters, period_ns: u64) -> u64 {
        let is_lone =
            waits.halted_ns == 0 && waits.polled_ns == 0 && waits.runnable_ns <= period_ns / 2;
        let periods = if is_lone { Self::AT_THE_ENDS } else { self };
        periods.0.saturating_mul(period_ns)
    }
}

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
    pub(super) waits: WaitCounters,
    /// A counter went backwards.
    pub(super) backwards: bool,
}

/// What the counters advanced between two points. `None`: a point has no counters.
pub(super) fn difference(a: &Point, b: &Point) -> Option<Difference> {
    let (a, b) = (a.waits?, b.waits?);
    let pairs =
        [(a.halted_ns, b.halted_ns), (a.polled_ns, b.polled_ns), (a.runnable_ns, b.runnable_ns)];
    let [halted_ns, polled_ns, runnable_ns] = pairs.map(|(a, b)| b.saturating_sub(a));
    let backwards = pairs.iter().any(|(a, b)| b < a);
    Some(Difference { waits: WaitCounters { halted_ns, polled_ns, runnable_ns }, backwards })
}

/// KVM counts a halt, and the poll before it, a moment after the vCPU has a CPU again. Samples in that moment lack
/// them, and the gap after would have more than its length: they belong to the longest gap before.
pub(super) fn count_late_halts(points: &mut [Point], period_ns: u64) {
    for last in 1..points.len().saturating_sub(1) {
        let [sample, next] = [points[last], points[last + 1]];
        let Some(late) = difference(&sample, &next).map(|d| d.waits) else { continue };
        if !sample.may_poll() || late.halted_ns <= next.time.saturating_sub(sample.time) {
            continue;
        }
        let is_same = |pair: &&[Point]| pair[0].may_poll() && pair[0].waits == pair[1].waits;
        let same = points[..=last].windows(2).rev().take_while(is_same).count();
        let gaps = (last - same).max(1)..=last;
        let rooms = gaps.map(|number| (room(&points[number - 1], &points[number]), number));
        let Some((room, first)) = rooms.max() else { continue };
        // It did not fall asleep at the sample before.
        let halted_ns = late.halted_ns.min(room.saturating_sub(period_ns / 2));
        let polled_ns = late.polled_ns.min(room - halted_ns);
        for waits in points[first..=last].iter_mut().filter_map(|point| point.waits.as_mut()) {
            waits.halted_ns += halted_ns;
            waits.polled_ns += polled_ns;
        }
    }
}

/// What a gap has that is neither halted nor polled.
fn room(a: &Point, b: &Point) -> u64 {
    let counted =
        difference(a, b).map_or(u64::MAX, |d| d.waits.halted_ns.saturating_add(d.waits.polled_ns));
    b.time.saturating_sub(a.time).saturating_sub(counted)
}

impl Gap {
    /// The gap between `a` and `b`, as the counters tell it.
    pub(super) fn new(a: &Point, b: &Point, waits: WaitCounters, unseen_ns: u64) -> Self {
        let length = b.time.saturating_sub(a.time);
        let halt_wait = waits.halted_ns.min(length);
        let runnable = waits.runnable_ns.min(length);
        let polled = waits.polled_ns.min(length);
        // As much of it as can't be wake-ups: the rest would leave too much time on a CPU.
        let awake = length - halt_wait;
        let apart = match halt_wait {
            0 => runnable,
            _ => runnable.min(awake.saturating_sub(polled.saturating_add(unseen_ns))),
        };
        let after_wake = (runnable - apart).min(halt_wait);
        let halted = (halt_wait - after_wake).min(length - runnable);
        Self { length, polled, halted, preempted: runnable, ..Self::default() }
    }

    /// ns off the CPU.
    pub(super) fn off(&self) -> u64 {
        self.halted + self.waiting + self.throttled + self.preempted
    }

    /// ns on a CPU.
    pub(super) fn on(&self) -> u64 {
        self.length.saturating_sub(self.off())
    }

    /// What the counters don't explain and samples do not show to be on a CPU: it slept in the VMM. `absent` counts the
    /// beats at which its CPU was seen without it.
    pub(super) fn find_waiting(
        &mut self,
        (a, b): (&Point, &Point),
        absent: u64,
        unseen_ns: u64,
        period_ns: u64,
    ) {
        let in_vmm = |point: &Point| matches!(point.doing, Activity::Vmm { halted: false, .. });
        let off = self.off();
        let explained = match off {
            0 => 0,
            _ if in_vmm(a) || in_vmm(b) => off / period_ns,
            _ => off / period_ns + 1,
        };
        if absent <= explained {
            return;
        }
        let on = self.on().saturating_sub(self.polled);
        let seen_away = absent.saturating_mul(period_ns).saturating_sub(off);
        // In a pause nothing else happens, whether or not the CPU's interrupts came.
        let most = if b.kicked { u64::MAX } else { seen_away };
        self.waiting = on.saturating_sub(unseen_ns).min(most);
    }

    /// Takes what a quota held back out of the waits. Kernels that don't count it as runnable leave it unexplained.
    pub(super) fn throttle(&mut self, throttled: u64) {
        let of_preempted = self.preempted.min(throttled);
        let of_waiting = self.waiting.min(throttled - of_preempted);
        self.preempted -= of_preempted;
        self.waiting -= of_waiting;
        self.throttled += of_preempted + of_waiting;
    }
}
