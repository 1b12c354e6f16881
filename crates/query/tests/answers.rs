//! Answers over real result tables, by the real engine.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use analysis::report::Gap;
use api::http::{Answer, VmTimes};
use arrow::array::RecordBatch;
use chrono::{DateTime, TimeDelta};
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use model::{
    CpuTimeRow, HealthRow, HostRow, ResultCode, ResultRow, ResultThief, Results, ThiefKind,
    VcpuTimeRow, VmLabels, VmRow, WindowKey,
};
use object_store::local::LocalFileSystem;
use query::packs::{Pack, Packs};
use query::{Engine, Inputs, Limits, QueryError, READY, SLICE_S, Scope};
use serde_json::{Value, json};

const LIMITS: Limits =
    Limits { time: Duration::from_secs(60), memory_bytes: 256 << 20, rows: 1000, concurrent: 2 };
/// 2026-01-31 00:00 UTC.
const START_US: i64 = 1_769_817_600_000_000;
const START_DAY: &str = "2026-01-31";
const SLICE_US: i64 = 10_000_000;
const NS: u64 = 1_000_000_000;

/// A window's results: six slices of one VM, of which each function has so much in each.
fn window(host: &str, number: u64, functions: &[(&str, &str, u64)]) -> Results {
    let boot = "0".repeat(32);
    let key = Arc::new(WindowKey { host: host.to_owned(), boot, window_ns: number });
    let row = |slice: i64, (state, function, ns): &(&str, &str, u64)| {
        let is_code = state.starts_with("guest");
        let name = |is_so: bool| is_so.then(|| (*function).to_owned());
        ResultRow {
            window: Arc::clone(&key),
            slice_unix_us: START_US + (number.cast_signed() * 6 + slice) * SLICE_US,
            row: VcpuTimeRow {
                vm: "vm1".to_owned(),
                vcpu: 0,
                state: (*state).to_owned(),
                code: ResultCode { function: name(is_code), ..ResultCode::default() },
                stack: None,
                thief: name(*state == "steal_outside"),
                thief_vm: (*state == "steal_outside").then(|| "vm2".to_owned()),
                thief_is: None,
                exit_reason: None,
                ns: *ns,
                corrected_ns: if is_code { *ns } else { 0 },
                samples: 1,
            },
        }
    };
    let rows = (0..6).flat_map(|slice| functions.iter().map(move |f| (slice, f)));
    Results { vcpu_time: rows.map(|(slice, f)| row(slice, f)).collect(), ..Results::default() }
}

/// Stores it as the server does.
fn store(root: &Path, host: &str, number: u64, results: &Results) {
    let dir = tempfile::tempdir().unwrap();
    recording::results::write(dir.path(), results).unwrap();
    for table in recording::results::SCHEMAS {
        let name = table.file.trim_end_matches(".parquet");
        let folder = root.join(format!("results/v1/{name}/day=2026-01-31/host={host}"));
        fs::create_dir_all(&folder).unwrap();
        let file = format!("{}-{number:020}.parquet", "0".repeat(32));
        fs::copy(dir.path().join(table.file), folder.join(file)).unwrap();
    }
}

struct Fleet {
    root: tempfile::TempDir,
    engine: Engine,
}

impl Fleet {
    /// Two hosts with two windows each.
    fn new(limits: Limits) -> Self {
        let root = tempfile::tempdir().unwrap();
        for number in 0..2 {
            let one =
                [("guest_user", "fib", 2_000_000_000), ("steal_outside", "qemu", 500_000_000)];
            let other = [("guest_user", "fib", 1_000_000_000), ("halt", "", 9_000_000_000)];
            store(root.path(), "kvm1", number, &window("kvm1", number, &one));
            store(root.path(), "kvm2", number, &window("kvm2", number, &other));
        }
        let objects = Arc::new(LocalFileSystem::new_with_prefix(root.path()).unwrap());
        let engine = Engine::here(objects, limits).unwrap();
        Self { root, engine }
    }

    async fn sql(&self, sql: &str) -> Result<Answer, QueryError> {
        self.engine.sql("me", sql, &Scope::default()).await?.parse()
    }

