//! `vmscope export` as a user runs it, on recordings of the drawn world.

#![allow(clippy::unwrap_used)]

#[path = "../../../crates/analysis/tests/world/mod.rs"]
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use model::{CpuId, Sample};
use parquet::file::metadata::ParquetMetaDataReader;
use recording::{Writer, encode};

/// Samples of the drawn world in the unified view.
const TOTAL: u64 = 70;

/// A recording and an empty folder beside it, both of their own for each test.
fn recorded(name: &str) -> (PathBuf, PathBuf) {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("export-{name}"));
    let _ = std::fs::remove_dir_all(&dir);
    let out = dir.join("out");
    std::fs::create_dir_all(&out).unwrap();
    let writer = Writer::create(&dir.join("recording"), &world::header()).unwrap();
    let mut samples = world::samples(world::EVERYTHING);
    samples.sort_by_key(|sample| sample.time);
    for cpu in [0, 1] {
        let of_cpu = samples.iter().filter(|sample: &&Sample| sample.cpu == CpuId(cpu));
        let records: Vec<u8> = of_cpu.flat_map(encode).collect();
        writer.spool(CpuId(cpu)).unwrap().append(&records).unwrap();
    }
    writer.finish(&world::header(), &world::tables()).unwrap();
    (dir.join("recording"), out)
}

fn vmscope(recording: &Path, cwd: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vmscope"));
    command.arg("export").arg(recording).args(args).current_dir(cwd);
    command
}

fn run(recording: &Path, cwd: &Path, args: &[&str]) -> Output {
    vmscope(recording, cwd, args).output().unwrap()
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn folded_total(text: &str) -> u64 {
    text.lines().map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
}

#[test]
fn every_format_gets_its_file_and_says_how_to_open_it() {
    let (recording, out) = recorded("files");
    for (format, file) in [
        ("folded", "profile.folded"),
        ("pprof", "profile.pb.gz"),
        ("firefox", "profile.json.gz"),
        ("html", "flamegraph.html"),
    ] {
        let output = run(&recording, &out, &["--format", format]);
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success() && output.stdout.is_empty(), "{message}");
        assert!(message.contains(&format!("wrote {file}: {TOTAL} samples, unified view")));
        assert!(message.contains("\nopen it with: "), "{message}");
    }
    let output = run(&recording, &out, &["--format", "perfetto"]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(
        message
            .contains("wrote trace.perfetto: 3 vCPUs on 2 CPUs, unified view, edges by samples\n"),
        "{message}"
    );
    let files =
        ["flamegraph.html", "profile.folded", "profile.json.gz", "profile.pb.gz", "trace.perfetto"];
    assert_eq!(names(&out), files);
    let read = |file: &str| std::fs::read(out.join(file)).unwrap();
    assert_eq!(folded_total(&String::from_utf8(read("profile.folded")).unwrap()), TOTAL);
    for gzipped in ["profile.pb.gz", "profile.json.gz"] {
        assert!(read(gzipped).starts_with(&[0x1f, 0x8b]), "{gzipped}");
    }
    let page = String::from_utf8(read("flamegraph.html")).unwrap();
    assert!(page.contains("<dt>Samples</dt><dd>70</dd>"));
    assert!(
        page.contains("<li>vm2: no guest map: no vsock device"),
        "the page names what is missing"
    );
    assert_eq!(page.matches("\"kind\":\"vcpu\"").count(), 3, "a lane per vCPU");
}

/// Intervals of a vCPU touch, and are in both files.
#[test]
fn intervals_of_vcpus() {
    let (recording, out) = recorded("intervals");
    let csv = run(&recording, &out, &["--format", "csv", "-o", "-"]);
    assert!(csv.status.success() && csv.stderr.is_empty(), "{csv:?}");
    let csv = String::from_utf8(csv.stdout).unwrap();
    let lines: Vec<Vec<&str>> = csv.lines().skip(1).map(|it| it.split(',').collect()).collect();
    let (mut ends, mut states) = (BTreeMap::new(), BTreeSet::new());
    for line in &lines {
        let [from, ns] = [0, 1].map(|column| line[column].parse::<u64>().unwrap());
        let end = ends.entry((line[2], line[3])).or_insert(from);
        assert_eq!(*end, from, "{line:?}");
        *end += ns;
        states.insert(line[4]);
    }
    assert_eq!(ends.len(), 3, "each vCPU");
    assert!(states.contains("guest_user"), "{states:?}");
    let parquet = run(&recording, &out, &["--format", "parquet"]);
    let message = String::from_utf8(parquet.stderr).unwrap();
    assert!(message.contains("wrote intervals.parquet: 3 vCPUs on 2 CPUs"), "{message}");
    let file = std::fs::File::open(out.join("intervals.parquet")).unwrap();
    let metadata = ParquetMetaDataReader::new().parse_and_finish(&file).unwrap();
    assert_eq!(usize::try_from(metadata.file_metadata().num_rows()).unwrap(), lines.len());
    let one = ["--format", "csv", "-o", "-", "--vm", "vm1", "--vcpu", "0"];
    let one = String::from_utf8(run(&recording, &out, &one).stdout).unwrap();
    let of_one = |line: &&Vec<&str>| line[2..4] == ["vm1", "0"];
    assert_eq!(one.lines().count() - 1, lines.iter().filter(of_one).count());
    let pipe = ["--format", "parquet", "-o", "-"];
    check_error(&recording, &out, &pipe, 2, "a Parquet file can't be written to a pipe");
}

#[test]
fn a_selection_goes_to_standard_output() {
    let (recording, out) = recorded("select");
    let args =
        ["--format", "folded", "-o", "-", "--view", "guest", "--vm", "vm1", "--process", "42"];
    let output = run(&recording, &out, &args);
    assert!(output.status.success() && output.stderr.is_empty());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.lines().all(|line| line.starts_with("[vm1];compute;")), "{text}");
    assert_ne!(folded_total(&text), 0);
    let page =
        run(&recording, &out, &["--format", "html", "-o", "-", "--view", "guest", "--vm", "vm1"]);
    let page = String::from_utf8(page.stdout).unwrap();
    assert!(page.contains("<li>guest view: halt, steal and throttling are no samples"));
    for lost in [
        "missed: 7 interrupts (3.5 %): cpu1 7",
        "dropped: 3 samples: cpu1 3",
        "counted: maps_cut 1",
    ] {
        assert!(page.contains(&format!("<li>{lost}</li>")), "{lost}");
    }
    assert!(!page.contains("samples_written_"));
    assert_eq!(names(&out), [""; 0]);
}

