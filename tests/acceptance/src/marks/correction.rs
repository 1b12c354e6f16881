//! S0.7: run times without what was stolen.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use serde_json::Value;

use super::{Outcome, asked, in_scenario};

/// Stops the disturbing VMs and lets them go in turn, and has the work done each time. Begun inside the recording:
/// a stopped guest would not answer its beginning.
const CONTENTION: &str = r#"vmscope record -o rec --edges switches -- sh -c '
    b=$(pgrep -f -- "[-]name b,") c=$(pgrep -f -- "[-]name c,")
    work() { vmscope testbed exec a -- sh -c "echo \$\$; exec fixed 16 4"; }
    for turn in 1 2 3 4 5 6 7 8 9 10; do
        kill -STOP $b $c; echo 0 $(work)
        kill -CONT $b; echo 1 $(work)
        kill -CONT $c; echo 2 $(work)
    done' >times.txt"#;

/// One run of the fixed work.
struct Run {
    disturbers: usize,
    pid: String,
    /// Seconds by the guest's own clock.
    apparent: BTreeMap<String, f64>,
}

/// Fixed work alone, and against one and two disturbing VMs on its pCPU. Speeds of the virtual host change from minute
/// to minute: each turn has all three, and sums of all turns are compared.
pub(super) fn fixed_work(files: &Path) -> anyhow::Result<Vec<Outcome>> {
    in_scenario("contention", files, CONTENTION)?;
    let printed = std::fs::read_to_string(files.join("times.txt"))?;
    let runs: Option<Vec<Run>> = printed.lines().map(run).collect();
    let runs = runs.with_context(|| format!("no times: {printed:?}"))?;
    let recording = files.join("rec");
    let mut outcomes = Vec::new();
    for function in ["compute_a", "compute_b"] {
        let alone = Sums::of(&recording, &runs, 0, function)?;
        for disturbers in [1, 2] {
            let sums = Sums::of(&recording, &runs, disturbers, function)?;
            outcomes.push(corrected(function, disturbers, &alone, &sums));
        }
    }
    Ok(outcomes)
}

/// `1 123 compute_a 5.123 compute_b 1.234`: disturbing VMs, process id, times.
fn run(line: &str) -> Option<Run> {
    let mut words = line.split_whitespace();
    let disturbers = words.next()?.parse().ok()?;
    let pid = words.next()?.to_owned();
    let mut apparent = BTreeMap::new();
    while let Some(function) = words.next() {
        apparent.insert(function.to_owned(), words.next()?.parse().ok()?);
    }
    (apparent.len() == 2).then_some(Run { disturbers, pid, apparent })
}

/// Seconds of one function, summed over the runs with as many disturbing VMs.
#[derive(Debug, Default)]
struct Sums {
    apparent: f64,
    by_samples: f64,
    by_switches: f64,
}

impl Sums {
    fn of(
        recording: &Path,
        runs: &[Run],
        disturbers: usize,
        function: &str,
    ) -> anyhow::Result<Self> {
        let mut sums = Self::default();
        for run in runs.iter().filter(|run| run.disturbers == disturbers) {
            let apparent = *run.apparent.get(function).context("a function was not timed")?;
            let corrected = |edges: &str| {
                let seconds = apparent.to_string();
                let target = ["--vm", "a", "--process", &run.pid, "--function", function];
                let time = ["--apparent", &seconds, "--edges", edges];
                let answer = asked("correct", recording, &[&target[..], &time].concat())?;
                anyhow::Ok(seconds_of(&answer["correction"]))
            };
            sums.apparent += apparent;
            sums.by_samples += corrected("samples")?;
            sums.by_switches += corrected("switches")?;
        }
        Ok(sums)
    }
}

