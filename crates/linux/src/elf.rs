//! Functions of ELF files that are hostile, and of which parts may be missing: a file's page cache, a file that is cut
//! short while it is read.
//!
//! Design constraints: bounded in bytes, functions, names. One bad symbol costs that symbol, a missing page what is in it,
//! never the file. `object` may panic: callers that can't have that catch it.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

mod bytes;
mod headers;

use object::LittleEndian;
use object::elf::{SHN_UNDEF, STT_FUNC, STT_GNU_IFUNC, Sym32, Sym64};
use object::pod::from_bytes;
use object::read::elf::Sym;

pub use bytes::{Bytes, NoBytes, Present, ReadAt, Window};
pub use headers::{Headers, Part, SymbolTable};

/// Symbols that are read at once.
const CHUNK: u64 = 4096;
/// Most bytes of one table's names. Those of the largest programs (browsers) have more.
const MAX_NAME_BYTES: u64 = 64 << 20;

/// A symbol of a table, its name not read yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Symbol {
    pub start: u64,
    /// Bytes; 0 if unknown.
    pub size: u64,
    /// Where its name is, in the table's names.
    pub name: u64,
}

/// Calls `visit` with each function of a table.
///
/// # Errors
/// Some symbols are not there.
pub fn for_each_symbol(
    bytes: &Bytes<'_>,
    headers: &Headers,
    table: &SymbolTable,
    visit: &mut dyn FnMut(Symbol),
) -> Result<(), NoBytes> {
    if headers.is_64_bit {
        for_each::<Sym64<LittleEndian>>(bytes, table, is_function, visit)
    } else {
        for_each::<Sym32<LittleEndian>>(bytes, table, is_function, visit)
    }
}

/// Finds the defined symbols with these names in a 64-bit file: functions and variables.
#[must_use]
pub fn find_symbols<const N: usize>(
    bytes: &Bytes<'_>,
    headers: &Headers,
    names: [&str; N],
) -> [Option<Symbol>; N] {
    let mut found = [None; N];
    for table in headers.symbol_tables.iter().filter(|_| headers.is_64_bit) {
        let texts = bytes.window(table.names).present(MAX_NAME_BYTES);
        // What is missing is not found.
        let _ = for_each::<Sym64<LittleEndian>>(bytes, table, |_| true, &mut |symbol| {
            let Some(text) = texts.string(symbol.name) else { return };
            let place = names.iter().position(|name| name.as_bytes() == text);
            if let Some(found) = place.and_then(|place| found.get_mut(place)) {
                *found = Some(symbol);
            }
        });
    }
    found
}

fn for_each<S: Sym<Endian = LittleEndian>>(
    bytes: &Bytes<'_>,
    table: &SymbolTable,
    is_wanted: fn(u8) -> bool,
    visit: &mut dyn FnMut(Symbol),
) -> Result<(), NoBytes> {
    let whole = bytes.window(table.symbols);
    let mut read = if whole.size < table.symbols.1 { Err(NoBytes) } else { Ok(()) };
    let chunk_bytes = CHUNK.saturating_mul(size_of::<S>() as u64);
    let step = usize::try_from(chunk_bytes).unwrap_or(usize::MAX);
    for first in (0..whole.size).step_by(step) {
        let start = table.symbols.0.saturating_add(first);
        let size = whole.size.saturating_sub(first).min(chunk_bytes);
        let chunk = bytes.window((start, size)).present(u64::MAX);
        if !chunk.is_whole() {
            read = Err(NoBytes);
        }
        for piece in chunk.pieces(size_of::<S>()) {
            if let Ok((symbol, _)) = from_bytes::<S>(piece)
                && is_wanted(symbol.st_type())
                && let Some(symbol) = defined(symbol)
            {
                visit(symbol);
            }
        }
        if bytes.left() == 0 {
            break;
        }
    }
    read
}

fn is_function(kind: u8) -> bool {
    matches!(kind, STT_FUNC | STT_GNU_IFUNC)
}

/// A symbol that is in the file. Its section does not matter: tools that rearrange programs leave wrong ones.
fn defined<S: Sym<Endian = LittleEndian>>(symbol: &S) -> Option<Symbol> {
    (symbol.st_shndx(LittleEndian) != SHN_UNDEF).then(|| Symbol {
        start: symbol.st_value(LittleEndian).into(),
        size: symbol.st_size(LittleEndian).into(),
        name: symbol.st_name(LittleEndian).into(),
    })
}

/// Calls `visit` with file offset, size (0: unknown) and name of each function of the full symbol table and of the dynamic
/// one, until it returns false: a stripped library keeps the latter.
///
/// # Errors
/// One clause: why there may be more.
pub fn for_each_function(
    bytes: &Bytes<'_>,
    headers: &Headers,
    visit: &mut dyn FnMut(u64, u64, &str) -> bool,
) -> Result<(), &'static str> {
    let mut missing = headers.is_cut.then_some("section headers or the dynamic table are missing");
    let mut is_enough = false;
    for table in &headers.symbol_tables {
        let names = bytes.window(table.names).present(MAX_NAME_BYTES);
        let mut n_nameless = 0_u64;
        let read = for_each_symbol(bytes, headers, table, &mut |symbol| {
            // Addresses of what is not loaded are of no use.
            let Some(offset) = headers.offset(symbol.start).filter(|_| !is_enough) else { return };
            match names.string(symbol.name) {
                Some(b"") => {}
                Some(name) => {
                    is_enough = !visit(offset, symbol.size, &String::from_utf8_lossy(name));
                }
                None => n_nameless = n_nameless.saturating_add(1),
            }
        });
        if 0 < n_nameless {
            missing = missing.or(Some("some names of functions are missing"));
        }
        if read.is_err() {
            missing = missing.or(Some("a part of a symbol table is missing"));
        }
    }
    missing.map_or(Ok(()), Err)
}

#[cfg(test)]
mod test;
