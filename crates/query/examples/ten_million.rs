//! How long ready-made queries take over many result rows, and whether DuckDB and pandas come to the same sums:
//! `make ten-million [ROWS=10000000]`. Without `VMSCOPE_SUMS_PYTHON`, a Python with both, only how long.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::cast_precision_loss)]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::{Duration, Instant};

use model::{ResultCode, ResultRow, Results, VcpuTimeRow, WindowKey};
use object_store::local::LocalFileSystem;
use query::{Engine, Limits, READY, Scope};
use serde_json::Value;

/// 2026-01-31 00:00 UTC.
const START_US: i64 = 1_769_817_600_000_000;
const HOSTS: u64 = 20;
/// Of a window.
const ROWS: u64 = 10_000;
const SLICE_US: u64 = 10_000_000;
const TIMES: usize = 20;

/// A window of 10 VMs in 6 slices, like those of busy hosts: many functions, few of them often.
fn window(host: &str, number: u64) -> Results {
    let key = WindowKey { host: host.to_owned(), boot: "0".repeat(32), window_ns: number };
    let key = Arc::new(key);
    let row = |i: u64| {
        let is_stolen = i.is_multiple_of(9);
        let function = (i * i * 31) % 400;
        let slice = number * 6 + i % 6;
        ResultRow {
            window: Arc::clone(&key),
            slice_unix_us: START_US + (slice * SLICE_US).cast_signed(),
            row: VcpuTimeRow {
                vm: format!("vm{}", i / 6 % 10),
                vcpu: u32::from(i % 60 < 30),
                state: if is_stolen { "steal_outside" } else { "guest_user" }.to_owned(),
                code: ResultCode {
                    process: (!is_stolen).then(|| format!("process{}", function % 40)),
                    function: (!is_stolen).then(|| format!("function_of_some_length_{function}")),
                    module: (!is_stolen).then(|| format!("/usr/lib/module{}.so", function % 25)),
                    ..ResultCode::default()
                },
                stack: None,
                thief: is_stolen.then(|| format!("thief{}", i % 12)),
                thief_vm: is_stolen.then(|| format!("vm{}", i % 10)),
                thief_is: None,
                exit_reason: None,
                ns: 1_000_000 + i * 7919 % 1_000_000,
                corrected_ns: 0,
                samples: 1 + i % 3,
            },
        }
    };
    Results { vcpu_time: (0..ROWS).map(row).collect(), ..Results::default() }
}

fn store(root: &Path, n_windows: u64) {
    let scratch = tempfile::tempdir().unwrap();
    for number in 0..n_windows {
        let (host, place) = (format!("kvm{}", number % HOSTS), number / HOSTS);
        recording::results::write(scratch.path(), &window(&host, place)).unwrap();
        for table in ["vcpu_time", "hosts"] {
            let folder = root.join(format!("results/v1/{table}/day=2026-01-31/host={host}"));
            fs::create_dir_all(&folder).unwrap();
            let name = format!("{}-{place:020}.parquet", "0".repeat(32));
            fs::copy(scratch.path().join(format!("{table}.parquet")), folder.join(name)).unwrap();
        }
    }
}

async fn ask(engine: &Engine, sql: &str) -> Vec<Vec<Value>> {
    engine.sql("me", sql, &Scope::default()).await.unwrap().parse().unwrap().rows
}

