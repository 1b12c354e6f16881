//! Attacks by an unprivileged user of the host on a recorder that runs as root: `tests/hostile`.

use std::collections::BTreeMap;
use std::path::Path;

use acceptance::{in_testbed_within, report, run, text};
use serde_json::Value;
use tempfile::TempDir;

/// Twenty-one recorders, one after the other.
const TIME_LIMIT_S: u32 = 2400;
/// What a recorder may take at its peak.
const MAX_PEAK_MIB: u64 = 128;

/// What came of one recorder under attack.
struct Attacked {
    exit_code: i32,
    peak_mib: u64,
    cpu_ms: u64,
    ms: u64,
}

fn cost(file: &Path) -> Attacked {
    let text = std::fs::read_to_string(file).unwrap();
    let numbers: Vec<u64> = text.split_whitespace().map(|word| word.parse().unwrap()).collect();
    let [exit_code, peak_kib, cpu_ms, ms] = numbers[..] else { panic!("{text}") };
    let exit_code = i32::try_from(exit_code).unwrap();
    Attacked { exit_code, peak_mib: peak_kib / 1024, cpu_ms, ms }
}

/// Samples of a guest in guest code, and those of them in functions of its process, the kernel's among them.
fn samples_of(guest: &str, recording: &Path) -> (u64, u64) {
    let arguments = ["--view", "guest", "--vm", guest, "--limit", "100000"];
    let guest = report(recording, &arguments).unwrap();
    let ran = guest.sum(|row| text(row, "side") == "guest");
    let of_process =
        |row: &Value| text(row, "process") == "compute" && !text(row, "function").starts_with('[');
    (ran, guest.sum(|row| text(row, "side") == "guest" && of_process(row)))
}

pub(crate) fn an_unprivileged_user_spoils_no_row_of_others() {
    let everything = "fifos truncate symbols notes forks execs locks perfmap";
    let folder = none_spoils_the_rows_of_others("", everything, 21);
    let names = |recording: &str| names(&folder.path().join(recording));
    for recording in ["quiet", "names-files", "names-fuse", "names-vhost"] {
        assert_eq!(names(recording), ["a", "b"], "{recording}");
    }
    assert_eq!(names("names-hand"), ["a", "b", "evil"]);
    assert_eq!(names("names-port"), ["a", "b", "port"]);
    one_users_guests_are_limited(folder.path());
    names_make_no_vhost(&folder.path().join("names-vhost"));
}

/// All names at once: only what is KVM's is a VM, whatever files are named.
pub(crate) fn files_and_names_leave_the_rows_of_others_alone() {
    let folder = none_spoils_the_rows_of_others("fifos truncate", "", 4);
    assert_eq!(names(&folder.path().join("names")), ["a", "b", "evil", "port"]);
    names_make_no_vhost(&folder.path().join("names"));
}

/// The VMs of a recording, with all that `steal` says of them.
pub(crate) fn vms(recording: &Path) -> BTreeMap<String, Value> {
    let output = run(&["steal", recording.to_str().unwrap(), "--format", "json"]).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let steal: Value = serde_json::from_slice(&output.stdout).unwrap();
    let vms = steal["vms"].as_array().unwrap().iter();
    vms.map(|vm| (text(vm, "name").to_owned(), vm.clone())).collect()
}

fn names(recording: &Path) -> Vec<String> {
    vms(recording).into_keys().collect()
}

/// A process that calls itself the vhost thread of VM a is a process.
fn names_make_no_vhost(recording: &Path) {
    let vms = vms(recording);
    let thieves = |vm: &str| vms[vm]["time"]["thieves"].as_array().unwrap().clone();
    let of = |kind: &str| -> u64 {
        let thieves = ["a", "b"].map(thieves).concat();
        let named = thieves.iter().filter(|thief| text(thief, "kind") == kind);
        named.map(|thief| thief["ns"].as_u64().unwrap()).sum()
    };
    // It has a third of the CPU.
    assert!(500_000_000 < of("process"), "{vms:?}");
    assert!(of("vhost") < 100_000_000, "{vms:?}");
}

/// A recording is refused where others put links in its way, and nothing is made where they lead.
fn no_link_is_followed(folder: &Path, links: &Attacked) {
    let [said, made] =
        ["links.err", "links.made"].map(|file| std::fs::read_to_string(folder.join(file)).unwrap());
    assert_eq!((links.exit_code, &*made), (1, ""), "{said}");
    assert!(said.contains("another user"), "{said}");
}

/// Of 400 VMs of one user 256 are queried, beside the guests of another one.
fn one_users_guests_are_limited(folder: &Path) {
    let crowd = report(&folder.join("crowd"), &[]).unwrap();
    assert_eq!(crowd.0["counters"]["guests_not_queried"], 400 - 256, "{}", crowd.0["counters"]);
}

/// Every recorder ends by itself, takes bounded memory, and has the right rows for the guests that do not attack. `together`:
/// these attacks at once, and all names. `alone`: these attacks, names, and much else, one by one. Returns what recorders left.
fn none_spoils_the_rows_of_others(together: &str, alone: &str, recorders: usize) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "cat >attack.c <<'END_OF_C'\n{}\nEND_OF_C\ntogether='{together}'\nalone='{alone}'\n{}",
        include_str!("../../../hostile/attack.c"),
        include_str!("../../../hostile/attacks.sh"),
    );
    let ran = in_testbed_within(TIME_LIMIT_S, "hostile", folder.path(), &script).unwrap();
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    let files = std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path());
    let mut costs: BTreeMap<String, Attacked> = files
        .filter(|file| file.extension().is_some_and(|it| it == "cost"))
        .map(|file| (file.file_stem().unwrap().to_string_lossy().into_owned(), cost(&file)))
        .collect();
    assert_eq!(costs.len(), recorders, "{:?}", costs.keys());
    no_link_is_followed(folder.path(), &costs.remove("links").unwrap());
    eprintln!(
        "{:20} {:>4} {:>8} {:>7} {:>7} {:>8} {:>10} {:>8} {:>10}",
        "attack", "exit", "peak MiB", "CPU ms", "ms", "a", "in process", "b", "in process"
    );
    let mut wrong = Vec::new();
    for (name, attacked) in &costs {
        let Attacked { exit_code, peak_mib, cpu_ms, ms } = attacked;
        let recording = folder.path().join(name);
        let has_samples = *exit_code == 0 && recording.join("recording.json").is_file();
        let of_guests = ["a", "b"].map(|guest| match has_samples {
            true => samples_of(guest, &recording),
            false => (0, 0),
        });
        let [(a, a_named), (b, b_named)] = of_guests;
        eprintln!(
            "{name:20} {exit_code:4} {peak_mib:8} {cpu_ms:7} {ms:7} {a:8} {a_named:10} {b:8} {b_named:10}"
        );
        let is_sampled = !name.starts_with("trace-") && !name.starts_with("top-");
        let is_right = |(ran, named)| 0 < ran && ran * 9 < named * 10;
        let rows_are_right = !is_sampled || of_guests.into_iter().all(is_right);
        if *exit_code != 0 || MAX_PEAK_MIB < *peak_mib || !rows_are_right {
            let said = std::fs::read_to_string(folder.path().join(format!("{name}.err"))).unwrap();
            wrong.push(format!("{name}: {said}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    folder
}
