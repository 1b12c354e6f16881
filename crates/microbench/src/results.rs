//! What one machine measured: read from its lines or QR codes, and kept in result files in this form.
//!
//! Field names, their order and nulls are the documented JSON of docs/bench.md: within a version fields are only added.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

use crate::bounded::Notes;
use crate::condition::Condition;

/// All that one machine measured in one plan, hung operations and all.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// The machine, as the program found it.
    pub machine: Machine,
    /// Conditions that were entered, in order.
    pub conditions: Vec<InForce>,
    /// What came of each operation under each condition, in order; each pair at most once.
    #[serde(rename = "results")]
    pub measurements: Vec<Measurement>,
    pub ending: Ending,
    /// What the reader should know: warnings of the program, and what was lost on the way.
    pub notes: Notes,
}

/// The machine, as the program found it; `None`: not known.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Machine {
    /// Version of the program that measured.
    pub program_version: String,
    /// The CPU's vendor: `AuthenticAMD`.
    pub vendor: String,
    /// The name that the CPU gives itself.
    pub brand: String,
    /// The CPU's family.
    pub family: Option<u32>,
    /// The CPU's model.
    pub model: Option<u32>,
    /// The CPU's stepping.
    pub stepping: Option<u32>,
    /// The signature of the hypervisor that says it is there: `KVMKVMKVM`.
    pub hypervisor: Option<String>,
    pub tsc: Tsc,
    /// Usable memory.
    pub memory_bytes: Option<u64>,
    pub cpus: Option<u32>,
    /// Whether there is a local APIC.
    pub apic: Option<bool>,
    /// What ends an operation that hangs.
    pub watchdog: Option<String>,
    /// `multiboot` or `pvh`.
    pub loader: Option<String>,
    /// `bios`, `uefi` or `unknown`.
    pub firmware: Option<String>,
    pub plan: String,
    pub command_line: Option<String>,
    /// How many operations the plan has, each counted once per condition.
    pub planned: Option<u32>,
}

/// The time stamp counter.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Tsc {
    /// Ticks in a second; more than 0.
    #[serde(default, deserialize_with = "positive")]
    pub hz: Option<f64>,
    /// Whether it ticks alike in every state of the CPU.
    pub invariant: Option<bool>,
    /// What it was compared with.
    pub calibrated_by: Option<String>,
    /// How far the comparisons differ.
    pub spread_ppm: Option<u64>,
    /// How much it had drifted against that at the end.
    pub drift_ppm: Option<i64>,
    /// How often it went backwards.
    pub backward_jumps: Option<u64>,
}

/// A condition, as it was read back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InForce {
    pub condition: Condition,
    /// Whether it is in force.
    pub effective: bool,
    pub reason: Option<String>,
    pub cr0: Option<u64>,
    pub cr4: Option<u64>,
    /// Ticks of one step of a pointer chase: tells whether caches work.
    pub chase_ticks: Option<f64>,
    /// Ticks of a shot of nothing, which were taken off.
    pub empty_ticks: Option<f64>,
}

/// What came of one operation under one condition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(into = "Record", try_from = "Record")]
pub struct Measurement {
    pub operation: String,
    pub condition: Condition,
    pub outcome: Outcome,
}

/// What can come of an operation.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    Measured(Figures),
    Fault {
        vector: u8,
        /// As `#UD`.
        name: String,
    },
    /// The machine has no such thing.
    Missing {
        reason: String,
    },
    /// The program's watchdog ended it.
    Timeout {
        after_ms: Option<u64>,
    },
    /// The machine did not come back from it.
    Hung {
        /// What was seen of that.
        reason: String,
    },
    /// It was done, and its line did not arrive.
    Lost,
}

/// Ticks of one operation.
#[derive(Debug, Clone, PartialEq)]
pub struct Figures {
    /// Single shots.
    pub single: Option<Spread>,
    pub batch: Option<Batch>,
    /// Bytes that it moves, or works on; 0: no such thing.
    pub bytes: u64,
    /// How often it was done for these figures; `None`: not said.
    pub done: Option<u64>,
    /// The program trusts the figure; see [`Figures::is_reliable`].
    pub reliable: bool,
    /// Why the condition it was measured under is not in force.
    pub ineffective: Option<String>,
}

/// The distribution of single shots.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    pub min: f64,
    pub median: f64,
    pub p99: f64,
    pub max: f64,
    pub n: u64,
}

/// (T(2N) - T(N)) / N.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Batch {
    /// N.
    pub of: u64,
    /// With T the minimum of all repetitions.
    pub min: f64,
    /// With T their median.
    pub median: f64,
}

/// Two figures for one thing agree if they differ by no more than this part of the lower (docs/measuring.md).
const TOLERANCE: f64 = 0.1;
/// And by so many ticks, which single shots can't tell.
const SHOT_TICKS: f64 = 100.0;
/// Fewer can't be judged.
const MIN_SHOTS: u64 = 3;

