//! Virtual addresses to physical ones, by the page tables of x86-64 (Intel SDM vol. 3, 4.5).
//!
//! Tables may be a hostile guest's. A walk has one step a level, so it ends in cyclic tables too. Nothing is kept
//! between two reads: vmalloc's pages (modules, stacks) are mapped anew all the time.

use model::{GuestPhys, GuestVirt};

use crate::memory::{KernelMemory, PhysicalMemory};

const PRESENT: u64 = 1;
/// In an entry of level 2 or 3: it maps a page of 2 MiB or 1 GiB.
const LARGE: u64 = 1 << 7;
/// The physical address in an entry and in CR3.
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// Levels of page tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PagingLevels {
    Four,
    Five,
}

impl PagingLevels {
    fn count(self) -> u32 {
        match self {
            Self::Four => 4,
            Self::Five => 5,
        }
    }
}

/// What one set of page tables maps: a kernel's own, or a process's together with the kernel's.
#[derive(Clone, Copy)]
pub struct AddressSpace<'m> {
    memory: &'m dyn PhysicalMemory,
    /// The uppermost table.
    pub root: GuestPhys,
    pub levels: PagingLevels,
    /// The bit that marks memory which the CPU encrypts; 0 without encryption. It is no part of an address.
    pub sme_mask: u64,
}

impl std::fmt::Debug for AddressSpace<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AddressSpace")
            .field("root", &self.root)
            .field("levels", &self.levels)
            .field("sme_mask", &self.sme_mask)
            .finish_non_exhaustive()
    }
}

impl<'m> AddressSpace<'m> {
    /// From a root as CR3 or a page table's entry has it: PCID, flags and the encryption bit are left out.
    #[must_use]
    pub fn new(
        memory: &'m dyn PhysicalMemory,
        root: GuestPhys,
        levels: PagingLevels,
        sme_mask: u64,
    ) -> Self {
        let root = GuestPhys(root.0 & ADDRESS & !sme_mask);
        Self { memory, root, levels, sme_mask }
    }

    /// The memory that it maps.
    #[must_use]
    pub fn memory(&self) -> &'m dyn PhysicalMemory {
        self.memory
    }

    /// The same memory by other tables of the same kernel, such as a process's.
    #[must_use]
    pub fn with_root(&self, root: GuestPhys) -> Self {
        Self::new(self.memory, root, self.levels, self.sme_mask)
    }

    /// Where a virtual address is in physical memory; `None` if it isn't mapped.
    #[must_use]
    pub fn translate(&self, address: GuestVirt) -> Option<GuestPhys> {
        self.walk(address).map(|(physical, _)| physical)
    }

    /// The physical address, and how many bytes from it on lie in the same page.
    fn walk(&self, address: GuestVirt) -> Option<(GuestPhys, u64)> {
        if !self.is_canonical(address) {
            return None;
        }
        let mut table = self.root.0;
        for level in (1..=self.levels.count()).rev() {
            let shift = 12 + 9 * (level - 1);
            let index = (address.0 >> shift) & 0x1ff;
            let entry = self.read_entry(GuestPhys(table + index * 8))?;
            let is_large = entry & LARGE != 0 && level != 1;
            // Bit 7 is reserved in the two uppermost levels.
            if entry & PRESENT == 0 || (is_large && level > 3) {
                return None;
            }
            let target = entry & ADDRESS & !self.sme_mask;
            if level == 1 || is_large {
                let page = 1 << shift;
                let offset = address.0 & (page - 1);
                return Some((GuestPhys((target & !(page - 1)) | offset), page - offset));
            }
            table = target;
        }
        None
    }

    /// The bits above the highest that is translated are copies of it.
    fn is_canonical(&self, address: GuestVirt) -> bool {
        let unused = 64 - (12 + 9 * self.levels.count());
        #[expect(clippy::cast_possible_wrap, reason = "the sign bit is what is copied")]
        let signed = address.0 as i64;
        signed << unused >> unused == signed
    }

    fn read_entry(&self, address: GuestPhys) -> Option<u64> {
        let mut bytes = [0; 8];
        self.memory.read(address, &mut bytes)?;
        Some(u64::from_le_bytes(bytes))
    }
}

