//! `vmscope bench` on the boot image: what it lists, and that vmscope knows all of it. Needs QEMU and a built image, no KVM.

use std::collections::BTreeSet;

use acceptance::{root, run, text};
use serde_json::Value;

pub(crate) fn the_image_and_the_catalogue_have_the_same_operations() {
    let output = run(&["bench", "list", "--format", "json"]).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    let operations = list["operations"].as_array().unwrap();
    let known: BTreeSet<&str> = operations.iter().map(|row| text(row, "name")).collect();
    let catalogue = root().join("crates/microbench/src/catalogue.txt");
    let catalogue = std::fs::read_to_string(catalogue).unwrap();
    let listed: BTreeSet<&str> =
        catalogue.lines().filter_map(|line| line.split(' ').nth(1)).collect();
    assert_eq!(known, listed, "crates/microbench/src/catalogue.txt has a line per operation");
    let of = |key: &str| list[key].as_array().unwrap().iter().filter_map(Value::as_str).count();
    assert!(7 < of("plans") && 99 < of("conditions"));
}

pub(crate) fn what_the_image_does_not_know_is_refused_with_what_it_knows() {
    let check = |option: &str, says: &str| {
        let output = run(&["bench", "run", option, "nosuch"]).unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains("'nosuch'") && stderr.contains(says), "{stderr}");
    };
    check("--plan", "it knows: short, original, full");
    check("--ops", "cpuid");
    check("--cond", "long.cpl3.2m.cold");
}
