//! `vmscope trace record` of real commands, on the kernel that runs here. Needs root and a kernel that takes BPF programs:
//! else it is skipped, and says why.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

/// One trace at a time.
static TRACING: Mutex<()> = Mutex::new(());

struct Bench {
    folder: PathBuf,
    _tracing: MutexGuard<'static, ()>,
}

impl Bench {
    /// `None` where this kernel or user can't trace.
    fn new(name: &str) -> Option<Self> {
        let tracing = TRACING.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("trace-record-{name}"));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let bench = Self { folder, _tracing: tracing };
        let output = bench.run(&["record", "-o", "try", "--", "true"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let refused = ["tracing needs root", "the kernel took none", "this kernel has no type"];
        if refused.iter().any(|reason| said.contains(reason)) {
            eprintln!("skipped: {said}");
            return None;
        }
        assert!(output.status.success(), "{said}");
        Some(bench)
    }

    fn vmscope(&self, arguments: &[&str]) -> Command {
        let mut vmscope = Command::new(env!("CARGO_BIN_EXE_vmscope"));
        vmscope.current_dir(&self.folder).arg("trace").args(arguments);
        vmscope
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.vmscope(arguments).output().unwrap()
    }

    fn report(&self, arguments: &[&str]) -> Value {
        let output = self.run(&[&["report"], arguments, &["--format", "json"]].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Starts a recording, and waits until its command made the file `begun`.
    fn start(&self, arguments: &[&str]) -> Child {
        let child = self.vmscope(arguments).stderr(Stdio::piped()).spawn().unwrap();
        let begin = Instant::now();
        while !self.folder.join("begun").exists() {
            assert!(begin.elapsed() < Duration::from_secs(60), "the command did not begin");
            std::thread::sleep(Duration::from_millis(10));
        }
        child
    }
}

fn signal(child: &Child, name: &str) {
    let id = child.id().to_string();
    assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
}

fn ns(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn a_command_that_sleeps_and_writes() {
    let Some(bench) = Bench::new("writes") else { return };
    let script =
        "sleep 0.2; dd if=/dev/zero of=file bs=1M count=10 oflag=direct conv=fsync; exit 3";
    let output = bench.run(&["record", "-o", "t", "--", "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stderr));
    let report = bench.report(&["t"]);
    let command = &report["command"];
    assert_eq!((&command["words"][0], ns(&command["exit_code"])), (&Value::from("sh"), 3));
    let wall = ns(&command["wall_ns"]);
    assert!(200_000_000 < wall, "{command}");
    // It slept for 0.2 s because of a timer, and that is on its critical path.
    let rows = |rows: &Value, name: &str, of: &str| -> u64 {
        let rows = rows.as_array().unwrap().iter().filter(|row| row[name] == of);
        rows.map(|row| ns(&row["ns"])).sum()
    };
    let causes = &report["waits"]["total"]["causes"];
    assert!(200_000_000 <= rows(causes, "cause", "timer"), "{causes}");
    let path = &report["critical_path"];
    assert!(199_000_000 <= rows(&path["categories"], "category", "timer"), "{path}");
    assert_eq!(ns(&path["wall_ns"]), wall);
    let names: Vec<&str> = report["states"]["names"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["name"].as_str().unwrap())
        .collect();
    for name in ["sh", "sleep", "dd"] {
        assert!(names.contains(&name), "{names:?}");
    }
    // Unknown is a small part of what its processes waited.
    let total = &report["waits"]["total"];
    assert!(ns(&total["unknown_ns"]) * 20 < ns(&total["waiting_ns"]), "{total}");
    let text = bench.run(&["report", "t"]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("Why it took") && text.contains("own code of"), "{text}");
}

#[test]
fn a_program_that_is_not_there() {
    let Some(bench) = Bench::new("nosuch") else { return };
    let output = bench.run(&["record", "-o", "t", "--", "/no/such/program"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{said}");
    assert!(said.contains("failed to run /no/such/program: No such file"), "{said}");
    let left: Vec<_> = std::fs::read_dir(&bench.folder).unwrap().flatten().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[test]
fn signals_end_the_trace_and_the_command() {
    let Some(bench) = Bench::new("signals") else { return };
    for (name, code) in [("-INT", 130_u8), ("-TERM", 143)] {
        let script = "touch begun; exec sleep 60";
        let output = format!("t{code}");
        let child = bench.start(&["record", "-o", &output, "--", "sh", "-c", script]);
        signal(&child, name);
        let status = child.wait_with_output().unwrap();
        let said = String::from_utf8(status.stderr).unwrap();
        assert_eq!(status.status.code(), Some(code.into()), "{said}");
        assert_eq!(ns(&bench.report(&[&output])["command"]["exit_code"]), u64::from(code));
        std::fs::remove_file(bench.folder.join("begun")).unwrap();
    }
}

#[test]
fn a_killed_recorder_leaves_what_it_has() {
    let Some(bench) = Bench::new("killed") else { return };
    let script = "touch begun; exec sleep 60";
    let mut child = bench.start(&["record", "-o", "t", "--", "sh", "-c", script]);
    let stored = |file: &str| {
        let bytes = std::fs::read(bench.folder.join("t.partial").join(file)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let begin = Instant::now();
    // Until events and a checkpoint were stored, which ends with the command.
    while !stored("trace.json").contains("exec sleep 60") || stored("machine0-cpu0.raw").is_empty()
    {
        assert!(begin.elapsed() < Duration::from_secs(60), "nothing is stored");
        std::thread::sleep(Duration::from_millis(10));
    }
    signal(&child, "-KILL");
    // Not its output: the command, which goes on, has that too.
    child.wait().unwrap();
    let report = bench.report(&["t"]);
    assert_eq!(report["trace"]["complete"], false);
    assert!(0 < ns(&report["machine"]["events"]), "{report}");
    // Nobody ends the command of a recorder that was killed.
    let sleep = ns(&report["command"]["pid"]).to_string();
    assert!(Command::new("kill").arg(&sleep).status().unwrap().success());
}

#[test]
fn only_the_command() {
    let Some(bench) = Bench::new("only") else { return };
    let output = bench.run(&["record", "-o", "t", "--only-command", "--", "sh", "-c", "sleep 0.1"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report = bench.report(&["t"]);
    assert_eq!(report["trace"]["filters"], Value::from(vec!["--only-command"]));
    let timer = report["waits"]["total"]["causes"].as_array().unwrap().iter();
    let timer: u64 = timer.filter(|row| row["cause"] == "timer").map(|row| ns(&row["ns"])).sum();
    assert!(100_000_000 <= timer, "{report}");
}
