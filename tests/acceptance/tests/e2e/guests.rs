//! Real guests on the virtual KVM host: who ran, by name, and nothing lost.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use acceptance::{Report, in_testbed, report, root, run, text, vmscope};
use model::{Owner, Sample, VcpuSample, VcpuState};
use recording::Recording;
use serde_json::Value;

/// Points by which a share may be off: three standard errors of a share `p` of `n` samples, at least
/// `least`.
fn points(p: f64, n: u64, least: f64) -> f64 {
    (300.0 * (p * (1.0 - p) / n as f64).sqrt()).max(least)
}

fn of_vm<'a>(name: &'a str) -> impl Fn(&Value) -> bool + 'a {
    move |row| text(row, "vm") == name && text(row, "side") == "guest"
}

pub(crate) fn three_guests_are_distinguished_down_to_their_functions() {
    let folder = tempfile::tempdir().unwrap();
    // Their programs are queried where the host may not read their memory.
    let script = "set -e
        vmscope record -o memory --duration 10
        mkdir -p /etc/vmscope && echo '*' >/etc/vmscope/no-guest-memory
        vmscope record -o rec --duration 15";
    let ran = in_testbed("channels", folder.path(), script).unwrap();
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let recording = folder.path().join("rec");
    memory_and_programs_agree(&folder.path().join("memory"), &recording);
    let unified = report(&recording, &["--limit", "100000"]).unwrap();

    assert_eq!(unified.counter("samples_dropped"), 0);
    assert_eq!(unified.sum(|_| true), unified.samples(), "the rows add up to the total");
    functions_of_all_kinds_have_names(&unified);
    short_lived_processes_have_names(&unified);
    guest_user_code_has_names(&unified);
    shares_are_80_to_20(&unified);
    views_agree(&recording, &unified);
    exports_agree(&recording, unified.samples());
}

fn functions_of_all_kinds_have_names(unified: &Report) {
    for (vm, module, function) in [
        ("web", "/compute", "compute_a"),        // a PIE
        ("web", "/compute-static", "compute_a"), // a static program
        ("db", "/libquantum.so", "quantum_"),    // a shared library
        ("ci", "[kernel]", "entry_SYSCALL_64"),  // the guest's kernel
        ("ci", "/shortlived", "short_work"),     // a process that lives 300 ms
    ] {
        let found = unified.sum(|row| {
            of_vm(vm)(row)
                && text(row, "module").contains(module)
                && text(row, "function").starts_with(function)
        });
        assert!(0 < found, "{vm}: no {function} of {module}");
    }
}

/// What runs all the time has the same share of its VM, whichever way its name came.
fn memory_and_programs_agree(memory: &Path, programs: &Path) {
    let reports = [memory, programs].map(|it| report(it, &["--limit", "100000"]).unwrap());
    let ways = reports.each_ref().map(|report| {
        let vms = report.0["recording"]["vms"].as_array().unwrap().iter();
        vms.filter_map(|vm| vm["map_via"].as_str().map(str::to_owned)).collect::<Vec<_>>()
    });
    assert_eq!(ways[0], ["memory"; 3]);
    assert_eq!(ways[1], ["vsock", "vsock", "virtio-serial"]);
    let mut compared = 0;
    for vm in ["web", "db"] {
        let of = of_vm(vm);
        let [by_memory, by_programs] = reports.each_ref().map(|report| {
            let all = report.sum(&of) as f64;
            let mut shares: BTreeMap<(String, String), f64> = BTreeMap::new();
            for row in report.rows().iter().filter(|row| of(row)) {
                let place = (text(row, "process").to_owned(), text(row, "function").to_owned());
                let samples = row["samples"].as_u64().unwrap() as f64;
                *shares.entry(place).or_default() += 100.0 * samples / all;
            }
            shares
        });
        for (place, share) in by_programs.iter().filter(|(_, share)| 3.0 <= **share) {
            let read = by_memory.get(place).copied().unwrap_or(0.0);
            eprintln!("{vm} {place:?}: {read:.1} % by memory, {share:.1} % by its program");
            let limit = (share / 4.0).max(4.0);
            assert!((read - share).abs() <= limit, "{vm} {place:?}: {read:.1}, {share:.1}");
            compared += 1;
        }
    }
    assert!(4 <= compared, "{compared}");
}

