//! How well faults of a made-up fleet are found. `examples/evaluate.rs` measures the same at length.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, clippy::cast_sign_loss)]

mod fleet;
mod trial;

use fleet::{FAULTS, Fleet};
use trial::{find, rise_is_found};

#[test]
fn each_kind_of_fault_is_found_in_three_windows_with_its_cause() {
    let check = |kind| {
        let trials: Vec<_> = (0..20).map(|seed| find(kind, seed)).collect();
        let in_three = trials.iter().filter(|t| t.delay.is_some_and(|d| d <= 3)).count();
        let right = trials.iter().filter(|t| t.right_cause).count();
        let wrong = trials.iter().find(|t| !t.right_cause || t.delay.is_none_or(|d| 3 < d));
        assert!(19 <= in_three && 19 <= right, "{kind:?}: {in_three}, {right}: {wrong:?}");
    };
    std::thread::scope(|threads| {
        for kind in FAULTS {
            threads.spawn(move || check(kind));
        }
    });
}

#[test]
fn a_quiet_day_of_a_fleet_has_at_most_one_finding() {
    let findings = trial::run(&mut Fleet::new(1, 25, 3..=6), 0..1440);
    assert!(findings.len() <= 1, "{findings:?}");
}

#[test]
fn small_rises_are_found_the_smaller_the_more_vms_have_them() {
    for (vms, rise) in [(1, 0.02), (10, 0.007), (100, 0.002)] {
        let found = (0..10).filter(|seed| rise_is_found(*seed, vms, rise, 120)).count();
        assert!(9 <= found, "{vms} VMs, {rise}: {found} of 10");
    }
}
