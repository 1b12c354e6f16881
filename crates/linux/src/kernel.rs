//! The kernel that runs in a machine's memory.
//!
//! ```text
//! 1. the virtual CPUs' page tables -> the image's place -> the shape of kallsyms in it     milliseconds, any size of RAM
//! 2. all of RAM -> VMCOREINFO's page -> its tables of kallsyms, or their shape             a pass over what is there
//! 3. all of RAM -> the shape of kallsyms -> the image's place by trying                    another pass
//! ```
//!
//! Each way ends with the same proof: page tables map the UTS name to where the image's place has it. A guest can forge
//! all of it; then it misleads about itself. Where the virtual CPUs' page tables are known, they must map that kernel.

use std::fmt;
use std::ops::Range;

use model::{GuestPhys, GuestVirt};

use crate::kallsyms::{Symbols, decode};
use crate::kallsyms_search::{Found, search};
use crate::memory::{KernelMemory, PhysicalMemory};
use crate::paging::{AddressSpace, PagingLevels};
use crate::vmcoreinfo::{ALL, ImageLayout, KERNEL_MAP, VmcoreInfo, search as search_vmcoreinfo};

/// An image is aligned to this much, in virtual and in physical memory.
const IMAGE_ALIGN: u64 = 2 << 20;
/// Bytes in which an image may be mapped, and which it may have.
const IMAGE_WITHIN: u64 = 1 << 30;
const MAX_IMAGE: u64 = 256 << 20;
/// Unmapped bytes in an image: what was for booting only is freed.
const MAX_GAP: u64 = 32 << 20;
/// Most virtual CPUs whose page tables are looked at.
const MAX_HINTS: usize = 64;
/// Most images that are searched for symbols.
const MAX_IMAGES: usize = 4;
/// The UTS name's offset in `struct uts_namespace`: behind a counter before Linux 5.11.
const UTS_NAME_OFFSETS: [u64; 2] = [0, 4];
const LEVELS: [PagingLevels; 2] = [PagingLevels::Five, PagingLevels::Four];
/// Bytes of the notes in an image.
const MAX_NOTES: u64 = 4096;

/// A kernel that was found and proved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    pub release: String,
    /// As hex digits.
    pub build_id: Option<String>,
    pub layout: ImageLayout,
    /// From `_stext` to `_etext`.
    pub text: Range<u64>,
    /// The virtual address of all physical memory's first byte.
    pub page_offset: Option<u64>,
    pub symbols: Symbols,
    boot: BootVariables,
}

/// What differs between two boots of a kernel, and where that is: names are not looked up each time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct BootVariables {
    page_offset_at: Option<GuestVirt>,
    id_at: Option<GuestVirt>,
    id: BootId,
}

/// The kernel's random number of this boot. It is 0 until a program of the guest reads it.
type BootId = [u8; 16];

/// Why no kernel was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotFound {
    NoMemory,
    Encrypted,
    NoLinux,
    /// Pages of VMCOREINFO are of none that runs: one boots, or did before the last reset.
    NotProved,
    NoSymbols {
        release: String,
    },
}

impl fmt::Display for NotFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMemory => f.write_str("none of the VM's memory can be read"),
            Self::Encrypted => f.write_str("the VM's memory is encrypted"),
            Self::NoLinux => f.write_str("no Linux kernel in the VM's memory"),
            Self::NotProved => {
                f.write_str("a Linux kernel has been in the VM's memory, but none runs now")
            }
            Self::NoSymbols { release } => {
                write!(f, "no kernel symbols in the memory of Linux {release}")
            }
        }
    }
}

impl std::error::Error for NotFound {}

