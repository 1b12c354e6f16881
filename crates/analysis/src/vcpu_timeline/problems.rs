//! What input made no sense.

use std::collections::BTreeMap;

/// A problem in a vCPU's records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Problem {
    SamplesOutOfOrder,
    SampledOutside,
    SwitchedOutside,
    UnknownVcpu,
    NoPeriod,
    WaitsBackwards,
    SwitchesLost,
    SampledAway,
    NotWhole,
    CallersLeftOut,
}

impl Problem {
    fn text(self) -> &'static str {
        match self {
            Self::SamplesOutOfOrder => "samples out of order",
            Self::SampledOutside => "samples before or after their VM's life",
            Self::SwitchedOutside => "switches before or after their VM's life",
            Self::UnknownVcpu => "vCPUs in no table",
            Self::NoPeriod => "no sampling period",
            Self::WaitsBackwards => "wait counters that went backwards",
            Self::SwitchesLost => "switches lost",
            Self::SampledAway => "samples of threads just switched out",
            Self::NotWhole => "timelines that do not add up",
            Self::CallersLeftOut => "samples without callers, of too many different call stacks",
        }
    }
}

/// Problems and how often each occurred.
#[derive(Debug, Default)]
pub(super) struct Problems(BTreeMap<Problem, u64>);

impl Problems {
    pub(super) fn count(&mut self, problem: Problem) {
        self.add(problem, 1);
    }

    pub(super) fn add(&mut self, problem: Problem, n: u64) {
        if 0 < n {
            *self.0.entry(problem).or_default() += n;
        }
    }

    pub(super) fn finish(self) -> Vec<(&'static str, u64)> {
        self.0.into_iter().map(|(problem, n)| (problem.text(), n)).collect()
    }
}
