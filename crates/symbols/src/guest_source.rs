//! Names in one guest, from the guest's report.

use std::collections::{BTreeMap, BTreeSet};

use api::symbols::{SymbolAnswer, SymbolQuestion};
use model::{Module, ModuleId, SymbolName};

use crate::demangle::{is_mangled, printable};
use crate::{FunctionTable, GuestChild, KernelNames, Source, unreadable};

/// Names in one question: none is too long for the answer to be.
const NAMES_AT_ONCE: usize = 1 << 13;

/// The symbols of one guest.
#[derive(Debug, Default)]
pub struct GuestSource {
    /// Its kernel and kernel modules.
    pub kernel: KernelNames,
    /// Its files' functions, or why there are none.
    pub modules: BTreeMap<ModuleId, Result<FunctionTable, String>>,
    /// Puts names into readable form.
    pub child: GuestChild,
}

impl Source for GuestSource {
    fn names(&mut self, id: ModuleId, module: &Module, offsets: &[u64]) -> Vec<SymbolName> {
        match self.modules.get(&id) {
            Some(Ok(table)) => functions(&self.child, table, offsets),
            Some(Err(reason)) => unreadable(reason, offsets.len()),
            None if self.kernel.has(&module.path) => {
                offsets.iter().map(|offset| self.kernel.name(&module.path, *offset)).collect()
            }
            None => unreadable("the guest sent no symbols for it", offsets.len()),
        }
    }
}

/// One name per offset. Mangled names, which are the guest's work, are made readable in a child; those that it does not
/// answer for stay as they are.
fn functions(child: &GuestChild, table: &FunctionTable, offsets: &[u64]) -> Vec<SymbolName> {
    let found: Vec<Option<&str>> =
        offsets.iter().map(|offset| Some(&*table.find(*offset)?.name)).collect();
    let mangled: BTreeSet<&str> =
        found.iter().copied().flatten().filter(|name| is_mangled(name)).collect();
    let mangled: Vec<String> = mangled.into_iter().map(str::to_owned).collect();
    let mut readable: BTreeMap<String, String> = BTreeMap::new();
    for mangled in mangled.chunks(NAMES_AT_ONCE) {
        let question = SymbolQuestion::Readable(mangled.to_vec());
        if let Ok(SymbolAnswer::Readable(names)) = child.ask(&question) {
            readable.extend(mangled.iter().cloned().zip(names));
        }
    }
    let name = |name: Option<&str>| match name {
        Some(name) => {
            let shown = readable.get(name).map_or(name, String::as_str);
            SymbolName::Function(printable(shown))
        }
        None => SymbolName::Stripped,
    };
    found.into_iter().map(name).collect()
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::{Function, KernelPart};
    use model::{Owner, VmId};
    use sandbox::Sandbox;

    #[test]
    fn files_kernel_and_the_rest() {
        let function = |offset, size, name: &str| Function { offset, size, name: name.into() };
        let table = FunctionTable::new([
            function(0x10, 0x10, "_ZN4calc7computeEi"),
            function(0x30, 0x10, "_ZN5shard4work17h0123456789abcdefE"),
        ]);
        let part = KernelPart { path: "[kernel]".into(), start: 0x1000, end: 0x2000 };
        let mut source = GuestSource {
            kernel: KernelNames::new([(0x1000, "_stext")], [part]),
            modules: BTreeMap::from([
                (ModuleId(0), Ok(table)),
                (ModuleId(1), Err("permission denied".to_owned())),
            ]),
            child: GuestChild::with_sandbox(Sandbox::here()),
        };
        let mut check = |id, path: &str, offsets: &[u64], expected: &[&str]| {
            let module =
                Module { owner: Owner::Vm(VmId(0)), path: path.to_owned(), build_id: None };
            let shown: Vec<_> = source
                .names(ModuleId(id), &module, offsets)
                .into_iter()
                .map(|name| match name {
                    SymbolName::Function(name) => name,
                    SymbolName::Stripped => "(stripped)".into(),
                    SymbolName::Unreadable(reason) => reason,
                })
                .collect();
            assert_eq!(shown, expected, "{path}");
        };
        check(
            0,
            "/bin/a",
            &[0x10, 0x1f, 0x20, 0x3f],
            &["calc::compute(int)", "calc::compute(int)", "(stripped)", "shard::work"],
        );
        check(1, "/bin/b", &[1, 2], &["permission denied"; 2]);
        check(2, "[kernel]", &[0], &["_stext"]);
        check(3, "/bin/c", &[0], &["the guest sent no symbols for it"]);
    }
}
