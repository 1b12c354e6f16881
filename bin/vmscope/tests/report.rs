//! `vmscope report` as a user runs it, on recordings of the drawn world; compared with
//! tests/golden/report.

#![allow(clippy::unwrap_used)]

#[path = "../../../crates/analysis/tests/world/mod.rs"]
mod world;

#[path = "report/gaps.rs"]
mod gaps;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use model::{CpuId, Header, Sample, Switch, SymbolName, Tables};
use recording::{Writer, encode};

/// A recording of its own for each test.
fn recorded(name: &str, header: &Header, tables: &Tables) -> PathBuf {
    let (path, writer) = spooled(name, header);
    writer.finish(header, tables).unwrap();
    path
}

/// Like `recorded`, but its writer never finishes.
fn killed(name: &str, header: &Header, tables: &Tables) -> PathBuf {
    let (path, writer) = spooled(name, header);
    writer.checkpoint(header, tables).unwrap();
    path
}

fn spooled(name: &str, header: &Header) -> (PathBuf, Writer) {
    spooled_with(name, header, &world::samples(world::EVERYTHING), &[])
}

fn spooled_with(
    name: &str,
    header: &Header,
    samples: &[Sample],
    switches: &[Switch],
) -> (PathBuf, Writer) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("report-{name}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("recording");
    let writer = Writer::create(&path, header).unwrap();
    for cpu in [0, 1] {
        let of_cpu = samples.iter().filter(|sample: &&Sample| sample.cpu == CpuId(cpu));
        let records: Vec<u8> = of_cpu.flat_map(encode).collect();
        writer.spool(CpuId(cpu)).unwrap().append(&records).unwrap();
    }
    writer.switch_spool().unwrap().append(switches).unwrap();
    (path, writer)
}

fn world_recorded(name: &str) -> PathBuf {
    recorded(name, &world::header(), &world::tables())
}

fn report(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vmscope"));
    command.arg("report").arg(dir).args(args).output().unwrap()
}

fn check(dir: &Path, args: &[&str], golden: &str) {
    let output = report(dir, args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let actual = String::from_utf8(output.stdout).unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/report").join(golden);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &actual).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(actual, expected, "{golden} (UPDATE=1 rewrites)");
}

/// Fails with this exit code and one line that says so.
fn check_error(dir: &Path, args: &[&str], code: i32, line: &str) {
    let output = report(dir, args);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert_eq!((output.stdout.len(), stderr.lines().count()), (0, 1), "{stderr}");
    assert!(stderr.contains(line), "{stderr}");
}

#[test]
fn calls() {
    let dir = world_recorded("calls");
    check(&dir, &["--children"], "children.txt");
    check(&dir, &["--by", "stack"], "stacks.txt");
    check(&dir, &["--by", "stack", "--format", "json"], "stacks.json");
    check(&dir, &["--callers", "svm_vcpu_run", "--format", "csv"], "callers.csv");
    let nothing = "no function nothing in the call stacks of this view: see vmscope report";
    check_error(&dir, &["--callees", "nothing"], 1, nothing);
    check_error(&dir, &["--children", "--callers", "main"], 2, "cannot be used with");
}

#[test]
fn formats() {
    let dir = world_recorded("formats");
    check(&dir, &[], "unified.txt");
    check(&dir, &["--limit", "3"], "limit.txt");
    check(&dir, &["--format", "json", "--limit", "4"], "unified.json");
    check(&dir, &["--format", "csv"], "unified.csv");
}

#[test]
fn names_from_guests_cannot_steer_the_terminal() {
    let mut tables = world::tables();
    let evil = "\x1b[2J\u{9b}31m,\"x\"\r\n\u{202e}";
    tables.images[5].name = evil.to_owned();
    tables.modules.iter_mut().for_each(|module| module.path = format!("/opt/{evil}"));
    for symbol in &mut tables.symbols {
        symbol.name = SymbolName::Function(evil.to_owned());
    }
    let dir = recorded("hostile", &world::header(), &tables);
    for format in ["text", "csv", "json"] {
        let output = report(&dir, &["--format", format]);
        let text = String::from_utf8(output.stdout).unwrap();
        let line_ends = ['\n', '\r'];
        let steering = text.chars().find(|c| c.is_control() && !line_ends.contains(c));
        assert_eq!(steering, None, "{format}");
        assert!(!text.contains('\u{202e}'), "{format}");
    }
    check(&dir, &["--format", "csv", "--limit", "2"], "hostile.csv");
    check(&dir, &["--process", "41"], "hostile.txt");
}

#[test]
fn what_a_killed_writer_left_is_reported_as_incomplete() {
    let header = Header { complete: false, ..world::header() };
    let dir = killed("killed", &header, &world::tables());
    let output = report(&dir, &[]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("\nIncomplete: ") && text.contains("\nTotal samples:70 "), "{text}");
}

#[test]
fn errors() {
    let dir = world_recorded("errors");
    check_error(
        &dir,
        &["--vm", "vm9"],
        2,
        "no VM named \"vm9\" in this recording; it has: vm1, vm2",
    );
    check_error(&dir, &["--view", "guest"], 2, "choose a VM with --vm: vm1, vm2");
    check_error(&dir, &["--vm", "vm1", "--vcpu", "4"], 2, "has no vCPU 4");
    let nosuch = "vmscope: no sample of process \"nosuch\" in this view: see vmscope report ";
    check_error(&dir, &["--process", "nosuch"], 1, nosuch);
    check_error(&dir, &["--process", "nosuch"], 1, "recording --by process\n");
    let limit = "invalid value 'x' for '--limit <N>': give a number of lines, 0 for all: see \
                 vmscope report --help\n";
    check_error(&dir, &["--limit", "x"], 2, limit);
    check_error(Path::new("/no/such/recording"), &[], 1, "/no/such/recording");
    check_error(Path::new(env!("CARGO_MANIFEST_DIR")), &[], 1, "vmscope");
    check_error(&Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"), &[], 1, "Cargo.toml");
}

#[test]
fn a_full_standard_output_is_named() {
    let dir = world_recorded("full");
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_vmscope"));
    let output = command.arg("report").arg(&dir).stdout(full).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.starts_with("vmscope: failed to write to standard output: "), "{stderr}");
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let dir = world_recorded("pipe");
    let mut child = Command::new(env!("CARGO_BIN_EXE_vmscope"))
        .args(["report", "--format", "json"])
        .arg(&dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}
