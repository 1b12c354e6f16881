//! What the boot image's own tests wrote (boot/tests/golden) is understood: the lines, the QR texts, and both alike.

#![allow(clippy::unwrap_used)]

use microbench::{Figures, Outcome, Results, catalogue, lines, qr};

const LINES: &[u8] = include_bytes!("../../../boot/tests/golden/lines.jsonl");
const CODES: &[u8] = include_bytes!("../../../boot/tests/golden/qr.txt");

/// Measurements, with what only the catalogue knows left to it.
fn outcomes(results: &Results) -> Vec<(String, String, Outcome)> {
    let name = |name: &str| match catalogue::find(name) {
        Some(_) => name.to_owned(),
        // The test's own operations.
        None => "unknown".to_owned(),
    };
    let all = results.measurements.iter();
    // How often it was done is not in the codes.
    let known = |outcome: &Outcome| match outcome.clone() {
        Outcome::Measured(figures) => Outcome::Measured(Figures { done: None, ..figures }),
        other => other,
    };
    all.map(|m| (name(&m.operation), m.condition.to_string(), known(&m.outcome))).collect()
}

#[test]
fn lines_and_codes_say_the_same() {
    let (lines, codes) = (lines::parse(LINES).unwrap(), qr::parse(CODES).unwrap());
    assert_eq!(outcomes(&lines), outcomes(&codes));
    assert_eq!(lines.machine, codes.machine);
    assert_eq!(lines.conditions, codes.conditions);
    assert_eq!(lines.ending, codes.ending);
}

#[test]
fn every_line_is_understood() {
    let results = lines::parse(LINES).unwrap();
    let reported =
        LINES.split(|byte| *byte == b'\n').filter(|line| line.starts_with(b"{\"result\""));
    assert_eq!(results.measurements.len(), reported.count());
    assert_eq!(results.notes.all(), ["the TSC jumped 0 times"]);
    assert_eq!(results.machine.brand, "AMD Opteron(tm) \"X\"");
}
