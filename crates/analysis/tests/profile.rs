//! Reports of a small drawn world, as text and CSV, compared with tests/golden/analysis.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::disallowed_methods)]

mod world;

use std::path::Path;

use analysis::{Aggregator, By, Profile, Query, Resolver, Selection, View};
use model::{CpuId, CpuNode, HostNs, NumaReading, SymbolName, Tables, VmId, VmMemory};
use table::Width;

#[derive(Clone, Copy)]
struct Ask<'a> {
    view: View,
    by: By,
    vm: Option<&'a str>,
    vcpu: Option<u32>,
    process: Option<&'a str>,
    limit: Option<usize>,
}

const ASK: Ask =
    Ask { view: View::Unified, by: By::Function, vm: None, vcpu: None, process: None, limit: None };
const GUEST: Ask = Ask { view: View::Guest, vm: Some("vm1"), ..ASK };

fn profile(ask: Ask, samples: &str) -> Profile {
    profile_of(&world::tables(), ask, samples)
}

fn profile_of(tables: &Tables, ask: Ask, samples: &str) -> Profile {
    let header = world::header();
    let resolver = Resolver::new(tables);
    let selection = Selection::new(tables, ask.view, ask.vm, ask.vcpu, ask.process).unwrap();
    let query = Query { selection, by: ask.by, limit: ask.limit };
    let mut aggregator = Aggregator::new(&resolver, &header, query);
    world::samples(samples).iter().for_each(|sample| aggregator.push(sample));
    assert_eq!(aggregator.needs_axis(), ask.view == View::Guest && ask.process.is_none());
    let profile = aggregator.finish_on(&world::axis::axis());
    assert_adds_up(&profile);
    profile
}

fn assert_adds_up(profile: &Profile) {
    let rows: u64 = profile.rows.iter().map(|row| row.samples).sum();
    assert_eq!(rows + profile.other.samples, profile.total);
    assert_eq!(profile.shares.sum(), profile.total);
}

fn text(profile: &Profile, width: Width) -> String {
    analysis::report::profile(profile, width).text(width)
}

fn csv(profile: &Profile) -> String {
    analysis::report::profile(profile, Width::Unlimited).csv()
}

fn golden(file: &str, actual: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/analysis").join(file);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, actual).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(actual, expected, "{file} (UPDATE=1 rewrites)");
}

fn check(file: &str, ask: Ask) {
    golden(file, &text(&profile(ask, world::EVERYTHING), Width::Unlimited));
}

#[test]
fn unified() {
    check("unified-function.txt", ASK);
    check("unified-address.txt", Ask { by: By::Address, ..ASK });
    check("unified-process.txt", Ask { by: By::Process, ..ASK });
    check("unified-thread.txt", Ask { by: By::Thread, ..ASK });
    check("unified-module.txt", Ask { by: By::Module, ..ASK });
    check("unified-vm.txt", Ask { by: By::Vm, ..ASK });
    check("unified-cpu.txt", Ask { by: By::Cpu, ..ASK });
}

#[test]
fn host_shows_a_vm_as_one_line() {
    check("host-function.txt", Ask { view: View::Host, ..ASK });
    check("host-process.txt", Ask { view: View::Host, by: By::Process, ..ASK });
}

#[test]
fn native_leaves_guests_out_and_says_so() {
    check("native-function.txt", Ask { view: View::Native, ..ASK });
}

#[test]
fn guest_shows_what_did_not_run() {
    check("guest-function.txt", GUEST);
    check("guest-process.txt", Ask { by: By::Process, ..GUEST });
    check("guest-cpu.txt", Ask { by: By::Cpu, ..GUEST });
    check("guest-thread.txt", Ask { by: By::Thread, ..GUEST });
    check("guest-module.txt", Ask { by: By::Module, ..GUEST });
    check("guest-vm.txt", Ask { by: By::Vm, ..GUEST });
    check("guest-vcpu1.txt", Ask { vcpu: Some(1), ..GUEST });
    check("guest-unmapped.txt", Ask { vm: Some("vm2"), ..GUEST });
}