/// What is undisturbed is corrected alike: a VM alone has exits of its own.
fn corrected(function: &str, disturbers: usize, alone: &Sums, sums: &Sums) -> Outcome {
    let by_samples = 100.0 * sums.by_samples / alone.by_samples;
    let by_switches = 100.0 * sums.by_switches / alone.by_switches;
    let within = |percent: f64| (percent - 100.0).abs() <= 2.0;
    Outcome {
        mark: "S0.7",
        what: match (function, disturbers) {
            ("compute_a", 1) => "corrected compute_a, 1 disturbing VM",
            ("compute_a", _) => "corrected compute_a, 2 disturbing VMs",
            (_, 1) => "corrected compute_b, 1 disturbing VM",
            _ => "corrected compute_b, 2 disturbing VMs",
        },
        original: "~100 % of base",
        ours: format!(
            "apparent {:.1} %; corrected {by_samples:.2} %, by switches {by_switches:.2} %",
            100.0 * sums.apparent / alone.apparent,
        ),
        limit: "100 ± 2 %",
        pass: within(by_samples) && within(by_switches),
    }
}

fn seconds_of(correction: &Value) -> f64 {
    correction["corrected_ns"].as_f64().unwrap_or(f64::NAN) / 1e9
}

/// As `CONTENTION`, with when each run began and ended by the host's clock: a database is many processes, and its VM
/// as a whole is corrected.
const TRANSACTIONS: &str = r#"vmscope testbed exec a -- transactions 1 >first.txt &&
vmscope record -o rec --edges switches -- sh -c '
    b=$(pgrep -f -- "[-]name b,")
    work() {
        read -r from rest </proc/uptime
        seconds=$(vmscope testbed exec a -- transactions 120)
        read -r to rest </proc/uptime
        echo $from $to $seconds
    }
    for turn in 1 2 3 4 5; do
        kill -STOP $b; echo 0 $(work)
        kill -CONT $b; echo 1 $(work)
    done' >times.txt"#;

/// PostgreSQL's transactions, alone and against a disturbing VM.
pub(super) fn postgres(files: &Path) -> anyhow::Result<Vec<Outcome>> {
    in_scenario("postgres", files, TRANSACTIONS)?;
    let recording = files.join("rec");
    let header: Value =
        serde_json::from_str(&std::fs::read_to_string(recording.join("recording.json"))?)?;
    let start = header["start_ns"].as_f64().context("no start")? / 1e9;
    let (mut alone, mut contended) = (Sums::default(), Sums::default());
    for line in std::fs::read_to_string(files.join("times.txt"))?.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let &[disturbers, from, to, "transactions", seconds] = &words[..] else {
            anyhow::bail!("no time: {line:?}")
        };
        let since_start = |uptime: &str| anyhow::Ok((uptime.parse::<f64>()? - start).to_string());
        let (from, to) = (since_start(from)?, since_start(to)?);
        let window = ["--vm", "a", "--from", &from, "--to", &to, "--apparent", seconds];
        let corrected = |edges: &str| {
            let answer =
                asked("correct", &recording, &[&window[..], &["--edges", edges]].concat())?;
            anyhow::Ok(seconds_of(&answer["correction"]))
        };
        let sums = if disturbers == "0" { &mut alone } else { &mut contended };
        sums.apparent += seconds.parse::<f64>()?;
        sums.by_samples += corrected("samples")?;
        sums.by_switches += corrected("switches")?;
    }
    let percent = |of: fn(&Sums) -> f64| 100.0 * of(&contended) / of(&alone);
    let (by_samples, by_switches) = (percent(|sums| sums.by_samples), percent(|s| s.by_switches));
    Ok(vec![Outcome {
        mark: "S0.7",
        what: "PostgreSQL's transactions, 1 disturbing VM",
        original: "86.09 s against 89.51 s (96.2 %)",
        ours: format!(
            "{:.2} s and {:.2} s; corrected {by_samples:.2} %, by switches {by_switches:.2} %",
            alone.apparent, contended.apparent
        ),
        limit: "100 ± 4 %",
        pass: (by_samples - 100.0).abs() <= 4.0 && (by_switches - 100.0).abs() <= 4.0,
    }])
}
