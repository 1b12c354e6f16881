//! S0.7: run times without what was stolen.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use serde_json::Value;

use super::{Outcome, in_scenario, in_slow_scenario, requested};

/// Has the work done beside none, one and two processes of the host that want the VM's CPU. Where time is counted in
/// instructions all of it is exact, but no second VM comes up there.
const BESIDE_PROCESSES: &str = r#"vmscope record -o rec --offcpu-source switches -- sh -c '
    work() { vmscope testbed exec a -- sh -c "echo \$\$; exec fixed 24 12"; }
    disturb() { sh -c "while :; do :; done" & }
    for turn in 1 2; do
        echo 0 $(work)
        disturb; first=$!; echo 1 $(work)
        disturb; echo 2 $(work)
        kill $first $!
    done' >times.txt"#;

/// Stops the disturbing VMs and lets them go in turn, and has the work done each time. Begun inside the recording:
/// a stopped guest would not answer its beginning.
const BESIDE_VMS: &str = r#"vmscope record -o rec --offcpu-source switches -- sh -c '
    b=$(pgrep -f -- "[-]name b,") c=$(pgrep -f -- "[-]name c,")
    work() { vmscope testbed exec a -- sh -c "echo \$\$; exec fixed 30 15"; }
    for turn in 1 2 3 4 5 6; do
        kill -STOP $b $c; echo 0 $(work)
        kill -CONT $b; echo 1 $(work)
        kill -CONT $c; echo 2 $(work)
    done' >times.txt"#;

/// Gives the virtual host long time slices: under emulation a VM that comes back runs for half a millisecond as on a
/// CPU with empty caches. That is its own time, no steal, and with slices of 3 ms a large part of it.
const LONG_SLICES: &str = "
    cd /sys/kernel/debug/sched
    echo 100000000 >latency_ns
    echo 100000000 >min_granularity_ns
    echo 1000000 >wakeup_granularity_ns
    cd - >/dev/null
";

/// One run of the fixed work.
struct Run {
    disturbers: usize,
    pid: String,
    /// Seconds by the guest's own clock.
    apparent: BTreeMap<String, f64>,
}

/// Fixed work alone, and against one and two processes of the host on its pCPU, counted in instructions.
pub(super) fn beside_processes(files: &Path) -> anyhow::Result<Vec<Outcome>> {
    in_scenario("correction", files, BESIDE_PROCESSES)?;
    corrections(files, "processes")
}

/// Fixed work alone, and against one and two disturbing VMs on its pCPU.
pub(super) fn beside_vms(files: &Path) -> anyhow::Result<Vec<Outcome>> {
    in_scenario("contention", files, &format!("{LONG_SLICES}{BESIDE_VMS}"))?;
    corrections(files, "VMs")
}

