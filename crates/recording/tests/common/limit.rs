//! A disk that is full, tried with a limit on the size of files.

use std::path::{Path, PathBuf};
use std::process::Command;

const FOLDER: &str = "VMSCOPE_TEST_FULL_DISK";
const PART: &str = "VMSCOPE_TEST_FULL_DISK_PART";

/// The folder and the name of the part that this process is to run, if it was started by `under_limit`.
pub(crate) fn part() -> Option<(PathBuf, String)> {
    Some((std::env::var_os(FOLDER)?.into(), std::env::var(PART).ok()?))
}

/// Runs a test again as `part`, in a process whose files end at `kib` KiB.
pub(crate) fn under_limit(test: &str, part: &str, kib: u32, dir: &Path) {
    let script = "trap '' XFSZ; ulimit -f \"$1\"; shift; exec \"$@\"";
    // Through a pipe: a log file is a file, too.
    let ran = Command::new("bash")
        .args(["-c", script, "bash", &kib.to_string()])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(FOLDER, dir)
        .env(PART, part)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{part} under a limit of {kib} KiB: {said}");
}
