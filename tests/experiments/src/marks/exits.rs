//! Steal of type 2: a VM alone on its pCPU that leaves its guest all the time.

use std::path::Path;

use anyhow::{Context, bail};
use serde_json::Value;

use super::{Outcome, in_scenario, requested, time_of};
use acceptance::text;

/// Port I/O, CPUID and MSR writes are steal of type 2 by these reasons, and the guest itself sees no steal.
pub(super) fn own_exits(files: &Path) -> anyhow::Result<Vec<Outcome>> {
    let script = "vmscope record -o rec --offcpu-source switches --exits -- \
                  vmscope testbed exec a -- sh -c 'grep cpu0 /proc/stat; sleep 20; grep cpu0 /proc/stat' >stat.txt";
    in_scenario("exits", files, script)?;
    let recording = files.join("rec");
    let time = time_of(&recording, "a", "switches")?;
    let by = |reason: &str| time.percent_of("reasons", |row| text(row, "name").starts_with(reason));
    let (io, cpuid, msr) = (by("io"), by("cpuid"), by("msr"));
    let in_guest = steal_in_guest(&std::fs::read_to_string(files.join("stat.txt"))?)?;
    let exits = requested("exits", &recording, &["--vm", "a"])?;
    let causes = ["io", "cpuid", "msr"].map(|reason| caused_by(&exits, reason));
    let outside = time.percent(&["steal_outside_ns"]);
    let all = time.percent(&["steal_vmm_ns"]);
    Ok(vec![Outcome {
        mark: "exits",
        what: "steal 2 of a VM alone, by its own exits".to_owned(),
        original: "7.90 %; mpstat 0.00 %",
        ours: format!(
            "{all:.2} % (io {io:.2}, cpuid {cpuid:.2}, msr {msr:.2}; steal 1 {outside:.2}); in the guest {in_guest:.2} %"
        ),
        limit: "most by these",
        pass: 5.0 <= all
            && all <= 1.25 * (io + cpuid + msr)
            && [io, cpuid, msr].iter().all(|part| 0.5 <= *part)
            && in_guest < 1.0
            && causes.iter().all(|counted| *counted),
    }])
}

/// What `mpstat` in the guest would print as `%steal`: that part of the ticks between two readings of a CPU's line of
/// /proc/stat. After its name come user, nice, system, idle, iowait, irq, softirq, steal.
fn steal_in_guest(readings: &str) -> anyhow::Result<f64> {
    let ticks = |line: &str| -> Vec<f64> {
        line.split_whitespace().skip(1).take(8).filter_map(|word| word.parse().ok()).collect()
    };
    let lines: Vec<Vec<f64>> = readings.lines().map(ticks).collect();
    let [before, after] = &lines[..] else { bail!("not two readings: {readings:?}") };
    let passed: Vec<f64> = after.iter().zip(before).map(|(after, before)| after - before).collect();
    let steal = passed.get(7).context("no ticks of steal")?;
    Ok(100.0 * steal / passed.iter().sum::<f64>())
}

/// Whether exits of this reason were counted, and the workload's function or the guest's kernel caused them.
fn caused_by(exits: &Value, reason: &str) -> bool {
    let rows = exits["vms"][0]["exits"].as_array().map_or(&[][..], Vec::as_slice);
    let of_reason = |row: &&Value| text(row, "name").starts_with(reason);
    rows.iter().filter(of_reason).any(|row| {
        let causes = row["causes"].as_array().map_or(&[][..], Vec::as_slice);
        1000 < row["count"].as_u64().unwrap_or(0)
            && causes.first().is_some_and(|cause| text(cause, "process") == "exits")
    })
}
