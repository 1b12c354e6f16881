//! Traces of the virtual host: what every process waited for, with other programs' accounts of the same moments as
//! witnesses; and traces that are disturbed.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use acceptance::shared::{Part, SharedHost};
use acceptance::trace::{Life, check_sums, lives, percent_off, report, timehist};
use acceptance::{in_testbed, root, run, text, vmscope};
use serde_json::Value;

/// The host's empty disk, as a file system at /disk.
const DISK: &str = "modprobe -a virtio_blk ext4
    mkfs.ext4 -q -E nodiscard /dev/vda
    mkdir -p /disk && mount /dev/vda /disk
";

/// Every reason in turn, in groups: those that need the disk or the CPUs would keep the others from theirs.
const WAITS: &str = "
    waits 4 /disk timer pipe socket poll futex child vfork signal flock
    waits 4 /disk disk fault
    waits 4 /disk fsync inode
    waits 4 /disk convoy
";

/// The disk busy without a pause: requests take much longer than what sends them, and others wait meanwhile. Then more work
/// than CPUs.
const BUSY: &str = "
    ticks() { awk '$3 == \"vda\" { print $4, $13 }' /proc/diskstats; }
    ticks >ticks.txt
    for reader in $(seq 12); do
        dd if=/dev/vda of=/dev/null bs=1M count=13 skip=$((reader * 100)) iflag=direct 2>/dev/null &
    done
    wait
    ticks >>ticks.txt
    for _ in 0 1 2 3 4; do timeout 4 sh -c 'while :; do :; done' & done
    wait
";

static HOST: SharedHost = SharedHost::new(
    "trace",
    &[
        Part { test: "waits_have_user_stacks_of_the_functions_that_waited", script: stacks },
        Part { test: "files_have_their_bytes_waits_and_requests", script: files },
        Part { test: "waits_have_their_causes_and_witnesses_agree", script: causes },
        Part { test: "disturbed_traces_say_what_is_missing", script: disturbances },
    ],
);

/// With `--only-command` system calls are seen by perf events of the command's tasks (Linux 6.12 takes the program for it).
/// All calls are there, of threads and children, also when another tool's BPF program keeps them from perf; those of a
/// program that gets other rights are said to be missing.
pub(crate) fn a_command_alone_is_traced_by_events_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let script = "
        cp /bin/true /usr/local/with-rights
        chmod 4755 /usr/local/with-rights
        (while :; do /bin/true; done) &
        stranger=$!
        vmscope trace record --only-command -o calls -- sh -c 'for i in $(seq 200); do /bin/true; done'
        vmscope trace record --only-command -o rights -- \
            setpriv --reuid 65534 --regid 65534 --clear-groups sh -c '/usr/local/with-rights; true'
        mountpoint -q /sys/kernel/tracing || mount -t tracefs none /sys/kernel/tracing
        perf-bpf >other.txt &
        other=$!
        until grep -q ready other.txt; do sleep 0.2; done
        vmscope trace record --only-command -o beside -- sh -c 'for i in $(seq 20); do /bin/true; done'
        kill $stranger $other";
    let ran = in_testbed("no-guests-6.12", folder.path(), &format!("set -e\n{script}")).unwrap();
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let machine_and_calls = |name: &str| {
        let folder = folder.path().join(name);
        let output = run(&[
            "trace",
            "report",
            folder.to_str().unwrap(),
            "--view",
            "kernel",
            "--format",
            "json",
        ])
        .unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let calls = report["kernel"]["calls"].as_array().unwrap().clone();
        let count = move |name: &str| -> u64 {
            let of_name = calls.iter().filter(|call| text(call, "name") == name);
            of_name.map(|call| call["count"].as_u64().unwrap()).sum()
        };
        (report["machine"].clone(), count)
    };
    let (machine, count) = machine_and_calls("calls");
    assert_eq!(machine["lost"], serde_json::json!([]), "{machine}");
    // The shell, `seq`, and each `true`.
    assert_eq!((count("execve"), count("exit_group")), (202, 202));
    let missing = |machine: &Value| {
        let missing = machine["missing"].as_array().unwrap();
        missing.iter().any(|row| text(row, "probe") == "system calls")
    };
    assert!(!missing(&machine), "{machine}");
    let (machine, count) = machine_and_calls("beside");
    assert_eq!((count("execve"), count("exit_group")), (22, 22));
    assert!(!missing(&machine), "{machine}");
    let (machine, _) = machine_and_calls("rights");
    assert!(missing(&machine), "{machine}");
}

