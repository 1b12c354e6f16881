//! Result files on disk.

use std::path::Path;

use anyhow::{Context, bail};
use microbench::{Results, json};

use cli::Usage;
use cli::write_file;

/// No result file is larger.
const MAX_BYTES: u64 = 64 << 20;

/// Writes a result file.
pub(super) fn write(path: &Path, results: &Results, source: &str) -> anyhow::Result<()> {
    let text = json::result_file(results, source)?;
    write_file(path, |out| out.write_all(text.as_bytes()))
        .with_context(|| format!("failed to write {}", path.display()))
}

/// Reads a result file.
pub(super) fn read(path: &Path) -> anyhow::Result<Results> {
    let shown = path.display().to_string();
    json::parse_result_file(&read_bytes(path)?)
        .with_context(|| format!("{shown} can't be compared"))
}

/// A file's bytes, if it has no more than any file of ours.
pub(super) fn read_bytes(path: &Path) -> anyhow::Result<Vec<u8>> {
    let failed = || format!("failed to read {}", path.display());
    let size = std::fs::metadata(path).with_context(failed)?.len();
    if MAX_BYTES < size {
        bail!("{} has {} MiB: too large for a log or a result", path.display(), size >> 20);
    }
    std::fs::read(path).with_context(failed)
}

/// A results' name in tables: the file's, without its ending.
pub(super) fn label(path: &Path) -> Result<String, Usage> {
    let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    stem.ok_or_else(|| Usage(format!("{} is not a file", path.display())))
}
