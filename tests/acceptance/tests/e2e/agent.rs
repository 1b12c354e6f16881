//! The agent on a virtual host: windows without a gap, guests' functions named in each, and what a kill costs.

use std::path::{Path, PathBuf};

use acceptance::{Report, in_testbed, report, text};
use serde_json::Value;

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
    vmscope agent --short-windows --config agent.toml & agent=$!
    until_windows 2 $agent
    # Another one is refused.
    vmscope agent --short-windows --config agent.toml && exit 1
    sleep 1
    kill -9 $agent
    wait $agent || true
    ls state/spool >before
    ls state/windows >left
    vmscope agent --short-windows --config agent.toml & agent=$!
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

    fn ns(&self, field: &str) -> u64 {
        self.facts[field].as_u64().unwrap()
    }

    /// Samples of a guest's function.
    fn named(&self) -> u64 {
        self.report.sum(|row| text(row, "vm") == "a" && text(row, "function") == "compute_a")
    }
}

pub(crate) fn windows_follow_one_another_and_a_kill_costs_one() {
    let folder = tempfile::tempdir().unwrap();
    let ran = in_testbed("one-guest", folder.path(), SCRIPT).unwrap();
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let lines = |name: &str| -> Vec<String> {
        let text = std::fs::read_to_string(folder.path().join(name)).unwrap();
        text.lines().map(str::to_owned).collect()
    };
    let metrics = lines("metrics");
    let count = |name: &str| -> f64 {
        let line = metrics.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {metrics:#?}")).parse().unwrap()
    };
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

    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder.path().join("windows"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    let windows: Vec<Window> = paths.iter().map(|path| Window::open(path)).collect();
    let (before, left) = (lines("before").len(), lines("left").len());
    eprintln!("{before} windows, {left} left by the kill, {} in all", windows.len());
    // The one under way, and those that were not finished, which takes its time where all is emulated.
    assert!(1 <= left);
    let recovered = count("vmscope_agent_windows_total{outcome=\"recovered\"}");
    assert_eq!(recovered, left as f64);
    let was_left = |n: usize| (before..before + left).contains(&n);
    for (n, window) in windows.iter().enumerate() {
        let length_s = (window.ns("end_ns") - window.ns("start_ns")) as f64 / 1e9;
        let (path, named) = (window.path.display(), window.named());
        eprintln!(
            "{path}: {length_s:.3} s, {} samples, {named} of compute_a",
            window.report.samples()
        );
        assert_eq!(window.report.counter("samples_dropped"), 0, "{path}");
        assert_eq!(window.facts["complete"], true);
        // What was left has no names: its guest was not asked.
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

/// Windows end at multiples of their length.
fn aligned_to_the_clock(windows: &[Window]) {
    const LENGTH_NS: u64 = 5_000_000_000;
    let is_full = |window: &&Window| {
        let length_ns = window.ns("end_ns") - window.ns("start_ns");
        length_ns.abs_diff(LENGTH_NS) < 500_000_000
    };
    let full: Vec<&Window> = windows.iter().filter(is_full).collect();
    assert!(2 <= full.len());
    for window in full {
        let late_ns = window.ns("start_unix_ns") % LENGTH_NS;
        let off_ns = late_ns.min(LENGTH_NS - late_ns);
        assert!(off_ns < 500_000_000, "{} begins {off_ns} ns off", window.path.display());
    }
}
