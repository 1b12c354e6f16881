//! Bytes of a file that are in the kernel's page cache.
//!
//! ```text
//!  address_space.i_pages -> xa_node: 64 slots by bits 6n.. of the page number -> ... -> folio
//!    slot: 0, or a value (&1): not in memory     internal below 64: the same as slot n (a folio of several pages)
//!  folio -(its place in vmemmap)-> page frame -> direct map
//! ```
//!
//! Pages come and go while they are read. A page's bytes count if its folio belongs to the file's same place before and
//! after they were read.

use std::cell::Cell;
use std::ops::Range;

use model::GuestVirt;

use crate::fields::Fields;
use crate::memory::{KernelMemory, PAGE_BYTES};
use crate::types::{MissingField, Types, layout};

/// Slots of a node (`XA_CHUNK_SIZE`), and the bits of a page number that choose one.
const SLOTS: usize = 64;
const SLOT_BITS: u32 = 6;
const PAGE_IN_NODE: u64 = (1 << SLOT_BITS) - 1;
/// The largest folios of page caches are 2 MiB.
const MAX_FOLIO_PAGES: u64 = 512;
/// Page numbers of x86-64 have 40 bits.
const MAX_FRAMES: u64 = 1 << 40;
/// Most pages of one question for what is in memory: 4 GiB.
const MAX_PAGES: u64 = 1 << 20;
/// Blocks of this size are those of hugetlbfs, whose page cache counts in them.
const HUGE_BLOCK_BITS: u8 = 21;

layout! {
    /// Byte offsets of fields.
    Layout {
        host: "address_space" "host",
        root: "address_space" "i_pages.xa_head",
        size: "inode" "i_size",
        block_bits: "inode" "i_blkbits",
        shift: "xa_node" "shift",
        slots: "xa_node" "slots",
        flags: "folio" "flags",
        mapping: "folio" "mapping",
        index: "folio" "index",
    }
    optional {}
}

/// How a kernel keeps pages of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageCache {
    pub layout: Layout,
    /// Bytes of a `struct page`.
    pub page_bytes: u64,
    /// Bit of a page's flags: its bytes are those of the file.
    pub up_to_date: u32,
    /// Where the array of all `struct page` begins (`vmemmap_base`).
    pub vmemmap: u64,
    /// Where the kernel maps physical address 0 (`page_offset_base`).
    pub page_offset: u64,
}

impl PageCache {
    /// Reads it from the kernel's types.
    ///
    /// # Errors
    /// The first field that the kernel does not have.
    pub fn from_types(
        types: &Types<'_>,
        vmemmap: u64,
        page_offset: u64,
    ) -> Result<Self, MissingField> {
        let page_bytes = types.size("page").filter(|bytes| *bytes != 0);
        let up_to_date = types.enumerator("pageflags", "PG_uptodate").filter(|bit| *bit < 64);
        Ok(Self {
            layout: Layout::from_types(types)?,
            page_bytes: page_bytes.ok_or(MissingField("page", "size"))?,
            up_to_date: up_to_date.ok_or(MissingField("pageflags", "PG_uptodate"))?,
            vmemmap,
            page_offset,
        })
    }
}

/// A file as far as it is in the page cache.
pub struct CachedFile<'a> {
    memory: &'a dyn KernelMemory,
    cache: &'a PageCache,
    pages: u64,
    /// Bytes of the file.
    pub size: u64,
    /// A node of the lowest level that was read: the first page that it is for, and its slots.
    leaf: Cell<Option<(u64, [u64; SLOTS])>>,
}

impl std::fmt::Debug for CachedFile<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("CachedFile")
            .field("pages", &self.pages)
            .field("size", &self.size)
            .finish()
    }
}

/// What the tree has for a range of pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Slot {
    entry: u64,
    /// First page behind the range.
    end: u64,
}

impl<'a> CachedFile<'a> {
    /// The file of this `struct address_space`; `None`: it can't be read, or it has huge pages only.
    #[must_use]
    pub fn open(
        memory: &'a dyn KernelMemory,
        cache: &'a PageCache,
        pages: GuestVirt,
    ) -> Option<Self> {
        let at = &cache.layout;
        let inode = memory.u64_at(pages.0, at.host)?;
        let fields = Fields::read(memory, inode, &[(at.size, 8), (at.block_bits, 1)])?;
        let [block_bits] = fields.array(at.block_bits)?;
        let size = fields.u64(at.size).filter(|size| *size <= i64::MAX.unsigned_abs())?;
        let file = Self { memory, cache, pages: pages.0, size, leaf: Cell::new(None) };
        (block_bits < HUGE_BLOCK_BITS).then_some(file)
    }

