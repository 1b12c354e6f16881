//! Runs `vmscope lab split` on captures drawn by code, and compares its output with tests/golden/lab.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use model::{
    HostNs, Machine, MachineId, Pid, Tid, TraceEvent, TraceEventKind, TraceTables, TraceTask,
};
use recording::trace::{TraceHeader, TraceWriter};
use split::drawn::{self, Drawing};

const WEB: &str = "10.0.0.2:80";
const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vmscope-lab"))
        .args(["lab", "split"])
        .args(arguments)
        .output()
        .unwrap()
}

fn check(name: &str, arguments: &[&str]) {
    let output = run(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let actual = String::from_utf8(output.stdout).unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/lab").join(name);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &actual).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(actual == expected, "{name} differs: run again with UPDATE=1 and read the change");
}

/// Five requests: with two queries, with none, with one that the capture lacks a packet of, and two at the same time.
fn drawing() -> Drawing {
    let mut drawing = Drawing::default();
    let db = drawing.open(10, "10.0.0.2:50000", "10.0.0.3:5432");
    drawing.client(db, 20, &drawn::pg_startup(0x30000, b"user\0a\0\0"));
    drawing.server(db, 900, &[drawn::pg(b'R', &[0; 4]), drawn::pg(b'Z', b"I")].concat());
    let query = |drawing: &mut Drawing, from: u64, to: u64| {
        drawing.client(db, from, &drawn::pg(b'Q', b"select 1\0"));
        drawing.server(db, to, &[drawn::pg(b'C', b"SELECT 1\0"), drawn::pg(b'Z', b"I")].concat());
    };
    let request = |drawing: &mut Drawing, port: u16, target: &str, from: u64, to: u64| {
        let line = drawing.open(from - 5, &format!("10.0.0.9:{port}"), WEB);
        drawing.client(line, from, format!("GET {target} HTTP/1.1\r\n\r\n").as_bytes());
        drawing.server(line, to, OK);
        drawing.close(line, to + 1);
    };
    request(&mut drawing, 1, "/two?a=1,2", 2_000, 30_000);
    query(&mut drawing, 4_500, 9_000);
    query(&mut drawing, 12_250, 14_000);
    request(&mut drawing, 2, "/none", 40_000, 41_500);
    query(&mut drawing, 42_000, 43_000);
    request(&mut drawing, 3, "/lost", 50_000, 60_000);
    query(&mut drawing, 52_000, 55_000);
    drawing.packets.pop();
    request(&mut drawing, 4, "/together", 70_000, 80_000);
    request(&mut drawing, 5, "/together", 71_000, 82_000);
    query(&mut drawing, 65_000, 66_000);
    query(&mut drawing, 75_000, 76_000);
    drawing
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn file(&self, name: &str, bytes: &[u8]) -> String {
        let path: PathBuf = self.0.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

#[test]
fn every_format() {
    let folder = Folder(tempfile::tempdir().unwrap());
    let file = folder.file("a.pcapng", &drawn::pcapng(&drawing().in_order()));
    check("split.txt", &[&file]);
    check("split.csv", &[&file, "--format", "csv"]);
    check("split-parts.csv", &[&file, "--format", "csv", "--by", "part"]);
    check("split.json", &[&file, "--format", "json"]);
}

#[test]
fn several_files_are_one_capture() {
    let folder = Folder(tempfile::tempdir().unwrap());
    let (web, db): (Vec<_>, Vec<_>) = drawing().in_order().into_iter().partition(|packet| {
        // The ports of either end.
        ![&packet.frame[34..36], &packet.frame[36..38]].contains(&&5432_u16.to_be_bytes()[..])
    });
    let files = [
        folder.file("web.pcapng", &drawn::pcapng(&web)),
        folder.file("db.pcapng", &drawn::pcapng(&db)),
    ];
    check("split.txt", &[&files[0], &files[1]]);
}

/// As `tcpdump -C` makes them.
#[test]
fn a_file_goes_on_where_another_one_has_ended() {
    let folder = Folder(tempfile::tempdir().unwrap());
    let packets = drawing().in_order();
    let (first, second) = packets.split_at(packets.len() / 2);
    let files = [
        folder.file("a1.pcapng", &drawn::pcapng(first)),
        folder.file("a2.pcapng", &drawn::pcapng(second)),
    ];
    check("split.txt", &[&files[0], &files[1]]);
    check("split.txt", &[&files[1], &files[0]]);
}

#[test]
fn what_is_wrong_is_said_in_one_line() {
    let folder = Folder(tempfile::tempdir().unwrap());
    let check = |arguments: &[&str], code, says: &str| {
        let output = run(arguments);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(code), 0), "{stderr}");
        assert!(stderr.contains(says) && stderr.lines().count() == 1, "{stderr}");
    };
    check(&["no-such.pcap"], 1, "failed to open no-such.pcap");
    check(&[&folder.file("a", b"not a capture")], 2, "neither a pcap nor a pcapng file");
    check(&[folder.0.path().to_str().unwrap()], 2, "is a folder");
    let capture = folder.file("b", &drawn::pcapng(&[]));
    check(&[&capture, "--web", "here"], 2, "ADDRESS:PORT");
    check(&[&capture, "--alias", "10.0.0.1"], 2, "WEB=OTHER");
    let no_trace = folder.0.path().join("no-trace");
    let trace = ["--trace", no_trace.to_str().unwrap(), "--vm", "web=10.0.0.2"];
    check(&[&[&*capture], &trace[..]].concat(), 1, "no-trace");
}

#[test]
fn a_cut_file_counts_as_far_as_it_goes() {
    let folder = Folder(tempfile::tempdir().unwrap());
    let bytes = drawn::pcapng(&drawing().in_order());
    let output = run(&[&folder.file("a", &bytes[..bytes.len() - 10])]);
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stdout}");
    assert!(stdout.contains("ends in the middle of a packet"), "{stdout}");
}

