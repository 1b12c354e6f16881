//! Addresses to function names, for the host's and the guests' kernels and programs.
//!
//! A [`Source`] names offsets of one owner's modules; [`fill`] asks the right source for every address
//! that a sample hit and writes the answers as rows of `Tables::symbols`. Names are kept at function
//! granularity, demangled.
//!
//! Design constraints: the same function gets the same name on the host and in a guest, whichever program read
//! its symbol table, so both go through [`FunctionTable`] and [`KernelNames`]. An address beyond the
//! end of a function belongs to no function. "No name" is an answer that says why, never an error.
//! Symbol tables and names of guests are hostile: bounded in count, length, time and depth. This
//! crate must never open a path it was not given, nor wait on what it opens.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod demangle;
mod file;
mod guest_child;
mod guest_source;
mod host;
mod kernel;
mod store;
mod table;
mod vdso;

use std::collections::BTreeMap;

pub use demangle::Demangler;
pub use file::{Place, SymbolReader};
pub use guest_child::GuestChild;
pub use guest_source::GuestSource;
pub use host::{HostSource, Places};
pub use kernel::{KernelNames, KernelPart};
pub use store::{Store, StoreError, Stored};
pub use table::{Function, FunctionTable};

use model::{Module, ModuleId, Owner, Symbol, SymbolName, Tables};

/// Is the child process that reads what others chose, if this process was started for that: a program's first call. `None`:
/// it was not.
#[must_use]
pub fn serve() -> Option<std::process::ExitCode> {
    sandbox::serve::<SymbolReader>()
}

/// What can name addresses of one owner's modules.
pub trait Source {
    /// One name for each of `offsets`, in their order. `offsets` ascend.
    fn names(&mut self, id: ModuleId, module: &Module, offsets: &[u64]) -> Vec<SymbolName>;
}

impl<S: Source + ?Sized> Source for &mut S {
    fn names(&mut self, id: ModuleId, module: &Module, offsets: &[u64]) -> Vec<SymbolName> {
        (**self).names(id, module, offsets)
    }
}

/// The sources of all owners.
pub type Sources<'a> = BTreeMap<Owner, Box<dyn Source + 'a>>;

/// Bytes of one owner's names at most: a long name can stand at each of its addresses.
const MAX_OF_AN_OWNER: usize = 128 << 20;

/// Adds a row to `tables.symbols` for each different address in `wanted`.
///
/// An owner without a source gets rows that say so: no requested address is left out.
pub fn fill(tables: &mut Tables, wanted: &[(ModuleId, u64)], sources: &mut Sources<'_>) {
    let mut by_module: BTreeMap<ModuleId, Vec<u64>> = BTreeMap::new();
    for (module, offset) in wanted {
        by_module.entry(*module).or_default().push(*offset);
    }
    let mut given: BTreeMap<Owner, usize> = BTreeMap::new();
    for (id, mut offsets) in by_module {
        let Some(module) = tables.modules.get(id.index()) else { continue };
        offsets.sort_unstable();
        offsets.dedup();
        let names = match sources.get_mut(&module.owner) {
            Some(source) => source.names(id, module, &offsets),
            None => unreadable("no guest was queried for its symbols", offsets.len()),
        };
        let given = given.entry(module.owner).or_default();
        let names = names.into_iter().map(|name| within_budget(given, name));
        let rows = offsets.into_iter().zip(names);
        tables.symbols.extend(rows.map(|(offset, name)| Symbol { module: id, offset, name }));
    }
}

/// The name, if it fits into what its owner may have.
fn within_budget(given: &mut usize, name: SymbolName) -> SymbolName {
    match &name {
        SymbolName::Function(text) if MAX_OF_AN_OWNER < *given + text.len() => {
            SymbolName::Unreadable("too many long names".to_owned())
        }
        SymbolName::Function(text) => {
            *given += text.len();
            name
        }
        SymbolName::Stripped | SymbolName::Unreadable(_) => name,
    }
}

/// The same reason for `n` addresses.
fn unreadable(reason: &str, n: usize) -> Vec<SymbolName> {
    vec![SymbolName::Unreadable(reason.to_owned()); n]
}

#[cfg(test)]
mod test {
    use super::*;

    struct Fixed(&'static str);

    impl Source for Fixed {
        fn names(&mut self, _: ModuleId, module: &Module, offsets: &[u64]) -> Vec<SymbolName> {
            let name = |offset| format!("{} {}+{offset:x}", self.0, module.path);
            offsets.iter().map(|offset| SymbolName::Function(name(offset))).collect()
        }
    }

    #[test]
    fn every_address_gets_one_row_from_its_owner() {
        let module = |owner, path: &str| Module { owner, path: path.to_owned(), build_id: None };
        let (web, db) = (Owner::Vm(model::VmId(0)), Owner::Vm(model::VmId(1)));
        let modules = vec![module(Owner::Host, "/a"), module(web, "/a"), module(db, "/b")];
        let mut tables = Tables { modules, ..Tables::default() };
        let mut sources: Sources<'_> = BTreeMap::new();
        sources.insert(Owner::Host, Box::new(Fixed("host")));
        sources.insert(web, Box::new(Fixed("web")));
        let wanted =
            [(1, 32), (0, 16), (1, 16), (0, 16), (2, 1), (7, 1)].map(|(m, o)| (ModuleId(m), o));

        fill(&mut tables, &wanted, &mut sources);

        let shown: Vec<_> = tables
            .symbols
            .iter()
            .map(|s| match &s.name {
                SymbolName::Function(name) => format!("{} {name}", s.module),
                other => format!("{} {other:?}", s.module),
            })
            .collect();
        let expected = [
            "0 host /a+10",
            "1 web /a+10",
            "1 web /a+20",
            r#"2 Unreadable("no guest was queried for its symbols")"#,
        ];
        assert_eq!(shown, expected);
    }
}