impl KernelMemory for AddressSpace<'_> {
    fn read(&self, address: GuestVirt, buffer: &mut [u8]) -> Option<()> {
        let (mut address, mut rest) = (address.0, buffer);
        while !rest.is_empty() {
            let (physical, in_page) = self.walk(GuestVirt(address))?;
            let bytes = usize::try_from(in_page).unwrap_or(usize::MAX).min(rest.len());
            let (now, later) = rest.split_at_mut(bytes);
            self.memory.read(physical, now)?;
            rest = later;
            if !rest.is_empty() {
                address = address.checked_add(in_page)?;
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::test::{PageSize, Ram};

    const IMAGE: u64 = 0xffff_ffff_8100_0000;
    const ROOT: u64 = 0x10_0000;

    fn space(ram: &Ram, levels: PagingLevels) -> AddressSpace<'_> {
        AddressSpace::new(ram, GuestPhys(ROOT), levels, 0)
    }

    #[test]
    fn pages_of_each_size_are_found_on_both_levels() {
        for (levels, far) in [
            (PagingLevels::Four, 0xffff_8880_0000_0000),
            (PagingLevels::Five, 0xff11_0000_0000_0000),
        ] {
            for (size, physical, offset) in [
                (PageSize::Small, 0x7000, 0xabc),
                (PageSize::Mib2, 0x60_0000, 0x12_3456),
                (PageSize::Gib1, 0x4000_0000, 0x1234_5678),
            ] {
                for base in [far, IMAGE & !0x3fff_ffff, 0x4000_0000] {
                    let mut ram = Ram::new(&[(0, 0x8000_0000)]);
                    ram.map(ROOT, levels, base, physical, size);
                    let space = space(&ram, levels);
                    let found = |offset| space.translate(GuestVirt(base + offset));
                    assert_eq!(found(offset), Some(GuestPhys(physical + offset)), "{base:#x}");
                    assert_eq!(
                        found(size.bytes() - 1),
                        Some(GuestPhys(physical + size.bytes() - 1))
                    );
                    assert_eq!(found(size.bytes()), None);
                }
            }
        }
    }

    #[test]
    fn addresses_that_are_not_canonical_are_not_mapped() {
        let mut ram = Ram::new(&[(0, 0x8000_0000)]);
        ram.map(ROOT, PagingLevels::Four, 0x1000, 0x7000, PageSize::Small);
        let space = space(&ram, PagingLevels::Four);
        assert!(space.translate(GuestVirt(0x1000)).is_some());
        assert_eq!(space.translate(GuestVirt(0x0001_0000_0000_1000)), None);
        assert_eq!(space.translate(GuestVirt(0xffff_0000_0000_1000)), None);
    }

    #[test]
    fn reads_cross_pages_that_lie_apart() {
        let mut ram = Ram::new(&[(0, 0x8000_0000)]);
        ram.map(ROOT, PagingLevels::Four, IMAGE, 0x9000, PageSize::Small);
        ram.map(ROOT, PagingLevels::Four, IMAGE + 0x1000, 0x7000, PageSize::Small);
        ram.write(0x9ffc, b"left");
        ram.write(0x7000, b"right");
        let space = space(&ram, PagingLevels::Four);
        let mut buffer = [0; 9];
        assert_eq!(space.read(GuestVirt(IMAGE + 0xffc), &mut buffer), Some(()));
        assert_eq!(&buffer, b"leftright");
        // The third page is not mapped.
        assert_eq!(space.read(GuestVirt(IMAGE + 0x1ffc), &mut buffer), None);
        assert_eq!(space.read(GuestVirt(IMAGE + 0x5000), &mut []), Some(()));
    }

    #[test]
    fn the_last_page_of_all_is_read_to_its_end() {
        let mut ram = Ram::new(&[(0, 0x8000_0000)]);
        ram.map(ROOT, PagingLevels::Four, u64::MAX - 0xfff, 0x7000, PageSize::Small);
        ram.write(0x7000, &[0; 0x1000]);
        let space = space(&ram, PagingLevels::Four);
        let end = |bytes: u64| GuestVirt(u64::MAX - (bytes - 1));
        assert_eq!(space.read(end(8), &mut [0; 8]), Some(()));
        assert_eq!(space.read(end(8), &mut [0; 9]), None);
    }

    #[test]
    fn flags_and_the_encryption_bit_are_no_part_of_an_address() {
        let c_bit = 1 << 47;
        let mut ram = Ram::new(&[(0, 0x8000_0000)]);
        ram.map(ROOT, PagingLevels::Four, IMAGE, 0x20_0000, PageSize::Mib2);
        for table in ram.tables() {
            for entry in ram.entries(table) {
                let flags = 1 << 63 | c_bit | 0x062;
                // Bit 12 of an entry for 2 MiB is a flag too (PAT).
                let pat = if entry.1 & LARGE != 0 { 1 << 12 } else { 0 };
                ram.write(entry.0, &(entry.1 | flags | pat).to_le_bytes());
            }
        }
        let space =
            AddressSpace::new(&ram, GuestPhys(ROOT | c_bit | 0xfff), PagingLevels::Four, c_bit);
        assert_eq!(space.translate(GuestVirt(IMAGE + 0x4567)), Some(GuestPhys(0x20_4567)));
        let as_it_is = AddressSpace::new(&ram, GuestPhys(ROOT), PagingLevels::Four, 0);
        assert_eq!(as_it_is.translate(GuestVirt(IMAGE)), None);
    }

    #[test]
    fn hostile_tables_end_the_walk() {
        // The root is a table of every level, and its own page.
        let mut ram = Ram::new(&[(0, 0x20_0000)]);
        ram.write(ROOT, &(ROOT | PRESENT).to_le_bytes().repeat(512));
        let cyclic = space(&ram, PagingLevels::Five);
        assert_eq!(cyclic.translate(GuestVirt(0x1234)), Some(GuestPhys(ROOT + 0x234)));

        for entry in [
            PRESENT | LARGE,                 // a page of 512 GiB
            PRESENT | 0x000f_ffff_ffff_f000, // a table that is no RAM
            0x000f_ffff_ffff_f000,           // not present
        ] {
            let mut ram = Ram::new(&[(0, 0x20_0000)]);
            ram.write(ROOT, &u64::to_le_bytes(entry).repeat(512));
            assert_eq!(space(&ram, PagingLevels::Four).translate(GuestVirt(0)), None, "{entry:#x}");
        }
        // A mapped page that is no RAM has an address and no content.
        let mut ram = Ram::new(&[(0, 0x20_0000)]);
        ram.map(ROOT, PagingLevels::Four, IMAGE, 0x7fff_f000, PageSize::Small);
        let space = space(&ram, PagingLevels::Four);
        assert_eq!(space.translate(GuestVirt(IMAGE)), Some(GuestPhys(0x7fff_f000)));
        assert_eq!(space.read(GuestVirt(IMAGE), &mut [0; 1]), None);
    }

    #[test]
    fn a_root_without_ram_maps_nothing() {
        let ram = Ram::new(&[]);
        for root in [0, ROOT, u64::MAX] {
            let space = AddressSpace::new(&ram, GuestPhys(root), PagingLevels::Five, u64::MAX);
            assert_eq!(space.translate(GuestVirt(IMAGE)), None);
        }
    }
}