impl Kernel {
    /// Finds the kernel that runs. `cr3_hints` are what virtual CPUs' CR3 held lately, if that is known: with them it is
    /// found at once, and another in the same memory is not taken for it.
    pub fn find(memory: &dyn PhysicalMemory, cr3_hints: &[u64]) -> Result<Self, NotFound> {
        memory.next_present(GuestPhys(0)).ok_or(NotFound::NoMemory)?;
        let mut hints = cr3_hints.to_vec();
        hints.sort_unstable();
        hints.dedup();
        hints.truncate(MAX_HINTS);
        if let Some(kernel) = find_by_page_tables(memory, &hints) {
            return Ok(kernel);
        }
        let (mut kernel, mut proved) = (None, Vec::new());
        let candidates = search_vmcoreinfo(memory, |info| {
            let layout = &info.layout;
            if layout.prove(memory, &info.release) && hints_map(memory, &hints, layout) {
                kernel = from_vmcoreinfo(memory, &info);
                proved.push(info.release);
            }
            kernel.is_some() || proved.len() == MAX_IMAGES
        });
        if let Some(kernel) = kernel {
            return Ok(kernel);
        }
        if let Some(release) = proved.pop() {
            return Err(NotFound::NoSymbols { release });
        }
        find_by_shape(memory, &hints).ok_or_else(|| {
            if are_encrypted(memory, &hints) {
                NotFound::Encrypted
            } else if candidates == 0 {
                NotFound::NoLinux
            } else {
                NotFound::NotProved
            }
        })
    }

    /// The kernel's memory, by its own page tables.
    #[must_use]
    pub fn address_space<'m>(&self, memory: &'m dyn PhysicalMemory) -> AddressSpace<'m> {
        self.layout.address_space(memory)
    }

    /// Whether this boot of the kernel still runs: a few reads. A kernel without KASLR that boots anew differs
    /// from the former one by its random number only.
    #[must_use]
    pub fn is_same_boot(&self, memory: &dyn PhysicalMemory) -> bool {
        let space = self.address_space(memory);
        let boot = &self.boot;
        self.layout.prove(memory, &self.release)
            && read_page_offset(&space, boot.page_offset_at) == self.page_offset
            && (boot.id == BootId::default() || read_boot_id(&space, boot.id_at) == boot.id)
    }

    /// Of symbols, and an image whose place is proved; `None` without the symbols that tell code.
    fn new(
        memory: &dyn PhysicalMemory,
        release: String,
        layout: ImageLayout,
        symbols: Symbols,
    ) -> Option<Self> {
        let text = symbols.address("_stext")?.0..symbols.address("_etext")?.0;
        if text.is_empty() || text.start < KERNEL_MAP {
            return None;
        }
        let space = layout.address_space(memory);
        let page_offset_at = symbols.address("page_offset_base");
        let id_at = symbols.address("sysctl_bootid");
        Some(Self {
            release,
            build_id: read_build_id(&space, &symbols),
            layout,
            text,
            page_offset: read_page_offset(&space, page_offset_at),
            boot: BootVariables { page_offset_at, id_at, id: read_boot_id(&space, id_at) },
            symbols,
        })
    }
}

fn from_vmcoreinfo(memory: &dyn PhysicalMemory, info: &VmcoreInfo) -> Option<Kernel> {
    let space = info.layout.address_space(memory);
    let finish = |symbols| Kernel::new(memory, info.release.clone(), info.layout, symbols);
    let kernel = decode(&space, &info.kallsyms, info.stext).and_then(finish).or_else(|| {
        // Kernels before Linux 6.0 don't say where the tables are.
        let image = Image::find(&space)?;
        let mut kernel = None;
        search(memory, &image.physical, |found| {
            let symbols = found.with_virtual_addresses(info.layout.phys_base);
            if info.stext.is_none() || symbols.address("_stext") == info.stext {
                kernel = finish(symbols);
            }
            kernel.is_some()
        });
        kernel
    })?;
    let build_id = kernel.build_id.or_else(|| info.build_id.clone());
    Some(Kernel { build_id, ..kernel })
}

/// Where page tables map a kernel's image.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Image {
    physical: Range<u64>,
    phys_base: u64,
}

