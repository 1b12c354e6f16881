//! A server, hosts that are replayed, and what users ask: real programs over TLS, without root.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use acceptance::fleet::{Fault, Server};
use acceptance::root;
use acceptance::storm::{Storm, Survived, storm};
use serde_json::Value;

/// A recording of 3 ms.
fn recording() -> String {
    root().join("tests/golden/recording/before-waits").to_str().unwrap().to_owned()
}

fn vmscope(server: &Server, words: &[&str], more: &[String]) -> Output {
    let more = more.iter().map(String::as_str);
    server.vmscope(&words.iter().copied().chain(more).collect::<Vec<_>>()).unwrap()
}

/// The JSON that a command prints when all is well.
#[track_caller]
fn json(server: &Server, words: &[&str], more: &[String]) -> Value {
    let output = vmscope(server, &[words, &["--format", "json"]].concat(), more);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Fails with this exit code and one line, which has this text.
#[track_caller]
fn refused(output: &Output, code: i32, text: &str) {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(code), "{error}");
    assert!(error.lines().count() == 1 && error.contains(text), "{error}");
}

#[test]
fn hosts_are_replayed_queried_and_downloaded() {
    let mut server = Server::start(&[], "").unwrap();
    let (agent, read) = (server.address("agent").unwrap(), server.address("read").unwrap());
    let query =
        |server: &Server, words: &[&str]| vmscope(server, &[&["query"], words].concat(), &[]);
    refused(&query(&server, &["list"]), 1, "use `vmscope query login` first");
    refused(&vmscope(&server, &["query", "login"], &agent), 1, "role does not allow this");
    let mut wrong = read.clone();
    wrong[3] = "wrong".to_owned();
    refused(&vmscope(&server, &["query", "login"], &wrong), 1, "token is not known");
    let mut other = read.clone();
    other[5] = "0".repeat(64);
    refused(&vmscope(&server, &["query", "login"], &other), 1, "another server");
    other[5] = "0a".to_owned();
    refused(&vmscope(&server, &["query", "login"], &other), 2, "64 hexadecimal digits");
    assert!(vmscope(&server, &["query", "login"], &read).status.success());

    // The same folder: the same windows.
    let folder = tempfile::tempdir().unwrap();
    let (state, acknowledged) = (path(folder.path(), "state"), path(folder.path(), "acknowledged"));
    let recording = recording();
    let words = [
        "replay",
        &recording,
        "--hosts",
        "3",
        "--rounds",
        "2",
        "--name",
        "made",
        "--state",
        &state,
        "--acknowledged",
        &acknowledged,
    ];
    let sent = json(&server, &words, &agent);
    assert_eq!(
        (&sent["accepted"], &sent["known"], &sent["refused"]),
        (&6.into(), &0.into(), &0.into())
    );
    assert_eq!(std::fs::read_to_string(&acknowledged).unwrap().lines().count(), 6);
    assert_eq!(json(&server, &words, &agent)["sent"], 0);
    std::fs::remove_file(&acknowledged).unwrap();
    let sent = json(&server, &words, &agent);
    assert_eq!((&sent["accepted"], &sent["known"]), (&0.into(), &6.into()), "{sent}");
    refused(&vmscope(&server, &["replay", &recording], &wrong), 1, "token is not known");
    refused(&vmscope(&server, &["replay", "/nowhere"], &agent), 1, "/nowhere");
    server.wait_for_results(6).unwrap();

    let list = json(&server, &["query", "list"], &[]);
    assert!(list["rows"].as_array().unwrap().iter().any(|row| row[0] == "thieves"), "{list}");
    let windows = json(&server, &["query", "windows", "--host", "made-0002"], &[]);
    assert_eq!(windows["rows"].as_array().unwrap().len(), 2);
    let window = windows["rows"][0][2].as_str().unwrap();
    let hosts = "SELECT host, count(*) AS n FROM hosts GROUP BY host ORDER BY host";
    let hosts = json(&server, &["query", "sql", hosts], &[]);
    assert_eq!(
        hosts["rows"],
        serde_json::json!([["made-0001", 2], ["made-0002", 2], ["made-0003", 2]])
    );
    assert_eq!((&hosts["windows"], &hosts["partial"]), (&6.into(), &serde_json::json!([])));
    let steal = query(&server, &["run", "hosts-by-steal", "--format", "csv"]);
    assert_eq!(String::from_utf8(steal.stdout).unwrap().lines().count(), 4);
    let text = query(&server, &["run", "hosts-by-steal", "--host", "made-0001"]);
    assert!(String::from_utf8(text.stdout).unwrap().starts_with("Windows: 2\n"));

    let explained = json(&server, &["explain", "made-0001/vm", "--since", "1h"], &[]);
    assert_eq!(explained["findings"], serde_json::json!([]));
    refused(&query(&server, &["run", "nothing"]), 2, "no query");
    refused(&query(&server, &["run", "a/b"]), 2, "no such query");
    refused(&query(&server, &["run", "thieves"]), 2, "needs vm");
    refused(&query(&server, &["run", "thieves", "--vm", "a", "--from", "now"]), 2, "is not a time");
    refused(&query(&server, &["sql", "DROP TABLE hosts"]), 2, "only a SELECT is answered");
    refused(&query(&server, &["windows", "--from", "today"]), 2, "YYYY-MM-DD");

    let there = path(folder.path(), "there");
    assert!(query(&server, &["download", window, "-o", &there]).status.success());
    let report = acceptance::report(Path::new(&there), &[]).unwrap();
    let original = acceptance::report(Path::new(&recording), &[]).unwrap();
    assert!(0 < original.samples());
    assert_eq!(report.samples(), original.samples());
    assert_eq!(report.0["recording"]["hostname"], "made-0002");
    refused(&query(&server, &["download", window, "-o", &there]), 1, "exists");
    let unknown = format!("made-0001/{}/{:020}", "0a".repeat(16), 1);
    refused(&query(&server, &["download", &unknown, "-o", "x"]), 2, "no such window");
    refused(&query(&server, &["download", "x", "-o", "x"]), 2, "HOST/BOOT/START");

    let took = json(&server, &["capacity", &recording, "--hosts", "4"], &agent);
    assert_eq!((&took["t1_ns"], &took["all_windows"]), (&3_000_000.into(), &4.into()));
    let positive = |key: &str| 0.0 < took[key].as_f64().unwrap();
    assert!(["t0_ns", "t2_ns", "hosts_measured"].into_iter().all(positive), "{took}");

    server.kill().unwrap();
    refused(&query(&server, &["list"]), 1, "failed to reach https://127.0.0.1");
}

