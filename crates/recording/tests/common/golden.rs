//! Files whose content is compared with what is in `tests/golden/recording`.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::schema::printer::print_schema;

pub(crate) fn check(name: &str, actual: &str) {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/recording").join(name);
    if std::env::var_os("UPDATE").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, actual).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert!(expected == actual, "{name} differs (UPDATE=1 rewrites it):\n{actual}");
}

/// The tables of a folder, by name: schema and rows.
pub(crate) fn dump(folder: &Path) -> String {
    let mut files: Vec<_> =
        fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    let tables = files.iter().filter(|file| file.extension().is_some_and(|e| e == "parquet"));
    tables.map(|file| dump_table(file)).collect()
}

fn dump_table(path: &Path) -> String {
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

/// A manifest without sizes and checksums: they change with the Parquet crate and are not part of the format.
pub(crate) fn manifest(path: &Path) -> String {
    let json = fs::read_to_string(path).unwrap();
    let stable = |line: &&str| !line.contains("\"bytes\"") && !line.contains("\"crc32\"");
    let json: Vec<_> = json.lines().filter(stable).collect();
    json.join("\n") + "\n"
}

/// Bytes, sixteen a line.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let line = |line: &[u8]| {
        let hex: Vec<_> = line.iter().map(|byte| format!("{byte:02x}")).collect();
        hex.join(" ") + "\n"
    };
    bytes.chunks(16).map(line).collect()
}
