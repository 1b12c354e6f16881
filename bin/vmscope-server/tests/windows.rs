//! Windows that come over TLS: stored once, analysed once, or refused with a reason; and what is acknowledged stays, whatever
//! happens to the server.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

#[path = "../../vmscope/tests/amplified/mod.rs"]
mod amplified;
mod common;

use std::fs;
use std::io::{BufRead, BufReader, Cursor, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use common::{BOOT, NS, Place, Server, Window, now_ns, wait_until, window, window_at};
use serde_json::json;
use ureq::SendBody;

const DAY: u64 = 86_400 * NS;

#[test]
fn a_window_is_stored_and_analysed_once() {
    let place = Place::new();
    let server = place.start("");
    let host = server.enroll("kvm1");
    let window = window("kvm1", 100);
    let first = server.put(&window, &host);
    assert_eq!((first.status, first.json()["state"].as_str()), (201, Some("stored")));
    let again = server.put(&window, &host);
    assert_eq!((again.status, again.json()["state"].as_str()), (200, Some("known")));
    let name = format!("/host=kvm1/{BOOT}-00000000100000000000");
    let raw = place.objects("raw/");
    assert!(raw.len() == 1 && raw[0].ends_with(&format!("{name}.window")), "{raw:?}");
    place.wait_for_results(1);
    wait_until("metric", || server.metric("vmscope_server_windows_analyzed_total") == 1.0);
    let results = place.objects("results/v1/hosts/");
    assert!(results[0].ends_with(&format!("{name}.parquet")), "{results:?}");

    let reader = server.token("read");
    let list = server.get("/v1/windows?host=kvm1", &reader).json();
    assert_eq!(list["windows"][0]["window"], window.id.to_string());
    assert_eq!(list["windows"][0]["bytes"], window.bytes.len());
    assert_eq!(server.get("/v1/windows?host=other", &reader).json()["windows"], json!([]));
    assert_eq!(server.get("/v1/windows?to=2020-01-01", &reader).json()["windows"], json!([]));
    let copy = server.get(&format!("/v1/windows/{}", window.id), &reader);
    assert!(copy.status == 200 && copy.content == window.bytes);
    server.get(&format!("/v1/windows/kvm2/{BOOT}/{:020}", 1), &reader).check(404, "no such window");
    server.get("/v1/windows?from=x", &reader).check(400, "YYYY-MM-DD");

    assert_eq!(server.metric("vmscope_server_windows_stored_total"), 1.0);
    assert_eq!(server.metric("vmscope_server_windows_known_total"), 1.0);
    // Known, but without results: who stored it may be gone, or has not heard that it did.
    fs::remove_file(place.store().join(&results[0])).unwrap();
    assert_eq!(server.put(&window, &host).status, 200);
    place.wait_for_results(1);
    let text = String::from_utf8(server.get("/healthz", "").content).unwrap();
    assert_eq!(text, "ok\n");
    let said = server.stop();
    assert!(said.iter().any(|line| line.contains("stopping")), "{said:?}");
}

#[test]
fn what_is_no_window_of_this_host_is_refused_with_a_reason() {
    let place = Place::new();
    let server = place.start("max_window_bytes = 1000000");
    let host = server.enroll("kvm1");
    let good = window("kvm1", 100);
    let check = |window: &Window, status: u16, text: &str| {
        server.put(window, &host).check(status, text);
    };
    check(&good.with(""), 400, "not a window");
    check(&good.with("garbage"), 400, "not a window");
    check(&good.with(vec![0x5a; 100_000]), 400, "not a window");
    for length in [511, 512, good.bytes.len() / 2, good.bytes.len() - 512] {
        check(&good.with(&good.bytes[..length]), 400, "not a window");
    }
    check(&good.with(vec![0; 1_000_001]), 413, "at most 1000000 bytes");
    check(&tar_bomb(&good), 400, "more than");
    let moved = Window { id: window("kvm1", 101).id, ..good.clone() };
    check(&moved, 400, "begins at another time");
    let other_boot = format!("kvm1/{}/{:020}", "f".repeat(32), 100 * NS).parse().unwrap();
    check(&Window { id: other_boot, ..good.clone() }, 400, "of another boot");
    check(&window_at("kvm1", 100, now_ns() + 8 * DAY, |_| {}), 400, "s in the future");
    check(&window_at("kvm1", 100, now_ns() - 15 * DAY, |_| {}), 400, "older than 14 days");
    let damaged = window_at("kvm1", 100, now_ns(), |folder| {
        fs::write(folder.join("vms.parquet"), "PAR1PAR1").unwrap();
    });
    check(&damaged, 400, "is damaged");
    let backwards = window_at("kvm1", 100, now_ns(), |folder| {
        let file = folder.join("recording.json");
        let mut json: serde_json::Value =
            serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        json["end_ns"] = (100 * NS - 1).into();
        fs::write(file, json.to_string()).unwrap();
    });
    check(&backwards, 400, "before");
    for path in ["/v1/windows/x/1", &format!("/v1/windows/{BOOT}/1"), "/v1/windows/..%2f/1"] {
        server.ask("PUT", path, &host, Some(&().into())).check(400, "has");
    }
    assert!(place.objects("raw/").is_empty());
    // So many are kept, each with its reason.
    let kept = place.objects("refused/");
    assert_eq!(kept.len(), 20, "{kept:?}");
    assert!(0.0 < server.metric("vmscope_server_refused_not_kept_total"));
    let note = kept.iter().find(|name| name.ends_with(".json")).unwrap();
    assert!(fs::read_to_string(place.store().join(note)).unwrap().contains("\"reason\""));

    // The others go on.
    assert_eq!(server.put(&good, &host).status, 201);
    place.wait_for_results(1);
}

/// A header that announces more than there is room for.
fn tar_bomb(window: &Window) -> Window {
    let mut bytes = window.bytes.clone();
    bytes[124..136].copy_from_slice(b"77777777777\0");
    bytes[148..156].fill(b' ');
    let sum: u32 = bytes[..512].iter().map(|byte| u32::from(*byte)).sum();
    bytes[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    window.with(bytes)
}

/// Tables of a few bytes that are unpacked to a lot, with the right checksums.
#[test]
fn a_table_that_blows_up_costs_its_window() {
    let place = Place::new();
    let server = place.start("");
    let host = server.enroll("kvm1");
    let mut start = 100;
    for table in ["symbols.parquet", "stacks.parquet", "samples.parquet"] {
        let bomb = window_at("kvm1", start, now_ns() - 60 * NS, |folder| {
            let file = folder.join(table);
            let whole = fs::read(&file).unwrap();
            let (rows, text) =
                if table == "symbols.parquet" { (1 << 17, 8192) } else { (1 << 20, 1) };
            let bytes = amplified::table(&file, rows, text);
            let json = fs::read_to_string(folder.join("recording.json")).unwrap();
            let json = common::recordings::damage::with_checksum(&json, table, &whole, &bytes);
            fs::write(folder.join("recording.json"), json).unwrap();
            fs::write(file, bytes).unwrap();
        });
        assert!(bomb.bytes.len() < 4 << 20, "{}", bomb.bytes.len());
        let status = server.put(&bomb, &host).status;
        assert!(status == 400 || status == 201, "{table}: {status}");
        start += 1;
    }
    let good = window("kvm1", start);
    assert_eq!(server.put(&good, &host).status, 201);
    wait_until("its results", || {
        let name = good.id.start_text();
        place.objects("results/v1/hosts").iter().any(|object| object.contains(&name))
    });
    let peak = server.memory_kib("VmHWM");
    assert!(peak < 300 << 10, "the server itself took {peak} KiB");
    // Each is analysed, or set aside: nothing is tried for ever.
    let all = place.objects("raw/").len();
    wait_until("the others", || {
        place.objects("results/v1/hosts").len() + place.objects("failed/").len() == all
    });
}

/// A host's clock may be ahead of the server's, or the server's behind.
#[test]
fn windows_of_the_future_come_again_when_their_time_has_come() {
    let place = Place::new();
    let mut server = place.start("");
    let host = server.enroll("kvm1");
    let ahead = |start_s, by_ns| window_at("kvm1", start_s, now_ns() + by_ns, |_| {});
    assert_eq!(server.put(&ahead(100, DAY / 48), &host).status, 201);
    for (by_ns, seconds) in [(DAY / 20, 600..=720), (DAY, 3600..=3600)] {
        let early = server.put(&ahead(101, by_ns), &host);
        early.check(503, "s in the future");
        assert_eq!(early.json()["reason"], "clock");
        assert!(
            seconds.contains(&early.header("retry-after").unwrap().parse().unwrap()),
            "{early:?}"
        );
    }
    assert_eq!(server.metric("vmscope_server_windows_refused_total{reason=\"clock\"}"), 2.0);
    place.wait_for_results(1);
    // A server whose clock was years away at its last expiry may be wrong now: it refuses nothing for its time.
    wait_until("expiry", || !place.objects("clock/").is_empty());
    server.kill();
    fs::remove_dir_all(place.store().join("clock")).unwrap();
    fs::create_dir_all(place.store().join("clock/v1")).unwrap();
    fs::write(place.store().join("clock/v1/2020-01-01"), "").unwrap();
    let server = place.start("");
    for window in [ahead(102, 8 * DAY), window_at("kvm1", 102, now_ns() - 15 * DAY, |_| {})] {
        server.put(&window, &host).check(503, "clock may be wrong");
    }
    assert_eq!(server.metric("vmscope_server_clock_doubted"), 1.0);
    assert!(place.objects("refused/").is_empty());
    assert_eq!(server.put(&window("kvm1", 103), &host).status, 201);
}

#[test]
fn more_than_there_is_room_for_come_again() {
    let place = Place::new();
    let server = place.start("max_receiving = 3");
    let [host, other] = ["kvm1", "kvm2"].map(|host| (host, server.enroll(host)));
    let slow = [(&host, 100), (&host, 101), (&other, 102)];
    let (first, again) = (window("kvm1", 103), window("kvm2", 104));
    std::thread::scope(|scope| {
        let mut sending = Vec::new();
        let mut begin = |(host, token): &'_ (&'static str, String), start| {
            let (go, wait) = channel::<()>();
            let (window, token) = (window(host, start), token.clone());
            let server = &server;
            let before = sending.len();
            let thread = scope.spawn(move || {
                let (first, rest) = (window.bytes[..1000].to_vec(), window.bytes[1000..].to_vec());
                let body = Cursor::new(first).chain(WaitFor(wait)).chain(Cursor::new(rest));
                let body = SendBody::from_owned_reader(body);
                server.try_send("PUT", &window.put_path(), &token, body, true).unwrap().status
            });
            wait_until("the slow one", || {
                server.metric("vmscope_server_receiving") == (before + 1) as f64
            });
            sending.push((go, thread));
        };
        let [one, two, three] = slow;
        begin(one.0, one.1);
        begin(two.0, two.1);
        // There is room, but not for a third one of this host.
        let busy = server.put(&first, &host.1);
        busy.check(429, "too many windows of this host");
        assert!(busy.header("retry-after").is_some());
        begin(three.0, three.1);
        server.put(&again, &other.1).check(429, "too many windows are");
        for (go, thread) in sending {
            go.send(()).unwrap();
            assert_eq!(thread.join().unwrap(), 201);
        }
    });
    assert_eq!(server.put(&first, &host.1).status, 201);
    assert_eq!(server.put(&again, &other.1).status, 201);
    place.wait_for_results(5);
}

/// Ends when it is ordered to.
struct WaitFor(std::sync::mpsc::Receiver<()>);

impl Read for WaitFor {
    fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
        let _ = self.0.recv_timeout(Duration::from_secs(60));
        Ok(0)
    }
}

