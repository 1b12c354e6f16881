//! The self-booting benchmark's short plan, in QEMU's emulation and as a real KVM guest on the same emulated CPU.
//!
//! Time counts instructions in both (`--deterministic`), so what else this machine does hardly matters.

use std::path::Path;
use std::time::Duration;

use acceptance::boot::{Results, compared, cost, measured, unexplained};
use acceptance::text;
use serde_json::Value;

/// The CPU sleeps or a thread of QEMU's answers: while nothing runs, time goes on with this machine's clock.
const WAITING: [&str; 5] = ["hlt-timer", "mwait-timer", "ata-", "virtio-", "nvme-"];
/// In the virtual host its kernel gives a page, or finds room for one first.
const TAKES_MEMORY: [&str; 1] = ["first-touch"];

/// Two runs at the same time: each keeps one CPU busy, and time counts its own instructions.
fn short_plans(files: [&Path; 2], on: &str) -> [Results; 2] {
    let run =
        |file| measured(file, &["--target", on, "--deterministic", "--plan", "short"]).unwrap();
    std::thread::scope(|scope| {
        files.map(|file| scope.spawn(move || run(file))).map(|run| run.join().unwrap())
    })
}

pub(crate) fn in_emulation_everything_has_an_answer_and_two_runs_agree() {
    let folder = tempfile::tempdir().unwrap();
    let files = ["one.json", "two.json"].map(|name| folder.path().join(name));
    let runs = short_plans([&files[0], &files[1]], "tcg");
    for results in &runs {
        answers_are_complete(results, "TCGTCGTCGTCG");
        assert!(results.took < Duration::from_secs(60), "{:?}", results.took);
        assert_eq!(results.of("hlt-timer", "long.cpl0").unwrap()["status"], "ok");
    }
    runs_agree(&runs, &WAITING);
}

pub(crate) fn a_kvm_guest_pays_for_exits_and_for_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let emulated = measured(
        &folder.path().join("emulated.json"),
        &["--target", "tcg", "--deterministic", "--plan", "short"],
    )
    .unwrap();
    let files = ["guest.json", "again.json"].map(|name| folder.path().join(name));
    let runs = short_plans([&files[0], &files[1]], "testbed-kvm");
    for results in &runs {
        answers_are_complete(results, "KVMKVMKVM");
    }
    runs_agree(&runs, &[&WAITING[..], &TAKES_MEMORY[..]].concat());
    let comparison = compared(&emulated, &runs[0]).unwrap();
    general_instructions_cost_the_same(&comparison);
    exits_cost_clearly_more(&emulated, &runs[0], &comparison);
    levels_table(&comparison);
    paging_table(&comparison);
}

fn answers_are_complete(results: &Results, hypervisor: &str) {
    let unexplained: Vec<String> = results.rows().iter().filter_map(unexplained).collect();
    assert_eq!(unexplained, [""; 0], "neither a figure nor a reason");
    assert_eq!(results.json["machine"]["planned"], results.rows().len());
    assert_eq!(results.json["ending"], "complete");
    assert_eq!(results.json["machine"]["hypervisor"], hypervisor);
    assert!(150 < results.rows().iter().filter(|row| row["status"] == "ok").count());
}

/// Exactly, or within 1 %, but for `names` and what begins so.
fn runs_agree(runs: &[Results; 2], names: &[&str]) {
    let mut exactly = 0;
    for row in runs[0].rows() {
        let operation = text(row, "operation");
        let other = runs[1].of(operation, text(row, "condition")).unwrap();
        assert_eq!(row["status"], other["status"], "{row} and {other}");
        if names.iter().any(|name| operation.starts_with(name)) {
            continue;
        }
        match (cost(row), cost(other)) {
            (Some(one), Some(two)) => {
                exactly += usize::from(one == two);
                assert!((one - two).abs() <= 0.01 * one.min(two), "{row} and {other}");
            }
            _ => assert_eq!(row["reason"], other["reason"]),
        }
    }
    eprintln!("{exactly} of {} figures agree exactly", runs[0].rows().len());
}

fn rows<'c>(comparison: &'c Value, operation: &'c str) -> impl Iterator<Item = &'c Value> {
    let rows = comparison["operations"].as_array().map_or(&[][..], Vec::as_slice);
    rows.iter().filter(move |row| text(row, "operation") == operation)
}