/// Nothing of ours is in these guests, and no device leads to them: their memory has the names.
pub(crate) fn nothing_is_installed_in_guests_that_have_names() {
    let folder = tempfile::tempdir().unwrap();
    // The last guest dies: its kernel does nothing but wait.
    let script = "set -e
        vmscope record -o rec --duration 12
        cp /var/log/vmscope/guest-memory.log audit
        timeout 5 vmscope testbed exec ci -- sh -c \
            'echo 0 >/proc/sys/kernel/panic; echo c >/proc/sysrq-trigger' || true
        vmscope record -o dead --duration 4";
    let ran = in_testbed("demo", folder.path(), script).unwrap();
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let recording = folder.path().join("rec");
    let unified = report(&recording, &["--limit", "100000"]).unwrap();
    let vms = unified.0["recording"]["vms"].as_array().unwrap();
    assert_eq!(vms.len(), 3);
    assert!(vms.iter().all(|vm| vm["map_via"] == "memory"), "{vms:?}");
    assert_eq!(unified.sum(|_| true), unified.samples(), "the rows add up to the total");
    functions_of_all_kinds_have_names(&unified);
    for vm in ["web", "db"] {
        let all = unified.sum(of_vm(vm));
        let unknown = unified.sum(|row| of_vm(vm)(row) && text(row, "function") == "[unknown]");
        eprintln!("{vm}: {unknown} of {all} samples of guests without a function");
        assert!(unknown * 100 <= all, "{vm}: {unknown} of {all} samples without a function");
    }
    short_lived_processes_have_names(&unified);
    tasks_have_their_page_tables(&recording);
    shares_are_80_to_20(&unified);
    a_dead_guest_has_names(&folder.path().join("dead"));
    let audit = std::fs::read_to_string(folder.path().join("audit")).unwrap();
    for vm in ["web", "db", "ci"] {
        let events = audit.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let events: Vec<Value> = events.filter(|line| line["vm"] == vm).collect();
        let read = events.iter().filter_map(|line| line["bytes"].as_u64()).sum::<u64>();
        assert!(events[0]["event"] == "begin" && 0 < read, "{vm}: {events:?}");
    }
}

fn a_dead_guest_has_names(recording: &Path) {
    let dead = report(recording, &["--view", "guest", "--vm", "ci", "--limit", "100000"]).unwrap();
    let of_guest = |row: &Value| text(row, "side") == "guest";
    let all = dead.sum(of_guest);
    let kernel = dead.sum(|row| {
        of_guest(row) && text(row, "module") == "[kernel]" && text(row, "function") != "[unknown]"
    });
    eprintln!("{kernel} of {all} samples of a dead guest in functions of its kernel");
    assert!(500 < all && all * 95 <= kernel * 100, "{kernel} of {all}");
}

/// Who runs was read from the guest's memory; page tables come from the vCPU. In user code the two are one process.
fn tasks_have_their_page_tables(recording: &Path) {
    let recording = Recording::open(recording).unwrap();
    let tables = &recording.tables;
    let images =
        tables.images.iter().filter_map(|image| Some(((image.owner, image.pid), image.cr3?)));
    let mut known: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for (task, cr3) in images {
        known.entry(task).or_default().insert(cr3);
    }
    let (mut seen, mut without, mut wrong) = (0_u64, 0_u64, 0_u64);
    let mut look = |vcpu: &VcpuSample| {
        let (3, Some(cr3)) = (vcpu.cpl, vcpu.cr3) else { return };
        seen += 1;
        let Some(task) = vcpu.task else {
            without += 1;
            return;
        };
        let owner = Owner::Vm(tables.vcpus[vcpu.vcpu.index()].vm);
        let known = known.get(&(owner, task.pid));
        wrong += u64::from(known.is_some_and(|known| !known.contains(&cr3)));
    };
    let see = &mut |samples: &[Sample]| {
        for sample in samples {
            if let VcpuState::Guest(vcpu) = &sample.vcpu {
                look(vcpu);
            }
        }
    };
    recording.for_each_batch(see).unwrap();
    eprintln!(
        "{seen} samples of guests' user code, {without} without a task, {wrong} with another one's page tables"
    );
    assert!(0 < seen && without * 100 <= seen && wrong == 0);
}

/// Each lived 300 ms of CPU time: none of their samples may lack an owner.
fn short_lived_processes_have_names(unified: &Report) {
    let named = unified.sum(|row| of_vm("ci")(row) && text(row, "process") == "shortlived");
    let unnamed =
        unified.sum(|row| of_vm("ci")(row) && text(row, "process").starts_with("[unknown"));
    assert!(unnamed * 100 <= named, "{unnamed} samples of processes without a name, {named} with");
}

