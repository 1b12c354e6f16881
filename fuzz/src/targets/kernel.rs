//! What a guest's memory says, as its host reads it.

use linux::elf::{Bytes, Headers, ReadAt, for_each_function};
use linux::kernel::Kernel;
use linux::memory::{PhysicalMemory, PhysicalRange};
use linux::page_cache::{CachedFile, PageCache};
use linux::vmcoreinfo::{KERNEL_MAP, KallsymsSymbols};
use linux::{files, kallsyms, mappings, page_cache};
use model::{GuestPhys, GuestVirt};

use super::inside::{BASE, Memory, seed_programs};
use super::{MIB, Numbers, Target};

pub(super) fn targets() -> Vec<Target> {
    let target = |name, run, seeds| Target { longest: 1 << 16, ..Target::new(name, run, seeds) };
    vec![
        target("kernel-mappings", mappings, || vec![seed_mappings()]),
        target("kernel-files", files, || vec![seed_file()]),
        target("kernel-page-cache", page_cache, || vec![seed_page_cache()]),
        Target { budget: 256 * MIB, ..target("kernel-elf", elf, seed_holed) },
        Target { budget: 256 * MIB, ..target("kernel-symbols", symbols, || vec![seed_symbols()]) },
        Target {
            words: &[
                b"OSRELEASE=",
                b"SYMBOL(init_top_pgt)=",
                b"NUMBER(phys_base)=",
                b"KERNELOFFSET=",
            ],
            ..target("kernel-search", search, || vec![seed_memory()])
        },
    ]
}

const PAGE: usize = 4096;
const MM: GuestVirt = GuestVirt(BASE);

const TREE: mappings::Layout = mappings::Layout {
    start: 0,
    end: 8,
    owner: 0x10,
    flags: 0x20,
    page_offset: 0x28,
    file: 0x30,
    root: Some(0x48),
    range_pivots: Some(8),
    range_slots: Some(128),
    gap_pivots: Some(8),
    gap_slots: Some(80),
    first: Some(0x50),
    next: Some(0x18),
};

fn mappings(bytes: &[u8]) {
    let memory = Memory(bytes);
    for layout in [TREE, mappings::Layout { root: None, ..TREE }] {
        let found = mappings::executable(&memory, &layout, MM);
        let pairs = found.executable.windows(2);
        assert!(pairs.into_iter().all(|pair| pair[0].end <= pair[1].start), "{found:x?}");
        let _ = mappings::holding(&memory, &layout, MM, 0x1000);
    }
}

/// A leaf at 0x100 with one mapping, which is at 0x200; the list has it, too.
fn seed_mappings() -> Vec<u8> {
    let mut bytes = vec![0; 0x400];
    let mut put = |at: usize, word: u64| bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
    put(0x48, (BASE + 0x100) | (1 << 3) | 2);
    put(0x50, BASE + 0x200);
    for (at, word) in [(0, 1), (8, 0xfff), (16, 0x2fff), (136, BASE + 0x200)] {
        put(0x100 + at, word);
    }
    for (at, word) in [(0, 0x1000), (8, 0x3000), (0x10, BASE), (0x20, 5), (0x30, BASE + 0x300)] {
        put(0x200 + at, word);
    }
    bytes
}

/// Where the tables of symbols are.
const SYMBOLS: KallsymsSymbols = KallsymsSymbols {
    num_syms: Some(GuestVirt(BASE)),
    names: Some(GuestVirt(BASE + 0x10)),
    token_table: Some(GuestVirt(BASE + 0x100)),
    token_index: Some(GuestVirt(BASE + 0x300)),
    offsets: Some(GuestVirt(BASE + 0x500)),
    relative_base: Some(GuestVirt(BASE + 0x600)),
    addresses: None,
};

