//! Machines beside each other: the first is what the others are compared with.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::bounded::Notes;
use crate::catalogue::{self, Group};
use crate::condition::Condition;
use crate::results::{Ending, Figures, Outcome, Results};
use crate::verdict::{self, Verdict};

/// Rates of TSCs that differ by more make ticks of two machines different things.
const SAME_RATE: f64 = 0.01;

/// A machine's results under the name that tables call it.
#[derive(Debug, Clone, PartialEq)]
pub struct Labelled {
    pub label: String,
    pub results: Results,
}

/// Machines beside each other.
#[derive(Debug)]
pub struct Comparison<'r> {
    /// The baseline first.
    pub machines: &'r [Labelled],
    /// Every operation under every condition that any machine tried; those of a condition together.
    pub rows: Vec<Row>,
    /// For each machine how many times slower than the baseline its general instructions are; the baseline's is 1.
    pub general: Vec<Option<f64>>,
    /// What the reader should know.
    pub notes: Notes,
}

/// An operation under a condition, on every machine.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    pub operation: String,
    /// What kind of operation it is.
    pub group: Group,
    pub condition: Condition,
    /// Bytes that it moves or works on; 0: no such thing.
    pub bytes: u64,
    /// One per machine.
    #[serde(rename = "machines")]
    pub cells: Vec<Cell>,
}

/// What a machine made of it.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(into = "crate::json::CellRecord")]
pub struct Cell {
    /// `None`: not tried there.
    pub outcome: Option<Outcome>,
    pub cost: Option<Cost>,
    /// Against the baseline; `None` for that itself, or when either has no cost.
    pub against: Option<Against>,
    /// Whether it exits; `None` for the baseline.
    pub verdict: Option<Verdict>,
}

/// What one operation costs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Cost {
    /// In ticks of the machine's TSC.
    pub ticks: f64,
    /// In nanoseconds, where the TSC's rate is known.
    pub ns: Option<f64>,
    /// In ADD instructions under the same condition.
    pub adds: Option<f64>,
    /// It is no less than this, in ticks.
    pub low: f64,
    /// It is no more than this, in ticks.
    pub high: f64,
    pub reliable: bool,
    /// The condition that it was measured under was in force.
    pub effective: bool,
}

/// A cost and the baseline's.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Against {
    pub ticks: Option<f64>,
    /// Of nanoseconds.
    pub ns: Option<f64>,
    /// Of ADD units.
    pub adds: Option<f64>,
    /// Both trust their figure.
    pub reliable: bool,
    /// What both may cost overlaps: no difference is shown.
    pub overlap: bool,
}

/// Unit of costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Ticks of the TSC.
    Ticks,
    Ns,
    /// ADD instructions under the same condition on the same machine.
    Adds,
}

/// Puts machines beside each other; the first is the baseline.
#[must_use]
pub fn compare(machines: &[Labelled]) -> Comparison<'_> {
    let indexed: Vec<Indexed<'_>> = machines.iter().map(Indexed::new).collect();
    let mut rows: Vec<Row> = keys(machines)
        .into_iter()
        .map(|(operation, condition)| row(operation, condition, &indexed))
        .collect();
    let general: Vec<Option<f64>> = (0..machines.len()).map(|n| general_ratio(&rows, n)).collect();
    verdict::fill(&mut rows, machines, &general);
    Comparison { machines, rows, general, notes: notes(machines) }
}

impl Cost {
    /// In a unit, where that is known.
    #[must_use]
    pub fn value(&self, unit: Unit) -> Option<f64> {
        match unit {
            Unit::Ticks => Some(self.ticks),
            Unit::Ns => self.ns,
            Unit::Adds => self.adds,
        }
    }
}

impl Against {
    /// The ratio in a unit.
    #[must_use]
    pub fn ratio(&self, unit: Unit) -> Option<f64> {
        match unit {
            Unit::Ticks => self.ticks,
            Unit::Ns => self.ns,
            Unit::Adds => self.adds,
        }
    }

    /// In time where both clocks' rates are known, else in ticks.
    #[must_use]
    pub fn best(&self) -> Option<f64> {
        self.ns.or(self.ticks)
    }
}

impl Unit {
    /// A cost as people read it; a time from a millisecond on has its own unit.
    #[must_use]
    pub fn figure(self, value: f64) -> String {
        match self {
            Self::Ns if 999_500.0 <= value => table::time(value),
            _ => table::figure(value),
        }
    }

    /// The name in reports: `ticks`, `ns`, `ADD`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ticks => "ticks",
            Self::Ns => "ns",
            Self::Adds => "ADD",
        }
    }
}

/// A machine's outcomes, quickly found.
struct Indexed<'r> {
    results: &'r Results,
    outcomes: BTreeMap<(&'r str, Condition), &'r Outcome>,
    ineffective: BTreeSet<Condition>,
}

impl<'r> Indexed<'r> {
    fn new(machine: &'r Labelled) -> Self {
        let results = &machine.results;
        let outcomes = results.measurements.iter();
        let outcomes = outcomes.map(|m| ((m.operation.as_str(), m.condition), &m.outcome));
        let ineffective = results.conditions.iter().filter(|found| !found.effective);
        Self {
            results,
            outcomes: outcomes.collect(),
            ineffective: ineffective.map(|found| found.condition).collect(),
        }
    }

