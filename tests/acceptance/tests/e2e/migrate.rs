//! `vmscope migrate` between two hosts with NUMA nodes: where everything is before the VM has gone over.

use acceptance::{as_unit, in_place, in_testbed, root};
use serde_json::Value;

/// The functions of scenarios/migrate.sh, and a script.
fn script(text: &str) -> String {
    let functions = root().join("scenarios/migrate.sh");
    let as_unit = as_unit("vmscope-layout.service");
    format!("AS_UNIT='{as_unit}'\n. {}\n{text}", functions.display())
}

/// Of what `verify` says.
fn number(text: &str, name: &str) -> u64 {
    let mut words = text.split_whitespace();
    words.find(|word| *word == name).unwrap();
    words.next().unwrap().parse().unwrap()
}

/// `b` runs on node 2, far from its memory on node 0; then `a` comes, and goes back with the kernel's layout. Then an operator
/// migrates it, without vmscope, which watches.
pub(crate) fn memory_and_vcpus_of_all_vms_are_in_place_before_the_vm_arrives() {
    let folder = tempfile::tempdir().unwrap();
    let text = script(
        "prepare
        there \"$bind_line; bind b 2\" >&2
        verified >before
        migrate --to kvm2 --policy dino --format json >planned.json
        verified_there >middle
        back --policy none --format json >plain.json
        verified >after
        runs_at >runs
        leftovers >left
        there \"$(incoming_line)\"
        watch --to kvm2 --policy dino --format json
        operate '{\"execute\": \"migrate\", \"arguments\": {\"uri\": \"tcp:10.30.0.2:4444\"}}' >&2
        watched >watched.json
        operate '{\"execute\": \"quit\"}' >&2
        verified_there >watched
        runs_at >runs_then
        there 'vmscope testbed exec a -- killall -USR1 verify'
        sleep 5
        verified_there >spoilt
        cat daemon.log >&2; there 'cat daemon.log' >&2",
    );
    let ran = in_testbed("migrate", folder.path(), &text).unwrap();
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let file = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    let json = |name: &str| -> Value { serde_json::from_str(&file(name)).unwrap() };

    let planned = json("planned.json");
    assert_eq!((&planned["moved"], &planned["policy"]), (&true.into(), &"dino".into()));
    let rows = planned["vms"].as_array().unwrap();
    assert_eq!(rows.len(), 3);
    for row in rows {
        let text = |column: &str| row[column].as_str().unwrap_or_else(|| panic!("{column}: {row}"));
        assert_eq!(text("vcpus_at_switch_over"), text("vcpus_planned"), "{row}");
        for column in ["memory_at_switch_over", "memory_now"] {
            let part = in_place(text("memory_planned"), text(column)).unwrap();
            eprintln!("{}: {:.1} % in place ({column})", text("vm"), 100.0 * part);
            assert!(0.95 <= part, "{row}");
        }
    }
    assert!(0.0 < planned["residents_moved_bytes"].as_f64().unwrap(), "memory of b had to come");

    let plain = json("plain.json");
    assert_eq!((&plain["moved"], &plain["policy"]), (&true.into(), &Value::Null));
    assert!(plain["layout"].as_str().unwrap().contains("no plan was requested"));
    for (name, report) in [("planned", &planned), ("plain", &plain)] {
        let row = report["vms"].as_array().unwrap().iter().find(|row| row["arrives"] == true);
        let row = row.unwrap();
        eprintln!(
            "{name}: ready after {} ms, {} ms, downtime {} ms; memory {}",
            report["prepared_ns"].as_u64().unwrap() / 1_000_000,
            report["total_ms"],
            report["downtime_ms"],
            row["memory_now"]
        );
    }
    assert_eq!(file("runs"), "kvm1\n", "it runs once");
    assert_eq!(file("left"), "qemus 1 0\nrecords 0 0\n");

    let watched = json("watched.json");
    assert_eq!((&watched["moved"], &watched["policy"]), (&true.into(), &"dino".into()));
    for row in watched["vms"].as_array().unwrap() {
        let text = |column: &str| row[column].as_str().unwrap_or_else(|| panic!("{column}: {row}"));
        assert_eq!(text("vcpus_now"), text("vcpus_planned"), "{row}");
        let part = in_place(text("memory_planned"), text("memory_now")).unwrap();
        // The operator's QEMU has only the pages that came: those of zeros did not.
        assert!(0.8 <= part, "{row}");
    }
    assert_eq!(file("runs_then"), "kvm2\n");

    let [before, middle, after, watched, spoilt] =
        ["before", "middle", "after", "watched", "spoilt"].map(file);
    for (earlier, later) in [(&before, &middle), (&middle, &after), (&after, &watched)] {
        assert!(number(earlier, "checks") < number(later, "checks"), "{earlier} {later}");
        assert_eq!(number(later, "errors"), 0, "{later}");
    }
    assert!(0 < number(&spoilt, "errors"), "a word that is wrong is found: {spoilt}");
}
