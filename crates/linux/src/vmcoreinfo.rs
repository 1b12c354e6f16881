//! VMCOREINFO: a page of text in which a kernel says where a crash dump's reader finds what
//! (kernel/vmcore_info.c, Documentation/admin-guide/kdump/vmcoreinfo.rst).
//!
//! The page of a kernel that ran before stays in RAM, and a guest can write as many as it likes: none is believed
//! before `prove` has found what it says by two ways.

use std::ops::Range;

use model::{GuestPhys, GuestVirt};

use crate::memory::{KernelMemory, PAGE_BYTES, PhysicalMemory, PhysicalRange};
use crate::paging::{AddressSpace, PagingLevels};

/// First virtual address of the kernel's image, before KASLR (`__START_KERNEL_map`).
pub const KERNEL_MAP: u64 = 0xffff_ffff_8000_0000;
/// What the page begins with.
const BEGIN: &[u8] = b"OSRELEASE=";
/// Bytes that are read at once in the search.
const STEP: u64 = 1 << 20;
/// Bytes of a range's beginning that are searched before all else.
const HEAD: u64 = 64 << 20;
/// Most pages that are tried: a guest can fill its memory with them.
const MAX_CANDIDATES: usize = 1 << 16;
/// Bytes of a field of `struct new_utsname`.
pub(crate) const UTS_FIELD: usize = 65;
/// `release` is its third field.
const RELEASE: u64 = 2 * UTS_FIELD as u64;

/// What the page says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmcoreInfo {
    pub release: String,
    /// As hex digits.
    pub build_id: Option<String>,
    pub layout: ImageLayout,
    pub stext: Option<GuestVirt>,
    pub kallsyms: KallsymsSymbols,
}

/// Where a kernel's image and its page tables are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageLayout {
    pub init_top_pgt: GuestVirt,
    /// `struct new_utsname` of the first UTS namespace.
    pub init_uts_name: GuestVirt,
    /// What is added to an image's virtual address, less `KERNEL_MAP`, for its physical one. Negative values wrap.
    pub phys_base: u64,
    pub levels: PagingLevels,
    pub sme_mask: u64,
}

/// The tables of kallsyms. Kernels before Linux 6.0 don't say where they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KallsymsSymbols {
    pub num_syms: Option<GuestVirt>,
    pub names: Option<GuestVirt>,
    pub token_table: Option<GuestVirt>,
    pub token_index: Option<GuestVirt>,
    pub offsets: Option<GuestVirt>,
    pub relative_base: Option<GuestVirt>,
    pub addresses: Option<GuestVirt>,
}

impl ImageLayout {
    /// The physical address of a part of the kernel's image.
    #[must_use]
    pub fn physical(&self, address: GuestVirt) -> GuestPhys {
        let offset = address.0.wrapping_sub(KERNEL_MAP);
        GuestPhys(offset.wrapping_add(self.phys_base) & !self.sme_mask)
    }

    /// What the kernel's own page tables map.
    #[must_use]
    pub fn address_space<'m>(&self, memory: &'m dyn PhysicalMemory) -> AddressSpace<'m> {
        let root = self.physical(self.init_top_pgt);
        AddressSpace::new(memory, root, self.levels, self.sme_mask)
    }

    /// Whether a kernel of this release is where it says: its page tables map its UTS name to where the image's
    /// formula has it, and the release is there. A page of a kernel that ran before fails in one of these.
    #[must_use]
    pub fn prove(&self, memory: &dyn PhysicalMemory, release: &str) -> bool {
        self.read_release(memory).is_some_and(|found| found == release)
    }

    /// The release at the UTS name, if both ways lead to it.
    #[must_use]
    pub fn read_release(&self, memory: &dyn PhysicalMemory) -> Option<String> {
        let space = self.address_space(memory);
        let name = self.init_uts_name;
        if space.translate(name)? != self.physical(name) {
            return None;
        }
        let mut sysname = [0; 6];
        space.read(name, &mut sysname)?;
        let mut release = [0; UTS_FIELD];
        space.read(GuestVirt(name.0.checked_add(RELEASE)?), &mut release)?;
        (&sysname == b"Linux\0").then(|| text_before_nul(&release))?
    }
}

/// Printable text up to the first NUL.
pub(crate) fn text_before_nul(bytes: &[u8]) -> Option<String> {
    let end = bytes.iter().position(|byte| *byte == 0)?;
    let text = &bytes[..end];
    let is_text = !text.is_empty() && text.iter().all(u8::is_ascii_graphic);
    is_text.then(|| String::from_utf8_lossy(text).into_owned())
}

