//! S0.2, S0.4, S0.5, S0.6 and quotas: where a vCPU's time went.

use std::path::Path;

use anyhow::Context;
use serde_json::Value;

use super::{Outcome, Time, agreement, asked, record_switches, time_of};
use crate::{Report, report, text};

/// S0.2: what the host's samples say of the time outside the guest, and what the guest's time axis says.
pub(super) fn outside_the_guest(files: &Path) -> anyhow::Result<Vec<Outcome>> {
    record_switches("one-vm", files, 30)?;
    let recording = files.join("rec");
    let host = outside_by_host(&recording, "a")?;
    let mut worst: f64 = 0.0;
    let mut seen = Vec::new();
    for edges in ["samples", "switches"] {
        let time = time_of(&recording, "a", edges)?;
        let ran = time.percent(&["guest_ns"]) / (100.0 - time.percent(&["not_sampled_ns"]));
        let outside = 100.0 - 100.0 * ran;
        worst = worst.max((outside - host).abs());
        seen.push(format!("{outside:.2} %"));
    }
    let outcome = Outcome {
        mark: "S0.2",
        what: "outside the guest: host's samples, guest's axis",
        original: "5.05 % and 5.04 %",
        ours: format!("{host:.2} % and {}", seen.join(", ")),
        limit: "0.5 points",
        pass: worst <= 0.5,
    };
    Ok(vec![outcome, agreement(&recording, "S0.2")?])
}

/// Of the samples taken on pCPU 0, where the VM is alone, those that did not interrupt it, in per cent.
fn outside_by_host(recording: &Path, vm: &str) -> anyhow::Result<f64> {
    Ok(100.0 - share_of_cpu0(recording, vm)?)
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
        what: "2 vCPUs on 1 pCPU: steal by the other",
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

/// S0.5: three busy VMs on one pCPU.
pub(super) fn three_vms_one_cpu(files: &Path) -> anyhow::Result<Vec<Outcome>> {
    record_switches("three-vms-one-pcpu", files, 30)?;
    let recording = files.join("rec");
    let shares = ["a", "b", "c"].map(|vm| share_of_cpu0(&recording, vm));
    let [own, b, c] = shares;
    let (own, b, c) = (own?, b?, c?);
    let expected = 100.0 * b / (b + c);
    let mut pass = true;
    let mut seen = Vec::new();
    for edges in ["samples", "switches"] {
        let time = time_of(&recording, "a", edges)?;
        let stolen = time.percent(&["steal_outside_ns", "steal_vmm_ns"]);
        let by = |vm: &str| time.percent_of("thieves", |thief| text(thief, "vm") == vm);
        let (by_b, by_c) = (by("b"), by("c"));
        let part = 100.0 * by_b / (by_b + by_c);
        let named = by_b + by_c;
        pass &= (stolen - (100.0 - own)).abs() <= 1.0
            && (part - expected).abs() <= 2.0
            && stolen - named <= 5.0;
        seen.push(format!("{stolen:.2} % (b {by_b:.2}, c {by_c:.2})"));
    }
    let outcome = Outcome {
        mark: "S0.5",
        what: "3 VMs on 1 pCPU: steal of a = 100 - its share",
        original: "69.39 % = 100 - 30.61",
        ours: format!("{}; 100 - {own:.2}; b:c {b:.2}:{c:.2}", seen.join("; ")),
        limit: "1 point; thieves 2",
        pass,
    };
    Ok(vec![outcome, agreement(&recording, "S0.5")?])
}

/// S0.6: busy for 10 s of every 30.
pub(super) fn ten_of_thirty(files: &Path) -> anyhow::Result<Vec<Outcome>> {
    record_switches("thirty-ten", files, 60)?;
    let recording = files.join("rec");
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
        what: "20 s idle of 30: halt in guest, idle in host",
        original: "67.40 % guest, 66.73 % host, steal 1.64 %",
        ours: format!("{}; host {idle_in_host:.2} %", seen.join(", ")),
        limit: "66.7 ± 1.5 points",
        pass,
    };
    Ok(vec![outcome, agreement(&recording, "S0.6")?])
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
        what: "a VM with half a CPU as its quota: throttled",
        original: "-",
        ours: seen.join(", by switches "),
        limit: "50 ± 5; steal 5",
        pass: pass && rows.iter().any(has_line),
    };
    Ok(vec![outcome, agreement(&recording, "quota")?])
}
