//! S0.1, S0.3, S0.9: profiles of guests, and what they cost on disk.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, bail};
use serde_json::Value;

use super::Outcome;
use acceptance::{Report, in_testbed, report, text};

/// Records `seconds` of a scenario and reports it.
fn record(
    scenario: &str,
    files: &Path,
    seconds: u32,
    arguments: &[&str],
) -> anyhow::Result<Report> {
    let ran =
        in_testbed(scenario, files, &format!("vmscope record -o {scenario} --duration {seconds}"))?;
    if ran.code != 0 {
        bail!("scenario {scenario} ended with exit code {}", ran.code);
    }
    report(&files.join(scenario), &[&["--limit", "1000000"], arguments].concat())
}

/// S0.1: every function's share of its program is the same natively and in a guest.
pub(super) fn guest_as_native(files: &Path) -> anyhow::Result<Vec<Outcome>> {
    const LIMIT: f64 = 2.0;
    let native = record("native", files, 40, &[])?;
    let guests = record("native-in-guests", files, 40, &[])?;
    let mut worst = (0.0, String::new());
    let mut compared = 0;
    for process in ["shor", "compute"] {
        let (on_host, in_guest) =
            (function_shares(&native, "host", process), function_shares(&guests, "guest", process));
        let functions: BTreeSet<&String> = on_host.keys().chain(in_guest.keys()).collect();
        for function in functions {
            let share = |of: &BTreeMap<String, f64>| of.get(function).copied().unwrap_or(0.0);
            let (a, b) = (share(&on_host), share(&in_guest));
            if a.max(b) < 2.0 {
                continue;
            }
            compared += 1;
            eprintln!("{process:8} {function:40} native {a:6.2} %  guest {b:6.2} %");
            if worst.0 <= (a - b).abs() {
                worst = ((a - b).abs(), function.clone());
            }
        }
    }
    Ok(vec![Outcome {
        mark: "S0.1",
        what: "function shares, guest against native".to_owned(),
        original: "3-5 % difference in samples",
        ours: format!("at most {:.2} points ({})", worst.0, worst.1),
        limit: "2 points",
        pass: 2 <= compared && worst.0 <= LIMIT,
    }])
}

/// Per cent of the user samples of `process` that each of its functions has.
fn function_shares(report: &Report, side: &str, process: &str) -> BTreeMap<String, f64> {
    let user = |row: &&Value| {
        text(row, "side") == side
            && text(row, "process") == process
            && !text(row, "module").starts_with('[')
    };
    let mut shares = BTreeMap::new();
    let rows = || report.rows().iter().filter(user);
    let all: u64 = rows().filter_map(|row| row["samples"].as_u64()).sum();
    for row in rows() {
        let name = match text(row, "function") {
            "(stripped)" => format!("(stripped) of {}", text(row, "module")),
            name => name.to_owned(),
        };
        *shares.entry(name).or_insert(0.0) +=
            100.0 * row["samples"].as_u64().unwrap_or(0) as f64 / all as f64;
    }
    shares
}

/// S0.3: two processes of one program with equal shares.
pub(super) fn two_processes(files: &Path) -> anyhow::Result<Vec<Outcome>> {
    let guest = record("equal-processes", files, 40, &["--by", "process", "--view", "guest"])?;
    let shares: Vec<f64> = guest
        .rows()
        .iter()
        .filter(|row| text(row, "process") == "compute")
        .filter_map(|row| Some(100.0 * row["share"].as_f64()?))
        .collect();
    let [a, b] = shares[..] else { bail!("{} processes, expected two", shares.len()) };
    Ok(vec![Outcome {
        mark: "S0.3",
        what: "two processes of one program distinguished".to_owned(),
        original: "27.01 % and 26.98 %",
        ours: format!("{a:.2} % and {b:.2} %"),
        limit: "2 points apart",
        pass: (a - b).abs() <= 2.0,
    }])
}

/// S0.9: what a sample costs on disk, and that none is lost in a minute.
pub(super) fn bytes_per_sample(files: &Path) -> anyhow::Result<Vec<Outcome>> {
    let unified = record("demo", files, 60, &[])?;
    let size = std::fs::metadata(files.join("demo/samples.parquet")).context("no samples")?.len();
    let bytes = size as f64 / unified.samples() as f64;
    let dropped = unified.counter("samples_dropped");
    Ok(vec![Outcome {
        mark: "S0.9",
        what: "bytes per sample on disk; 60 s at 1 ms".to_owned(),
        original: "96",
        ours: format!("{bytes:.2}; {dropped} of {} samples lost", unified.samples()),
        limit: "5; none lost",
        pass: bytes <= 5.0 && dropped == 0,
    }])
}
