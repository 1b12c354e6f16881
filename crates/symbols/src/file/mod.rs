//! Functions of the files that host processes map: hostile ELF files.
//!
//! ```text
//!   Place::open    needs privileges       a descriptor of a regular file, never a device or FIFO
//!   SymbolReader     needs nothing else     reads it piece by piece, never maps it; bounded in bytes, functions, names
//! ```
//!
//! Design constraints: the second half runs in a child without a file system and without privileges (`sandbox`), so it takes
//! descriptors, gives plain data and asks the system for nothing but bytes. One bad symbol costs that symbol, never the file. A file that is cut short while it is
//! read is an error for what is missing.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

mod debug_data;
mod frames;
mod go;
mod open;
mod perf_map;
mod reader;
mod wanted;

use std::fs::File;

use host::open_file::OpenFile;
use linux::elf::{Bytes, Headers, ReadAt, for_each_symbol};
use model::BuildId;

pub use open::Place;
pub use reader::SymbolReader;

use crate::{Function, FunctionTable};
use wanted::Wanted;

/// Most bytes that are read of one file. The largest programs (browsers) have symbol tables of some 50 MiB, without names.
const MAX_READ_BYTES: u64 = 512 << 20;

/// Headers and notes take less.
const MAX_BUILD_ID_BYTES: u64 = 32 << 20;

/// The build id of an open ELF file, if it has one.
pub(crate) fn build_id(file: &File) -> Option<BuildId> {
    let file = OpenFile::new(file).ok()?;
    let read = || Headers::read(&Bytes::new(&file, MAX_BUILD_ID_BYTES)).ok()?.build_id;
    catch_panic::catch_panic(read)?
}

/// Names of a file's functions around wanted offsets.
#[derive(Debug, Default)]
pub(crate) struct FileNames {
    headers: Headers,
    /// By address.
    functions: FunctionTable,
    /// Ranges of code that have no name, by address.
    unnamed: FunctionTable,
    /// Not all were looked at.
    is_cut: bool,
}

impl FileNames {
    /// Reads what is needed to name the bytes at `offsets`, which ascend, if the file has the build id `expected` (when
    /// given). `debug`: a file that may have the symbols of a stripped one. `budget`: how many bytes may be read; what was
    /// read is taken from it.
    pub(crate) fn read(
        file: &dyn ReadAt,
        debug: Option<&dyn ReadAt>,
        expected: Option<&BuildId>,
        offsets: &[u64],
        budget: &mut u64,
    ) -> Result<Self, String> {
        let limit = (*budget).min(MAX_READ_BYTES);
        let bytes = Bytes::new(file, limit);
        let names = catch_panic::catch_panic(|| read(&bytes, debug, expected, offsets));
        *budget = budget.saturating_sub(limit.saturating_sub(bytes.left()));
        names.ok_or("not a sound ELF file")?
    }

    /// The function that holds the byte at file offset `offset`.
    pub(crate) fn find(&self, offset: u64) -> Option<&Function> {
        let address = self.headers.address(offset)?;
        match (self.functions.find(address), self.unnamed.find(address)) {
            // Its size was a guess.
            (Some(named), Some(range)) if named.size == 0 && named.offset < range.offset => {
                Some(range)
            }
            (named, range) => named.or(range),
        }
    }

    /// Why a function without a name may have had one.
    pub(crate) fn why_missing(&self) -> Option<&'static str> {
        self.is_cut.then_some(
            "not all of its symbols could be read: they are too many, or the file was cut short",
        )
    }
}

