//! What is no recording, or not all of one.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::path::Path;

use common::damage::{Subject, edit};
use common::folders::TABLES;
use common::{failure, small, small_switches, spool, write_with_switches};
use model::Tables;

const RECORDING: Subject = Subject {
    manifest: "recording.json",
    tables: &TABLES,
    write: |path| write_with_switches(path, &small(), &small_switches()),
    failure,
};

#[test]
fn every_damage_says_what_to_do() {
    let check = |change: fn(&Path), expected| RECORDING.check(change, expected);
    check(
        |path| fs::remove_dir_all(path).unwrap(),
        "{} does not exist: give a folder written by `vmscope record`",
    );
    check(
        |path| fs::remove_file(path.join("recording.json")).unwrap(),
        "{} is not a recording (it has no recording.json): give a folder written by `vmscope record`",
    );
    check(
        |path| fs::write(path.join("recording.json"), "{\"name\": 1}").unwrap(),
        "{} is not a recording (its recording.json names no format): give a folder written by \
         `vmscope record`",
    );
    check(
        |path| edit(&path.join("recording.json"), "vmscope-recording", "other"),
        "{} is not a recording (its recording.json says \"other\"): give a folder written by \
         `vmscope record`",
    );
    check(
        |path| edit(&path.join("recording.json"), "\"version\": 1", "\"version\": 2"),
        "{} has recording format 2, this vmscope reads up to 1: use a newer vmscope",
    );
    check(
        |path| fs::write(path.join("recording.json"), "{\"format\": \"vmscope-rec").unwrap(),
        "{}/recording.json is damaged (EOF while parsing a string at line 1 column 23): copy it again \
         from where it was made",
    );
    check(
        |path| fs::remove_file(path.join("symbols.parquet")).unwrap(),
        "{}/symbols.parquet is missing: copy the whole recording again from where it was made",
    );
    check(
        |path| fs::remove_file(path.join("switches.parquet")).unwrap(),
        "{}/switches.parquet is missing: copy the whole recording again from where it was made",
    );
    check(
        |path| fs::write(path.join("samples.parquet"), "PAR1").unwrap(),
        "{}/samples.parquet is damaged (recording.json has another size or checksum): copy it again \
         from where it was made",
    );
    check(
        |path| edit(&path.join("recording.json"), "\"vcpus.parquet\"", "\"other\""),
        "{}/vcpus.parquet is damaged (recording.json does not know it): copy it again from where it \
         was made",
    );
}

#[test]
fn a_file_is_no_recording() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "x").unwrap();
    let expected = format!(
        "{} is not a recording (it is no folder): give a folder written by `vmscope record`",
        file.display()
    );
    assert_eq!(failure(&file), Some(expected));
}

#[test]
fn any_changed_byte_is_seen() {
    RECORDING.every_changed_byte_is_an_error(11);
}

#[test]
fn hostile_tables_do_no_harm() {
    RECORDING.hostile_tables_do_no_harm(12, 1000);
}

/// A table of a recording whose vCPUs this one does not have, with the right checksum.
#[test]
fn references_to_no_row_are_damage() {
    let dir = tempfile::tempdir().unwrap();
    let foreign = RECORDING.written(dir.path());
    let (header, tables, _) = small();
    for (table, row) in [("samples.parquet", "a sample"), ("switches.parquet", "an event")] {
        let path = dir.path().join(table);
        let quota_members = vec![];
        let tables = Tables { vcpus: vec![], exits: vec![], quota_members, ..tables.clone() };
        write_with_switches(&path, &(header.clone(), tables, vec![]), &[]);
        RECORDING.check_references(&path, &foreign, table, row);
    }
}

/// The spool of a killed vmscope from before samples said what their vCPUs waited for.
#[test]
fn samples_of_an_older_killed_writer_are_refused() {
    let (header, ..) = small();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("recording");
    let writer = spool(&path, &header, &[]);
    let mut block = Vec::new();
    [u32::from_le_bytes(*b"VSP1"), 0, 1, 72]
        .iter()
        .for_each(|word| block.extend_from_slice(&word.to_le_bytes()));
    block.extend_from_slice(&[0; 16 + 72]);
    block.extend_from_slice(&(!u32::from_le_bytes(*b"VSP1")).to_le_bytes());
    let spool = writer.partial_path().join("cpu0.raw");
    fs::write(&spool, block).unwrap();
    let expected = format!(
        "{} was left by an older vmscope that was killed: read it with the vmscope that wrote it",
        spool.display()
    );
    assert_eq!(failure(&path), Some(expected));
}

#[test]
fn hostile_spools_do_no_harm() {
    let (header, tables, cpus) = small();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("recording");
    let writer = spool(&path, &header, &cpus);
    writer.checkpoint(&header, &tables).unwrap();
    writer.stack_spool().unwrap().append(&tables.stacks).unwrap();
    writer.switch_spool().unwrap().append(&small_switches()[0]).unwrap();
    let files = ["cpu0.raw", "stacks.raw", "switches.raw", "recording.json"];
    RECORDING.hostile_spools_do_no_harm(&path, writer.partial_path(), &files, 13);
}

/// The folder's owner may put one there at any time.
#[test]
fn fifos_are_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("day1");
    (RECORDING.write)(&path);
    for file in ["recording.json", "vms.parquet", "samples.parquet"] {
        let file = path.join(file);
        let whole = fs::read(&file).unwrap();
        fs::remove_file(&file).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
        assert!(failure(&path).is_some());
        fs::remove_file(&file).unwrap();
        fs::write(&file, whole).unwrap();
    }
    assert_eq!(failure(&path), None);
}
