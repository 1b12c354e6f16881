use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::net::{TcpListener, TcpStream};
use std::ops::Bound;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use model::{HostRow, ResultRow, Results, WindowKey};
use object_store::aws::AmazonS3Builder;

use super::*;
use crate::Config;
use crate::results::tables;
use crate::store::Store;

/// Keys in one answer of a service.
const PAGE: usize = 1000;
/// Of windows of 10 s.
const WINDOWS_OF_A_DAY: u64 = 8640;
const NS: u64 = 1_000_000_000;

/// Names, contents, and when they came.
type Objects = BTreeMap<String, (Vec<u8>, DateTime<Utc>)>;

/// A service that lists, gives and makes objects, as S3 does.
#[derive(Default)]
struct Service {
    objects: Mutex<Objects>,
    lists: AtomicUsize,
}

impl Service {
    fn start() -> (Arc<Self>, Store) {
        let service = Arc::<Self>::default();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let bucket = AmazonS3Builder::new()
            .with_endpoint(format!("http://{}", listener.local_addr().unwrap()))
            .with_allow_http(true)
            .with_bucket_name("b")
            .with_access_key_id("a")
            .with_secret_access_key("s")
            .build();
        let served = Arc::clone(&service);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let served = Arc::clone(&served);
                std::thread::spawn(move || served.answer(client));
            }
        });
        (service, Store::of_service(Arc::new(bucket.unwrap())))
    }

    fn objects(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, name: &Path, content: &[u8], came: DateTime<Utc>) {
        self.objects().insert(name.to_string(), (content.to_vec(), came));
    }

    fn answer(&self, mut client: TcpStream) {
        let mut head = Vec::new();
        let mut bytes = [0; 4096];
        while !head.ends_with(b"\r\n\r\n") {
            let Ok(read @ 1..) = client.read(&mut bytes) else { return };
            head.extend(&bytes[..read]);
        }
        let head = String::from_utf8_lossy(&head);
        let mut words = head.split(' ');
        let (method, target) = (words.next().unwrap(), words.next().unwrap());
        let url = url::Url::parse(&format!("http://b{target}")).unwrap();
        let query: HashMap<_, _> = url.query_pairs().into_owned().collect();
        let key = url.path().trim_start_matches("/b").trim_start_matches('/');
        let key = key.replace("%3D", "=");
        let answer = if query.contains_key("list-type") {
            self.lists.fetch_add(1, Ordering::Relaxed);
            Some((self.list(&query).into_bytes(), Utc::now()))
        } else {
            self.objects().get(&key).cloned()
        };
        let status = answer.as_ref().map_or("404 Not Found", |_| "200 OK");
        let (content, came) = answer.unwrap_or_default();
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\nETag: \"1\"\r\nLast-Modified: {}\r\n\
             Connection: close\r\n\r\n",
            content.len(),
            came.format("%a, %d %b %Y %H:%M:%S GMT"),
        );
        let _ = client.write_all(head.as_bytes());
        if method == "GET" {
            let _ = client.write_all(&content);
        }
    }

    /// `ListObjectsV2`.
    fn list(&self, query: &HashMap<String, String>) -> String {
        let prefix = query.get("prefix").map_or("", String::as_str);
        let after = query.get("continuation-token").or_else(|| query.get("start-after"));
        let after = after.map_or("", String::as_str).to_owned();
        let (mut contents, mut prefixes) = (String::new(), BTreeSet::new());
        let (mut n, mut last) = (0, String::new());
        let objects = self.objects();
        let from = objects.range::<str, _>((Bound::Excluded(after.as_str()), Bound::Unbounded));
        let from = from.skip_while(|(key, _)| key.as_str() < prefix);
        for (key, (content, came)) in from.take_while(|(key, _)| key.starts_with(prefix)) {
            let below = query.get("delimiter").and_then(|_| key[prefix.len()..].split_once('/'));
            if let Some((folder, _)) = below {
                prefixes.insert(format!("{prefix}{folder}/"));
                continue;
            }
            if n == PAGE {
                write!(contents, "<NextContinuationToken>{last}</NextContinuationToken>").unwrap();
                break;
            }
            (n, last) = (n + 1, key.clone());
            let (came, size) = (came.to_rfc3339(), content.len());
            write!(
                contents,
                "<Contents><Key>{key}</Key><LastModified>{came}</LastModified><Size>{size}</Size></Contents>"
            )
            .unwrap();
        }
        for prefix in prefixes {
            write!(contents, "<CommonPrefixes><Prefix>{prefix}</Prefix></CommonPrefixes>").unwrap();
        }
        format!("<ListBucketResult>{contents}</ListBucketResult>")
    }
}

/// A host's window, the so many-th of a day.
fn window(host: usize, day: NaiveDate, number: u64) -> DayWindow {
    let boot = format!("{:x}", 1 + host % 15).repeat(32);
    let id = format!("kvm{host}/{boot}/{:020}", number * 10 * NS).parse().unwrap();
    DayWindow { day, id }
}