/// A store that fails is no reason to lose a window, or to call it bad.
#[test]
fn a_store_that_fails_is_tried_again() {
    let place = Place::new();
    let server = place.start("");
    let host = server.enroll("kvm1");
    let window = window("kvm1", 100);
    // Nothing can be made below a file.
    fs::write(place.store().join("raw"), "").unwrap();
    let failed = server.put(&window, &host);
    failed.check(503, "store");
    assert!(failed.header("retry-after").is_some());
    fs::remove_file(place.store().join("raw")).unwrap();
    fs::write(place.store().join("results"), "").unwrap();
    assert_eq!(server.put(&window, &host).status, 201);
    wait_until("the error", || {
        0.0 < server.metric("vmscope_server_store_errors_total{reason=\"analysis\"}")
    });
    fs::remove_file(place.store().join("results")).unwrap();
    place.wait_for_results(1);
}

/// A disk that others fill is no reason to lose a window, or to call it bad. Runs again in a mount namespace, with a disk of
/// 8 MiB.
#[test]
fn a_full_disk_puts_windows_off() {
    const DISK: &str = "VMSCOPE_TEST_DISK";
    if let Some(disk) = std::env::var_os(DISK) {
        return on_full_disk(Path::new(&disk));
    }
    let disk = tempfile::tempdir().unwrap();
    let mount = "mount -t tmpfs -o size=8m tmpfs \"$1\"";
    let unshare = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--mount", "sh", "-c", script, "sh"]).arg(disk.path());
        command
    };
    if !unshare(mount).output().is_ok_and(|output| output.status.success()) {
        return skip::skip("unshare(1) can't mount a file system here");
    }
    let test = "a_full_disk_puts_windows_off";
    let mut again = unshare(&format!("{mount} && exec \"$2\" --exact {test} --nocapture"));
    let ran = again.arg(std::env::current_exe().unwrap()).env(DISK, disk.path()).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}