/// cpu0 is on node 0, cpu1 on node 1; vm1's memory is known, vm2's was not read.
fn on_nodes() -> Tables {
    let cpu_nodes = [0, 1].map(|cpu| CpuNode { cpu: CpuId(cpu), node: cpu });
    let on = |time, node, mib: u64| VmMemory {
        vm: VmId(0),
        time: HostNs(time),
        found: NumaReading::OnNode { node, bytes: mib << 20 },
    };
    let memory = vec![on(1, 1, 300), on(2, 0, 100), on(2, 1, 200), on(2, 7, 100)];
    Tables { cpu_nodes: cpu_nodes.into(), memory, ..world::tables() }
}

#[test]
fn by_node() {
    let ask = Ask { by: By::Node, ..ASK };
    let nodes = |ask| profile_of(&on_nodes(), ask, world::EVERYTHING);
    golden("unified-node.txt", &text(&nodes(ask), Width::Unlimited));
    golden("unified-node.csv", &csv(&nodes(ask)));
    golden("guest-node.txt", &text(&nodes(Ask { by: By::Node, ..GUEST }), Width::Unlimited));
    golden("unified-node-limit.csv", &csv(&nodes(Ask { limit: Some(2), ..ask })));
    check("unified-no-nodes.txt", ask);
    let json = analysis::report::profile(&nodes(ask), Width::Unlimited).json;
    assert_eq!(json["nodes"][0]["memory_bytes"], 350 << 20);
    assert_eq!(json["nodes"][1]["unknown_reason"], "not read");
    assert_eq!(json["nodes"][1]["remote_share"], serde_json::Value::Null);
}

#[test]
fn process_filter_and_limit() {
    check("unified-compute.txt", Ask { process: Some("compute"), ..ASK });
    check("guest-pid42.txt", Ask { process: Some("42"), ..GUEST });
    check("unified-limit.txt", Ask { limit: Some(3), ..ASK });
    check("nothing.txt", Ask { process: Some("absent"), ..ASK });
}

/// Postgres with a long function name, and code without a name in files with long paths.
fn long_names() -> Tables {
    let mut tables = world::tables();
    let folder = "/root/.rustup/toolchains/stable-x86_64-unknown-linux-gnu/lib/rustlib";
    for module in &mut tables.modules {
        if module.path.starts_with('/') {
            module.path = format!("{folder}{}", module.path);
        }
    }
    for symbol in &mut tables.symbols {
        if symbol.name == SymbolName::Function("ExecScan".to_owned()) {
            let arguments = "llvm::AnalysisManager<llvm::Function>&, ".repeat(6);
            symbol.name = SymbolName::Function(format!("llvm::PassManager::run({arguments})"));
        }
    }
    tables
}

#[test]
fn names_give_way_to_the_width() {
    let check = |file: &str, ask: Ask, width: Width| {
        let profile = profile_of(&long_names(), ask, world::EVERYTHING);
        let text = text(&profile, width);
        let table = text.split("\nTotal ").nth(1).unwrap();
        golden(file, &format!("Total {table}"));
        if let Width::Columns(columns) = width {
            let rows = table.split("\n\n").nth(1).unwrap();
            let longest = rows.lines().map(|line| line.chars().count()).max();
            assert!(longest <= Some(columns), "{file}: {longest:?}");
        }
    };
    let limited = Ask { limit: Some(20), ..ASK };
    check("long-names-function-80.txt", limited, Width::Columns(80));
    check("long-names-function-120.txt", limited, Width::Columns(120));
    check("long-names-function.txt", limited, Width::Unlimited);
    check("long-names-module-80.txt", Ask { by: By::Module, ..ASK }, Width::Columns(80));
}

#[test]
fn csv_has_every_field() {
    golden("unified-function.csv", &csv(&profile(ASK, world::EVERYTHING)));
    golden("unified-thread.csv", &csv(&profile(Ask { by: By::Thread, ..ASK }, world::EVERYTHING)));
    golden("guest-cpu.csv", &csv(&profile(Ask { by: By::Cpu, ..GUEST }, world::EVERYTHING)));
    golden("unified-limit.csv", &csv(&profile(Ask { limit: Some(2), ..ASK }, world::EVERYTHING)));
}