    async fn rows(&self, sql: &str) -> Value {
        let answer = self.sql(sql).await.unwrap();
        assert_eq!(answer.partial, [""; 0]);
        json!(answer.rows)
    }

    async fn ready(&self, name: &str, more: &[(&str, &str)]) -> Value {
        let given = [("from", "2026-01-31T00:00:00Z"), ("to", "2026-01-31T01:00:00Z")];
        let all = given.iter().chain(more).map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        let answer = self.engine.ready("me", name, &all.collect()).await.unwrap().parse().unwrap();
        assert_eq!(answer.partial, [""; 0]);
        json!(answer.rows)
    }
}

#[tokio::test]
async fn sums_are_right_and_types_are_kept() {
    let fleet = Fleet::new(LIMITS);
    let sums = "SELECT host, sum(ns) FROM vcpu_time GROUP BY host ORDER BY host";
    let expected = json!([["kvm1", 30_000_000_000_u64], ["kvm2", 120_000_000_000_u64]]);
    assert_eq!(fleet.rows(sums).await, expected);
    let slices = "SELECT count(DISTINCT slice), min(slice), max(window_ns) FROM vcpu_time";
    assert_eq!(fleet.rows(slices).await, json!([[12, "2026-01-31T00:00:00Z", 1]]));
    let nothing = "SELECT vm FROM vms";
    assert_eq!(fleet.rows(nothing).await, json!([]));
    let answer = fleet.sql("SELECT host, ns FROM vcpu_time LIMIT 1").await.unwrap();
    assert_eq!((answer.columns[1].name.as_str(), answer.windows), ("ns", 4));
}

/// Writes a file again without its column of build ids and later ones.
fn without_build_ids(path: &Path) {
    let reader = ParquetRecordBatchReaderBuilder::try_new(fs::File::open(path).unwrap()).unwrap();
    let n = reader.schema().index_of("build_id").unwrap();
    let all: Vec<RecordBatch> = reader.build().unwrap().map(Result::unwrap).collect();
    let fewer = |batch: &RecordBatch| batch.project(&(0..n).collect::<Vec<_>>()).unwrap();
    let schema = fewer(&all[0]).schema();
    let mut writer = ArrowWriter::try_new(fs::File::create(path).unwrap(), schema, None).unwrap();
    all.iter().for_each(|batch| writer.write(&fewer(batch)).unwrap());
    writer.close().unwrap();
}

#[tokio::test]
async fn results_from_before_a_column_was_added_have_nothing_in_it() {
    let root = tempfile::tempdir().unwrap();
    for number in 0..2 {
        let mut results = window("kvm1", number, &[("guest_user", "fib", NS)]);
        results.vcpu_time.iter_mut().for_each(|row| row.row.code.build_id = Some("0a1b".into()));
        store(root.path(), "kvm1", number, &results);
    }
    let folder = root.path().join("results/v1/vcpu_time/day=2026-01-31/host=kvm1");
    let first = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).min().unwrap();
    without_build_ids(&first);
    let objects = Arc::new(LocalFileSystem::new_with_prefix(root.path()).unwrap());
    let fleet = Fleet { engine: Engine::here(objects, LIMITS).unwrap(), root };
    let sums = "SELECT window_ns, build_id, sum(ns) FROM vcpu_time GROUP BY 1, 2 ORDER BY 1";
    assert_eq!(fleet.rows(sums).await, json!([[0, null, 6 * NS], [1, "0a1b", 6 * NS]]));
}

