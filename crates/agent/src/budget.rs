//! The agent's own CPU time: beyond its budget it samples less often. Pure.
//!
//! ```text
//!  over the budget, 2 windows in a row -------------> twice the period, at most 10 ms
//!  below 45 % of it, 5 windows in a row ------------> half of the period, at least the configured one
//! ```

use std::time::Duration;

/// It is not lengthened beyond.
const LONGEST_NS: u64 = 10_000_000;
/// Half of the period costs twice as much at most: then it is still below.
const WELL_BELOW: f64 = 0.45;
const WINDOWS_BELOW: u32 = 5;
/// One may have had something in it that does not come again: a new guest's symbols, a backlog that was sent.
const WINDOWS_OVER: u32 = 2;

/// Which period is in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Budget {
    configured_ns: u64,
    period_ns: u64,
    windows_below: u32,
    windows_over: u32,
    /// The first window has the session's begin in it.
    is_begun: bool,
}

/// The period changes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Change {
    pub(crate) from_ns: u64,
    pub(crate) to_ns: u64,
    /// What was used, per cent of a CPU.
    pub(crate) percent: f64,
}

impl Budget {
    pub(crate) fn new(configured_ns: u64) -> Self {
        Self {
            configured_ns,
            period_ns: configured_ns,
            windows_below: 0,
            windows_over: 0,
            is_begun: false,
        }
    }

    pub(crate) fn period_ns(&self) -> u64 {
        self.period_ns
    }

    /// Adapts the period after a window of this length. `cpu` is the agent's CPU time in it.
    pub(crate) fn after_window(
        &mut self,
        cpu: Duration,
        length: Duration,
        max_percent: f64,
    ) -> Option<Change> {
        let percent = 100.0 * cpu.as_secs_f64() / length.as_secs_f64().max(1e-3);
        if !std::mem::replace(&mut self.is_begun, true) {
            return None;
        }
        let is_below = percent < max_percent * WELL_BELOW;
        self.windows_below = if is_below { self.windows_below + 1 } else { 0 };
        self.windows_over = if max_percent < percent { self.windows_over + 1 } else { 0 };
        let longest_ns = LONGEST_NS.max(self.configured_ns);
        let to_ns = if WINDOWS_OVER <= self.windows_over {
            self.period_ns.saturating_mul(2).min(longest_ns)
        } else if WINDOWS_BELOW <= self.windows_below {
            (self.period_ns / 2).max(self.configured_ns)
        } else {
            self.period_ns
        };
        let from_ns = std::mem::replace(&mut self.period_ns, to_ns);
        if from_ns == to_ns {
            return None;
        }
        (self.windows_below, self.windows_over) = (0, 0);
        Some(Change { from_ns, to_ns, percent })
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn it_samples_less_often_when_it_costs_too_much() {
        let mut budget = Budget::new(1_000_000);
        // Per cent of a CPU in each window, and the period after it (ms).
        let drawn = "5:1 0.9:1 9:1 0.9:1 1.1:1 1.1:2 1.1:2 1.1:4 1.1:4 1.1:8 1.1:8 9:10 9:10 9:10 0.5:10 \
                     0.4:10 0.4:10 0.4:10 0.5:10 0.4:10 0.4:10 0.4:10 0.4:10 0.4:5 0.4:5 0.4:5 0.4:5 0.4:5 0.4:2.5";
        for step in drawn.split_whitespace() {
            let (percent, expected_ms) = step.split_once(':').unwrap();
            let percent: f64 = percent.parse().unwrap();
            let length = Duration::from_secs(100);
            let cpu = length.mul_f64(percent / 100.0);
            budget.after_window(cpu, length, 1.0);
            let period_ms = budget.period_ns() as f64 / 1e6;
            assert_eq!(period_ms, expected_ms.parse::<f64>().unwrap(), "{step}");
        }
    }

    #[test]
    fn a_longer_configured_period_stays() {
        let mut budget = Budget::new(50_000_000);
        let second = Duration::from_secs(1);
        for _ in 0..10 {
            assert_eq!(budget.after_window(second, second, 1.0), None);
            assert_eq!(budget.after_window(Duration::ZERO, second, 1.0), None);
        }
    }
}
