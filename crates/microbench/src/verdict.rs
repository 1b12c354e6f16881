//! Whether an operation leaves the guest for the VMM, judged by its cost.
//!
//! A VM exit costs a lot and costs it each time. With g the times that the VM's general instructions, which run on the
//! CPU itself, are slower than the real machine's:
//!
//! ```text
//!  expected = g x cost on the real machine            excess = cost in the VM - expected
//!
//!  exits      excess >= LEAST, and cost in the VM >= 5 x expected; or
//!             excess >= CPUID, cost in the VM >= 2 x expected, and expected <= 4 x CPUID
//!  does not   excess <  LEAST / 2, and expected <= 4 x LEAST, so that an exit would show
//!  undecided  all else, with the reason
//! ```
//!
//! CPUID is the excess of that instruction, which exits under every VMM that uses the CPU's virtualisation: it says what
//! an exit costs there. LEAST is a quarter of it, but 250 ns at least. The second line is for devices, which are slow
//! on real machines, too. Of a cost's range the end is taken that is against the verdict. A cost that is not reliable, on
//! either machine, has none.

use std::fmt;

use crate::compare::{Cell, Cost, Labelled, Row};

/// No VMM handles an exit in less.
const MIN_NS: f64 = 250.0;
/// An exit costs this many times more than the operation itself.
const TIMES: f64 = 5.0;
/// What costs an exit more, and is so many times slower, exits even though it is slow by itself.
const DEVICE_TIMES: f64 = 2.0;
/// The part of CPUID's exit that the cheapest exit costs at least.
const OF_CPUID: f64 = 0.25;
/// What costs less than this part of the least exit more than expected has none in it.
const NONE: f64 = 0.5;
/// What takes longer than so many least exits hides one.
const HIDES: f64 = 4.0;

/// Whether an operation exits to the VMM.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    Exits {
        /// What that costs, in ticks of the VM's TSC.
        ticks: f64,
        /// The same in time.
        ns: f64,
    },
    DoesNot,
    CantSay(VerdictReason),
}

/// Why it is undecided.
#[derive(Debug, Clone, PartialEq)]
pub enum VerdictReason {
    /// A machine has no figure.
    NoFigure {
        label: String,
        /// What it has instead.
        why: String,
    },
    /// A machine's clock has no known rate.
    NoRate(String),
    /// There is no general instruction to compare with.
    NoGeneral,
    /// A machine was not under the condition.
    NotInForce(String),
    /// The spread is too large, or the figure can't be.
    NotReliable,
    /// It takes so long, in ns, on the real machine that an exit would not show.
    Hidden(f64),
    /// It is slower by this factor, and by this many ns: too much for none, too little for an exit.
    Between(f64, f64),
}

/// Gives every machine's cells but the baseline's a verdict.
pub(crate) fn fill(rows: &mut [Row], machines: &[Labelled], general: &[Option<f64>]) {
    for (n, machine) in machines.iter().enumerate().skip(1) {
        let rule = Rule {
            labels: [&machines[0].label, &machine.label],
            general: general[n],
            least_ns: MIN_NS,
            cpuid_ns: None,
        };
        let cpuid = rows.iter().filter(|row| row.operation == "cpuid");
        let cpuid_ns = cpuid.filter_map(|row| rule.excess_ns(row, n)).reduce(f64::min);
        let least_ns = cpuid_ns.map_or(MIN_NS, |excess| MIN_NS.max(OF_CPUID * excess));
        let rule = Rule { least_ns, cpuid_ns, ..rule };
        for row in &mut *rows {
            row.cells[n].verdict = Some(rule.verdict(row, n));
        }
    }
}

struct Rule<'r> {
    /// The baseline's, and the machine's.
    labels: [&'r str; 2],
    general: Option<f64>,
    least_ns: f64,
    /// What CPUID's exit costs; `None`: it has none, or that is not known yet.
    cpuid_ns: Option<f64>,
}

/// A cost in time.
struct Range {
    low: f64,
    middle: f64,
    high: f64,
}