/// Searches all memory for pages of VMCOREINFO until `accept` returns true, and returns how many there were. Each may be
/// a stale or a forged one.
pub fn search(memory: &dyn PhysicalMemory, mut accept: impl FnMut(VmcoreInfo) -> bool) -> usize {
    let mut candidates = 0;
    let mut buffer = vec![0; usize::try_from(STEP).unwrap_or_default()];
    let mut is_done = false;
    for part in parts(memory) {
        for_each_chunk(memory, &part, &mut buffer, 0, |_, chunk| {
            let pages = chunk.chunks(usize::try_from(PAGE_BYTES).unwrap_or(usize::MAX));
            for info in pages.filter(|page| page.starts_with(BEGIN)).filter_map(parse) {
                candidates += 1;
                is_done = accept(info) || candidates == MAX_CANDIDATES;
                if is_done {
                    break;
                }
            }
            !is_done
        });
        if is_done {
            break;
        }
    }
    candidates
}

/// The beginnings of all ranges, then the rest. The kernel takes the page while it boots: in four of five boots
/// it was within the first 32 MiB of the highest range.
fn parts(memory: &dyn PhysicalMemory) -> impl Iterator<Item = Range<u64>> {
    let ranges = memory.ranges();
    let middle = |range: &PhysicalRange| range.end().0.min(range.start.0.saturating_add(HEAD));
    let heads = ranges.iter().map(move |range| range.start.0..middle(range));
    heads.chain(ranges.iter().map(move |range| middle(range)..range.end().0))
}

/// All physical addresses.
pub(crate) const ALL: Range<u64> = 0..u64::MAX;

/// Reads the memory that is there, in pieces of up to `buffer`'s size. Pieces of one stretch share their last `overlap`
/// bytes. Ends when `visit` returns false.
pub(crate) fn for_each_chunk(
    memory: &dyn PhysicalMemory,
    within: &Range<u64>,
    buffer: &mut [u8],
    overlap: u64,
    mut visit: impl FnMut(GuestPhys, &[u8]) -> bool,
) {
    let mut at = GuestPhys(within.start);
    while let Some(start) = memory.next_present(at).filter(|start| start.0 >= at.0) {
        let end = end_of_range(memory, start).map(|end| end.min(within.end));
        let Some(end) = end.filter(|end| start.0 < *end) else { return };
        let step = (buffer.len() as u64).min(end - start.0);
        let read = read_present(memory, start, &mut buffer[..usize::try_from(step).unwrap_or(0)]);
        if read > 0 && !visit(start, &buffer[..read]) {
            return;
        }
        // A page that can't be read is left out.
        let read = (read as u64).max(PAGE_BYTES);
        let next = if read < step || read <= overlap { read } else { read - overlap };
        at = GuestPhys(start.0.saturating_add(if start.0 + read >= end { read } else { next }));
    }
}

/// The end of the range that holds an address.
fn end_of_range(memory: &dyn PhysicalMemory, address: GuestPhys) -> Option<u64> {
    let holds = |start: u64, end: u64| start <= address.0 && address.0 < end;
    let mut ends = memory.ranges().iter().map(|range| (range.start.0, range.end().0));
    ends.find(|(start, end)| holds(*start, *end)).map(|(_, end)| end)
}

/// Bytes that could be read from `start` on, in whole pages or to the end.
fn read_present(memory: &dyn PhysicalMemory, start: GuestPhys, buffer: &mut [u8]) -> usize {
    if memory.read(start, buffer).is_some() {
        return buffer.len();
    }
    let mut read = 0;
    for page in buffer.chunks_mut(usize::try_from(PAGE_BYTES).unwrap_or(usize::MAX)) {
        let address = GuestPhys(start.0 + read as u64);
        if memory.read(address, page).is_none() {
            break;
        }
        read += page.len();
    }
    read
}

