//! A host with an Intel CPU, in Bochs: what is recorded there is recorded as on AMD.

use std::path::Path;

use acceptance::{in_testbed, report, text};
use serde_json::Value;

use crate::axis::{adds_up, requested};

/// One boot for all: it takes minutes.
pub(crate) fn a_vm_on_an_intel_host_is_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let script = "vmscope doctor >doctor; echo $? >doctor.code
        vmscope record -o rec --exits --offcpu-source switches --duration 5 &&
        vmscope top --once --format json >top.json
        code=$?; echo to stdout; echo to stderr >&2; exit $((code + 7))";
    let ran = in_testbed("intel", folder.path(), script).unwrap();
    assert_eq!((ran.code, ran.stdout.as_str()), (7, "to stdout\n"), "{}", ran.stderr);
    assert!(ran.stderr.contains("to stderr\n"), "{}", ran.stderr);
    let file = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    assert!(file("doctor").contains("kvm_intel"), "{}", file("doctor"));

    let recording = folder.path().join("rec");
    guest_functions_have_names(&recording);
    let steal = requested("steal", &recording, &[]);
    adds_up(&steal["vms"][0]["time"]);
    exits_have_intels_reasons(&recording);
    let top: Value = serde_json::from_str(&file("top.json")).unwrap();
    assert_eq!(top["vcpus"].as_array().unwrap().len(), 1, "{top}");
}

fn guest_functions_have_names(recording: &Path) {
    let unified = report(recording, &["--limit", "100000"]).unwrap();
    assert_eq!(unified.counter("samples_dropped"), 0);
    assert_eq!(unified.sum(|_| true), unified.samples(), "the rows add up to the total");
    let of_guest = |row: &Value| text(row, "vm") == "a" && text(row, "side") == "guest";
    let in_guest = unified.sum(of_guest);
    assert!(unified.samples() / 2 < in_guest, "{in_guest} of {} samples", unified.samples());
    let named = unified.sum(|row| of_guest(row) && text(row, "function").starts_with("compute_"));
    assert!(in_guest / 2 < named, "{named} of {in_guest} samples are compute's");
}

/// AMD has no such exits.
fn exits_have_intels_reasons(recording: &Path) {
    let exits = requested("exits", recording, &[]);
    assert_eq!(exits["counted"], true);
    let rows = exits["vms"][0]["exits"].as_array().unwrap();
    let count = |reason: &str| -> u64 {
        let of_reason = rows.iter().filter(|row| text(row, "reason") == reason);
        of_reason.filter_map(|row| row["count"].as_u64()).sum()
    };
    for reason in ["external interrupt", "preemption timer"] {
        assert!(0 < count(reason), "no {reason}: {exits}");
    }
}
