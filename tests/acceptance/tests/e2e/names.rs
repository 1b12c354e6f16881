//! Processes of a host and of a guest that call themselves what vmscope calls others. The kernel's own account of their CPU
//! time is the witness.

use std::path::Path;

use acceptance::{report, text};
use serde_json::Value;

use super::axis::{ONE_CPU, requested};

/// `vhost-` is followed by the process of VM a.
const NAMES: [&str; 6] = ["[idle]", "[unknown]", "[kvm]", "VM web", "vhost-", "kvm-vcpu:0"];

/// Each computes: first on the VMs' CPU, then in VM a, where others come first.
pub(super) fn script() -> String {
    let names = NAMES.map(|name| format!("\"{name}\"")).join(" ").replace("vhost-", "vhost-$vm");
    let in_guest = names.replace('"', "'");
    format!(
        "vm=$(pgrep -f '^[^ ]*qemu.*-name a,')
        for name in {names}; do
            cp $(command -v compute) \"$name\"
            taskset 1 \"./$name\" >/dev/null 2>&1 &
            echo $! >>processes
        done
        cat >witness.sh <<'END'
        ran() {{
            for process in $(cat processes); do
                read -r name </proc/$process/comm
                read -r ns _ </proc/$process/schedstat
                echo \"$ns $name\"
            done
        }}
        ran >before
        sleep 10
        ran >after
END
        vmscope record -o rec --offcpu-source switches -- taskset 2 sh witness.sh
        kill $(cat processes)
        for name in {names}; do rm \"$name\"; done
        vmscope testbed exec a -- sh -c \"cd /tmp; for name in {in_guest}; do \
            cp /usr/local/bin/compute \\\"\\$name\\\"; ./\\\"\\$name\\\" >/dev/null 2>&1 & echo \\$! >>pids; done; \
            busybox renice -n 19 -p \\$(cat pids)\" >&2
        vmscope record -o guest --duration 8
        vmscope testbed exec a -- sh -c 'kill $(cat /tmp/pids)'"
    )
}

/// The name of each process on the host, and for how long it ran, ns.
fn witness(folder: &Path) -> Vec<(String, f64)> {
    let read = |name: &str| -> Vec<(String, f64)> {
        let text = std::fs::read_to_string(folder.join(name)).unwrap();
        let parts = text.lines().map(|line| line.split_once(' ').unwrap());
        parts.map(|(ns, name)| (name.to_owned(), ns.parse().unwrap())).collect()
    };
    let ran = read("before").into_iter().zip(read("after"));
    ran.map(|((name, before), (_, after))| (name, after - before)).collect()
}

pub(crate) fn look_alike_names_change_no_thief() {
    let files = ONE_CPU.succeeded("look_alike_names_change_no_thief").files;
    let recording = files.join("rec");
    let processes = witness(&files);
    assert_eq!(processes.len(), NAMES.len());
    let vms = super::hostile::vms(&recording);
    assert_eq!(vms.keys().collect::<Vec<_>>(), ["a", "b", "c"]);
    for vm in ["a", "b"] {
        thieves_are_known(&vms[vm], &processes);
    }
    let findings = requested("explain", &recording, &["a"])["findings"].clone();
    let findings = findings.as_array().unwrap();
    assert!(!findings.is_empty(), "a lost most of its time");
    for finding in findings {
        // A host process of this name may be the cause.
        let cause = text(finding, "cause").replace("host process VM web", "");
        assert!(!cause.contains("VM web"), "{finding}");
    }
    let arguments = ["--view", "guest", "--vm", "a", "--by", "process", "--limit", "0"];
    let in_guest = report(&files.join("guest"), &arguments).unwrap();
    for name in NAMES {
        let is_meant =
            |row: &Value| text(row, "side") == "guest" && is_named(text(row, "process"), name);
        assert!(0 < in_guest.sum(is_meant), "{name} in the guest: {:?}", in_guest.rows());
    }
}

/// Reports put a process's name in quotes where it could be a word of their own.
fn is_named(shown: &str, name: &str) -> bool {
    shown.trim_start_matches('"').starts_with(name)
}

/// A VM that always wants the CPU waits while others have it: each has stolen what the kernel says it ran.
fn thieves_are_known(vm: &Value, processes: &[(String, f64)]) {
    let thieves = vm["time"]["thieves"].as_array().unwrap();
    let ns = |is_meant: &dyn Fn(&Value) -> bool| -> f64 {
        let meant = thieves.iter().filter(|thief| is_meant(thief));
        meant.map(|thief| thief["ns"].as_f64().unwrap()).sum()
    };
    let of_kind = |kind: &str| ns(&|thief| text(thief, "kind") == kind);
    // On a busy machine interrupts are missed, and who came next is not always known.
    let unknown = of_kind("unknown");
    for (name, ran) in processes {
        let stolen =
            ns(&|thief| text(thief, "kind") == "process" && is_named(text(thief, "name"), name));
        eprintln!(
            "{}: {name} took {:.3} s, ran {:.3} s",
            text(vm, "name"),
            stolen / 1e9,
            ran / 1e9
        );
        let is_right = ran * 0.5 < stolen && ran * 0.85 < stolen + unknown && stolen < ran * 1.15;
        assert!(is_right, "{name} took {stolen} ns, ran {ran}: {vm}");
    }
    let wall = vm["time"]["wall_ns"].as_f64().unwrap();
    assert!(of_kind("idle") < wall * 0.02 && of_kind("vhost") < wall * 0.02, "{vm}");
    assert!(unknown < wall * 0.06, "{vm}");
    let other_vms =
        ns(&|thief| text(thief, "kind") == "vcpu" && !["a", "b", "c"].contains(&text(thief, "vm")));
    assert_eq!(other_vms, 0.0, "{vm}");
}
