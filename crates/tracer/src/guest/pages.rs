//! Physical pages behind this process's memory, from `/proc/self/pagemap`.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

/// Bytes of a page, and of its entry in `pagemap`.
const PAGE: usize = 4096;
const ENTRY: usize = 8;

/// Bits of an entry (Documentation/admin-guide/mm/pagemap.rst).
const PRESENT: u64 = 1 << 63;
const FRAME: u64 = (1 << 55) - 1;

/// Why the pages are not known.
#[derive(Debug, thiserror::Error)]
pub enum PagesError {
    /// The file can't be read.
    #[error("failed to read /proc/self/pagemap: {0}")]
    Read(#[from] io::Error),
    /// The kernel hides page numbers from this process.
    #[error("the kernel hides page numbers (no CAP_SYS_ADMIN)")]
    Hidden,
    /// A page of a map is not there.
    #[error("page {0} of the rings is not in memory")]
    Absent(usize),
}

/// The numbers of the physical pages of `bytes` of memory from `address` on (whole pages). `proc` is `/proc`.
///
/// # Errors
/// When one of them is not known.
pub fn pages_of(proc: &Path, address: usize, bytes: usize) -> Result<Vec<u64>, PagesError> {
    let mut file = File::open(proc.join("self/pagemap"))?;
    file.seek(SeekFrom::Start((address / PAGE * ENTRY) as u64))?;
    let mut entries = vec![0; bytes.div_ceil(PAGE) * ENTRY];
    file.read_exact(&mut entries)?;
    parse(&entries)
}

fn parse(entries: &[u8]) -> Result<Vec<u64>, PagesError> {
    let mut pages = Vec::with_capacity(entries.len() / ENTRY);
    for (page, bytes) in entries.as_chunks::<ENTRY>().0.iter().enumerate() {
        let entry = u64::from_ne_bytes(*bytes);
        if entry & PRESENT == 0 {
            return Err(PagesError::Absent(page));
        }
        match entry & FRAME {
            0 => return Err(PagesError::Hidden),
            frame => pages.push(frame),
        }
    }
    Ok(pages)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn entries_are_read_as_the_kernel_documents_them() {
        let check = |entries: &[u64], expected: Result<&[u64], &str>| {
            let bytes: Vec<u8> = entries.iter().flat_map(|entry| entry.to_ne_bytes()).collect();
            match (parse(&bytes), expected) {
                (Ok(pages), Ok(expected)) => assert_eq!(pages, expected),
                (Err(error), Err(text)) => assert!(error.to_string().contains(text), "{error}"),
                (got, expected) => panic!("{got:?} instead of {expected:?}"),
            }
        };
        let soft_dirty = 1 << 55;
        check(&[PRESENT | 0x1234, PRESENT | soft_dirty | 7], Ok(&[0x1234, 7]));
        check(&[PRESENT], Err("hides"));
        check(&[PRESENT | 1, 5], Err("page 1"));
        check(&[], Ok(&[]));
    }

    #[test]
    fn own_memory_has_pages() {
        let memory = vec![1u8; 3 * PAGE];
        let address = memory.as_ptr().addr() / PAGE * PAGE;
        match pages_of(Path::new("/proc"), address, 2 * PAGE) {
            Ok(pages) => assert_eq!(pages.len(), 2),
            Err(error) => skip::skip(error),
        }
        assert!(pages_of(Path::new("/nowhere"), address, PAGE).is_err());
    }
}
