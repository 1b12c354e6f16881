//! Format 1 as other programs see it: schemas, rows as the Parquet crate's own row reader gives them,
//! and `recording.json`. A difference in `tests/golden/recording` is a change of the format.

#![allow(clippy::unwrap_used)]

mod common;

use std::fmt::Write;
use std::fs;

use common::golden::{check, dump, hex, manifest};
use common::{small, small_switches, write_with_switches};

#[test]
fn format_1() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("recording");
    write_with_switches(&path, &small(), &small_switches());
    check("tables.txt", &dump(&path));
    check("recording.json.txt", &manifest(&path.join("recording.json")));
}

#[test]
fn spool() {
    let (header, tables, cpus) = small();
    let dir = tempfile::tempdir().unwrap();
    let writer = common::spool(&dir.path().join("recording"), &header, &cpus);
    writer.stack_spool().unwrap().append(&tables.stacks).unwrap();
    writer.switch_spool().unwrap().append(&small_switches()[0]).unwrap();
    let mut text = String::new();
    for name in ["cpu0.raw", "stacks.raw", "switches.raw"] {
        let bytes = fs::read(writer.partial_path().join(name)).unwrap();
        write!(text, "# {name}\n{}", hex(&bytes)).unwrap();
    }
    check("spool.txt", &text);
}