/// The speed of a virtual host that counts no instructions changes from minute to minute: each turn has all three, and
/// sums of all turns are compared.
fn corrections(files: &Path, disturbing: &str) -> anyhow::Result<Vec<Outcome>> {
    let printed = std::fs::read_to_string(files.join("times.txt"))?;
    let runs: Option<Vec<Run>> = printed.lines().map(run).collect();
    let runs = runs.with_context(|| format!("no times: {printed:?}"))?;
    let recording = files.join("rec");
    let mut outcomes = Vec::new();
    for function in ["compute_a", "compute_b"] {
        let alone = Sums::of(&recording, &runs, 0, function)?;
        for disturbers in [1, 2] {
            let sums = Sums::of(&recording, &runs, disturbers, function)?;
            let what = format!("corrected {function}, {disturbers} disturbing {disturbing}");
            outcomes.push(corrected(what, &alone, &sums));
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
                let time = ["--apparent", &seconds, "--offcpu-source", edges];
                let answer = requested("correct", recording, &[&target[..], &time].concat())?;
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
fn corrected(what: String, alone: &Sums, sums: &Sums) -> Outcome {
    let by_samples = 100.0 * sums.by_samples / alone.by_samples;
    let by_switches = 100.0 * sums.by_switches / alone.by_switches;
    let within = |percent: f64| (percent - 100.0).abs() <= 2.0;
    Outcome {
        mark: "S0.7",
        what,
        original: "~100 % of base",
        ours: format!(
            "apparent {:.1} %; corrected by switches {by_switches:.2} %, by samples {by_samples:.2} %",
            100.0 * sums.apparent / alone.apparent,
        ),
        limit: "switches 100 ± 2 %",
        pass: within(by_switches),
    }
}

fn seconds_of(correction: &Value) -> f64 {
    correction["corrected_ns"].as_f64().unwrap_or(f64::NAN) / 1e9
}

/// PostgreSQL's transactions with a disturber that is let go and stopped, each run with when it began and ended by the
/// host's clock: a database is many processes, and its VM as a whole is corrected. The VM sleeps on either side, so that
/// nothing is stolen from it there which would be taken for the run's.
fn transactions(count: u32, alone: &str, disturbed: &str) -> String {
    format!(
        r#"vmscope testbed exec a -- transactions 1 >first.txt &&
        vmscope record -o rec --offcpu-source switches -- sh -c '
            alone() {{ {alone}; }}
            disturbed() {{ {disturbed}; }}
            work() {{
                read -r from rest </proc/uptime
                seconds=$(vmscope testbed exec a -- sh -c "sleep 1; transactions {count}; sleep 1")
                read -r to rest </proc/uptime
                echo $from $to $seconds
            }}
            for turn in 1 2 3 4; do
                alone; echo 0 $(work)
                disturbed; echo 1 $(work)
            done
            alone' >times.txt"#
    )
}

/// Half as long as the VM sleeps.
const ASLEEP_S: f64 = 0.5;

/// PostgreSQL's transactions alone and against a process of the host, counted in instructions; and against a VM.
pub(super) fn postgres(files: &Path) -> anyhow::Result<Vec<Outcome>> {
    let stop = r#"[ -z "$disturber" ] || kill $disturber"#;
    let start = r#"sh -c "while :; do :; done" & disturber=$!"#;
    let process = files.join("process");
    in_slow_scenario("postgres-deterministic", &process, &transactions(400, stop, start))?;

    let signal = |name: &str| format!(r#"kill -{name} $(pgrep -f -- "[-]name b,")"#);
    let beside_vm = transactions(400, &signal("STOP"), &signal("CONT"));
    let vm = files.join("vm");
    in_slow_scenario("postgres", &vm, &format!("{LONG_SLICES}{beside_vm}"))?;
    Ok(vec![transactions_corrected(&process, "process")?, transactions_corrected(&vm, "VM")?])
}

fn transactions_corrected(files: &Path, disturbing: &str) -> anyhow::Result<Outcome> {
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
        let from = (from.parse::<f64>()? - start + ASLEEP_S).to_string();
        let to = (to.parse::<f64>()? - start - ASLEEP_S).to_string();
        let window = ["--vm", "a", "--from", &from, "--to", &to, "--apparent", seconds];
        let corrected = |edges: &str| {
            let answer = requested(
                "correct",
                &recording,
                &[&window[..], &["--offcpu-source", edges]].concat(),
            )?;
            anyhow::Ok(seconds_of(&answer["correction"]))
        };
        let sums = if disturbers == "0" { &mut alone } else { &mut contended };
        sums.apparent += seconds.parse::<f64>()?;
        sums.by_samples += corrected("samples")?;
        sums.by_switches += corrected("switches")?;
    }
    let percent = |of: fn(&Sums) -> f64| 100.0 * of(&contended) / of(&alone);
    let (by_samples, by_switches) = (percent(|sums| sums.by_samples), percent(|s| s.by_switches));
    Ok(Outcome {
        mark: "S0.7",
        what: format!("PostgreSQL's transactions, 1 disturbing {disturbing}"),
        original: "86.09 s against 89.51 s (96.2 %)",
        ours: format!(
            "{:.2} s and {:.2} s; corrected by switches {by_switches:.2} %, by samples {by_samples:.2} %",
            alone.apparent, contended.apparent
        ),
        limit: "100 ± 4 %",
        pass: (by_samples - 100.0).abs() <= 4.0 && (by_switches - 100.0).abs() <= 4.0,
    })
}
