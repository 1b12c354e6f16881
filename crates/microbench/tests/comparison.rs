//! Two drawn machines compared: the tables, the ratios, the verdicts. The figures of Tables 1 to 3 are the original's.

#![allow(clippy::unwrap_used)]

use microbench::compare::{Comparison, Unit};
use microbench::tables;
use microbench::{Labelled, Verdict, compare, lines};

const REAL: &[u8] = include_bytes!("../../../tests/golden/bench/real.log");
const VM: &[u8] = include_bytes!("../../../tests/golden/bench/vm.log");

fn machines() -> Vec<Labelled> {
    let of = |label: &str, log| Labelled {
        label: label.to_owned(),
        results: lines::parse(log).unwrap(),
    };
    vec![of("real", REAL), of("vm", VM)]
}

/// A row of a table, its values as people read them.
fn line(comparison: &Comparison<'_>, table: &str, name: &str) -> String {
    let all = tables::all(comparison, Unit::Ticks);
    let table = all.iter().find(|t| t.id == table).unwrap();
    let row = table.rows.iter().find(|row| row.name == name).unwrap();
    row.values.iter().map(|value| value.text(Unit::Ticks)).collect::<Vec<_>>().join(" ")
}

#[test]
fn the_originals_tables() {
    let machines = machines();
    let comparison = compare(&machines);
    let check = |table, name, expected: &str| assert_eq!(line(&comparison, table, name), expected);
    check("general", "ADD", "36.0 36.0 1.000");
    check("general", "CWD", "100.0 100.0 1.000");
    check("general", "LGDT", "20224 118056 5.837");
    check("general", "STI", "5096 820.0 0.161");
    check("levels", "PUSHF", "564.0 2516 4.461 564.0 608.0 1.078");
    check("levels", "SMSW", "588.0 92508 157.3 588.0 576.0 0.980");
    check("paging", "pte-5120 paging.cpl0", "1.50 M 34.0 G 22667");
    check("paging", "pte-5120 flat.cpl0", "1.50 M 2.30 M 1.533");
    let all = tables::all(&comparison, Unit::Ticks);
    assert!(all[0].title.ends_with("ticks of 100 at flat.cpl0"), "{}", all[0].title);
    assert_eq!(all[0].columns, ["real", "vm", "vm/real"]);
}

#[test]
fn verdicts() {
    let machines = machines();
    let comparison = compare(&machines);
    assert!((comparison.general[1].unwrap() - 1.0).abs() < 0.01);
    let check = |operation: &str, condition: &str, expected: &str| {
        let is_it = |row: &&microbench::compare::Row| {
            row.operation == operation && row.condition.to_string() == condition
        };
        let row = comparison.rows.iter().find(is_it).unwrap();
        assert_eq!(row.cells[0].verdict, None);
        let verdict = row.cells[1].verdict.as_ref().unwrap();
        let text = match verdict {
            Verdict::Exits { ns, .. } => format!("exits {ns:.0}"),
            other => other.to_string(),
        };
        assert_eq!(text, expected, "{operation} {condition}");
    };
    check("add", "long.cpl0", "does not");
    check("rdtsc", "long.cpl0", "does not");
    check("cpuid", "long.cpl0", "exits 600");
    check("rdmsr-apic-base", "long.cpl0", "exits 1100");
    check("lgdt", "flat.cpl0", "exits 489");
    check("smsw", "flat.cpl0", "exits 460");
    check("smsw", "flat.cpl3", "does not");
    check("lgdt", "flat.cpl3", "undecided: real: fault #GP");
    check("out-unused", "long.cpl0", "undecided: not reliable enough");
    check("in-pit", "long.cpl0", "undecided: 1.9 times slower, 0.5 us: too little for an exit");
    check("wbinvd", "long.cpl0", "undecided: takes 450.1 us anyway, which hides an exit");
    check("vmcall", "long.cpl0", "undecided: real: fault #UD");
    check("mwait", "long.cpl0", "undecided: vm: timeout after 1000 ms");
    check("nvme-read-polled", "long.cpl0", "undecided: vm: missing: no NVMe controller");
    check("add", "long.cpl0.nocache", "undecided: not in force on vm");
}