/// Parses a page; `None` if it lacks what a kernel can't be found without.
#[must_use]
pub fn parse(page: &[u8]) -> Option<VmcoreInfo> {
    let page = &page[..page.len().min(usize::try_from(PAGE_BYTES).ok()?)];
    let end = page.iter().position(|byte| *byte == 0).unwrap_or(page.len());
    let text = std::str::from_utf8(&page[..end]).ok()?;
    let field = |key: &str| {
        let mut values = text.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        values.next()
    };
    let symbol = |name: &str| {
        let value = field(&format!("SYMBOL({name})"))?;
        u64::from_str_radix(value, 16).ok().map(GuestVirt)
    };
    let number = |name: &str| parse_number(field(&format!("NUMBER({name})"))?);
    let release = field("OSRELEASE")?;
    let is_release =
        release.len() < UTS_FIELD && release.bytes().all(|byte| byte.is_ascii_graphic());
    let name_offset = field("OFFSET(uts_namespace.name)").and_then(parse_number).unwrap_or(0);
    let levels = match number("pgtable_l5_enabled") {
        Some(0) | None => PagingLevels::Four,
        Some(_) => PagingLevels::Five,
    };
    is_release.then_some(VmcoreInfo {
        release: release.to_owned(),
        build_id: field("BUILD-ID").filter(|id| is_build_id(id)).map(str::to_owned),
        layout: ImageLayout {
            init_top_pgt: symbol("init_top_pgt").or_else(|| symbol("swapper_pg_dir"))?,
            init_uts_name: GuestVirt(symbol("init_uts_ns")?.0.checked_add(name_offset)?),
            phys_base: number("phys_base")?,
            levels,
            sme_mask: number("sme_mask").unwrap_or(0),
        },
        stext: symbol("_stext"),
        kallsyms: KallsymsSymbols {
            num_syms: symbol("kallsyms_num_syms"),
            names: symbol("kallsyms_names"),
            token_table: symbol("kallsyms_token_table"),
            token_index: symbol("kallsyms_token_index"),
            offsets: symbol("kallsyms_offsets"),
            relative_base: symbol("kallsyms_relative_base"),
            addresses: symbol("kallsyms_addresses"),
        },
    })
}