impl Image {
    /// The image is mapped in one piece of physical memory.
    fn find(space: &AddressSpace<'_>) -> Option<Self> {
        let mut image: Option<Self> = None;
        for offset in (0..IMAGE_WITHIN).step_by(usize::try_from(IMAGE_ALIGN).ok()?) {
            let Some(physical) = space.translate(GuestVirt(KERNEL_MAP + offset)) else { continue };
            let phys_base = physical.0.wrapping_sub(offset);
            let end = physical.0.checked_add(IMAGE_ALIGN)?;
            match &mut image {
                None => image = Some(Self { physical: physical.0..end, phys_base }),
                Some(image) => {
                    let continues = phys_base == image.phys_base
                        && end - image.physical.end <= MAX_GAP
                        && end - image.physical.start <= MAX_IMAGE;
                    if !continues {
                        break;
                    }
                    image.physical.end = end;
                }
            }
        }
        image.filter(|image| image.phys_base.is_multiple_of(IMAGE_ALIGN))
    }
}

/// What a value of CR3 can mean: with page-table isolation the kernel's table is the even one of a pair, and both halves
/// are in use. Values whose bit 12 was cleared may be of a table at an odd page.
fn roots(hint: u64) -> [GuestPhys; 2] {
    [GuestPhys(hint), GuestPhys(hint ^ 0x1000)]
}

fn find_by_page_tables(memory: &dyn PhysicalMemory, hints: &[u64]) -> Option<Kernel> {
    let mut images: Vec<Image> = Vec::new();
    for root in hints.iter().flat_map(|hint| roots(*hint)) {
        for levels in LEVELS {
            let found = Image::find(&AddressSpace::new(memory, root, levels, 0));
            let Some(image) = found.filter(|image| !images.contains(image)) else { continue };
            if images.len() == MAX_IMAGES {
                return None;
            }
            let mut kernel = None;
            search(memory, &image.physical, |found| {
                let proof = found.proof();
                kernel =
                    proof.and_then(|proof| prove_found(memory, &found, proof, image.phys_base));
                kernel.is_some()
            });
            if kernel.is_some() {
                return kernel;
            }
            images.push(image);
        }
    }
    None
}

/// Tables that were found are in an image; where that begins is found by trying.
fn find_by_shape(memory: &dyn PhysicalMemory, hints: &[u64]) -> Option<Kernel> {
    let mut kernel = None;
    search(memory, &ALL, |found| {
        let Some(proof) = found.proof() else { return false };
        kernel = found.phys_bases().find_map(|phys_base| {
            let kernel = prove_found(memory, &found, proof, phys_base)?;
            hints_map(memory, hints, &kernel.layout).then_some(kernel)
        });
        kernel.is_some()
    });
    kernel
}

/// What proves the place of an image.
#[derive(Clone, Copy)]
struct ProofSymbols {
    init_top_pgt: GuestVirt,
    init_uts_ns: GuestVirt,
}

impl Found {
    fn with_virtual_addresses(mut self, phys_base: u64) -> Symbols {
        if self.is_physical {
            self.symbols.shift(KERNEL_MAP.wrapping_sub(phys_base));
        }
        self.symbols
    }

    /// Where the page tables and the UTS name are, by addresses of the tables' kind.
    fn proof(&self) -> Option<ProofSymbols> {
        Some(ProofSymbols {
            init_top_pgt: self.symbols.address("init_top_pgt")?,
            init_uts_ns: self.symbols.address("init_uts_ns")?,
        })
    }

    /// Where the image may be: the tables are behind its code, and it is mapped above `KERNEL_MAP`.
    fn phys_bases(&self) -> impl Iterator<Item = u64> + use<> {
        let stext = self.symbols.address("_stext").map_or(0, |address| address.0);
        let (highest, within) = if self.is_physical {
            (stext, IMAGE_WITHIN)
        } else {
            (self.token_table.0.wrapping_sub(stext.wrapping_sub(KERNEL_MAP)), MAX_IMAGE)
        };
        let highest = highest & !(IMAGE_ALIGN - 1);
        (0..within / IMAGE_ALIGN).map(move |step| highest.wrapping_sub(step * IMAGE_ALIGN))
    }
}