/// A trace of VM `web`, whose PostgreSQL is queried at microsecond 2000 and has answered at 5000. Its clock began at
/// the capture's microsecond 1000.
fn trace(path: &Path) {
    let at = |us: u64| HostNs((us - 1000) * 1000);
    let task = |tid: u32, name: &str| TraceTask {
        machine: MachineId(1),
        tid: Tid(tid),
        pid: Pid(tid),
        parent: Pid(1),
        name: name.to_owned(),
        kernel: false,
        asleep_in: None,
        in_call: None,
    };
    let machine = |name: &str, cpus: &[u32]| Machine {
        name: name.to_owned(),
        cpus: cpus.to_vec(),
        begin: at(1000),
        end: at(50_000),
        ..Machine::default()
    };
    let tables = TraceTables {
        machines: vec![machine("host", &[]), machine("web", &[0])],
        tasks: vec![task(10, "postgres"), task(20, "gunicorn")],
        ..TraceTables::default()
    };
    let header = TraceHeader {
        begin: at(1000),
        end: at(50_000),
        begin_unix_ns: drawn::at(1000).0,
        ..TraceHeader::default()
    };
    let event = |us, kind| TraceEvent { time: at(us), machine: MachineId(1), cpu: 0, kind };
    let (db, web) = (Tid(10), Tid(20));
    let events = [
        event(2000, TraceEventKind::Waking { task: db, by: web }),
        event(2100, TraceEventKind::SyscallExit { task: db, number: 45, failed: false }),
        event(4900, TraceEventKind::SyscallEnter { task: db, number: 44 }),
        event(5000, TraceEventKind::Waking { task: web, by: db }),
        event(5100, TraceEventKind::SyscallExit { task: db, number: 44, failed: false }),
    ];
    let writer = TraceWriter::create(path, &header, &tables).unwrap();
    writer.spool(MachineId(1), 0).unwrap().append(&events).unwrap();
    writer.finish(&header, &tables).unwrap();
}

#[test]
fn a_trace_splits_what_no_tap_sees() {
    let folder = Folder(tempfile::tempdir().unwrap());
    let mut drawing = Drawing::default();
    let line = drawing.open(1200, "10.0.0.9:1", WEB);
    drawing.client(line, 1500, b"GET /a HTTP/1.1\r\n\r\n");
    drawing.server(line, 9000, OK);
    let file = folder.file("a.pcapng", &drawn::pcapng(&drawing.in_order()));
    let dir = folder.0.path().join("trace");
    trace(&dir);
    let split =
        |vm: &str| run(&[&file, "--format", "json", "--trace", dir.to_str().unwrap(), "--vm", vm]);
    let output = split("web=10.0.0.2");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let request = &found["requests"][0];
    let ns = ["c_w_d_ns", "w_d_w_ns", "d_w_c_ns"].map(|part| request[part].as_u64());
    assert_eq!(ns, [500_000, 3_000_000, 4_000_000].map(Some), "{request}");
    let other = split("db=10.0.0.2");
    let stderr = String::from_utf8_lossy(&other.stderr);
    assert_eq!(other.status.code(), Some(2));
    assert!(stderr.contains("the trace has no machine db: it has web"), "{stderr}");
}
