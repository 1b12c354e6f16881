//! `vmscope trace report`, `compare` and `export` as a user runs them, on a hand-made trace; compared with
//! tests/golden/report/trace-*.

#![allow(clippy::unwrap_used)]

#[path = "trace/fixture_trace.rs"]
mod fixture_trace;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use model::TraceTables;
use serde_json::Value;

/// A folder of its own for each test, in which there is the trace `seq`.
fn traced(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("trace-{name}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let (header, tables) = (fixture_trace::header(), fixture_trace::tables());
    fixture_trace::write(
        &folder.join("seq"),
        &header,
        &tables,
        &[fixture_trace::SEQUENTIAL, fixture_trace::GUEST],
    );
    folder
}

fn run(folder: &Path, arguments: &[&str]) -> Output {
    let mut vmscope = Command::new(env!("CARGO_BIN_EXE_vmscope"));
    vmscope.current_dir(folder).arg("trace").args(arguments).output().unwrap()
}

fn printed(folder: &Path, arguments: &[&str]) -> String {
    let output = run(folder, arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn check(folder: &Path, arguments: &[&str], golden: &str) {
    let actual = printed(folder, arguments);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/report").join(golden);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &actual).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(actual, expected, "{golden} (UPDATE=1 rewrites)");
    // Prose is for the reader's terminal to break.
    let table = actual.lines().filter(|line| !line.contains(": "));
    let widest = table.map(|line| line.chars().count()).max();
    assert!(!golden.ends_with("txt") || widest <= Some(104), "{golden}: {widest:?} columns");
}

/// Fails with this exit code and one line that says so.
fn check_error(folder: &Path, arguments: &[&str], code: i32, line: &str) {
    let output = run(folder, arguments);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert_eq!((output.stdout.len(), stderr.lines().count()), (0, 1), "{stderr}");
    assert!(stderr.contains(line), "{stderr}");
}

const VIEWS: [&str; 7] =
    ["profile", "states", "waits", "kernel", "critical-path", "process", "gantt"];

#[test]
fn every_view_as_text_and_csv() {
    let folder = traced("views");
    check(&folder, &["report", "seq"], "trace-overview.txt");
    for view in VIEWS {
        check(&folder, &["report", "seq", "--view", view], &format!("trace-{view}.txt"));
        if view != "gantt" {
            let csv = ["report", "seq", "--view", view, "--format", "csv"];
            check(&folder, &csv, &format!("trace-{view}.csv"));
        }
    }
}

/// With the events and the table that `--files` adds.
#[test]
fn files() {
    let folder = traced("files");
    let mut events = fixture_trace::SEQUENTIAL.to_owned();
    for (after, lines) in fixture_trace::OF_FILES {
        let at = events.find(&format!("    {after}")).unwrap();
        let end = at + events[at..].find('\n').unwrap() + 1;
        events.insert_str(end, &format!("    {}\n", lines.replace('\n', "\n    ")));
    }
    let header = fixture_trace::header();
    let tables = TraceTables { files: fixture_trace::files(), ..fixture_trace::tables() };
    let texts = [events.as_str(), fixture_trace::GUEST];
    fixture_trace::write(&folder.join("files"), &header, &tables, &texts);
    let view = ["report", "files", "--view", "files"];
    check(&folder, &view, "trace-files.txt");
    for format in ["csv", "json"] {
        let view = [&view[..], &["--format", format]].concat();
        check(&folder, &view, &format!("trace-files.{format}"));
    }
    check(&folder, &["report", "files", "--view", "profile"], "trace-files-profile.txt");
    check_error(&folder, &["report", "seq", "--view", "files"], 2, "trace record --files");
}

#[test]
fn a_part_of_a_trace() {
    let folder = traced("parts");
    let all = ["report", "seq", "--view", "states", "--all"];
    check(&folder, &all, "trace-states-all.txt");
    for view in ["waits", "kernel"] {
        let all = ["report", "seq", "--view", view, "--all"];
        check(&folder, &all, &format!("trace-{view}-all.txt"));
        check(
            &folder,
            &[&all[..], &["--format", "csv"]].concat(),
            &format!("trace-{view}-all.csv"),
        );
    }
    check(&folder, &["report", "seq", "--process", "ld"], "trace-overview-ld.txt");
    let path = ["report", "seq", "--view", "critical-path", "--process", "102", "--limit", "2"];
    check(&folder, &path, "trace-critical-path-ld.txt");
    check(&folder, &["report", "seq", "--machine", "web"], "trace-overview-web.txt");
}

#[test]
fn json() {
    let folder = traced("json");
    check(&folder, &["report", "seq", "--format", "json"], "trace-overview.json");
    let process = ["report", "seq", "--view", "process", "--format", "json"];
    check(&folder, &process, "trace-process.json");
}

/// The sums that docs/trace.md promises, in what is printed.
#[test]
fn printed_numbers_add_up() {
    let folder = traced("sums");
    let whole = |view: &str| -> Value {
        let arguments = ["report", "seq", "--view", view, "--all", "--format", "json"];
        serde_json::from_str(&printed(&folder, &arguments)).unwrap()
    };
    let ns = |value: &Value| value.as_u64().unwrap();
    let sum = |rows: &Value| rows.as_array().unwrap().iter().map(|row| ns(&row["ns"])).sum::<u64>();
    let parts = |time: &Value, all: &str| -> u64 {
        let fields = time.as_object().unwrap().iter().filter(|(name, _)| *name != all);
        fields.map(|(_, value)| ns(value)).sum()
    };
    let wall = 100_000_000;
    let profile = &whole("profile")["profile"];
    assert_eq!(parts(&profile["machine"], "wall_ns"), wall);
    for row in profile["cpus"].as_array().unwrap() {
        assert_eq!(parts(&row["time"], "wall_ns"), wall);
    }
    let states = &whole("states")["states"];
    for row in states["processes"].as_array().unwrap() {
        assert_eq!(parts(&row["time"], "life_ns"), ns(&row["time"]["life_ns"]));
    }
    let waits = &whole("waits")["waits"];
    for row in waits["processes"].as_array().unwrap() {
        let life = &row["life"];
        assert_eq!(ns(&life["running_ns"]) + sum(&life["causes"]), ns(&life["life_ns"]));
    }
    let kernel = &whole("kernel")["kernel"];
    assert_eq!(sum(&kernel["machine"]), 2 * wall);
    let path = &whole("critical-path")["critical_path"];
    let length = ns(&path["wall_ns"]);
    assert_eq!((sum(&path["categories"]), sum(&path["segments"])), (length, length));
}

/// A folder of its own for each test, in which there is the trace `vm` of a VM whose host was traced, too.
fn traced_vm(name: &str) -> PathBuf {
    let folder = traced(name);
    let (header, tables) = (fixture_trace::header(), fixture_trace::vm_tables());
    fixture_trace::write(
        &folder.join("vm"),
        &header,
        &tables,
        &[fixture_trace::HOST, fixture_trace::VM],
    );
    folder
}

#[test]
fn a_vm_from_both_sides() {
    let folder = traced_vm("vm");
    check(&folder, &["report", "vm"], "trace-vm-overview.txt");
    for view in ["gantt", "kernel", "critical-path"] {
        let golden = format!("trace-vm-{view}.txt");
        check(&folder, &["report", "vm", "--view", view], &golden);
    }
    let host = ["report", "vm", "--view", "kernel", "--machine", "host"];
    check(&folder, &host, "trace-vm-kernel-host.txt");
    let path = ["report", "vm", "--view", "critical-path", "--format", "json"];
    check(&folder, &path, "trace-vm-critical-path.json");
    check(&folder, &["export", "vm", "--format", "csv", "-o", "-"], "trace-vm-segments.csv");
}

/// The path's stolen time by thief is that of its segments, and all of both is within the segments' time.
#[test]
fn who_stole_from_the_path_adds_up() {
    let folder = traced_vm("vm-sums");
    let path = ["report", "vm", "--view", "critical-path", "--format", "json", "--limit", "0"];
    let path: Value = serde_json::from_str(&printed(&folder, &path)).unwrap();
    let path = &path["critical_path"];
    let sum = |shares: &[&Value]| {
        let mut sums: BTreeMap<String, u64> = BTreeMap::new();
        for share in shares {
            let parts = ["ran_ns", "stolen_ns", "asleep_ns", "unknown_ns"];
            let parts = parts.map(|part| share[part].as_u64().unwrap());
            assert_eq!(share["ns"].as_u64(), Some(parts.iter().sum()), "{share}");
            let mut stolen = 0;
            for thief in share["stolen_by"].as_array().unwrap() {
                let ns = thief["ns"].as_u64().unwrap();
                *sums.entry(thief["by"].as_str().unwrap().to_owned()).or_default() += ns;
                stolen += ns;
            }
            assert_eq!(stolen, parts[1], "{share}");
            *sums.entry("ns".to_owned()).or_default() += share["ns"].as_u64().unwrap();
        }
        sums
    };
    let sides: Vec<&Value> = path["host_side"].as_object().unwrap().values().collect();
    let segments = path["segments"].as_array().unwrap();
    let shares: Vec<&Value> = segments.iter().map(|segment| &segment["host_side"]).collect();
    let of_cpus: Vec<&Value> = shares.into_iter().filter(|share| !share.is_null()).collect();
    assert_eq!(sum(&sides), sum(&of_cpus));
    let both = sum(&sides);
    assert!(0 < both["VM db"] && both["VM db"] < both["ns"], "{both:?}");
    for segment in segments.iter().filter(|segment| !segment["host_side"].is_null()) {
        assert_eq!(segment["ns"], segment["host_side"]["ns"], "{segment}");
    }
}

#[test]
fn two_traces_side_by_side() {
    let folder = traced("compare");
    let tables = TraceTables {
        machines: fixture_trace::tables().machines[..1].to_vec(),
        ..fixture_trace::tables()
    };
    let tables = TraceTables {
        stacks: tables.stacks.into_iter().filter(|(machine, ..)| machine.0 == 0).collect(),
        tasks: tables.tasks.into_iter().filter(|task| task.machine.0 == 0).collect(),
        ..tables
    };
    fixture_trace::write(
        &folder.join("short"),
        &fixture_trace::header(),
        &tables,
        &[&fixture_trace::shorter()],
    );
    check(&folder, &["compare", "seq", "short"], "trace-compare.txt");
    for format in ["csv", "json"] {
        let arguments = ["compare", "seq", "short", "--format", format];
        check(&folder, &arguments, &format!("trace-compare.{format}"));
    }
    let without = TraceTables { command: None, ..tables };
    fixture_trace::write(
        &folder.join("all"),
        &fixture_trace::header(),
        &without,
        &[&fixture_trace::shorter()],
    );
    check(&folder, &["compare", "seq", "all"], "trace-compare-machines.txt");
    let page = printed(&folder, &["compare", "seq", "short", "--format", "html"]);
    assert!(page.starts_with("<!doctype html>") && page.contains("short"), "{}", &page[..200]);
}

#[test]
fn exports() {
    let folder = traced("export");
    check(&folder, &["export", "seq", "--format", "csv", "-o", "-"], "trace-segments.csv");
    for (format, file, begin) in [
        ("html", "trace.html", &b"<!doctype html>"[..]),
        // Field 1 of the trace: a packet.
        ("perfetto", "trace.perfetto", b"\x0a"),
        ("csv", "trace.csv", b"machine,"),
    ] {
        let output = run(&folder, &["export", "seq", "--format", format]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.status.success() && said.contains(&format!("wrote {file}; open it")),
            "{said}"
        );
        assert!(std::fs::read(folder.join(file)).unwrap().starts_with(begin), "{file}");
    }
    let page = printed(&folder, &["report", "seq", "--format", "html"]);
    assert_eq!(page.as_bytes(), std::fs::read(folder.join("trace.html")).unwrap());
}

#[test]
fn names_from_guests_cannot_steer_the_terminal() {
    let evil = "\x1b[2J\u{9b}31m,\"x\"\r\n\u{202e}";
    let mut tables = fixture_trace::tables();
    tables.machines[1].name = evil.to_owned();
    tables.machines[1].missing[0].1 = evil.to_owned();
    tables.tasks.iter_mut().for_each(|task| task.name = evil.to_owned());
    tables.stacks.iter_mut().for_each(|(.., functions)| functions.insert(0, evil.to_owned()));
    let folder = traced("hostile");
    let stories = [fixture_trace::SEQUENTIAL, fixture_trace::GUEST];
    fixture_trace::write(&folder.join("evil"), &fixture_trace::header(), &tables, &stories);
    for view in VIEWS.into_iter().chain(["overview"]) {
        for format in ["text", "csv", "json"] {
            let has_none = match view {
                "critical-path" => true,
                "overview" => format == "csv",
                "gantt" => format != "text",
                _ => false,
            };
            if has_none {
                continue;
            }
            let machine = ["--machine", evil];
            let arguments = ["report", "evil", "--view", view, "--format", format];
            let text = printed(&folder, &[&arguments[..], &machine].concat());
            let steering = text.chars().find(|c| c.is_control() && !['\n', '\r'].contains(c));
            assert_eq!((steering, text.contains('\u{202e}')), (None, false), "{view} {format}");
        }
    }
}

#[test]
fn errors() {
    let folder = traced("errors");
    let machine = "no machine vm9 in this trace: it has host, web";
    check_error(&folder, &["report", "seq", "--machine", "vm9"], 2, machine);
    let process = "no process nosuch in this trace: see --view process --all";
    check_error(&folder, &["report", "seq", "--process", "nosuch"], 2, process);
    let command = "no command was traced on web: say which process with --process";
    let of_web = |view| ["report", "seq", "--machine", "web", "--view", view];
    check_error(&folder, &of_web("critical-path"), 2, command);
    let stranger = ["report", "seq", "--process", "postmaster"];
    let elsewhere =
        "process postmaster is in this trace, but the command did not start it: add --all";
    check_error(&folder, &stranger, 2, elsewhere);
    check(
        &folder,
        &[&stranger[..], &["--view", "process", "--all"]].concat(),
        "trace-process-of-name.txt",
    );
    let csv = "the overview has no table: give --view with --format csv";
    check_error(&folder, &["report", "seq", "--format", "csv"], 2, csv);
    let drawing = "the Gantt chart is drawn as text only: --format html has it to zoom";
    let gantt = ["report", "seq", "--view", "gantt", "--format", "json"];
    check_error(&folder, &gantt, 2, drawing);
    check_error(&folder, &["report", "nosuch"], 1, "nosuch does not exist");
    check_error(&folder, &["report", "no\x1b[2J"], 1, "no\\u{1b}[2J does not exist");
    check_error(&folder, &["compare", "seq", "nosuch"], 1, "nosuch does not exist");
    let target = ["export", "seq", "--format", "html", "-o", "."];
    check_error(&folder, &target, 2, "is a folder: name a file with -o");
    let kept = ["record", "-o", "seq", "--", "true"];
    check_error(&folder, &kept, 2, "seq exists already: choose another name with -o");
    let buffer = ["record", "--buffer", "3K", "--", "true"];
    check_error(&folder, &buffer, 2, "the buffer lies between 64K and 1G");
}
