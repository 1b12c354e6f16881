//! What writers leave in folders.

use std::fs;
use std::path::{Path, PathBuf};

/// Where a spool's blocks end, from 0: each says how long its payload is.
pub(crate) fn block_ends(spool: &[u8]) -> Vec<usize> {
    let mut ends = vec![0];
    while let Some(header) = spool.get(ends[ends.len() - 1]..).filter(|rest| 32 < rest.len()) {
        let payload = u32::from_le_bytes(header[12..16].try_into().unwrap()) as usize;
        ends.push(ends[ends.len() - 1] + 32 + payload + 4);
    }
    ends
}

pub(crate) fn copy_into(file: &Path, dir: &Path) -> PathBuf {
    fs::create_dir_all(dir).unwrap();
    let copy = dir.join(file.file_name().unwrap());
    fs::copy(file, &copy).unwrap();
    copy
}

pub(crate) fn copy_files(from: &Path, to: &Path) -> Vec<PathBuf> {
    fs::read_dir(from).unwrap().map(|file| copy_into(&file.unwrap().path(), to)).collect()
}
