//! What is no trace, or not all of one.

use std::fs;
use std::path::{Path, PathBuf};

use model::{MachineId, TraceTables};

use crate::common::damage::{edit, mutated, with_checksum};
use crate::common::synthetic::Random;
use crate::common::traces::{failure, small_events, small_header, small_tables, spool, write};

const TABLES: [&str; 7] = [
    "machines.parquet",
    "lost.parquet",
    "missing.parquet",
    "tasks.parquet",
    "disks.parquet",
    "stacks.parquet",
    "events.parquet",
];

/// Writes the small trace, changes it, and compares the error (`{}`: the trace's path).
fn check(change: impl Fn(&Path), expected: &str) {
    let dir = tempfile::tempdir().unwrap();
    let path = trace(dir.path());
    change(&path);
    let expected = expected.replace("{}", &path.display().to_string());
    assert_eq!(failure(&path).as_deref(), Some(expected.as_str()));
}

fn trace(dir: &Path) -> PathBuf {
    let path = dir.join("build1");
    write(&path, &small_header(), &small_tables(), &small_events());
    path
}

#[test]
fn every_damage_says_what_to_do() {
    check(
        |path| fs::remove_dir_all(path).unwrap(),
        "{} does not exist: give a folder written by `vmscope trace record`",
    );
    check(
        |path| fs::remove_file(path.join("trace.json")).unwrap(),
        "{} is not a trace (it has no trace.json): give a folder written by `vmscope trace record`",
    );
    check(
        |path| fs::rename(path.join("trace.json"), path.join("recording.json")).unwrap(),
        "{} is a recording: read it with `vmscope report`",
    );
    check(
        |path| edit(&path.join("trace.json"), "vmscope-trace", "other"),
        "{} is not a trace (its trace.json says \"other\"): give a folder written by `vmscope trace record`",
    );
    check(
        |path| edit(&path.join("trace.json"), "\"version\": 2", "\"version\": 3"),
        "{} has trace format 3, this vmscope reads up to 2: use a newer vmscope",
    );
    check(
        |path| edit(&path.join("trace.json"), "\"version\": 2", "\"version\": 0"),
        "{}/trace.json is damaged (it says version 0): copy it again from where it was made",
    );
    check(
        |path| edit(&path.join("trace.json"), "\"end_ns\": ", "\"end_ns\": 0, \"was\": "),
        "{}/trace.json is damaged (it ends before it begins): copy it again from where it was made",
    );
    check(
        |path| fs::write(path.join("trace.json"), "{\"format\": \"vmscope-tr").unwrap(),
        "{}/trace.json is damaged (EOF while parsing a string at line 1 column 22): copy it again from where \
         it was made",
    );
    check(
        |path| edit(&path.join("trace.json"), "\"machine\": 0", "\"machine\": 2"),
        "{}/trace.json is damaged (its command refers to a row that does not exist): copy it again from where \
         it was made",
    );
    check(
        |path| fs::remove_file(path.join("tasks.parquet")).unwrap(),
        "{}/tasks.parquet is missing: copy the whole trace again from where it was made",
    );
    check(
        |path| fs::write(path.join("events.parquet"), "PAR1").unwrap(),
        "{}/events.parquet is damaged (trace.json has another size or checksum): copy it again from where it \
         was made",
    );
    check(
        |path| edit(&path.join("trace.json"), "\"disks.parquet\"", "\"other\""),
        "{}/disks.parquet is damaged (trace.json does not know it): copy it again from where it was made",
    );
}

#[test]
fn any_changed_byte_is_seen() {
    let dir = tempfile::tempdir().unwrap();
    let path = trace(dir.path());
    let mut random = Random(21);
    for table in TABLES {
        let file = path.join(table);
        let whole = fs::read(&file).unwrap();
        for _ in 0..20 {
            fs::write(&file, mutated(&mut random, &whole)).unwrap();
            let error = failure(&path).unwrap();
            assert!(error.contains("another size or checksum"), "{error}");
        }
        fs::write(&file, &whole).unwrap();
    }
    assert_eq!(failure(&path), None);
}

/// Somebody who changes bytes and puts the right checksum: any result but a panic or an endless run.
#[test]
fn hostile_tables_do_no_harm() {
    let dir = tempfile::tempdir().unwrap();
    let path = trace(dir.path());
    let json = path.join("trace.json");
    let honest = fs::read_to_string(&json).unwrap();
    let mut random = Random(22);
    let mut errors = 0;
    for table in TABLES {
        let file = path.join(table);
        let whole = fs::read(&file).unwrap();
        for _ in 0..150 {
            let bytes = mutated(&mut random, &whole);
            fs::write(&file, &bytes).unwrap();
            fs::write(&json, with_checksum(&honest, table, &whole, &bytes)).unwrap();
            errors += usize::from(failure(&path).is_some());
        }
        fs::write(&file, &whole).unwrap();
    }
    fs::write(&json, &honest).unwrap();
    assert_eq!(failure(&path), None);
    assert!(
        500 < errors,
        "only {errors} of 1050 changes were errors: does the checksum still fit?"
    );
}

/// Tables of a trace whose second machine this one does not have, with the right checksum.
#[test]
fn references_to_no_row_are_damage() {
    let dir = tempfile::tempdir().unwrap();
    let foreign = dir.path().join("foreign");
    let mut tables = small_tables();
    let vm = MachineId(1);
    let host = tables.machines[0].clone();
    (tables.machines[1].lost, tables.machines[1].missing) = (host.lost, host.missing);
    tables.tasks[0].machine = vm;
    tables.disks[0].0 = vm;
    write(&foreign, &small_header(), &tables, &small_events());
    for table in &TABLES[1..] {
        let path = dir.path().join(table);
        let machines = small_tables().machines[..1].to_vec();
        write(&path, &small_header(), &TraceTables { machines, ..TraceTables::default() }, &[]);
        let json = path.join("trace.json");
        let [old, new] = [&path, &foreign].map(|path| fs::read(path.join(table)).unwrap());
        let honest = fs::read_to_string(&json).unwrap();
        fs::write(&json, with_checksum(&honest, table, &old, &new)).unwrap();
        fs::write(path.join(table), new).unwrap();
        let what = if *table == "events.parquet" { "an event" } else { "a row" };
        let expected = format!(
            "{}/{table} is damaged ({what} refers to a row that does not exist): copy it again from where it was \
             made",
            path.display()
        );
        assert_eq!(failure(&path), Some(expected));
    }
}

#[test]
fn hostile_spools_do_no_harm() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    let writer = spool(&path, &small_header(), &small_tables(), &small_events());
    let mut random = Random(23);
    let files = [
        "machine0-cpu0.raw",
        "machine1-cpu0.raw",
        "trace.json",
        "machines.parquet",
        "stacks.parquet",
    ];
    for name in files {
        let file = writer.partial_path().join(name);
        let whole = fs::read(&file).unwrap();
        for _ in 0..500 {
            fs::write(&file, mutated(&mut random, &whole)).unwrap();
            let _ = failure(&path);
        }
        fs::write(&file, &whole).unwrap();
    }
    assert_eq!(failure(&path), None);
}
