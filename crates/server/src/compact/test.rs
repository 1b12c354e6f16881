use std::path::PathBuf;
use std::sync::atomic::Ordering;

use model::{
    CpuTimeRow, HealthRow, HostRow, ResultCode, ResultRow, ResultStack, Results, VcpuTimeRow,
    WindowKey,
};
use query::Scope;
use serde_json::{Value, json};

use super::*;
use crate::Config;

const DAY: &str = "2026-01-31";
/// Its begin.
const START_US: i64 = 1_769_817_600_000_000;

fn boot() -> String {
    "0".repeat(32)
}

/// A window of a minute, each in an hour of its own: two functions and a thief in each slice.
fn window(host: &str, number: u64) -> Results {
    let key = WindowKey { host: host.to_owned(), boot: boot(), window_ns: number };
    let key = Arc::new(key);
    let begin = START_US + number.cast_signed() * 3_600_000_000;
    fn row<T>(window: &Arc<WindowKey>, slice_unix_us: i64, row: T) -> ResultRow<T> {
        ResultRow { window: Arc::clone(window), slice_unix_us, row }
    }
    let vcpu = |i: u32| VcpuTimeRow {
        vm: "vm1".into(),
        vcpu: 0,
        state: if i == 2 { "steal_outside" } else { "guest_user" }.into(),
        code: ResultCode {
            pid: Some(i),
            function: (i < 2).then(|| format!("f{i}")),
            ..ResultCode::default()
        },
        stack: (i == 1).then(|| ResultStack { functions: "main;f1".into(), n_kernel: 0 }),
        thief: (i == 2).then(|| "qemu".into()),
        thief_vm: None,
        thief_is: None,
        exit_reason: None,
        ns: 1_000_000_007 * u64::from(i + 1),
        corrected_ns: 3,
        samples: 1,
    };
    let cpu = |_| CpuTimeRow {
        cpu: 0,
        level: "idle".into(),
        vm: None,
        code: ResultCode::default(),
        stack: None,
        ns: 10_000_000_000,
        samples: 0,
    };
    let host_row = HostRow {
        length_ns: 60_000_000_000,
        hostname: host.into(),
        kernel: "6.1".into(),
        vmscope_version: "0.2".into(),
        period_ns: 1,
        cpus: 1,
        vms: 1,
        samples: 18,
        samples_lost: 1,
        samples_missed: 0,
    };
    let note = HealthRow { subject: "host".into(), what: "a note".into(), count: None };
    let slices = |rows: u32| (0..6).flat_map(move |slice| (0..rows).map(move |i| (slice, i)));
    let time = |slice: i64| begin + slice * 10_000_000;
    Results {
        vcpu_time: slices(3).map(|(s, i)| row(&key, time(s), vcpu(i))).collect(),
        cpu_time: slices(1).map(|(s, i)| row(&key, time(s), cpu(i))).collect(),
        hosts: vec![row(&key, begin, host_row)],
        health: vec![row(&key, begin, note)],
        ..Results::default()
    }
}

struct Fleet {
    dir: tempfile::TempDir,
}

impl Fleet {
    /// Two hosts with windows of a day.
    fn new() -> Self {
        let fleet = Self { dir: tempfile::tempdir().unwrap() };
        for (host, windows) in [("kvm1", 5), ("kvm2", 2)] {
            (0..windows).for_each(|number| fleet.store(host, number));
        }
        fleet
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    fn store(&self, host: &str, number: u64) {
        let written = tempfile::tempdir().unwrap();
        recording::results::write(written.path(), &window(host, number)).unwrap();
        for (table, file) in tables() {
            let path =
                result(table, DAY.parse().unwrap(), host, &format!("{}-{number:020}", boot()));
            let path = self.root().join(path.as_ref());
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::copy(written.path().join(file), path).unwrap();
        }
    }

    /// A server that was just started.
    fn server(&self, roll_up: RollUp) -> Server {
        let config = Config {
            store: self.root().display().to_string(),
            state: self.dir.path().join("state"),
            roll_up,
            ..Config::default()
        };
        Server::open(config).unwrap()
    }

    /// Compacts until it is done, by servers that die at each change in turn, and checks the sums each time.
    async fn compact(&self, roll_up: RollUp, now: DateTime<Utc>, expected: &Value) -> u64 {
        for changes in 0.. {
            let server = self.server(roll_up);
            server.store.changes_left.store(changes, Ordering::Relaxed);
            let done = server.compact(now).await;
            assert_eq!(&sums(&self.server(roll_up)).await, expected, "after {changes} changes");
            // One that looked before sees the same.
            assert_eq!(&sums(&server).await, expected, "after {changes} changes");
            if done.is_ok() {
                return changes;
            }
        }
        unreachable!()
    }

    fn objects(&self, table: &str, host: &str) -> Vec<String> {
        let folder = self.root().join(format!("{RESULTS}/{table}/day={DAY}/host={host}"));
        let entries = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name());
        let mut names: Vec<_> = entries.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }
}