fn prove_found(
    memory: &dyn PhysicalMemory,
    found: &Found,
    proof: ProofSymbols,
    phys_base: u64,
) -> Option<Kernel> {
    let shift = if found.is_physical { KERNEL_MAP.wrapping_sub(phys_base) } else { 0 };
    let at = |address: GuestVirt, offset: u64| {
        GuestVirt(address.0.wrapping_add(shift).wrapping_add(offset))
    };
    let mut layouts = LEVELS.into_iter().flat_map(|levels| {
        UTS_NAME_OFFSETS.map(|offset| ImageLayout {
            init_top_pgt: at(proof.init_top_pgt, 0),
            init_uts_name: at(proof.init_uts_ns, offset),
            phys_base,
            levels,
            sme_mask: 0,
        })
    });
    layouts.find_map(|layout| {
        let release = layout.read_release(memory)?;
        let symbols = Found { symbols: found.symbols.clone(), ..*found };
        Kernel::new(memory, release, layout, symbols.with_virtual_addresses(phys_base))
    })
}

/// Whether a virtual CPU's page tables map this kernel; true if none is known.
fn hints_map(memory: &dyn PhysicalMemory, hints: &[u64], layout: &ImageLayout) -> bool {
    let physical = layout.physical(layout.init_uts_name);
    let mut roots = hints.iter().flat_map(|hint| roots(*hint));
    hints.is_empty()
        || roots.any(|root| {
            let space = layout.address_space(memory).with_root(root);
            space.translate(layout.init_uts_name) == Some(physical)
        })
}

/// Whether what should be page tables is noise: entries have no address bits above 52.
fn are_encrypted(memory: &dyn PhysicalMemory, hints: &[u64]) -> bool {
    let is_noise = |hint: &u64| {
        let mut table = [0; 4096];
        let root = AddressSpace::new(memory, GuestPhys(*hint), PagingLevels::Four, 0).root;
        let is_read = memory.read(root, &mut table).is_some();
        let entries = table.as_chunks().0.iter().map(|entry| u64::from_le_bytes(*entry));
        is_read && entries.filter(|entry| entry >> 52 & 0x7f != 0).count() > 256
    };
    !hints.is_empty() && hints.iter().all(is_noise)
}

fn read_boot_id(kernel: &AddressSpace<'_>, at: Option<GuestVirt>) -> BootId {
    let mut id = BootId::default();
    let read = at.and_then(|at| kernel.read(at, &mut id));
    if read.is_some() { id } else { BootId::default() }
}

/// Where all physical memory is mapped, proved by the uppermost page table's own page.
fn read_page_offset(kernel: &AddressSpace<'_>, at: Option<GuestVirt>) -> Option<u64> {
    let fixed = match kernel.levels {
        PagingLevels::Four => 0xffff_8880_0000_0000,
        PagingLevels::Five => 0xff11_0000_0000_0000,
    };
    let offset = at.map_or(Some(fixed), |at| kernel.read_u64(at))?;
    let mapped = kernel.translate(GuestVirt(offset.checked_add(kernel.root.0)?))?;
    (mapped == kernel.root).then_some(offset)
}