    /// Fills `buffer` with the bytes at `offset`; `None` if any of them is not in memory, or behind the file's end.
    pub fn read(&self, offset: u64, buffer: &mut [u8]) -> Option<()> {
        let end = offset.checked_add(buffer.len() as u64)?;
        if self.size < end {
            return None;
        }
        let (mut at, mut rest) = (offset, buffer);
        while !rest.is_empty() {
            let within = at % PAGE_BYTES;
            let n = usize::try_from(PAGE_BYTES - within).ok()?.min(rest.len());
            let (part, more) = rest.split_at_mut(n);
            self.read_page(at / PAGE_BYTES, within, part)?;
            (at, rest) = (at + n as u64, more);
        }
        Some(())
    }

    /// The parts of a range of the file that are in memory, in whole pages.
    #[must_use]
    pub fn resident(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut found: Vec<Range<u64>> = Vec::new();
        let mut page = range.start / PAGE_BYTES;
        let last = range.end.min(self.size).div_ceil(PAGE_BYTES);
        let last = last.min(page.saturating_add(MAX_PAGES));
        while page < last {
            // A node that makes no sense costs all of its pages.
            let slot = self.slot(page).unwrap_or(Slot { entry: 0, end: (page | PAGE_IN_NODE) + 1 });
            let end = slot.end.clamp(page + 1, last);
            if is_page(slot.entry) {
                let part = page * PAGE_BYTES..end * PAGE_BYTES;
                match found.last_mut() {
                    Some(before) if before.end == part.start => before.end = part.end,
                    _ => found.push(part),
                }
            }
            page = end;
        }
        found
    }

    fn read_page(&self, page: u64, within: u64, buffer: &mut [u8]) -> Option<()> {
        if self.read_cached(page, within, buffer).is_some() {
            return Some(());
        }
        // The page came after its node was read.
        self.leaf.set(None);
        self.read_cached(page, within, buffer)
    }

    fn read_cached(&self, page: u64, within: u64, buffer: &mut [u8]) -> Option<()> {
        let folio = self.slot(page)?.entry;
        let first = self.first_page(folio, page)?;
        let offset = folio.checked_sub(self.cache.vmemmap)?;
        let frame = (offset % self.cache.page_bytes == 0).then_some(offset / self.cache.page_bytes);
        let frame = frame.filter(|frame| *frame < MAX_FRAMES)? + (page - first);
        let address = self.cache.page_offset.checked_add(frame * PAGE_BYTES)?;
        self.memory.bytes_at(address, within, buffer)?;
        (self.first_page(folio, page) == Some(first)).then_some(())
    }

    /// The number of a folio's first page in the file, if it holds this page's bytes.
    fn first_page(&self, folio: u64, page: u64) -> Option<u64> {
        if !is_page(folio) {
            return None;
        }
        let at = &self.cache.layout;
        let offsets = [(at.flags, 8), (at.mapping, 8), (at.index, 8)];
        let fields = Fields::read(self.memory, folio, &offsets)?;
        let first = fields.u64(at.index)?;
        let is_it = fields.u64(at.mapping)? == self.pages
            && fields.u64(at.flags)? >> self.cache.up_to_date & 1 == 1
            && page.checked_sub(first)? < MAX_FOLIO_PAGES;
        is_it.then_some(first)
    }

    /// What the tree has for a page.
    fn slot(&self, page: u64) -> Option<Slot> {
        if let Some((first, slots)) = self.leaf.get()
            && page & !PAGE_IN_NODE == first
        {
            return resolve(&slots, page, 0);
        }
        let at = &self.cache.layout;
        let root = self.memory.u64_at(self.pages, at.root)?;
        if !is_node(root) {
            // Without a node there is the first page only.
            let end = if page == 0 { 1 } else { u64::MAX };
            return Some(Slot { entry: if page == 0 { root } else { 0 }, end });
        }
        let (mut node, mut above) = (root, u64::BITS);
        loop {
            let mut bytes = [0];
            let address = node - 2;
            self.memory.bytes_at(address, at.shift, &mut bytes)?;
            let shift = u32::from(bytes[0]);
            // Each level is for fewer bits than the one above.
            if shift % SLOT_BITS != 0 || above <= shift {
                return None;
            }
            if above == u64::BITS && page.checked_shr(shift + SLOT_BITS).unwrap_or(0) != 0 {
                return Some(Slot { entry: 0, end: u64::MAX });
            }
            let mut bytes = [0; 8 * SLOTS];
            self.memory.bytes_at(address, at.slots, &mut bytes)?;
            let (words, _) = bytes.as_chunks::<8>();
            let mut slots = [0; SLOTS];
            slots.iter_mut().zip(words).for_each(|(slot, word)| *slot = u64::from_le_bytes(*word));
            if shift == 0 {
                self.leaf.set(Some((page & !PAGE_IN_NODE, slots)));
            }
            let slot = resolve(&slots, page, shift)?;
            if !is_node(slot.entry) {
                return Some(slot);
            }
            (node, above) = (slot.entry, shift);
        }
    }
}