/// `--flight`: a trace that begins in the middle has the tasks of its begin, and all figures hold as in others. Programs whose
/// numbers count up are the witness: the last one is in the trace, the first is not, and what SIGUSR1 wrote is of before.
pub(crate) fn a_flight_recorder_keeps_the_last_seconds() {
    let folder = tempfile::tempdir().unwrap();
    let script = "
        vmscope trace record -o last --flight 1 -- sh -c '
            for i in $(seq 40); do cp /bin/sleep p$i; ./p$i 0.1; done'
        vmscope trace record -o small --flight 60 --flight-memory 1M -- sh -c '
            for i in $(seq 3); do cp /bin/sleep q$i; done
            ./q1 0.1; dd if=/dev/zero of=/dev/null bs=1 count=100000 2>/dev/null; ./q2 0.1; ./q3 0.1'
        vmscope trace record -o wanted --flight 60 2>said.txt &
        recorder=$!
        until [ -s said.txt ]; do sleep 0.1; done
        ./q1 0.2
        kill -USR1 $recorder
        until grep -q wanted.1: said.txt; do sleep 0.1; done
        ./q2 0.2
        kill -INT $recorder
        wait $recorder";
    let ran = in_testbed("trace", folder.path(), &format!("set -e\n{script}")).unwrap();
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let view = |name: &str, view: &str| {
        let arguments = ["--view", view, "--all", "--limit", "0"];
        report(&folder.path().join(name), &arguments).unwrap()
    };
    let report_of = |name: &str| view(name, "process");
    let names = |report: &Value| -> Vec<String> {
        let rows = report["processes"].as_array().unwrap();
        rows.iter().map(|row| text(row, "name").to_owned()).collect()
    };
    let has = |report: &Value, name: &str| names(report).iter().any(|other| other == name);
    for name in ["last", "small", "wanted", "wanted.1"] {
        let report = report_of(name);
        check_sums(&view(name, "overview")).unwrap();
        assert_eq!(report["machine"]["lost"], serde_json::json!([]), "{name}");
        // No task is one that only an event shows: the tasks of the begin are all there.
        let unnamed = names(&report).into_iter().filter(|name| name.starts_with('['));
        let is_number = |name: &String| name[1..].trim_end_matches(']').parse::<u32>().is_ok();
        assert_eq!(unnamed.filter(is_number).count(), 0, "{name}");
    }
    let last = report_of("last");
    assert!(has(&last, "p40") && !has(&last, "p1"), "{:?}", names(&last));
    assert_eq!(last["trace"]["duration_ns"], 1_000_000_000_u64);
    // The shell is the command, and began its program before.
    assert_eq!((&last["command"]["exit_code"], has(&last, "sh")), (&0.into(), true));
    let small = report_of("small");
    assert!(has(&small, "q3") && !has(&small, "q1"), "{:?}", names(&small));
    assert!(small["trace"]["notes"].to_string().contains("--flight-memory"), "{small}");
    let (before, all) = (report_of("wanted.1"), report_of("wanted"));
    assert!(has(&before, "q1") && !has(&before, "q2"), "{:?}", names(&before));
    assert!(has(&all, "q1") && has(&all, "q2"), "{:?}", names(&all));
}

