//! A host with an Intel CPU, in Bochs: what is recorded there is recorded as on AMD. vmscope has priority there, or it would
//! wait for the VM at each of its many steps.

use std::path::Path;

use acceptance::{in_testbed, in_testbed_within, report, text};
use serde_json::Value;

use crate::axis::{adds_up, requested};

pub(crate) fn a_vm_on_an_intel_host_is_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let script = "nice -n -19 vmscope record -o rec --exits --offcpu-source switches --duration 3
        code=$?; echo to stdout; echo to stderr >&2; exit $((code + 7))";
    let ran = in_testbed("intel", folder.path(), script).unwrap();
    assert_eq!((ran.code, ran.stdout.as_str()), (7, "to stdout\n"), "{}", ran.stderr);
    assert!(ran.stderr.contains("to stderr\n"), "{}", ran.stderr);
    let recording = folder.path().join("rec");
    samples_are_the_vms(&recording);
    let steal = requested("steal", &recording, &[]);
    adds_up(&steal["vms"][0]["time"]);
    exits_have_intels_reasons(&recording);
}

pub(crate) fn doctor_and_top_know_an_intel_host() {
    let folder = tempfile::tempdir().unwrap();
    let script = "vmscope doctor >doctor &&
        nice -n -19 vmscope top --once --format json >top.json";
    let ran = in_testbed_within(1200, "intel", folder.path(), script).unwrap();
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let file = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    let doctor = file("doctor");
    for line in ["KVM                  kvm_intel", "running VMs          1: a"] {
        assert!(doctor.contains(line), "{doctor}");
    }
    let top: Value = serde_json::from_str(&file("top.json")).unwrap();
    let vcpus = top["vcpus"].as_array().unwrap();
    assert_eq!((vcpus.len(), text(&vcpus[0], "vm")), (1, "a"), "{top}");
}

fn samples_are_the_vms(recording: &Path) {
    let unified = report(recording, &["--limit", "100000"]).unwrap();
    assert_eq!(unified.counter("samples_dropped"), 0);
    assert_eq!(unified.sum(|_| true), unified.samples(), "the rows add up to the total");
    let of_guest = |row: &Value| text(row, "vm") == "a" && text(row, "side") == "guest";
    let in_guest = unified.sum(of_guest);
    assert!(unified.samples() / 2 < in_guest, "{in_guest} of {} samples", unified.samples());
    let kernel = |row: &Value| of_guest(row) && text(row, "module") == "[kernel]";
    let named = unified.sum(|row| kernel(row) && !text(row, "function").starts_with('['));
    assert!(0 < named, "no function of the guest's kernel has a name");
    // BPF can't read the VMCS: the guest's own kernel says whose page tables it runs on.
    let of_compute = |row: &Value| of_guest(row) && text(row, "process") == "compute";
    let in_program =
        unified.sum(|row| of_compute(row) && text(row, "module").ends_with("/compute"));
    let functions = ["compute_a", "compute_b"];
    let of_functions =
        unified.sum(|row| of_compute(row) && functions.contains(&text(row, "function")));
    eprintln!("Intel: {in_guest} samples of the guest, {in_program} in its program");
    assert!(in_guest / 2 < in_program, "{in_program} of {in_guest} in the guest's program");
    assert!(in_program * 9 / 10 < of_functions, "{of_functions} of {in_program} have functions");
}

/// AMD has no such exits.
fn exits_have_intels_reasons(recording: &Path) {
    let exits = requested("exits", recording, &[]);
    assert_eq!(exits["counted"], true);
    let rows = exits["vms"][0]["exits"].as_array().unwrap();
    let count = |name: &str| -> u64 {
        let of_reason = rows.iter().filter(|row| text(row, "name") == name);
        of_reason.filter_map(|row| row["count"].as_u64()).sum()
    };
    for name in ["external interrupt", "preemption timer"] {
        assert!(0 < count(name), "no {name}: {exits}");
    }
}
