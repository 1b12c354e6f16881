//! The marks: each runs scenario files and is compared with the original's published figure. The tests ask the quick
//! ones whether they pass; `make experiments` prints all of them side by side.

mod agent;
mod correction;
mod cost;
mod detection;
mod exits;
mod fleet;
mod lab;
mod make;
mod migrate;
mod pairs;
mod profiles;
mod split;
mod time;
mod trace;

use std::path::Path;

use anyhow::{Context, bail};
use serde_json::Value;

use acceptance::{Ran, in_testbed, in_testbed_within, run};

/// What came of one mark.
#[derive(Debug)]
pub struct Outcome {
    /// `S0.4`.
    pub mark: &'static str,
    pub what: String,
    /// The original's figure.
    pub original: &'static str,
    pub ours: String,
    /// What it is held to.
    pub limit: &'static str,
    /// Whether it is within the limit.
    pub pass: bool,
}

/// One experiment, with the mark it is for.
#[derive(Debug)]
pub struct Mark {
    /// As on the command line of `make experiments ONLY=`.
    pub name: &'static str,
    /// Runs it; recordings and output land in the folder given.
    pub experiment: fn(&Path) -> anyhow::Result<Vec<Outcome>>,
}

/// All of them.
pub const MARKS: &[Mark] = &[
    Mark { name: "S0.1", experiment: profiles::guest_as_native },
    Mark { name: "S0.2", experiment: time::outside_the_guest },
    Mark { name: "S0.3", experiment: profiles::two_processes },
    Mark { name: "S0.4", experiment: time::two_vcpus_one_cpu },
    Mark { name: "S0.5", experiment: time::three_vms_one_cpu },
    Mark { name: "S0.6", experiment: time::ten_of_thirty },
    Mark { name: "S0.7", experiment: correction::beside_processes },
    Mark { name: "S0.7-vms", experiment: correction::beside_vms },
    Mark { name: "S0.7-postgres", experiment: correction::postgres },
    Mark { name: "S0.8", experiment: cost::per_sample },
    Mark { name: "S0.9", experiment: profiles::bytes_per_sample },
    Mark { name: "S0.10", experiment: agent::uncovered },
    Mark { name: "S0.11", experiment: cost::stored_and_sent },
    Mark { name: "S0.12", experiment: fleet::analysis },
    Mark { name: "S0.13", experiment: fleet::capacity },
    Mark { name: "S1-idle", experiment: lab::idle_vms },
    Mark { name: "S1-timer", experiment: lab::timers },
    Mark { name: "S1-ladder", experiment: lab::ladder },
    Mark { name: "S1-load", experiment: lab::generator },
    Mark { name: "S1-parts", experiment: lab::parts },
    Mark { name: "S1-web", experiment: lab::web },
    Mark { name: "S1-split", experiment: split::by_packets },
    Mark { name: "S1-twice", experiment: lab::twice },
    Mark { name: "S2.1", experiment: trace::make_and_make_j2 },
    Mark { name: "S2.2", experiment: trace::make_in_a_guest },
    Mark { name: "S2-pairs", experiment: pairs::parts_left_out },
    Mark { name: "S3.1", experiment: migrate::policies },
    Mark { name: "S3.2", experiment: migrate::twenty },
    Mark { name: "S3.3", experiment: migrate::faults },
    Mark { name: "faults", experiment: detection::faults },
    Mark { name: "exits", experiment: exits::own_exits },
    Mark { name: "quota", experiment: time::throttled },
    Mark { name: "agent-day", experiment: agent::day },
    Mark { name: "storm", experiment: fleet::kills },
    Mark { name: "storm-s3", experiment: fleet::kills_over_service },
];

/// The mark of this name.
///
/// # Errors
/// When there is none.
pub fn mark(name: &str) -> anyhow::Result<&'static Mark> {
    MARKS.iter().find(|mark| mark.name == name).with_context(|| format!("no mark {name}"))
}

/// Records a scenario with the exact edges too, for `seconds`.
fn record_switches(scenario: &str, files: &Path, seconds: u32) -> anyhow::Result<()> {
    let script = format!("vmscope record -o rec --offcpu-source switches --duration {seconds}");
    in_scenario(scenario, files, &script)
}

/// Runs a script on a scenario's host; it must succeed.
fn in_scenario(scenario: &str, files: &Path, script: &str) -> anyhow::Result<()> {
    succeeded(scenario, &in_testbed(scenario, files, script)?)
}

/// The same for what takes long even where nothing else runs.
fn in_slow_scenario(scenario: &str, files: &Path, script: &str) -> anyhow::Result<()> {
    succeeded(scenario, &in_testbed_within(900, scenario, files, script)?)
}

