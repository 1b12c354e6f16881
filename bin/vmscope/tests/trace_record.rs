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
            skip::skip_if_refused(said);
            return None;
        }
        assert!(output.status.success(), "{said}");
        Some(bench)
    }

    fn vmscope(&self, arguments: &[&str]) -> Command {
        let mut vmscope = Command::new(env!("CARGO_BIN_EXE_vmscope"));
        vmscope.current_dir(&self.folder).args(arguments);
        vmscope
    }

    fn trace(&self, arguments: &[&str]) -> Command {
        self.vmscope(&[&["trace"], arguments].concat())
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.trace(arguments).output().unwrap()
    }

    fn report(&self, arguments: &[&str]) -> Value {
        let output = self.run(&[&["report"], arguments, &["--format", "json"]].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Starts a recording, and waits until its command made the file `begun`.
    fn start(&self, arguments: &[&str]) -> Child {
        self.wait_until_begun(self.trace(arguments))
    }

    fn wait_until_begun(&self, mut recorder: Command) -> Child {
        let child = recorder.stderr(Stdio::piped()).spawn().unwrap();
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
    std::fs::write(bench.folder.join("text"), "no program").unwrap();
    for (program, code, why) in
        [("/no/such/program", 127, "No such file"), ("./text", 126, "Permission denied")]
    {
        let output = bench.run(&["record", "-o", "t", "--", program]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), said.lines().count()), (Some(code), 1), "{said}");
        assert!(said.contains(&format!("failed to run {program}: {why}")), "{said}");
    }
    let left: Vec<_> = std::fs::read_dir(&bench.folder).unwrap().flatten().collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[test]
fn wrong_usage_says_what_to_do() {
    let check = |arguments: &[&str], expected: &str| {
        let mut vmscope = Command::new(env!("CARGO_BIN_EXE_vmscope"));
        let output = vmscope.args(["trace", "record", "-o", "x"]).args(arguments).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{said}");
        assert!(said.contains(expected), "{said}");
    };
    check(&["make", "-j2"], "'make' found: put -- before the command: see vmscope trace record");
    check(&["--duration", "0"], "a trace takes longer than that");
    check(&["--tree", "bash"], "give a process id");
}

#[test]
fn what_goes_on_after_an_interrupt_is_named() {
    let Some(bench) = Bench::new("goes-on") else { return };
    let script = "trap '' INT; touch begun; sleep 600 >/dev/null 2>&1; true";
    let child = bench.start(&["record", "-o", "t", "--", "sh", "-c", script]);
    signal(&child, "-INT");
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let (_, left) = said.split_once("still run, though it got SIGTERM: sleep (").unwrap();
    let (sleep, _) = left.split_once(')').unwrap();
    assert!(Command::new("kill").arg(sleep).status().unwrap().success(), "{said}");
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert_eq!(bench.report(&["t"])["command"]["exit_code"], Value::Null);
}

#[test]
fn a_second_signal_ends_a_recorder_at_once_and_names_what_is_left() {
    let Some(bench) = Bench::new("second") else { return };
    for (recorder, reader) in
        [("record", "vmscope report"), ("trace record", "vmscope trace report")]
    {
        let _ = std::fs::remove_file(bench.folder.join("begun"));
        let (output, stubborn) = (reader.replace(' ', "-"), "trap '' INT TERM; >begun; sleep 5");
        let mut arguments: Vec<&str> = recorder.split(' ').collect();
        arguments.extend(["-o", &output, "--", "sh", "-c", stubborn]);
        let child = bench.wait_until_begun(bench.vmscope(&arguments));
        // Two of one kind could be delivered as one.
        signal(&child, "-INT");
        signal(&child, "-TERM");
        let ended = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(1), "{recorder}: {said}");
        let left = format!(
            "ended by a second signal; what was recorded is in {output}.partial: `{reader}` reads it"
        );
        assert!(said.contains(&left), "{recorder}: {said}");
    }
    assert_eq!(bench.report(&["vmscope-trace-report"])["trace"]["complete"], false);
}

/// A small file system, as long as it lives.
struct Small(PathBuf);

impl Small {
    /// `None` where none can be mounted.
    fn mount(folder: PathBuf) -> Option<Self> {
        std::fs::create_dir(&folder).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=64m", "none"]).arg(&folder);
        mount.status().unwrap().success().then_some(Self(folder))
    }

    fn free_mib(&self) -> u64 {
        let df = Command::new("df").args(["-BM", "--output=avail"]).arg(&self.0).output().unwrap();
        let text = String::from_utf8(df.stdout).unwrap();
        text.lines().last().unwrap().trim().trim_end_matches('M').parse().unwrap()
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn a_disk_is_not_filled() {
    let Some(bench) = Bench::new("room") else { return };
    let Some(small) = Small::mount(bench.folder.join("small")) else {
        return skip::skip("no file system can be mounted here");
    };
    let arguments = ["record", "-o", "small/t", "--keep-free", "56M", "--duration", "60"];
    let forks = ["--", "sh", "-c", "while :; do /bin/true; done"];
    let output = bench.run(&[&arguments[..], &forks].concat());
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("the trace ended early: its disk has"), "{said}");
    assert!(48 <= small.free_mib(), "{} MiB are free", small.free_mib());
    let report = bench.report(&["small/t"]);
    assert_eq!(report["trace"]["complete"], true);
    assert!(report["trace"]["notes"].to_string().contains("ended early"), "{report}");
    assert!(0 < ns(&report["machine"]["events"]));
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
    // Nothing ends the command of a recorder that was killed.
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
