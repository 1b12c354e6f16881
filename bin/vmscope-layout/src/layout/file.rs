//! Files that describe nodes and VMs.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::Context;
use layout::{FileError, MAX_FILE_BYTES};

use cli::Usage;

/// A text file that is no larger than any of ours.
pub(super) fn read(path: &Path) -> anyhow::Result<String> {
    let failed = || format!("failed to read {}", path.display());
    let mut text = String::new();
    let file = File::open(path).with_context(failed)?;
    file.take(MAX_FILE_BYTES as u64 + 1).read_to_string(&mut text).with_context(failed)?;
    Ok(text)
}

/// What is wrong with a file.
pub(super) fn wrong(path: &Path, error: &FileError) -> Usage {
    Usage(format!("{}: {error}", path.display()))
}
