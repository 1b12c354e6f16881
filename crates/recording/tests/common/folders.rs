//! What writers leave in folders.

use std::fs;
use std::path::{Path, PathBuf};

/// The tables of a recording. The last two are long and are written after the others.
pub(crate) const TABLES: [&str; 16] = [
    "vms.parquet",
    "vcpus.parquet",
    "images.parquet",
    "threads.parquet",
    "modules.parquet",
    "mappings.parquet",
    "symbols.parquet",
    "stacks.parquet",
    "throttling.parquet",
    "exits.parquet",
    "cpu_nodes.parquet",
    "memory.parquet",
    "quota_members.parquet",
    "throttled_queues.parquet",
    "samples.parquet",
    "switches.parquet",
];

/// Where a spool's blocks end, from 0: each says how long its payload is.
fn block_ends(spool: &[u8]) -> Vec<usize> {
    let mut ends = vec![0];
    while let Some(header) = spool.get(ends[ends.len() - 1]..).filter(|rest| 32 < rest.len()) {
        let payload = u32::from_le_bytes(header[12..16].try_into().unwrap()) as usize;
        ends.push(ends[ends.len() - 1] + 32 + payload + 4);
    }
    ends
}

/// The last block of a spool of three cut off at every byte, and overwritten with zeros from every byte, as a machine
/// that lost its power leaves it. `notes_of` checks what so many whole blocks give, and has the notes.
pub(crate) fn tear_last_block(spool: &Path, notes_of: impl Fn(usize) -> Vec<String>) {
    let whole = fs::read(spool).unwrap();
    let ends = block_ends(&whole);
    let blocks_in = |length: usize| ends.iter().rposition(|end| *end <= length).unwrap();
    let last = ends[2];
    for length in [0, ends[1]].into_iter().chain(last - 1..=whole.len()) {
        fs::write(spool, &whole[..length]).unwrap();
        let notes = notes_of(blocks_in(length));
        let bytes = length - ends[blocks_in(length)];
        let lost = format!("{bytes} bytes at their ends lost");
        assert_eq!(notes.iter().any(|note| note.contains(&lost)), bytes != 0, "{notes:?}");
    }
    for length in last..=whole.len() {
        let mut torn = whole[..length].to_vec();
        torn.resize(whole.len(), 0);
        fs::write(spool, &torn).unwrap();
        notes_of(blocks_in(length));
    }
}

/// What a writer that is killed while it finishes leaves: `NAME.partial` with these spools and some files of the
/// finished folder.
pub(crate) fn half_finished(
    name: &str,
    spools: &[PathBuf],
    finished: &Path,
    files: &[&str],
) -> PathBuf {
    let state = finished.with_file_name(format!("{name}.partial"));
    spools.iter().for_each(|file| drop(copy_into(file, &state)));
    files.iter().for_each(|file| drop(copy_into(&finished.join(file), &state)));
    state
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
