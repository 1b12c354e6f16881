//! What the tests and experiments of traces share: reports, the stretches of tasks' lives, what witnesses wrote.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, bail};
use serde_json::Value;

use crate::run;

/// `vmscope trace report TRACE --format json ...`.
///
/// # Errors
/// If the report fails.
pub fn report(trace: &Path, arguments: &[&str]) -> anyhow::Result<Value> {
    let path = trace.to_str().context("the path is not UTF-8")?;
    let output = run(&[&["trace", "report", path, "--format", "json"], arguments].concat())?;
    if !output.status.success() {
        bail!("vmscope trace report failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    serde_json::from_slice(&output.stdout).context("the report is not JSON")
}

/// Sum of the fields of an object whose names end in `_ns`, without `whole`.
fn parts_ns(object: &Value, whole: &str) -> u64 {
    let fields = object.as_object().into_iter().flatten();
    let parts = fields.filter(|(name, _)| name.ends_with("_ns") && *name != whole);
    parts.filter_map(|(_, value)| value.as_u64()).sum()
}

/// Sum of `ns` of a list's objects.
fn sum_ns(list: &Value) -> u64 {
    list.as_array().into_iter().flatten().filter_map(|row| row["ns"].as_u64()).sum()
}

/// Checks the sums of docs/trace.md in a report of everybody (`--limit 0`).
///
/// # Errors
/// If one does not hold, or its parts are not there.
pub fn check_sums(report: &Value) -> anyhow::Result<()> {
    let machine = &report["machine"];
    let (wall, cpus) = (ns(machine, "wall_ns")?, list(&machine["cpus"])?.len() as u64);
    check_profile(&report["profile"])?;
    for row in named(&report["states"])? {
        let time = &row["time"];
        check(row, parts_ns(time, "life_ns"), ns(time, "life_ns")?)?;
    }
    for row in named(&report["waits"])? {
        let life = &row["life"];
        check(row, ns(life, "running_ns")? + sum_ns(&life["causes"]), ns(life, "life_ns")?)?;
    }
    let lives = ["states", "waits"].map(|table| ns(&report[table]["total"], "life_ns"));
    let [states, waits] = lives;
    check(&report["waits"]["total"], waits?, states?)?;
    let kernel = &report["kernel"];
    check(&kernel["machine"], sum_ns(&kernel["machine"]), cpus * wall)?;
    for cpu in list(&kernel["cpus"])? {
        check(cpu, sum_ns(&cpu["classes"]), wall)?;
    }
    check_path(&report["critical_path"])?;
    check_host_side(&report["host_side"], wall)
}

fn check_profile(profile: &Value) -> anyhow::Result<()> {
    let looked_at = ns(profile, "end_ns")? - ns(profile, "begin_ns")?;
    let lists = [list(&profile["cpus"])?, list(&profile["disks"])?].concat();
    let times = lists.iter().map(|row| &row["time"]);
    for time in times.chain([&profile["machine"]]) {
        check(time, ns(time, "wall_ns")?, looked_at)?;
        check(time, parts_ns(time, "wall_ns"), looked_at)?;
    }
    Ok(())
}

/// There is none without a command.
fn check_path(path: &Value) -> anyhow::Result<()> {
    if path.is_null() {
        return Ok(());
    }
    let wall = ns(path, "wall_ns")?;
    for parts in ["categories", "names", "segments"] {
        list(&path[parts])?;
        check(&Value::from(parts), sum_ns(&path[parts]), wall)?;
    }
    Ok(())
}

/// Only VMs have one.
fn check_host_side(side: &Value, wall: u64) -> anyhow::Result<()> {
    if side.is_null() {
        return Ok(());
    }
    for cpu in list(&side["cpus"])? {
        let mut all = 0;
        for share in ["busy", "idle", "unknown"].map(|doing| &cpu[doing]) {
            let whole = ns(share, "ns")?;
            check(share, parts_ns(share, "ns"), whole)?;
            check(share, sum_ns(&share["stolen_by"]), ns(share, "stolen_ns")?)?;
            all += whole;
        }
        check(cpu, all, wall)?;
    }
    Ok(())
}

fn check(what: &Value, parts: u64, whole: u64) -> anyhow::Result<()> {
    if parts != whole {
        bail!("parts add up to {parts} ns instead of {whole} ns: {what}");
    }
    Ok(())
}

fn ns(object: &Value, field: &str) -> anyhow::Result<u64> {
    object[field].as_u64().with_context(|| format!("no {field} in {object}"))
}

fn list(value: &Value) -> anyhow::Result<&[Value]> {
    value.as_array().map(Vec::as_slice).with_context(|| format!("no list: {value}"))
}

/// The rows of commands and of processes.
fn named(table: &Value) -> anyhow::Result<impl Iterator<Item = &Value>> {
    Ok(list(&table["names"])?.iter().chain(list(&table["processes"])?))
}

/// What became of a task, all in ns.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Life {
    /// Its own last name.
    pub name: String,
    /// Whether it is its process's first thread.
    pub leads: bool,
    pub running: u64,
    /// What it did not have a CPU for, by cause.
    pub waits: BTreeMap<String, u64>,
    /// The part of `waits` before it first had a CPU.
    pub unborn: u64,
}

impl Life {
    /// The sum of all waits.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.waits.values().sum()
    }

    /// Runnable and without a CPU.
    #[must_use]
    pub fn cpu_delay(&self) -> u64 {
        let delays = self.waits.iter().filter(|(cause, _)| cause.starts_with("cpu "));
        delays.map(|(_, ns)| ns).sum()
    }

    /// What it waited for longest, CPUs aside.
    #[must_use]
    pub fn first_cause(&self) -> Option<&str> {
        let causes = self.waits.iter().filter(|(cause, _)| !cause.starts_with("cpu "));
        causes.max_by_key(|(_, ns)| **ns).map(|(cause, _)| cause.as_str())
    }
}

