//! The self-booting benchmark as users run it: `vmscope bench`, its result files and comparisons.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::Value;

use crate::{run, text};

/// A result file.
#[derive(Debug)]
pub struct Results {
    pub json: Value,
    pub file: PathBuf,
    /// How long the run took, boots of hosts and all.
    pub took: Duration,
}

/// `vmscope bench run ARGUMENTS -o FILE`.
///
/// # Errors
/// If it fails.
pub fn measured(file: &Path, arguments: &[&str]) -> anyhow::Result<Results> {
    eprintln!("bench run {}", arguments.join(" "));
    let path = file.to_str().context("the path is not UTF-8")?;
    let start = Instant::now();
    let output = run(&[&["bench", "run", "-o", path], arguments].concat())?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    eprint!("{stderr}");
    if !output.status.success() {
        bail!("vmscope bench run failed: {stderr}");
    }
    results(file, start.elapsed())
}

/// Reads a result file.
///
/// # Errors
/// If it can't be read.
pub fn results(file: &Path, took: Duration) -> anyhow::Result<Results> {
    let bytes =
        std::fs::read(file).with_context(|| format!("failed to read {}", file.display()))?;
    let json = serde_json::from_slice(&bytes).context("the result file is not JSON")?;
    Ok(Results { json, file: file.to_owned(), took })
}

/// `vmscope bench compare BASELINE OTHER --format json`.
///
/// # Errors
/// If it fails.
pub fn compared(baseline: &Results, other: &Results) -> anyhow::Result<Value> {
    let path = |results: &Results| results.file.display().to_string();
    let output = run(&["bench", "compare", &path(baseline), &path(other), "--format", "json"])?;
    if !output.status.success() {
        bail!("vmscope bench compare failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    serde_json::from_slice(&output.stdout).context("the comparison is not JSON")
}

impl Results {
    /// The measured outcomes.
    #[must_use]
    pub fn rows(&self) -> &[Value] {
        self.json["results"].as_array().map_or(&[], Vec::as_slice)
    }

    /// The outcome of an operation under a condition.
    ///
    /// # Errors
    /// If it was not tried.
    pub fn of(&self, operation: &str, condition: &str) -> anyhow::Result<&Value> {
        let is_it = |row: &&Value| {
            text(row, "operation") == operation && text(row, "condition") == condition
        };
        let row = self.rows().iter().find(is_it);
        row.with_context(|| format!("no result of {operation} at {condition}"))
    }

    /// What an operation costs, in ticks.
    ///
    /// # Errors
    /// If it has no figure.
    pub fn ticks(&self, operation: &str, condition: &str) -> anyhow::Result<f64> {
        let row = self.of(operation, condition)?;
        cost(row).with_context(|| format!("no figure: {row}"))
    }
}

/// The figure of an outcome, as `vmscope bench compare` takes it: of batches, or the median of single shots.
#[must_use]
pub fn cost(row: &Value) -> Option<f64> {
    row["batch"]["min"].as_f64().or_else(|| row["single"]["median"].as_f64())
}

/// Why an outcome is neither a figure nor a reason that has a name; `None`: it is one of them.
#[must_use]
pub fn unexplained(row: &Value) -> Option<String> {
    let is_explained = match text(row, "status") {
        "ok" => cost(row).is_some_and(|ticks| 0.0 <= ticks),
        "fault" => text(row, "reason").starts_with('#'),
        "missing" => !text(row, "reason").is_empty(),
        "timeout" => row["after_ms"].is_u64(),
        _ => false,
    };
    (!is_explained).then(|| row.to_string())
}