#[tokio::test]
async fn ready_made_queries_find_what_happened() {
    let fleet = Fleet::new(LIMITS);
    let on = |host| [("vm", "vm1"), ("host", host)];
    assert_eq!(
        fleet.ready("top-functions", &on("kvm1")).await,
        json!([[null, "fib", null, 24 * NS, 24 * NS, 12]])
    );
    assert_eq!(
        fleet.ready("top-functions", &[("vm", "vm1")]).await,
        json!([[null, "fib", null, 36 * NS, 36 * NS, 24]])
    );
    assert_eq!(fleet.ready("thieves", &on("kvm1")).await, json!([["qemu", "vm2", 6 * NS]]));
    assert_eq!(fleet.ready("thieves", &on("kvm2")).await, json!([]));
    assert_eq!(
        fleet.ready("hosts-by-steal", &[]).await,
        json!([["kvm1", 30 * NS, 6 * NS, 0, 20.0], ["kvm2", 120 * NS, 0, 0, 0.0]])
    );
    assert_eq!(fleet.ready("noisy-neighbours", &[]).await, json!([["kvm1", "vm2", 1, 6 * NS]]));
    let over_time = [("vm", "vm1"), ("function", "fib"), ("host", "kvm2")];
    let over_time = fleet.ready("function-over-time", &over_time).await;
    assert_eq!(over_time.as_array().unwrap().len(), 12);
    assert_eq!(over_time[1], json!(["2026-01-31T00:00:10Z", NS, 1]));
    let both = [("vm", "vm1"), ("host", "kvm1"), ("other_host", "kvm2")];
    assert_eq!(fleet.ready("compare", &both).await, json!([["fib", null, 80.0, 10.0]]));
    // A range holds the slices that begin in it.
    let minute = [("vm", "vm1"), ("host", "kvm1"), ("to", "2026-01-31T00:01:00Z")];
    assert_eq!(fleet.ready("top-functions", &minute).await[0][3], json!(12 * NS));
    // A text is a text, whatever is in it.
    let odd = [("vm", "x' OR '1'='1"), ("host", "")];
    assert_eq!(fleet.ready("top-functions", &odd).await, json!([]));
    assert!(matches!(
        fleet.engine.ready("me", "other", &BTreeMap::new()).await,
        Err(QueryError::NoSuchQuery(_))
    ));
    assert_eq!(READY.len(), 7);
}

/// A window with every kind of line, of which a minute after midnight is in the next day.
fn metered() -> Results {
    let states = [
        ("guest_user", "", 2 * NS + 1),
        ("not_sampled", "", 3),
        ("steal_outside", "", NS / 2 + 7),
        ("steal_vmm_waiting", "", 11),
        ("throttled", "", 13),
        ("halt", "", NS),
        ("unknown", "", 17),
    ];
    let mut results = window("kvm1", 0, &states);
    for (n, row) in results.vcpu_time.iter_mut().enumerate() {
        let (slice, row) = (n / states.len(), &mut row.row);
        row.code.process = ["web", "db", "web", "", "db", "web"]
            .get(slice)
            .and_then(|name| (!name.is_empty()).then(|| (*name).to_owned()));
        if row.state == "not_sampled" {
            row.corrected_ns = row.ns;
        }
        if row.state == "steal_outside" {
            let kinds =
                [ThiefKind::Process, ThiefKind::KernelThread, ThiefKind::Idle, ThiefKind::Vcpu];
            let kind = kinds[slice % kinds.len()];
            row.thief_vm = (kind == ThiefKind::Vcpu).then(|| "vm2".to_owned());
            row.thief_is = Some(ResultThief { kind, name: Some("x".to_owned()), pid: None });
        }
    }
    let mut late = results.vcpu_time[0].clone();
    late.slice_unix_us = START_US + 86_460_000_000;
    results.vcpu_time.push(late);
    let labels = VmLabels { project: Some("shop".to_owned()), ..VmLabels::default() };
    results.vms = vec![in_minute("kvm1", 0, VmRow { labels, ..vm_row("vm1", [60, 0, 0]) })];
    let cpu = |cpu| CpuTimeRow {
        cpu,
        level: "idle".to_owned(),
        vm: None,
        code: ResultCode::default(),
        stack: None,
        ns: 60 * NS,
        samples: 1,
    };
    results.cpu_time = [0, 1].map(|n| in_minute("kvm1", 0, cpu(n))).into();
    results
}