/// What a task did from one instant to another: a line of `vmscope trace export --format csv`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stretch {
    pub machine: String,
    pub pid: u32,
    /// The thread's name.
    pub name: String,
    pub tid: u32,
    /// Since the trace's begin.
    pub begin_ns: u64,
    /// The same.
    pub end_ns: u64,
    /// Running, runnable, asleep.
    pub state: String,
    /// Why it has no CPU; empty: not known, or it has one.
    pub cause: String,
    /// Which it has; empty: none.
    pub cpu: String,
}

/// `vmscope trace export --format csv`.
///
/// # Errors
/// If the export fails or is not what docs/trace.md says.
pub fn stretches(trace: &Path) -> anyhow::Result<Vec<Stretch>> {
    let path = trace.to_str().context("the path is not UTF-8")?;
    let output = run(&["trace", "export", path, "--format", "csv", "-o", "-"])?;
    if !output.status.success() {
        bail!("vmscope trace export failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    String::from_utf8(output.stdout)?.lines().skip(1).map(stretch).collect()
}

fn stretch(line: &str) -> anyhow::Result<Stretch> {
    let words: Vec<&str> = line.split(',').collect();
    let [machine, _, pid, name, tid, begin, end, state, cause, _, cpu, ..] = words[..] else {
        bail!("a line of the CSV has too few columns: {line}")
    };
    let [machine, name, state, cause, cpu] = [machine, name, state, cause, cpu].map(str::to_owned);
    let (begin_ns, end_ns) = (begin.parse()?, end.parse()?);
    let (pid, tid) = (pid.parse()?, tid.parse()?);
    Ok(Stretch { machine, pid, name, tid, begin_ns, end_ns, state, cause, cpu })
}

/// Every task's life, by thread id.
///
/// # Errors
/// Those of `stretches`.
pub fn lives(trace: &Path) -> anyhow::Result<BTreeMap<u32, Life>> {
    let mut lives = BTreeMap::<u32, Life>::new();
    for stretch in stretches(trace)? {
        let life = lives.entry(stretch.tid).or_default();
        let ns = stretch.end_ns - stretch.begin_ns;
        life.leads = stretch.pid == stretch.tid;
        life.name = stretch.name;
        if stretch.state == "running" {
            life.running += ns;
            continue;
        }
        let cause = if stretch.cause.is_empty() { stretch.state } else { stretch.cause };
        *life.waits.entry(cause).or_default() += ns;
        if life.running == 0 {
            life.unborn += ns;
        }
    }
    Ok(lives)
}

/// How a guest's clock fits its host's events: whatever a guest's CPU does lies where the host's trace says that the
/// vCPU's thread ran.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct ClockFit {
    /// Instants of the guest that were compared.
    pub instants: usize,
    /// Of those, outside; the guest's clock is wrong by this much at least.
    pub outside: Vec<u64>,
    /// The least time from a run's begin to an instant in it: the guest's times are not earlier than they should be by more.
    pub early_at_most_ns: u64,
    /// And from an instant to the run's end: nor later.
    pub late_at_most_ns: u64,
}

/// Compares the switches between a guest's tasks with when its vCPUs (QEMU's threads `CPU N/KVM`) ran on the host, while
/// both were traced.
#[must_use]
pub fn clock_fit(stretches: &[Stretch], guest: &str) -> ClockFit {
    let mut vcpus = BTreeMap::<&str, Vec<&Stretch>>::new();
    for stretch in stretches.iter().filter(|stretch| stretch.machine == "host") {
        let cpu = stretch.name.strip_prefix("CPU ").and_then(|name| name.strip_suffix("/KVM"));
        if let Some(cpu) = cpu {
            vcpus.entry(cpu).or_default().push(stretch);
        }
    }
    let running = stretches.iter().filter(|stretch| stretch.machine == guest && stretch.runs());
    let mut instants: Vec<(u64, &str)> = running
        .flat_map(|stretch| [stretch.begin_ns, stretch.end_ns].map(|ns| (ns, &stretch.cpu[..])))
        .collect();
    instants.sort_unstable();
    // Where the guest's trace begins and ends nothing was switched.
    let ends = [instants.first(), instants.last()].map(|end| end.map_or(0, |(ns, _)| *ns));
    let mut fit =
        ClockFit { early_at_most_ns: u64::MAX, late_at_most_ns: u64::MAX, ..ClockFit::default() };
    for (ns, cpu) in instants.into_iter().filter(|(ns, _)| !ends.contains(ns)) {
        fit.add(ns, vcpus.get(cpu).map_or(&[][..], Vec::as_slice));
    }
    fit
}

impl Stretch {
    fn runs(&self) -> bool {
        self.state == "running"
    }

    /// How far an instant lies outside.
    fn off(&self, ns: u64) -> u64 {
        self.begin_ns.saturating_sub(ns).max(ns.saturating_sub(self.end_ns))
    }
}

impl ClockFit {
    /// `vcpu`: what its thread did, from the begin of the host's trace to its end.
    fn add(&mut self, ns: u64, vcpu: &[&Stretch]) {
        let (first, last) = match vcpu {
            [] => (0, u64::MAX),
            [first, .., last] => (first.begin_ns, last.end_ns),
            [only] => (only.begin_ns, only.end_ns),
        };
        if ns <= first || last <= ns {
            return;
        }
        self.instants += 1;
        let runs = vcpu.iter().filter(|stretch| stretch.runs());
        let Some(run) = runs.min_by_key(|run| run.off(ns)) else {
            return self.outside.push(u64::MAX);
        };
        if 0 < run.off(ns) {
            return self.outside.push(run.off(ns));
        }
        // Where the host's trace begins and ends a run has no ends.
        if first < run.begin_ns {
            self.early_at_most_ns = self.early_at_most_ns.min(ns - run.begin_ns);
        }
        if run.end_ns < last {
            self.late_at_most_ns = self.late_at_most_ns.min(run.end_ns - ns);
        }
    }
}

/// What `perf sched timehist` says of a task, in ns.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub struct Timehist {
    /// On a CPU.
    pub running: f64,
    /// Off the CPUs, from the first time that it left one on.
    pub waiting: f64,
}

