//! VMs as they are on hosts: what they are called by all commands, whatever starts, ends and starts again. The VMs are those of
//! `tests/hostile/attack.c`: a process with a vCPU, and a command line like that of a VMM.

use std::collections::BTreeSet;
use std::path::Path;

use acceptance::in_testbed;

/// Two VMs of one name, of which the older one starts again, and one of Firecracker's.
const NAMES: &str = "set -e
    gcc -O1 -pthread -o attack attack.c
    cp attack firecracker
    begin() { ./attack asleep -name web -uuid $1-0000-4000-8000-000000000001 & }
    begin aaaaaaaa; first=$!
    sleep 1
    begin bbbbbbbb; second=$!
    ./firecracker asleep --id fc-1 --api-sock /run/x.sock & other=$!
    sleep 1
    vmscope record -o before --duration 2
    kill $first
    wait $first || true
    begin aaaaaaaa; first=$!
    sleep 1
    vmscope record -o after --duration 2
    vmscope doctor >doctor || true
    kill $first
    wait $first || true
    vmscope record -o alone --duration 2
    kill $second $other";

/// An agent beside VMs that end and start again within its windows.
const AGENT: &str = "set -e
    gcc -O1 -pthread -o attack attack.c
    cat >agent.toml <<END
state = \"$PWD/state\"
window_s = 5
pending_windows = 20
max_cpu_percent = 10000.0
END
    for n in 1 2 3; do ./attack asleep -name vm$n & eval vm$n=$!; done
    vmscope agent --short-windows --config agent.toml 2>journal & agent=$!
    windows() { ls state/spool 2>/dev/null | grep -c window || true; }
    two_more() { until=$(($(windows) + 2)); while [ $(windows) -lt $until ]; do kill -0 $agent; sleep 0.5; done; }
    two_more
    for round in 1 2 3 4 5 6; do
        for n in 1 2 3; do
            eval kill \\$vm$n
            ./attack asleep -name vm$n & eval vm$n=$!
            sleep 0.7
        done
    done
    two_more
    kill -TERM $agent
    wait $agent
    kill $vm1 $vm2 $vm3
    mkdir windows
    for window in state/spool/*; do
        folder=windows/$(basename $window .window)
        mkdir $folder
        tar -xf $window -C $folder
    done
    rm -r state";

fn run(script: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let attack = include_str!("../../../hostile/attack.c");
    let script = format!("cat >attack.c <<'END_OF_C'\n{attack}\nEND_OF_C\n{script}");
    let ran = in_testbed("no-guests-6.12", folder.path(), &script).unwrap();
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    folder
}

fn names(recording: &Path) -> Vec<String> {
    super::hostile::vms(recording).into_keys().collect()
}

pub(crate) fn what_stays_distinguishes_vms_of_one_name() {
    let folder = run(NAMES);
    let of = |recording: &str| names(&folder.path().join(recording));
    for recording in ["before", "after"] {
        assert_eq!(of(recording), ["fc-1", "web", "web-bbbbbbbb"], "{recording}");
    }
    assert_eq!(of("alone"), ["fc-1", "web-bbbbbbbb"]);
    let doctor = std::fs::read_to_string(folder.path().join("doctor")).unwrap();
    let running = doctor.lines().find_map(|line| line.split_once("running VMs"));
    let (_, running) = running.and_then(|(_, names)| names.split_once(": ")).expect(&doctor);
    let mut running: Vec<&str> = running.split(", ").collect();
    running.sort_unstable();
    assert_eq!(running, ["fc-1", "web", "web-bbbbbbbb"], "{doctor}");
}

pub(crate) fn vms_that_start_again_keep_their_names() {
    let folder = run(AGENT);
    let windows = std::fs::read_dir(folder.path().join("windows")).unwrap();
    let windows: Vec<_> = windows.map(|window| window.unwrap().path()).collect();
    assert!(4 <= windows.len(), "{windows:?}");
    let all: BTreeSet<String> = windows.iter().flat_map(|window| names(window)).collect();
    assert_eq!(all, ["vm1", "vm2", "vm3"].map(str::to_owned).into());
}
