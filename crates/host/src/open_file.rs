//! An open file, for readers that take any bytes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use linux::elf::ReadAt;

/// A file of the size that it had when it was looked at.
#[derive(Debug, Clone, Copy)]
pub struct OpenFile<'f> {
    file: &'f File,
    n_bytes: u64,
}

impl<'f> OpenFile<'f> {
    /// Looks at the file's size.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new(file: &'f File) -> io::Result<Self> {
        // Not by `metadata`: a child without privileges must not ask by path, which that call could.
        let n_bytes = u64::try_from(rustix::fs::fstat(file)?.st_size).unwrap_or_default();
        Ok(Self { file, n_bytes })
    }
}

impl ReadAt for OpenFile<'_> {
    fn read_at(&self, at: u64, buffer: &mut [u8]) -> Option<()> {
        self.file.read_exact_at(buffer, at).ok()
    }

    fn n_bytes(&self) -> u64 {
        self.n_bytes
    }
}
