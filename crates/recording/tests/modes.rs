//! Who may read recordings and traces: their owner.

#![allow(clippy::unwrap_used)]

mod common;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use common::traces::{self, small_events, small_header, small_tables};

fn check(folder: &Path, least_files: usize) {
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(folder), 0o700, "{}", folder.display());
    let files: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(least_files <= files.len(), "{files:?}");
    for file in files {
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
}

#[test]
fn recordings() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    let (header, tables, cpus) = common::small();
    let writer = common::spool(&path, &header, &cpus);
    writer.checkpoint(&header, &tables).unwrap();
    check(writer.partial_path(), 1 + cpus.len());
    writer.finish(&header, &tables).unwrap();
    check(&path, 2);
}

#[test]
fn traces() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t");
    let (header, tables, cpus) = (small_header(), small_tables(), small_events());
    let writer = traces::spool(&path, &header, &tables, &cpus);
    check(writer.partial_path(), 1 + cpus.len());
    writer.finish(&header, &tables).unwrap();
    check(&path, 2);
}
