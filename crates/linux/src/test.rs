//! A machine's memory for tests: sparse pages, and page tables that map them.

use std::collections::BTreeMap;

use model::GuestPhys;

use crate::memory::{PhysicalMemory, PhysicalRange};
use crate::paging::PagingLevels;

const PAGE: usize = 4096;

/// Pages are there once written; those of its ranges that never were read as absent.
#[derive(Debug)]
pub(crate) struct Ram {
    pages: BTreeMap<u64, [u8; PAGE]>,
    ranges: Vec<PhysicalRange>,
    /// Page tables, the last one last.
    tables: Vec<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PageSize {
    Small,
    Mib2,
    Gib1,
}

impl PageSize {
    pub(crate) fn bytes(self) -> u64 {
        1 << self.shift()
    }

    fn shift(self) -> u32 {
        match self {
            Self::Small => 12,
            Self::Mib2 => 21,
            Self::Gib1 => 30,
        }
    }
}

impl Ram {
    /// Of ranges by start and bytes.
    pub(crate) fn new(ranges: &[(u64, u64)]) -> Self {
        let range = |&(start, bytes)| PhysicalRange { start: GuestPhys(start), bytes };
        let ranges = ranges.iter().map(range).collect();
        Self { pages: BTreeMap::new(), ranges, tables: Vec::new() }
    }

    pub(crate) fn write(&mut self, address: u64, bytes: &[u8]) {
        for (address, byte) in (address..).zip(bytes) {
            let page = self.pages.entry(address / PAGE as u64).or_insert([0; PAGE]);
            page[usize::try_from(address).unwrap() % PAGE] = *byte;
        }
    }

    /// Makes a page absent.
    pub(crate) fn remove_page(&mut self, address: u64) {
        self.pages.remove(&(address / PAGE as u64));
    }

    /// Maps a page by tables from `root` on. Tables are at `root` and the pages behind it.
    pub(crate) fn map(
        &mut self,
        root: u64,
        levels: PagingLevels,
        virt: u64,
        physical: u64,
        size: PageSize,
    ) {
        if !self.tables.contains(&root) {
            self.tables.push(root);
        }
        let top = if levels == PagingLevels::Five { 48 } else { 39 };
        let (mut table, mut shift) = (root, top);
        while shift > size.shift() {
            let slot = table + ((virt >> shift) & 0x1ff) * 8;
            let entry = self.entry(slot);
            table = if entry == 0 {
                let new = self.tables.iter().max().unwrap() + PAGE as u64;
                self.tables.push(new);
                self.write(slot, &(new | 1).to_le_bytes());
                new
            } else {
                entry & !0xfff
            };
            shift -= 9;
        }
        let large = if size == PageSize::Small { 0 } else { 1 << 7 };
        self.write(table + ((virt >> shift) & 0x1ff) * 8, &(physical | large | 1).to_le_bytes());
    }

    /// Maps `bytes` from `virt` on, by pages of 4 KiB.
    pub(crate) fn map_range(
        &mut self,
        root: u64,
        levels: PagingLevels,
        virt: u64,
        physical: u64,
        bytes: u64,
    ) {
        for offset in (0..bytes).step_by(PAGE) {
            self.map(root, levels, virt + offset, physical + offset, PageSize::Small);
        }
    }

    pub(crate) fn tables(&self) -> Vec<u64> {
        self.tables.clone()
    }

    /// A table's entries that are not 0, by their addresses.
    pub(crate) fn entries(&self, table: u64) -> Vec<(u64, u64)> {
        let slots = (0..512).map(|index| table + index * 8);
        slots.map(|slot| (slot, self.entry(slot))).filter(|(_, entry)| *entry != 0).collect()
    }

    fn entry(&self, slot: u64) -> u64 {
        let mut bytes = [0; 8];
        match self.read(GuestPhys(slot), &mut bytes) {
            Some(()) => u64::from_le_bytes(bytes),
            None => 0,
        }
    }
}

impl PhysicalMemory for Ram {
    fn read(&self, address: GuestPhys, buffer: &mut [u8]) -> Option<()> {
        let end = address.0.checked_add(buffer.len() as u64)?;
        let in_range = |range: &&PhysicalRange| range.start.0 <= address.0 && end <= range.end().0;
        self.ranges.iter().find(in_range)?;
        for (address, byte) in (address.0..).zip(buffer) {
            let page = self.pages.get(&(address / PAGE as u64))?;
            *byte = page[usize::try_from(address).ok()? % PAGE];
        }
        Some(())
    }

    fn ranges(&self) -> &[PhysicalRange] {
        &self.ranges
    }

    fn next_present(&self, from: GuestPhys) -> Option<GuestPhys> {
        let from = from.0.div_ceil(PAGE as u64);
        self.pages.range(from..).next().map(|(page, _)| GuestPhys(page * PAGE as u64))
    }
}