/// Lines add up to the vCPUs' time, and are what `vmscope meter` prints.
#[tokio::test]
async fn metering_adds_up() {
    let (results, root) = (metered(), tempfile::tempdir().unwrap());
    store(root.path(), "kvm1", 0, &results);
    let objects = Arc::new(LocalFileSystem::new_with_prefix(root.path()).unwrap());
    let fleet = Fleet { engine: Engine::here(objects, LIMITS).unwrap(), root };
    let found = fleet.ready("metering", &[("to", "2026-02-01T01:00:00Z")]).await;
    let gap = Gap { host: "kvm1".to_owned(), ns: (25 * 3600 - 60) * NS };
    let report = analysis::report::meter(std::slice::from_ref(&results), &[gap], None);
    let line =
        |line: &Value| -> Vec<Value> { line.as_object().unwrap().values().cloned().collect() };
    let mut expected: Vec<_> = report.json["lines"].as_array().unwrap().iter().map(line).collect();
    // A recording's labels are those of all its time.
    expected
        .iter_mut()
        .filter(|line| line[0] == "2026-02-01")
        .for_each(|line| line[3] = json!(null));
    let found: Vec<Vec<Value>> = serde_json::from_value(found).unwrap();
    let by_day = |mut line: Vec<Value>| {
        line[0] = line[0].as_str().map_or(json!(null), |day| json!(day[..10]));
        line
    };
    let found: Vec<_> = found.into_iter().map(by_day).collect();
    assert_eq!(found, expected);
    assert_eq!(found.len(), 7, "idle, two processes, unattributed, unknown; a day later; a gap");
    let sum: u64 = found
        .iter()
        .filter(|line| line[5] != "gap")
        .map(|line| line[7].as_u64().unwrap() + line[16].as_u64().unwrap())
        .sum();
    assert_eq!(sum, results.vcpu_time.iter().map(|row| row.row.ns).sum::<u64>());
}

#[tokio::test]
async fn only_a_select_is_answered() {
    let fleet = Fleet::new(LIMITS);
    let secret = fleet.root.path().join("secret.csv");
    fs::write(&secret, "a\n1\n").unwrap();
    let before = fs::read_dir(fleet.root.path()).unwrap().count();
    for sql in [
        "",
        "SELEC",
        "SELECT 1; SELECT 2",
        "CREATE TABLE t AS SELECT 1",
        "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION '/etc/passwd'",
        "DROP TABLE vms",
        "INSERT INTO vms SELECT * FROM vms",
        "DELETE FROM vms",
        "COPY (SELECT 1) TO 'out.csv'",
        "SET datafusion.execution.batch_size = 1",
        "SHOW TABLES",
        "PREPARE p AS SELECT 1",
        &format!("SELECT * FROM '{}'", secret.display()),
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM information_schema.tables",
        "SELECT nothing FROM vms",
        r"SELECT count(*) FROM vcpu_time WHERE regexp_like(host, '(\w{200}){200}')",
        "SELECT \"results/v1/vms/x.parquet\" FROM vms",
        &format!("SELECT {}1{}", "(".repeat(5000), ")".repeat(5000)),
        &format!("SELECT {}1", "-".repeat(3)),
        &format!("SELECT 1{}", " + 1".repeat(20_000)),
    ] {
        let error = fleet.sql(sql).await;
        assert!(matches!(error, Err(QueryError::Invalid(_))), "{sql:.60}: {error:?}");
    }
    let joined = "SELECT host || ':' || vm || ':' || concat(state, '/', function) FROM vcpu_time \
                  WHERE host = 'kvm1' AND function = 'fib' LIMIT 1";
    assert_eq!(fleet.rows(joined).await, json!([["kvm1:vm1:guest_user/fib"]]));
    // As the page asks.
    let cells = format!(
        "SELECT thief, string_agg(concat_ws(':', bucket, ns, ns, samples), ' ') AS cells FROM \
         (SELECT coalesce('VM ' || thief_vm, thief) AS thief, 1 AS bucket, sum(ns) AS ns, sum(samples) AS samples \
         FROM vcpu_time WHERE function = '{}' GROUP BY 1, 2) GROUP BY thief",
        "f".repeat(3_000)
    );
    assert_eq!(fleet.rows(&cells).await, json!([]));
    let with = "SELECT count(*) FROM vcpu_time WHERE function LIKE '%a with b%'";
    assert_eq!(fleet.rows(with).await, json!([[0]]));
    let cast = "SELECT arrow_cast(1, 'UInt8') AS one";
    assert_eq!(fleet.rows(cast).await, json!([[1]]));
    let named = "WITH a AS (SELECT ns FROM vcpu_time), b AS (SELECT a.ns FROM a JOIN a AS c ON a.ns = c.ns) \
                 SELECT max(ns) FROM b";
    assert_eq!(fleet.rows(named).await, json!([[9 * NS]]));
    assert_eq!(fs::read_dir(fleet.root.path()).unwrap().count(), before);
    assert_eq!(fleet.rows("SELECT count(*) FROM vcpu_time").await, json!([[48]]));
}

