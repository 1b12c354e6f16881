//! What leaves the program: the question of a policy outside of it, and a saved plan. Golden files show a change of the form.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use layout::{Case, Cell, External, Options, Plan, SavedVm};

const HOST: &str = "[[node]]\nid = 0\ncpus = \"0-3\"\nmemory = \"16G\"\ndistances = [10, 21]\n\
                    [[node]]\nid = 2\ncpus = \"4-7\"\nmemory = \"16G\"\ndistances = [21, 10]\n";

const VMS: &str = "[[vm]]\nname = \"web\"\nmemory = \"2G\"\nnode = 0\nmemory_nodes = [2]\nwaiting = 0.5\n\
                   [[vm]]\nname = \"twin\"\nvcpus = 2\nmemory = \"2G\"\nnode = 0\nmemory_nodes = [0, 2]\n\
                   misses_per_s = 2e7\ninstructions_per_s = 1e9\n\
                   [[vm]]\nname = \"held\"\nmemory = \"1G\"\nnode = 2\nfixed = true\n";

/// `twin` has two cells. Each has its memory where the other's vCPU is, and may run there only.
fn case() -> Case {
    let topology = layout::read_topology(HOST).unwrap();
    let mut case = layout::read_case(VMS, &topology).unwrap();
    for (vm, id) in case.load.vms.iter_mut().zip(40..) {
        vm.id = id;
        vm.samples.truncate(2);
    }
    let twin = &mut case.load.vms[1];
    twin.now.vcpus = vec![Some(0), Some(1)];
    twin.allowed.cpus = vec![Some((0..4).collect()), Some((4..8).collect())];
    let cell = |vcpu: usize, memory: [u64; 2]| Cell { vcpus: vec![vcpu], memory: memory.to_vec() };
    twin.cells = vec![cell(0, [0, 1 << 30]), cell(1, [1 << 30, 0])];
    case
}

fn check(name: &str, actual: &serde_json::Value) {
    let actual = serde_json::to_string_pretty(actual).unwrap() + "\n";
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = folder.join("../../tests/golden/layout").join(name);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &actual).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(actual == expected, "{name} differs: run again with UPDATE=1 and read the change");
}

#[test]
fn the_question_of_a_policy() {
    let (Case { topology, load, .. }, mut question) = (case(), String::new());
    let mut policy = External::new(|text| {
        question = text.to_owned();
        Ok(r#"{"choices":[]}"#.to_owned())
    });
    let _ = layout::plan(&topology, &load, &mut policy, &Options::default());
    drop(policy);
    check("policy-question.json", &serde_json::from_str(&question).unwrap());
}

#[test]
fn a_saved_plan() {
    let Case { topology, load, .. } = case();
    let options = Options::default();
    let plan = layout::plan(&topology, &load, &mut layout::Simple, &options);
    let started = |vm: &layout::Vm| u64::from(vm.id) * 10;
    let saved = serde_json::to_value(plan.saved(&topology, &load, started)).unwrap();
    check("saved-plan.json", &saved);
    let saved: Vec<SavedVm> = serde_json::from_value(saved).unwrap();
    let again = Plan::again(&topology, &load, started, &saved, &options).unwrap();
    assert_eq!(again.moves, plan.moves);
    assert_eq!(again.moves.len(), 2, "{:?}", again.moves);
}
