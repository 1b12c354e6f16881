//! What a real run of the boot image left, damaged on the way; and machines that lack much. Needs QEMU and a built image.

use std::path::Path;
use std::time::Duration;

use acceptance::boot::{measured, results, unexplained};
use acceptance::{run, text};

/// One line on stderr that says so, nothing on stdout, and this exit code.
fn check_refused(arguments: &[&str], code: i32, says: &str) {
    let output = run(&[&["bench"], arguments].concat()).unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
    assert!(stderr.contains(says) && stderr.lines().count() == 1, "{arguments:?}: {stderr}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
}

pub(crate) fn damaged_results_are_refused_and_damaged_logs_read_as_far_as_they_go() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (log, file) = (path("whole.log"), path("whole.json"));
    let plan = ["--plan", "original", "--ops", "add,cwd", "--reps", "5", "--log", &log];
    let whole = measured(Path::new(&file), &plan).unwrap();
    assert_eq!(whole.json["ending"], "complete");
    let json = std::fs::read_to_string(&file).unwrap();
    let said = std::fs::read_to_string(&log).unwrap();
    let write = |name: &str, text: &str| std::fs::write(path(name), text).unwrap();

    write("cut.json", &json[..json.len() * 2 / 3]);
    check_refused(
        &["compare", &file, &path("cut.json")],
        1,
        "cut.json can't be compared: it is damaged",
    );
    write("next.json", &json.replacen("\"version\": 1", "\"version\": 2", 1));
    check_refused(
        &["compare", &path("next.json"), &file],
        1,
        "its version is 2, this vmscope reads 1",
    );
    write("next.log", &said.replace("\"vmscope_boot\":1", "\"vmscope_boot\":2"));
    check_refused(
        &["read", &path("next.log")],
        1,
        "its lines have version 2, this vmscope reads version 1",
    );
    write("firmware.log", "SeaBIOS (version 1.16)\nBooting from ROM..\n");
    check_refused(&["read", &path("firmware.log")], 1, "no benchmark output in this file");

    let last = said.rfind("{\"result\"").unwrap();
    write("cut.log", &said[..last + 40]);
    let cut = path("cut.json");
    let output = run(&["bench", "read", &path("cut.log"), "-o", &cut]).unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && stderr.contains("damaged"), "{stderr}");
    let cut = results(Path::new(&cut), Duration::ZERO).unwrap();
    assert!(cut.json["ending"].is_null(), "the end is missing");
    assert_eq!(cut.rows().len(), whole.rows().len());
    let words: Vec<&str> = said[last..].split('"').collect();
    for (row, before) in cut.rows().iter().zip(whole.rows()) {
        if (text(row, "operation"), text(row, "condition")) == (words[3], words[7]) {
            assert_eq!(row["reliable"], false, "only its takes before are there: {row}");
        } else {
            assert_eq!(row, before, "what came before stands as it was");
        }
    }
}

pub(crate) fn one_cpu_and_16_mib_are_enough_and_what_is_missing_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let operations = "add,cpuid,ipi-round-trip,latency-4k,latency-32m";
    let small =
        ["--cpus", "1", "--memory", "16", "--ops", operations, "--cond", "long.cpl0,flat.cpl3"];
    let results = measured(&folder.path().join("small.json"), &small).unwrap();
    assert_eq!(results.json["machine"]["cpus"], 1);
    assert!(results.json["machine"]["memory_bytes"].as_u64().unwrap() <= 16 << 20);
    let unexplained: Vec<String> = results.rows().iter().filter_map(unexplained).collect();
    assert_eq!(unexplained, [""; 0]);
    for operation in ["ipi-round-trip", "latency-32m"] {
        let row = results.of(operation, "long.cpl0").unwrap();
        assert_eq!(text(row, "status"), "missing", "{row}");
    }
    assert!(0.0 < results.ticks("cpuid", "long.cpl0").unwrap());
}
