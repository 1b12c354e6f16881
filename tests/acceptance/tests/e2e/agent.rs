//! The agent on a virtual host: windows without a gap, guests' functions named in each, and what a kill, a clock that jumps and
//! CPUs that go and come cost.

use std::path::{Path, PathBuf};

use acceptance::{Report, as_unit, in_testbed, report, text};
use serde_json::Value;

use super::together::ONE_GUEST;

/// Runs an agent, kills it within a window, and runs another one to its end.
const SCRIPT: &str = "set -e
    vmscope agent --check agent.toml 2>/dev/null && exit 1
    cat >agent.toml <<END
state = \"$PWD/state\"
window_s = 5
pending_windows = 20
max_cpu_percent = 10000.0
metrics = \"127.0.0.1:9188\"
END
    vmscope agent --short-windows --check agent.toml
    windows() { ls state/spool 2>/dev/null | grep -c window || true; }
    until_windows() { while [ $(windows) -lt $1 ]; do kill -0 $2; sleep 0.5; done; }
    $AS_UNIT vmscope agent --short-windows --config agent.toml & agent=$!
    until_windows 2 $agent
    # Another one is refused.
    vmscope agent --short-windows --config agent.toml && exit 1
    sleep 1
    kill -9 $agent
    wait $agent || true
    ls state/spool >before
    ls state/windows >left
    $AS_UNIT vmscope agent --short-windows --config agent.toml & agent=$!
    until_windows $(($(wc -l <before) + $(wc -l <left) + 2)) $agent
    curl -s http://127.0.0.1:9188/metrics >metrics
    sed -i 's/window_s = 5/window_s = 7/' agent.toml
    kill -HUP $agent
    sleep 2
    kill -TERM $agent
    wait $agent
    ls state/windows >after
    mkdir windows
    for window in state/spool/*; do
        folder=windows/$(basename $window .window)
        mkdir $folder
        tar -xf $window -C $folder
    done
    rm -r state";

/// Sets the host's clock ahead and back by hours, takes a CPU away and gives it back, each for some windows.
const JUMPS: &str = "set -e
    cat >agent.toml <<END
state = \"$PWD/state\"
window_s = 5
pending_windows = 20
max_cpu_percent = 10000.0
metrics = \"127.0.0.1:9188\"
END
    cpu=/sys/devices/system/cpu/cpu1/online
    vmscope agent --short-windows --config agent.toml 2>journal & agent=$!
    windows() { ls state/spool 2>/dev/null | grep -c window || true; }
    two_more() { until=$(($(windows) + 2)); while [ $(windows) -lt $until ]; do kill -0 $agent; sleep 0.5; done; }
    jump() { date -s @$(($(date +%s) + $1)) >/dev/null; }
    two_more
    jump 10800; two_more
    jump -21600; two_more
    echo 0 >$cpu; two_more; two_more
    echo 1 >$cpu; two_more; two_more
    curl -s http://127.0.0.1:9188/metrics >metrics
    sleep 2
    kill -TERM $agent
    wait $agent
    mkdir windows
    for window in state/spool/*; do
        folder=windows/$(basename $window .window)
        mkdir $folder
        tar -xf $window -C $folder
    done
    rm -r state";

/// KVM is loaded under a running agent, and then a VM starts, beside files that are named like KVM's.
const LATE_KVM: &str = "set -e
    gcc -O1 -pthread -o attack attack.c
    modprobe -r kvm_amd kvm
    cat >agent.toml <<END
state = \"$PWD/state\"
window_s = 5
pending_windows = 20
max_cpu_percent = 10000.0
END
    vmscope agent --short-windows --config agent.toml 2>journal & agent=$!
    windows() { ls state/spool 2>/dev/null | grep -c window || true; }
    two_more() { until=$(($(windows) + 2)); while [ $(windows) -lt $until ]; do kill -0 $agent; sleep 0.5; done; }
    two_more
    modprobe kvm_amd
    ./attack files . -name fake & files=$!
    ./attack asleep -name late & vm=$!
    two_more; two_more
    kill -TERM $agent
    wait $agent
    kill $vm $files
    mkdir windows
    for window in state/spool/*; do
        folder=windows/$(basename $window .window)
        mkdir $folder
        tar -xf $window -C $folder
    done
    rm -r state kvm-*";

pub(crate) fn vms_are_found_when_kvm_is_loaded_under_the_agent() {
    let folder = tempfile::tempdir().unwrap();
    let attack = include_str!("../../../hostile/attack.c");
    let script = format!("cat >attack.c <<'END_OF_C'\n{attack}\nEND_OF_C\n{LATE_KVM}");
    let ran = in_testbed("no-guests-6.12", folder.path(), &script).unwrap();
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let windows = std::fs::read_dir(folder.path().join("windows")).unwrap();
    let mut windows: Vec<_> = windows.map(|window| window.unwrap().path()).collect();
    windows.sort();
    let names = |window: &PathBuf| super::hostile::vms(window).into_keys().collect::<Vec<_>>();
    let before = acceptance::run(&["steal", windows[0].to_str().unwrap()]).unwrap();
    let said = String::from_utf8_lossy(&before.stderr).into_owned();
    assert!(said.contains("this recording has no VM"), "{said}");
    assert_eq!(names(windows.last().unwrap()), ["late"]);
}

/// A window, as it was sampled.
struct Window {
    path: PathBuf,
    facts: Value,
    report: Report,
}

impl Window {
    fn open(path: &Path) -> Self {
        let json = std::fs::read_to_string(path.join("recording.json")).unwrap();
        let facts = serde_json::from_str(&json).unwrap();
        let report = report(path, &["--limit", "100000"]).unwrap();
        Self { path: path.to_owned(), facts, report }
    }

    /// Those that a run brought back, by their start.
    fn all(folder: &Path) -> Vec<Self> {
        let entries = std::fs::read_dir(folder.join("windows")).unwrap();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        paths.iter().map(|path| Self::open(path)).collect()
    }

    fn ns(&self, field: &str) -> u64 {
        self.facts[field].as_u64().unwrap()
    }

    fn length_s(&self) -> f64 {
        (self.ns("end_ns") - self.ns("start_ns")) as f64 / 1e9
    }

    /// Samples of a guest's function.
    fn named(&self) -> u64 {
        self.report.sum(|row| text(row, "vm") == "a" && text(row, "function") == "compute_a")
    }
}

pub(super) fn windows() -> String {
    format!("AS_UNIT='{}'\n{SCRIPT}", as_unit("vmscope-agent.service"))
}

pub(crate) fn windows_follow_one_another_and_a_kill_costs_one() {
    let files = ONE_GUEST.succeeded("windows_follow_one_another_and_a_kill_costs_one").files;
    let lines = |name: &str| -> Vec<String> {
        let text = std::fs::read_to_string(files.join(name)).unwrap();
        text.lines().map(str::to_owned).collect()
    };
    let count = |name: &str| count(&files, name);
    for name in [
        "vmscope_agent_guest_map_cpu_seconds{vm=\"a\"}",
        "vmscope_agent_cpu_seconds_total",
        "vmscope_agent_resident_bytes",
        "vmscope_agent_uncovered_seconds_total",
    ] {
        eprintln!("{name} {}", count(name));
    }
    assert_eq!(count("vmscope_agent_uncovered_seconds_total"), 0.0);
    assert_eq!(count("vmscope_agent_samples_lost_total"), 0.0);
    assert_eq!(count("vmscope_agent_windows_total{outcome=\"lost\"}"), 0.0);
    assert_eq!(lines("after"), Vec::<String>::new(), "nothing is left unfinished");

    let windows = Window::all(&files);
    let (before, left) = (lines("before").len(), lines("left").len());
    eprintln!("{before} windows, {left} left by the kill, {} in all", windows.len());
    // The one under way, and those that were not finished, which takes its time where all is emulated.
    assert!(1 <= left);
    let recovered = count("vmscope_agent_windows_total{outcome=\"recovered\"}");
    assert_eq!(recovered, left as f64);
    let was_left = |n: usize| (before..before + left).contains(&n);
    for (n, window) in windows.iter().enumerate() {
        let (path, length_s) = (window.path.display(), window.length_s());
        let (samples, named) = (window.report.samples(), window.named());
        eprintln!("{path}: {length_s:.3} s, {samples} samples, {named} of compute_a");
        assert_eq!(window.report.counter("samples_dropped"), 0, "{path}");
        assert_eq!(window.facts["complete"], true);
        // What was left has no names: its guest was not queried.
        assert!(was_left(n) || 0 < named, "{path}");
    }
    let is_gap = |pair: &&[Window]| pair[1].ns("start_ns") != pair[0].ns("end_ns");
    let gaps: Vec<f64> = windows
        .windows(2)
        .filter(is_gap)
        .map(|pair| (pair[1].ns("start_ns") as f64 - pair[0].ns("end_ns") as f64) / 1e9)
        .collect();
    eprintln!("uncovered: {gaps:?} s");
    assert!(gaps.len() <= 1, "only the kill leaves time uncovered: {gaps:?}");
    aligned_to_the_clock(&windows);
}

/// What the agent of a run counts.
fn count(folder: &Path, name: &str) -> f64 {
    let metrics = std::fs::read_to_string(folder.join("metrics")).unwrap();
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in {metrics}")).parse().unwrap()
}

pub(crate) fn clocks_that_jump_and_cpus_that_go_and_come_cost_no_window() {
    let folder = tempfile::tempdir().unwrap();
    let ran = in_testbed("one-guest", folder.path(), JUMPS).unwrap();
    let journal = std::fs::read_to_string(folder.path().join("journal")).unwrap_or_default();
    assert_eq!(ran.code, 0, "{}\n{journal}", ran.stderr);
    let of = |outcome: &str| format!("vmscope_agent_windows_total{{outcome=\"{outcome}\"}}");
    for outcome in ["lost", "dropped_spooled", "dropped_unfinished"] {
        assert_eq!(count(folder.path(), &of(outcome)), 0.0, "{outcome}\n{journal}");
    }
    assert_eq!(count(folder.path(), "vmscope_agent_samples_lost_total"), 0.0);
    let windows = Window::all(folder.path());
    let unix_h = |window: &Window| window.ns("start_unix_ns") as f64 / 3.6e12;
    let is_anew = |n: usize| 0 < n && windows[n - 1].ns("end_ns") != windows[n].ns("start_ns");
    for (n, window) in windows.iter().enumerate() {
        let (length_s, named) = (window.length_s(), window.named());
        let (hours, cpus) = (unix_h(window), &window.facts["cpus"]);
        eprintln!("{hours:.4} h: {length_s:.3} s, {cpus}, {named} of compute_a");
        // A session in the place of another one does not wait for the guest's first answer.
        assert!(0 < named || is_anew(n));
    }
    // The host's time goes on, the world's goes back and forth with the clock.
    let jumps = windows.windows(2).map(|pair| (unix_h(&pair[1]) - unix_h(&pair[0])).round());
    let jumps: Vec<f64> = jumps.filter(|hours| *hours != 0.0).collect();
    assert_eq!(jumps, [3.0, -6.0]);
    let with_cpus = |cpus: &[u32]| {
        windows.iter().filter(|window| window.facts["cpus"] == serde_json::json!(cpus)).count()
    };
    assert!(2 <= with_cpus(&[0]) && 6 <= with_cpus(&[0, 1]), "{journal}");
    // Sampling began anew twice. Else windows follow one another, between half and one and a half of 5 s long.
    assert_eq!((0..windows.len()).filter(|n| is_anew(*n)).count(), 2, "{journal}");
    let anew = "CPUs went online or offline: sampling starts anew";
    assert_eq!(journal.matches(anew).count(), 2, "{journal}");
    for (n, window) in windows.iter().enumerate().skip(1) {
        let is_last = n + 1 == windows.len() || is_anew(n + 1);
        let length_s = window.length_s();
        assert!(length_s < 8.0 && (is_last || 2.0 < length_s), "window {n}: {length_s} s");
    }
    aligned_to_the_clock(&windows);
}

/// Windows end at multiples of their length.
fn aligned_to_the_clock(windows: &[Window]) {
    const LENGTH_NS: u64 = 5_000_000_000;
    let is_full = |window: &&Window| (window.length_s() - 5.0).abs() < 0.5;
    let full: Vec<&Window> = windows.iter().filter(is_full).collect();
    assert!(2 <= full.len());
    for window in full {
        let late_ns = window.ns("start_unix_ns") % LENGTH_NS;
        let off_ns = late_ns.min(LENGTH_NS - late_ns);
        assert!(off_ns < 500_000_000, "{} begins {off_ns} ns off", window.path.display());
    }
}
