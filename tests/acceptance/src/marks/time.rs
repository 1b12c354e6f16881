//! S0.2, S0.4, S0.5, S0.6 and quotas: where a vCPU's time went.

use std::path::Path;

use anyhow::Context;
use serde_json::Value;

use super::{
    Outcome, Time, agreement, agreement_of_gaps, asked, in_scenario, record_switches, time_of,
};
use crate::{Report, report, text};

/// The VM's pCPU has other work now and then. No interrupt is missed here: what either way says can be compared closely.
const BESIDE_HOST_WORK: &str = "
    (while :; do sleep 0.02; n=0; while [ $n -lt 10000 ]; do n=$((n + 1)); done; done) &
    vmscope record -o rec --edges switches --duration 5
    code=$?
    kill $!
    exit $code";

/// S0.2: what the host's samples say of the time outside the guest, and what the guest's time axis says.
pub(super) fn outside_the_guest(files: &Path) -> anyhow::Result<Vec<Outcome>> {
    in_scenario("edges", files, BESIDE_HOST_WORK)?;
    let recording = files.join("rec");
    let host = 100.0 - share_of_cpu0(&recording, "a")?;
    let mut worst: f64 = 0.0;
    let mut seen = Vec::new();
    for edges in ["samples", "switches"] {
        let time = time_of(&recording, "a", edges)?;
        let outside = 100.0 - time.percent(&["guest_ns", "not_sampled_ns", "unknown_ns"]);
        worst = worst.max((outside - host).abs());
        seen.push(format!("{outside:.2} %"));
    }
    let outcome = Outcome {
        mark: "S0.2",
        what: "outside the guest: host's samples, guest's axis".to_owned(),
        original: "5.05 % and 5.04 %",
        ours: format!("{host:.2} % and {}", seen.join(", ")),
        limit: "0.5 points",
        pass: worst <= 0.5,
    };
    Ok(vec![outcome, agreement_of_gaps(&recording, "S0.2")?])
}

/// Of the samples taken on pCPU 0, those that interrupted this VM's guest, in per cent.
fn share_of_cpu0(recording: &Path, vm: &str) -> anyhow::Result<f64> {
    let cpus = report(recording, &["--view", "host", "--by", "cpu", "--limit", "0"])?;
    let vms = report(recording, &["--view", "host", "--by", "vm", "--limit", "0"])?;
    let on_cpu0 = cpus.sum(|row| row["cpu"].as_u64() == Some(0));
    let guest = vms.sum(|row| text(row, "vm") == vm && text(row, "side") == "guest");
    Ok(100.0 * guest as f64 / on_cpu0 as f64)
}

/// S0.4: two busy vCPUs of one VM on one pCPU.
pub(super) fn two_vcpus_one_cpu(files: &Path) -> anyhow::Result<Vec<Outcome>> {
    record_switches("two-vcpus-one-pcpu", files, 30)?;
    let recording = files.join("rec");
    let mut shares = Vec::new();
    for edges in ["samples", "switches"] {
        for (vcpu, other) in [("0", "1"), ("1", "0")] {
            let arguments = ["--view", "guest", "--vm", "a", "--vcpu", vcpu, "--edges", edges];
            let guest = report(&recording, &[&arguments[..], &["--limit", "0"]].concat())?;
            shares.push(part(&guest, &format!("[ steal ] (on vcpu{other})")));
        }
    }
    let outcome = Outcome {
        mark: "S0.4",
        what: "2 vCPUs on 1 pCPU: steal by the other".to_owned(),
        original: "49.98 % and 50.02 %",
        ours: format!(
            "{:.2} % and {:.2} %; by switches {:.2} % and {:.2} %",
            shares[0], shares[1], shares[2], shares[3]
        ),
        limit: "50 ± 2 points",
        pass: shares.iter().all(|share| (share - 50.0).abs() <= 2.0),
    };
    Ok(vec![outcome, agreement(&recording, "S0.4")?])
}

/// The per cent of a report's samples that the lines of this name have.
fn part(report: &Report, function: &str) -> f64 {
    let samples = report.sum(|row| text(row, "function") == function);
    100.0 * samples as f64 / report.samples() as f64
}

/// Reads the CPU time that the kernel has counted for each thread, and the time.
const WITH_CPU_TIMES: &str = "vmscope record -o rec --edges switches -- sh -c '
    read_all() { cat /proc/uptime; grep -s . /proc/[0-9]*/task/[0-9]*/schedstat; }
    read_all >before
    sleep 30
    read_all >after
    true'";

/// S0.5: three busy VMs on one pCPU. Shares are what the kernel counted: where interrupts are missed, shares of samples
/// are none of time.
pub(super) fn three_vms_one_cpu(files: &Path) -> anyhow::Result<Vec<Outcome>> {
    in_scenario("three-vms-one-pcpu", files, WITH_CPU_TIMES)?;
    let recording = files.join("rec");
    let steal = asked("steal", &recording, &[])?;
    let share = |vm: &str| counted_share(files, &steal, vm);
    let (own, b, c) = (share("a")?, share("b")?, share("c")?);
    let expected = 100.0 * b / (b + c);
    let mut pass = true;
    let mut seen = Vec::new();
    for edges in ["samples", "switches"] {
        let time = time_of(&recording, "a", edges)?;
        let stolen = time.percent(&["steal_outside_ns"]);
        let by = |vm: &str| time.percent_of("thieves", |thief| text(thief, "vm") == vm);
        let (by_b, by_c) = (by("b"), by("c"));
        let part = 100.0 * by_b / (by_b + by_c);
        pass &= (stolen - (100.0 - own)).abs() <= 1.0
            && (part - expected).abs() <= 2.0
            && stolen - (by_b + by_c) <= 5.0;
        seen.push(format!("{stolen:.2} % (b {by_b:.2}, c {by_c:.2})"));
    }
    let sampled = share_of_cpu0(&recording, "a")?;
    let outcome = Outcome {
        mark: "S0.5",
        what: "3 VMs on 1 pCPU: steal of a = 100 - its share".to_owned(),
        original: "69.39 % = 100 - 30.61",
        ours: format!(
            "{}; 100 - {own:.2} (of samples: {sampled:.2}); b:c {b:.2}:{c:.2}",
            seen.join("; ")
        ),
        limit: "1 point; thieves 2",
        pass,
    };
    Ok(vec![outcome, agreement(&recording, "S0.5")?])
}

