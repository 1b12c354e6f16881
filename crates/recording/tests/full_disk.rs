//! A disk that is full, tried with a limit on the size of files: a write beyond it fails like one to a
//! full disk. Setting the limit takes another process, with the signal that would end it ignored.

#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;

use common::limit::{is_part, under_limit};
use common::{merged, read, spool, texts};
use model::{Sample, Tables};
use recording::{Error, Recording};

const TEST: &str = "a_full_disk_leaves_nothing_under_the_final_name";
const HOST: common::synthetic::Host =
    common::synthetic::Host { cpus: 2, vms: 3, period_ns: 1_000_000, seed: 1 };

fn cpus() -> Vec<Vec<Sample>> {
    (0..HOST.cpus).map(|cpu| HOST.samples(cpu, 5_000)).collect()
}

#[test]
fn a_full_disk_leaves_nothing_under_the_final_name() {
    if is_part(limited_spool, limited_finish) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    under_limit(TEST, "spool", 100, dir.path());
    let path = dir.path().join("recording");
    assert!(!path.exists());
    let recording = Recording::open(&path).unwrap();
    let read = read(&recording);
    assert!(!read.is_empty() && read.len() < 10_000, "{}", read.len());
    let notes = texts(&recording.header.notes);
    assert!(!notes.iter().any(|note| note.contains("lost")), "half a block is there: {notes:?}");

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("recording");
    spool(&path, &HOST.header(), &cpus()).checkpoint(&HOST.header(), &HOST.tables()).unwrap();
    under_limit(TEST, "finish", 20, dir.path());
    assert!(!path.exists());
    let recording = Recording::open(&path).unwrap();
    assert_eq!(common::read(&recording).len(), merged(&cpus()).len(), "everything is still there");
}

/// Appends until the disk is full, and once more.
fn limited_spool(dir: &Path) {
    let writer = spool(&dir.join("recording"), &HOST.header(), &[]);
    let mut spool = writer.spool(model::CpuId(0)).unwrap();
    let records: Vec<u8> = cpus()[0].iter().flat_map(recording::encode).collect();
    for _ in 0..2 {
        let error = spool.append(&records).unwrap_err();
        assert!(matches!(error, Error::NoSpace(..)), "{error}");
    }
}

/// Finishes what the process without the limit spooled.
fn limited_finish(dir: &Path) {
    let path = dir.join("other");
    let writer = spool(&path, &HOST.header(), &[]);
    for spool in ["cpu0.raw", "cpu1.raw"] {
        let from = dir.join("recording.partial").join(spool);
        std::fs::hard_link(from, writer.partial_path().join(spool)).unwrap();
    }
    let error = writer.finish(&HOST.header(), &Tables::default()).unwrap_err();
    assert!(matches!(error, Error::NoSpace(..)), "{error}");
    let mut names = std::fs::read_dir(dir.join("other.partial")).unwrap();
    let is_temporary = |name: std::ffi::OsString| name.to_string_lossy().ends_with(".tmp");
    assert!(!names.any(|entry| is_temporary(entry.unwrap().file_name())), "the disk stays full");
    assert!(error.to_string().contains("other.partial: `vmscope report` reads it"), "{error}");
    assert!(!path.exists());
}