#[tokio::test]
async fn limits_hold_and_are_reported() {
    let limits = Limits { rows: 10, ..LIMITS };
    let fleet = Fleet::new(limits);
    let answer = fleet.sql("SELECT * FROM vcpu_time").await.unwrap();
    assert_eq!(
        (answer.rows.len(), answer.partial),
        (10, vec!["there are more than 10 rows".to_owned()])
    );

    let long = fleet
        .sql("SELECT arrow_cast(repeat('a', 20000000), 'Utf8') FROM generate_series(1, 3)")
        .await;
    let long = long.unwrap();
    assert_eq!(
        (long.rows.len(), long.partial),
        (1, vec!["the rows take more than 32 MiB".to_owned()])
    );
}

/// What is missing is reported, and a window counts in all tables or in none.
#[tokio::test]
async fn windows_without_results_are_reported() {
    let fleet = Fleet::new(LIMITS);
    let stem = |number| format!("day=2026-01-31/host=kvm1/{}-{number:020}", "0".repeat(32));
    let raw = fleet.root.path().join(format!("raw/v1/{}.window", stem(7)));
    fs::create_dir_all(raw.parent().unwrap()).unwrap();
    fs::write(raw, "").unwrap();
    let hosts = fleet.root.path().join(format!("results/v1/hosts/{}.parquet", stem(1)));
    fs::remove_file(hosts).unwrap();
    let answer = fleet.sql("SELECT sum(ns) FROM vcpu_time WHERE host = 'kvm1'").await.unwrap();
    assert_eq!(json!(answer.rows), json!([[15_000_000_000_u64]]));
    assert_eq!(answer.partial, ["1 windows have no results yet"]);
    assert_eq!(answer.windows, 3);
    for (number, root, end) in [(8, "raw", "window"), (8, "failed", "json")] {
        let object = fleet.root.path().join(format!("{root}/v1/{}.{end}", stem(number)));
        fs::create_dir_all(object.parent().unwrap()).unwrap();
        fs::write(object, "").unwrap();
    }
    let objects = Arc::new(LocalFileSystem::new_with_prefix(fleet.root.path()).unwrap());
    let other = Engine::here(objects, LIMITS).unwrap();
    let fleet = Fleet { engine: other, root: fleet.root };
    let answer = fleet.sql("SELECT sum(ns) FROM vcpu_time").await.unwrap();
    assert_eq!(answer.partial, ["1 windows have no results yet", "1 windows can't be analysed"]);
}

/// The windows of damaged and missing objects are left out, which is reported.
#[tokio::test]
async fn a_damaged_object_is_left_out() {
    let fleet = Fleet::new(LIMITS);
    let folder = fleet.root.path().join("results/v1/vcpu_time/day=2026-01-31/host=kvm1");
    let file = fs::read_dir(folder).unwrap().next().unwrap().unwrap().path();
    let whole = fs::read(&file).unwrap();
    let mut in_a_page = whole.clone();
    in_a_page[4..40].fill(0xff);
    for bytes in [&whole[..whole.len() / 2], b"PAR1", &[0; 200], &in_a_page] {
        fs::write(&file, bytes).unwrap();
        let sql = "SELECT sum(ns) FROM vcpu_time WHERE length(host) > 0";
        let answer = fleet.sql(sql).await.unwrap();
        assert_eq!(json!(answer.rows), json!([[135 * NS]]));
        assert_eq!(answer.partial, ["results of 1 windows can't be read"]);
        assert_eq!(answer.windows, 3);
    }
}

