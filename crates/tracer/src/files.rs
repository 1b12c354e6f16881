//! Files that events name: `struct trace_file` of `bpf/abi/trace.h`.

use std::sync::atomic::Ordering;

use bpf::Mapped;

/// Bytes of `struct trace_file`, and where its fields lie.
pub(crate) const FILE_BYTES: usize = 560;
const HASH: usize = 0;
const INODE: usize = 8;
const DEVICE: usize = 16;
const GENERATION: usize = 20;
const MODE: usize = 24;
const LINKS: usize = 28;
const IS_WHOLE: usize = 36;
const LENGTH: usize = 40;
const PATH: usize = 48;
/// Bytes of names at most.
const PATH_BYTES: usize = 512;

const _: () = assert!(PATH + PATH_BYTES == FILE_BYTES, "as in the header");

/// A file that events name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredFile {
    /// The number by which events name it.
    pub number: u32,
    /// The file system's device (the kernel's `dev_t`: major << 20 | minor).
    pub device: u32,
    pub inode: u64,
    /// Tells it from others that had its inode number.
    pub generation: u32,
    /// Type and permissions.
    pub mode: u32,
    /// Names that it had when it was first seen. 0: it was deleted.
    pub links: u32,
    /// Its name, its folder's, and so on up to the root of its file system: any bytes.
    pub names: Vec<Vec<u8>>,
    /// Whether the names go up to the root.
    pub is_whole: bool,
}

/// The files that a tracer's programs have stored.
#[derive(Debug)]
pub struct StoredFiles(pub(crate) Mapped);

impl StoredFiles {
    /// All of them. One that is just being stored may lack names: ask after the trace.
    pub fn all(&self) -> impl Iterator<Item = StoredFile> + '_ {
        let rows = (1..).zip((0..).step_by(FILE_BYTES)).take(self.0.bytes() / FILE_BYTES);
        rows.filter(|(_, at)| self.0.load(at + HASH) != 0).map(|(number, at)| self.row(number, at))
    }

    fn row(&self, number: u32, at: usize) -> StoredFile {
        let half = |offset| self.0.half_word(at + offset).load(Ordering::Relaxed);
        let length = (half(LENGTH) as usize).min(PATH_BYTES);
        let words = (0..length.div_ceil(8)).map(|word| self.0.load(at + PATH + 8 * word));
        let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).take(length).collect();
        StoredFile {
            number,
            device: half(DEVICE),
            inode: self.0.load(at + INODE),
            generation: half(GENERATION),
            mode: half(MODE),
            links: half(LINKS),
            names: names(&bytes),
            is_whole: half(IS_WHOLE) != 0,
        }
    }
}

/// Names, each with a final 0. An empty one is none: the kernel has no such name.
fn names(bytes: &[u8]) -> Vec<Vec<u8>> {
    let names = bytes.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names.map(<[u8]>::to_vec).collect()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn names_of_any_bytes() {
        let check = |bytes: &[u8], expected: &[&[u8]]| assert_eq!(names(bytes), expected);
        check(b"", &[]);
        check(b"passwd\0etc\0", &[b"passwd", b"etc"]);
        check(b"\x1b[2J\xff\n\0a\0", &[b"\x1b[2J\xff\n", b"a"]);
        check(b"\0\0", &[]);
    }
}
