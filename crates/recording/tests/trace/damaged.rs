//! What is no trace, or not all of one.

use std::fs;
use std::path::Path;

use model::{MachineId, TraceTables};

use crate::common::damage::{Subject, edit};
use crate::common::traces::{failure, small_events, small_header, small_tables, spool, write};

const TRACE: Subject = Subject {
    manifest: "trace.json",
    tables: &[
        "machines.parquet",
        "lost.parquet",
        "missing.parquet",
        "tasks.parquet",
        "disks.parquet",
        "stacks.parquet",
        "files.parquet",
        "events.parquet",
    ],
    write: |path| drop(write(path, &small_header(), &small_tables(), &small_events())),
    failure,
};

#[test]
fn every_damage_says_what_to_do() {
    let check = |change: fn(&Path), expected| TRACE.check(change, expected);
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
        |path| edit(&path.join("trace.json"), "\"version\": 3", "\"version\": 4"),
        "{} has trace format 4, this vmscope reads up to 3: use a newer vmscope",
    );
    check(
        |path| edit(&path.join("trace.json"), "\"version\": 3", "\"version\": 0"),
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
    TRACE.every_changed_byte_is_an_error(21);
}

#[test]
fn hostile_tables_do_no_harm() {
    TRACE.hostile_tables_do_no_harm(22, 500);
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
    tables.files[0].machine = vm;
    write(&foreign, &small_header(), &tables, &small_events());
    for table in &TRACE.tables[1..] {
        let path = dir.path().join(table);
        let TraceTables { machines, files, .. } = small_tables();
        let machines = machines[..1].to_vec();
        let own = TraceTables { machines, files, ..TraceTables::default() };
        write(&path, &small_header(), &own, &[]);
        let row = if *table == "events.parquet" { "an event" } else { "a row" };
        TRACE.check_references(&path, &foreign, table, row);
    }
}

#[test]
fn hostile_spools_do_no_harm() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    let writer = spool(&path, &small_header(), &small_tables(), &small_events());
    let files = [
        "machine0-cpu0.raw",
        "machine1-cpu0.raw",
        "trace.json",
        "machines.parquet",
        "stacks.parquet",
    ];
    TRACE.hostile_spools_do_no_harm(&path, writer.partial_path(), &files, 23);
}
