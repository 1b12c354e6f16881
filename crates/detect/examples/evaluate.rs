//! How well a made-up fleet's faults are found: `cargo run --release -p detect --example evaluate -- [SEED [PART]]`.
//!
//! Runs with other seeds see other fleets. The tests have seeds below 10,000, and so has everything that rules were chosen
//! with: what is published comes from seeds that were used for nothing else (`docs/detection.md`).

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss
)]

#[path = "../tests/fleet/mod.rs"]
mod fleet;
#[path = "../tests/trial/mod.rs"]
mod trial;

use detect::Detector;
use fleet::{FAULTS, FaultKind, Fleet};
use trial::{Trial, find, rise_is_found, run_on};

/// Of each fault.
const RUNS: u64 = 100;
/// Quiet ones, each of another fleet.
const DAYS: u64 = 8;
/// Of each rise, after two hours of learning and after a day: levels of the last day count as known.
const RISES: [(u64, u32); 2] = [(20, 120), (10, 1440)];

/// What is measured, by its name; takes a seed.
type Part = (&'static str, fn(u64));

fn main() {
    let seed = std::env::args().nth(1).map_or(10_000, |seed| seed.parse().unwrap());
    let part = std::env::args().nth(2);
    let parts: [Part; 3] = [("faults", faults), ("quiet", quiet_days), ("rises", rises)];
    println!("seed {seed}");
    for (_, run) in
        parts.iter().filter(|(name, _)| part.as_deref().is_none_or(|part| part == *name))
    {
        run(seed);
    }
}

fn faults(seed: u64) {
    println!("\n{RUNS} runs of each fault, at a random place and time:");
    println!(
        "fault         | in 3 windows | recall | right cause | delay: median, most | other findings"
    );
    let mut all = (0, 0);
    for kind in FAULTS {
        let trials: Vec<Trial> = (seed..seed + RUNS).map(|seed| find(kind, seed)).collect();
        let found = row(kind, &trials);
        let others: usize = trials.iter().map(|trial| trial.others).sum();
        all = (all.0 + found, all.1 + others);
    }
    println!("precision: {:.3}", all.0 as f64 / (all.0 + all.1).max(1) as f64);
}

/// Prints a kind's row, and what went wrong; how many were found.
fn row(kind: FaultKind, trials: &[Trial]) -> usize {
    let mut delays: Vec<u32> = trials.iter().filter_map(|trial| trial.delay).collect();
    delays.sort_unstable();
    let in_three = delays.iter().filter(|delay| **delay <= 3).count();
    let right = trials.iter().filter(|trial| trial.right_cause).count();
    let others: usize = trials.iter().map(|trial| trial.others).sum();
    println!(
        "{:13} | {in_three:12} | {:6} | {right:11} | {:13}, {:4} | {others:14}",
        format!("{kind:?}"),
        delays.len(),
        delays.get(delays.len() / 2).copied().unwrap_or(0),
        delays.last().copied().unwrap_or(0),
    );
    for wrong in trials.iter().filter(|t| !t.right_cause || t.delay.is_none_or(|d| 3 < d)) {
        let cause = wrong.finding.as_ref().map(|finding| &finding.cause);
        println!("  size {:.2}, {:?} windows: {cause:?}", wrong.fault.size, wrong.delay);
    }
    delays.len()
}

fn quiet_days(seed: u64) {
    println!("\nquiet days of 50 hosts:");
    let mut all = (0, 0);
    for day in seed..seed + DAYS {
        let mut fleet = Fleet::new(day, 50, 3..=6);
        let mut detector = Detector::new();
        let findings = run_on(&mut detector, &mut fleet, 0..1440);
        println!("{} series, {} findings", detector.series(), findings.len());
        all = (all.0 + detector.series(), all.1 + findings.len());
        for (number, finding) in &findings {
            let first = &finding.symptoms[0];
            let (series, score) = (&first.series, first.score);
            println!("  {number} {series:?} {:.4} {:.4} {score:.1}", first.before, first.after);
        }
    }
    let per = 1e4 * all.1 as f64 / all.0 as f64;
    println!("{} findings in {} series and days: {per:.2} per 10,000", all.1, all.0);
}

fn rises(seed: u64) {
    println!("\nrises of a function's share of the guest's time, found in 60 windows:");
    let all = [
        (1, [0.01, 0.015, 0.02, 0.03]),
        (10, [0.004, 0.005, 0.007, 0.01]),
        (100, [0.001, 0.0015, 0.002, 0.003]),
    ];
    for (vms, rises) in all {
        for rise in rises {
            let found = RISES.map(|(runs, from)| {
                let is_found = |seed: &u64| rise_is_found(*seed, vms, rise, from);
                let n = (seed..seed + runs).filter(is_found).count();
                format!("{n} of {runs} after {} hours", from / 60)
            });
            println!("{vms:3} VMs, {:.2} %: {}", 100.0 * rise, found.join(", "));
        }
    }
}
