//! Build ids and functions of ELF files, wherever their bytes are: in a file, or in a guest's page cache.

use api::guest::{FunctionSymbol, MAX_ANSWER_BYTES, MAX_SYMBOLS};
use linux::elf::{Bytes, Headers, ReadAt, for_each_function};

/// Headers and notes take less.
const MAX_BUILD_ID_BYTES: u64 = 32 << 20;
/// What is read of one file.
const MAX_READ_BYTES: u64 = 1 << 30;

/// Why a file has no functions.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FunctionsError {
    /// Another file is in its place.
    #[error("the file was replaced by another one")]
    Replaced,
    #[error("{0}")]
    NotElf(String),
    /// Nothing could be read but the headers.
    #[error("{0}")]
    Missing(&'static str),
}

/// The GNU build id of an ELF file, if it has one.
pub(crate) fn build_id(file: &dyn ReadAt) -> Option<Vec<u8>> {
    let headers = Headers::read(&Bytes::new(file, MAX_BUILD_ID_BYTES));
    Some(headers.ok()?.build_id?.bytes().to_vec())
}

/// Functions of an ELF file that has the build id `expected`, if one is given: those that are there.
///
/// # Errors
/// When it is another file, or has nothing.
pub(crate) fn functions(
    file: &dyn ReadAt,
    expected: &[u8],
) -> Result<Vec<FunctionSymbol>, FunctionsError> {
    let bytes = Bytes::new(file, MAX_READ_BYTES);
    let headers = Headers::read(&bytes).map_err(FunctionsError::NotElf)?;
    let build_id = headers.build_id.as_ref().map_or(&[][..], |id| id.bytes());
    if !expected.is_empty() && expected != build_id {
        return Err(FunctionsError::Replaced);
    }
    let mut functions = Vec::new();
    // Names may overlap in the file: all of them together may be many times as long.
    let mut bytes_left = MAX_ANSWER_BYTES;
    let read = for_each_function(&bytes, &headers, &mut |offset, size, name| {
        let Some(rest) = bytes_left.checked_sub(name.len()) else { return false };
        bytes_left = rest;
        functions.push(FunctionSymbol { offset, size, name: name.to_owned() });
        functions.len() < MAX_SYMBOLS
    });
    if let Err(missing) = read
        && functions.is_empty()
    {
        return Err(FunctionsError::Missing(missing));
    }
    functions.sort_by(|a, b| (a.offset, a.size, &a.name).cmp(&(b.offset, b.size, &b.name)));
    functions.dedup();
    Ok(functions)
}