fn succeeded(scenario: &str, ran: &Ran) -> anyhow::Result<()> {
    if ran.code != 0 {
        bail!("scenario {scenario} ended with exit code {}", ran.code);
    }
    Ok(())
}

/// `vmscope COMMAND RECORDING --format json ARGUMENTS`.
fn requested(command: &str, recording: &Path, arguments: &[&str]) -> anyhow::Result<Value> {
    let path = recording.to_str().context("the path is not UTF-8")?;
    let output = run(&[&[command, path, "--format", "json"], arguments].concat())?;
    if !output.status.success() {
        bail!("vmscope {command} failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    serde_json::from_slice(&output.stdout).with_context(|| format!("vmscope {command}: no JSON"))
}

/// The time of a VM (`vmscope steal`) by either way to find edges.
fn time_of(recording: &Path, vm: &str, edges: &str) -> anyhow::Result<Time> {
    let steal = requested("steal", recording, &["--vm", vm, "--offcpu-source", edges])?;
    Ok(Time(steal["vms"][0]["time"].clone()))
}

/// What a VM's or a vCPU's time went to.
struct Time(Value);

impl Time {
    fn ns(&self, field: &str) -> f64 {
        self.0[field].as_f64().unwrap_or(f64::NAN)
    }

    /// Fields' part of all its time, in per cent.
    fn percent(&self, fields: &[&str]) -> f64 {
        100.0 * fields.iter().map(|field| self.ns(field)).sum::<f64>() / self.ns("wall_ns")
    }

    /// The part of a list's (`thieves`, `reasons`) entries that `matches` says yes to, in per cent of all its time.
    fn percent_of(&self, list: &str, matches: impl Fn(&Value) -> bool) -> f64 {
        let entries = self.0[list].as_array().map_or(&[][..], Vec::as_slice);
        let matching = entries.iter().filter(|entry| matches(entry));
        100.0 * matching.filter_map(|entry| entry["ns"].as_f64()).sum::<f64>() / self.ns("wall_ns")
    }
}

/// How well the two ways to find edges agree, for the vCPU of which each says the worst.
struct Agreement {
    points: f64,
    mean_periods: f64,
    largest_periods: f64,
    gaps: f64,
    within_period: f64,
}

impl Agreement {
    fn of(recording: &Path) -> anyhow::Result<Self> {
        let both = requested("report", recording, &["--offcpu-source", "both"])?;
        let vcpus = both["vcpus"].as_array().filter(|vcpus| !vcpus.is_empty());
        let vcpus = vcpus.context("no vCPU to compare")?;
        let all = |field: &str| {
            let all: Option<Vec<f64>> = vcpus.iter().map(|vcpu| vcpu[field].as_f64()).collect();
            all.with_context(|| format!("no {field}"))
        };
        let most = |field: &str| all(field).map(|all| all.into_iter().fold(0.0, f64::max));
        let sum = |field: &str| all(field).map(|all| all.into_iter().sum());
        Ok(Self {
            points: most("largest_points")?,
            mean_periods: most("mean_gap_periods")?,
            largest_periods: most("largest_gap_periods")?,
            gaps: sum("gaps")?,
            within_period: sum("gaps_within_period")?,
        })
    }

    fn outcome(&self, mark: &'static str, limit: &'static str, pass: bool) -> Outcome {
        Outcome {
            mark,
            what: "edges by samples against switches".to_owned(),
            original: "-",
            ours: format!(
                "{:.2} points; {} of {} gaps within a period ({:.2} on average, {:.2} at most)",
                self.points, self.within_period, self.gaps, self.mean_periods, self.largest_periods
            ),
            limit,
            pass,
        }
    }
}

/// How well the two ways to find edges agree on a recording that has switches. Where interrupts are missed, and the
/// kernel's clock stands still with them, the edges of single gaps are not known to a period: they are only shown.
fn agreement(recording: &Path, mark: &'static str) -> anyhow::Result<Outcome> {
    let agreement = Agreement::of(recording)?;
    Ok(agreement.outcome(mark, "1 point", agreement.points <= 1.0))
}

/// The same where no interrupt is missed: each gap is as long either way, to a period.
fn agreement_of_gaps(recording: &Path, mark: &'static str) -> anyhow::Result<Outcome> {
    let agreement = Agreement::of(recording)?;
    let pass = agreement.points <= 1.0 && 0.0 < agreement.gaps && agreement.largest_periods <= 1.0;
    Ok(agreement.outcome(mark, "1 point; each gap 1 period", pass))
}
