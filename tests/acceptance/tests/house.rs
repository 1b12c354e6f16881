//! The house rules of ARCHITECTURE.md that a machine can check.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn packages() -> Vec<Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version=1", "--offline"])
        .current_dir(root())
        .output()
        .unwrap();
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

/// Names of the packages that depend on `dependency` other than for their tests.
fn dependents(dependency: &str) -> BTreeSet<String> {
    let depends = |package: &&Value| {
        package["dependencies"].as_array().unwrap().iter().any(|d| {
            d["name"].as_str().unwrap().starts_with(dependency) && d["kind"].as_str() != Some("dev")
        })
    };
    packages().iter().filter(depends).map(|p| p["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn architecture_names_exactly_the_packages() {
    let page = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let named: BTreeSet<String> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .filter_map(|rest| rest.split_once('`').map(|(path, _)| path))
        .filter(|path| root().join(path).join("Cargo.toml").exists())
        .map(|path| path.rsplit('/').next().unwrap().to_owned())
        .collect();
    let listed: BTreeSet<String> =
        packages().iter().map(|p| p["name"].as_str().unwrap().to_owned()).collect();
    assert_eq!(named, listed);
}

#[test]
fn only_probes_knows_libbpf() {
    assert_eq!(dependents("libbpf"), BTreeSet::from(["probes".to_owned()]));
}

#[test]
fn only_format_crates_and_the_testbed_serialize() {
    for package in packages() {
        let name = package["name"].as_str().unwrap().to_owned();
        let manifest = PathBuf::from(package["manifest_path"].as_str().unwrap());
        let derives = sources(&manifest.parent().unwrap().join("src"))
            .iter()
            .any(|source| source.contains("Serialize)") || source.contains("Serialize,"));
        // Two more copies of the benchmark's results would be worse than this exception.
        let allowed = matches!(name.as_str(), "recording" | "api" | "microbench");
        assert!(allowed || !derives, "{name} derives Serialize");
    }
}

#[test]
fn core_and_format_crates_forbid_unsafe_code() {
    for name in ["model", "analysis", "microbench", "view", "recording", "api", "export"] {
        let lib =
            std::fs::read_to_string(root().join("crates").join(name).join("src/lib.rs")).unwrap();
        assert!(lib.contains("#![forbid(unsafe_code)]"), "{name}");
    }
}

#[test]
fn core_crates_do_no_io_and_hold_no_clock() {
    for name in ["model", "analysis", "microbench", "view"] {
        for source in sources(&root().join("crates").join(name).join("src")) {
            for forbidden in ["std::fs", "std::net", "std::process", "Instant::now", "SystemTime"] {
                assert!(!source.contains(forbidden), "{name} uses {forbidden}");
            }
        }
    }
}

fn sources(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(std::fs::read_to_string(path).unwrap());
        }
    }
    found
}
