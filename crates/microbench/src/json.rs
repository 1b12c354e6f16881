//! The documented JSON (docs/bench.md): result files, comparisons, lists.
//!
//! Within a version fields are only added. Costs are in ticks of the machine's own TSC unless named otherwise.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::catalogue::Operation;
use crate::compare::{Against, Cell, Comparison, Cost, Row, Unit};
use crate::results::{Machine, Results};
use crate::tables::{self, Table};
use crate::verdict::Verdict;

/// Version of these formats.
pub const VERSION: u32 = 1;
/// How a result file names its format.
const FORMAT: &str = "vmscope-bench";

/// Why bytes are not a result file.
#[derive(Debug, thiserror::Error)]
pub enum NotAResult {
    #[error("it is damaged or not a result of `vmscope bench` ({0})")]
    NoJson(serde_json::Error),
    /// JSON of another kind.
    #[error("it is not a result of `vmscope bench`: make one with `vmscope bench run` or `read`")]
    OtherFormat,
    /// A version that is not read here.
    #[error(
        "its version is {}, this vmscope reads {VERSION}: read the log again with this one",
        .0.map_or_else(|| "unknown".to_owned(), |version| version.to_string())
    )]
    OtherVersion(Option<u64>),
    /// Fields are missing or wrong.
    #[error("it is damaged ({0})")]
    Damaged(serde_json::Error),
}

/// A result file. `source` says where the results were measured or read: `tcg`, `kvm`, `testbed-kvm`, `serial`, `qr`.
///
/// # Errors
/// None that this type can have: its keys are strings.
pub fn result_file(results: &Results, source: &str) -> serde_json::Result<String> {
    #[derive(Serialize)]
    struct File<'r> {
        format: &'static str,
        version: u32,
        source: &'r str,
        #[serde(flatten)]
        results: &'r Results,
    }
    let file = File { format: FORMAT, version: VERSION, source, results };
    Ok(serde_json::to_string_pretty(&file)? + "\n")
}

/// Whether this is, or was meant to be, a result file.
#[must_use]
pub fn is_result_file(bytes: &[u8]) -> bool {
    const BEGINNING: &[u8] = b"{\"format\":";
    let begins = bytes.iter().filter(|byte| !byte.is_ascii_whitespace()).take(BEGINNING.len());
    begins.eq(BEGINNING) || serde_json::from_slice(bytes).is_ok_and(|head: Head<'_>| head.is_ours())
}

/// What a file says it is. Nothing else of it is kept: as values it would take many times its size.
#[derive(Deserialize)]
struct Head<'f> {
    #[serde(borrow)]
    format: Option<&'f RawValue>,
    #[serde(borrow)]
    version: Option<&'f RawValue>,
}

impl Head<'_> {
    fn is_ours(&self) -> bool {
        let name = self.format.map(|format| format.get().trim_matches('"'));
        name == Some(FORMAT)
    }
}

/// The results in a result file.
///
/// # Errors
/// It is not one, or is damaged.
pub fn parse_result_file(bytes: &[u8]) -> Result<Results, NotAResult> {
    let head: Head<'_> = serde_json::from_slice(bytes).map_err(NotAResult::NoJson)?;
    if !head.is_ours() {
        return Err(NotAResult::OtherFormat);
    }
    match head.version.and_then(|version| version.get().parse().ok()) {
        Some(version) if version == u64::from(VERSION) => {}
        other => return Err(NotAResult::OtherVersion(other)),
    }
    serde_json::from_slice(bytes).map_err(NotAResult::Damaged)
}

/// A comparison, its tables in `unit`.
///
/// # Errors
/// None that this type can have: its keys are strings.
pub fn comparison(comparison: &Comparison<'_>, unit: Unit) -> serde_json::Result<String> {
    #[derive(Serialize)]
    struct File<'c> {
        version: u32,
        machines: Vec<Compared<'c>>,
        tables: Vec<Table>,
        operations: &'c [Row],
        notes: Vec<String>,
    }
    #[derive(Serialize)]
    struct Compared<'c> {
        label: &'c str,
        machine: &'c Machine,
        general_ratio: Option<f64>,
    }
    let machines = comparison.machines.iter().zip(&comparison.general);
    let machines = machines.map(|(machine, general)| Compared {
        label: &machine.label,
        machine: &machine.results.machine,
        general_ratio: *general,
    });
    let file = File {
        version: VERSION,
        machines: machines.collect(),
        tables: tables::all(comparison, unit),
        operations: &comparison.rows,
        notes: comparison.notes.all(),
    };
    Ok(serde_json::to_string_pretty(&file)? + "\n")
}

