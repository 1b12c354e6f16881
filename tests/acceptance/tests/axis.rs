//! The time axis on real guests: what was stolen, and by whom. Corrected run times (S0.7) are held against times alone,
//! which need a machine that does nothing else: see `make experiments`.

#![allow(clippy::unwrap_used)]

use acceptance::marks::mark;

/// Runs a mark's experiment; every outcome must be within its limit.
fn check(name: &str) {
    let folder = tempfile::tempdir().unwrap();
    let outcomes = (mark(name).unwrap().experiment)(folder.path()).unwrap();
    for o in &outcomes {
        eprintln!("{} {}: {} (limit: {})", o.mark, o.what, o.ours, o.limit);
    }
    let failed: Vec<_> = outcomes.iter().filter(|outcome| !outcome.pass).collect();
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn the_host_sees_outside_what_the_guest_lacks() {
    check("S0.2");
}

#[test]
fn two_vcpus_of_one_cpu_steal_from_each_other() {
    check("S0.4");
}

#[test]
fn three_vms_of_one_cpu_are_each_others_thieves() {
    check("S0.5");
}

#[test]
fn halt_is_no_steal() {
    check("S0.6");
}

#[test]
fn a_vm_alone_pays_for_its_own_exits() {
    check("exits");
}

#[test]
fn a_quota_is_no_steal() {
    check("quota");
}
