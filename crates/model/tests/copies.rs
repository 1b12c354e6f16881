//! What other languages have of the table of vCPU states is as the table says. `UPDATE=1` renews what is generated.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use model::{OffCpuReason, TimeAccount, TimeClass, VcpuTimeState};
use serde_json::{Value, json};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Compares a generated text with its file, or renews the file.
fn check_file(path: &Path, expected: &str) {
    if std::env::var_os("UPDATE").is_some() {
        fs::write(path, expected).unwrap();
    }
    let known = fs::read_to_string(path).unwrap_or_default();
    let advice = "is out of date: UPDATE=1 cargo test -p model --test copies";
    assert!(known == expected, "{} {advice}", path.display());
}

#[test]
fn the_page_has_the_states() {
    let row = |state: &VcpuTimeState| -> Value {
        json!({
            "state": state.name(),
            "name": state.page_name(),
            "colour": state.colour(),
            "account": state.account().name(),
            "class": state.account().class().name(),
        })
    };
    let rows: Vec<String> =
        VcpuTimeState::ALL.iter().map(|state| format!("  {}", row(state))).collect();
    check_file(&root().join("ui/vcpu-states.json"), &format!("[\n{}\n]\n", rows.join(",\n")));
}

/// As files and stored states have them.
#[test]
fn stored_states_keep_their_form() {
    let forms = json!({ "states": VcpuTimeState::ALL, "accounts": TimeAccount::ALL });
    let text = serde_json::to_string_pretty(&forms).unwrap() + "\n";
    check_file(&root().join("tests/golden/model/states.json"), &text);
}

#[test]
fn charts_have_a_style_for_each_state() {
    let styles = fs::read_to_string(root().join("crates/export/src/page/colours.css")).unwrap();
    for state in VcpuTimeState::ALL {
        assert!(styles.contains(&format!(".{}", state.colour())), "{}", state.colour());
    }
}

/// `/* stolen */ 'steal_vmm', ...`: a list of names behind a class, or an account, in SQL.
fn with_lists(sql: &str) -> String {
    let mut text = String::new();
    for line in sql.split_inclusive('\n') {
        let marked = line.split_once("/* ").and_then(|(before, rest)| {
            let (group, rest) = rest.split_once(" */ ")?;
            let (_, after) = rest.split_once(')')?;
            Some(format!("{before}/* {group} */ {}){after}", names(group).join(", ")))
        });
        text.push_str(marked.as_deref().unwrap_or(line));
    }
    text
}

/// Quoted names of the states of an account or a class.
fn names(group: &str) -> Vec<String> {
    let states = VcpuTimeState::ALL.iter().filter(|state| {
        let account = state.account();
        account.name() == group || account.class().name() == group
    });
    let names: Vec<String> = states.map(|state| format!("'{}'", state.name())).collect();
    assert!(!names.is_empty(), "no account or class is called {group}");
    names
}

#[test]
fn ready_made_queries_list_the_states() {
    let mut n_lists = 0;
    for entry in fs::read_dir(root().join("crates/query/queries")).unwrap() {
        let path = entry.unwrap().path();
        let sql = fs::read_to_string(&path).unwrap();
        n_lists += sql.matches("/* ").count();
        check_file(&path, &with_lists(&sql));
        let unmarked = sql.matches("IN ('").count();
        assert_eq!(unmarked, 0, "{}: a list of states begins with its class", path.display());
    }
    assert_eq!(n_lists, 11);
}

#[test]
fn alert_rules_have_whole_accounts() {
    let accounts: BTreeSet<BTreeSet<&str>> = TimeAccount::ALL
        .iter()
        .map(|account| {
            let states = VcpuTimeState::ALL.iter().filter(|state| state.account() == *account);
            states.map(|state| state.name()).collect()
        })
        .collect();
    let rules = fs::read_to_string(root().join("deploy/prometheus/vmscope.rules.yml")).unwrap();
    let lists = rules.split("vcpu_seconds_total{state=").skip(1);
    let lists: Vec<BTreeSet<&str>> =
        lists.map(|rest| rest.split('"').nth(1).unwrap_or_default().split('|').collect()).collect();
    assert_eq!(lists.len(), 4);
    for list in lists {
        assert!(accounts.contains(&list), "{list:?} are not the states of one account");
    }
}

#[test]
fn bpf_programs_have_the_numbers() {
    let header = fs::read_to_string(root().join("bpf/abi/sample.h")).unwrap();
    for reason in OffCpuReason::ALL {
        let (name, number) = (reason.name().to_uppercase(), reason.number());
        assert!(header.contains(&format!("#define OFFCPU_{name} {number}\n")), "{name} {number}");
    }
    assert_eq!(header.matches("#define OFFCPU_").count(), OffCpuReason::ALL.len() + 1);
}

#[test]
fn docs_name_every_state() {
    let page = fs::read_to_string(root().join("docs/formats.md")).unwrap();
    for state in VcpuTimeState::ALL {
        assert!(page.contains(&format!("`{}`", state.name())), "docs/formats.md: {}", state.name());
    }
    assert_eq!(TimeClass::Stolen.name(), "stolen");
}