fn symbols(bytes: &[u8]) {
    let memory = Memory(bytes);
    let absolute = KallsymsSymbols { addresses: SYMBOLS.offsets, offsets: None, ..SYMBOLS };
    let own = KallsymsSymbols { relative_base: None, ..SYMBOLS };
    for tables in [SYMBOLS, absolute, own] {
        let Some(found) = kallsyms::decode(&memory, &tables, None) else { continue };
        assert_eq!(found.iter().count(), found.len());
        assert!(found.address("_stext").is_some());
    }
}

/// `_stext` and another function; each byte of a name stands for itself.
fn seed_symbols() -> Vec<u8> {
    let mut bytes = vec![0; 0x700];
    let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
    put(0, &2_u32.to_le_bytes());
    put(0x10, b"\x07T_stext\x06tother");
    for token in 0..=255_u8 {
        let at = usize::from(token) * 2;
        put(0x100 + at, &[if token.is_ascii_graphic() { token } else { b'?' }, 0]);
        put(0x300 + at, &(u16::from(token) * 2).to_le_bytes());
    }
    put(0x500, &[0, 0, 0, 0, 0x40, 0, 0, 0]);
    put(0x600, &(KERNEL_MAP + 0x100_0000).to_le_bytes());
    bytes
}

/// A VM's memory from address 0 on.
struct Ram<'a> {
    bytes: &'a [u8],
    range: PhysicalRange,
}

impl PhysicalMemory for Ram<'_> {
    fn read(&self, address: GuestPhys, buffer: &mut [u8]) -> Option<()> {
        let start = usize::try_from(address.0).ok()?;
        buffer.copy_from_slice(self.bytes.get(start..start.checked_add(buffer.len())?)?);
        Some(())
    }

    fn ranges(&self) -> &[PhysicalRange] {
        std::slice::from_ref(&self.range)
    }
}

/// Searches for a kernel, with and without page tables that a vCPU had.
fn search(bytes: &[u8]) {
    let mut input = Numbers(bytes);
    let hint = input.u64();
    let range = PhysicalRange { start: GuestPhys(0), bytes: input.0.len() as u64 };
    let memory = Ram { bytes: input.0, range };
    for hints in [&[][..], &[hint]] {
        if let Ok(kernel) = Kernel::find(&memory, hints) {
            let _ = kernel.is_same_boot(&memory);
        }
    }
}

fn seed_memory() -> Vec<u8> {
    let mut bytes = vec![0; 8 + 4 * PAGE];
    let notes = b"OSRELEASE=6.1.0-13-amd64\nPAGESIZE=4096\nSYMBOL(init_uts_ns)=ffffffff82001000\n\
        SYMBOL(swapper_pg_dir)=ffffffff82002000\nNUMBER(phys_base)=0\nKERNELOFFSET=0\n";
    bytes[8 + PAGE..][..notes.len()].copy_from_slice(notes);
    bytes[..8].copy_from_slice(&(2 * PAGE as u64).to_le_bytes());
    bytes
}

const FILES: files::Layout = files::Layout {
    dentry: 0x08,
    mount: 0x00,
    mode: 0x20,
    inode: 0x10,
    pages: 0x18,
    number: 0x00,
    generation: 0x18,
    size: 0x08,
    super_block: 0x10,
    device: 0x10,
    dentry_inode: 0x28,
    parent: 0x00,
    name: 0x10,
    name_length: 0x0c,
    hash: 0x18,
    mount_root: 0x00,
    mount_within: 0x20,
    mount_parent: 0x10,
    mount_point: 0x18,
    operations: 0x40,
    private: 0x48,
    operation_name: 0x50,
    special_name: 0x00,
    heap_start: 0x00,
    heap_end: 0x08,
    stack: 0x10,
    user_dentry: Some(0x30),
    user_mount: Some(0x38),
    anonymous_name: Some(0x50),
    anonymous_text: Some(4),
};

fn files(bytes: &[u8]) {
    let memory = Memory(bytes);
    if let Ok(file) = files::read_file(&memory, &FILES, GuestVirt(BASE)) {
        // A byte that is no text takes three.
        assert!(file.path.len() <= 3 * PAGE, "{}", file.path.len());
    }
    let vma = GuestVirt(BASE);
    let mapping = mappings::Mapping { start: 0, end: 8, offset: 0, flags: 4, file: None, vma };
    let special = Some(GuestVirt(BASE + 0x10));
    let name = files::name_without_file(&memory, &FILES, MM, &mapping, special);
    assert!(name.starts_with('[') || name.len() <= 3 * 80, "{name}");
}