#[test]
fn findings_are_silenced_from_the_command_line() {
    let server = Server::start(&[], "").unwrap();
    let query = |words: &[&str]| vmscope(&server, &[&["query"], words].concat(), &[]);
    let silence = ["silence", "--vm", "db", "--for", "90s", "--note", "load test"];
    let log_in = |role: &str| {
        let login = vmscope(&server, &["query", "login"], &server.address(role).unwrap());
        assert!(login.status.success());
    };
    log_in("read");
    refused(&query(&silence), 1, "role does not allow this");
    log_in("admin");
    refused(&query(&["silence", "--for", "1h"]), 2, "needs a finding");
    refused(&query(&["silence", "--kind", "x", "--for", "1h"]), 2, "kind must be one of");
    refused(&query(&["unsilence", "../hosts/a"]), 2, "16 hexadecimal digits");
    refused(&query(&["unsilence", "0123456789abcdef"]), 2, "there is none");
    refused(&query(&["acknowledge", "0123456789abcdef"]), 2, "no such finding");
    refused(&query(&["acknowledge", "0123456789abcdef", "--undo"]), 2, "there is none");
    assert!(query(&silence).status.success());
    let listed = json(&server, &["query", "silences"], &[]);
    assert_eq!(listed.get("windows"), None);
    let shown = query(&["silences"]).stdout;
    let shown = String::from_utf8(shown).unwrap();
    let until = shown.lines().nth(1).unwrap().split_whitespace().nth(5).unwrap();
    assert!(until.starts_with("20") && until.ends_with('Z'), "{shown}");
    let row = &listed["rows"][0];
    assert_eq!((&row[3], &row[6], &row[7]), (&"db".into(), &"test".into(), &"load test".into()));
    assert!(query(&["unsilence", row[0].as_str().unwrap()]).status.success());
    assert_eq!(json(&server, &["query", "silences"], &[])["rows"], serde_json::json!([]));
}

