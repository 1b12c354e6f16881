//! Files of host processes, read by a child of `vmscope` as `record` and `top` do.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;

use model::{Module, ModuleId, Owner, SymbolName};
use sandbox::Sandbox;
use symbols::{HostSource, KernelNames, Place, Source};

fn names(path: &str, file: &Path, offsets: &[u64]) -> Vec<SymbolName> {
    let sandbox = Sandbox::of_program(Path::new(env!("CARGO_BIN_EXE_vmscope")));
    let mut source = HostSource::new(KernelNames::default()).with_sandbox(sandbox);
    source.go_on(BTreeMap::from([(ModuleId(0), vec![Place::from(file)])]));
    let module = Module { owner: Owner::Host, path: path.to_owned(), build_id: None };
    source.names(ModuleId(0), &module, offsets)
}

fn function(name: &str) -> SymbolName {
    SymbolName::Function(name.to_owned())
}

#[test]
fn a_child_reads_lists_and_demangles() {
    let list = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(list.path(), "7000 20 _ZN4calc7computeEi\n7020 20 plain\n").unwrap();
    let names = names("/tmp/perf-1.map", list.path(), &[0x7000, 0x7020, 0x7040]);
    assert_eq!(names, [function("calc::compute(int)"), function("plain"), SymbolName::Stripped]);
}

/// The largest program at hand, whatever is in it: this one.
#[test]
fn a_child_reads_programs() {
    let program = std::env::current_exe().unwrap().canonicalize().unwrap();
    let offsets: Vec<u64> = (0..1 << 20).map(|page| page << 8).collect();
    let names = names("/program", &program, &offsets);
    let here = |name: &SymbolName| *name == function("sandbox::a_child_reads_programs");
    assert!(names.iter().any(here), "{:?}", &names[..10]);
}