fn general_instructions_cost_the_same(comparison: &Value) {
    for operation in ["add", "cwd"] {
        for row in rows(comparison, operation) {
            let ratio = row["machines"][1]["ratio"]["ns"].as_f64().unwrap();
            assert!((0.98..=1.02).contains(&ratio), "{row}");
        }
    }
    for operation in ["add", "cwd", "sti", "lgdt", "pushf", "iret", "rdtsc", "wrmsr-fs-base", "int"]
    {
        let plain =
            rows(comparison, operation).find(|row| row["condition"] == "long.cpl0").unwrap();
        assert_eq!(plain["machines"][1]["verdict"], "does_not", "{plain}");
    }
}

/// Emulation does each in a few instructions, KVM and QEMU in thousands: from 670 times as many for CPUID to 5000
/// for the HPET, seen with Linux 6.1. HLT sleeps, so that its cost hangs on this machine's timers: see `boot_exits`.
fn exits_cost_clearly_more(emulated: &Results, guest: &Results, comparison: &Value) {
    let at = "long.cpl0";
    for operation in [
        "cpuid",
        "out-pic", // emulated by KVM
        "out-rtc", // emulated by QEMU
        "wrmsr-apic-base",
        "wrmsr-efer",
        "mmio-apic-read",
        "mmio-hpet-read",
    ] {
        let alone = emulated.ticks(operation, at).unwrap();
        let exits = guest.ticks(operation, at).unwrap();
        eprintln!("{operation}: {alone} ticks, {exits} as a guest");
        assert!(100.0 * alone < exits, "{operation}: {alone} ticks, {exits} as a guest");
        let row = rows(comparison, operation).find(|row| row["condition"] == at).unwrap();
        assert_eq!(row["machines"][1]["verdict"], "exits", "{row}");
    }
    for level in ["long.cpl1", "long.cpl2", "long.cpl3", "flat.cpl0", "flat.cpl3"] {
        let exits = guest.ticks("cpuid", level).unwrap();
        assert!(1000.0 < exits, "CPUID exits at every level: {exits} at {level}");
    }
}

fn table<'c>(comparison: &'c Value, id: &str) -> &'c Value {
    comparison["tables"].as_array().unwrap().iter().find(|table| table["id"] == id).unwrap()
}

fn values(row: &Value) -> Vec<f64> {
    row["values"].as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
}

/// The original's second: both instructions, two levels, and per level both machines and their ratio. Neither
/// instruction looks at the level under AMD's virtualisation, and neither exits.
fn levels_table(comparison: &Value) {
    let table = table(comparison, "levels");
    let names: Vec<&str> =
        table["rows"].as_array().unwrap().iter().map(|row| text(row, "name")).collect();
    assert_eq!(names, ["PUSHF", "SMSW"]);
    let levels = ["level 0 emulated", "level 0 guest", "level 0 guest/emulated"];
    let columns: Vec<&str> =
        table["columns"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert_eq!(columns[..3], levels);
    assert_eq!(columns[3..], levels.map(|column| column.replace("level 0", "level 3")));
    for row in table["rows"].as_array().unwrap() {
        let values = values(row);
        let [zero, _, ratio_zero, three, _, ratio_three] = values[..] else { panic!("{row}") };
        assert!(100.0 <= zero && (0.98..=1.02).contains(&(three / zero)), "{row}");
        assert!(
            [ratio_zero, ratio_three].iter().all(|ratio| (0.98..=1.02).contains(ratio)),
            "{row}"
        );
    }
}

/// The original's third. With nested paging a guest's own page tables are its own: no ratio of 22,000 as in 2005.
fn paging_table(comparison: &Value) {
    let rows = table(comparison, "paging")["rows"].as_array().unwrap();
    let of = |name: &str, section: &str| {
        let is_it = |row: &&Value| text(row, "name") == name && text(row, "section") == section;
        values(rows.iter().find(is_it).unwrap())
    };
    for updates in [of("pte-5120 paging.cpl0", "paging on"), of("pte-5120 flat.cpl0", "paging off")]
    {
        let [alone, _, ratio] = updates[..] else { panic!("{updates:?}") };
        assert!(5120.0 <= alone && (0.98..=1.05).contains(&ratio), "{updates:?}");
    }
}