fn results_of(window: &DayWindow) -> Results {
    let key = WindowKey {
        host: window.id.host.to_string(),
        boot: window.id.boot.to_string(),
        window_ns: window.id.start.0,
    };
    let row = HostRow {
        length_ns: 10 * NS,
        hostname: window.id.host.to_string(),
        kernel: "6.1".into(),
        vmscope_version: "0.2".into(),
        period_ns: 1_000_000,
        cpus: 1,
        vms: 0,
        samples: 10_000,
        samples_lost: 0,
        samples_missed: 0,
    };
    let day_us = window.day.and_time(chrono::NaiveTime::MIN).and_utc().timestamp_micros();
    let slice_unix_us = day_us + i64::try_from(window.id.start.0 / 1000).unwrap();
    Results {
        hosts: vec![ResultRow { window: Arc::new(key), slice_unix_us, row }],
        ..Results::default()
    }
}

/// Hosts with so many windows of today, of which the last has results that are not packed.
struct Fleet {
    service: Arc<Service>,
    server: Server,
    hosts: usize,
    day: NaiveDate,
    _state: tempfile::TempDir,
}

impl Fleet {
    fn new(hosts: usize, windows: u64) -> Self {
        let state = tempfile::tempdir().unwrap();
        let (store, path) = (state.path().join("store"), state.path().join("state"));
        let config =
            Config { store: store.display().to_string(), state: path, ..Config::default() };
        let mut server = Server::open(config).unwrap();
        let (service, store) = Service::start();
        server.store = store;
        let day = Utc::now().date_naive();
        let fleet = Self { service, server, hosts, day, _state: state };
        for host in 0..hosts {
            for number in 0..windows - 1 {
                let came = Utc::now() - chrono::TimeDelta::hours(3);
                fleet.service.put(&window(host, day, number).raw(), b"", came);
            }
            let last = window(host, day, windows - 1);
            fleet.service.put(&last.raw(), b"", Utc::now());
            fleet.analyse(&last);
        }
        fleet
    }

    fn analyse(&self, window: &DayWindow) {
        let folder = tempfile::tempdir().unwrap();
        recording::results::write(folder.path(), &results_of(window)).unwrap();
        for (table, file) in tables() {
            let content = std::fs::read(folder.path().join(file)).unwrap();
            self.service.put(&window.result(table), &content, Utc::now());
        }
    }

    /// A window of each host that came after all others, with its results.
    fn go_on(&self, number: u64) {
        for host in 0..self.hosts {
            let window = window(host, self.day, number);
            self.service.put(&window.raw(), b"", Utc::now());
            self.analyse(&window);
        }
    }

    /// How many lists a look asks for, and how many windows it takes.
    async fn look(&self) -> (usize, u64) {
        let before = (self.lists(), self.server.watch.findings().1);
        self.server.look().await.unwrap();
        (self.lists() - before.0, self.server.watch.findings().1 - before.1)
    }

    fn lists(&self) -> usize {
        self.service.lists.load(Ordering::Relaxed)
    }
}

/// What a look lists does not grow with the day: results of three days, failures of three days, and of each host where
/// the day begins and where the windows begin that were not taken.
#[tokio::test(flavor = "multi_thread")]
async fn a_look_lists_the_same_at_any_time_of_the_day() {
    const HOSTS: usize = 5;
    let mut counts = Vec::new();
    for windows in [10, WINDOWS_OF_A_DAY] {
        let fleet = Fleet::new(HOSTS, windows);
        let (first, taken) = fleet.look().await;
        assert_eq!(taken, HOSTS as u64);
        fleet.go_on(windows);
        let (next, taken) = fleet.look().await;
        assert_eq!(taken, HOSTS as u64, "the windows that came");
        let before = fleet.lists();
        fleet.server.store.list(&format!("{RAW}/day={}", fleet.day)).await.unwrap();
        eprintln!(
            "{HOSTS} hosts, {windows} windows of each: lists at the first look {first}, at the next {next}; \
             of the whole day {}",
            fleet.lists() - before
        );
        counts.push(next);
    }
    assert_eq!(counts, [7 + 2 * HOSTS; 2]);
}

/// Windows of a host are taken in the order in which they came, whichever of them have results first.
#[tokio::test(flavor = "multi_thread")]
async fn a_window_that_waits_for_its_results_is_found() {
    let fleet = Fleet::new(1, 10);
    fleet.look().await;
    let (earlier, later) = (window(0, fleet.day, 10), window(0, fleet.day, 11));
    let now = Utc::now();
    fleet.service.put(&earlier.raw(), b"", now - chrono::TimeDelta::seconds(10));
    fleet.service.put(&later.raw(), b"", now);
    fleet.analyse(&later);
    assert_eq!(fleet.look().await.1, 0);
    // Of a boot of which nothing was taken, and whose name is before.
    fleet.analyse(&earlier);
    assert_eq!(fleet.look().await.1, 2);
    let id = format!("kvm0/{}/{:020}", "0".repeat(32), 7).parse().unwrap();
    let reboot = DayWindow { day: fleet.day, id };
    fleet.service.put(&reboot.raw(), b"", now + chrono::TimeDelta::seconds(1));
    let last = window(0, fleet.day, 12);
    fleet.service.put(&last.raw(), b"", now + chrono::TimeDelta::seconds(2));
    fleet.analyse(&last);
    assert_eq!(fleet.look().await.1, 0);
    fleet.analyse(&reboot);
    assert_eq!(fleet.look().await.1, 2);
}
