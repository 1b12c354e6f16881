//! Result files: results as JSON and back.

use std::path::Path;

use anyhow::{Context, anyhow, bail};
use microbench::{
    Batch, Cpu, Ending, Figures, InForce, Machine, Measurement, Outcome, Results, Spread, Tsc,
};
use serde_json::Value;

use super::super::Usage;
use super::super::output::write_file;

/// No result file is larger.
const MOST_BYTES: u64 = 64 << 20;

/// Writes a result file.
pub(super) fn write(path: &Path, results: &Results, source: &str) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(&to_json(results, source))? + "\n";
    write_file(path, |out| out.write_all(text.as_bytes()))
        .with_context(|| format!("failed to write {}", path.display()))
}

/// Reads a result file.
pub(super) fn read(path: &Path) -> anyhow::Result<Results> {
    let shown = path.display().to_string();
    parse(&read_bytes(path)?).with_context(|| format!("{shown} can't be compared"))
}

/// A file's bytes, if it has no more than any file of ours.
pub(super) fn read_bytes(path: &Path) -> anyhow::Result<Vec<u8>> {
    let failed = || format!("failed to read {}", path.display());
    let size = std::fs::metadata(path).with_context(failed)?.len();
    if MOST_BYTES < size {
        bail!("{} has {} MiB: no log and no result is so large", path.display(), size >> 20);
    }
    std::fs::read(path).with_context(failed)
}

/// Whether this is, or was meant to be, a result file.
pub(super) fn is_result(bytes: &[u8]) -> bool {
    const BEGINNING: &[u8] = b"{\"format\":";
    let begins = bytes.iter().filter(|byte| !byte.is_ascii_whitespace()).take(BEGINNING.len());
    let is_ours = |value: Value| value["format"] == api::bench::FORMAT;
    begins.eq(BEGINNING) || serde_json::from_slice(bytes).is_ok_and(is_ours)
}

/// What is in a result file.
pub(super) fn parse(bytes: &[u8]) -> anyhow::Result<Results> {
    let value: Value = serde_json::from_slice(bytes)
        .map_err(|error| anyhow!("it is damaged or no result of `vmscope bench` ({error})"))?;
    if value["format"] != api::bench::FORMAT {
        bail!("it is no result of `vmscope bench`: make one with `vmscope bench run` or `read`");
    }
    match value["version"].as_u64() {
        Some(version) if version == u64::from(api::bench::VERSION) => {}
        version => {
            let version =
                version.map_or_else(|| "unknown".to_owned(), |version| version.to_string());
            let ours = api::bench::VERSION;
            bail!(
                "its version is {version}, this vmscope reads {ours}: read the log again with this one"
            );
        }
    }
    let file: api::bench::Results =
        serde_json::from_value(value).map_err(|error| anyhow!("it is damaged ({error})"))?;
    from_json(file).map_err(|problem| anyhow!("it is damaged ({problem})"))
}

fn to_json(results: &Results, source: &str) -> api::bench::Results {
    api::bench::Results {
        format: api::bench::FORMAT.to_owned(),
        version: api::bench::VERSION,
        source: source.to_owned(),
        machine: machine_to_json(&results.machine),
        conditions: results.conditions.iter().map(in_force_to_json).collect(),
        results: results.measurements.iter().map(outcome_to_json).collect(),
        ending: match &results.ending {
            Ending::Complete => Some("complete".to_owned()),
            Ending::Said(word) => Some(word.clone()),
            Ending::Cut => None,
        },
        notes: results.notes.all(),
    }
}

pub(super) fn machine_to_json(machine: &Machine) -> api::bench::Machine {
    let machine = machine.clone();
    let (cpu, tsc) = (machine.cpu, machine.tsc);
    api::bench::Machine {
        program_version: machine.program_version,
        vendor: cpu.vendor,
        brand: cpu.brand,
        family: cpu.family,
        model: cpu.model,
        stepping: cpu.stepping,
        hypervisor: cpu.hypervisor,
        tsc: api::bench::Tsc {
            hz: tsc.hz,
            invariant: tsc.invariant,
            calibrated_by: tsc.calibrated_by,
            spread_ppm: tsc.spread_ppm,
            drift_ppm: tsc.drift_ppm,
            backward_jumps: tsc.backward_jumps,
        },
        memory_bytes: machine.memory_bytes,
        cpus: machine.cpus,
        apic: machine.apic,
        watchdog: machine.watchdog,
        loader: machine.loader,
        firmware: machine.firmware,
        plan: machine.plan,
        command_line: machine.command_line,
        planned: machine.planned,
    }
}

fn in_force_to_json(found: &InForce) -> api::bench::InForce {
    api::bench::InForce {
        condition: found.condition.to_string(),
        effective: found.effective,
        reason: found.reason.clone(),
        cr0: found.cr0,
        cr4: found.cr4,
        chase_ticks: found.chase_ticks,
        empty_ticks: found.empty_ticks,
    }
}

fn outcome_to_json(measurement: &Measurement) -> api::bench::Outcome {
    let outcome = &measurement.outcome;
    let mut json = api::bench::Outcome {
        operation: measurement.operation.clone(),
        condition: measurement.condition.to_string(),
        status: outcome.status().to_owned(),
        reason: None,
        vector: None,
        after_ms: None,
        single: None,
        batch: None,
        bytes: 0,
        done: None,
        reliable: None,
        ineffective: None,
    };
    match outcome {
        Outcome::Measured(figures) => {
            let spread = |s: Spread| api::bench::Spread {
                min: s.min,
                median: s.median,
                p99: s.p99,
                max: s.max,
                n: s.n,
            };
            let batch = |b: Batch| api::bench::Batch { of: b.of, min: b.min, median: b.median };
            json.single = figures.single.map(spread);
            json.batch = figures.batch.map(batch);
            json.bytes = figures.bytes;
            json.done = figures.done;
            json.reliable = Some(figures.reliable);
            json.ineffective = figures.ineffective.clone();
        }
        Outcome::Fault { vector, name } => {
            json.vector = Some(*vector);
            json.reason = Some(name.clone());
        }
        Outcome::Missing { reason } | Outcome::Hung { reason } => {
            json.reason = Some(reason.clone())
        }
        Outcome::Timeout { after_ms } => json.after_ms = *after_ms,
        Outcome::Lost => {}
    }
    json
}

