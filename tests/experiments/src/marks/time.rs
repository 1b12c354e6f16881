//! S0.2, S0.4, S0.5, S0.6 and quotas: where a vCPU's time went.

use std::path::Path;

use anyhow::Context;
use serde_json::Value;

use super::{
    Outcome, Time, agreement, agreement_of_gaps, in_scenario, record_switches, requested, time_of,
};
use acceptance::{Report, report, text};

/// The VM's pCPU has other work now and then. No interrupt is missed here: what either way says can be compared closely.
const BESIDE_HOST_WORK: &str = "
    (while :; do sleep 0.02; n=0; while [ $n -lt 10000 ]; do n=$((n + 1)); done; done) &
    vmscope record -o rec --offcpu-source switches --duration 5
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
            let arguments =
                ["--view", "guest", "--vm", "a", "--vcpu", vcpu, "--offcpu-source", edges];
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

/// Records, and reads before and after what the kernel has counted for each thread.
fn record_and_count(scenario: &str, files: &Path, seconds: u32) -> anyhow::Result<()> {
    let script = format!(
        "vmscope record -o rec --offcpu-source switches -- sh -c '
            read_all() {{ cat /proc/uptime; grep -s . /proc/[0-9]*/task/[0-9]*/schedstat; }}
            read_all >before
            sleep {seconds}
            read_all >after
            true'"
    );
    in_scenario(scenario, files, &script)
}

/// S0.5: three busy VMs on one pCPU. Shares are what the kernel counted: where interrupts are missed, shares of samples
/// are none of time.
pub(super) fn three_vms_one_cpu(files: &Path) -> anyhow::Result<Vec<Outcome>> {
    record_and_count("three-vms-one-pcpu", files, 30)?;
    let recording = files.join("rec");
    let steal = requested("steal", &recording, &[])?;
    let share = |vm: &str| anyhow::Ok(Counted::of(files, &steal, vm)?.ran);
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

/// What the kernel counted for a VM's only vCPU between the two readings, in per cent of the time between.
struct Counted {
    ran: f64,
    /// Could run, and was on no CPU.
    waited: f64,
}

impl Counted {
    fn of(files: &Path, steal: &Value, vm: &str) -> anyhow::Result<Self> {
        let vms = steal["vms"].as_array().context("no VMs")?;
        let row = vms.iter().find(|row| text(row, "name") == vm);
        let row = row.context("the VM was not recorded")?;
        let tid = row["vcpus"][0]["tid"].as_u64().context("the VM has no vCPU")?;
        let [from, ran_before, waited_before] = counters(&files.join("before"), tid)?;
        let [to, ran, waited] = counters(&files.join("after"), tid)?;
        let share = |from_s: f64, to_s: f64| 100.0 * (to_s - from_s) / (to - from);
        Ok(Self { ran: share(ran_before, ran), waited: share(waited_before, waited) })
    }

    /// Neither ran nor could.
    fn slept(&self) -> f64 {
        100.0 - self.ran - self.waited
    }
}

/// When a reading was made, and how long a thread had run and waited for a CPU by then, in seconds.
fn counters(reading: &Path, tid: u64) -> anyhow::Result<[f64; 3]> {
    let reading = std::fs::read_to_string(reading).context("failed to read the CPU times")?;
    let number = |word: Option<&str>| word?.parse::<f64>().ok();
    let time = reading.lines().next().and_then(|line| number(line.split_whitespace().next()));
    let file = format!("/task/{tid}/schedstat:");
    let mut of_thread = reading.lines().filter_map(|line| Some(line.split_once(&file)?.1));
    let mut words = of_thread.next().context("the thread was not there")?.split_whitespace();
    let mut seconds = || anyhow::Ok(number(words.next()).context("no time")? / 1e9);
    Ok([time.context("no time")?, seconds()?, seconds()?])
}

/// S0.6: busy for 10 s of every 30. What else its guest does when it is idle depends on the virtual host's speed: what
/// the kernel counted for its vCPU says how long it really slept.
pub(super) fn ten_of_thirty(files: &Path) -> anyhow::Result<Vec<Outcome>> {
    record_and_count("thirty-ten", files, 60)?;
    let recording = files.join("rec");
    let slept = Counted::of(files, &requested("steal", &recording, &[])?, "a")?.slept();
    let host = report(&recording, &["--view", "host", "--by", "vm", "--limit", "0"])?;
    let idle_in_host =
        100.0 * host.sum(|row| text(row, "side") == "idle") as f64 / host.samples() as f64;
    let mut pass = (idle_in_host - slept).abs() <= 1.5;
    let mut seen = Vec::new();
    for edges in ["samples", "switches"] {
        let arguments = ["--view", "guest", "--vm", "a", "--offcpu-source", edges, "--limit", "0"];
        let guest = report(&recording, &arguments)?;
        let (halt, polling) =
            (part(&guest, "[ idle ] (halt exit)"), part(&guest, "[ idle ] (halt polling)"));
        let stolen =
            time_of(&recording, "a", edges)?.percent(&["steal_outside_ns", "steal_vmm_ns"]);
        pass &= (halt - slept).abs() <= 1.5 && stolen <= 5.0;
        seen.push(format!("{halt:.2} % (polling {polling:.2}; steal {stolen:.2})"));
    }
    let outcome = Outcome {
        mark: "S0.6",
        what: "20 s idle of 30: halt in guest, idle in host".to_owned(),
        original: "67.40 % guest, 66.73 % host, steal 1.64 %",
        ours: format!("{}; host {idle_in_host:.2} %; counted {slept:.2} %", seen.join(", ")),
        limit: "counted ± 1.5 points",
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
        pass &= (held - 50.0).abs() <= 5.0 && stolen <= 10.0;
        seen.push(format!("{held:.2} % (steal {stolen:.2} %)"));
    }
    let guest = requested("report", &recording, &["--view", "guest", "--vm", "a"])?;
    let rows = guest["rows"].as_array().context("no rows")?;
    let has_line = |row: &Value| text(row, "function").starts_with("[ throttled ]");
    let outcome = Outcome {
        mark: "quota",
        what: "a VM with half a CPU as its quota: throttled".to_owned(),
        original: "-",
        ours: seen.join(", by switches "),
        limit: "50 ± 5; steal 10",
        pass: pass && rows.iter().any(has_line),
    };
    Ok(vec![outcome, agreement(&recording, "quota")?])
}
