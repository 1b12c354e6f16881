//! A guest's rows and names, from what it told.

use std::collections::BTreeMap;
use std::path::Path;

use api::guest::{GuestMap, ModuleSymbols};
use guest::{Merged, Session};
use model::{Clock, Guest, Mapping, Module, ModuleId, Note, Tables, VmId};
use symbols::{Function, FunctionTable, GuestSource, KernelNames, KernelPart, Store, Stored};

use crate::GuestError;
use crate::guests::Answer;

/// A guest whose map is in the tables, and where its symbols come from.
#[derive(Debug)]
pub(crate) struct GuestNames {
    pub(crate) vm: VmId,
    modules: Vec<ModuleId>,
    kernel: KernelNames,
    symbols: SymbolsOf,
}

#[derive(Debug)]
enum SymbolsOf {
    /// The guest, which is still there to be asked.
    Session(Box<Session>),
    /// Its snapshot file.
    File(Vec<ModuleSymbols>),
}

/// Adds what the guest answered; a guest that did not is noted with the reason.
pub(crate) fn add_guest(
    tables: &mut Tables,
    notes: &mut Vec<Note>,
    vm: VmId,
    answer: Result<Answer, GuestError>,
) -> Option<GuestNames> {
    match answer {
        Ok(answer) => {
            if let Some(problem) = answer.log_problem {
                let text =
                    format!("processes that ended while recording may lack names: {problem}");
                notes.push(note(tables, vm, text));
            }
            let symbols = SymbolsOf::Session(Box::new(answer.session));
            Some(add(tables, notes, vm, answer.map, answer.clock, answer.via, symbols))
        }
        Err(error) => {
            let reason = error.to_string();
            notes.push(note(tables, vm, format!("its functions have no names: {reason}")));
            tables.vms[vm.index()].guest = Guest::Unmapped { reason };
            None
        }
    }
}

/// Adds what a guest told earlier; its symbols are those that are stored.
pub(crate) fn add_known(
    tables: &mut Tables,
    notes: &mut Vec<Note>,
    vm: VmId,
    map: GuestMap,
    clock: Clock,
    via: &str,
) -> GuestNames {
    add(tables, notes, vm, map, clock, via, SymbolsOf::File(Vec::new()))
}

/// Adds what a guest's snapshot file says.
pub(crate) fn add_snapshot(
    tables: &mut Tables,
    notes: &mut Vec<Note>,
    vm: VmId,
    file: &Path,
) -> Option<GuestNames> {
    match guest::read_snapshot(file) {
        Ok(snapshot) => {
            let symbols = SymbolsOf::File(snapshot.symbols);
            let clock = Clock { host_minus_guest_ns: 0, error_ns: u64::MAX / 2 };
            Some(add(tables, notes, vm, snapshot.map, clock, "file", symbols))
        }
        Err(error) => {
            let reason = error.to_string();
            notes.push(note(tables, vm, format!("its functions have no names: {reason}")));
            tables.vms[vm.index()].guest = Guest::Unmapped { reason };
            None
        }
    }
}

fn add(
    tables: &mut Tables,
    notes: &mut Vec<Note>,
    vm: VmId,
    map: GuestMap,
    clock: Clock,
    via: &str,
    symbols: SymbolsOf,
) -> GuestNames {
    let merged = guest::merge(map, vm, clock, tables);
    tables.vms[vm.index()].guest = Guest::Mapped { via: via.to_owned(), clock };
    let kernel = kernel_names(tables, &merged);
    notes.extend(merged.notes);
    GuestNames { vm, modules: merged.modules, kernel, symbols }
}

fn kernel_names(tables: &Tables, merged: &Merged) -> KernelNames {
    let of_kernel = |mapping: &&Mapping| mapping.image == merged.kernel;
    let parts = tables.mappings.iter().filter(of_kernel).map(|mapping| KernelPart {
        path: tables.modules[mapping.module.index()].path.clone(),
        start: mapping.start,
        end: mapping.end,
    });
    let functions = merged.functions.iter().map(|f| (f.address.0, f.name.as_str()));
    KernelNames::new(functions, parts)
}

impl GuestNames {
    /// Gets the symbols of the modules that samples hit: from the store, else from the guest.
    pub(crate) fn into_source(
        self,
        vm_name: &str,
        rows: &[Module],
        wanted: &[(ModuleId, u64)],
        store: &Store,
        notes: &mut Vec<Note>,
    ) -> GuestSource {
        let mut source = GuestSource { kernel: self.kernel, ..GuestSource::default() };
        let mut to_ask: BTreeMap<u32, ModuleId> = BTreeMap::new();
        for (number, module) in (0u32..).zip(&self.modules) {
            let first = wanted.partition_point(|(hit, _)| hit < module);
            let is_hit = wanted.get(first).is_some_and(|(hit, _)| hit == module);
            if !is_hit {
                continue;
            }
            match rows[module.index()].build_id.as_ref().map(|id| store.get(id)) {
                Some(Stored::Table(table)) => {
                    source.modules.insert(*module, Ok(table));
                    continue;
                }
                Some(Stored::Unusable(reason)) => {
                    notes.push(Note { subject: vm_name.to_owned(), text: reason });
                }
                Some(Stored::Absent) | None => {}
            }
            to_ask.insert(number, *module);
        }
        for answer in self.symbols.of(&to_ask) {
            let Some(module) = to_ask.get(&answer.module) else { continue };
            let table = guest::functions(answer).map(function_table);
            if let (Ok(table), Some(id)) = (&table, &rows[module.index()].build_id)
                && let Err(error) = store.put(id, table)
            {
                let text = format!("its symbols were not kept for the next time: {error}");
                notes.push(Note { subject: vm_name.to_owned(), text });
            }
            source.modules.insert(*module, table);
        }
        source
    }
}

impl SymbolsOf {
    fn of(self, modules: &BTreeMap<u32, ModuleId>) -> Vec<ModuleSymbols> {
        let numbers: Vec<u32> = modules.keys().copied().collect();
        match self {
            Self::Session(mut session) if !numbers.is_empty() => session.symbols(&numbers),
            Self::Session(_) => Vec::new(),
            Self::File(symbols) => symbols,
        }
    }
}

fn function_table(functions: Vec<api::guest::FunctionSymbol>) -> FunctionTable {
    FunctionTable::new(functions.into_iter().map(|f| Function {
        offset: f.offset,
        size: f.size,
        name: f.name,
    }))
}

fn note(tables: &Tables, vm: VmId, text: String) -> Note {
    Note { subject: tables.vms[vm.index()].name.clone(), text }
}