#[test]
fn what_seems_to_cost_nothing_or_is_not_trusted_has_no_verdict() {
    let mut machines = machines();
    let change = |machines: &mut Vec<Labelled>, change: &dyn Fn(&mut microbench::Figures)| {
        let results = &mut machines[1].results;
        for measurement in results.measurements.iter_mut().filter(|m| m.operation == "in-pit") {
            let microbench::Outcome::Measured(figures) = &mut measurement.outcome else { panic!() };
            change(figures);
        }
        let comparison = compare(machines);
        let row = comparison.rows.iter().find(|row| row.operation == "in-pit").unwrap();
        row.cells[1].verdict.as_ref().unwrap().to_string()
    };
    let expected = "undecided: not reliable enough";
    assert_eq!(change(&mut machines, &|figures| figures.reliable = false), expected);
    let nothing = microbench::Batch { of: 100, min: 0.0, median: 0.0 };
    assert_eq!(change(&mut machines, &|figures| figures.batch = Some(nothing)), expected);
}

#[test]
fn a_batch_that_can_not_be_true_is_no_exit() {
    let mut machines = machines();
    for measurement in &mut machines[1].results.measurements {
        let microbench::Outcome::Measured(figures) = &mut measurement.outcome else { continue };
        // As much dearer as that of CPUID was: 969,021 ticks, and 99,632 by single shots.
        if let Some(batch) = figures.batch.as_mut().filter(|_| measurement.operation == "cpuid") {
            batch.min *= 969_021.0 / 99_632.0;
            batch.median = batch.min;
        }
    }
    let comparison = compare(&machines);
    let row = comparison.rows.iter().find(|row| row.operation == "cpuid").unwrap();
    let cost = row.cells[1].cost.unwrap();
    assert_eq!((cost.ticks, cost.reliable), (1320.0, false), "good single shots are the figure");
    let verdict = row.cells[1].verdict.as_ref().unwrap();
    assert_eq!(verdict.to_string(), "undecided: not reliable enough");
}

#[test]
fn units_and_ranges() {
    let machines = machines();
    let comparison = compare(&machines);
    let row = comparison.rows.iter().find(|row| row.operation == "cpuid").unwrap();
    let cost = row.cells[0].cost.unwrap();
    assert_eq!((cost.ticks, cost.ns, cost.low), (120.0, Some(60.0), 120.0));
    assert!((cost.adds.unwrap() - 333.333).abs() < 0.001 && (cost.high - 122.4).abs() < 0.001);
    let against = row.cells[1].against.unwrap();
    assert!((against.ticks.unwrap() - 11.0).abs() < 0.001 && !against.overlap);
    let add = comparison.rows.iter().find(|row| row.operation == "add").unwrap();
    assert!(add.cells[1].against.unwrap().overlap);
}

#[test]
fn what_makes_figures_hard_to_compare_is_said() {
    let mut machines = machines();
    machines[1].results.machine.program_version = "0.2.0".to_owned();
    machines[1].results.machine.tsc.hz = Some(3e9);
    let notes = compare(&machines).notes.all();
    let check =
        |start: &str| assert!(notes.iter().any(|note| note.starts_with(start)), "{notes:?}");
    check("real was measured by version 0.1.0 of the image, vm by 0.2.0");
    check("the TSC of real ticks at 2000 MHz, that of vm at 3000");
    check("vm: long.cpl0.nocache is not in force: a pointer chase is as fast as with caches");
    machines[0].results.machine.tsc.hz = None;
    let comparison = compare(&machines);
    let row = comparison.rows.iter().find(|row| row.operation == "cpuid").unwrap();
    let verdict = row.cells[1].verdict.as_ref().unwrap().to_string();
    assert_eq!(verdict, "undecided: the TSC rate of real is unknown");
}