const NEVER: RollUp = RollUp { minute_days: 36_500, ten_minutes_days: 36_500, hour_days: 36_500 };

async fn ask(server: &Server, sql: &str) -> api::http::Answer {
    server.engine.sql("me", sql, &Scope::default()).await.unwrap().parse().unwrap()
}

/// What must stay as it is.
async fn sums(server: &Server) -> Value {
    let mut all = Vec::new();
    for sql in [
        "SELECT host, state, function, thief, sum(ns), sum(corrected_ns), sum(samples) FROM vcpu_time \
         GROUP BY host, state, function, thief ORDER BY host, state, function, thief",
        "SELECT host, sum(length_ns * cpus), sum(samples), sum(samples_lost), max(vms) FROM hosts \
         GROUP BY host ORDER BY host",
        "SELECT host, sum(ns), date_trunc('hour', slice) AS hour FROM cpu_time GROUP BY host, hour \
         ORDER BY host, hour",
        "SELECT DISTINCT host, what, count FROM health ORDER BY host",
    ] {
        let answer = ask(server, sql).await;
        all.push(json!([answer.rows, answer.partial, answer.windows]));
    }
    json!(all)
}

async fn slices(server: &Server) -> Value {
    let sql = "SELECT count(DISTINCT slice), count(pid), min(window_ns) FROM vcpu_time";
    json!(ask(server, sql).await.rows)
}

#[tokio::test(flavor = "multi_thread")]
async fn sums_stay_whenever_a_server_dies() {
    let fleet = Fleet::new();
    // What belongs to no window is no part of a pack, which could not name it.
    for (table, _) in tables() {
        let folder = fleet.root().join(format!("{RESULTS}/{table}/day={DAY}/host=kvm2"));
        let copied = folder.join(&fleet.objects(table, "kvm2")[0]);
        std::fs::copy(copied, folder.join("copy.parquet")).unwrap();
    }
    let expected = sums(&fleet.server(NEVER)).await;
    assert_eq!(expected[1][0][0], json!(["kvm1", 300_000_000_000_u64, 90, 5, 1]));
    assert_eq!(expected[1][0][1], json!(["kvm2", 180_000_000_000_u64, 54, 3, 1]));
    let now = Utc::now() + TimeDelta::minutes(90);
    // Six tables and a list for the second host; the first one's were made on the way. Nothing is removed yet.
    assert_eq!(fleet.compact(NEVER, now, &expected).await, 7 + 1);
    assert_eq!(fleet.objects("vcpu_time", "kvm1").len(), 6);
    let later = now + TimeDelta::hours(3);
    fleet.compact(NEVER, later, &expected).await;
    for (table, _) in tables() {
        assert_eq!(fleet.objects(table, "kvm1").len(), 1, "{table}");
    }
    assert_eq!(slices(&fleet.server(NEVER)).await, json!([[30, 144, 0]]));

    // Windows that come late are added.
    fleet.store("kvm1", 7);
    let expected = sums(&fleet.server(NEVER)).await;
    assert_eq!(expected[1][0][0], json!(["kvm1", 360_000_000_000_u64, 108, 6, 1]));
    fleet.compact(NEVER, now, &expected).await;
    fleet.compact(NEVER, later, &expected).await;
    assert_eq!(fleet.objects("hosts", "kvm1").len(), 1);

    // The day is old: 10 s become an hour, and process numbers go.
    let old = RollUp::default();
    fleet.compact(old, now, &expected).await;
    fleet.compact(old, later, &expected).await;
    assert_eq!(fleet.compact(old, later, &expected).await, 0);
    assert_eq!(slices(&fleet.server(old)).await, json!([[11, 18, 0]]));
    assert_eq!(fleet.objects("hosts", "kvm2").len(), 2);

    // The tables are as they are documented.
    let read = tempfile::tempdir().unwrap();
    for (table, file) in tables() {
        let name = &fleet.objects(table, "kvm1")[0];
        let path = result(table, DAY.parse().unwrap(), "kvm1", name.trim_end_matches(".parquet"));
        std::fs::copy(fleet.root().join(path.as_ref()), read.path().join(file)).unwrap();
    }
    let results = recording::results::read(read.path()).unwrap();
    assert_eq!(results.vcpu_time.len(), 18);
    assert_eq!(results.vcpu_time[0].slice_unix_us, START_US);
}

