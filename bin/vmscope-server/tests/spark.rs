//! Apache Spark over a real store, with executors killed in mid-job: `VMSCOPE_SPARK_PYTHON` names a Python with PySpark.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{Place, window};
use serde_json::{Value, json};

const WINDOWS: u64 = 12;
/// Jobs, in each of which an executor is killed.
const JOBS: usize = 3;
const SQL: &str = "SELECT host, vm, state, sum(ns) AS ns, count(*) AS n, min(slice) AS first FROM vcpu_time GROUP BY host, vm, state ORDER BY host, vm, state";

/// Processes by their parents, with their command lines.
fn children() -> BTreeMap<u32, Vec<(u32, String)>> {
    let mut found: BTreeMap<u32, Vec<_>> = BTreeMap::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        let parent = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1)?.parse().ok());
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        found.entry(parent.unwrap_or(0)).or_default().push((pid, line));
    }
    found
}

/// The executors of a job.
fn executors(pid: u32) -> Vec<u32> {
    let (children, mut found, mut open) = (children(), Vec::new(), vec![pid]);
    while let Some(parent) = open.pop() {
        for (child, line) in children.get(&parent).into_iter().flatten() {
            if line.contains("CoarseGrainedExecutorBackend") {
                found.push(*child);
            }
            open.push(*child);
        }
    }
    found
}

struct Spark<'a> {
    python: &'a str,
    place: &'a Place,
}

impl Spark<'_> {
    /// What a job says, and how many of its executors were killed: one as soon as `is_busy`.
    fn job(&self, arguments: &[&str], is_busy: impl Fn() -> bool + Sync) -> (Vec<Value>, usize) {
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/spark/fleet.py");
        let child = Command::new(self.python)
            .arg(program)
            .args(["--server", env!("CARGO_BIN_EXE_vmscope-server"), "--store"])
            .arg(self.place.store())
            .args(arguments)
            .env("PYSPARK_PYTHON", self.python)
            .env("PYSPARK_SUBMIT_ARGS", "--master local-cluster[2,1,1024] pyspark-shell")
            .stdout(Stdio::piped())
            .stderr(fs::File::create(self.place.dir.path().join("spark.log")).unwrap())
            .spawn()
            .unwrap();
        let (pid, is_over) = (child.id(), AtomicBool::new(false));
        let (output, kills) = std::thread::scope(|scope| {
            let killer = scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let executor = executors(pid).pop().filter(|_| is_busy());
                    if let Some(executor) = executor {
                        let killed =
                            Command::new("kill").args(["-9", &executor.to_string()]).status();
                        return usize::from(killed.unwrap().success());
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
                0
            });
            let output = child.wait_with_output().unwrap();
            is_over.store(true, Ordering::Relaxed);
            (output, killer.join().unwrap())
        });
        let said = String::from_utf8(output.stdout).unwrap();
        let log = fs::read_to_string(self.place.dir.path().join("spark.log")).unwrap();
        assert!(output.status.success(), "{said} {}", &log[log.len().saturating_sub(4000)..]);
        (said.lines().map(|line| serde_json::from_str(line).unwrap()).collect(), kills)
    }
}

#[test]
fn answers_are_those_of_the_server_whatever_is_killed() {
    let Ok(python) = std::env::var("VMSCOPE_SPARK_PYTHON") else {
        eprintln!(
            "skipped: VMSCOPE_SPARK_PYTHON names no Python with PySpark (make spark makes one)"
        );
        return;
    };
    let place = Place::new();
    let expected = {
        let server = place.start("");
        let (host, reader) = (server.enroll("kvm1"), server.token("read"));
        for number in 0..WINDOWS {
            assert_eq!(server.put(&window("kvm1", 100 + number), &host).status, 201);
        }
        place.wait_for_results(usize::try_from(WINDOWS).unwrap());
        server.ask("POST", "/v1/sql", &reader, Some(&json!({ "sql": SQL }))).json()["rows"].clone()
    };
    let jobs = std::env::var("VMSCOPE_SPARK_JOBS").map_or(JOBS, |jobs| jobs.parse().unwrap());
    let spark = Spark { python: &python, place: &place };
    let mut all_kills = 0;
    for _ in 0..jobs {
        fs::remove_dir_all(place.store().join("results")).unwrap();
        let is_busy = || !place.objects("results/v1/hosts/").is_empty();
        let (done, kills) = spark.job(&["analyze"], is_busy);
        all_kills += kills;
        let sum = |what: &str| done[0][what].as_u64().unwrap_or(0);
        assert_eq!(sum("analysed") + sum("known"), WINDOWS, "{done:?}");
        assert_eq!(place.objects("results/v1/hosts/").len(), usize::try_from(WINDOWS).unwrap());
        let (rows, kills) = spark.job(&["sql", SQL], || true);
        all_kills += kills;
        let row = |row: &Value| {
            let columns = ["host", "vm", "state", "ns", "n", "first"];
            columns.map(|column| row[column].clone())
        };
        assert_eq!(json!(rows.iter().map(row).collect::<Vec<_>>()), expected);
    }
    let range = ["from=2020-01-01T00:00:00Z", "to=2100-01-01T00:00:00Z"];
    let (rows, _) = spark.job(&[&["query", "hosts-by-steal"], &range[..]].concat(), || false);
    assert_eq!((rows.len(), rows[0]["host"].as_str()), (1, Some("kvm1")));
    // Both sides of a comparison are read.
    let vm = expected.as_array().unwrap().iter().find(|row| row[2] == "guest_user").unwrap();
    let vm = format!("vm={}", vm[1].as_str().unwrap());
    let other = range.map(|end| format!("other_{end}"));
    let nothing = ["from=2019-01-01T00:00:00Z", "to=2019-02-01T00:00:00Z"];
    let words = ["query", "compare", &vm, nothing[0], nothing[1], &other[0], &other[1]];
    let (rows, _) = spark.job(&words, || false);
    assert!(rows.iter().any(|row| 0.0 < row["percent_b"].as_f64().unwrap_or(0.0)), "{rows:?}");
    eprintln!("{jobs} times, {all_kills} executors killed");
    assert!(jobs <= all_kills);
}
