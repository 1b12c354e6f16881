//! What is read: memory by guest-physical addresses, or by a kernel's own virtual ones.

use model::{GuestPhys, GuestVirt};

/// Bytes of the smallest page.
pub const PAGE_BYTES: u64 = 4096;

/// A machine's memory by guest-physical addresses.
pub trait PhysicalMemory {
    /// Fills `buffer` from `address` on; `None` if any of it is no RAM, or is not there now.
    fn read(&self, address: GuestPhys, buffer: &mut [u8]) -> Option<()>;

    /// The ranges of RAM, in order. They may be wholly or partly absent.
    fn ranges(&self) -> &[PhysicalRange];

    /// The first page at or after `from` that may be there. A search skips what is absent by it.
    fn next_present(&self, from: GuestPhys) -> Option<GuestPhys> {
        let from = from.0.checked_next_multiple_of(PAGE_BYTES)?;
        let range = self.ranges().iter().find(|range| from < range.end().0)?;
        Some(GuestPhys(from.max(range.start.0)))
    }
}

/// A range of RAM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PhysicalRange {
    pub start: GuestPhys,
    pub bytes: u64,
}

impl PhysicalRange {
    /// First address after it.
    #[must_use]
    pub fn end(&self) -> GuestPhys {
        GuestPhys(self.start.0.saturating_add(self.bytes))
    }
}

/// The memory of a kernel, by the kernel's own virtual addresses.
pub trait KernelMemory {
    /// Fills `buffer` from `address` on; `None` if any of it can't be read.
    fn read(&self, address: GuestVirt, buffer: &mut [u8]) -> Option<()>;

    /// The two bytes at `address`.
    fn read_u16(&self, address: GuestVirt) -> Option<u16> {
        let mut bytes = [0; 2];
        self.read(address, &mut bytes)?;
        Some(u16::from_le_bytes(bytes))
    }

    /// The four bytes at `address`.
    fn read_u32(&self, address: GuestVirt) -> Option<u32> {
        let mut bytes = [0; 4];
        self.read(address, &mut bytes)?;
        Some(u32::from_le_bytes(bytes))
    }

    /// The eight bytes at `address`: a counter, or a pointer.
    fn read_u64(&self, address: GuestVirt) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes)?;
        Some(u64::from_le_bytes(bytes))
    }
}

/// Reads byte by byte what lies together, and the memory in blocks.
pub(crate) struct BlockReader<'m> {
    memory: &'m dyn KernelMemory,
    start: u64,
    block: Vec<u8>,
}

impl<'m> BlockReader<'m> {
    /// A block is aligned to its size. Where it can't be read as a whole, a page of it is.
    const BLOCK_BYTES: u64 = 1 << 16;

    pub(crate) fn new(memory: &'m dyn KernelMemory) -> Self {
        Self { memory, start: 0, block: Vec::new() }
    }

    pub(crate) fn byte(&mut self, address: GuestVirt) -> Option<u8> {
        if let Some(byte) = self.byte_in_block(address) {
            return Some(byte);
        }
        [Self::BLOCK_BYTES, PAGE_BYTES].into_iter().find_map(|bytes| self.load(address, bytes))?;
        self.byte_in_block(address)
    }

    fn byte_in_block(&self, address: GuestVirt) -> Option<u8> {
        let offset = usize::try_from(address.0.checked_sub(self.start)?).ok()?;
        self.block.get(offset).copied()
    }

    fn load(&mut self, address: GuestVirt, bytes: u64) -> Option<()> {
        self.start = address.0 & !(bytes - 1);
        self.block.resize(usize::try_from(bytes).ok()?, 0);
        let read = self.memory.read(GuestVirt(self.start), &mut self.block);
        if read.is_none() {
            self.block.clear();
        }
        read
    }
}

#[cfg(test)]
mod test {
    use super::*;

    struct Ranges([PhysicalRange; 2]);

    impl PhysicalMemory for Ranges {
        fn read(&self, _: GuestPhys, _: &mut [u8]) -> Option<()> {
            None
        }

        fn ranges(&self) -> &[PhysicalRange] {
            &self.0
        }
    }

    #[test]
    fn the_next_page_is_in_a_range() {
        let range = |start, bytes| PhysicalRange { start: GuestPhys(start), bytes };
        let ranges = Ranges([range(0x1000, 0x2000), range(0x8000, 0x1000)]);
        for (from, expected) in [
            (0, Some(0x1000)),
            (0x1001, Some(0x2000)),
            (0x2001, Some(0x8000)),
            (0x8000, Some(0x8000)),
            (0x8001, None),
            (u64::MAX, None),
        ] {
            assert_eq!(ranges.next_present(GuestPhys(from)), expected.map(GuestPhys), "{from:#x}");
        }
    }
}
