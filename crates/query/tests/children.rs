//! Queries that take what they can get, in processes that can be killed: what each costs, and what is left. A child is its
//! parent's program, so this one has a `main` of its own.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::http::Answer;
use model::{ResultCode, ResultRow, Results, VcpuTimeRow, WindowKey};
use object_store::local::LocalFileSystem;
use query::{Engine, Limits, QueryError, Scope};
use serde_json::json;

const LIMITS: Limits =
    Limits { time: Duration::from_secs(60), memory_bytes: 512 << 20, rows: 1000, concurrent: 2 };
/// A query that never ends.
const ENDLESS: &str = "SELECT sum(a.value + b.value) FROM generate_series(1, 1000000) a, \
                       generate_series(1, 1000000) b";

fn main() -> ExitCode {
    if let Some(code) = query::serve_child() {
        return code;
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let is_wanted = |name: &str| {
        let mut wanted = arguments.iter().filter(|argument| !argument.starts_with('-')).peekable();
        wanted.peek().is_none() || wanted.any(|part| name.contains(part.as_str()))
    };
    macro_rules! run {
        ($($test:ident)*) => {$(
            if is_wanted(stringify!($test)) {
                let runtime = tokio::runtime::Runtime::new().unwrap();
                runtime.block_on($test());
                println!("test {} ... ok", stringify!($test));
            }
        )*};
    }
    run! {
        nothing_is_left_to_a_child
        a_query_ends_with_its_time
        what_was_found_in_time_is_answered
        no_query_keeps_a_thread_or_memory
        a_panic_of_the_engine_is_reported_and_ends_its_child
        a_child_that_is_killed_costs_its_query
        those_who_wait_are_bounded_and_take_turns
        a_client_that_goes_away_leaves_nothing
    }
    ExitCode::SUCCESS
}

struct Fleet {
    _root: tempfile::TempDir,
    engine: Arc<Engine>,
}

impl Fleet {
    /// A window of 3,000 rows.
    fn new(limits: Limits) -> Self {
        let root = tempfile::tempdir().unwrap();
        store(root.path());
        let objects = Arc::new(LocalFileSystem::new_with_prefix(root.path()).unwrap());
        Self { _root: root, engine: Arc::new(Engine::new(objects, limits).unwrap()) }
    }

    async fn ask(&self, asker: &str, sql: &str) -> Result<Answer, QueryError> {
        self.engine.sql(asker, sql, &Scope::default()).await?.parse()
    }

    async fn sql(&self, sql: &str) -> Result<Answer, QueryError> {
        self.ask("me", sql).await
    }

    /// Whatever happened: the next query is answered, from the store.
    /// The children, once those that have answered have put away what they read.
    async fn ready(&self) -> Vec<u32> {
        while self.engine.children().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.engine.children()
    }

    async fn is_well(&self) {
        let answer = self.sql("SELECT count(*), 1 FROM vcpu_time").await.unwrap();
        assert_eq!(json!(answer.rows), json!([[3000, 1]]));
    }
}

fn store(root: &Path) {
    let key = WindowKey { host: "kvm1".to_owned(), boot: "0".repeat(32), window_ns: 0 };
    let key = Arc::new(key);
    let row = |i: u64| ResultRow {
        window: Arc::clone(&key),
        slice_unix_us: 1_769_817_600_000_000,
        row: VcpuTimeRow {
            vm: format!("vm{}", i % 7),
            vcpu: 0,
            state: "guest_user".to_owned(),
            code: ResultCode { function: Some(format!("f{}", i % 90)), ..ResultCode::default() },
            stack: None,
            thief: None,
            thief_vm: None,
            thief_is: None,
            exit_reason: None,
            ns: 1000 + i,
            corrected_ns: i,
            samples: 1,
        },
    };
    let results = Results { vcpu_time: (0..3000).map(row).collect(), ..Results::default() };
    let scratch = tempfile::tempdir().unwrap();
    recording::results::write(scratch.path(), &results).unwrap();
    for table in recording::results::SCHEMAS {
        let name = table.file.trim_end_matches(".parquet");
        let folder = root.join(format!("results/v1/{name}/day=2026-01-31/host=kvm1"));
        fs::create_dir_all(&folder).unwrap();
        let file = format!("{}-{:020}.parquet", "0".repeat(32), 0);
        fs::copy(scratch.path().join(table.file), folder.join(file)).unwrap();
    }
}

/// A field of a process's status.
fn field(process: &str, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The soft limit.
fn limit(child: u32, name: &str) -> u64 {
    let limits = fs::read_to_string(format!("/proc/{child}/limits")).unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// MiB that this process has.
fn resident_mib() -> u64 {
    field("self", "VmRSS").split(' ').next().unwrap().parse::<u64>().unwrap() >> 10
}

async fn nothing_is_left_to_a_child() {
    let fleet = Fleet::new(LIMITS);
    fleet.engine.prepare().await.unwrap();
    let [child] = fleet.engine.children()[..] else { panic!("one is ready") };
    let process = child.to_string();
    assert_eq!(field(&process, "Name"), "vmscope-query");
    assert_eq!(
        (field(&process, "Seccomp"), field(&process, "NoNewPrivs")),
        ("2".into(), "1".into())
    );
    assert_eq!(field(&process, "CapEff"), "0000000000000000");
    assert_eq!((limit(child, "Max file size"), limit(child, "Max processes")), (0, 0));
    let seconds = limit(child, "Max cpu time");
    assert!((120..=2 * 62 * 9).contains(&seconds), "{seconds}");
    // Its memory at the start, most of it stacks, and its half of the budget.
    let data = limit(child, "Max data size");
    assert!((256 << 20..2 << 30).contains(&data), "{data}");
    fleet.is_well().await;
    assert_eq!(fleet.ready().await, [child], "the same one answers");
    for sql in ["SELECT * FROM '/etc/passwd'", "COPY (SELECT 1) TO '/tmp/x'", "SHOW TABLES"] {
        let error = fleet.sql(sql).await;
        assert!(matches!(error, Err(QueryError::Invalid(_))), "{sql}: {error:?}");
        // A query before that would start another one.
        assert_eq!(fleet.ready().await, [child]);
    }
}

async fn a_query_ends_with_its_time() {
    let fleet = Fleet::new(Limits { time: Duration::from_millis(500), ..LIMITS });
    let late = fleet.sql(ENDLESS).await;
    assert!(matches!(late, Err(QueryError::Late(_))), "{late:?}");
    let fleet = Fleet::new(LIMITS);
    fleet.is_well().await;
}

async fn what_was_found_in_time_is_answered() {
    let fleet = Fleet::new(Limits { time: Duration::from_secs(3), ..LIMITS });
    // One row at once, and no other for a long time.
    let answer = fleet.sql(&format!("SELECT 7 UNION ALL ({ENDLESS})")).await.unwrap();
    assert_eq!(json!(answer.rows), json!([[7]]));
    assert_eq!(answer.partial, ["the query was stopped after 3 s"]);
    fleet.is_well().await;
}

/// Each of these kept a thread or memory of the server, or could.
async fn no_query_keeps_a_thread_or_memory() {
    let nested = |inner: &str, level: &str| {
        let inner = format!("SELECT {inner} AS x");
        (0..60).fold(inner, |inner, _| format!("SELECT {level} AS x FROM ({inner})"))
    };
    let doubled = (1..60).map(|n| format!("t{n} AS (SELECT a.x FROM t{0} a, t{0} b)", n - 1));
    let doubled: Vec<_> = doubled.collect();
    let columns: Vec<_> = (1..=12).map(|n| format!("ns % {n}")).collect();
    let odd = [
        "SELECT array_agg(a.ns) FROM vcpu_time a, vcpu_time b".to_owned(),
        "SELECT array_agg(a.ns) FROM vcpu_time a, vcpu_time b, vcpu_time c".to_owned(),
        format!("SELECT count(*) FROM vcpu_time GROUP BY CUBE({})", columns.join(", ")),
        r"SELECT count(*) FROM vcpu_time WHERE regexp_like(function, cast(ns AS varchar) || '\w{200}')"
            .to_owned(),
        "SELECT repeat('a', 2147483647)".to_owned(),
        "SELECT sum(length(lpad('a', 100000000))) FROM vcpu_time".to_owned(),
        "SELECT arrow_cast(NULL, 'FixedSizeBinary(2147483647)') FROM vcpu_time".to_owned(),
        "SELECT sum(ns) OVER (ORDER BY function) FROM vcpu_time".to_owned(),
        "SELECT levenshtein(repeat(function, 90000), repeat(vm, 90000)) FROM vcpu_time".to_owned(),
        "WITH RECURSIVE a AS (SELECT 1 n UNION ALL SELECT n + 1 FROM a) SELECT max(n) FROM a".to_owned(),
        "SELECT DISTINCT a.value, b.value FROM generate_series(1, 100000) a, generate_series(1, 100000) b"
            .to_owned(),
        nested("'abcdefgh'", "x || x"),
        nested("1", "struct(x, x)"),
        format!("WITH t0 AS (SELECT 1 AS x), {} SELECT x FROM t59", doubled.join(", ")),
        format!("SELECT 1{}", "+1".repeat(4_000)),
        format!("SELECT {}1{}", "(".repeat(4_000), ")".repeat(4_000)),
    ];
    let fleet = Fleet::new(Limits { time: Duration::from_secs(2), ..LIMITS });
    fleet.is_well().await;
    let before = resident_mib();
    for sql in &odd {
        let began = Instant::now();
        let answer = fleet.sql(sql).await;
        let said = answer.map(|answer| answer.rows.len()).map_err(|error| error.to_string());
        println!("  {:.2} s {said:.60?} {sql:.80}", began.elapsed().as_secs_f64());
        fleet.is_well().await;
    }
    let after = resident_mib();
    assert!(after < before + 64, "{before} MiB before, {after} after");
}

/// It is no fault of the store, and the query would panic again.
async fn a_panic_of_the_engine_is_reported_and_ends_its_child() {
    let fleet = Fleet::new(LIMITS);
    fleet.is_well().await;
    let before = fleet.ready().await;
    // 3 GB of text, of which 2 GiB fit into an array; with groups in a task of the engine's.
    let text =
        "SELECT count(DISTINCT regexp_replace(repeat('x', 1000000), 'a', 'b', 'g')) FROM vcpu_time";
    for sql in [text, &format!("{text} GROUP BY vm")] {
        let error = fleet.sql(sql).await.unwrap_err();
        let QueryError::Invalid(error) = error else { panic!("{sql}: {error}") };
        assert_eq!(error, "the query failed: the engine panicked");
        fleet.is_well().await;
    }
    assert_ne!(fleet.ready().await, before);
}

async fn a_child_that_is_killed_costs_its_query() {
    let fleet = Fleet::new(LIMITS);
    fleet.engine.prepare().await.unwrap();
    let child = fleet.engine.children()[0];
    let engine = Arc::clone(&fleet.engine);
    let requested = tokio::spawn(async move { engine.sql("me", ENDLESS, &Scope::default()).await });
    while fleet.engine.children().contains(&child) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let child = rustix::process::Pid::from_raw(i32::try_from(child).unwrap()).unwrap();
    rustix::process::kill_process(child, rustix::process::Signal::KILL).unwrap();
    let error = requested.await.unwrap().unwrap_err();
    assert!(matches!(error, QueryError::Ended(_)), "{error}");
    assert!(error.to_string().contains("SIGKILL"), "{error}");
    fleet.is_well().await;
}

async fn those_who_wait_are_bounded_and_take_turns() {
    let fleet =
        Arc::new(Fleet::new(Limits { time: Duration::from_secs(1), concurrent: 1, ..LIMITS }));
    // A query whose turn has come takes one of the children that are ready.
    fleet.engine.prepare().await.unwrap();
    let ready = fleet.engine.children();
    let of_one = |asker: &'static str, sql: &'static str| {
        let fleet = Arc::clone(&fleet);
        tokio::spawn(async move { fleet.ask(asker, sql).await })
    };
    let endless = of_one("many", ENDLESS);
    while ready.iter().all(|child| fleet.engine.children().contains(child)) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let waiting: Vec<_> = (0..40).map(|_| of_one("many", "SELECT 1")).collect();
    let other = of_one("other", "SELECT 2");
    let other = other.await.unwrap().unwrap();
    assert_eq!(json!(other.rows), json!([[2]]));
    let endless = endless.await.unwrap();
    assert!(matches!(endless, Err(QueryError::Late(_))), "{endless:?}");
    let mut refused = 0;
    for waiting in waiting {
        match waiting.await.unwrap() {
            Ok(answer) => assert_eq!(json!(answer.rows), json!([[1]])),
            Err(QueryError::Busy) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(24 <= refused, "{refused}");
}

async fn a_client_that_goes_away_leaves_nothing() {
    let fleet = Fleet::new(Limits { concurrent: 1, ..LIMITS });
    fleet.is_well().await;
    let engine = Arc::clone(&fleet.engine);
    let requested = tokio::spawn(async move { engine.sql("me", ENDLESS, &Scope::default()).await });
    while !fleet.engine.children().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    requested.abort();
    fleet.is_well().await;
}
