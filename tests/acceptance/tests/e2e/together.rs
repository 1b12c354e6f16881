//! A recording and a trace of the same moment: neither disturbs the other, and both lie on one time axis.

use std::path::Path;
use std::process::{Command, Output};

use acceptance::shared::{Part, SharedHost};
use acceptance::{root, vmscope};
use serde_json::Value;

use super::agent;

pub(crate) static ONE_GUEST: SharedHost = SharedHost::new(
    "one-guest",
    &[
        Part { test: "samples_and_a_trace_of_one_moment_lie_on_one_time_axis", script: bursts },
        Part { test: "windows_follow_one_another_and_a_kill_costs_one", script: agent::windows },
    ],
);

/// A CPU busy and idle in turns, so that two time axes that differ would be seen to; the guest has the other.
fn bursts() -> String {
    "burst() { i=0; while [ $i -lt 100000 ]; do i=$((i + 1)); done; }
    (while :; do burst; sleep 0.3; done) &
    bursts=$!
    vmscope record -o rec -- vmscope trace record -o trace --duration 6
    vmscope record --trace -o both --duration 4
    kill $bursts"
        .to_owned()
}

fn export(folder: &Path, arguments: &[&str]) -> Output {
    let mut vmscope = Command::new(vmscope().unwrap());
    vmscope.current_dir(folder).args(["trace", "export", "trace", "--recording"]).args(arguments);
    vmscope.output().unwrap()
}

/// The manifest of a recording or a trace.
fn manifest(folder: &Path, file: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(folder.join(file)).unwrap()).unwrap()
}

pub(crate) fn samples_and_a_trace_of_one_moment_lie_on_one_time_axis() {
    let files = ONE_GUEST.succeeded("samples_and_a_trace_of_one_moment_lie_on_one_time_axis").files;
    let recording = manifest(&files, "rec/recording.json");
    for (name, count) in recording["counters"].as_object().unwrap() {
        assert!(!name.contains("dropped") || count == 0, "{name}: {count}");
    }
    let report = Command::new(vmscope().unwrap())
        .args(["trace", "report", "trace", "--format", "json"])
        .current_dir(&files)
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&report.stdout).unwrap();
    assert_eq!(report["machine"]["lost"], serde_json::json!([]), "{}", report["machine"]);

    let exported = export(&files, &["rec", "--format", "perfetto", "-o", "both.perfetto"]);
    assert!(exported.status.success(), "{}", String::from_utf8_lossy(&exported.stderr));
    let interop = Command::new(root().join("tests/interop/run.sh"))
        .arg("together")
        .arg(files.join("both.perfetto"))
        .status()
        .unwrap();
    assert!(interop.success());
    others_are_refused(&files, recording);
    one_command_records_both(&files);
}

/// The samples lie within the trace, and both reports read the one folder.
fn one_command_records_both(folder: &Path) {
    let (samples, trace) =
        (manifest(folder, "both/recording.json"), manifest(folder, "both/trace/trace.json"));
    let ns = |of: &Value, name: &str| of[name].as_u64().unwrap();
    let times = [
        ns(&trace, "begin_ns"),
        ns(&samples, "start_ns"),
        ns(&samples, "end_ns"),
        ns(&trace, "end_ns"),
    ];
    assert!(times.is_sorted(), "{times:?}");
    let of_both = ns(&samples, "end_ns") - ns(&samples, "start_ns");
    assert!(3_000_000_000 < of_both, "{of_both}");
    for arguments in [&["report", "both"][..], &["trace", "report", "both"]] {
        let mut vmscope = Command::new(vmscope().unwrap());
        let report = vmscope.current_dir(folder).args(arguments).output().unwrap();
        assert!(report.status.success(), "{}", String::from_utf8_lossy(&report.stderr));
    }
}

/// Of another host, another boot and another time: each refused in one line that says so.
fn others_are_refused(folder: &Path, recording: Value) {
    let check = |recording: &Value, expected: &str| {
        let text = serde_json::to_string(recording).unwrap();
        std::fs::write(folder.join("rec/recording.json"), text).unwrap();
        let refused = export(folder, &["rec", "--format", "perfetto", "-o", "no.perfetto"]);
        let stderr = String::from_utf8(refused.stderr).unwrap();
        assert_eq!((refused.status.code(), stderr.lines().count()), (Some(2), 1), "{stderr}");
        assert!(stderr.contains(expected), "{stderr}");
        assert!(!folder.join("no.perfetto").exists());
    };
    let mut other = recording.clone();
    other["hostname"] = "elsewhere".into();
    check(&other, "it was taken on host elsewhere");
    let later = |name: &str, by_ns: u64| (recording[name].as_u64().unwrap() + by_ns).into();
    let mut other = recording.clone();
    other["start_unix_ns"] = later("start_unix_ns", 3_600_000_000_000);
    check(&other, "another boot of");
    let mut other = recording.clone();
    for name in ["start_unix_ns", "start_ns", "end_ns"] {
        other[name] = later(name, 3_600_000_000_000);
    }
    check(&other, "after the trace ended");
}