/// The same sums by this engine, DuckDB and pandas, cell by cell.
async fn compare_sums(engine: &Engine, folder: &Path, python: &OsStr) {
    const SQL: &str = "SELECT vm, state, process, sum(ns), sum(samples), count(*) FROM vcpu_time
                       GROUP BY vm, state, process";
    let mut rows = ask(engine, SQL).await;
    rows.sort_by_key(|row| row.iter().map(python_text).collect::<Vec<_>>());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/interop/sums.py");
    let output = Command::new(python).arg(script).arg(folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let others: BTreeMap<String, Vec<Vec<Value>>> = serde_json::from_slice(&output.stdout).unwrap();
    for (name, theirs) in others {
        assert_eq!(rows, theirs, "{name}");
        println!("{name}: the same {} sums", theirs.len());
    }
}

/// By which the script orders rows.
fn python_text(cell: &Value) -> String {
    match cell {
        Value::Null => "None".to_owned(),
        Value::String(text) => text.clone(),
        number => number.to_string(),
    }
}

/// Processor time so far of this process, and of the one that answers.
fn cpu_s(engine: &Engine) -> f64 {
    let of = |process: &str| {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
        let fields = stat.rsplit(") ").next().unwrap().split(' ').skip(11).take(2);
        fields.map(|ticks| ticks.parse::<f64>().unwrap() / 100.0).sum::<f64>()
    };
    of("self") + engine.children().iter().map(|child| of(&child.to_string())).sum::<f64>()
}

fn main() -> ExitCode {
    if let Some(code) = query::serve_child() {
        return code;
    }
    tokio::runtime::Runtime::new().unwrap().block_on(measure());
    ExitCode::SUCCESS
}

/// The median, in ms.
fn median_ms(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64() * 1e3
}

/// What it costs that queries run in children: a start, and the way to a child that is ready and back.
async fn measure_children(root: &Path, limits: Limits) {
    let objects = || Arc::new(LocalFileSystem::new_with_prefix(root).unwrap());
    let mut starts = Vec::new();
    for _ in 0..TIMES {
        let engine = Engine::new(objects(), limits).unwrap();
        let began = Instant::now();
        engine.prepare().await.unwrap();
        starts.push(began.elapsed());
    }
    println!("start of a child: median {:.1} ms", median_ms(starts));
    let process = Engine::new(objects(), limits).unwrap();
    let thread = Engine::here(objects(), limits).unwrap();
    for sql in ["SELECT 1", "SELECT vm, state, sum(ns) FROM vcpu_time GROUP BY vm, state"] {
        let mut medians = Vec::new();
        for engine in [&process, &thread] {
            ask(engine, sql).await;
            let mut times = Vec::new();
            for _ in 0..5 * TIMES {
                let began = Instant::now();
                ask(engine, sql).await;
                times.push(began.elapsed());
            }
            medians.push(median_ms(times));
        }
        println!(
            "{sql}: median {:.2} ms, in a thread of this process {:.2} ms",
            medians[0], medians[1]
        );
    }
}

async fn measure() {
    let rows = std::env::args().nth(1).map_or(10_000_000, |rows| rows.parse().unwrap());
    let root = tempfile::tempdir().unwrap();
    store(root.path(), rows / ROWS);
    let objects = Arc::new(LocalFileSystem::new_with_prefix(root.path()).unwrap());
    let time = Duration::from_secs(300);
    let limits = Limits { time, memory_bytes: 1 << 30, rows: 10_000, concurrent: 4 };
    let engine = Engine::new(objects, limits).unwrap();
    let sum = ask(&engine, "SELECT count(*), sum(ns) FROM vcpu_time").await;
    println!("rows, sum of ns: {:?}", sum[0]);
    if let Some(python) = std::env::var_os("VMSCOPE_SUMS_PYTHON") {
        compare_sums(&engine, &root.path().join("results/v1/vcpu_time"), &python).await;
    }
    let given = [
        ("from", "2026-01-31T00:00:00Z"),
        ("to", "2026-02-01T00:00:00Z"),
        ("vm", "vm3"),
        ("function", "function_of_some_length_31"),
        ("other_vm", "vm4"),
    ];
    measure_children(root.path(), limits).await;
    for query in READY {
        let named = given.iter().filter(|(name, _)| query.parameters().contains(name));
        let named: BTreeMap<_, _> =
            named.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let (mut times, cpu_before) = (Vec::new(), cpu_s(&engine));
        for _ in 0..TIMES {
            let began = Instant::now();
            engine.ready("me", query.name, &named).await.unwrap();
            times.push(began.elapsed().as_secs_f64());
        }
        times.sort_by(f64::total_cmp);
        let (median, p95) = (times[TIMES / 2], times[TIMES * 95 / 100]);
        let cpu = (cpu_s(&engine) - cpu_before) / TIMES as f64;
        println!("{:20} median {median:.3} s, p95 {p95:.3} s, CPU {cpu:.3} s", query.name);
    }
}
