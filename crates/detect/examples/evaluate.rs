//! How well a made-up fleet's faults are found: `cargo run --release -p detect --example evaluate`.

#![allow(
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
use fleet::{FAULTS, Fleet};
use trial::{Trial, find, rise_is_found, run_on};

/// Of each fault.
const RUNS: u64 = 100;
/// Quiet ones, each of another fleet.
const DAYS: u64 = 4;
/// Of each rise.
const RISES: u64 = 10;

fn main() {
    println!("{RUNS} runs of each fault, at a random place and time:");
    println!(
        "fault         | in 3 windows | recall | right cause | delay: median, most | other findings"
    );
    let mut all = (0, 0);
    for kind in FAULTS {
        let trials: Vec<Trial> = (0..RUNS).map(|seed| find(kind, seed)).collect();
        let mut delays: Vec<u32> = trials.iter().filter_map(|trial| trial.delay).collect();
        delays.sort_unstable();
        let in_three = delays.iter().filter(|delay| **delay <= 3).count();
        let right = trials.iter().filter(|trial| trial.right_cause).count();
        let others: usize = trials.iter().map(|trial| trial.others).sum();
        all = (all.0 + delays.len(), all.1 + others);
        println!(
            "{:13} | {in_three:12} | {:6} | {right:11} | {:13}, {:4} | {others:14}",
            format!("{kind:?}"),
            delays.len(),
            delays.get(delays.len() / 2).copied().unwrap_or(0),
            delays.last().copied().unwrap_or(0),
        );
    }
    println!("precision: {:.3}", all.0 as f64 / (all.0 + all.1).max(1) as f64);

    println!("\nquiet days of 50 hosts:");
    for day in 0..DAYS {
        let mut fleet = Fleet::new(day + 1, 50, 3..=6);
        let mut detector = Detector::new();
        let findings = run_on(&mut detector, &mut fleet, 0..1440);
        println!("{} series, {} findings", detector.series(), findings.len());
        for (number, finding) in &findings {
            let first = &finding.symptoms[0];
            let (series, score) = (&first.series, first.score);
            println!("  {number} {series:?} {:.4} {:.4} {score:.1}", first.before, first.after);
        }
    }

    println!(
        "\nrises of a function's share of the guest's time, found in 60 windows after a day, of {} runs:",
        20
    );
    let all = [
        (1, [0.01, 0.015, 0.02, 0.025, 0.03]),
        (10, [0.003, 0.004, 0.005, 0.007, 0.01]),
        (100, [0.001, 0.0013, 0.0015, 0.002, 0.003]),
    ];
    for (vms, rises) in all {
        for rise in rises {
            let found = (0..RISES).filter(|seed| rise_is_found(*seed, vms, rise, 1440)).count();
            println!("{vms:3} VMs, {:.2} %: {found}", 100.0 * rise);
        }
    }
}