fn is_dearer(one: f64, other: f64, slack: f64) -> bool {
    other * (1.0 + TOLERANCE) + slack < one
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Option<String>", from = "Option<String>")]
pub enum Ending {
    /// Everything in the plan was tried.
    Complete,
    /// The program said another word for its end.
    Said(String),
    /// The end is missing.
    Cut,
}

impl Results {
    /// What came of an operation under a condition.
    #[must_use]
    pub fn outcome(&self, operation: &str, condition: Condition) -> Option<&Outcome> {
        let is_it = |m: &&Measurement| m.operation == operation && m.condition == condition;
        self.measurements.iter().find(is_it).map(|m| &m.outcome)
    }

    /// How many have each status, by its name.
    #[must_use]
    pub fn count(&self) -> BTreeMap<&'static str, usize> {
        let mut counts = BTreeMap::new();
        for measurement in &self.measurements {
            *counts.entry(measurement.outcome.status()).or_default() += 1;
        }
        counts
    }
}

impl Machine {
    /// Whether the CPU of the other machine says the same of itself.
    pub(crate) fn has_cpu_of(&self, other: &Self) -> bool {
        self.vendor == other.vendor
            && self.brand == other.brand
            && self.family == other.family
            && self.model == other.model
            && self.stepping == other.stepping
            && self.hypervisor == other.hypervisor
    }
}

impl Outcome {
    /// As in result files: `ok`, `fault`, `missing`, `timeout`, `hung`, `lost`.
    #[must_use]
    pub fn status(&self) -> &'static str {
        match self {
            Self::Measured(_) => "ok",
            Self::Fault { .. } => "fault",
            Self::Missing { .. } => "missing",
            Self::Timeout { .. } => "timeout",
            Self::Hung { .. } => "hung",
            Self::Lost => "lost",
        }
    }

    /// Why there is no figure: `fault #UD`; empty when there is one.
    #[must_use]
    pub fn why(&self) -> String {
        match self {
            Self::Measured(_) => String::new(),
            Self::Fault { vector, name } if name.is_empty() => format!("fault, vector {vector}"),
            Self::Fault { name, .. } => format!("fault {name}"),
            Self::Missing { reason } => format!("missing: {reason}"),
            Self::Timeout { after_ms: Some(ms) } => format!("timeout after {ms} ms"),
            Self::Timeout { after_ms: None } => "timeout".to_owned(),
            Self::Hung { reason } => format!("hung: {reason}"),
            Self::Lost => "lost on the way".to_owned(),
        }
    }

    /// Whether a later outcome of the same operation takes the place of this one. An operation that hung is left out
    /// the next time.
    pub(crate) fn gives_way_to(&self, later: &Self) -> bool {
        match (self, later) {
            (_, Self::Measured(_)) => true,
            (Self::Measured(_), _) => false,
            (Self::Hung { .. }, Self::Missing { .. }) => false,
            _ => true,
        }
    }
}

impl Figures {
    /// The figure for the operation's cost: of batches with minima, which other work on the machine disturbs least;
    /// where it is not timed in batches, or they can't be true, the median of single shots.
    #[must_use]
    pub fn ticks(&self) -> Option<f64> {
        let batch = self.good_batch().map(|batch| batch.min);
        batch.or(self.single.map(|single| single.median))
    }

    /// Whether the figure can be trusted: the program had takes of it that agree, and what it reports does not
    /// contradict itself.
    #[must_use]
    pub fn is_reliable(&self) -> bool {
        self.reliable && self.batch == self.good_batch()
    }

    /// Batches, unless they make the operation dearer than good single shots say that it is: work of others took part
    /// of their time. (That single shots are dearer is usual: nothing overlaps.) Older images report such ones.
    fn good_batch(&self) -> Option<Batch> {
        let is_good = |single: &Spread| {
            MIN_SHOTS <= single.n && !is_dearer(single.median, single.min, SHOT_TICKS)
        };
        let single = self.single.filter(is_good);
        self.batch.filter(|batch| {
            single.is_none_or(|single| !is_dearer(batch.min, single.median, SHOT_TICKS))
        })
    }

    /// Between what the cost lies: from the fastest to as far above the median as that is above the fastest.
    #[must_use]
    pub fn range(&self) -> Option<(f64, f64)> {
        let batch = self.good_batch().map(|batch| (batch.min, batch.median));
        let (a, b) = batch.or(self.single.map(|single| (single.min, single.median)))?;
        let (low, middle) = (a.min(b), a.max(b));
        Some((low, middle + (middle - low)))
    }
}

impl From<Ending> for Option<String> {
    fn from(ending: Ending) -> Self {
        match ending {
            Ending::Complete => Some("complete".to_owned()),
            Ending::Said(word) => Some(word),
            Ending::Cut => None,
        }
    }
}