#[test]
fn the_report_prints_the_same_page() {
    let (recording, out) = recorded("report");
    let args = ["--format", "html", "--vm", "vm1", "--offcpu-source", "samples"];
    let page = run(&recording, &out, &[&args[..], &["-o", "-"]].concat()).stdout;
    let mut command = Command::new(env!("CARGO_BIN_EXE_vmscope"));
    command.arg("report").arg(&recording).args(args);
    let report = command.output().unwrap();
    assert!(report.status.success() && report.stderr.is_empty(), "{report:?}");
    assert!(!page.is_empty() && page == report.stdout);
}

/// Fails with this exit code and one line that says so, and writes nothing.
fn check_error(recording: &Path, out: &Path, args: &[&str], code: i32, line: &str) {
    let before = names(out);
    let output = run(recording, out, args);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert_eq!((output.stdout.len(), stderr.lines().count()), (0, 1), "{stderr}");
    assert!(stderr.contains(line), "{stderr}");
    assert_eq!(names(out), before);
}

#[test]
fn errors() {
    let (recording, out) = recorded("errors");
    let html = ["--format", "html"];
    let with = |more: [&'static str; 2]| [html, more].concat();
    check_error(&recording, &out, &with(["--vm", "vm9"]), 2, "no VM named \"vm9\"");
    check_error(&recording, &out, &with(["--view", "guest"]), 2, "choose a VM with --vm");
    check_error(&recording, &out, &with(["-o", "."]), 2, "is a folder");
    check_error(
        &recording,
        &out,
        &with(["--process", "absent"]),
        1,
        "no sample of process \"absent\"",
    );
    check_error(&recording, &out, &with(["-o", "no/such/dir/a.html"]), 1, "no/such/dir/a.html");
    let perfetto = ["--format", "perfetto"];
    for more in [["--view", "host"], ["--process", "compute"]] {
        let args = [perfetto, more].concat();
        check_error(&recording, &out, &args, 2, "leave out --view and --process");
    }
    let edges = "--offcpu-source is about vCPUs in time, which --format folded, pprof and firefox don't show";
    check_error(&recording, &out, &["--format", "pprof", "--offcpu-source", "samples"], 2, edges);
    check_error(&recording, &out, &with(["--edges", "switches"]), 2, "no switches of vCPUs");
    check_error(Path::new("/no/such/recording"), &out, &html, 1, "/no/such/recording");
    check_error(&out, &out, &html, 1, "is not a recording");
}

#[test]
fn a_full_disk_leaves_nothing_behind() {
    let (recording, out) = recorded("full");
    std::fs::write(out.join("flamegraph.html"), "before").unwrap();
    // A limit on file sizes fails the write as a full disk does.
    let script = "trap '' XFSZ; ulimit -f 1; exec \"$0\" export \"$1\" --format html";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_vmscope")]).arg(&recording).current_dir(&out);
    let output = command.output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("failed to write flamegraph.html"), "{stderr}");
    assert_eq!(names(&out), ["flamegraph.html"]);
    assert_eq!(std::fs::read_to_string(out.join("flamegraph.html")).unwrap(), "before");
}

#[test]
fn devices_and_readers_that_leave_are_no_error() {
    let (recording, out) = recorded("pipe");
    assert!(run(&recording, &out, &["--format", "pprof", "-o", "/dev/null"]).status.success());
    assert!(!Path::new("/dev/null").metadata().unwrap().is_file());
    let mut command = vmscope(&recording, &out, &["--format", "html", "-o", "-"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}