/// The GNU build id among the notes in the image.
fn read_build_id(kernel: &AddressSpace<'_>, symbols: &Symbols) -> Option<String> {
    let start = symbols.address("__start_notes")?;
    let bytes = symbols.address("__stop_notes")?.0.checked_sub(start.0)?;
    let mut notes = vec![0; usize::try_from(bytes.min(MAX_NOTES)).ok()?];
    kernel.read(start, &mut notes)?;
    let mut rest = &notes[..];
    while let Some((header, text)) = rest.split_first_chunk::<12>() {
        let word = |at: usize| header[at..].first_chunk().map(|word| u32::from_le_bytes(*word));
        let (name, desc, kind) = (word(0)?, word(4)?, word(8)?);
        let padded = |bytes: u32| usize::try_from(bytes).ok()?.checked_next_multiple_of(4);
        let (name, text) = text.split_at_checked(padded(name)?)?;
        let (id, after) = text.split_at_checked(padded(desc)?)?;
        if kind == 3 && name == b"GNU\0" && id.len() <= 32 {
            return Some(id.iter().map(|byte| format!("{byte:02x}")).collect());
        }
        rest = after;
    }
    None
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::paging::PagingLevels::{Five, Four};
    use crate::test::{Form, KallsymsImage, Order, PageSize, Ram};

    const STEXT: u64 = KERNEL_MAP + 0x1260_0000;
    const RELEASE: &str = "6.1.0-test";
    const PAGE_OFFSET: u64 = 0xff12_3400_0000_0000;
    const PAGE_OFFSET_4: u64 = 0xffff_9123_4000_0000;
    /// Offsets in the image: 2 MiB of code, then the tables of kallsyms, then variables, then page tables.
    const TABLES: u64 = 0x20_0000;
    const UTS: u64 = 0x40_0000;
    const PAGE_OFFSET_BASE: u64 = 0x40_1000;
    const BOOT_ID: u64 = 0x40_1010;
    const NOTES: u64 = 0x40_2000;
    const PAGE_TABLES: u64 = 0x60_0000;

    /// A machine with 256 MiB, and an image in it.
    #[derive(Clone, Copy)]
    struct Guest {
        levels: PagingLevels,
        order: Order,
        form: Form,
        /// Of `_stext`.
        physical: u64,
        uts_name: u64,
    }

    const GUEST: Guest = Guest {
        levels: Five,
        order: Order::From6_4,
        form: Form::PerCpuAbsolute,
        physical: 0x460_0000,
        uts_name: 0,
    };

    impl Guest {
        fn symbols(self) -> Vec<(u64, String)> {
            let mut symbols = vec![(STEXT, "T_stext".to_owned())];
            let function = |index: u64| (STEXT + 16 * index, format!("tsymbol_{index}"));
            symbols.extend((1..700).map(function));
            for (offset, name) in [
                (0x1f_0000, "T_etext"),
                (UTS, "Dinit_uts_ns"),
                (PAGE_OFFSET_BASE, "Dpage_offset_base"),
                (BOOT_ID, "bsysctl_bootid"),
                (NOTES, "R__start_notes"),
                (NOTES + 0x28, "R__stop_notes"),
                (PAGE_TABLES, "Dinit_top_pgt"),
            ] {
                symbols.push((STEXT + offset, name.to_owned()));
            }
            symbols
        }

        fn image(self) -> KallsymsImage {
            let start = STEXT + TABLES;
            KallsymsImage::in_order(self.order, self.form, start, STEXT, &self.symbols())
        }

        fn root(self) -> u64 {
            self.physical + PAGE_TABLES
        }

        fn ram(self) -> Ram {
            let mut ram = Ram::new(&[(0, 0x1000_0000)]);
            self.put_in(&mut ram);
            ram
        }

        fn put_in(self, ram: &mut Ram) {
            for offset in (0..0x80_0000).step_by(0x20_0000) {
                let (address, physical) = (STEXT + offset, self.physical + offset);
                ram.map(self.root(), self.levels, address, physical, PageSize::Mib2);
            }
            let page_offset = if self.levels == Five { PAGE_OFFSET } else { PAGE_OFFSET_4 };
            ram.map(self.root(), self.levels, page_offset, 0, PageSize::Gib1);
            ram.write(self.physical + TABLES, &self.image().bytes);
            let uts = self.physical + UTS + self.uts_name;
            ram.write(uts, b"Linux\0");
            ram.write(uts + 130, RELEASE.as_bytes());
            ram.write(self.physical + PAGE_OFFSET_BASE, &page_offset.to_le_bytes());
            ram.write(self.physical + BOOT_ID, &[7; 16]);
            ram.write(
                self.physical + NOTES,
                b"\x04\0\0\0\x04\0\0\0\x01\0\0\0Xen\0\0\0\0\0\x04\0\0\0\x04\0\0\0\x03\0\0\0GNU\0\x1a\x2b\x3c\x4d",
            );
        }

        fn phys_base(self) -> u64 {
            self.physical.wrapping_sub(STEXT - KERNEL_MAP)
        }

        /// A page of VMCOREINFO, with the tables of kallsyms or without.
        fn vmcoreinfo(self, with_kallsyms: bool) -> String {
            let tables = self.image().tables;
            let mut page = format!(
                "OSRELEASE={RELEASE}\nSYMBOL(init_uts_ns)={:x}\nOFFSET(uts_namespace.name)={}\n\
                 SYMBOL(_stext)={STEXT:x}\nSYMBOL(init_top_pgt)={:x}\nNUMBER(phys_base)={}\n\
                 NUMBER(pgtable_l5_enabled)={}\n",
                STEXT + UTS,
                self.uts_name,
                STEXT + PAGE_TABLES,
                self.phys_base().cast_signed(),
                u8::from(self.levels == Five),
            );
            for (name, address) in [
                ("num_syms", tables.num_syms),
                ("names", tables.names),
                ("token_table", tables.token_table),
                ("token_index", tables.token_index),
                ("offsets", tables.offsets),
                ("relative_base", tables.relative_base),
                ("addresses", tables.addresses),
            ] {
                if let Some(address) = address.filter(|_| with_kallsyms) {
                    page += &format!("SYMBOL(kallsyms_{name})={:x}\n", address.0);
                }
            }
            page
        }
    }

    const PAGE: u64 = 0x90_0000;

    fn check(guest: Guest, kernel: &Kernel) {
        assert_eq!(kernel.release, RELEASE);
        assert_eq!(kernel.build_id.as_deref(), Some("1a2b3c4d"));
        assert_eq!(kernel.text, STEXT..STEXT + 0x1f_0000);
        assert_eq!(kernel.layout.phys_base, guest.phys_base());
        assert_eq!(kernel.layout.levels, guest.levels);
        let page_offset = if guest.levels == Five { PAGE_OFFSET } else { PAGE_OFFSET_4 };
        assert_eq!(kernel.page_offset, Some(page_offset));
        let symbols = kernel.symbols.iter().map(|symbol| symbol.address.0);
        assert!(symbols.eq(guest.symbols().iter().map(|(address, _)| *address)));
    }

    #[test]
    fn kernels_are_found_each_way() {
        for (order, form) in [
            (Order::Before6_2, Form::Absolute),
            (Order::Before6_2, Form::PerCpuAbsolute),
            (Order::From6_2, Form::PerCpuAbsolute),
            (Order::From6_4, Form::Relative),
            (Order::From7_0, Form::PcRelative),
        ] {
            for (levels, physical, uts_name) in [(Four, 0x460_0000, 4), (Five, 0xa60_0000, 0)] {
                let guest = Guest { levels, order, form, physical, uts_name };
                let ram = guest.ram();
                check(guest, &Kernel::find(&ram, &[]).unwrap());
                // What CR3 held: with a PCID, and of the user's half.
                let hints = [0x123_4000, guest.root() | 0x1001];
                check(guest, &Kernel::find(&ram, &hints).unwrap());
                for with_kallsyms in [true, false] {
                    let mut ram = guest.ram();
                    ram.write(PAGE, guest.vmcoreinfo(with_kallsyms).as_bytes());
                    check(guest, &Kernel::find(&ram, &[]).unwrap());
                    check(guest, &Kernel::find(&ram, &[guest.root()]).unwrap());
                }
            }
        }
    }

    #[test]
    fn why_no_kernel_is_found_is_said() {
        let not_found = |ram: &Ram, hints: &[u64]| Kernel::find(ram, hints).unwrap_err();
        assert_eq!(not_found(&Ram::new(&[(0, 1 << 30)]), &[]), NotFound::NoMemory);
        let mut ram = Ram::new(&[(0, 0x1000_0000)]);
        ram.write(0x1000, &[0; 0x1000]);
        assert_eq!(not_found(&ram, &[0x1000]), NotFound::NoLinux);
        ram.write(PAGE, GUEST.vmcoreinfo(true).as_bytes());
        assert_eq!(not_found(&ram, &[0x1000]), NotFound::NotProved);
        ram.write(0x1000, &[0x5a; 0x1000]);
        assert_eq!(not_found(&ram, &[0x1000]), NotFound::Encrypted);

        let mut without_symbols = GUEST.ram();
        without_symbols.write(PAGE, GUEST.vmcoreinfo(true).as_bytes());
        without_symbols.write(GUEST.physical + TABLES, &[0; 0x4000]);
        let expected = NotFound::NoSymbols { release: RELEASE.to_owned() };
        assert_eq!(not_found(&without_symbols, &[]), expected);
    }

    #[test]
    fn the_kernel_that_virtual_cpus_run_is_taken() {
        let other = Guest { physical: 0xc60_0000, levels: Four, ..GUEST };
        let mut ram = GUEST.ram();
        other.put_in(&mut ram);
        ram.write(PAGE, GUEST.vmcoreinfo(true).as_bytes());
        ram.write(PAGE + 0x1000, other.vmcoreinfo(true).as_bytes());
        for guest in [GUEST, other] {
            check(guest, &Kernel::find(&ram, &[guest.root()]).unwrap());
        }
        // None of them is one whose tables a virtual CPU has.
        assert_eq!(Kernel::find(&ram, &[0x1000]), Err(NotFound::NotProved));
    }

    #[test]
    fn another_boot_is_noticed() {
        let mut ram = GUEST.ram();
        let kernel = Kernel::find(&ram, &[GUEST.root()]).unwrap();
        assert!(kernel.is_same_boot(&ram));
        let mut other_id = GUEST.ram();
        other_id.write(GUEST.physical + BOOT_ID, &[8; 16]);
        assert!(!kernel.is_same_boot(&other_id));
        // The number is made when a program reads it first.
        let mut early = GUEST.ram();
        early.write(GUEST.physical + BOOT_ID, &[0; 16]);
        let found_early = Kernel::find(&early, &[]).unwrap();
        assert!(found_early.is_same_boot(&ram));
        let mut moved = GUEST.ram();
        moved.write(GUEST.physical + PAGE_OFFSET_BASE, &PAGE_OFFSET_4.to_le_bytes());
        assert!(!kernel.is_same_boot(&moved));
        let elsewhere = Guest { physical: 0xa60_0000, ..GUEST }.ram();
        assert!(!kernel.is_same_boot(&elsewhere));
        ram.remove_page(GUEST.root());
        assert!(!kernel.is_same_boot(&ram));
    }

    #[test]
    fn hostile_page_tables_have_no_image() {
        // One table of every level, which maps itself everywhere.
        let mut ram = Ram::new(&[(0, 0x1000_0000)]);
        ram.write(0x1000, &0x1003_u64.to_le_bytes().repeat(512));
        let space = AddressSpace::new(&ram, GuestPhys(0x1000), Five, 0);
        assert_eq!(Image::find(&space), None);
        assert_eq!(Kernel::find(&ram, &[0x1000]), Err(NotFound::NoLinux));
        // An image of 1 GiB ends at its bound.
        let mut ram = Ram::new(&[(0, 0x1000_0000)]);
        ram.map(0x1000, Four, KERNEL_MAP, 0, PageSize::Gib1);
        let space = AddressSpace::new(&ram, GuestPhys(0x1000), Four, 0);
        assert_eq!(Image::find(&space).unwrap().physical, 0..MAX_IMAGE);
    }

    #[test]
    fn hostile_notes_end() {
        for (notes, bytes) in [([0xff; 36], 36), ([0; 36], u64::MAX)] {
            let mut ram = GUEST.ram();
            ram.write(GUEST.physical + NOTES, &notes);
            let space = AddressSpace::new(&ram, GuestPhys(GUEST.root()), Five, 0);
            let mut symbols = Symbols::default();
            let start = STEXT + NOTES;
            symbols.push(GuestVirt(start), b'R', b"__start_notes").unwrap();
            symbols.push(GuestVirt(start.saturating_add(bytes)), b'R', b"__stop_notes").unwrap();
            assert_eq!(read_build_id(&space, &symbols), None);
        }
    }
}