/// The entry of a node with this shift for a page.
fn resolve(slots: &[u64; SLOTS], page: u64, shift: u32) -> Option<Slot> {
    let number = page >> shift;
    let entry = *slots.get(usize::try_from(number & PAGE_IN_NODE).ok()?)?;
    let is_sibling = is_internal(entry) && entry >> 2 <= PAGE_IN_NODE;
    let entry = if is_sibling { *slots.get(usize::try_from(entry >> 2).ok()?)? } else { entry };
    // No sibling of a sibling, and no node in the lowest level.
    if is_internal(entry) && (entry >> 2 <= PAGE_IN_NODE || shift == 0 && is_node(entry)) {
        return None;
    }
    Some(Slot { entry, end: number.checked_add(1)?.checked_shl(shift).unwrap_or(u64::MAX) })
}

fn is_internal(entry: u64) -> bool {
    entry & 3 == 2
}

fn is_node(entry: u64) -> bool {
    is_internal(entry) && PAGE_BYTES < entry
}

/// A pointer to a folio, and neither a value nor a mark.
fn is_page(entry: u64) -> bool {
    entry & 3 == 0 && entry != 0
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::fields::test::Drawn;

    const CACHE: PageCache = PageCache {
        layout: Layout {
            host: 0,
            root: 8,
            size: 0x10,
            block_bits: 0x18,
            shift: 0,
            slots: 0x20,
            flags: 0,
            mapping: 0x18,
            index: 0x20,
        },
        page_bytes: 64,
        up_to_date: 3,
        vmemmap: 0xffff_ea00_0000_0000,
        page_offset: 0xffff_8880_0000_0000,
    };
    const FILE: GuestVirt = GuestVirt(0xffff_8880_0010_0000);
    const INODE: u64 = 0xffff_8880_0010_1000;

    fn node(n: u64) -> u64 {
        0xffff_8880_0020_0000 + n * 0x1000 + 2
    }

    fn slot(n: u64, at: u64) -> u64 {
        node(n) - 2 + 0x20 + at * 8
    }

    fn folio(frame: u64) -> u64 {
        CACHE.vmemmap + frame * 64
    }

    /// A folio of page frames from `frame` on, for pages of the file from `page` on. Each frame begins with its number.
    fn draw_folio(memory: &Drawn, frame: u64, page: u64, n_pages: u64) {
        memory.write(folio(frame), 1 << 3);
        memory.write(folio(frame) + 0x18, FILE.0);
        memory.write(folio(frame) + 0x20, page);
        (frame..frame + n_pages)
            .for_each(|frame| memory.write(CACHE.page_offset + frame * 0x1000, frame));
    }

    /// ```text
    ///  page      0        1        64..68            65,536..66,048
    ///  frame     0x500    shadow   0x600..0x604      0x800..0xa00
    /// ```
    fn example() -> Drawn {
        let memory = Drawn::default();
        memory.write(FILE.0, INODE);
        memory.write(FILE.0 + 8, node(0));
        memory.write(INODE + 0x10, (66_048 << 12) - 100);
        memory.write(INODE + 0x18, 12);
        for (n, shift) in [(0, 12), (1, 6), (2, 0), (3, 0), (4, 6)] {
            memory.write(node(n) - 2, shift);
            memory.write(slot(n, 63), 0);
        }
        draw_folio(&memory, 0x500, 0, 1);
        draw_folio(&memory, 0x600, 64, 4);
        draw_folio(&memory, 0x800, 65_536, 512);
        memory.write(slot(0, 0), node(1));
        memory.write(slot(1, 0), node(2));
        memory.write(slot(2, 0), folio(0x500));
        memory.write(slot(2, 1), 0x1235);
        memory.write(slot(1, 1), node(3));
        memory.write(slot(3, 0), folio(0x600));
        (1..4).for_each(|at| memory.write(slot(3, at), 2));
        memory.write(slot(0, 16), node(4));
        memory.write(slot(4, 0), folio(0x800));
        (1..8).for_each(|at| memory.write(slot(4, at), 2));
        memory
    }

    /// The first word of a page.
    fn word(file: &CachedFile<'_>, page: u64) -> Option<u64> {
        let mut word = [0; 8];
        file.read(page << 12, &mut word)?;
        Some(u64::from_le_bytes(word))
    }

    #[test]
    fn pages_large_folios_and_gaps() {
        let memory = example();
        let file = CachedFile::open(&memory, &CACHE, FILE).unwrap();
        for (page, expected) in [
            (0, Some(0x500)),
            (1, None),
            (2, None),
            (64, Some(0x600)),
            (67, Some(0x603)),
            (68, None),
            (65_536, Some(0x800)),
            (66_047, Some(0x9ff)),
            (66_048, None),
            (1 << 40, None),
        ] {
            assert_eq!(word(&file, page), expected, "{page}");
        }
        let pages = |range: Range<u64>| {
            let found = file.resident(range.start << 12..range.end.saturating_mul(1 << 12));
            found.iter().map(|part| part.start >> 12..part.end >> 12).collect::<Vec<_>>()
        };
        assert_eq!(pages(0..u64::MAX), [0..1, 64..68, 65_536..66_048]);
        assert_eq!(pages(66..67), vec![Range { start: 66, end: 67 }]);
        assert_eq!(pages(1..64), []);
        // Over the border of two pages, and the file's end.
        let mut buffer = [0; 8192];
        assert!(file.read(64 << 12 | 8, &mut buffer).is_some());
        assert_eq!(buffer[4088..4096], 0x601_u64.to_le_bytes());
        assert!(file.read((66_048 << 12) - 101, &mut [0]).is_some());
        assert!(file.read((66_048 << 12) - 101, &mut [0; 2]).is_none());
        assert!(file.read(u64::MAX, &mut [0; 2]).is_none());
    }

    #[test]
    fn a_file_of_one_page_has_no_nodes() {
        let memory = example();
        memory.write(FILE.0 + 8, folio(0x500));
        let file = CachedFile::open(&memory, &CACHE, FILE).unwrap();
        assert_eq!((word(&file, 0), word(&file, 1)), (Some(0x500), None));
        assert_eq!(file.resident(0..u64::MAX), [Range { start: 0, end: 4096 }]);
    }

    #[test]
    fn pages_of_another_file_or_place_or_not_yet_read_are_refused() {
        for (at, wrong) in [(0, 0), (0x18, FILE.0 + 8), (0x20, 1), (0x20, u64::MAX)] {
            let memory = example();
            memory.write(folio(0x500) + at, wrong);
            let file = CachedFile::open(&memory, &CACHE, FILE).unwrap();
            assert_eq!(word(&file, 0), None, "{at:x}");
        }
        let memory = example();
        memory.write(folio(0x800) + 0x20, 65_536 - 512);
        assert_eq!(word(&CachedFile::open(&memory, &CACHE, FILE).unwrap(), 65_536), None);
        memory.write(INODE + 0x18, 21);
        assert!(CachedFile::open(&memory, &CACHE, FILE).is_none());
    }

    #[test]
    fn a_page_that_comes_later_is_found() {
        let memory = example();
        let file = CachedFile::open(&memory, &CACHE, FILE).unwrap();
        assert_eq!(word(&file, 1), None);
        draw_folio(&memory, 0x555, 1, 1);
        memory.write(slot(2, 1), folio(0x555));
        assert_eq!(word(&file, 1), Some(0x555));
    }

    #[test]
    fn endless_and_wild_trees_end() {
        let wild =
            [node(0), node(1), node(77), 2, 254, 0x402, 0x5555_0000_0002, 0x5555_0000_0000, 64];
        for entry in wild {
            for at in [FILE.0 + 8, slot(0, 0), slot(1, 0), slot(2, 0)] {
                let memory = example();
                memory.write(at, entry);
                let file = CachedFile::open(&memory, &CACHE, FILE).unwrap();
                let is_right = at == FILE.0 + 8 && entry <= node(1) && node(0) <= entry
                    || at == slot(0, 0) && entry == node(1);
                assert_eq!(word(&file, 0).is_some(), is_right, "{at:x} {entry:x}");
                let _ = file.resident(0..u64::MAX);
                assert!(memory.n_reads.get() < 5000, "{at:x} {entry:x}: {}", memory.n_reads.get());
            }
        }
        for shift in [1, 6, 18, 63, 255] {
            let memory = example();
            memory.write_bytes(node(1) - 2, &[shift]);
            let _ = word(&CachedFile::open(&memory, &CACHE, FILE).unwrap(), 0);
        }
    }
}