/// 512 pages that are read from the disk, read again from the page cache, written to another file; a folder whose lock four
/// processes want; a file of two names, one without any, one with a name that steers terminals.
const FILES: &str = "
    dd if=/dev/zero of=/disk/known bs=4096 count=512 conv=fsync 2>/dev/null
    sync; echo 3 >/proc/sys/vm/drop_caches
    exec 3>/disk/gone; rm /disk/gone
    vmscope trace record --files --buffer 16M -o files -- sh -c '
        dd if=/disk/known of=/disk/copy bs=4096 count=512 conv=fsync 2>/dev/null
        dd if=/disk/known of=/dev/null bs=4096 2>/dev/null
        cp /disk/known /disk/cp
        dd if=/disk/known of=/disk/direct bs=64k count=8 oflag=direct 2>/dev/null
        dd if=/dev/zero bs=1000 count=3 2>/dev/null >&3
        n=$(printf \"/disk/a\\033[2Jb\\377\"); echo 12345 >\"$n\"; ln \"$n\" /disk/second; cat /disk/second
        waits 2 /disk inode'
    vmscope trace report files --view files --limit 0 --all >files.txt
    exec 3>&-; umount /disk";

fn files() -> String {
    format!("{DISK}{FILES}")
}

pub(crate) fn files_have_their_bytes_waits_and_requests() {
    let folder = HOST.succeeded("files_have_their_bytes_waits_and_requests").files;
    let trace = folder.join("files");
    let view = |view: &str, arguments: &[&str]| {
        report(&trace, &[&["--view", view, "--limit", "0"], arguments].concat()).unwrap()
    };
    let command = view("files", &[]);
    let rows = command["files"]["files"].as_array().unwrap();
    let number = |row: &Value, key: &str| row[key].as_u64().unwrap();
    let row = |path: &str| {
        let found = rows.iter().find(|row| text(row, "file") == path);
        found.unwrap_or_else(|| panic!("{path}: {rows:?}"))
    };
    const BYTES: u64 = 512 * 4096;

    // Read three times and in part a fourth time, from the disk once.
    let known = row("/disk/known");
    assert_eq!(number(known, "read_bytes"), 3 * BYTES + 8 * 65536);
    assert_eq!(
        (number(known, "pages_read_bytes"), number(known, "disk_read_bytes")),
        (BYTES, BYTES)
    );
    assert!(2 * BYTES + 8 * 65536 <= number(known, "cached_bytes"), "{known}");
    assert!(number(known, "cached_reads") < number(known, "reads"), "{known}");
    assert!(0 < number(known, "disk_wait_ns"), "{known}");
    // Written once, and to the disk by the kernel for it.
    let copy = row("/disk/copy");
    let of_copy = ["writes", "written_bytes", "pages_made_bytes", "disk_written_bytes"];
    assert_eq!(of_copy.map(|key| number(copy, key)), [512, BYTES, BYTES, BYTES]);
    // By `copy_file_range`.
    let cp = row("/disk/cp");
    assert_eq!((number(cp, "written_bytes"), number(cp, "read_bytes")), (BYTES, 0));
    // Past the page cache.
    let direct = row("/disk/direct");
    let of_direct = ["written_bytes", "pages_made_bytes", "disk_written_bytes"];
    assert_eq!(of_direct.map(|key| number(direct, key)), [8 * 65536, 0, 8 * 65536]);
    let gone = row("/disk/gone (deleted)");
    assert_eq!((number(gone, "links"), number(gone, "written_bytes")), (0, 3000));
    // By the name by which it was first seen, of any bytes, which no terminal obeys.
    let hostile = rows.iter().find(|row| text(row, "file").starts_with("/disk/a")).unwrap();
    assert!(text(hostile, "file").ends_with("b\\xff"), "{hostile}");
    assert_eq!(["written_bytes", "read_bytes"].map(|key| number(hostile, key)), [6, 6]);
    assert!(!rows.iter().any(|row| text(row, "file") == "/disk/second"));
    let shown = std::fs::read(folder.join("files.txt")).unwrap();
    assert!(!shown.contains(&0x1b), "{}", String::from_utf8_lossy(&shown));

    // The folder's lock: waited for by those who make files in it, and held by them.
    let locks = command["files"]["locks"].as_array().unwrap();
    let folder = rows.iter().find(|row| {
        text(row, "kind") == "folder" && text(row, "file").starts_with("/disk/waits-inode-")
    });
    let folder = folder.unwrap();
    let of_folder: Vec<_> =
        locks.iter().filter(|row| text(row, "file") == text(folder, "file")).collect();
    let sum = |rows: &[&Value]| -> u64 { rows.iter().map(|row| number(row, "ns")).sum() };
    let is_known = |row: &&&Value| row["holder"].is_string();
    let held: Vec<&Value> = of_folder.iter().filter(is_known).copied().collect();
    assert!(held.iter().all(|row| text(row, "holder").starts_with("wait-inode (")), "{held:?}");
    assert!(sum(&of_folder) < 2 * sum(&held), "{} {}", sum(&of_folder), sum(&held));
    assert_eq!(number(folder, "lock_wait_ns"), sum(&of_folder));
    // As long as by the stacks of the sleeps, which leave out what was spun.
    let waits = view("waits", &["--process", "wait-inode"]);
    let details = waits["waits"]["details"].as_array().unwrap();
    let of_inodes = details.iter().filter(|row| text(row, "cause") == "inode lock");
    let by_stacks: u64 = of_inodes.map(|row| number(row, "ns")).sum();
    let all: Vec<&Value> =
        locks.iter().filter(|row| text(row, "waiter").starts_with("wait-inode")).collect();
    assert!(by_stacks <= sum(&all), "{by_stacks} {}", sum(&all));

    // Metadata and journal are apart, and all requests are the disks'.
    let everyone = view("files", &["--all"]);
    let classes = everyone["files"]["requests"].as_array().unwrap();
    let class = |name: &str| classes.iter().find(|row| text(row, "content") == name);
    assert!(class("journal").is_some_and(|row| 0 < number(row, "written_bytes")), "{classes:?}");
    let profile = view("profile", &["--all"]);
    let disks = profile["profile"]["disks"].as_array().unwrap();
    for key in ["requests", "read_bytes", "written_bytes"] {
        let sum = |rows: &[Value]| -> u64 { rows.iter().map(|row| number(row, key)).sum() };
        assert_eq!(sum(classes), sum(disks), "{key}");
    }
}

/// `sleeper` sleeps in two functions, and says how long it was on no CPU meanwhile, by its own clocks.
fn stacks() -> String {
    "vmscope trace record --user-stacks -o where -- sleeper 60 20 40 >said.txt".to_owned()
}

pub(crate) fn waits_have_user_stacks_of_the_functions_that_waited() {
    let files = HOST.succeeded("waits_have_user_stacks_of_the_functions_that_waited").files;
    let trace = files.join("where");
    let exported = ["trace", "export", trace.to_str().unwrap(), "--format", "folded", "-o", "-"];
    let folded = String::from_utf8(run(&exported).unwrap().stdout).unwrap();
    let lines: Vec<(Vec<&str>, u64)> = folded
        .lines()
        .map(|line| {
            let (stack, ns) = line.rsplit_once(' ').unwrap();
            (stack.split(';').collect(), ns.parse().unwrap())
        })
        .collect();

    // What it waits for after it ran on, before the function ended, has no stack.
    let is_preempted =
        |(stack, _): &&(Vec<&str>, u64)| stack[..] == ["sleeper", "[cpu (preempted)]"];
    let preempted: u64 = lines.iter().filter(is_preempted).map(|(_, ns)| ns).sum();
    let said = std::fs::read_to_string(files.join("said.txt")).unwrap();
    for (line, requested_ms) in said.lines().zip([40 * 60, 40 * 20]) {
        let (function, seconds) = line.split_once(' ').unwrap();
        let waited = |cause: &str| -> u64 {
            let is_there = |(stack, _): &&(Vec<&str>, u64)| {
                stack[0] == "sleeper"
                    && stack.windows(2).any(|pair| pair == ["main", function])
                    && stack.contains(&"__x64_sys_nanosleep")
                    && stack.last() == Some(&cause)
            };
            lines.iter().filter(is_there).map(|(_, ns)| ns).sum()
        };
        let asleep = waited("[timer]");
        assert!(-1.0 < percent_off(asleep, f64::from(requested_ms) * 1e6), "{function}: {asleep}");
        let ns = asleep + waited("[cpu (woken)]");
        let off_cpu_ns = seconds.parse::<f64>().unwrap() * 1e9;
        let off = percent_off(ns, off_cpu_ns);
        eprintln!("trace: {function}, against the program's clocks: {off:+.2} %");
        // The scheduler reads its clock a little before the events of the switches.
        assert!(off <= 1.0, "{function}: {ns} ns of {off_cpu_ns}");
        let off = percent_off(ns + preempted, off_cpu_ns);
        assert!(-5.0 <= off, "{function}: {ns} and {preempted} ns of {off_cpu_ns}");
    }
    let waits = &report(&trace, &["--view", "waits", "--limit", "0"]).unwrap()["waits"];
    let life = |field: &str| waits["total"][field].as_u64().unwrap();
    let waited = life("life_ns") - life("running_ns");
    assert_eq!(lines.iter().map(|(_, ns)| ns).sum::<u64>(), waited);
    let stacks = waits["stacks"].as_array().unwrap();
    assert_eq!(stacks.iter().filter_map(|row| row["ns"].as_u64()).sum::<u64>(), waited);
}

/// `perf` traces the first command beside vmscope; the kernel's accounts of delays and of the disk are of the second,
/// without perf: what another tracer does between the moments that both look at would be in the account.
fn causes() -> String {
    format!(
        "{DISK}
        cat >waits.sh <<'END'
{WAITS}
END
        perf sched record -o perf.data -- sleep 1000 >perf.log 2>&1 &
        perf=$!
        until [ -s perf.data ]; do sleep 0.2; done
        sleep 1
        vmscope trace record -o waits -- sh waits.sh
        kill $perf
        wait $perf || true
        perf sched timehist -i perf.data >timehist.txt 2>/dev/null
        rm perf.data

        sync
        cat >busy.sh <<'END'
{BUSY}
END
        sysctl -q kernel.task_delayacct=1
        delays 0-1 >delays.txt &
        delays=$!
        vmscope trace record -o busy -- sh busy.sh
        kill $delays"
    )
}

pub(crate) fn waits_have_their_causes_and_witnesses_agree() {
    let files = HOST.succeeded("waits_have_their_causes_and_witnesses_agree").files;
    let (waits, busy) = (files.join("waits"), files.join("busy"));
    let read = |name: &str| std::fs::read_to_string(files.join(name)).unwrap();

    nothing_is_lost_and_sums_hold(&waits);
    nothing_is_lost_and_sums_hold(&busy);
    let found = lives(&waits).unwrap();
    each_waits_for_what_it_is_named_after(&found);
    inode_locks_have_holders(&waits);
    futexes_have_holders(&waits);
    other_programs_open_it(&waits);
    perf_agrees(&found, &read("timehist.txt"));
    accounts_of_delays_agree(&lives(&busy).unwrap(), &read("delays.txt"));
    account_of_the_disk_agrees(&busy, &read("ticks.txt"));
}

fn agrees(witness: &str, off_percent: f64, limit_percent: f64) {
    eprintln!("trace: {witness}: {off_percent:+.2} %");
    assert!(off_percent.abs() <= limit_percent, "{witness}: {off_percent:+.2} %");
}

fn nothing_is_lost_and_sums_hold(trace: &Path) {
    let found = report(trace, &["--limit", "0"]).unwrap();
    assert_eq!(found["machine"]["lost"], Value::Array(vec![]));
    assert!(found["trace"]["complete"].as_bool().unwrap());
    check_sums(&found).unwrap();

    let of_command = report(trace, &["--view", "waits"]).unwrap();
    let total = &of_command["waits"]["total"];
    let ns = |field: &str| total[field].as_u64().unwrap();
    let (unknown, waiting) = (ns("unknown_ns"), ns("waiting_ns"));
    eprintln!("trace: {unknown} of {waiting} ns of waiting unknown");
    assert!(unknown * 20 < waiting, "{unknown} of {waiting} ns of waiting unknown");
}

/// Names of threads, whether they are the first of their process, and what they wait for.
const CAUSES: &[(&str, bool, &str)] = &[
    ("wait-timer", true, "timer"),
    ("wait-pipe", true, "pipe"),
    ("wait-socket", true, "socket"),
    ("wait-poll", true, "poll"),
    ("wait-futex", true, "futex"),
    ("wait-child", true, "child"),
    ("wait-vfork", true, "vfork"),
    ("wait-signal", true, "signal"),
    ("wait-disk", true, "disk read"),
    ("wait-fsync", true, "journal"),
    ("wait-fault", true, "page fault (disk)"),
    ("wait-flock", true, "file lock"),
    ("wait-inode", true, "inode lock"),
    ("wait-convoy", false, "futex"),
];

/// The processes that live long: `wait-vfork` makes short ones of its own name.
fn each_waits_for_what_it_is_named_after(lives: &BTreeMap<u32, Life>) {
    for &(name, leads, cause) in CAUSES {
        let is_meant = |life: &&Life| {
            life.name == name
                && life.leads == leads
                && 3_000_000_000 < life.running + life.waiting()
        };
        let meant: Vec<&Life> = lives.values().filter(is_meant).collect();
        assert!(!meant.is_empty(), "no {name}");
        for life in meant {
            assert_eq!(life.first_cause(), Some(cause), "{name}: {life:?}");
        }
    }
}

fn inode_locks_have_holders(trace: &Path) {
    let arguments = ["--view", "waits", "--process", "wait-inode", "--limit", "0"];
    let waits = report(trace, &arguments).unwrap();
    let details = waits["waits"]["details"].as_array().unwrap();
    let ns = |known: bool| -> u64 {
        let of_inodes = details.iter().filter(|row| text(row, "cause") == "inode lock");
        let alike = of_inodes.filter(|row| row["holder"].is_string() == known);
        alike.filter_map(|row| row["ns"].as_u64()).sum()
    };
    eprintln!("trace: inode locks with a holder {} ns, without {} ns", ns(true), ns(false));
    assert!(ns(false) < ns(true));
}

/// `help-futex` has the mutex that `wait-futex` wants.
fn futexes_have_holders(trace: &Path) {
    let arguments = ["--view", "waits", "--process", "wait-futex", "--limit", "0"];
    let waits = report(trace, &arguments).unwrap();
    let details = waits["waits"]["details"].as_array().unwrap();
    let ns = |known: bool| -> u64 {
        let is_alike = |row: &&Value| (text(row, "holder") == "help-futex") == known;
        let of_futexes = details.iter().filter(|row| text(row, "cause") == "futex");
        of_futexes.filter(is_alike).filter_map(|row| row["ns"].as_u64()).sum()
    };
    eprintln!("trace: futexes held by help-futex {} ns, other {} ns", ns(true), ns(false));
    assert!(ns(false) < ns(true));
}

/// `perf sched timehist` counts a task's waiting from when it first leaves a CPU, we from its begin.
fn perf_agrees(lives: &BTreeMap<u32, Life>, timehist_txt: &str) {
    let perf = timehist(timehist_txt);
    let both: Vec<_> = lives
        .iter()
        .filter(|(_, life)| ["wait-", "help-"].iter().any(|name| life.name.starts_with(name)))
        .filter_map(|(tid, life)| Some((life, perf.get(tid)?)))
        .collect();
    assert!(100 < both.len(), "{} tasks", both.len());
    let running = both.iter().map(|(life, _)| life.running).sum();
    let waiting = both.iter().map(|(life, _)| life.waiting() - life.unborn).sum();
    let running = percent_off(running, both.iter().map(|(_, perf)| perf.running).sum());
    let waiting = percent_off(waiting, both.iter().map(|(_, perf)| perf.waiting).sum());
    agrees("running, against perf sched", running, 1.0);
    agrees("waiting, against perf sched", waiting, 1.0);
}

/// `delays` writes `TID NAME CPU_DELAY_NS BLOCK_IO_DELAY_NS CPU_NS` when a task ends. The kernel's delay for block I/O is
/// what we call waiting for a disk: here no task waits for a journal, which the kernel does not count.
fn accounts_of_delays_agree(lives: &BTreeMap<u32, Life>, delays: &str) {
    let (mut ours, mut theirs) = ([0; 2], [0.0; 2]);
    for line in delays.lines() {
        let words: Vec<&str> = line.rsplitn(4, ' ').collect();
        let [_, disk, cpu, task] = words[..] else { panic!("{line}") };
        let (tid, name) = task.split_once(' ').unwrap();
        if !["dd", "sh"].contains(&name) {
            continue;
        }
        let Some(life) = lives.get(&tid.parse().unwrap()) else { continue };
        let on_disk = life.waits.iter().filter(|(cause, _)| cause.contains("disk"));
        ours[0] += life.cpu_delay();
        ours[1] += on_disk.map(|(_, ns)| ns).sum::<u64>();
        theirs[0] += cpu.parse::<f64>().unwrap();
        theirs[1] += disk.parse::<f64>().unwrap();
    }
    let [cpu, disk] = [0, 1].map(|n| percent_off(ours[n], theirs[n]));
    agrees("waiting for a CPU, against taskstats", cpu, 2.0);
    agrees("waiting for the disk, against taskstats", disk, 2.0);
}

/// /proc/diskstats counts in ticks of 4 ms, so the disk has work without a pause between the two readings, and none
/// outside of them.
fn account_of_the_disk_agrees(trace: &Path, ticks: &str) {
    let profile = &report(trace, &["--view", "profile", "--all"]).unwrap()["profile"];
    let time = &profile["disks"][0]["time"];
    let with_disk = ["both_ns", "disk_only_ns", "unknown_and_disk_ns"];
    let busy = with_disk.iter().map(|field| time[field].as_u64().unwrap()).sum();
    let difference = |column: usize| {
        let reading =
            |line: &str| -> f64 { line.split_whitespace().nth(column).unwrap().parse().unwrap() };
        let readings: Vec<f64> = ticks.lines().map(reading).collect();
        readings[1] - readings[0]
    };
    let (reads, busy_ms) = (difference(0), difference(1));
    eprintln!("trace: {reads} reads, disk busy for {busy} ns, by diskstats {busy_ms} ms: {time}");
    let off = percent_off(busy, busy_ms * 1e6);
    agrees("disk busy, against diskstats", off, 2.0);
}

fn other_programs_open_it(trace: &Path) {
    for format in ["perfetto", "html"] {
        let export = ["trace", "export", ".", "--format", format];
        let mut command = Command::new(vmscope().unwrap());
        let exported = command.args(export).current_dir(trace).output().unwrap();
        assert!(exported.status.success(), "{format}");
    }
    let page = std::fs::read_to_string(trace.join("trace.html")).unwrap();
    assert!(page.contains("wait-inode"));
    let interop = Command::new(root().join("tests/interop/run.sh"))
        .arg("trace")
        .arg(trace.join("trace.perfetto"))
        .status()
        .unwrap();
    assert!(interop.success());
}

/// A full disk, Ctrl-C, a killed recorder and a ring that is not emptied: what there is can be read, and what is
/// missing is said. The commands disturb their recorder, their parent.
fn disturbances() -> String {
    "
        mkdir /small
        mount -t tmpfs -o size=300k none /small
        vmscope trace record -o /small/full --keep-free 0 -- dd if=/dev/zero of=/dev/null bs=1 count=40000 2>full.txt && exit 1
        cp -r /small/full.partial full
        vmscope trace record -o interrupted -- sh -c 'kill -INT $PPID; sleep 100' || true
        vmscope trace record -o killed -- sh -c 'sleep 3; kill -KILL $PPID; sleep 1' || true
        flock /run/vmscope-trace.lock true
        vmscope trace record -o overrun --buffer 64K -- \
            sh -c 'kill -STOP $PPID; dd if=/dev/zero of=/dev/null bs=1 count=10000; kill -CONT $PPID' >overrun.txt 2>&1"
        .to_owned()
}

pub(crate) fn disturbed_traces_say_what_is_missing() {
    let files = HOST.succeeded("disturbed_traces_say_what_is_missing").files;
    let path = |name: &str| files.join(name);
    let read = |name: &str| std::fs::read_to_string(path(name)).unwrap();

    let full = read("full.txt");
    let last = full.lines().last().unwrap();
    assert!(last.contains("no space left") && last.contains("full.partial"), "{full}");
    for partial in ["full", "killed.partial"] {
        let found = report(&path(partial), &[]).unwrap();
        assert!(!found["trace"]["complete"].as_bool().unwrap(), "{partial}");
        assert!(0 < found["machine"]["events"].as_u64().unwrap(), "{partial}");
    }
    let interrupted = report(&path("interrupted"), &[]).unwrap();
    assert!(interrupted["trace"]["complete"].as_bool().unwrap());
    assert!(interrupted["trace"]["duration_ns"].as_u64().unwrap() < 60_000_000_000);

    let found = report(&path("overrun"), &[]).unwrap();
    let losses = found["machine"]["lost"].as_array().unwrap();
    let lost: u64 = losses.iter().filter_map(|row| row["count"].as_u64()).sum();
    let said = read("overrun.txt");
    assert!(10_000 < lost, "{lost} lost of 40,000");
    assert!(said.contains(" lost") && !said.contains(" 0 lost"), "{said}");
    let shown = run(&["trace", "report", path("overrun").to_str().unwrap()]).unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    let words = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("Lost: ") && words.contains("; doubtful: "), "{shown}");
}
