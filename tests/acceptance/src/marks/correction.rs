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