fn on_full_disk(disk: &Path) {
    let place = Place { dir: tempfile::tempdir_in(disk).unwrap() };
    let server = place.start("");
    let (host, reader) = (server.enroll("kvm1"), server.token("read"));
    let window = window("kvm1", 100);
    let others = disk.join("others");
    // From nothing to what is needed: it never is the window that is to blame.
    let mut statuses = Vec::new();
    for pages in 0.. {
        fill(&others);
        let length = fs::metadata(&others).unwrap().len();
        fs::File::options()
            .write(true)
            .open(&others)
            .unwrap()
            .set_len(length - pages * 4096)
            .unwrap();
        let reply = server.put(&window, &host);
        statuses.push(reply.status);
        if reply.status == 201 {
            break;
        }
        reply.check(503, "No space left");
        assert!(reply.header("retry-after").is_some());
        assert!(place.objects("raw/").is_empty() && place.objects("refused/").is_empty());
    }
    assert!(3 < statuses.len(), "{statuses:?}");
    assert_eq!(server.get("/v1/windows", &reader).json()["windows"].as_array().unwrap().len(), 1);
    fs::remove_file(&others).unwrap();
    place.wait_for_results(1);
    assert!(place.objects("failed/").is_empty());
}

/// Takes what is left of the disk.
fn fill(file: &Path) {
    let mut file = fs::File::options().append(true).create(true).open(file).unwrap();
    while file.write_all(&[0; 4096]).is_ok() {}
}

