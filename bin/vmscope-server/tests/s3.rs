//! A real S3-compatible service as the store, stopped and started in mid-write: `VMSCOPE_S3_SERVER` names versitygw.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{Place, Window, wait_until, window};
use serde_json::json;

const WINDOWS: u64 = 60;

/// The service over a folder; killed when it is dropped, and its folder stays.
struct Service(Child);

impl Service {
    fn start(program: &str, address: SocketAddr, folder: &Path) -> Self {
        let child = Command::new(program)
            .args(["--quiet", "--port", &address.to_string(), "posix"])
            .arg(folder)
            .envs([("ROOT_ACCESS_KEY_ID", "test"), ("ROOT_SECRET_ACCESS_KEY", "secret-of-test")])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait_until("the service", || TcpStream::connect(address).is_ok());
        Self(child)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

#[test]
fn no_window_is_lost_when_the_store_is_killed() {
    let Ok(program) = std::env::var("VMSCOPE_S3_SERVER") else {
        eprintln!("skipped: VMSCOPE_S3_SERVER names no S3 server (make test-all installs one)");
        return;
    };
    let address = free_address();
    let place = Place::with_service(address);
    let folder = place.dir.path().join("service");
    fs::create_dir_all(place.store()).unwrap();
    let first = Service::start(&program, address, &folder);
    let server = place.start("");
    let (host, reader) = (server.enroll("kvm1"), server.token("read"));
    let windows: Vec<Window> = (0..WINDOWS).map(|number| window("kvm1", 100 + number)).collect();
    let is_sent = AtomicBool::new(false);
    let (kills, tries) = std::thread::scope(|scope| {
        let killer = scope.spawn(|| {
            let (mut service, mut kills) = (first, 0_u64);
            while !is_sent.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(150 + 97 * (kills % 5)));
                drop(service);
                kills += 1;
                std::thread::sleep(Duration::from_millis(60 * (kills % 4)));
                service = Service::start(&program, address, &folder);
            }
            (service, kills)
        });
        // As the agent does: again until it is acknowledged.
        let mut tries = 0;
        for window in &windows {
            let began = Instant::now();
            loop {
                tries += 1;
                match server.put(window, &host).status {
                    200 | 201 => break,
                    status => assert!(matches!(status, 401 | 429 | 503), "{status}"),
                }
                assert!(began.elapsed() < common::PATIENCE);
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        is_sent.store(true, Ordering::Relaxed);
        let (service, kills) = killer.join().unwrap();
        // What was acknowledged while the store came and went is analysed.
        place.wait_for_results(windows.len());
        drop(service);
        (kills, tries)
    });
    eprintln!("{} windows, {kills} kills of the store, {tries} tries", windows.len());
    assert!(5 <= kills, "{kills}");
    let raw = place.objects("raw/");
    assert_eq!(raw.len(), windows.len());
    for (name, window) in raw.iter().zip(&windows) {
        assert!(fs::read(place.store().join(name)).unwrap() == window.bytes, "{name}");
    }
    assert!(place.objects("failed/").is_empty());
    let _service = Service::start(&program, address, &folder);
    let count = json!({"sql": "SELECT count(*), count(DISTINCT window_ns) FROM hosts"});
    let answer = server.ask("POST", "/v1/sql", &reader, Some(&count)).json();
    assert_eq!(answer["rows"], json!([[WINDOWS, WINDOWS]]));
    assert_eq!(answer["partial"], json!([]));
}
