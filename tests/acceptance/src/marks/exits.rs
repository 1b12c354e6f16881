//! Steal of type 2: a VM alone on its pCPU that leaves its guest all the time.

use std::path::Path;

use anyhow::{Context, bail};
use serde_json::Value;

use super::{Outcome, asked, in_scenario, time_of};
use crate::text;

/// Port I/O, CPUID and MSR writes are steal of type 2 by these reasons, and the guest itself sees no steal.
pub(super) fn own_exits(files: &Path) -> anyhow::Result<Vec<Outcome>> {
    let script = "vmscope record -o rec --edges switches --exits -- \
                  vmscope testbed exec a -- mpstat 20 1 >mpstat.txt";
    in_scenario("exits", files, script)?;
    let recording = files.join("rec");
    let time = time_of(&recording, "a", "switches")?;
    let by = |reason: &str| time.percent_of("reasons", |row| text(row, "name").starts_with(reason));
    let (io, cpuid, msr) = (by("io"), by("cpuid"), by("msr"));
    let in_guest = steal_in_guest(&std::fs::read_to_string(files.join("mpstat.txt"))?)?;
    let exits = asked("exits", &recording, &["--vm", "a"])?;
    let causes = ["io", "cpuid", "msr"].map(|reason| caused_by(&exits, reason));
    let outside = time.percent(&["steal_outside_ns"]);
    let all = time.percent(&["steal_vmm_ns"]);
    Ok(vec![Outcome {
        mark: "exits",
        what: "steal 2 of a VM alone, by its own exits",
        original: "7.90 %; mpstat 0.00 %",
        ours: format!(
            "{all:.2} % (io {io:.2}, cpuid {cpuid:.2}, msr {msr:.2}; steal 1 {outside:.2}); mpstat {in_guest:.2} %"
        ),
        limit: "most by these",
        pass: 5.0 <= all
            && all <= 1.25 * (io + cpuid + msr)
            && [io, cpuid, msr].iter().all(|part| 0.5 <= *part)
            && in_guest < 1.0
            && causes.iter().all(|counted| *counted),
    }])
}

/// `%steal` of the last line of busybox's mpstat.
fn steal_in_guest(mpstat: &str) -> anyhow::Result<f64> {
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let titles = mpstat.lines().find(|line| line.contains("%steal")).context("no %steal")?;
    let last = mpstat.lines().rfind(|line| line.contains("all")).context("no figures")?;
    // Times at the lines' beginnings may have one word or two.
    let from_end = words(titles).iter().rev().position(|word| word == "%steal");
    let value = words(last).into_iter().rev().nth(from_end.unwrap_or(usize::MAX));
    match value.and_then(|value| value.parse().ok()) {
        Some(value) => Ok(value),
        None => bail!("mpstat printed {last:?}"),
    }
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
