//! Runs `vmscope layout simulate` on the cases of `scenarios/layout`, and compares its output with tests/golden/layout.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn run(arguments: &[&str]) -> Output {
    let mut vmscope = Command::new(env!("CARGO_BIN_EXE_vmscope-layout"));
    let folder = root().join("scenarios/layout");
    vmscope.current_dir(folder).args(["layout", "simulate"]).args(arguments).output().unwrap()
}

fn out(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn check(name: &str, arguments: &[&str]) {
    let path = root().join("tests/golden/layout").join(name);
    let actual = out(arguments);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &actual).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(actual == expected, "{name} differs: run again with UPDATE=1 and read the change");
}

#[test]
fn the_cases_of_the_original() {
    for case in ["case-1-1-simple", "case-1-2-simple", "case-2-dino", "case-3-asymsched"] {
        check(&format!("{case}.txt"), &["opteron-6348.toml", &format!("{case}.toml")]);
    }
    check("random.txt", &["opteron-6348.toml", "--random", "100"]);
}

#[test]
fn every_format() {
    let case = ["opteron-6348.toml", "case-2-dino.toml", "--policy", "dino", "--format"];
    let format = |format: &str| out(&[&case[..], &[format]].concat());
    assert!(format("csv").starts_with("policy,way,vm,second,speed\r\ndino,default,"));
    assert!(format("json").contains("\"way\": \"ahead\""));
    let page = format("html");
    assert!(page.contains("<polyline") && !page.contains("<script"));
}

#[test]
fn what_is_wrong_is_said_in_one_line() {
    let check = |arguments: &[&str], says: &str| {
        let output = run(arguments);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{stderr}");
        assert!(stderr.contains(says), "{stderr}");
    };
    check(
        &["case-2-dino.toml", "case-2-dino.toml"],
        "case-2-dino.toml: line 4: unknown field `migration`",
    );
    check(
        &["opteron-6348.toml", "case-2-dino.toml", "--policy", "best"],
        "there are simple, dino, asymsched",
    );
    check(&["opteron-6348.toml"], "<LOADS>");
}

#[test]
fn policies_and_plans_that_are_none_are_refused_before_anything_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let check = |words: &str, plan: &str, expected: &str| {
        std::fs::write(folder.path().join("plan.json"), plan).unwrap();
        let mut vmscope = Command::new(env!("CARGO_BIN_EXE_vmscope-layout"));
        vmscope.current_dir(folder.path()).arg("layout").args(words.split(' '));
        let output = vmscope.output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{words}: {stderr}");
        assert!(stderr.contains(expected), "{words}: {stderr}");
    };
    let names = "there are simple, dino, asymsched, and exec:PROGRAM";
    check("plan --policy best", "", names);
    check("plan --policy exec:", "", names);
    let apply = "apply --plan plan.json";
    check(apply, "", "plan.json: not a plan of `vmscope layout plan`");
    check(
        apply,
        "{\"version\":1}",
        "not a plan of `vmscope layout plan`: missing field `placement`",
    );
    check(apply, "{\"version\":1,\"placement\":[{\"vm\":\"a\"}]}", "missing field `pid`");
    let other = "plan.json: a plan of another version of vmscope";
    check(apply, "{\"version\":2,\"placement\":[]}", other);
    for option in ["--policy simple", "--seconds 3", "--counters vms.toml"] {
        check(&format!("{apply} {option}"), "", "cannot be used with");
    }
}

#[test]
fn vms_that_no_plan_is_for_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let check = |vms: &str, expected: &str| {
        let path = folder.path().join("vms.toml");
        std::fs::write(&path, vms).unwrap();
        let text = out(&["opteron-6348.toml", path.to_str().unwrap(), "--policy", "simple"]);
        assert!(text.contains(expected), "{text}");
    };
    let big = "[[vm]]\nname = \"big\"\nmemory = \"1000G\"\nwaiting = 0.5\nincoming = true\n";
    check(big, "Note: big does not fit: the host has too little free memory");
    let stays = big.replace("1000G", "1G").replace("incoming = true", "");
    check(&stays, "Note: no VM arrives: mark one with `incoming = true`");
}
