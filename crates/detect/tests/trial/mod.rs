//! Detection tried on a made-up fleet.

#![allow(dead_code)]

use detect::{Change, Detector, Finding, Measure};

use crate::fleet::{Fault, FaultKind, Fleet, Random, WINDOW_S};

/// What was opened, with the number of the window.
pub(crate) fn run(fleet: &mut Fleet, windows: std::ops::Range<u32>) -> Vec<(u32, Finding)> {
    let mut detector = Detector::new();
    run_on(&mut detector, fleet, windows)
}

pub(crate) fn run_on(
    detector: &mut Detector,
    fleet: &mut Fleet,
    windows: std::ops::Range<u32>,
) -> Vec<(u32, Finding)> {
    let mut opened = Vec::new();
    for number in windows {
        for window in fleet.windows(number) {
            for change in detector.take(window) {
                if let Change::Opened(finding) = change {
                    opened.push((number, finding));
                }
            }
        }
    }
    opened
}

#[derive(Debug)]
pub(crate) struct Trial {
    /// Windows after the one in which the fault began until the finding, if there is one.
    pub(crate) delay: Option<u32>,
    pub(crate) right_cause: bool,
    /// Findings beside the right one.
    pub(crate) others: usize,
    pub(crate) finding: Option<Finding>,
    pub(crate) fault: Fault,
}

/// A fault somewhere in three hosts, and what is found until 15 windows later.
pub(crate) fn find(kind: FaultKind, seed: u64) -> Trial {
    let mut random = Random(seed * 77 + 5);
    let mut fleet = Fleet::new(seed + 1000, 3, 3..=5);
    let begin_s = random.between(100.0, 400.0) * f64::from(WINDOW_S);
    let fault = Fault::random(kind, &mut random, &fleet, begin_s);
    fleet.faults.push(fault.clone());
    let first = (begin_s / f64::from(WINDOW_S)) as u32;
    let mut detector = Detector::new();
    let mut opened = run_on(&mut detector, &mut fleet, 0..first + 15);
    let host = fleet.hosts[fault.host].name.clone();
    let is_of_fault = |(number, finding): &(u32, Finding)| {
        first <= *number && finding.symptoms.iter().any(|s| s.series.host.as_ref() == Some(&host))
    };
    let n = opened.len();
    opened.retain(is_of_fault);
    let Some((number, finding)) = opened.first().cloned() else {
        return Trial { delay: None, right_cause: false, others: n, finding: None, fault };
    };
    // The cause as it is after the last window.
    let now = detector.open().find(|open| open.id == finding.id).cloned().unwrap_or(finding);
    let right_cause = fault.is_caused_by(&now.cause, &fleet);
    Trial { delay: Some(number - first), right_cause, others: n - 1, finding: Some(now), fault }
}

/// Whether a rise of one function's share of the guests' time in `n` VMs, in window `from`, is found in 60 windows.
pub(crate) fn rise_is_found(seed: u64, n: usize, rise: f64, from: u32) -> bool {
    let mut fleet = Fleet::new(seed + 1, n, 1..=1);
    fleet.rise = Some((rise, from));
    let grown = fleet.hosts[0].vms[0].functions[3].code.clone();
    let is_it = |finding: &Finding| {
        finding.symptoms.iter().any(|s| s.series.measure == Measure::Function(grown.clone()))
    };
    let mut detector = Detector::new();
    (0..from + 60).any(|number| {
        let changes: Vec<_> =
            fleet.windows(number).into_iter().flat_map(|window| detector.take(window)).collect();
        // It may join the finding of its process.
        changes.iter().any(|change| match change {
            Change::Opened(finding) | Change::Updated(finding) => from <= number && is_it(finding),
            Change::Resolved(_) => false,
        })
    })
}
