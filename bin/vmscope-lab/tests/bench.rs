//! `vmscope bench read` and `compare` as a user runs them, on two drawn logs; compared with tests/golden/bench.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/bench").join(name)
}

fn run(folder: &Path, command: &[&str]) -> Output {
    let mut vmscope = Command::new(env!("CARGO_BIN_EXE_vmscope-lab"));
    vmscope.current_dir(folder).arg("bench").args(command).output().unwrap()
}

fn check_text(actual: &str, name: &str) {
    let path = golden(name);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, actual).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(actual == expected, "{name} differs: run again with UPDATE=1 and read the change");
}

fn check(folder: &Path, command: &[&str], name: &str) {
    let output = run(folder, command);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    check_text(&String::from_utf8(output.stdout).unwrap(), name);
}

/// Fails with this exit code and one line that says so.
fn check_error(folder: &Path, command: &[&str], code: i32, says: &str) {
    let output = run(folder, command);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert_eq!((output.stdout.len(), stderr.lines().count()), (0, 1), "{stderr}");
    assert!(stderr.contains(says), "{stderr}");
}

/// A folder with the results of both machines.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("bench-{name}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    for machine in ["real", "vm"] {
        let log = golden(&format!("{machine}.log"));
        let output = format!("{machine}.json");
        let done = run(&folder, &["read", log.to_str().unwrap(), "-o", &output]);
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
    folder
}

#[test]
fn read() {
    let folder = folder("read");
    check_text(&std::fs::read_to_string(folder.join("vm.json")).unwrap(), "vm.json");
    let log = golden("vm.log");
    check(&folder, &["read", log.to_str().unwrap()], "read.txt");
    check(&folder, &["read", "vm.json"], "read.txt");
    let codes = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../boot/tests/golden/qr.txt");
    let text = std::fs::read_to_string(codes).unwrap();
    let some: Vec<&str> =
        text.lines().enumerate().filter(|(n, _)| *n != 3).map(|(_, l)| l).collect();
    std::fs::write(folder.join("codes.txt"), some.join("\n")).unwrap();
    let output = run(&folder, &["read", "codes.txt", "-o", "codes.json"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("1 of 4 codes is missing: 4;"), "{said}");
}

#[test]
fn compare() {
    let folder = folder("compare");
    let both = |more: &[&'static str]| [&["compare", "real.json", "vm.json"], more].concat();
    check(&folder, &both(&[]), "compare.txt");
    check(&folder, &both(&["--unit", "ns", "--ops", "cpuid,smsw"]), "compare-ns.txt");
    check(&folder, &both(&["--unit", "add", "--cond", "long.cpl0"]), "compare-add.txt");
    check(&folder, &both(&["--format", "csv"]), "compare.csv");
    check(&folder, &both(&["--format", "json"]), "compare.json");
    check(&folder, &both(&["--format", "html"]), "compare.html");
    check(&folder, &["compare", "real.json", "vm.json", "vm.json"], "compare-three.txt");
    for chart in ["bars", "latency"] {
        let output = run(&folder, &both(&["--svg", "chart.svg", "--chart", chart]));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let drawn = std::fs::read_to_string(folder.join("chart.svg")).unwrap();
        check_text(&drawn, &format!("{chart}.svg"));
    }
}

#[test]
fn hostile_texts_stay_texts() {
    let folder = folder("hostile");
    let path = folder.join("vm.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let evil = "<script>alert(1)</script>\\u001b[2J\\u202e";
    let text = text.replace("Intel(R)", evil).replace("no NVMe controller", evil);
    std::fs::write(&path, text.replace("\"cpuid\"", &format!("\"{evil}\""))).unwrap();
    for format in ["text", "csv", "json", "html"] {
        let output = run(&folder, &["compare", "real.json", "vm.json", "--format", format]);
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let steering = text.chars().find(|c| c.is_control() && !['\n', '\r'].contains(c));
        assert_eq!(steering, None, "{format}");
        assert!(format != "html" || !text.contains("<script"), "{text}");
    }
}

#[test]
fn errors() {
    let folder = folder("errors");
    let whole = std::fs::read_to_string(folder.join("vm.json")).unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
    write("cut.json", &whole[..whole.len() / 2]);
    write("other.json", "{\"a\":1}");
    write("next.json", &whole.replacen("\"version\": 1", "\"version\": 2", 1));
    write("linux.log", "Linux version 6.1\n");
    write("refused.log", "{\"error\":\"unknown plan 'x'\",\"choices\":[\"short\"]}\n");
    let with = |file: &'static str| ["compare", "real.json", file];
    check_error(&folder, &with("cut.json"), 1, "cut.json can't be compared: it is damaged");
    check_error(&folder, &with("other.json"), 1, "it is not a result of `vmscope bench`");
    check_error(&folder, &with("next.json"), 1, "its version is 2, this vmscope reads 1");
    check_error(&folder, &with("none.json"), 1, "failed to read none.json");
    check_error(&folder, &["compare", "real.json"], 2, "see vmscope bench compare --help");
    check_error(
        &folder,
        &["compare", "real.json", "vm.json", "--cond", "x"],
        2,
        "is not a condition",
    );
    check_error(
        &folder,
        &["compare", "real.json", "vm.json", "--cond", "pae.cpl0"],
        2,
        "--ops and --cond",
    );
    check_error(&folder, &["read", "linux.log"], 1, "no benchmark output in this file");
    check_error(&folder, &["read", "cut.json"], 1, "failed to read cut.json: it is damaged");
    check_error(&folder, &["read", "next.json"], 1, "its version is 2, this vmscope reads 1");
    check_error(&folder, &["read", "vm.json", "-o", "x"], 2, "is a result file already");
    check_error(&folder, &["read", "refused.log"], 1, "unknown plan 'x'; it knows: short");
    check_error(&folder, &["run", "--image", "no.elf"], 2, "no.elf is not a file: name the image");
    check_error(&folder, &["run", "--ops", "a b"], 2, "names and commas only");
    check_error(&folder, &["list", "--image", "no.elf"], 2, "no.elf is not a file");
}