/// By thread id, from the lines of `perf sched timehist`:
/// `TIME [CPU] NAME[TID/PID] WAIT DELAY RUN`, in s and ms.
#[must_use]
pub fn timehist(text: &str) -> BTreeMap<u32, Timehist> {
    let mut tasks = BTreeMap::<u32, Timehist>::new();
    for line in text.lines() {
        let Some((tid, [waited, _, ran])) = timehist_line(line) else { continue };
        let task = tasks.entry(tid).or_default();
        task.running += ran * 1e6;
        task.waiting += waited * 1e6;
    }
    tasks
}

fn timehist_line(line: &str) -> Option<(u32, [f64; 3])> {
    let (task, times) = line.rsplit_once(']')?;
    let ids = task.rsplit_once('[')?.1;
    let tid = ids.split('/').next()?.parse().ok()?;
    let times: Option<Vec<f64>> = times.split_whitespace().map(|word| word.parse().ok()).collect();
    Some((tid, times?.try_into().ok()?))
}

/// How far `ours` is off `theirs`, in percent of `theirs`.
#[must_use]
pub fn percent_off(ours: u64, theirs: f64) -> f64 {
    100.0 * (ours as f64 - theirs) / theirs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_that_do_not_hold() {
        let file = crate::root().join("tests/golden/report/trace-overview.json");
        let good: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
        check_sums(&good).unwrap();
        for changed in [
            "/profile/machine/both_ns",
            "/profile/cpus/0/time/both_ns",
            "/states/names/0/time/cpu_none_disk_none_ns",
            "/waits/processes/0/life/running_ns",
            "/kernel/machine/0/ns",
            "/kernel/cpus/0/classes/0/ns",
            "/critical_path/names/0/ns",
            "/critical_path/segments",
        ] {
            let mut bad = good.clone();
            let value = bad.pointer_mut(changed).expect(changed);
            *value = value.as_u64().map_or(Value::Null, |ns| (ns + 1).into());
            assert!(check_sums(&bad).is_err(), "{changed}");
        }
    }

    #[test]
    fn a_guest_s_switches_lie_within_its_vcpu_s_runs() {
        let fit = |guest: &[&str]| {
            let host = [
                "host,qemu,300,CPU 0/KVM,301,0,50,running,,,3,",
                "host,qemu,300,CPU 0/KVM,301,50,80,asleep,,,,",
                "host,qemu,300,CPU 0/KVM,301,80,120,running,,,3,",
                "host,qemu,300,CPU 0/KVM,301,120,300,asleep,,,,",
                "host,other,310,other,310,50,80,running,,,3,",
                "host,other,310,other,310,120,900,asleep,,,,",
            ];
            let lines: Vec<Stretch> =
                host.iter().chain(guest).map(|line| stretch(line).unwrap()).collect();
            let ClockFit { instants, outside, early_at_most_ns, late_at_most_ns } =
                clock_fit(&lines, "a");
            (instants, outside, early_at_most_ns, late_at_most_ns)
        };
        let ends = ["a,x,1,x,1,2,44,running,,,0,", "a,x,1,x,1,105,400,running,,,0,"];
        let within = ["a,x,1,x,1,85,110,running,,,0,", ends[0], ends[1]];
        assert_eq!(fit(&within), (4, vec![], 5, 6));
        let outside = ["a,x,1,x,1,70,100,running,,,0,", "a,x,1,x,1,100,127,running,,,0,"];
        let outside = [outside[0], outside[1], ends[0], ends[1]];
        assert_eq!(fit(&outside), (6, vec![10, 7], 20, 6));
        let elsewhere = ["a,x,1,x,1,85,110,running,,,1,", ends[0], ends[1]];
        assert_eq!(fit(&elsewhere).1, [u64::MAX; 2], "no such vCPU");
    }

    #[test]
    fn lines_of_timehist() {
        let text = "           time    cpu  task name   wait time  sch delay   run time\n\
                    --------------- ------  --------  ---------  ---------  ---------\n\
                    \x20     51.1 [0000]  perf[150]             0.000      0.000      0.250 \n\
                    \x20     51.2 [0001]  kworker/0:1[7]        1.000      0.500      2.000 \n\
                    \x20     51.3 [0001]  a thread[8/7]         4.000      0.500      1.000 \n\
                    \x20     51.4 [0001]  kworker/0:1[7]        1.500      0.500      2.000 \n";
        let task = |running, waiting| Timehist { running, waiting };
        let expected = [(7, task(4e6, 2.5e6)), (8, task(1e6, 4e6)), (150, task(0.25e6, 0.0))];
        assert_eq!(timehist(text), BTreeMap::from(expected));
    }
}
