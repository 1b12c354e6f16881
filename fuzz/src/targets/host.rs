//! What processes of the host say, and files that anybody may have written.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use api::symbols::{FileFormat, FileFunctions, SymbolAnswer, SymbolQuestion};
use host::processes::ProcessLog;
use host::sideband::{Event, EventKind};
use host::{numa, procfs, tasks, vms};
use model::{BuildId, MachineId};
use sandbox::Parser;
use symbols::{Demangler, Function, FunctionTable, Store, Stored, SymbolReader};
use testbed::Scenario;

use super::{MIB, Numbers, Target};

pub(super) fn targets() -> Vec<Target> {
    let target = |name, run, seeds| Target { longest: 1 << 16, ..Target::new(name, run, seeds) };
    vec![
        Target {
            words: &[
                b"_ZN",
                b"E",
                b"I",
                b"S_",
                b"T_",
                b"L_Z",
                b"_R",
                b"NvC",
                b"17h0123456789abcdef",
            ],
            longest: 8192,
            ..target("names", names, Vec::new)
        },
        target("store", store, || vec![stored()]),
        Target {
            words: &[
                b"[vdso]",
                b" (deleted)",
                b"r-xp",
                b"-name",
                b"guest-cid=",
                b"\0",
                b" default ",
                b" N0=",
                b"kernelpagesize_kB=",
            ],
            ..target("proc", proc, Vec::new)
        },
        target("processes", processes, || vec![(0..=255).collect()]),
        Target {
            words: &[b"[host]", b"[[guest]]", b"= ", b"\""],
            ..target("scenario", scenario, seed_scenarios)
        },
        Target {
            words: &[
                b"[[node]]",
                b"[[vm]]",
                b"[migration]",
                b"distances = ",
                b"memory = \"1G\"",
                b"waiting = ",
            ],
            ..target("layout", layouts, seed_layouts)
        },
        Target { budget: 256 * MIB, ..target("elf", elf, Vec::new) },
        Target {
            words: &[b" 10 ", b"0x", b"ffffffffffffffff", b"\n", b"_ZN"],
            ..target("perf-map", perf_map, || vec![b"1000 10 a\n1010 20 _Z1bv\n".to_vec()])
        },
    ]
}

fn names(bytes: &[u8]) {
    let name = String::from_utf8_lossy(bytes);
    let shown = Demangler::default().demangle(&name);
    assert!(!shown.chars().any(char::is_control), "{shown:?}");
}

fn build_id() -> BuildId {
    BuildId::new(&[1; 20]).expect("it has 20 bytes")
}

fn the_store() -> Store {
    Store::of_vm(super::folder(), "fuzz")
}

/// Where the store keeps the table of `build_id`.
fn stored_at() -> std::path::PathBuf {
    let functions = (0..4).map(|n| Function { offset: n * 16, size: 16, name: format!("f{n}") });
    the_store().put(&build_id(), &FunctionTable::new(functions)).expect("the folder is ours");
    let folders = std::fs::read_dir(super::folder()).expect("the folder is ours");
    let files = folders.flatten().map(|folder| folder.path().join(build_id().to_string()));
    files.into_iter().find(|file| file.exists()).expect("it was put there")
}

fn stored() -> Vec<u8> {
    std::fs::read(stored_at()).expect("it was put there")
}

fn store(bytes: &[u8]) {
    static PLACE: std::sync::OnceLock<std::path::PathBuf> = std::sync::OnceLock::new();
    std::fs::write(PLACE.get_or_init(stored_at), bytes).expect("the folder is ours");
    if let Stored::Table(table) = the_store().get(&build_id()) {
        let _ = table.find(7);
    }
}

/// The files of a process.
fn proc(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    for entry in procfs::parse_maps(&text) {
        drop(procfs::mapped_file_paths(Path::new("/proc/1"), &entry));
    }
    drop(procfs::parse_modules(&text));
    procfs::parse_kallsyms(&text).for_each(|entry| _ = entry.is_text());
    let proc = super::folder().join("proc");
    let directory = proc.join("7");
    let task = directory.join("task/7");
    std::fs::create_dir_all(&task).expect("the folder is ours");
    let maps = numa::parse_numa_maps(&text);
    for mapping in maps.within(1 << 12, 1 << 40) {
        mapping.bytes().for_each(drop);
    }
    for file in ["cmdline", "status", "stat", "comm", "maps", "numa_maps"] {
        std::fs::write(directory.join(file), bytes).expect("the folder is ours");
    }
    for file in ["stat", "status", "comm", "syscall", "wchan"] {
        std::fs::write(task.join(file), bytes).expect("the folder is ours");
    }
    drop(vms::describe(&proc, 7, "org.vmscope.guest.0").identity());
    drop((tasks::snapshot(&proc, MachineId::HOST), host::processes::read(&proc, 7)));
    drop(ProcessLog::scan(&proc));
    drop(numa::read_numa_maps(&directory));
}

const LAYOUT_HOST: &str = include_str!("../../../scenarios/layout/opteron-6348.toml");

