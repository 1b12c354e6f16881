//! Names in one guest, from what the guest told.

use std::collections::BTreeMap;

use model::{Module, ModuleId, SymbolName};

use crate::{Demangler, Function, FunctionTable, KernelNames, Source, unreadable};

/// The symbols of one guest.
#[derive(Debug, Default)]
pub struct GuestSource {
    /// Its kernel and kernel modules.
    pub kernel: KernelNames,
    /// Its files' functions, or why there are none.
    pub modules: BTreeMap<ModuleId, Result<FunctionTable, String>>,
    /// Puts names into readable form.
    pub demangler: Demangler,
}

impl Source for GuestSource {
    fn names(&mut self, id: ModuleId, module: &Module, offsets: &[u64]) -> Vec<SymbolName> {
        match self.modules.get(&id) {
            Some(Ok(table)) => {
                let find = |offset| table.find(offset);
                names_of(offsets, find, &mut self.demangler, &SymbolName::Stripped)
            }
            Some(Err(reason)) => unreadable(reason, offsets.len()),
            None if self.kernel.has(&module.path) => {
                offsets.iter().map(|offset| self.kernel.name(&module.path, *offset)).collect()
            }
            None => unreadable("the guest sent no symbols for it", offsets.len()),
        }
    }
}

/// One name per offset; neighbours in one function are demangled once. `missing`: where there is no function.
pub(crate) fn names_of<'a>(
    offsets: &[u64],
    find: impl Fn(u64) -> Option<&'a Function>,
    demangler: &mut Demangler,
    missing: &SymbolName,
) -> Vec<SymbolName> {
    let mut last: Option<(&Function, SymbolName)> = None;
    let mut name = |offset| {
        let Some(function) = find(offset) else { return missing.clone() };
        match &last {
            Some((same, name)) if std::ptr::eq(*same, function) => name.clone(),
            _ => {
                let name = SymbolName::Function(demangler.demangle(&function.name));
                last = Some((function, name.clone()));
                name
            }
        }
    };
    offsets.iter().map(|offset| name(*offset)).collect()
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::KernelPart;
    use model::{Owner, VmId};

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
            demangler: Demangler::default(),
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