impl Rule<'_> {
    fn verdict(&self, row: &Row, machine: usize) -> Verdict {
        match self.compared(row, machine) {
            Ok((expected, cost, ticks_per_ns)) => self.judge(&expected, &cost, ticks_per_ns),
            Err(why) => Verdict::CantSay(why),
        }
    }

    fn judge(&self, expected: &Range, cost: &Range, ticks_per_ns: f64) -> Verdict {
        let excess = |cost: f64, expected: f64| cost - expected;
        let is_dear = |cost: f64, expected: f64| {
            self.least_ns <= excess(cost, expected) && TIMES * expected <= cost
        };
        let is_a_device = |cost: f64, expected: f64| {
            let is_more = |cpuid: f64| cpuid <= excess(cost, expected) && expected <= HIDES * cpuid;
            self.cpuid_ns.is_some_and(is_more) && DEVICE_TIMES * expected <= cost
        };
        let is_more = |cost, expected| is_dear(cost, expected) || is_a_device(cost, expected);
        if is_more(cost.low, expected.high) {
            let ns = excess(cost.middle, expected.middle);
            return Verdict::Exits { ticks: ns * ticks_per_ns, ns };
        }
        let hides = HIDES * self.least_ns < expected.middle;
        let is_less = |cost: f64, expected: f64| excess(cost, expected) < NONE * self.least_ns;
        if !hides && is_less(cost.high, expected.low) {
            return Verdict::DoesNot;
        }
        Verdict::CantSay(if hides {
            VerdictReason::Hidden(expected.middle)
        } else if is_more(cost.middle, expected.middle) || is_less(cost.middle, expected.middle) {
            VerdictReason::NotReliable
        } else {
            VerdictReason::Between(
                cost.middle / expected.middle,
                excess(cost.middle, expected.middle),
            )
        })
    }

    /// What is expected, what it costs, and how many ticks a nanosecond has there.
    fn compared(&self, row: &Row, machine: usize) -> Result<(Range, Range, f64), VerdictReason> {
        let real = self.cost(&row.cells[0], self.labels[0])?;
        let vm = self.cost(&row.cells[machine], self.labels[1])?;
        if !real.reliable || !vm.reliable {
            return Err(VerdictReason::NotReliable);
        }
        let general = self.general.ok_or(VerdictReason::NoGeneral)?;
        let (real, _) = self.range(real, self.labels[0])?;
        let (cost, ticks_per_ns) = self.range(vm, self.labels[1])?;
        let expected = Range {
            low: general * real.low,
            middle: general * real.middle,
            high: general * real.high,
        };
        Ok((expected, cost, ticks_per_ns))
    }

    fn cost<'c>(&self, cell: &'c Cell, label: &str) -> Result<&'c Cost, VerdictReason> {
        let why = || cell.outcome.as_ref().map_or("not tried".to_owned(), |outcome| outcome.why());
        let none = || VerdictReason::NoFigure { label: label.to_owned(), why: why() };
        let cost = cell.cost.as_ref().ok_or_else(none)?;
        if cost.effective { Ok(cost) } else { Err(VerdictReason::NotInForce(label.to_owned())) }
    }

    fn range(&self, cost: &Cost, label: &str) -> Result<(Range, f64), VerdictReason> {
        let ns = cost.ns.ok_or_else(|| VerdictReason::NoRate(label.to_owned()))?;
        let per_tick = ns / cost.ticks;
        let range = Range { low: cost.low * per_tick, middle: ns, high: cost.high * per_tick };
        Ok((range, 1.0 / per_tick))
    }

    /// What an operation that certainly exits costs more than expected.
    fn excess_ns(&self, row: &Row, machine: usize) -> Option<f64> {
        match self.verdict(row, machine) {
            Verdict::Exits { ns, .. } => Some(ns),
            _ => None,
        }
    }
}

impl Verdict {
    /// As in JSON: `exits`, `does_not`, `cant_say`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Exits { .. } => "exits",
            Self::DoesNot => "does_not",
            Self::CantSay(_) => "cant_say",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exits { .. } => f.write_str("exits"),
            Self::DoesNot => f.write_str("does not"),
            Self::CantSay(why) => write!(f, "undecided: {why}"),
        }
    }
}

impl fmt::Display for VerdictReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoFigure { label, why } => write!(f, "{label}: {why}"),
            Self::NoRate(label) => write!(f, "the TSC rate of {label} is unknown"),
            Self::NoGeneral => f.write_str("no general instruction on both"),
            Self::NotInForce(label) => write!(f, "not in force on {label}"),
            Self::NotReliable => f.write_str("not reliable enough"),
            Self::Hidden(ns) => write!(f, "takes {:.1} us anyway, which hides an exit", ns / 1e3),
            Self::Between(times, ns) => {
                write!(f, "{times:.1} times slower, {:.1} us: too little for an exit", ns / 1e3)
            }
        }
    }
}
