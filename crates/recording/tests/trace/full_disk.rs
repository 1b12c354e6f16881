//! A disk that is full.

use std::path::Path;

use model::{MachineId, TraceTables};
use recording::Error;
use recording::trace::Trace;

use crate::common::limit::{is_part, under_limit};
use crate::common::synthetic_trace::Build;
use crate::common::texts;
use crate::common::traces::{merged, spool};

const TEST: &str = "full_disk::a_full_disk_leaves_nothing_under_the_final_name";
const BUILD: Build = Build { cpus: 2, seed: 1 };

#[test]
fn a_full_disk_leaves_nothing_under_the_final_name() {
    if is_part(limited_spool, limited_finish) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    under_limit(TEST, "spool", 100, dir.path());
    let path = dir.path().join("trace");
    assert!(!path.exists());
    let trace = Trace::open(&path).unwrap();
    let (read, all) = (trace.events().unwrap(), BUILD.events(0, 20_000));
    assert!(1_000 < read.len() && read == all[..read.len()], "{}", read.len());
    let notes = texts(&trace.header.notes);
    assert!(!notes.iter().any(|note| note.contains("lost")), "half a block is there: {notes:?}");

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    let cpus: Vec<_> = (0..BUILD.cpus).map(|cpu| BUILD.events(cpu, 20_000)).collect();
    drop(spool(&path, &BUILD.header(), &BUILD.tables(), &cpus));
    under_limit(TEST, "finish", 20, dir.path());
    assert!(!path.exists());
    let events = Trace::open(&path).unwrap().events().unwrap();
    assert!(events == merged(&cpus), "everything is still there");
}

/// Appends until the disk is full, and once more after it.
fn limited_spool(dir: &Path) {
    let writer = spool(&dir.join("trace"), &BUILD.header(), &BUILD.tables(), &[]);
    let mut spool = writer.spool(MachineId::HOST, 0).unwrap();
    let events = BUILD.events(0, 20_000);
    let error = spool.append(&events).unwrap_err();
    assert!(matches!(error, Error::NoSpace(..)), "{error}");
    assert!(
        error.to_string().contains("trace.partial: `vmscope trace report` reads it"),
        "{error}"
    );
    spool.append(&events).unwrap_err();
}

/// Finishes what the process without the limit spooled.
fn limited_finish(dir: &Path) {
    let path = dir.join("other");
    let writer = spool(&path, &BUILD.header(), &TraceTables::default(), &[]);
    for spool in ["machine0-cpu0.raw", "machine0-cpu1.raw"] {
        let from = dir.join("trace.partial").join(spool);
        std::fs::hard_link(from, writer.partial_path().join(spool)).unwrap();
    }
    let error = writer.finish(&BUILD.header(), &BUILD.tables()).unwrap_err();
    assert!(matches!(error, Error::NoSpace(..)), "{error}");
    assert!(
        error.to_string().contains("other.partial: `vmscope trace report` reads it"),
        "{error}"
    );
    assert!(!path.exists());
}