/// What an image knows: operations, conditions' ids, plans.
#[derive(Debug, Serialize)]
pub struct List<'n> {
    /// [`VERSION`].
    pub version: u32,
    /// In the image's order.
    pub operations: Vec<Operation<'n>>,
    /// Their ids.
    pub conditions: Vec<String>,
    pub plans: Vec<String>,
}

/// A cell of a comparison: every field is there, whatever came of it.
#[derive(Debug, Serialize)]
pub(crate) struct CellRecord {
    status: Option<&'static str>,
    reason: Option<String>,
    cost: Option<Cost>,
    ratio: Option<Against>,
    verdict: Option<&'static str>,
    why: Option<String>,
    exit_ticks: Option<f64>,
    exit_ns: Option<f64>,
}

impl From<Cell> for CellRecord {
    fn from(Cell { outcome, cost, against, verdict }: Cell) -> Self {
        let (exit_ticks, exit_ns) = match verdict {
            Some(Verdict::Exits { ticks, ns }) => (Some(ticks), Some(ns)),
            _ => (None, None),
        };
        let why = match &verdict {
            Some(Verdict::CantSay(why)) => Some(why.to_string()),
            _ => None,
        };
        Self {
            status: outcome.as_ref().map(|outcome| outcome.status()),
            reason: outcome.map(|outcome| outcome.why()).filter(|why| !why.is_empty()),
            cost,
            ratio: against,
            verdict: verdict.as_ref().map(Verdict::name),
            why,
            exit_ticks,
            exit_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = include_str!("../../../tests/golden/bench/real.log");

    #[test]
    fn results_come_back_as_written() {
        let results = crate::lines::parse(LOG.as_bytes()).unwrap();
        let text = result_file(&results, "serial").unwrap();
        assert_eq!(parse_result_file(text.as_bytes()).unwrap(), results);
    }

    #[test]
    fn result_files_are_known_by_their_format() {
        let check =
            |text: &str, expected| assert_eq!(is_result_file(text.as_bytes()), expected, "{text}");
        check("{\n  \"format\": \"vmscope-bench\", \"versi", true);
        check("{\"version\":1,\"format\":\"vmscope-bench\"}", true);
        check(LOG, false);
        check("{\"vmscope_boot\":1}", false);
        check("", false);
    }

    #[test]
    fn what_is_no_result_is_refused_with_its_reason() {
        let check = |text: &str, expected: &str| {
            let error = parse_result_file(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        };
        check("", "damaged or not a result");
        check("{\"format\":\"vmscope-bench\",\"versi", "damaged or not a result");
        check("{}", "it is not a result of `vmscope bench`");
        check(
            "{\"format\":\"vmscope-bench\",\"version\":2}",
            "its version is 2, this vmscope reads 1",
        );
        check("{\"format\":\"vmscope-bench\",\"version\":1}", "it is damaged (missing field");
    }

    #[test]
    fn results_that_contradict_themselves_are_refused() {
        let whole = result_file(&crate::lines::parse(LOG.as_bytes()).unwrap(), "serial").unwrap();
        let check = |from: &str, to: &str, expected: &str| {
            assert!(whole.contains(from), "{from}");
            let text = whole.replacen(from, to, 1);
            let error = parse_result_file(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check("\"status\": \"ok\"", "\"status\": \"fine\"", "unknown status \"fine\"");
        check("\"status\": \"ok\"", "\"status\": \"fault\"", "no vector");
        check("\"condition\": \"flat.cpl0\"", "\"condition\": \"flat\"", "is not a condition");
    }
}
