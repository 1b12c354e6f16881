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
#[must_use]
pub fn parts_ns(object: &Value, whole: &str) -> u64 {
    let fields = object.as_object().into_iter().flatten();
    let parts = fields.filter(|(name, _)| name.ends_with("_ns") && *name != whole);
    parts.filter_map(|(_, value)| value.as_u64()).sum()
}

/// Sum of `ns` of a list's objects.
#[must_use]
pub fn sum_ns(list: &Value) -> u64 {
    list.as_array().into_iter().flatten().filter_map(|row| row["ns"].as_u64()).sum()
}

/// What became of a task, all in ns.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Life {
    /// Its own last name.
    pub process: String,
    /// Whether it is its process's first thread.
    pub leads: bool,
    /// On a CPU.
    pub running: u64,
    /// What it did not have a CPU for, by cause.
    pub waits: BTreeMap<String, u64>,
    /// The part of `waits` before it first had a CPU.
    pub unborn: u64,
}

impl Life {
    /// All of `waits`.
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

/// Every task's life, by thread id, from `vmscope trace export --format csv`.
///
/// # Errors
/// If the export fails or is not what docs/trace.md says.
pub fn lives(trace: &Path) -> anyhow::Result<BTreeMap<u32, Life>> {
    let path = trace.to_str().context("the path is not UTF-8")?;
    let output = run(&["trace", "export", path, "--format", "csv", "-o", "-"])?;
    if !output.status.success() {
        bail!("vmscope trace export failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    let mut lives = BTreeMap::<u32, Life>::new();
    for line in String::from_utf8(output.stdout)?.lines().skip(1) {
        let words: Vec<&str> = line.split(',').collect();
        let [_, process, pid, tid, begin, end, state, cause, ..] = words[..] else {
            bail!("a line of the CSV has too few columns: {line}")
        };
        let life = lives.entry(tid.parse()?).or_default();
        let ns = end.parse::<u64>()? - begin.parse::<u64>()?;
        process.clone_into(&mut life.process);
        life.leads = pid == tid;
        if state == "running" {
            life.running += ns;
            continue;
        }
        let cause = if cause.is_empty() { state } else { cause };
        *life.waits.entry(cause.to_owned()).or_default() += ns;
        if life.running == 0 {
            life.unborn += ns;
        }
    }
    Ok(lives)
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