/// What can't be read stays as it is, and the others are packed.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_object_is_not_packed() {
    let fleet = Fleet::new();
    let name = &fleet.objects("exits", "kvm1")[0];
    let file = fleet.root().join(format!("{RESULTS}/exits/day={DAY}/host=kvm1/{name}"));
    std::fs::write(file, "PAR1").unwrap();
    let server = fleet.server(NEVER);
    server.compact(Utc::now() + TimeDelta::hours(3)).await.unwrap();
    server.compact(Utc::now() + TimeDelta::hours(6)).await.unwrap();
    // Its own, the pack of the others, and what is left of another try.
    assert_eq!(fleet.objects("hosts", "kvm1").len(), 3);
    let answer = ask(&server, "SELECT sum(length_ns) FROM hosts").await;
    assert_eq!(json!(answer.rows), json!([[420_000_000_000_u64]]));
}

/// A list of packs that can't be read costs no other list anything, and nothing is removed for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_list_is_set_aside() {
    let fleet = Fleet::new();
    let list =
        |number: u32| fleet.root().join(format!("{LISTS}/day={DAY}/host=kvm1/{number:08}.json"));
    let now = Utc::now() + TimeDelta::minutes(90);
    fleet.server(NEVER).compact(now).await.unwrap();
    let whole = std::fs::read(list(1)).unwrap();
    let id = format!("kvm1/{}/{:020}", boot(), 0).parse().unwrap();
    let raw = DayWindow { day: DAY.parse().unwrap(), id }.raw();
    fleet.server(NEVER).store.create(&raw, "".into()).await.unwrap();
    let check = async |is_damaged: bool, objects: usize| {
        let server = fleet.server(NEVER);
        server.compact(now + TimeDelta::hours(3)).await.unwrap();
        let sql = "SELECT host, sum(length_ns) FROM hosts GROUP BY host ORDER BY host";
        let answer = ask(&server, sql).await;
        let rows = json!([["kvm1", 300_000_000_000_u64], ["kvm2", 120_000_000_000_u64]]);
        assert_eq!((json!(answer.rows), answer.windows), (rows, 7));
        let said = answer.partial.iter().any(|text| text.starts_with("1 lists of packs"));
        assert_eq!(said, is_damaged, "{:?}", answer.partial);
        assert_eq!(fleet.objects("hosts", "kvm1").len(), objects);
        assert_eq!(fleet.objects("hosts", "kvm2").len(), 1);
        server.without_results(&mut |_, window| panic!("{window:?}")).await.unwrap();
        let text = server.metrics.text().unwrap();
        assert_eq!(text.contains("errors_total{reason=\"packs\"} 1"), is_damaged, "{text}");
    };
    std::fs::write(list(1), "{\"packs\": [").unwrap();
    check(true, 6).await;
    // The one before it counts.
    std::fs::write(list(1), &whole).unwrap();
    std::fs::write(list(2), "").unwrap();
    check(true, 6).await;
    std::fs::remove_file(list(2)).unwrap();
    check(false, 1).await;
}