fn is_build_id(text: &str) -> bool {
    text.len() <= 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// A number as the kernel prints it: `%ld`, or `%#lx`. Negative ones wrap.
fn parse_number(text: &str) -> Option<u64> {
    if let Some(hex) = text.strip_prefix("0x") {
        return u64::from_str_radix(hex, 16).ok();
    }
    match text.strip_prefix('-') {
        Some(digits) => digits.parse::<u64>().ok().map(u64::wrapping_neg),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::test::{PageSize, Ram};

    const PAGE: &str = "OSRELEASE=6.1.0-x\nBUILD-ID=3b43fa\nSYMBOL(init_uts_ns)=ffffffff81400b60\n\
        OFFSET(uts_namespace.name)=4\nSYMBOL(swapper_pg_dir)=ffffffff81200000\n\
        SYMBOL(_stext)=ffffffff81000000\nSYMBOL(kallsyms_names)=ffffffff81300010\n\
        NUMBER(phys_base)=-4096\nSYMBOL(init_top_pgt)=ffffffff81200000\n\
        NUMBER(pgtable_l5_enabled)=1\nKERNELOFFSET=0\nNUMBER(sme_mask)=0x0\n";

    #[test]
    fn what_a_page_says_is_parsed() {
        let info = parse(format!("{PAGE}\0SYMBOL(kallsyms_offsets)=1\n").as_bytes()).unwrap();
        assert_eq!(info.release, "6.1.0-x");
        assert_eq!(info.build_id.as_deref(), Some("3b43fa"));
        assert_eq!(info.layout.levels, PagingLevels::Five);
        assert_eq!(info.layout.init_uts_name, GuestVirt(0xffff_ffff_8140_0b64));
        assert_eq!(info.layout.physical(GuestVirt(0xffff_ffff_8100_0000)), GuestPhys(0xfff000));
        assert_eq!(info.stext, Some(GuestVirt(0xffff_ffff_8100_0000)));
        assert_eq!(info.kallsyms.names, Some(GuestVirt(0xffff_ffff_8130_0010)));
        assert_eq!(info.kallsyms.offsets, None, "it is behind the end of the text");
    }

    #[test]
    fn pages_without_what_is_needed_are_left_out() {
        for missing in ["OSRELEASE", "NUMBER(phys_base)", "SYMBOL(init_uts_ns)"] {
            assert_eq!(parse(PAGE.replace(missing, "X").as_bytes()), None, "{missing}");
        }
        let hostile = [
            PAGE.replace("=-4096", "=-99999999999999999999"),
            PAGE.replace("=ffffffff81400b60", "=ffffffffffffffff"), // and the name's offset
            PAGE.replace("6.1.0-x", "6.1\u{1b}[31m"),
            PAGE.replace("6.1.0-x", &"6".repeat(65)),
        ];
        for page in hostile {
            assert_eq!(parse(page.as_bytes()), None, "{page}");
        }
        assert_eq!(parse(&[0xff; 5000]), None);
        assert_eq!(parse(b""), None);
    }

    const PAGES: [u64; 2] = [0x5000, 0x7000];

    /// Two pages: one that a former boot left, and that of the kernel whose tables and UTS name are there.
    fn two_kernels() -> Ram {
        let mut ram = Ram::new(&[(0, 0x1000_0000)]);
        ram.write(PAGES[0], PAGE.replace("6.1.0-x", "6.1.0-old").as_bytes());
        ram.write(PAGES[1], PAGE.as_bytes());
        ram.write(0x6010, PAGE.as_bytes()); // not at a page's start
        let (root, levels) = (0x11f_f000, PagingLevels::Five);
        ram.map(root, levels, 0xffff_ffff_8140_0000, 0x13f_f000, PageSize::Small);
        ram.write(0x13f_fb64, b"Linux\0");
        ram.write(0x13f_fb64 + RELEASE, b"6.1.0-x\0");
        ram
    }

    fn find_all(ram: &Ram) -> Vec<VmcoreInfo> {
        let mut all = Vec::new();
        let count = search(ram, |info| {
            all.push(info);
            false
        });
        assert_eq!(count, all.len());
        all
    }

    #[test]
    fn the_page_of_the_kernel_that_runs_is_proved() {
        let ram = two_kernels();
        let candidates = find_all(&ram);
        let proved: Vec<_> = candidates
            .iter()
            .map(|info| (info.release.as_str(), info.layout.prove(&ram, &info.release)))
            .collect();
        assert_eq!(proved, [("6.1.0-old", false), ("6.1.0-x", true)]);
    }

    #[test]
    fn a_uts_name_that_is_mapped_elsewhere_proves_nothing() {
        let mut ram = two_kernels();
        let info = parse(PAGE.as_bytes()).unwrap();
        let root = info.layout.physical(info.layout.init_top_pgt).0;
        ram.map(root, PagingLevels::Five, 0xffff_ffff_8140_0000, 0x900_0000, PageSize::Small);
        ram.write(0x900_0b64, b"Linux\0");
        ram.write(0x900_0b64 + RELEASE, b"6.1.0-x\0");
        assert!(!info.layout.prove(&ram, &info.release));
    }

    #[test]
    fn pages_that_are_absent_are_skipped() {
        let mut ram = two_kernels();
        ram.remove_page(PAGES[0]);
        assert_eq!(find_all(&ram).len(), 1);
        assert_eq!(find_all(&Ram::new(&[(0, 1 << 40)])), []);
        assert_eq!(find_all(&Ram::new(&[])), []);
    }

    #[test]
    fn beginnings_of_ranges_are_searched_first() {
        let mut ram = Ram::new(&[(0x1000, 0x1000_0000), (0x1_0000_0000, 0x1000_0000)]);
        let addresses = [0x800_0000, 0x1_0900_0000, 0x1000, 0x1_0000_0000, 0x400_0000];
        for address in addresses {
            ram.write(address, PAGE.replace("6.1.0-x", &format!("{address:x}")).as_bytes());
        }
        let found: Vec<String> = find_all(&ram).into_iter().map(|info| info.release).collect();
        assert_eq!(found, ["1000", "4000000", "100000000", "8000000", "109000000"]);
    }

    #[test]
    fn the_search_ends_with_what_is_accepted() {
        assert_eq!(search(&two_kernels(), |_| true), 1);
    }

    #[test]
    fn chunks_overlap_within_a_stretch() {
        let mut ram = Ram::new(&[(0x1000, 0x5000), (0x8000, 0x1000)]);
        for page in [1, 2, 3, 4, 5, 8] {
            ram.write(page * 0x1000, &[1]);
        }
        ram.remove_page(0x4000);
        let mut chunks = Vec::new();
        for_each_chunk(&ram, &ALL, &mut [0; 0x2000], 0x1000, |start, chunk| {
            chunks.push((start.0, chunk.len()));
            true
        });
        let expected = [
            (0x1000, 0x2000),
            (0x2000, 0x2000),
            (0x3000, 0x1000),
            (0x5000, 0x1000),
            (0x8000, 0x1000),
        ];
        assert_eq!(chunks, expected);
    }
}
