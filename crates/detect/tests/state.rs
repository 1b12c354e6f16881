//! Windows that come twice, late, in another order, or not at all.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, clippy::cast_sign_loss)]

mod fleet;

use std::collections::BTreeMap;

use detect::{Cause, Change, Code, Detector, FunctionTime, MAX_SYMPTOMS, Measure, Owner, Summary};
use fleet::{Fault, FaultKind, Fleet, Random, START_S, WINDOW_S};

/// Windows of three hosts, in one of which a quota comes in window 60.
fn windows() -> Vec<Summary> {
    let mut fleet = Fleet::new(7, 3, 2..=3);
    let begin_s = 60.0 * f64::from(WINDOW_S);
    let mut fault = Fault::random(FaultKind::Quota, &mut Random(1), &fleet, begin_s);
    fault.end_s = 80.0 * f64::from(WINDOW_S);
    fleet.faults.push(fault);
    (0..100).flat_map(|number| fleet.windows(number)).collect()
}

fn take_all(windows: impl IntoIterator<Item = Summary>) -> (Detector, Vec<Change>) {
    let mut detector = Detector::new();
    let changes = windows.into_iter().flat_map(|window| detector.take(window)).collect();
    (detector, changes)
}

#[test]
fn a_finding_is_opened_and_resolved_with_the_same_name_everywhere() {
    let (detector, changes) = take_all(windows());
    let Some(Change::Opened(finding)) = changes.first() else { panic!("{changes:?}") };
    assert!(matches!(finding.cause, Cause::Quota { .. }), "{finding:?}");
    assert_eq!(changes.last(), Some(&Change::Resolved(finding.id)));
    assert_eq!(detector.open().count(), 0);
    assert_eq!(take_all(windows()).1, changes);
    let advice = &finding.advice[0];
    assert!(0.05 < advice.cpus, "{advice:?}");
}

#[test]
fn a_detector_that_was_stored_goes_on_as_if_nothing_had_been() {
    let (_, expected) = take_all(windows());
    for part in [0, 1, 100, 190, 250, 295] {
        let windows = windows();
        let (before, after) = windows.split_at(part);
        let (detector, mut changes) = take_all(before.to_vec());
        let mut stored = Vec::new();
        ciborium::into_writer(&detector, &mut stored).unwrap();
        let mut detector: Detector = ciborium::from_reader(&*stored).unwrap();
        changes.extend(after.iter().flat_map(|window| detector.take(window.clone())));
        assert_eq!(changes, expected, "stored after {part} windows");
    }
}

#[test]
fn neighbours_in_the_wrong_order_and_windows_that_come_twice_change_nothing() {
    let (_, expected) = take_all(windows());
    let mut random = Random(3);
    let mut swapped = windows();
    for n in (3..swapped.len() - 3).step_by(4) {
        // The windows of the three hosts follow one another.
        if swapped[n].host == swapped[n + 3].host && random.unit() < 0.5 {
            swapped.swap(n, n + 3);
        }
    }
    let repeated = swapped.into_iter().flat_map(|window| [window.clone(), window]);
    let (detector, changes) = take_all(repeated);
    let resolved = |changes: &[Change]| changes.last().cloned();
    assert_eq!(resolved(&changes), resolved(&expected));
    assert!(250 < detector.left_out().duplicate);
}

#[test]
fn a_late_window_is_left_out() {
    let mut windows = windows();
    let late = windows.remove(0);
    windows.push(late);
    windows.push(Summary::default());
    let left_out = take_all(windows).0.left_out();
    assert_eq!((left_out.late, left_out.invalid), (1, 1));
}

#[test]
fn a_host_whose_windows_stop_is_found() {
    let (mut detector, _) = take_all(windows().into_iter().filter(|w| w.host == "kvm0"));
    let end_s = START_S + 100 * WINDOW_S;
    assert_eq!(detector.tick(end_s + 60), []);
    let changes = detector.tick(end_s + 240);
    let [Change::Opened(finding)] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!(finding.cause, Cause::Silent);
    assert_eq!(detector.tick(end_s + 300), []);
    let mut window = windows().into_iter().rfind(|w| w.host == "kvm0").unwrap();
    window.start_s += 600;
    assert_eq!(detector.take(window), [Change::Resolved(finding.id)]);
}

#[test]
fn a_vm_that_leaves_takes_its_finding_along() {
    let victim = |changes: &[Change]| match changes.first() {
        Some(Change::Opened(f)) => f.symptoms[0].series.clone(),
        other => panic!("{other:?}"),
    };
    let series = victim(&take_all(windows()).1);
    let leave = |mut window: Summary| {
        if START_S + 70 * WINDOW_S <= window.start_s && Some(&window.host) == series.host.as_ref() {
            window.vms.remove(series.vm.as_ref().unwrap());
        }
        window
    };
    let (detector, changes) = take_all(windows().into_iter().map(leave).take(3 * 75));
    assert!(matches!(changes.last(), Some(Change::Resolved(_))), "{changes:?}");
    assert_eq!(detector.open().count(), 0);
}

/// A guest that invents functions and processes in every window.
#[test]
fn what_a_guest_invents_is_bounded() {
    let mut random = Random(9);
    let invent = |mut window: Summary| {
        let Some(vm) = window.vms.values_mut().next() else { return window };
        vm.functions.clear();
        vm.processes = BTreeMap::new();
        for _ in 0..40 {
            let name = format!("{:x}", random.bits());
            let code = Code { process: name.clone(), module: name.clone(), function: name.clone() };
            vm.functions.push(FunctionTime { code, ns: 1_000_000_000 });
            vm.processes.insert(name.clone(), 1_000_000_000);
            vm.thieves.insert(Owner::Process(name), 1_000_000);
        }
        window
    };
    let all: Vec<Summary> = windows().into_iter().map(invent).collect();
    let (detector, changes) = take_all(all);
    let size = |change: &Change| match change {
        Change::Opened(finding) | Change::Updated(finding) => finding.symptoms.len(),
        Change::Resolved(_) => 0,
    };
    assert!(changes.iter().map(size).all(|n| n <= MAX_SYMPTOMS));
    let steady = |m: &Measure| matches!(m, Measure::Function(_) | Measure::Process(_));
    assert!(detector.open().all(|f| !f.symptoms.iter().all(|s| steady(&s.series.measure))));
}