fn seed_layouts() -> Vec<Vec<u8>> {
    let case = include_bytes!("../../../scenarios/layout/case-2-dino.toml");
    let answer = br#"{"choices":[{"vm":0,"node":1,"memory":"follow","rank":1,"reason":"a"}]}"#;
    let vm = r#"{"vm":"a","pid":0,"started":1,"vcpus":[1],"memory":[{"0":1,"1":5368709120}]}"#;
    let plan = format!(r#"{{"version":1,"placement":[{vm}]}}"#);
    vec![LAYOUT_HOST.into(), case.to_vec(), answer.to_vec(), plan.into_bytes()]
}

/// Descriptions of hosts and VMs, and plans for these; answers of policies, and saved plans.
fn layouts(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    drop((layout::read_topology(&text), layout::read_counters(&text)));
    let host = layout::read_topology(LAYOUT_HOST).expect("it is ours");
    let options = layout::Options::default();
    let ours = include_str!("../../../scenarios/layout/case-2-dino.toml");
    let ours = layout::read_case(ours, &host).expect("it is ours");
    let mut policy = layout::External::new(|_| Ok(text.clone().into_owned()));
    let plan = layout::plan(&ours.topology, &ours.load, &mut policy, &options);
    assert_eq!(plan.vms.len(), ours.load.vms.len());
    let saved = layout::read_plan(&text).unwrap_or_default();
    drop(layout::Plan::again(&ours.topology, &ours.load, |_| 1, &saved, &options));
    let Ok(case) = layout::read_case(&text, &host) else { return };
    for name in layout::POLICIES {
        let Some(mut policy) = layout::policy_named(name) else { continue };
        let plan = layout::plan(&case.topology, &case.load, policy.as_mut(), &options);
        assert_eq!(plan.vms.len(), case.load.vms.len());
        drop(layout::report::plan(&case.topology, &case.load, &plan));
    }
}

/// Side-band events, as the kernel tells them of processes that do what they like.
fn processes(bytes: &[u8]) {
    let mut input = Numbers(bytes);
    let mut log = ProcessLog::default();
    let mut time_ns = 0_u64;
    while !input.0.is_empty() {
        let what = input.u8();
        let (pid, tid) = (u32::from(input.u8() & 15), u32::from(input.u8() & 15));
        time_ns = if what & 0x80 == 0 { time_ns.wrapping_add(1) } else { input.u64() };
        let kind = match what & 3 {
            0 => EventKind::Comm { name: text(&mut input), exec: what & 4 != 0 },
            1 => EventKind::Map {
                start: input.u64(),
                length: input.u64(),
                offset: input.u64(),
                path: text(&mut input),
                build_id: None,
            },
            2 => EventKind::Fork { parent: u32::from(input.u8() & 15) },
            _ => EventKind::Exit,
        };
        log.apply(Event { time_ns, pid, tid, kind });
        if what & 0x78 == 0x78 {
            log.forget_ended(|pid| pid & 1 == 0);
        }
    }
    for image in log.finish() {
        drop(image);
    }
}

fn text(input: &mut Numbers<'_>) -> String {
    let length = usize::from(input.u8() & 31);
    String::from_utf8_lossy(&input.bytes(length)).into_owned()
}

fn seed_scenarios() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios");
    let files = std::fs::read_dir(folder).expect("it is in the repository").flatten();
    let mut paths: Vec<_> = files.map(|file| file.path()).collect();
    paths.sort();
    paths.into_iter().map(|path| std::fs::read(path).expect("it is in the repository")).collect()
}

fn scenario(bytes: &[u8]) {
    drop(Scenario::parse(Path::new("/fuzz.toml"), &String::from_utf8_lossy(bytes)));
}

/// A file that a process mapped.
fn elf(bytes: &[u8]) {
    read(bytes, &SymbolQuestion::BuildId);
    functions(bytes, FileFormat::Elf { build_id: None });
}

/// A list of functions that a process wrote.
fn perf_map(bytes: &[u8]) {
    functions(bytes, FileFormat::PerfMap);
}

/// Whatever the file is, the answer is of the form that its reader's parent expects.
fn functions(bytes: &[u8], format: FileFormat) {
    let places: Vec<u64> = (0..256).map(|n| n * 64).chain([u64::MAX]).collect();
    let n = places.len();
    let question = SymbolQuestion::Functions { format, places, max_bytes: 1 << 30 };
    if let SymbolAnswer::Functions { functions: Ok(functions), .. } = read(bytes, &question) {
        let FileFunctions { names, at_places, .. } = functions;
        assert_eq!(at_places.len(), n);
        assert!(at_places.into_iter().flatten().all(|number| (number as usize) < names.len()));
        assert!(!names.iter().any(|name| name.chars().any(char::is_control)), "{names:?}");
    }
}

/// What the child without privileges does with a file, here.
fn read(bytes: &[u8], question: &SymbolQuestion) -> SymbolAnswer {
    static READER: Mutex<Option<SymbolReader>> = Mutex::new(None);
    let file = std::fs::File::open(super::written("read", bytes)).expect("it was written");
    let mut reader = READER.lock().unwrap_or_else(PoisonError::into_inner);
    let reader = match &mut *reader {
        Some(reader) if !reader.is_spent() => reader,
        spent => spent.insert(SymbolReader::start()),
    };
    reader.answer(question, &[&file])
}
