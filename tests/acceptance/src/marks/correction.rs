//! S0.7: run times without what was stolen.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, bail};
use serde_json::Value;

use super::{Outcome, asked, in_scenario};

/// Fixed work alone, and against one and two disturbing VMs on its pCPU.
pub(super) fn fixed_work(files: &Path) -> anyhow::Result<Vec<Outcome>> {
    let script = "vmscope record -o rec --edges switches -- \
                  vmscope testbed exec a -- fixed 80 20 >times.txt";
    let mut base = BTreeMap::new();
    let mut outcomes = Vec::new();
    for disturbers in 0..=2_usize {
        let run = files.join(disturbers.to_string());
        std::fs::create_dir(&run).context("failed to make a folder")?;
        in_scenario(&format!("contention-{disturbers}"), &run, script)?;
        for (function, apparent) in times(&std::fs::read_to_string(run.join("times.txt"))?)? {
            let Some(alone) = base.get(&function).copied() else {
                base.insert(function, apparent);
                continue;
            };
            outcomes.push(corrected(&run.join("rec"), &function, disturbers, alone, apparent)?);
        }
    }
    if outcomes.len() != 4 {
        bail!("{} functions were timed under contention, expected 2 x 2", outcomes.len());
    }
    Ok(outcomes)
}

/// `compute_a 5.123` a line.
fn times(text: &str) -> anyhow::Result<Vec<(String, f64)>> {
    let line = |line: &str| {
        let (function, seconds) = line.split_once(' ')?;
        Some((function.to_owned(), seconds.parse().ok()?))
    };
    let times: Option<Vec<_>> = text.lines().map(line).collect();
    times.filter(|times| !times.is_empty()).with_context(|| format!("no times: {text:?}"))
}

fn corrected(
    recording: &Path,
    function: &str,
    disturbers: usize,
    alone: f64,
    apparent: f64,
) -> anyhow::Result<Outcome> {
    let seconds = apparent.to_string();
    let question = ["--process", "fixed", "--function", function, "--apparent", &seconds];
    let seen = ["samples", "switches"].map(|edges| {
        let arguments = [&["--vm", "a", "--edges", edges], &question[..]].concat();
        asked("correct", recording, &arguments).map(|answer| seconds_of(&answer["correction"]))
    });
    let [by_samples, by_switches] = seen;
    let (by_samples, by_switches) = (by_samples?, by_switches?);
    let percent = |seconds: f64| 100.0 * seconds / alone;
    let within = |seconds: f64| (percent(seconds) - 100.0).abs() <= 2.0;
    Ok(Outcome {
        mark: "S0.7",
        what: match (function, disturbers) {
            ("compute_a", 1) => "corrected compute_a, 1 disturbing VM",
            ("compute_a", _) => "corrected compute_a, 2 disturbing VMs",
            (_, 1) => "corrected compute_b, 1 disturbing VM",
            _ => "corrected compute_b, 2 disturbing VMs",
        },
        original: "~100 % of base",
        ours: format!(
            "{:.1} % of {alone:.3} s; corrected {:.2} %, by switches {:.2} %",
            percent(apparent),
            percent(by_samples),
            percent(by_switches)
        ),
        limit: "100 ± 2 %",
        pass: within(by_samples) && within(by_switches),
    })
}

fn seconds_of(correction: &Value) -> f64 {
    correction["corrected_ns"].as_f64().unwrap_or(f64::NAN) / 1e9
}

/// PostgreSQL's transactions, alone and against a disturbing VM.
pub(super) fn postgres(files: &Path) -> anyhow::Result<Vec<Outcome>> {
    let script = "vmscope testbed exec a -- transactions 1 >first.txt &&
        vmscope record -o rec --edges switches -- vmscope testbed exec a -- transactions 1000 >times.txt";
    let mut apparent = Vec::new();
    for scenario in ["postgres", "postgres-contended"] {
        let run = files.join(scenario);
        std::fs::create_dir(&run).context("failed to make a folder")?;
        in_scenario(scenario, &run, script)?;
        let printed = std::fs::read_to_string(run.join("times.txt"))?;
        let seconds: Option<f64> =
            printed.split_whitespace().filter_map(|word| word.parse().ok()).next_back();
        apparent.push(seconds.with_context(|| format!("no time: {printed:?}"))?);
    }
    let (alone, contended) = (apparent[0], apparent[1]);
    let seconds = contended.to_string();
    let recording = files.join("postgres-contended/rec");
    let answer = asked("correct", &recording, &["--vm", "a", "--apparent", &seconds])?;
    let percent = 100.0 * seconds_of(&answer["correction"]) / alone;
    Ok(vec![Outcome {
        mark: "S0.7",
        what: "PostgreSQL's transactions, 1 disturbing VM",
        original: "86.09 s against 89.51 s",
        ours: format!("{alone:.2} s; {contended:.2} s, corrected {percent:.2} %"),
        limit: "100 ± 4 %",
        pass: (percent - 100.0).abs() <= 4.0,
    }])
}
