//! Format 1 as other programs see it: schemas, rows as the Parquet crate's own row reader gives them,
//! and `recording.json`. A difference in `tests/golden/recording` is a change of the format.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::fmt::Write;
use std::fs;
use std::path::Path;

use common::{small, small_switches, write_with_switches};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::schema::printer::print_schema;

fn check(name: &str, actual: &str) {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/recording").join(name);
    if std::env::var_os("UPDATE").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, actual).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert!(expected == actual, "{name} differs (UPDATE=1 rewrites it):\n{actual}");
}

fn dump(path: &Path) -> String {
    let reader = SerializedFileReader::new(fs::File::open(path).unwrap()).unwrap();
    let mut schema = Vec::new();
    print_schema(&mut schema, reader.metadata().file_metadata().schema());
    let mut text = format!("# {}\n", path.file_name().unwrap().display());
    text += &String::from_utf8(schema).unwrap();
    for row in reader.get_row_iter(None).unwrap() {
        writeln!(text, "{}", row.unwrap()).unwrap();
    }
    text + "\n"
}

#[test]
fn format_1() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("recording");
    write_with_switches(&path, &small(), &small_switches());
    let mut files: Vec<_> = fs::read_dir(&path).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    let tables = files.iter().filter(|file| file.extension().is_some_and(|e| e == "parquet"));
    check("tables.txt", &tables.map(|file| dump(file)).collect::<String>());

    // Sizes and checksums change with the Parquet crate: not part of the format.
    let json = fs::read_to_string(path.join("recording.json")).unwrap();
    let stable = |line: &&str| !line.contains("\"bytes\"") && !line.contains("\"crc32\"");
    let json: Vec<_> = json.lines().filter(stable).collect();
    check("recording.json.txt", &(json.join("\n") + "\n"));
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
        writeln!(text, "# {name}").unwrap();
        for line in fs::read(writer.partial_path().join(name)).unwrap().chunks(16) {
            let hex: Vec<_> = line.iter().map(|byte| format!("{byte:02x}")).collect();
            writeln!(text, "{}", hex.join(" ")).unwrap();
        }
    }
    check("spool.txt", &text);
}