fn from_json(file: api::bench::Results) -> Result<Results, String> {
    let machine = file.machine;
    let conditions = file.conditions.into_iter().map(in_force_from_json);
    Ok(Results {
        machine: Machine {
            program_version: machine.program_version,
            cpu: Cpu {
                vendor: machine.vendor,
                brand: machine.brand,
                family: machine.family,
                model: machine.model,
                stepping: machine.stepping,
                hypervisor: machine.hypervisor,
            },
            tsc: Tsc {
                hz: machine.tsc.hz.filter(|hz| 0.0 < *hz),
                invariant: machine.tsc.invariant,
                calibrated_by: machine.tsc.calibrated_by,
                spread_ppm: machine.tsc.spread_ppm,
                drift_ppm: machine.tsc.drift_ppm,
                backward_jumps: machine.tsc.backward_jumps,
            },
            memory_bytes: machine.memory_bytes,
            cpus: machine.cpus,
            apic: machine.apic,
            watchdog: machine.watchdog,
            loader: machine.loader,
            firmware: machine.firmware,
            plan: machine.plan,
            command_line: machine.command_line,
            planned: machine.planned,
        },
        conditions: conditions.collect::<Result<_, _>>()?,
        measurements: file.results.into_iter().map(measurement).collect::<Result<_, _>>()?,
        ending: match file.ending.as_deref() {
            Some("complete") => Ending::Complete,
            Some(word) => Ending::Said(word.to_owned()),
            None => Ending::Cut,
        },
        notes: file.notes.iter().collect(),
    })
}

fn in_force_from_json(found: api::bench::InForce) -> Result<InForce, String> {
    Ok(InForce {
        condition: found.condition.parse()?,
        effective: found.effective,
        reason: found.reason,
        cr0: found.cr0,
        cr4: found.cr4,
        chase_ticks: found.chase_ticks,
        empty_ticks: found.empty_ticks,
    })
}

fn measurement(json: api::bench::Outcome) -> Result<Measurement, String> {
    let condition = json.condition.parse()?;
    let reason = json.reason.clone().unwrap_or_default();
    let outcome = match json.status.as_str() {
        "ok" => Outcome::Measured(figures(&json)?),
        "fault" => Outcome::Fault {
            vector: json.vector.ok_or_else(|| format!("{}: no vector", json.operation))?,
            name: reason,
        },
        "missing" => Outcome::Missing { reason },
        "timeout" => Outcome::Timeout { after_ms: json.after_ms },
        "hung" => Outcome::Hung { reason },
        "lost" => Outcome::Lost,
        other => return Err(format!("{}: unknown status {other:?}", json.operation)),
    };
    Ok(Measurement { operation: json.operation, condition, outcome })
}

fn figures(json: &api::bench::Outcome) -> Result<Figures, String> {
    let spread = |s: api::bench::Spread| Spread {
        min: s.min,
        median: s.median,
        p99: s.p99,
        max: s.max,
        n: s.n,
    };
    let batch = |b: api::bench::Batch| Batch { of: b.of, min: b.min, median: b.median };
    let figures = Figures {
        single: json.single.map(spread),
        batch: json.batch.map(batch),
        bytes: json.bytes,
        done: json.done,
        reliable: json.reliable.unwrap_or(false),
        ineffective: json.ineffective.clone(),
    };
    match figures.range() {
        Some((low, _)) if 0.0 <= low => Ok(figures),
        _ => Err(format!("{}: no figures", json.operation)),
    }
}

/// A results' name in tables: the file's, without its ending.
pub(super) fn label(path: &Path) -> Result<String, Usage> {
    let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    stem.ok_or_else(|| Usage(format!("{} is no file", path.display())))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const LOG: &str = include_str!("../../../../../tests/golden/bench/real.log");

    #[test]
    fn results_come_back_as_written() {
        let results = microbench::lines::parse(LOG.as_bytes()).unwrap();
        let text = serde_json::to_string(&to_json(&results, "serial")).unwrap();
        assert_eq!(parse(text.as_bytes()).unwrap(), results);
    }

    #[test]
    fn result_files_are_known_by_their_format() {
        let check =
            |text: &str, expected| assert_eq!(is_result(text.as_bytes()), expected, "{text}");
        check("{\n  \"format\": \"vmscope-bench\", \"versi", true);
        check("{\"version\":1,\"format\":\"vmscope-bench\"}", true);
        check(LOG, false);
        check("{\"vmscope_boot\":1}", false);
        check("", false);
    }

    #[test]
    fn what_is_no_result_is_refused_with_its_reason() {
        let check = |text: &str, expected: &str| {
            let error = parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        };
        check("", "damaged or no result");
        check("{\"format\":\"vmscope-bench\",\"versi", "damaged or no result");
        check("{}", "it is no result of `vmscope bench`");
        check(
            "{\"format\":\"vmscope-bench\",\"version\":2}",
            "its version is 2, this vmscope reads 1",
        );
        check("{\"format\":\"vmscope-bench\",\"version\":1}", "it is damaged (missing field");
    }
}
