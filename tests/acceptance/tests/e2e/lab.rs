//! `vmscope lab consolidate`: VMs from a template, requests, remedies, a verdict; ended by Ctrl-C and resumed.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};

use acceptance::{run, vmscope};
use serde_json::Value;

/// Two VMs are loaded and a third one is idle, with a timer that ticks. No page comes within a microsecond: the verdict
/// is known.
const PLAN: &str = r#"
name = "short"
[host]
memory = "2G"
[vm]
cmdline = "nohz=off"
[load]
rate = 20
targets = 2
choose = "round-robin"
capture = true
[ladder]
vms = [2, 3]
warm_up_s = 1
measure_s = 2
repetitions = 2
to_the_end = true
[service]
within_ms = 0.001
[[remedy]]
name = "nice 19"
nice = 19
[[remedy]]
name = "huge pages"
huge_pages = true
"#;

/// Measures until the first measurement is complete, and then asks it to end.
fn interrupted(folder: &Path) -> i32 {
    let mut command = Command::new(vmscope().unwrap());
    command.args(["lab", "consolidate", "plan.toml", "-o", "result", "--timeout", "20m"]);
    let mut lab = command.current_dir(folder).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(lab.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("answers/s") {
        line.clear();
        assert_ne!(said.read_line(&mut line).unwrap(), 0, "it ended before its first measurement");
        eprint!("{line}");
    }
    assert!(Command::new("kill").args(["-INT", &lab.id().to_string()]).status().unwrap().success());
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    eprint!("{rest}");
    assert!(rest.contains("--resume"), "{rest}");
    lab.wait().unwrap().code().unwrap()
}

fn lab(folder: &Path, arguments: &[&str]) -> String {
    let result = folder.join("result");
    let mut words = vec!["lab", arguments[0], result.to_str().unwrap()];
    words.extend(&arguments[1..]);
    let output = run(&words).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

pub(crate) fn a_ladder_is_climbed_interrupted_resumed_and_reported() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("plan.toml");
    std::fs::write(&plan, PLAN).unwrap();
    assert_eq!(interrupted(folder.path()), 1);
    let result = folder.path().join("result");
    let runs = || std::fs::read_dir(result.join("runs")).unwrap().count();
    let before = runs();
    assert!((1..12).contains(&before), "{before} measurements");

    let words = ["lab", "consolidate", plan.to_str().unwrap(), "-o", result.to_str().unwrap()];
    assert_eq!(run(&words).unwrap().status.code(), Some(2), "the folder exists");
    let resumed = run(&[&words[..], &["--resume", "--timeout", "20m"]].concat()).unwrap();
    let said = String::from_utf8_lossy(&resumed.stderr);
    eprint!("{said}");
    assert!(resumed.status.success());
    assert_eq!(said.matches("answers/s").count() + before, 12, "what was measured is not repeated");
    assert_eq!(runs(), 12);

    check_report(
        &serde_json::from_str(&lab(folder.path(), &["report", "--format", "json"])).unwrap(),
        // The emulator's crashes that docs/testbed.md lists, with what they damage before.
        ["corrupted stack end", "Fatal exception in interrupt"]
            .iter()
            .any(|crash| said.contains(&format!("Kernel panic - not syncing: {crash}"))),
    );
    eprint!("{}", lab(folder.path(), &["report"]));
    assert_eq!(lab(folder.path(), &["report", "--format", "csv"]).lines().count(), 13);
    assert!(lab(folder.path(), &["report", "--format", "html"]).contains("<svg"));
    let itself = lab(folder.path(), &["compare", result.to_str().unwrap(), "--format", "json"]);
    let itself: Value = serde_json::from_str(&itself).unwrap();
    for row in itself["turnarounds"].as_array().unwrap() {
        assert_eq!((&row["change_percent"], &row["sure"]), (&0.0.into(), &"no".into()), "{row}");
    }
    for run in std::fs::read_dir(result.join("runs")).unwrap() {
        check_run(&run.unwrap().path());
    }
}

/// An emulated host whose memory was damaged may stop a VM before it panics: one step may then lack answers.
fn check_report(report: &Value, is_host_damaged: bool) {
    for verdict in report["verdicts"].as_array().unwrap() {
        assert_eq!((&verdict["takes"], &verdict["fails"]["vms"]), (&Value::Null, &2.into()));
        assert_eq!(verdict["fails"]["runs_that_kept_to_it"], 0);
    }
    let rows = |table: &str| report[table].as_array().unwrap().clone();
    let steps: Vec<(Value, Value)> =
        rows("answers").iter().map(|row| (row["treatment"].clone(), row["vms"].clone())).collect();
    let treatments = ["as it is", "nice 19", "huge pages"];
    let expected = treatments.iter().flat_map(|name| [2, 3].map(|vms| (*name, vms)));
    let expected: Vec<(Value, Value)> =
        expected.map(|(name, vms)| (Value::from(name), Value::from(vms))).collect();
    assert_eq!(steps, expected);
    let failed = rows("answers").iter().filter(|row| row["failed_percent"] != 0.0).count();
    assert!(
        failed <= usize::from(is_host_damaged),
        "{failed} steps with failed requests: {report}"
    );
    for row in rows("answers") {
        // Each VM answers at an address of its own.
        assert_eq!(row["loaded"], 2, "{row}");
        assert!(0.0 < row["answered_per_s"].as_f64().unwrap(), "{row}");
    }
    assert_eq!(rows("effects").len(), 4);
    assert_eq!(rows("idle").len(), 3, "with three VMs one is idle");
    for row in rows("idle") {
        let number = |key: &str| row[key].as_f64().unwrap();
        assert_eq!(row["idle"], 1);
        // 250 Hz, and the emulator loses some.
        assert!((100.0..400.0).contains(&number("injected_per_s_each")), "{row}");
        assert!((1.0..64.0).contains(&number("private_mib_each")), "half of its memory: {row}");
        assert!(0.0 < number("exits_per_s_each"), "{row}");
        let is_huge = row["treatment"] == "huge pages";
        assert_eq!(is_huge, 2.0 <= number("huge_mib_each"), "{row}");
    }
}

/// What must add up does, and the recording is one.
fn check_run(folder: &Path) {
    let text = std::fs::read_to_string(folder.join("run.json")).unwrap();
    let figures: Value = serde_json::from_str(&text).unwrap();
    let sum = |times: &Value| -> u64 {
        times.as_object().unwrap().values().map(|ns| ns.as_u64().unwrap()).sum()
    };
    let cpus = figures["cpus"].as_array().unwrap();
    assert_eq!(cpus.len(), 2);
    assert!(cpus.iter().all(|cpu| sum(&cpu["times"]) == figures["window_ns"].as_u64().unwrap()));
    let loaded = &figures["vms"]["loaded"];
    assert_eq!(loaded["n"], 2);
    // Web server and database are one program: no part is known, but what the VM did meanwhile.
    let parts = figures["parts"].as_object().unwrap();
    assert!(parts.keys().eq(["not split"]), "{parts:?}");
    let answered = figures["load"]["turnarounds"]["answered"].as_array().unwrap();
    let answered: u64 = answered.iter().map(|pair| pair[1].as_u64().unwrap()).sum();
    let captured = parts["not split"]["requests"].as_u64().unwrap();
    assert!(captured.abs_diff(answered) <= answered / 10 + 3, "{captured} of {answered}");
    assert!(folder.join("packets.pcapng").is_file());
    let recording = folder.join("recording");
    let steal = run(&["steal", recording.to_str().unwrap(), "--format", "json"]).unwrap();
    let steal: Value = serde_json::from_slice(&steal.stdout).unwrap();
    // A VM that took the place of one that the emulator ended has its process behind its name.
    let is = |vm: &Value, name: &str| {
        vm["name"].as_str().and_then(|found| found.split('-').next()) == Some(name)
    };
    let of = |name: &str| {
        let vm = steal["vms"].as_array().unwrap().iter().find(|vm| is(vm, name));
        let vm = vm.unwrap_or_else(|| panic!("no {name} in {}: {steal}", folder.display()));
        vm["time"]["wall_ns"].as_u64().unwrap()
    };
    assert_eq!(sum(&loaded["accounts"]), of("vm1") + of("vm2"));
}