#[test]
fn what_is_packed_when() {
    let day: NaiveDate = DAY.parse().unwrap();
    let midnight = (day + Days::new(1)).and_time(NaiveTime::MIN).and_utc();
    let names = |from: u64, to: u64, came: DateTime<Utc>| -> Vec<(String, DateTime<Utc>)> {
        (from..to).map(|number| (format!("{}-{number:020}", boot()), came)).collect()
    };
    let plan_at = |packs: &Packs, windows: &[(String, DateTime<Utc>)], now: DateTime<Utc>| {
        let plan = plan(packs, windows, day, now, &RollUp::default());
        plan.map(|plan| (plan.windows.len(), plan.packs.len(), plan.slice_s))
    };
    let none = Packs::default();
    let morning = midnight - TimeDelta::hours(12);
    let some = names(0, 59, morning);
    let many = names(0, 60, morning);
    let hour = TimeDelta::hours(1);
    assert_eq!(plan_at(&none, &some, morning + hour), None);
    assert_eq!(plan_at(&none, &many, morning), None);
    assert_eq!(plan_at(&none, &many, morning + hour), Some((60, 0, 10)));
    let pack = |slice_s| {
        let windows = Pack::from_windows(slice_s, many.iter().map(|(name, _)| name), &[]);
        Packs { packs: vec![Arc::new(windows)] }
    };
    let more = names(30, 90, morning);
    assert_eq!(plan_at(&pack(10), &more, morning + hour), None);
    let closed = midnight + LATE;
    assert_eq!(plan_at(&pack(10), &more, closed), Some((30, 1, 10)));
    assert_eq!(plan_at(&pack(10), &many, closed), None);
    assert_eq!(plan_at(&none, &some[..1], closed), None);
    let days = TimeDelta::days;
    assert_eq!(plan_at(&none, &some[..1], midnight + days(30)), Some((1, 0, 60)));
    assert_eq!(plan_at(&pack(60), &[], midnight + days(90)), Some((0, 1, 600)));
    assert_eq!(plan_at(&pack(3600), &[], midnight + days(90)), None);
    assert_eq!(plan_at(&none, &[], midnight + days(90)), None);
}

/// A pack that is not what was written counts no longer; its windows are analysed again, or answers say that they lack.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_pack_is_given_up() {
    use crate::repair::Repaired;

    let fleet = Fleet::new();
    let server = fleet.server(NEVER);
    server.compact(Utc::now() + TimeDelta::minutes(90)).await.unwrap();
    let [pack] = &fleet
        .objects("vcpu_time", "kvm1")
        .into_iter()
        .filter(|name| name.starts_with(PACK))
        .collect::<Vec<_>>()[..]
    else {
        panic!("one pack of a host");
    };
    let object = format!("{RESULTS}/vcpu_time/day={DAY}/host=kvm1/{pack}");
    let mut content = std::fs::read(fleet.root().join(&object)).unwrap();
    content[50] ^= 1;
    std::fs::write(fleet.root().join(&object), content).unwrap();
    // What the pack replaced is gone.
    for (table, _) in tables() {
        for name in fleet.objects(table, "kvm1").iter().filter(|name| !name.starts_with(PACK)) {
            let folder = format!("{RESULTS}/{table}/day={DAY}/host=kvm1");
            std::fs::remove_file(fleet.root().join(folder).join(name)).unwrap();
        }
    }
    let raw = fleet.root().join(format!("raw/v1/day={DAY}/host=kvm1/{}-{:020}.window", boot(), 3));
    std::fs::create_dir_all(raw.parent().unwrap()).unwrap();
    std::fs::write(raw, "a window").unwrap();

    let count = async |server: &Server| {
        let sql = "SELECT host, count(*), max(corrected_ns) FROM vcpu_time GROUP BY host";
        let answer = server.engine.sql("me", sql, &Scope::default()).await.unwrap();
        let answer = answer.parse().unwrap();
        (json!(answer.rows), answer.partial)
    };
    let server = fleet.server(NEVER);
    let rows = json!([["kvm2", 36, 3]]);
    let lacks = "results of 5 windows can't be read";
    assert_eq!(count(&server).await, (rows.clone(), vec![lacks.to_owned()]));
    assert_eq!(server.engine.damage().next().await, [Path::from(object.as_str())]);
    let path = Path::from(object);
    assert_eq!(server.repair(&path).await.unwrap(), Repaired::Again);
    assert_eq!(server.queue.len(), 1);
    assert_eq!(server.repair(&path).await.unwrap(), Repaired::NotNeeded);
    // A server that starts now knows it, too; and what is made again counts, once.
    let server = fleet.server(NEVER);
    let (found, partial) = count(&server).await;
    assert_eq!(found, rows);
    assert!(partial.contains(&lacks.to_owned()), "{partial:?}");
    fleet.store("kvm1", 3);
    let server = fleet.server(NEVER);
    let (found, partial) = count(&server).await;
    assert_eq!(found.as_array().unwrap().len(), 2);
    assert!(partial.contains(&"results of 4 windows can't be read".to_owned()), "{partial:?}");
}