impl From<Option<String>> for Ending {
    fn from(word: Option<String>) -> Self {
        match word.as_deref() {
            Some("complete") => Self::Complete,
            _ => word.map_or(Self::Cut, Self::Said),
        }
    }
}

/// A measurement in a result file: every field is there, whatever the status.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    operation: String,
    condition: Condition,
    status: String,
    reason: Option<String>,
    vector: Option<u8>,
    after_ms: Option<u64>,
    single: Option<Spread>,
    batch: Option<Batch>,
    #[serde(default)]
    bytes: u64,
    done: Option<u64>,
    reliable: Option<bool>,
    ineffective: Option<String>,
}

impl From<Measurement> for Record {
    fn from(Measurement { operation, condition, outcome }: Measurement) -> Self {
        let mut record = Self {
            operation,
            condition,
            status: outcome.status().to_owned(),
            reason: None,
            vector: None,
            after_ms: None,
            single: None,
            batch: None,
            bytes: 0,
            done: None,
            reliable: None,
            ineffective: None,
        };
        match outcome {
            Outcome::Measured(figures) => {
                let reliable = Some(figures.is_reliable());
                let Figures { single, batch, bytes, done, ineffective, .. } = figures;
                record = Self { single, batch, bytes, done, reliable, ineffective, ..record };
            }
            Outcome::Fault { vector, name } => {
                record = Self { vector: Some(vector), reason: Some(name), ..record };
            }
            Outcome::Missing { reason } | Outcome::Hung { reason } => record.reason = Some(reason),
            Outcome::Timeout { after_ms } => record.after_ms = after_ms,
            Outcome::Lost => {}
        }
        record
    }
}

impl TryFrom<Record> for Measurement {
    type Error = String;

    fn try_from(record: Record) -> Result<Self, String> {
        let Record { operation, condition, single, batch, bytes, done, ineffective, .. } = record;
        let reason = record.reason.unwrap_or_default();
        let outcome = match record.status.as_str() {
            "ok" => {
                let reliable = record.reliable.unwrap_or(false);
                let figures = Figures { single, batch, bytes, done, reliable, ineffective };
                let is_negative = |(low, _): (f64, f64)| low < 0.0;
                if figures.range().is_none_or(is_negative) {
                    return Err(format!("{operation}: no figures"));
                }
                Outcome::Measured(figures)
            }
            "fault" => {
                let vector = record.vector.ok_or_else(|| format!("{operation}: no vector"))?;
                Outcome::Fault { vector, name: reason }
            }
            "missing" => Outcome::Missing { reason },
            "timeout" => Outcome::Timeout { after_ms: record.after_ms },
            "hung" => Outcome::Hung { reason },
            "lost" => Outcome::Lost,
            other => return Err(format!("{operation}: unknown status {other:?}")),
        };
        Ok(Self { operation, condition, outcome })
    }
}

/// A rate that is not above 0 is none.
fn positive<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    let number: Option<f64> = Option::deserialize(from)?;
    Ok(number.filter(|number| 0.0 < *number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(shots: [f64; 4], n: u64, batch: Option<[f64; 2]>) -> Figures {
        let [min, median, p99, max] = shots;
        Figures {
            single: Some(Spread { min, median, p99, max, n }),
            batch: batch.map(|[min, median]| Batch { of: 16, min, median }),
            bytes: 0,
            done: None,
            reliable: true,
            ineffective: None,
        }
    }

    /// Found on a busy machine: a batch of CPUID that can't be true, and good single shots.
    #[test]
    fn a_batch_dearer_than_good_single_shots_is_not_the_figure() {
        let check = |figures: Figures, ticks: f64, is_reliable: bool| {
            assert_eq!((figures.ticks(), figures.is_reliable()), (Some(ticks), is_reliable));
            assert!(figures.range().unwrap().0 <= ticks);
        };
        let shots = [96_412.0, 99_632.0, 412_000.0, 969_021.0];
        check(figures(shots, 50, Some([969_021.0, 970_118.0])), 99_632.0, false);
        check(figures(shots, 50, Some([98_114.0, 98_900.0])), 98_114.0, true);
        check(figures(shots, 50, None), 99_632.0, true);
        // Two shots, or such as don't agree, say nothing against it.
        check(figures(shots, 2, Some([969_021.0, 970_118.0])), 969_021.0, true);
        let scattered = [9_000.0, 99_632.0, 412_000.0, 969_021.0];
        check(figures(scattered, 50, Some([969_021.0, 970_118.0])), 969_021.0, true);
        // A few ticks are within what single shots can tell; and they may well be dearer.
        check(figures([0.0, 1.0, 2.0, 512.0], 50, Some([0.8, 0.8])), 0.8, true);
        check(figures([21.0, 22.0, 40.0, 512.0], 50, Some([0.8, 0.8])), 0.8, true);
    }
}
