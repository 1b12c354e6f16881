//! Bad input: a one-line error that says what to do, the right exit code, and nothing left behind.

use std::path::Path;

use acceptance::{in_testbed, run};

fn check(arguments: &[&str], code: i32, says: &str) {
    let output = run(arguments).unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
    assert!(stderr.contains(says), "{arguments:?}: {stderr}");
    assert_eq!(stderr.trim_end().lines().count(), 1, "{arguments:?}: {stderr}");
}

pub(crate) fn recordings_that_are_none() {
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().to_str().unwrap();
    check(&["report", "/nonexistent"], 1, "does not exist");
    check(&["report", empty], 1, "not a recording");
    check(&["report", "/etc/passwd"], 1, "not a recording");
    let newer = folder.path().join("recording.json");
    std::fs::write(newer, r#"{"format":"vmscope-recording","version":999}"#).unwrap();
    check(&["report", empty], 1, "newer vmscope");
}

pub(crate) fn usage() {
    let folder = tempfile::tempdir().unwrap();
    let taken = folder.path().to_str().unwrap();
    check(&["record", "-o", taken], 2, "exists already");
    check(&["record", "--period", "1us"], 2, "between 100us and 100ms");
    check(&["record", "--period", "soon"], 2, "see vmscope record --help");
    check(&["frobnicate"], 2, "unrecognized subcommand 'frobnicate': see vmscope --help");
    check(&["report"], 2, "<DIR>: see vmscope report --help");
    check(&["report", "x", "--limit", "y"], 2, "give a number of lines, 0 for all");
    check(&["testbed", "exec", "web", "--", "ls"], 1, "run it inside vmscope testbed run");
}

/// Everything that needs root, in one boot of a virtual host without guests.
pub(crate) fn recording_on_a_host_without_guests() {
    let folder = tempfile::tempdir().unwrap();
    let ran = in_testbed("no-guests", folder.path(), include_str!("refusals.sh")).unwrap();
    assert_eq!(
        ran.code, 0,
        "the script's last line says what failed:\n{}{}",
        ran.stdout, ran.stderr
    );
    assert!(Path::new(folder.path()).join("alone/recording.json").exists());
}
