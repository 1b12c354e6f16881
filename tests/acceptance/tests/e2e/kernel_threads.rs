//! Kernel threads of a guest have their own time, as perf in the guest sees it.

use std::collections::{BTreeMap, BTreeSet};

use acceptance::{in_testbed, report, text};

/// Name and samples by process id, of all that ran but perf and vmscope-guest themselves. A kernel thread's name stands in
/// brackets.
type Processes = BTreeMap<u64, (String, u64)>;

/// What the names of those begin with that the scenario gives work to.
const KERNEL_THREADS: [&str; 3] = ["ksoftirqd/", "kworker/", "rcu_"];

/// perf samples inside while vmscope samples outside. The scenario's CPU is never idle.
pub(crate) fn kernel_threads_have_the_time_that_perf_in_the_guest_gives_them() {
    let folder = tempfile::tempdir().unwrap();
    // perf begins before the recording and ends after it; its samples of the recording's seconds are taken. It has a longer
    // period, because its interrupts count as work of the guest outside, and not inside. Neither period is in step with the
    // guest's tick, in which RCU's thread and kworkers are woken.
    let script = "set -e
        in_guest() { vmscope testbed exec busy -- sh -c \"$1\"; }
        in_guest 'perf record -q -a -e cpu-clock -c 2713000 -k CLOCK_MONOTONIC -o /run/perf.data & \
            until [ -s /run/perf.data ] && [ 200000 -lt $(stat -c %s /run/perf.data) ]; do sleep 1; done'
        vmscope record -o rec --period 0.997ms -- vmscope testbed exec busy -- sh -c \
            'read from rest </proc/uptime; sleep 40; read to rest </proc/uptime; echo $from,$to' >window
        in_guest 'kill -INT $(pidof perf); while pidof perf; do sleep 1; done' >/dev/null
        in_guest \"perf script -i /run/perf.data --time $(cat window) -F comm,pid\" >perf.txt";
    let ran = in_testbed("kernel-threads", folder.path(), script).unwrap();
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let witness = by_perf(&std::fs::read_to_string(folder.path().join("perf.txt")).unwrap());
    let arguments = ["--view", "guest", "--vm", "busy", "--by", "process", "--limit", "100000"];
    let guest = report(&folder.path().join("rec"), &arguments).unwrap();
    let mut ours = Processes::new();
    for row in guest.rows().iter().filter(|row| text(row, "side") == "guest") {
        let (pid, samples) = (row["pid"].as_u64().unwrap_or(0), row["samples"].as_u64().unwrap());
        add(&mut ours, pid, text(row, "process"), samples);
    }
    shares_agree(&ours, &witness);
    for name in KERNEL_THREADS.map(|name| format!("[{name}")) {
        assert!(ours.values().any(|(found, _)| found.starts_with(&name)), "no {name} in {ours:?}");
    }
}

fn add(processes: &mut Processes, pid: u64, name: &str, samples: u64) {
    let is_idle = name.contains("swapper");
    if is_idle || name.starts_with("perf") || name.starts_with("vmscope") {
        return;
    }
    processes.entry(pid).or_insert_with(|| (name.to_owned(), 0)).1 += samples;
}

/// Lines of `perf script -F comm,pid`: `ksoftirqd/0    14 `. Names may hold blanks.
fn by_perf(lines: &str) -> Processes {
    let mut processes = Processes::new();
    for line in lines.lines() {
        let Some((name, pid)) = line.trim().rsplit_once(char::is_whitespace) else { continue };
        let is_kernel = KERNEL_THREADS.iter().any(|kernel| name.starts_with(kernel));
        let name = if is_kernel { format!("[{}]", name.trim()) } else { name.trim().to_owned() };
        add(&mut processes, pid.parse().unwrap(), &name, 1);
    }
    processes
}

/// The share of each kernel thread is perf's to half a point, or three standard errors of the difference.
fn shares_agree(ours: &Processes, witness: &Processes) {
    let all = |of: &Processes| of.values().map(|(_, samples)| samples).sum::<u64>() as f64;
    let (n, m) = (all(ours), all(witness));
    let share = |of: &Processes, pid, all| of.get(pid).map_or(0.0, |(_, s)| *s as f64 / all);
    let (mut sums, mut wrong) = ([0.0; 2], Vec::new());
    for pid in ours.keys().chain(witness.keys()).collect::<BTreeSet<_>>() {
        let name = ours.get(pid).or(witness.get(pid)).map_or("", |(name, _)| name);
        let (p, q) = (share(ours, pid, n), share(witness, pid, m));
        let limit = (3.0 * (p * (1.0 - p) / n + q * (1.0 - q) / m).sqrt()).max(0.005);
        let line = format!("{name} ({pid}): {:.2} %, {:.2} % by perf", 100.0 * p, 100.0 * q);
        if 0.001 < p.max(q) {
            eprintln!("{line}");
        }
        if !name.starts_with('[') || *pid == 0 {
            continue;
        }
        sums = [sums[0] + p, sums[1] + q];
        if limit < (p - q).abs() {
            wrong.push(line);
        }
    }
    let [p, q] = sums.map(|sum| 100.0 * sum);
    eprintln!("kernel threads: {p:.2} % of {n} samples, {q:.2} % of {m} by perf");
    assert!(wrong.is_empty(), "{wrong:?}");
    assert!(5.0 < p, "kernel threads had too little to tell anything");
}
