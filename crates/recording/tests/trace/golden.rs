//! Format 2 as other programs see it: schemas, rows as the Parquet crate's own row reader gives them,
//! `trace.json`, and the spool. A difference in `tests/golden/recording` is a change of the format.

use std::fmt::Write;
use std::fs;

use crate::common::golden::{check, dump, hex, manifest};
use crate::common::traces::{small_events, small_header, small_tables, spool, write};

#[test]
fn format_2() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    write(&path, &small_header(), &small_tables(), &small_events());
    check("trace-tables.txt", &dump(&path));
    check("trace.json.txt", &manifest(&path.join("trace.json")));
}

#[test]
fn spooled() {
    let dir = tempfile::tempdir().unwrap();
    let writer =
        spool(&dir.path().join("trace"), &small_header(), &small_tables(), &small_events());
    let mut text = String::new();
    for name in ["machine0-cpu0.raw", "machine0-cpu1.raw", "machine1-cpu0.raw"] {
        let bytes = fs::read(writer.partial_path().join(name)).unwrap();
        write!(text, "# {name}\n{}", hex(&bytes)).unwrap();
    }
    check("trace-spool.txt", &text);
}
