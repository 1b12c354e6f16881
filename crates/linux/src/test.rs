//! A machine's memory for tests: sparse pages, page tables that map them, and the tables of kallsyms.

use std::collections::BTreeMap;

use model::{GuestPhys, GuestVirt};

use crate::memory::{KernelMemory, PhysicalMemory, PhysicalRange};
use crate::paging::PagingLevels;
use crate::vmcoreinfo::KallsymsSymbols;

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
        let (mut address, mut rest) = (address, bytes);
        while !rest.is_empty() {
            let (page, offset) = split(address);
            let (now, later) = rest.split_at(rest.len().min(PAGE - offset));
            let page = self.pages.entry(page).or_insert([0; PAGE]);
            page[offset..offset + now.len()].copy_from_slice(now);
            rest = later;
            address += now.len() as u64;
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

/// The number of an address's page, and the offset in it.
fn split(address: u64) -> (u64, usize) {
    (address / PAGE as u64, usize::try_from(address).unwrap() % PAGE)
}

impl PhysicalMemory for Ram {
    fn read(&self, address: GuestPhys, buffer: &mut [u8]) -> Option<()> {
        let end = address.0.checked_add(buffer.len() as u64)?;
        let in_range = |range: &&PhysicalRange| range.start.0 <= address.0 && end <= range.end().0;
        self.ranges.iter().find(in_range)?;
        let (mut address, mut rest) = (address.0, buffer);
        while !rest.is_empty() {
            let (page, offset) = split(address);
            let bytes = rest.len().min(PAGE - offset);
            let (now, later) = rest.split_at_mut(bytes);
            now.copy_from_slice(&self.pages.get(&page)?[offset..offset + bytes]);
            rest = later;
            address += bytes as u64;
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

/// The form of addresses in the tables of kallsyms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Absolute,
    Relative,
    PerCpuAbsolute,
    PcRelative,
}

/// The order of the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// Addresses come first.
    Before6_2,
    /// The same, with the names' order behind the markers.
    From6_2,
    /// Addresses come behind the tokens.
    From6_4,
    /// The same, and all is aligned to 4.
    From7_0,
}

/// The tables of kallsyms as a kernel's image has them.
#[derive(Debug, Clone)]
pub(crate) struct KallsymsImage {
    pub(crate) bytes: Vec<u8>,
    /// The address of the first byte.
    start: u64,
    pub(crate) tables: KallsymsSymbols,
}

impl KallsymsImage {
    /// It stands for very much text.
    pub(crate) const LONG_TOKEN: u8 = 0xff;

    /// Of symbols by address and kind + name. `start` is that of a page.
    pub(crate) fn new(form: Form, start: u64, base: u64, symbols: &[(u64, String)]) -> Self {
        Self::in_order(Order::From6_4, form, start, base, symbols)
    }

    pub(crate) fn in_order(
        order: Order,
        form: Form,
        start: u64,
        base: u64,
        symbols: &[(u64, String)],
    ) -> Self {
        let tables = KallsymsSymbols::default();
        let mut image = Self { bytes: vec![0x90; 64], start, tables };
        let align = if order == Order::From7_0 { 4 } else { 8 };
        let is_new = matches!(order, Order::From6_4 | Order::From7_0);
        if !is_new {
            image.add_addresses(form, align, base, symbols);
        }
        let count = u32::try_from(symbols.len()).unwrap();
        image.tables.num_syms = image.add(align, &count.to_le_bytes());
        let (names, markers) = compress(symbols);
        image.tables.names = image.add(align, &names);
        image.add(align, &markers);
        if order == Order::From6_2 {
            image.add_sequence(symbols.len());
        }
        let (tokens, index) = token_table();
        image.tables.token_table = image.add(align, &tokens);
        image.tables.token_index = image.add(align, &index);
        if is_new {
            image.add_addresses(form, align, base, symbols);
            image.add_sequence(symbols.len());
        }
        image.bytes.resize(image.bytes.len().next_multiple_of(PAGE) + PAGE, 0);
        image
    }

    pub(crate) fn put(&mut self, at: Option<GuestVirt>, bytes: &[u8]) {
        let offset = usize::try_from(at.unwrap().0 - self.start).unwrap();
        self.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn add(&mut self, align: usize, bytes: &[u8]) -> Option<GuestVirt> {
        self.bytes.resize(self.bytes.len().next_multiple_of(align), 0);
        let address = self.start + self.bytes.len() as u64;
        self.bytes.extend(bytes);
        Some(GuestVirt(address))
    }

    fn add_addresses(&mut self, form: Form, align: usize, base: u64, symbols: &[(u64, String)]) {
        let addresses = symbols.iter().map(|(address, _)| *address);
        if form == Form::Absolute {
            let bytes: Vec<u8> = addresses.flat_map(u64::to_le_bytes).collect();
            self.tables.addresses = self.add(align, &bytes);
            return;
        }
        let table = self.add(align, &[]).unwrap().0;
        let own = |index: usize| table + index as u64 * 4;
        let value = |(index, address): (usize, u64)| match form {
            Form::PcRelative => address.wrapping_sub(own(index)),
            Form::PerCpuAbsolute if address < base => address,
            Form::PerCpuAbsolute => (base - 1).wrapping_sub(address),
            _ => address - base,
        };
        let low = |value: u64| value.to_le_bytes()[..4].to_vec();
        let bytes: Vec<u8> = addresses.enumerate().map(value).flat_map(low).collect();
        self.tables.offsets = self.add(align, &bytes);
        if form != Form::PcRelative {
            self.tables.relative_base = self.add(align, &base.to_le_bytes());
        }
    }

    /// Numbers of three bytes, the highest first.
    fn add_sequence(&mut self, count: usize) {
        let bytes = (0..count).rev().flat_map(|number| number.to_be_bytes()[5..].to_vec());
        let bytes: Vec<u8> = bytes.collect();
        self.add(4, &bytes);
    }
}

impl KernelMemory for KallsymsImage {
    fn read(&self, address: GuestVirt, buffer: &mut [u8]) -> Option<()> {
        let offset = usize::try_from(address.0.checked_sub(self.start)?).ok()?;
        buffer.copy_from_slice(self.bytes.get(offset..offset.checked_add(buffer.len())?)?);
        Some(())
    }
}

const WORD: &str = "symbol_";
const WORD_TOKEN: u8 = 0x80;

/// Compressed names, and the markers of every 256th.
fn compress(symbols: &[(u64, String)]) -> (Vec<u8>, Vec<u8>) {
    let (mut names, mut markers) = (Vec::new(), Vec::new());
    for (index, (_, name)) in symbols.iter().enumerate() {
        if index % 256 == 0 {
            markers.extend(u32::try_from(names.len()).unwrap().to_le_bytes());
        }
        let parts: Vec<&[u8]> = name.split(WORD).map(str::as_bytes).collect();
        let name = parts.join(&WORD_TOKEN);
        let length = u16::try_from(name.len()).unwrap();
        if length < 0x80 {
            names.push(length.to_le_bytes()[0]);
        } else {
            names.extend([(length & 0x7f | 0x80).to_le_bytes()[0], (length >> 7).to_le_bytes()[0]]);
        }
        names.extend(name);
    }
    (names, markers)
}

fn token_table() -> (Vec<u8>, Vec<u8>) {
    let (mut table, mut index) = (Vec::new(), Vec::new());
    for byte in 0..=u8::MAX {
        index.extend(u16::try_from(table.len()).unwrap().to_le_bytes());
        match byte {
            WORD_TOKEN => table.extend(WORD.as_bytes()),
            KallsymsImage::LONG_TOKEN => table.extend([b'x'; 300]),
            _ if byte.is_ascii_graphic() => table.push(byte),
            _ => {}
        }
        table.push(0);
    }
    (table, index)
}
