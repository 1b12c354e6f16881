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