/// Whatever was acknowledged before a kill is there afterwards, analysed once.
#[test]
fn what_is_acknowledged_survives_kill_9() {
    let place = Place::new();
    let mut server = place.start("");
    let host = server.enroll("kvm1");
    let windows: Vec<Window> = (0..40).map(|number| window("kvm1", 100 + number)).collect();
    let mut acknowledged = Vec::new();
    let mut rounds = 0_u64;
    while acknowledged.len() < windows.len() {
        rounds += 1;
        std::thread::scope(|scope| {
            let pid = server.child.id().to_string();
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(137 * (rounds % 7 + 1)));
                assert!(
                    std::process::Command::new("kill")
                        .args(["-9", &pid])
                        .status()
                        .unwrap()
                        .success()
                );
            });
            for window in windows.iter().skip(acknowledged.len()) {
                match server.try_put(window, &host) {
                    Ok(reply) if matches!(reply.status, 200 | 201) => {
                        acknowledged.push(window.id.clone());
                    }
                    _ => break,
                }
            }
        });
        server.kill();
        server = place.start("");
        assert!(rounds < 200, "{} of {}", acknowledged.len(), windows.len());
    }
    assert!(1 < rounds, "no kill was in the middle");
    place.wait_for_results(windows.len());
    let raw = place.objects("raw/");
    for window in &windows {
        let name = window.id.start_text();
        assert_eq!(raw.iter().filter(|object| object.contains(&name)).count(), 1);
    }
    assert_eq!(raw.len(), windows.len());
    assert!(place.objects("failed/").is_empty());
    eprintln!("{} windows in {rounds} lives", windows.len());
}

/// Servers over one store: sent to both, a window is stored once, and its results are made once.
#[test]
fn two_servers_share_a_store() {
    let place = Place::new();
    let servers: [Server; 2] = std::array::from_fn(|number| place.start_number(number, ""));
    let host = servers[0].enroll("kvm1");
    let windows: Vec<Window> = (0..10).map(|number| window("kvm1", 100 + number)).collect();
    for window in &windows {
        let mut states: Vec<u16> = std::thread::scope(|scope| {
            let sent = servers.each_ref().map(|server| {
                let host = &host;
                scope.spawn(move || server.put(window, host).status)
            });
            sent.map(|sent| sent.join().unwrap()).into()
        });
        states.sort_unstable();
        assert_eq!(states, [200, 201]);
    }
    place.wait_for_results(windows.len());
    assert_eq!(place.objects("raw/").len(), windows.len());
    let sum = |name: &str| servers.iter().map(|server| server.metric(name)).sum::<f64>();
    wait_until("all", || sum("vmscope_server_windows_analyzed_total") == windows.len() as f64);
    assert_eq!(sum("vmscope_server_windows_stored_total"), windows.len() as f64);
}