/// The CPU time of a VM's only vCPU between the two readings, in per cent of the time between.
fn counted_share(files: &Path, steal: &Value, vm: &str) -> anyhow::Result<f64> {
    let vms = steal["vms"].as_array().context("no VMs")?;
    let row = vms.iter().find(|row| text(row, "name") == vm).context("the VM was not recorded")?;
    let tid = row["vcpus"][0]["tid"].as_u64().context("the VM has no vCPU")?;
    let (from, ran_before) = cpu_time(&files.join("before"), tid)?;
    let (to, ran) = cpu_time(&files.join("after"), tid)?;
    Ok(100.0 * (ran - ran_before) / (to - from))
}

/// When a reading was made, and the CPU time of a thread, in seconds.
fn cpu_time(reading: &Path, tid: u64) -> anyhow::Result<(f64, f64)> {
    let reading = std::fs::read_to_string(reading).context("failed to read the CPU times")?;
    let first = |line: &str| line.split_whitespace().next()?.parse::<f64>().ok();
    let time = reading.lines().next().and_then(first).context("no time")?;
    let file = format!("/task/{tid}/schedstat:");
    let mut times = reading.lines().filter_map(|line| first(line.split_once(&file)?.1));
    Ok((time, times.next().context("the thread was not there")? / 1e9))
}

/// S0.6: busy for 10 s of every 30.
pub(super) fn ten_of_thirty(files: &Path) -> anyhow::Result<Vec<Outcome>> {
    let recording = files.join("rec");
    record_switches("thirty-ten", files, 60)?;
    for _ in 1..TRIES {
        if stood_still(&recording)? <= 0.5 {
            break;
        }
        eprintln!("testbed: the virtual host stood still for a while: recording again");
        std::fs::remove_dir_all(files).context("failed to remove the recording")?;
        record_switches("thirty-ten", files, 60)?;
    }
    let host = report(&recording, &["--view", "host", "--by", "vm", "--limit", "0"])?;
    let idle_in_host =
        100.0 * host.sum(|row| text(row, "side") == "idle") as f64 / host.samples() as f64;
    let mut pass = (idle_in_host - 200.0 / 3.0).abs() <= 1.5;
    let mut seen = Vec::new();
    for edges in ["samples", "switches"] {
        let arguments = ["--view", "guest", "--vm", "a", "--edges", edges, "--limit", "0"];
        let guest = report(&recording, &arguments)?;
        let (halt, polling) =
            (part(&guest, "[ idle ] (halt exit)"), part(&guest, "[ idle ] (halt polling)"));
        let stolen =
            time_of(&recording, "a", edges)?.percent(&["steal_outside_ns", "steal_vmm_ns"]);
        pass &= (halt + polling - 200.0 / 3.0).abs() <= 1.5 && stolen <= 3.0;
        seen.push(format!("{:.2} % (polling {polling:.2}; steal {stolen:.2})", halt + polling));
    }
    let outcome = Outcome {
        mark: "S0.6",
        what: "20 s idle of 30: halt in guest, idle in host".to_owned(),
        original: "67.40 % guest, 66.73 % host, steal 1.64 %",
        ours: format!("{}; host {idle_in_host:.2} %", seen.join(", ")),
        limit: "66.7 ± 1.5 points",
        pass,
    };
    Ok(vec![outcome, agreement(&recording, "S0.6")?])
}

const TRIES: u32 = 3;

/// For how long, in per cent of the time, the VM waited for a CPU on which nothing was seen at all: under emulation on a
/// busy machine the host itself then got no CPU.
fn stood_still(recording: &Path) -> anyhow::Result<f64> {
    let time = time_of(recording, "a", "switches")?;
    Ok(time.percent_of("thieves", |thief| text(thief, "kind") == "unknown"))
}

/// A VM with a CPU quota, alone on its pCPU.
pub(super) fn throttled(files: &Path) -> anyhow::Result<Vec<Outcome>> {
    record_switches("throttled", files, 30)?;
    let recording = files.join("rec");
    let mut pass = true;
    let mut seen = Vec::new();
    for edges in ["samples", "switches"] {
        let time: Time = time_of(&recording, "a", edges)?;
        let (held, stolen) =
            (time.percent(&["throttled_ns"]), time.percent(&["steal_outside_ns", "steal_vmm_ns"]));
        pass &= (held - 50.0).abs() <= 5.0 && stolen <= 5.0;
        seen.push(format!("{held:.2} % (steal {stolen:.2} %)"));
    }
    let guest = asked("report", &recording, &["--view", "guest", "--vm", "a"])?;
    let rows = guest["rows"].as_array().context("no rows")?;
    let has_line = |row: &Value| text(row, "function").starts_with("[ throttled ]");
    let outcome = Outcome {
        mark: "quota",
        what: "a VM with half a CPU as its quota: throttled".to_owned(),
        original: "-",
        ours: seen.join(", by switches "),
        limit: "50 ± 5; steal 5",
        pass: pass && rows.iter().any(has_line),
    };
    Ok(vec![outcome, agreement(&recording, "quota")?])
}
