//! What is fed, by whom it is said.

mod captures;
mod files;
mod fleet;
mod guests;
mod host;
mod inside;
mod kernel;
mod lab;
mod stacks;
mod vms;

use std::path::PathBuf;
use std::sync::OnceLock;

/// A parser, or several behind each other.
pub(crate) struct Target {
    pub(crate) name: &'static str,
    pub(crate) run: fn(&[u8]),
    /// Inputs of our own writers. Further ones are in `seeds/NAME`.
    pub(crate) seeds: fn() -> Vec<Vec<u8>>,
    /// What means something to it.
    pub(crate) words: &'static [&'static [u8]],
    /// Bytes of an input.
    pub(crate) longest: usize,
    /// Bytes that it may allocate.
    pub(crate) budget: usize,
}

const MIB: usize = 1 << 20;

impl Target {
    /// With inputs of a megabyte, for which it may take 64.
    fn new(name: &'static str, run: fn(&[u8]), seeds: fn() -> Vec<Vec<u8>>) -> Self {
        Self { name, run, seeds, words: &[], longest: MIB, budget: 64 * MIB }
    }
}

/// Every target.
pub(crate) fn all() -> Vec<Target> {
    let all = [
        captures::targets(),
        guests::targets(),
        files::targets(),
        fleet::targets(),
        host::targets(),
        inside::targets(),
        kernel::targets(),
        lab::targets(),
        stacks::targets(),
        vms::targets(),
    ];
    all.into_iter().flatten().collect()
}

/// The folder of this run's files, in memory.
fn folder() -> &'static PathBuf {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        FOLDER.get_or_init(|| folder.expect("a folder can be made")).path().to_owned()
    })
}

/// A file of this content.
fn written(name: &str, content: &[u8]) -> PathBuf {
    let path = folder().join(name);
    std::fs::write(&path, content).expect("the folder is ours");
    path
}

/// Takes numbers from an input, 0 at its end.
struct Numbers<'a>(&'a [u8]);

impl Numbers<'_> {
    fn u8(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or(0)
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.u8())
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        let length = length.min(self.0.len());
        self.0.split_off(..length).unwrap_or_default().to_vec()
    }
}
