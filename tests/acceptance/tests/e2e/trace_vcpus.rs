//! VMs' CPUs in traces of their host: never unknown, and stolen from as the guest can't see it.

use std::path::Path;
use std::process::Command;

use acceptance::trace::{check_sums, report};
use acceptance::{in_testbed_within, root, run};
use serde_json::Value;

/// A guest that always has something to do, beside one that does some work; both on the host's first CPU.
const SCRIPT: &str = "
    set -e
    vmscope testbed exec b -- compute 100000 &
    vmscope trace record -o all --duration 4
    vmscope trace record -o one --vm a -- fixed 2 1";

/// What a vCPU does that shares its CPU takes more than twice as long.
const LIMIT_S: u32 = 600;

pub(crate) fn vcpus_that_never_leave_and_who_stole_from_them() {
    let folder = tempfile::tempdir().unwrap();
    let ran = in_testbed_within(LIMIT_S, "trace-contention", folder.path(), SCRIPT).unwrap();
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    vcpus_are_known(&folder.path().join("all"));
    other_programs_see_the_thief(&folder.path().join("one"));
}

/// `b`'s thread makes no system call and never sleeps.
fn vcpus_are_known(trace: &Path) {
    let found = report(trace, &["--limit", "0"]).unwrap();
    check_sums(&found).unwrap();
    assert_eq!(found["machine"]["lost"], Value::Array(vec![]));
    let ns = |class: &str| -> u64 {
        let classes = found["kernel"]["machine"].as_array().unwrap().iter();
        classes.filter(|row| row["class"] == class).map(|row| row["ns"].as_u64().unwrap()).sum()
    };
    let (wall, vcpus, unknown) =
        (found["machine"]["wall_ns"].as_u64().unwrap(), ns("vcpus"), ns("unknown"));
    eprintln!("trace: of {wall} ns vCPUs had {vcpus}, unknown are {unknown}");
    assert!(wall / 2 < vcpus, "{vcpus} of {wall} ns");
    assert!(unknown * 50 < vcpus, "{unknown} ns unknown");
}

/// Perfetto's trace processor and a browser open it; the first thief of the path is the other VM.
fn other_programs_see_the_thief(trace: &Path) {
    let found = report(trace, &["--view", "critical-path", "--limit", "0"]).unwrap();
    let running = &found["critical_path"]["host_side"]["running"];
    eprintln!("trace: the path from the host's side: {running}");
    assert_eq!(running["stolen_by"][0]["by"], "VM b", "{running}");

    let path = trace.to_str().unwrap();
    let files = ["perfetto", "html"].map(|format| {
        let file = trace.join(format!("trace.{format}"));
        let exported =
            run(&["trace", "export", path, "--format", format, "-o", file.to_str().unwrap()]);
        assert!(exported.unwrap().status.success(), "{format}");
        file
    });
    let page = std::fs::read_to_string(&files[1]).unwrap();
    assert!(page.contains("The host&#39;s side") && page.contains("by VM b"));
    let interop =
        Command::new(root().join("tests/interop/run.sh")).arg("trace").args(&files).status();
    assert!(interop.unwrap().success());
}
