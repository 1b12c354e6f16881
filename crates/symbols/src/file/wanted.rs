//! Of all functions of a file, those that wanted addresses lie in: what is kept of a file is bounded by the request,
//! not by what the file has.

use linux::elf::{Symbol, Window};

use crate::Function;
use crate::table::MAX_GUESSED_SIZE;

/// Most functions that are kept of one file, names of one function counted apart.
const MAX_KEPT: usize = 1 << 18;

/// Most bytes of names that are kept of one file.
const MAX_NAME_BYTES: usize = 16 << 20;

/// Collects functions around wanted addresses.
pub(crate) struct Wanted<'a> {
    /// Ascending.
    addresses: &'a [u64],
    functions: Vec<Function>,
    name_bytes: usize,
    /// Some were left out.
    pub(crate) is_cut: bool,
}

/// Candidates of one table.
pub(crate) struct Candidates<'a> {
    addresses: &'a [u64],
    around: Vec<Symbol>,
    /// For each address, the last function that begins between the address before it and itself: a function of unknown
    /// size reaches no further.
    before: Vec<Option<Symbol>>,
    is_cut: bool,
}

impl<'a> Wanted<'a> {
    /// `addresses` ascend.
    pub(crate) fn new(addresses: &'a [u64]) -> Self {
        Self { addresses, functions: Vec::new(), name_bytes: 0, is_cut: false }
    }

    pub(crate) fn addresses(&self) -> &'a [u64] {
        self.addresses
    }

    /// A collection for one table.
    pub(crate) fn candidates(&self) -> Candidates<'a> {
        let before = vec![None; self.addresses.len()];
        Candidates { addresses: self.addresses, around: Vec::new(), before, is_cut: false }
    }

    /// Reads the names of a table's candidates. One that can't be read costs its function only.
    pub(crate) fn add(&mut self, candidates: Candidates<'_>, names: Window<'_>) {
        self.is_cut |= candidates.is_cut;
        let before = candidates.before.into_iter().flatten();
        for Symbol { start, size, name } in candidates.around.into_iter().chain(before) {
            if let Ok(name) = names.string(name) {
                self.push(Function { offset: start, size, name });
            }
        }
    }

    pub(crate) fn push(&mut self, function: Function) {
        let bytes = self.name_bytes.saturating_add(function.name.len());
        if MAX_NAME_BYTES < bytes || MAX_KEPT <= self.functions.len() {
            self.is_cut = true;
            return;
        }
        self.name_bytes = bytes;
        self.functions.push(function);
    }

    /// What was collected.
    pub(crate) fn into_functions(self) -> Vec<Function> {
        self.functions
    }
}

impl Candidates<'_> {
    /// Keeps the function if a wanted address may lie in it.
    pub(crate) fn push(&mut self, candidate: Symbol) {
        let Symbol { start, size, .. } = candidate;
        let index = self.addresses.partition_point(|address| *address < start);
        let Some(first) = self.addresses.get(index) else { return };
        let size = if size == 0 { MAX_GUESSED_SIZE } else { size };
        if *first < start.saturating_add(size) {
            if self.around.len() < MAX_KEPT {
                self.around.push(candidate);
            } else {
                self.is_cut = true;
            }
        } else if let Some(before) = self.before.get_mut(index) {
            *before = (*before).max(Some(candidate));
        }
    }
}