fn guest_user_code_has_names(unified: &Report) {
    let user = |row: &Value| text(row, "side") == "guest" && !text(row, "module").starts_with('[');
    let of = |name: &str| unified.sum(|row| user(row) && text(row, "function") == name);
    let (all, unknown, stripped) = (unified.sum(user), of("[unknown]"), of("(stripped)"));
    eprintln!("guest user samples: {all}, {unknown} unknown, {stripped} in stripped files");
    assert!((unknown + stripped) * 100 < all, "{unknown} unknown, {stripped} stripped of {all}");
}

fn shares_are_80_to_20(unified: &Report) {
    let of =
        |function: &str| unified.sum(|row| of_vm("web")(row) && text(row, "function") == function);
    let (a, b) = (of("compute_a"), of("compute_b"));
    let share = 100.0 * a as f64 / (a + b) as f64;
    let limit = points(0.8, a + b, 1.0);
    assert!((share - 80.0).abs() <= limit, "compute_a has {share:.2} %, expected 80 ± {limit:.2}");
}

fn views_agree(recording: &Path, unified: &Report) {
    let host = report(recording, &["--view", "host", "--limit", "100000"]).unwrap();
    assert_eq!(host.samples(), unified.samples());
    for vm in ["web", "db", "ci"] {
        let guest =
            report(recording, &["--view", "guest", "--vm", vm, "--limit", "100000"]).unwrap();
        let ran =
            guest.0["totals"]["os"].as_u64().unwrap() + guest.0["totals"]["user"].as_u64().unwrap();
        let (in_unified, in_host) = (unified.sum(of_vm(vm)), host.sum(of_vm(vm)));
        assert_eq!((ran, in_unified), (in_host, in_host), "{vm}");
        assert!(0 < ran, "{vm} never ran");
        assert_eq!(guest.sum(|_| true), guest.samples(), "{vm}");
    }
}

fn exports_agree(recording: &Path, samples: u64) {
    let folded =
        run(&["export", recording.to_str().unwrap(), "--format", "folded", "-o", "-"]).unwrap();
    let lines = String::from_utf8(folded.stdout).unwrap();
    let sum: u64 = lines.lines().filter_map(|l| l.rsplit(' ').next()?.parse::<u64>().ok()).sum();
    assert_eq!(sum, samples);
    for format in ["pprof", "firefox", "html", "perfetto"] {
        let exported = Command::new(vmscope().unwrap())
            .args(["export", recording.to_str().unwrap(), "--format", format])
            .current_dir(recording)
            .output()
            .unwrap();
        assert!(exported.status.success(), "{format}");
    }
    // Opens them in Google's pprof, the Firefox Profiler's loader, a browser and Perfetto; says what it skips.
    let interop = Command::new(root().join("tests/interop/run.sh"))
        .arg(recording)
        .args([samples.to_string(), "3".to_owned()])
        .status()
        .unwrap();
    assert!(interop.success());
}

pub(crate) fn guests_that_start_late_or_keep_silent_still_show() {
    let folder = tempfile::tempdir().unwrap();
    // How long guests take to boot is the machine's business: the first recording lasts until the late one is
    // there and the leaver is gone, and 10 s more.
    let script = "set -e
        mkdir -p /etc/vmscope && echo mute >/etc/vmscope/no-guest-memory
        vmscope testbed exec mute -- vmscope-guest snapshot >mute.map
        vmscope record -o first -- sh -c '
            until vmscope testbed exec late -- true 2>/dev/null; do sleep 1; done
            while vmscope testbed exec leaver -- true 2>/dev/null; do sleep 1; done
            sleep 10'
        vmscope record -o second --duration 5 --guest-map mute=mute.map";
    let ran = in_testbed("late-guest", folder.path(), script).unwrap();
    assert_eq!(ran.code, 0, "{}", ran.stderr);

    let first = report(&folder.path().join("first"), &["--limit", "100000"]).unwrap();
    assert!(0 < first.sum(of_vm("late")), "the guest that started in mid-recording");
    let mute = |row: &Value| of_vm("mute")(row) && text(row, "function") == "[mute]";
    assert!(0 < first.sum(mute), "a guest without a map shows as [mute]");
    let vms = first.0["recording"]["vms"].as_array().unwrap();
    let reason = vms.iter().find(|vm| vm["name"] == "mute").unwrap()["no_map_reason"].as_str();
    for part in ["--guest-map", "/etc/vmscope/no-guest-memory"] {
        assert!(reason.unwrap().contains(part), "{reason:?}");
    }

    let leaver =
        report(&folder.path().join("first"), &["--view", "guest", "--vm", "leaver"]).unwrap();
    let mute = report(&folder.path().join("first"), &["--view", "guest", "--vm", "mute"]).unwrap();
    assert!(
        leaver.samples() + 8_000 < mute.samples(),
        "a VM that ended is not expected to run: {} samples, {} of one that did not",
        leaver.samples(),
        mute.samples()
    );
    assert!(0 < leaver.sum(|row| text(row, "side") == "guest"), "the VM that ended was seen");

    let second = report(&folder.path().join("second"), &["--limit", "100000"]).unwrap();
    let named = second.sum(|row| of_vm("mute")(row) && text(row, "function") == "compute_a");
    assert!(0 < named, "a snapshot file names a silent guest's functions");
    threads_are_distinguished(&folder.path().join("second"));
}

