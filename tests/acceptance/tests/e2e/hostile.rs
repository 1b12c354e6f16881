//! Attacks by an unprivileged user of the host on whoever records it as root: `tests/hostile`.

use std::collections::BTreeMap;
use std::path::Path;

use acceptance::{in_testbed_within, report, text};
use serde_json::Value;

/// Fourteen recorders, one after the other.
const TIME_LIMIT_S: u32 = 1800;
/// What a recorder may take at its peak.
const MAX_PEAK_MIB: u64 = 128;

/// What came of one recorder under attack.
struct Attacked {
    exit_code: i32,
    peak_mib: u64,
    cpu_ms: u64,
}

fn cost(file: &Path) -> Attacked {
    let text = std::fs::read_to_string(file).unwrap();
    let numbers: Vec<u64> = text.split_whitespace().map(|word| word.parse().unwrap()).collect();
    let [exit_code, peak_kib, cpu_ms] = numbers[..] else { panic!("{text}") };
    let exit_code = i32::try_from(exit_code).unwrap();
    Attacked { exit_code, peak_mib: peak_kib / 1024, cpu_ms }
}

/// Samples of guest `a` in guest code, and those of them in functions of its process, the kernel's among them.
fn samples_of_a(recording: &Path) -> (u64, u64) {
    let arguments = ["--view", "guest", "--vm", "a", "--limit", "100000"];
    let guest = report(recording, &arguments).unwrap();
    let ran = guest.sum(|row| text(row, "side") == "guest");
    let of_process =
        |row: &Value| text(row, "process") == "compute" && !text(row, "function").starts_with('[');
    (ran, guest.sum(|row| text(row, "side") == "guest" && of_process(row)))
}

pub(crate) fn an_unprivileged_user_spoils_nobodys_rows() {
    none_spoils_the_rows_of_others("", 14);
}

pub(crate) fn files_and_forks_spoil_nobodys_rows() {
    none_spoils_the_rows_of_others("fifos truncate symbols forks", 5);
}

/// Every recorder ends by itself, takes bounded memory, and has the rows of the guest that attacks nobody right. `quick`:
/// these attacks only.
fn none_spoils_the_rows_of_others(quick: &str, recorders: usize) {
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "cat >attack.c <<'END_OF_C'\n{}\nEND_OF_C\nquick='{quick}'\n{}",
        include_str!("../../../hostile/attack.c"),
        include_str!("../../../hostile/attacks.sh"),
    );
    let ran = in_testbed_within(TIME_LIMIT_S, "hostile", folder.path(), &script).unwrap();
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    let files = std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path());
    let costs: BTreeMap<String, Attacked> = files
        .filter(|file| file.extension().is_some_and(|it| it == "cost"))
        .map(|file| (file.file_stem().unwrap().to_string_lossy().into_owned(), cost(&file)))
        .collect();
    assert_eq!(costs.len(), recorders, "{:?}", costs.keys());
    eprintln!(
        "{:20} {:>4} {:>8} {:>7} {:>8} {:>10}",
        "attack", "exit", "peak MiB", "CPU ms", "samples", "in process"
    );
    let mut wrong = Vec::new();
    for (name, attacked) in &costs {
        let Attacked { exit_code, peak_mib, cpu_ms } = attacked;
        let recording = folder.path().join(name);
        let has_samples = *exit_code == 0 && recording.join("recording.json").is_file();
        let (ran, in_process) = if has_samples { samples_of_a(&recording) } else { (0, 0) };
        eprintln!("{name:20} {exit_code:4} {peak_mib:8} {cpu_ms:7} {ran:8} {in_process:10}");
        let is_sampled = !name.starts_with("trace-") && !name.starts_with("top-");
        let rows_are_right = !is_sampled || (0 < ran && ran * 9 < in_process * 10);
        if *exit_code != 0 || MAX_PEAK_MIB < *peak_mib || !rows_are_right {
            let said = std::fs::read_to_string(folder.path().join(format!("{name}.err"))).unwrap();
            wrong.push(format!("{name}: {said}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
