//! What was said from one start of the machine to the next.

use std::mem;

use super::NoResults;
use super::understand::{End, Header};
use crate::bounded::{Notes, Outcomes};
use crate::condition::Condition;
use crate::results::{Ending, InForce, Machine, Measurement, Outcome, Results};

/// One start.
#[derive(Debug, Default)]
pub(super) struct Boot {
    /// `None`: its line is lost.
    machine: Option<Machine>,
    conditions: Vec<InForce>,
    outcomes: Outcomes,
    pending: Option<(String, Condition)>,
    refusal: Option<(String, Vec<String>)>,
    ending: Option<Ending>,
    /// What the end says there are.
    reported: Option<u64>,
}

impl Boot {
    pub(super) fn with_header(header: Header) -> Self {
        Self { machine: Some(header.machine), ..Self::default() }
    }

    pub(super) fn enter(&mut self, found: InForce) {
        self.conditions.retain(|known| known.condition != found.condition);
        self.conditions.push(found);
    }

    pub(super) fn begin(&mut self, operation: &str, condition: Condition) {
        if let Some((operation, condition)) = self.pending.take() {
            self.outcomes.add(Measurement { operation, condition, outcome: Outcome::Lost });
        }
        self.pending = Some((operation.to_owned(), condition));
    }

    pub(super) fn finish(&mut self, measurement: Measurement) {
        let is_pending = |(operation, condition): &mut (String, Condition)| {
            *operation == measurement.operation && *condition == measurement.condition
        };
        self.pending.take_if(is_pending);
        self.outcomes.add(measurement);
    }

    pub(super) fn refuse(&mut self, error: String, choices: Vec<String>) {
        self.refusal = Some((error, choices));
    }

    pub(super) fn end(&mut self, end: End) {
        if let Some((operation, condition)) = self.pending.take() {
            self.outcomes.add(Measurement { operation, condition, outcome: Outcome::Lost });
        }
        self.reported = end.results;
        if let Some(machine) = &mut self.machine {
            machine.tsc.drift_ppm = end.drift_ppm;
            machine.tsc.backward_jumps = end.backward_jumps;
        }
        self.ending = Some(end.ending);
    }

    pub(super) fn hang(&mut self, reason: &str) {
        if let Some((operation, condition)) = self.pending.take() {
            let outcome = Outcome::Hung { reason: reason.to_owned() };
            self.outcomes.add(Measurement { operation, condition, outcome });
        }
    }

    pub(super) fn pending(&self) -> Option<(&str, Condition)> {
        self.pending.as_ref().map(|(operation, condition)| (operation.as_str(), *condition))
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ending.is_some()
    }

    /// Whether it refused the request, before it did anything.
    pub(super) fn is_refused(&self) -> bool {
        self.refusal.is_some() && self.outcomes.all().is_empty()
    }

    fn is_of(&self, machine: &Machine) -> bool {
        self.machine.as_ref().is_none_or(|own| own.has_cpu_of(machine))
    }

    /// What it lacks of what its end says there is.
    fn check(&self, notes: &mut Notes) {
        let came = self.outcomes.all().iter().filter(|m| m.outcome != Outcome::Lost).count() as u64;
        if let Some(reported) = self.reported.filter(|reported| came < *reported) {
            notes.add(&format!("{} of {reported} results are lost", reported - came));
        }
        self.outcomes.note_refused(notes);
    }
}

/// All starts of the last one's machine, taken together.
pub(super) fn merge(boots: Vec<Boot>, mut notes: Notes) -> Result<Results, NoResults> {
    let starts = boots.len();
    let machine = boots.iter().rev().find_map(|boot| boot.machine.clone());
    let machine = machine.unwrap_or_default();
    let (boots, others): (Vec<Boot>, Vec<Boot>) =
        boots.into_iter().partition(|boot| boot.is_of(&machine));
    if !others.is_empty() {
        notes.add("results of several machines: only those of the last one are used");
    } else if 1 < starts {
        notes.add(&format!("the machine started {starts} times: taken together"));
    }
    let Some(last) = boots.last() else { return Err(NoResults::NothingOfOurs) };
    let refusal = last.refusal.clone();
    let ending = last.ending.clone().unwrap_or(Ending::Cut);
    let (mut conditions, mut outcomes) = (Vec::<InForce>::new(), Outcomes::default());
    for mut boot in boots {
        boot.check(&mut notes);
        for found in mem::take(&mut boot.conditions) {
            conditions.retain(|known| known.condition != found.condition);
            conditions.push(found);
        }
        boot.outcomes.into_all().into_iter().for_each(|measurement| outcomes.add(measurement));
    }
    match refusal {
        Some((error, choices)) if outcomes.all().is_empty() => {
            return Err(NoResults::Refused { error, choices });
        }
        None if outcomes.all().is_empty() => return Err(NoResults::NothingMeasured),
        Some((error, _)) => notes.add(&format!("it says: {error}")),
        None => {}
    }
    if ending == Ending::Cut {
        notes.add("the end is missing: operations after the last one here were not tried");
    }
    Ok(Results { machine, conditions, measurements: outcomes.into_all(), ending, notes })
}