/// A row of a window that begins in this minute after `START_US`.
fn in_minute<R>(host: &str, minute: u64, row: R) -> ResultRow<R> {
    let boot = "0".repeat(32);
    let window = Arc::new(WindowKey { host: host.to_owned(), boot, window_ns: minute });
    let slice_unix_us = START_US + minute.cast_signed() * 60_000_000;
    ResultRow { window, slice_unix_us, row }
}

fn vm_row(vm: &str, [all, outside, vmm]: [u64; 3]) -> VmRow {
    VmRow {
        vm: vm.to_owned(),
        pid: 1,
        vcpus: 1,
        vcpu_ns: all * NS,
        steal_outside_ns: Some(outside * NS),
        steal_vmm_ns: Some(vmm * NS),
        throttled_ns: Some(0),
        map_via: None,
        no_map_reason: None,
        labels: model::VmLabels::default(),
    }
}

/// A host of two VMs, one of which noted something.
fn sums_of(minute: u64) -> Results {
    let host = HostRow {
        length_ns: 60 * NS,
        hostname: "kvm3".to_owned(),
        kernel: "6.1.0".to_owned(),
        vmscope_version: "0.2.0".to_owned(),
        period_ns: 1_000_000,
        cpus: 2,
        vms: 2,
        samples: 1000,
        samples_lost: 2,
        samples_missed: 3,
    };
    let note =
        |what: &str, count| HealthRow { subject: "web".to_owned(), what: what.to_owned(), count };
    Results {
        vms: [vm_row("web", [60, 30, 0]), vm_row("db", [60, 0, 6])]
            .map(|row| in_minute("kvm3", minute, row))
            .into(),
        hosts: vec![in_minute("kvm3", minute, host)],
        health: [note("samples_lost", Some(2)), note("did not answer", None)]
            .map(|row| in_minute("kvm3", minute, row))
            .into(),
        ..Results::default()
    }
}