/// A file at 0, its inode at 0x100, its name at 0x200, a root at 0x300, a mount at 0x400.
fn seed_file() -> Vec<u8> {
    let mut bytes = vec![0; 0x600];
    let mut put = |at: usize, word: u64| bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
    for (at, word) in [(0, 0x420), (8, 0x200), (0x10, 0x100), (0x18, 0x500)] {
        put(at, BASE + word);
    }
    put(0x110, BASE + 0x120);
    for (at, word) in [(0, BASE + 0x300), (8, 4 << 32), (0x10, BASE + 0x280), (0x18, 1)] {
        put(0x200 + at, word);
    }
    put(0x280, u64::from_le_bytes(*b"file\0\0\0\0"));
    put(0x300, BASE + 0x300);
    put(0x410, BASE + 0x400);
    put(0x420, BASE + 0x300);
    bytes
}

/// Folios are at 0x1000, page frame 8 is at 0x2000.
const CACHE: PageCache = PageCache {
    layout: page_cache::Layout {
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
    vmemmap: BASE + 0x1000 - 8 * 64,
    page_offset: BASE + 0x2000 - 8 * 0x1000,
};

fn page_cache(bytes: &[u8]) {
    let memory = Memory(bytes);
    let Some(file) = CachedFile::open(&memory, &CACHE, GuestVirt(BASE)) else { return };
    for at in [0, 100, 0x1000, file.size.saturating_sub(64)] {
        let _ = file.read(at, &mut [0; 64]);
    }
    let parts = file.resident(0..1 << 30);
    assert!(parts.windows(2).all(|pair| pair[0].end < pair[1].start), "{parts:?}");
}

/// A file of one page.
fn seed_page_cache() -> Vec<u8> {
    let mut bytes = vec![0x55; 0x3000];
    let mut put = |at: usize, word: u64| bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
    for (at, word) in [(0, BASE + 0x100), (8, BASE + 0x402), (0x110, 4000), (0x118, 12)] {
        put(at, word);
    }
    put(0x400, 0);
    put(0x420, BASE + 0x1000);
    for (at, word) in [(0, 8), (0x18, BASE), (0x20, 0)] {
        put(0x1000 + at, word);
    }
    bytes
}

/// A file of which pages are missing.
struct Holed<'a> {
    bytes: &'a [u8],
    /// A bit for each of its first pages.
    missing: u64,
}

impl ReadAt for Holed<'_> {
    fn read_at(&self, at: u64, buffer: &mut [u8]) -> Option<()> {
        let end = at.checked_add(buffer.len() as u64)?;
        let mut pages = at / PAGE as u64..end.div_ceil(PAGE as u64);
        if pages.any(|page| page < 64 && self.missing >> page & 1 == 1) {
            return None;
        }
        self.bytes.read_at(at, buffer)
    }

    fn n_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }
}

fn elf(bytes: &[u8]) {
    let mut input = Numbers(bytes);
    let file = Holed { missing: input.u64(), bytes: input.0 };
    let bytes = Bytes::new(&file, 16 * MIB as u64);
    let Ok(headers) = Headers::read(&bytes) else { return };
    let mut n_bytes = 0;
    let _ = for_each_function(&bytes, &headers, &mut |_, _, name| {
        n_bytes += name.len();
        n_bytes < MIB
    });
}

/// The same programs, whole, and without their third page.
fn seed_holed() -> Vec<Vec<u8>> {
    let holes = [0_u64, 1 << 2];
    let programs = seed_programs();
    let with =
        |hole: u64| programs.iter().map(move |file| [&hole.to_le_bytes()[..], file].concat());
    holes.into_iter().flat_map(with).collect()
}
