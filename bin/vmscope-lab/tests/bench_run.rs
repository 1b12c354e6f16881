//! `vmscope bench run` on a machine that hangs. It is a script in QEMU's place that takes QEMU's command line and talks as
//! the image does on its debug port: what is tested here needs operations that never come back, and the image has none.

#![allow(clippy::unwrap_used)]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::Value;

const HEADER: &str = include_str!("../../../boot/tests/golden/lines.jsonl");

/// What a machine does after it said that an operation begins.
const ANSWERS: &str = r#"
    silent) echo $$ >>pids; exec sleep 600 ;;
    restarts) exit 0 ;;
    *) say "{\"result\":\"$operation\",$at,\"status\":\"missing\",\"reason\":\"not here\"}" ;;
"#;

/// A folder with a machine that knows these operations: `NAME` or `NAME:silent`, `NAME:restarts`.
fn machine(name: &str, operations: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("bench-run-{name}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("image"), "").unwrap();
    std::fs::write(folder.join("header"), HEADER.lines().next().unwrap()).unwrap();
    let script = format!(
        r#"#!/bin/bash
while [ $# -gt 0 ]; do
    case $1 in
    -append) line=$2 ;;
    socket,id=lines,fd=*) port=${{1##*=}} ;;
    esac
    shift
done
cd "${{0%/*}}" && echo "$line" >>starts
say() {{ printf '%s\n' "$1" >&"$port"; }}
skip=,$(tr ' ' '\n' <<<"$line" | sed -n s/^skip=//p),
at='"condition":"long.cpl0"'
[ -s header ] || exec sleep 600
say "$(<header)"
for word in {operations}; do
    operation=${{word%:*}}
    [[ $skip == *",$operation@long.cpl0,"* ]] && continue
    say "{{\"begin\":\"$operation\",$at}}"
    case ${{word#*:}} in {ANSWERS} esac
done
say '{{"end":"complete","results":1,"tsc_drift_ppm":0,"backward_jumps":0}}'
"#
    );
    let program = folder.join("qemu-system-x86_64");
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

fn run(folder: &Path, options: &[&str]) -> Output {
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    let mut vmscope = Command::new(env!("CARGO_BIN_EXE_vmscope-lab"));
    vmscope.current_dir(folder).env("PATH", path).args(["bench", "run", "--image", "image"]);
    vmscope.args(["-o", "results.json"]).args(options).output().unwrap()
}

fn starts(folder: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(folder.join("starts")).unwrap();
    text.lines().map(str::to_owned).collect()
}

fn results(folder: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(folder.join("results.json")).unwrap()).unwrap()
}

fn outcomes(results: &Value) -> Vec<[&str; 3]> {
    let rows = results["results"].as_array().unwrap().iter();
    let fields = ["operation", "status", "reason"];
    rows.map(|row| fields.map(|field| row[field].as_str().unwrap_or_default())).collect()
}

fn no_machine_is_left(folder: &Path) {
    for pid in std::fs::read_to_string(folder.join("pids")).unwrap().lines() {
        assert!(!Path::new("/proc").join(pid).exists(), "process {pid} is still there");
    }
}

#[test]
fn what_hangs_is_left_out_and_the_rest_is_measured() {
    let folder = machine("hangs", "add mwait:silent cpuid vmcall:restarts hlt");
    let output = run(&folder, &["--silence", "1s", "--skip", "nop"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let results = results(&folder);
    let mut found = outcomes(&results);
    found.sort_unstable();
    let expected = [
        ["add", "missing", "not here"],
        ["cpuid", "missing", "not here"],
        ["hlt", "missing", "not here"],
        ["mwait", "hung", "no output for 1 s"],
        ["vmcall", "hung", "the machine ended"],
    ];
    assert_eq!(found, expected);
    assert_eq!(results["ending"], "complete");
    let skips = ["nop", "nop,mwait@long.cpl0", "nop,mwait@long.cpl0,vmcall@long.cpl0"];
    assert_eq!(starts(&folder), skips.map(|skip| format!("skip={skip} end=poweroff qr=off")));
    no_machine_is_left(&folder);
}

#[test]
fn a_machine_that_always_hangs_is_started_eight_times() {
    let words: Vec<String> = (0..20).map(|n| format!("op{n}:restarts")).collect();
    let folder = machine("always", &words.join(" "));
    let output = run(&folder, &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let results = results(&folder);
    assert!(outcomes(&results).iter().all(|[_, status, _]| *status == "hung"), "{results}");
    assert_eq!((outcomes(&results).len(), starts(&folder).len()), (8, 8));
    let notes = results["notes"].to_string();
    assert!(notes.contains("8 operations hung: the rest was not tried"), "{notes}");
}

#[test]
fn the_whole_run_has_a_limit() {
    let folder = machine("limit", "add mwait:silent hlt:silent cpuid");
    let start = Instant::now();
    let output = run(&folder, &["--timeout", "2s"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(start.elapsed() < Duration::from_secs(20));
    let results = results(&folder);
    let expected =
        [["add", "missing", "not here"], ["mwait", "hung", "the time limit was reached"]];
    assert_eq!(outcomes(&results), expected);
    let notes = results["notes"].to_string();
    assert!(notes.contains("the time limit was reached: raise it with --timeout"), "{notes}");
    no_machine_is_left(&folder);
}

#[test]
fn a_machine_that_never_says_anything_is_an_error() {
    let folder = machine("mute", "add");
    std::fs::write(folder.join("header"), "").unwrap();
    let output = run(&folder, &["--idle-timeout", "1s"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), stderr.lines().count()), (Some(1), 1), "{stderr}");
    assert!(stderr.contains("the image said nothing before its first line"), "{stderr}");
    assert!(!folder.join("results.json").exists());
}