#[tokio::test]
async fn windows_count_once_in_the_sums_of_the_fleet() {
    let fleet = Fleet::new(LIMITS);
    let now = DateTime::from_timestamp_micros(START_US + 3_600_000_000).unwrap();
    let ask = |engine: &Engine, minutes: i64| {
        engine.fleet(now - TimeDelta::minutes(minutes), now, 60, now)
    };
    assert_eq!(ask(&fleet.engine, 60).partial, ["results are still being read"]);
    for minute in [10, 11, 31] {
        store(fleet.root.path(), "kvm3", minute, &sums_of(minute));
    }
    let check = async |engine: &Engine, expected: &str, lacks: &[&str]| {
        engine.sum_up(now).await.unwrap();
        let answer = ask(engine, 60);
        assert_eq!(
            (answer.partial.iter().map(String::as_str).collect::<Vec<_>>(), answer.reading),
            (lacks.to_vec(), 0)
        );
        let cells = answer.hosts.iter().flat_map(|host| host.stolen.iter().enumerate());
        let cells = cells.filter_map(|(at, share)| Some(format!("{at}:{}", (*share)?)));
        let vm = |vm: &VmTimes| {
            format!("{} {}/{}", vm.vm, vm.outside_ns / NS + vm.vmm_ns / NS, vm.ns / NS)
        };
        let text: Vec<_> = cells.chain(answer.vms.iter().map(vm)).collect();
        assert_eq!(text.join(" "), expected);
        let health = engine.health(now - TimeDelta::minutes(60), now, now);
        assert_eq!((health.partial.len(), health.reading), (lacks.len(), 0));
        let [host] = &health.hosts[..] else { panic!("{health:?}") };
        let of_host = (host.host.as_str(), host.kernel.as_str(), host.windows, host.cpus);
        assert_eq!(of_host, ("kvm3", "6.1.0", 3, 2));
        let sums = [host.covered_ns / NS, host.samples, host.samples_lost, host.samples_missed];
        assert_eq!(sums, [180, 3000, 6, 9]);
        assert_eq!(host.end_unix_ms - host.first_unix_ms, 22 * 60_000);
        let notes = health.notes.iter().map(|n| (n.what.as_str(), n.count, n.windows));
        let expected = [("did not answer", None, 3), ("samples_lost", Some(6), 3)];
        assert!(notes.eq(expected), "{health:?}");
    };
    let expected = "10:0.3 11:0.3 31:0.3 web 90/180 db 18/180";
    check(&fleet.engine, expected, &[]).await;
    // Before what is kept, and with its end before its begin, a range has nothing.
    let day = |days: i64| now - TimeDelta::days(days);
    for (from, to) in [(day(20), day(10)), (day(1), day(2))] {
        let (lost, health) =
            (fleet.engine.fleet(from, to, 60, now), fleet.engine.health(from, to, now));
        assert_eq!((lost.hosts.len(), health.hosts.len(), health.notes.len()), (0, 0, 0));
    }
    check(&fleet.engine, expected, &[]).await;
    // The same windows in a pack: for who knows them already, and for who starts now.
    let folder = "day=2026-01-31/host=kvm3";
    let names: Vec<_> = [10, 11].map(|minute| format!("{}-{minute:020}", "0".repeat(32))).into();
    let mut pack = Pack::from_windows(SLICE_S, names.iter(), &[]);
    pack.name = "pack-00000001-0123456789abcdef".to_owned();
    for table in recording::results::SCHEMAS {
        let name = table.file.trim_end_matches(".parquet");
        let path =
            fleet.root.path().join(format!("results/v1/{name}/{folder}/{}.parquet", pack.name));
        let day = START_DAY.parse().unwrap();
        let inputs = Inputs { day, host: "kvm3", windows: &names, packs: &[], slice_s: SLICE_S };
        fleet.engine.rewrite(name, inputs, fs::File::create(&path).unwrap()).await.unwrap();
        pack.bytes.insert(name.to_owned(), path.metadata().unwrap().len());
    }
    let lists = fleet.root.path().join(format!("packs/v1/{folder}"));
    fs::create_dir_all(&lists).unwrap();
    let list = Packs { packs: vec![Arc::new(pack)] };
    fs::write(lists.join("00000001.json"), list.content()).unwrap();
    tokio::time::sleep(Duration::from_secs(6)).await;
    check(&fleet.engine, expected, &[]).await;
    let objects = Arc::new(LocalFileSystem::new_with_prefix(fleet.root.path()).unwrap());
    let other = Engine::here(objects, LIMITS).unwrap();
    check(&other, expected, &[]).await;
    // Results that can't be read are left out, and the answer says so.
    let damaged = format!("results/v1/vms/{folder}/{}-{:020}.parquet", "0".repeat(32), 40);
    store(fleet.root.path(), "kvm3", 40, &Results::default());
    fs::write(fleet.root.path().join(damaged), b"PAR1 no").unwrap();
    tokio::time::sleep(Duration::from_secs(6)).await;
    check(&other, expected, &["results of 1 windows can't be read"]).await;
}

/// The first of a host's many VMs count, and other hosts' all.
#[tokio::test]
async fn a_host_with_too_many_vms_takes_no_place_of_others() {
    let fleet = Fleet::new(LIMITS);
    let now = DateTime::from_timestamp_micros(START_US + 3_600_000_000).unwrap();
    let many = |number: u32| in_minute("a", 10, vm_row(&format!("{number:060}"), [60, 60, 0]));
    let vms = (0..100_000).map(many).collect();
    store(fleet.root.path(), "a", 10, &Results { vms, ..sums_of(10) });
    store(
        fleet.root.path(),
        "b",
        11,
        &Results { vms: vec![in_minute("b", 11, vm_row("db", [60, 59, 0]))], ..Results::default() },
    );
    fleet.engine.sum_up(now).await.unwrap();
    let answer = fleet.engine.fleet(now - TimeDelta::minutes(60), now, 60, now);
    let hosts: Vec<_> = answer.hosts.iter().map(|host| host.host.as_str()).collect();
    assert_eq!(hosts, ["a", "b"]);
    // Those of one host have all places that others don't need.
    let of_others = answer.vms.iter().filter(|vm| vm.host == "b").map(|vm| vm.vm.as_str());
    assert_eq!((answer.vms.len(), of_others.collect()), (200, vec!["db"]));
    let [reason] = &answer.partial[..] else { panic!("{:?}", answer.partial) };
    assert!(reason.starts_with("host a has more than 1000 VMs"), "{reason}");
}