/// Two threads share a vCPU and their page tables; each has its own function.
fn threads_are_distinguished(recording: &Path) {
    let arguments = ["--view", "guest", "--vm", "late", "--limit", "1000", "--by"];
    let threads = report(recording, &[&arguments[..], &["thread"]].concat()).unwrap();
    let functions = report(recording, &[&arguments[..], &["function"]].concat()).unwrap();
    for name in ["alpha", "beta"] {
        let of_thread = threads.sum(|row| text(row, "thread") == name);
        let of_function = functions.sum(|row| text(row, "function") == format!("{name}_work"));
        eprintln!("thread {name}: {of_thread} samples, {of_function} in its function");
        assert!(0 < of_function && of_function <= of_thread, "{name}");
    }
}

/// [S0.3] Two processes of one program: each has the share that `top` in the guest gives it.
pub(crate) fn two_processes_of_one_program_are_two() {
    let folder = tempfile::tempdir().unwrap();
    let script = "vmscope record -o rec --duration 25 -- vmscope testbed exec twins -- top -b -d 20 -n 2 >top.txt";
    let ran = in_testbed("two-same-processes", folder.path(), script).unwrap();
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let arguments = ["--view", "guest", "--vm", "twins", "--by", "process", "--limit", "1000"];
    let guest = report(&folder.path().join("rec"), &arguments).unwrap();
    let ran: u64 = guest.sum(|row| text(row, "side") == "guest");
    let top = last_top(&std::fs::read_to_string(folder.path().join("top.txt")).unwrap());
    assert_eq!(top.len(), 2, "two processes in top: {top:?}");
    for (pid, expected) in top {
        let own =
            guest.sum(|row| row["pid"].as_u64() == Some(pid) && text(row, "process") == "compute");
        let share = 100.0 * own as f64 / ran as f64;
        eprintln!("compute ({pid}): {share:.2} % of samples, {expected:.2} % by top");
        assert!((share - expected).abs() <= 2.0, "{pid}: {share:.2} %, top says {expected:.2} %");
    }
}

/// (pid, %CPU) of each `compute` in the last screen of busybox top. Its state column may hold blanks,
/// so columns are counted from the command's name back.
fn last_top(screens: &str) -> Vec<(u64, f64)> {
    let last = screens.rsplit("Mem:").next().unwrap_or_default();
    last.lines()
        .filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let command = words.iter().position(|word| *word == "compute")?;
            let cpu = words.get(command.checked_sub(1)?)?.strip_suffix('%')?;
            Some((words.first()?.parse().ok()?, cpu.parse().ok()?))
        })
        .collect()
}

/// How many of a VM's guest samples there are, and how many of them have a function.
fn named(recording: &Path, vm: &str, more: &[&str]) -> (u64, u64) {
    let arguments = ["--view", "guest", "--vm", vm, "--limit", "100000"];
    let guest = report(recording, &[&arguments, more].concat()).unwrap();
    let ran = guest.sum(|row| text(row, "side") == "guest");
    let lost =
        guest.sum(|row| text(row, "side") == "guest" && text(row, "function") == "[unknown]");
    eprintln!("{vm} {more:?}: {} of {ran} guest samples have functions", ran - lost);
    (ran, ran - lost)
}

/// A recording of a scenario's steps, and what they printed.
fn recorded_steps(scenario: &str, folder: &Path) -> (PathBuf, String) {
    let script = "vmscope record -o rec -- vmscope testbed steps";
    let ran = in_testbed(scenario, folder, script).unwrap();
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    (folder.join("rec"), ran.stdout)
}