    fn figures(&self, operation: &str, condition: Condition) -> Option<&'r Figures> {
        match self.outcomes.get(&(operation, condition)) {
            Some(Outcome::Measured(figures)) => Some(figures),
            _ => None,
        }
    }

    fn cost(&self, operation: &str, condition: Condition) -> Option<Cost> {
        let figures = self.figures(operation, condition)?;
        let (ticks, (low, high)) = (figures.ticks()?, figures.range()?);
        let add = self.figures("add", condition).and_then(Figures::ticks);
        Some(Cost {
            ticks,
            ns: self.results.machine.tsc.hz.map(|hz| ticks * 1e9 / hz),
            adds: add.filter(|add| 0.0 < *add).map(|add| ticks / add),
            low,
            high,
            // Nothing costs nothing.
            reliable: figures.is_reliable() && 0.0 < ticks,
            effective: figures.ineffective.is_none() && !self.ineffective.contains(&condition),
        })
    }
}

/// What any machine tried, by condition; then in the order in which it was measured.
fn keys(machines: &[Labelled]) -> Vec<(&str, Condition)> {
    let mut seen = BTreeSet::new();
    let all = machines.iter().flat_map(|machine| &machine.results.measurements);
    let mut keys: Vec<(&str, Condition)> =
        all.map(|m| (m.operation.as_str(), m.condition)).filter(|key| seen.insert(*key)).collect();
    keys.sort_by_key(|(_, condition)| *condition);
    keys
}

fn row(operation: &str, condition: Condition, machines: &[Indexed<'_>]) -> Row {
    let baseline = machines.first().and_then(|machine| machine.cost(operation, condition));
    let cell = |(n, machine): (usize, &Indexed<'_>)| {
        let cost = machine.cost(operation, condition);
        Cell {
            outcome: machine
                .outcomes
                .get(&(operation, condition))
                .map(|outcome| (*outcome).clone()),
            cost,
            against: if n == 0 { None } else { against(cost.as_ref(), baseline.as_ref()) },
            verdict: None,
        }
    };
    let figures = machines.iter().filter_map(|machine| machine.figures(operation, condition));
    Row {
        operation: operation.to_owned(),
        condition,
        group: catalogue::group(operation),
        bytes: figures.map(|figures| figures.bytes).max().unwrap_or(0),
        cells: machines.iter().enumerate().map(cell).collect(),
    }
}

fn against(cost: Option<&Cost>, baseline: Option<&Cost>) -> Option<Against> {
    let (cost, baseline) = (cost?, baseline?);
    let ratio = |unit| {
        let (of, to) = (cost.value(unit)?, baseline.value(unit)?);
        (0.0 < to).then(|| of / to)
    };
    // Ranges in time, where they are known.
    let range = |cost: &Cost| match cost.ns {
        Some(ns) if 0.0 < cost.ticks => (cost.low * ns / cost.ticks, cost.high * ns / cost.ticks),
        _ => (cost.low, cost.high),
    };
    let (one, other) = (range(cost), range(baseline));
    Some(Against {
        ticks: ratio(Unit::Ticks),
        ns: ratio(Unit::Ns),
        adds: ratio(Unit::Adds),
        reliable: cost.reliable && baseline.reliable,
        overlap: one.0 <= other.1 && other.0 <= one.1,
    })
}

/// The median over all general instructions whose costs can be trusted.
fn general_ratio(rows: &[Row], machine: usize) -> Option<f64> {
    if machine == 0 {
        return Some(1.0);
    }
    let general = rows.iter().filter(|row| row.group == Group::General && !row.condition.no_cache);
    let against =
        general.filter_map(|row| row.cells[machine].against).filter(|against| against.reliable);
    let mut ratios: Vec<f64> = against.filter_map(|against| against.best()).collect();
    ratios.sort_by(f64::total_cmp);
    ratios.get(ratios.len() / 2).copied()
}

fn notes(machines: &[Labelled]) -> Notes {
    let mut notes = Notes::default();
    for machine in machines {
        let (label, results) = (&machine.label, &machine.results);
        for note in results.notes.all() {
            notes.add(&format!("{label}: {note}"));
        }
        if results.machine.tsc.hz.is_none() {
            notes.add(&format!("{label}: the rate of its TSC is not known: no ns"));
        }
        if results.machine.tsc.backward_jumps.is_some_and(|jumps| 0 < jumps) {
            notes.add(&format!("{label}: its TSC went backwards: figures may be wrong"));
        }
        if results.ending != Ending::Complete {
            notes.add(&format!("{label}: the run did not finish"));
        }
        for found in results.conditions.iter().filter(|found| !found.effective) {
            let reason = found.reason.as_deref().unwrap_or("no reason given");
            notes.add(&format!("{label}: {} is not in force: {reason}", found.condition));
        }
    }
    let Some((baseline, others)) = machines.split_first() else { return notes };
    for other in others {
        notes.extend(differences(baseline, other));
    }
    notes
}

/// What makes two machines' figures hard to compare.
fn differences(baseline: &Labelled, other: &Labelled) -> Vec<String> {
    let (one, two) = (&baseline.results.machine, &other.results.machine);
    let mut all = Vec::new();
    if one.program_version != two.program_version {
        all.push(format!(
            "{} was measured by version {} of the image, {} by {}: an operation may have changed",
            baseline.label,
            known(&one.program_version),
            other.label,
            known(&two.program_version)
        ));
    }
    if let (Some(a), Some(b)) = (one.tsc.hz, two.tsc.hz)
        && SAME_RATE < (a / b - 1.0).abs()
    {
        all.push(format!(
            "the TSC of {} ticks at {:.0} MHz, that of {} at {:.0}: compare in ns or ADD",
            baseline.label,
            a / 1e6,
            other.label,
            b / 1e6
        ));
    }
    all
}

fn known(version: &str) -> &str {
    if version.is_empty() { "(unknown)" } else { version }
}
