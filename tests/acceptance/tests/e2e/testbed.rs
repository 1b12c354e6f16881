//! The testbed itself: what scenarios can do to guests and host, and that commands in guests are answered.

use acceptance::in_testbed;

/// The lines that a script printed on the virtual host of a scenario; it must have succeeded.
fn said(scenario: &str, script: &str) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let ran = in_testbed(scenario, folder.path(), &format!("set -e\n{script}")).unwrap();
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    ran.stdout.lines().map(str::to_owned).collect()
}

/// Seconds from the end of the first to the beginning of the last of the steps that end with these words.
fn between(lines: &[String], first: &str, last: &str) -> f64 {
    let time = |words: &str, column| -> f64 {
        let line = lines.iter().find(|line| line.ends_with(words)).unwrap();
        line.split(' ').nth(column).unwrap().parse().unwrap()
    };
    time(last, 0) - time(first, 1)
}

/// A guest's answers are those of the line that was sent, also when it booted in between and when what earlier lines
/// left running goes on writing.
pub(crate) fn guests_boot_again_and_answer() {
    let lines = said(
        "reboot",
        "exec='vmscope testbed exec'
        $exec a -- sh -c '(while sleep 0.2; do echo noise; echo noise >&2; done) &' >first 2>&1
        for i in 1 2 3 4 5; do $exec a -- sh -c 'sleep 0.5; echo fine'; done
        boot() { $exec a -- cat /proc/sys/kernel/random/boot_id; }
        boot
        vmscope testbed steps
        boot
        $exec a -- sh -c 'echo out; echo err >&2; exit 3' 2>err || echo code $? $(cat err)
        $exec b -- true 2>/dev/null || echo gone",
    );
    assert_eq!(&lines[..5], ["fine"; 5]);
    let steps = lines.iter().position(|line| line.ends_with(" a: system_reset")).unwrap();
    assert_eq!(lines[steps + 3].rsplit(": ").next(), Some("vmscope testbed end b"));
    assert_ne!(lines[5], lines[steps + 5], "it booted");
    assert_eq!(&lines[steps + 6..], ["out", "code 3 err", "gone"]);
}

pub(crate) fn guests_are_stopped_moved_and_get_cpus() {
    let paused = said("pause", "vmscope testbed steps");
    let seconds = between(&paused, " a: stop", " a: cont");
    assert!((3.0..5.5).contains(&seconds), "stopped for {seconds} s");

    let plugged = said(
        "hotplug",
        "vmscope testbed steps
        vmscope testbed exec a -- cat /sys/devices/system/cpu/online",
    );
    assert_eq!(plugged.last().unwrap(), "0", "the second CPU came and went");

    let moved = said(
        "migrate-file",
        "boot() { vmscope testbed exec a -- cat /proc/sys/kernel/random/boot_id; pgrep -f '^[^ ]*qemu.*-name a,'; }
        boot; vmscope testbed steps; boot",
    );
    let n = moved.len();
    assert_eq!(moved[0], moved[n - 2], "the guest did not boot");
    assert_ne!(moved[1], moved[n - 1], "it is in another QEMU");

    let kept = said(
        "snapshot",
        "vmscope testbed steps
        vmscope testbed exec a -- cat /sys/devices/system/cpu/online",
    );
    assert_eq!(kept.iter().filter(|line| line.ends_with("human-monitor-command")).count(), 2);

    let offline = said(
        "cpu-offline",
        "vmscope testbed steps
        cat /sys/devices/system/cpu/online
        dmesg | grep -c 'CPU 1 is now offline'",
    );
    let n = offline.len();
    assert_eq!(&offline[n - 2..], ["0-1", "1"]);
}

pub(crate) fn guests_reach_each_other_and_the_host_has_nodes() {
    let lines = said(
        "network",
        "vmscope testbed exec a -- ping -c 1 -q 10.10.0.3 >/dev/null
        vmscope testbed exec b -- ping -c 1 -q 10.10.0.1 >/dev/null
        vmscope testbed exec a -- cat /proc/cmdline
        cat /sys/devices/system/node/node*/cpulist /sys/devices/system/node/node1/distance",
    );
    assert!(lines[0].ends_with(" pti=on"), "{}", lines[0]);
    assert_eq!(&lines[1..], ["0", "1", "17 10"]);
}