/// `scenarios/reset-and-kill.toml`: guests' earlier reports count, and after a boot they are queried anew.
pub(crate) fn guests_that_boot_again_or_are_killed_keep_their_names() {
    let folder = tempfile::tempdir().unwrap();
    let (recording, steps) = recorded_steps("reset-and-kill", folder.path());
    let (all, with_names) = named(&recording, "b", &[]);
    assert!(10_000 < all && all * 9 < with_names * 10, "the guest that was killed");

    // Before the reset, and while the last step has it sleep beside its work.
    let of_compute = |from: f64, to: f64| {
        let window = ["--from", &from.to_string(), "--to", &to.to_string()];
        let arguments = ["correct", recording.to_str().unwrap(), "--format", "json", "--vm", "a"];
        let function = ["--function", "compute_a"];
        let output = run(&[&arguments[..], &function, &window].concat()).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        let ns = answer["correction"]["apparent_ns"].as_u64().unwrap();
        eprintln!("compute_a from {from:.1} to {to:.1} s: {:.1} s", ns as f64 / 1e9);
        ns as f64 / 1e9
    };
    let ended = ended_at(&steps, "sleep 14");
    let began = steps.lines().find(|line| line.contains("system_reset")).unwrap();
    let began: f64 = began.split(' ').next().unwrap().parse().unwrap();
    let again = 14.0 + ended - began;
    // 80 % of its work is in this function, and it has a CPU of its own.
    assert!(6.0 < of_compute(2.0, 13.0), "before the reset");
    assert!(2.0 < of_compute(again - 5.0, again), "after the boot");
    let notes = report(&recording, &[]).unwrap().0["notes"].to_string();
    assert!(notes.contains("it booted again at"), "{notes}");
}

/// `scenarios/reset-untold.toml`: the map of a boot names nothing of the next one, which works the same way.
pub(crate) fn a_reset_ends_a_map() {
    let folder = tempfile::tempdir().unwrap();
    let script = "set -e
        vmscope testbed exec a -- vmscope-guest snapshot >a.map
        vmscope record -o rec --guest-map a=a.map -- vmscope testbed steps";
    let ran = in_testbed("reset-untold", folder.path(), script).unwrap();
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let recording = folder.path().join("rec");
    let start = recording_start(&recording);
    let reset = ended_at(&ran.stdout, "system_reset") - start;
    let of_guest = |from: f64, to: f64| {
        let (from, to) = (from.to_string(), to.to_string());
        let window =
            ["--view", "guest", "--vm", "a", "--limit", "100000", "--from", &from, "--to", &to];
        report(&recording, &window).unwrap()
    };
    let is_old =
        |row: &Value| text(row, "process") == "compute" || text(row, "function") == "compute_a";
    let before = of_guest(0.0, reset - 1.0).sum(is_old);
    let after = of_guest(reset + 0.2, ended_at(&ran.stdout, "sleep 4") - start);
    let (all, named) = (after.sum(|row| text(row, "side") == "guest"), after.sum(is_old));
    eprintln!("{before} samples named before the reset, {named} of {all} after it");
    assert!(1_000 < before && 1_000 < all, "the guest works before and after");
    assert_eq!(named, 0, "samples of the new boot under names of the old one");
    let notes = report(&recording, &[]).unwrap().0["notes"].to_string();
    assert!(notes.contains("it was reset at"), "{notes}");
}

/// When a recording began, by the clock of the steps, in seconds.
fn recording_start(recording: &Path) -> f64 {
    let header = std::fs::read(recording.join("recording.json")).unwrap();
    let header: Value = serde_json::from_slice(&header).unwrap();
    header["start_ns"].as_f64().unwrap() / 1e9
}

/// When the step that ends with these words ended, in seconds.
fn ended_at(steps: &str, words: &str) -> f64 {
    let line = steps.lines().find(|line| line.ends_with(words)).unwrap();
    line.split(' ').nth(1).unwrap().parse().unwrap()
}

/// `scenarios/hotplug.toml`: a program that begins and ends on a plugged vCPU, which is then unplugged.
pub(crate) fn a_vcpu_that_comes_and_goes_has_names_and_its_own_time() {
    let folder = tempfile::tempdir().unwrap();
    let (recording, _) = recorded_steps("hotplug", folder.path());
    let (all, with_names) = named(&recording, "a", &["--vcpu", "1"]);
    assert!(1_000 < all && all * 9 < with_names * 10, "programs on the new vCPU");
    let vcpu = |number| {
        let arguments = ["--view", "guest", "--vm", "a", "--vcpu", number, "--limit", "100000"];
        report(&recording, &arguments).unwrap()
    };
    let (first, second) = (vcpu("0"), vcpu("1"));
    let unknown = second.sum(|row| text(row, "function").contains("no evidence"));
    eprintln!(
        "{} samples of vCPU 0, {} of 1, {unknown} unknown",
        first.samples(),
        second.samples()
    );
    assert!(second.samples() * 4 < first.samples() * 3, "it was not there all the time");
    assert!(unknown * 10 < second.samples(), "{unknown} of {}", second.samples());
}
