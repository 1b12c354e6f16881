//! Fields of structs in a kernel's memory.

use model::GuestVirt;

use crate::memory::KernelMemory;

impl dyn KernelMemory + '_ {
    /// A field of eight bytes, often a pointer.
    pub(crate) fn u64_at(&self, base: u64, offset: u64) -> Option<u64> {
        self.read_u64(field(base, offset)?)
    }

    /// A field of any size.
    pub(crate) fn bytes_at(&self, base: u64, offset: u64, buffer: &mut [u8]) -> Option<()> {
        self.read(field(base, offset)?, buffer)
    }
}

/// Only in the upper half: what points to user memory or to nothing is no struct of the kernel's, at least not any more.
fn field(base: u64, offset: u64) -> Option<GuestVirt> {
    is_kernel(base).then(|| base.checked_add(offset).map(GuestVirt))?
}

/// Whether an address is one of the kernel's.
pub(crate) fn is_kernel(address: u64) -> bool {
    address >> 47 == 0x1_ffff || address >> 56 == 0xff
}

/// Several fields of one struct, from a single read: they belong together more likely, and a read of a guest's memory
/// costs a system call.
#[derive(Debug)]
pub(crate) struct Fields {
    /// Offset of the first byte.
    start: u64,
    bytes: Vec<u8>,
}

impl Fields {
    /// Reads what holds the fields at `offsets`, each with its size. Offsets come from `Types::require`, which bounds them.
    pub(crate) fn read(
        memory: &dyn KernelMemory,
        base: u64,
        offsets: &[(u64, u64)],
    ) -> Option<Self> {
        let start = offsets.iter().map(|(offset, _)| *offset).min()?;
        let end = offsets.iter().map(|(offset, size)| offset + size).max()?;
        let mut bytes = vec![0; usize::try_from(end - start).ok()?];
        memory.bytes_at(base, start, &mut bytes)?;
        Some(Self { start, bytes })
    }

    pub(crate) fn array<const N: usize>(&self, offset: u64) -> Option<[u8; N]> {
        let at = usize::try_from(offset.checked_sub(self.start)?).ok()?;
        self.bytes.get(at..)?.first_chunk().copied()
    }

    pub(crate) fn u64(&self, offset: u64) -> Option<u64> {
        self.array(offset).map(u64::from_le_bytes)
    }

    pub(crate) fn u32(&self, offset: u64) -> Option<u32> {
        self.array(offset).map(u32::from_le_bytes)
    }
}

#[cfg(test)]
pub(crate) mod test {
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeMap;

    use super::*;

    /// A kernel's memory, drawn by tests. Pages are there once written.
    #[derive(Debug, Default)]
    pub(crate) struct Drawn {
        pages: RefCell<BTreeMap<u64, Vec<u8>>>,
        pub(crate) n_reads: Cell<usize>,
    }

    impl Drawn {
        pub(crate) fn write(&self, address: u64, word: u64) {
            self.write_bytes(address, &word.to_le_bytes());
        }

        pub(crate) fn write_bytes(&self, address: u64, bytes: &[u8]) {
            for (address, byte) in (address..).zip(bytes) {
                let mut pages = self.pages.borrow_mut();
                let page = pages.entry(address >> 12).or_insert_with(|| vec![0; 1 << 12]);
                page[usize::try_from(address & 0xfff).unwrap()] = *byte;
            }
        }
    }

    impl KernelMemory for Drawn {
        fn read(&self, address: GuestVirt, buffer: &mut [u8]) -> Option<()> {
            self.n_reads.set(self.n_reads.get() + 1);
            let pages = self.pages.borrow();
            for (address, byte) in (address.0..).zip(buffer) {
                *byte = pages.get(&(address >> 12))?[usize::try_from(address & 0xfff).unwrap()];
            }
            Some(())
        }
    }

    #[test]
    fn only_the_kernels_half_is_read() {
        let memory = Drawn::default();
        for (base, offset, is_there) in [
            (0xffff_8880_0000_1000, 8, true),
            (0xff11_0000_0000_1000, 8, true),
            (0x7fff_0000_1000, 8, false),
            (0xffff_ffff_ffff_f000, 0x2000, false),
        ] {
            memory.write_bytes(u64::wrapping_add(base, offset), &[1]);
            assert_eq!((&memory as &dyn KernelMemory).u64_at(base, offset).is_some(), is_there);
        }
    }
}