/// What is kept long enough goes, day by day; what is not done yet is done at the next start.
#[test]
fn days_end_and_what_is_left_to_do_is_found() {
    let place = Place::new();
    let mut server = place.start("");
    let host = server.enroll("kvm1");
    assert_eq!(server.put(&window("kvm1", 100), &host).status, 201);
    place.wait_for_results(1);
    server.kill();
    fs::remove_dir_all(place.store().join("results")).unwrap();
    let old = |prefix: &str, end: &str| {
        let file = place
            .store()
            .join(format!("{prefix}/day=2020-01-01/host=kvm1/{BOOT}-00000000000000000001{end}"));
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, "").unwrap();
    };
    old("raw/v1", ".window");
    old("results/v1/hosts", ".parquet");
    old("results/v1/vcpu_time", ".parquet");
    old("refused/v1", ".json");
    old("failed/v1", ".json");
    let server = place.start("");
    place.wait_for_results(1);
    let is_old = |name: &String| name.contains("day=2020-01-01");
    wait_until("the end of old days", || !place.objects("").iter().any(is_old));
    assert!(!place.store().join("raw/v1/day=2020-01-01").exists());
    assert_eq!(place.objects("raw/").len(), 1);
    wait_until("metric", || server.metric("vmscope_server_objects_expired_total") == 5.0);
}

/// `vmscope-server analyze`, for engines that share the work out: twice is once.
#[test]
fn windows_are_analysed_by_hand() {
    let place = Place::new();
    let server = place.start("");
    let host = server.enroll("kvm1");
    let windows = [window("kvm1", 100), window("kvm1", 200)];
    for window in &windows {
        assert_eq!(server.put(window, &host).status, 201);
    }
    place.wait_for_results(2);
    assert_eq!(server.run(&["left"]), "");
    let names = place.objects("results/v1/hosts/");
    assert_eq!(server.run(&["objects", "hosts"]), names.join("\n"));
    assert_eq!(server.run(&["objects", "hosts", "--host", "kvm2"]), "");
    let results: Vec<_> = names.iter().map(|name| place.store().join(name)).collect();
    let first = fs::read(&results[0]).unwrap();
    results.iter().for_each(|file| fs::remove_file(file).unwrap());
    let left = server.run(&["left"]);
    assert_eq!(left, place.objects("raw/").join("\n"));
    let [id, other] = windows.map(|window| window.id.to_string());
    let both = [left.lines().next().unwrap(), &other];
    // By the name of the object or of the window.
    let said = server.run(&["analyze", both[0], both[1]]);
    assert_eq!(said, format!("{id} analysed\n{other} analysed"));
    let said = server.run(&["analyze", both[0], both[1]]);
    assert_eq!(said, format!("{id} known\n{other} known"));
    assert!(fs::read(&results[0]).unwrap() == first, "the same window gives the same bytes");

    // One that can't be analysed is set aside, and no worker takes it any more.
    let raw = place.store().join(both[0]);
    fs::remove_file(&results[0]).unwrap();
    fs::remove_file(&raw).unwrap();
    fs::write(&raw, "damaged").unwrap();
    let said = server.run(&["analyze", both[0]]);
    assert!(said.starts_with(&format!("{id} failed: ")), "{said}");
    assert_eq!(place.objects("failed/").len(), 1);
    assert_eq!(server.run(&["left"]), "");
}

/// Its journal may go away before it does.
#[test]
fn it_stops_without_a_reader_of_its_output() {
    let place = Place::new();
    let mut child = Command::new(env!("CARGO_BIN_EXE_vmscope-server"))
        .arg("--config")
        .arg(place.config(0, ""))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("listening on") {
        line.clear();
        assert_ne!(said.read_line(&mut line).unwrap(), 0);
    }
    drop(said);
    assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    let mut ended = None;
    wait_until("its end", || {
        ended = child.try_wait().unwrap();
        ended.is_some()
    });
    assert!(ended.unwrap().success());
}