fn read(
    bytes: &Bytes<'_>,
    debug: Option<&dyn ReadAt>,
    expected: Option<&BuildId>,
    offsets: &[u64],
) -> Result<FileNames, String> {
    let headers = Headers::read(bytes)?;
    if expected.is_some() && headers.build_id.as_ref() != expected {
        return Err("file changed since it was mapped".to_owned());
    }
    let mut addresses: Vec<u64> = offsets.iter().filter_map(|at| headers.address(*at)).collect();
    addresses.sort_unstable();
    let mut wanted = Wanted::new(&addresses);
    add_symbols(bytes, &headers, &mut wanted);
    if !headers.has_full_table {
        add_debug_symbols(bytes, debug, &headers, &mut wanted);
        go::add(&headers, bytes, &mut wanted);
    }
    let mut ranges = Wanted::new(&addresses);
    frames::add(&headers, bytes, &mut ranges);
    let is_cut = headers.is_cut || wanted.is_cut || ranges.is_cut;
    let functions = FunctionTable::new(wanted.into_functions());
    let unnamed = FunctionTable::new(ranges.into_functions());
    Ok(FileNames { headers, functions, unnamed, is_cut })
}

/// Functions of a stripped file from what was stripped: the part that its maker put back, and the file in which it was kept.
fn add_debug_symbols(
    bytes: &Bytes<'_>,
    debug: Option<&dyn ReadAt>,
    headers: &Headers,
    wanted: &mut Wanted<'_>,
) {
    let mut add = |file: &dyn ReadAt, is_it: &dyn Fn(&Headers) -> bool| {
        let bytes = Bytes::new(file, MAX_READ_BYTES);
        let Ok(headers) = Headers::read(&bytes) else { return };
        if is_it(&headers) {
            add_symbols(&bytes, &headers, wanted);
        }
    };
    if let Some(unpacked) = headers.debug_data.and_then(|part| debug_data::unpack(part, bytes).ok())
    {
        add(&unpacked.as_slice(), &|_| true);
    }
    if let Some(debug) = debug {
        add(debug, &|debug| debug.build_id.is_some() && debug.build_id == headers.build_id);
    }
}

/// Functions of the full symbol table and of the dynamic one: a stripped library keeps the latter.
fn add_symbols(bytes: &Bytes<'_>, headers: &Headers, wanted: &mut Wanted<'_>) {
    for table in &headers.symbol_tables {
        let mut candidates = wanted.candidates();
        let read = for_each_symbol(bytes, headers, table, &mut |symbol| candidates.push(symbol));
        wanted.add(candidates, bytes.window(table.names));
        wanted.is_cut |= read.is_err();
    }
}

#[cfg(test)]
mod test {
    use super::*;

    /// A file that was cut short after its size was requested.
    struct Short(Vec<u8>, usize);

    impl ReadAt for Short {
        fn read_at(&self, at: u64, buffer: &mut [u8]) -> Option<()> {
            (&self.0[..self.1]).read_at(at, buffer)
        }

        fn n_bytes(&self) -> u64 {
            self.0.len() as u64
        }
    }

    #[test]
    fn a_file_that_is_cut_short_lacks_names_and_says_so() {
        let whole = std::fs::read("/proc/self/exe").unwrap();
        let n = whole.len();
        let read = |cut| {
            let file = Short(whole.clone(), cut);
            FileNames::read(&file, None, None, &[0x1000], &mut u64::MAX.clone())
        };
        assert_eq!(read(n).unwrap().why_missing(), None);
        for cut in [n - 1, n / 2, n / 4, 5000] {
            assert!(read(cut).unwrap().why_missing().is_some(), "{cut} of {n}");
        }
        assert!(read(10).is_err());
    }

    #[test]
    fn what_is_read_is_taken_from_the_budget() {
        let file = std::fs::read("/proc/self/exe").unwrap();
        let mut budget = 1 << 30;
        FileNames::read(&file.as_slice(), None, None, &[0x1000], &mut budget).unwrap();
        let taken = (1 << 30) - budget;
        assert!(0 < taken && taken < 2 * file.len() as u64, "{taken}");
        let mut budget = 100;
        assert!(FileNames::read(&file.as_slice(), None, None, &[0x1000], &mut budget).is_err());
        assert!(budget < 100);
    }
}