fn path(folder: &Path, name: &str) -> String {
    let path: PathBuf = folder.join(name);
    path.to_str().unwrap().to_owned()
}

#[test]
fn what_was_acknowledged_survives_kills() {
    let short = Storm {
        hosts: 20,
        senders: 4,
        rate: 8.0,
        seconds: 20.0,
        kills: 5,
        seed: 20_261_123,
        service: None,
    };
    survive(&short);
}

#[test]
fn what_was_acknowledged_survives_kills_of_an_s3_service() {
    let Some(program) = std::env::var_os("VMSCOPE_S3_SERVER") else {
        eprintln!("skipped: VMSCOPE_S3_SERVER names no S3 server (make test-all installs one)");
        return;
    };
    let service = Some(program.into());
    let short = Storm {
        hosts: 20,
        senders: 4,
        rate: 8.0,
        seconds: 60.0,
        kills: 30,
        seed: 20_261_124,
        service,
    };
    let killed = survive(&short).kills;
    assert!(killed.iter().all(|kills| 3 <= *kills), "{killed:?}");
}

/// An S3 service that is slow, fails, and hangs up in mid-write.
#[test]
fn a_faulty_line_to_an_s3_service_loses_nothing() {
    let Some(program) = std::env::var_os("VMSCOPE_S3_SERVER") else {
        eprintln!("skipped: VMSCOPE_S3_SERVER names no S3 server (make test-all installs one)");
        return;
    };
    let server = Server::start_over_service(Path::new(&program), "").unwrap();
    let (agent, read) = (server.address("agent").unwrap(), server.address("read").unwrap());
    assert!(vmscope(&server, &["query", "login"], &read).status.success());
    let line = &server.service.as_ref().unwrap().line;
    let recording = recording();
    let words = ["replay", &recording, "--hosts", "10", "--rounds", "8", "--rate", "2"];
    let sent = std::thread::scope(|scope| {
        let replay = scope.spawn(|| json(&server, &words, &agent));
        for fault in [Fault::Breaks, Fault::Fails, Fault::Slow].into_iter().cycle() {
            if replay.is_finished() {
                break;
            }
            // Until it was met.
            let before = line.met()[fault as usize];
            line.set(fault);
            while line.met()[fault as usize] < before + 8 && !replay.is_finished() {
                std::thread::sleep(Duration::from_millis(20));
            }
            line.set(Fault::None);
            std::thread::sleep(Duration::from_secs(3));
        }
        replay.join().unwrap()
    });
    eprintln!("{sent}; met: {:?}", line.met());
    assert!(line.met().iter().all(|met| 8 <= *met), "{:?}", line.met());
    assert_eq!(sent["accepted"].as_u64().unwrap() + sent["known"].as_u64().unwrap(), 80);
    assert_eq!((&sent["refused"], server.objects("refused").len()), (&0.into(), 0));
    server.wait_for_results(80).unwrap();
    assert_eq!(server.objects("raw").len(), 80);
    let counted = "SELECT count(*) AS n, count(DISTINCT host) AS hosts FROM hosts";
    let counted = json(&server, &["query", "sql", counted], &[]);
    assert_eq!(
        (&counted["rows"], &counted["partial"]),
        (&serde_json::json!([[80, 10]]), &serde_json::json!([]))
    );
}

fn survive(short: &Storm) -> Survived {
    let survived = storm(short).unwrap();
    eprintln!("{survived:?}");
    assert!(20 <= survived.acknowledged, "{survived:?}");
    assert_eq!(survived.answers[0], short.kills);
    assert!(survived.server_bytes < 1 << 30, "{survived:?}");
    survived
}
