//! A disk that is full, tried with a limit on the size of files.

use std::path::Path;
use std::process::Command;

const FOLDER: &str = "VMSCOPE_TEST_FULL_DISK";
const PART: &str = "VMSCOPE_TEST_FULL_DISK_PART";

/// Runs the part `spool` or `finish` of a test if this process was started by `under_limit`: whether it was.
pub(crate) fn is_part(spool: fn(&Path), finish: fn(&Path)) -> bool {
    let (Some(dir), Ok(name)) = (std::env::var_os(FOLDER), std::env::var(PART)) else {
        return false;
    };
    let run = match name.as_str() {
        "spool" => spool,
        "finish" => finish,
        other => panic!("no part {other}"),
    };
    run(Path::new(&dir));
    true
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
