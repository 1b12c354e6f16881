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
use crate::vmcoreinfo::{ALL, ImageLayout, KERNEL_MAP, VmcoreInfo, find_candidates};

/// An image is aligned to this much, in virtual and in physical memory.
const IMAGE_ALIGN: u64 = 2 << 20;
/// Bytes in which an image may be mapped, and which it may have.
const IMAGE_WITHIN: u64 = 1 << 30;
const MAX_IMAGE: u64 = 256 << 20;
/// Unmapped bytes in an image: what was for booting only is freed.
const MAX_GAP: u64 = 32 << 20;
/// Most virtual CPUs whose page tables are looked at.
const MAX_HINTS: usize = 64;
/// Most places of images that are searched for them.
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
    boot_id: BootId,
}

/// The kernel's random number of this boot. It is 0 until a program of the guest reads it.
type BootId = [u8; 16];

/// Why no kernel was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotFound {
    NoMemory,
    Encrypted,
    NoLinux,
    /// There are pages of VMCOREINFO: a kernel boots, or did before the last reset.
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
        let candidates = find_candidates(memory);
        let is_right = |info: &&VmcoreInfo| {
            info.layout.prove(memory, &info.release) && hints_map(memory, &hints, &info.layout)
        };
        let mut proved = candidates.iter().filter(is_right).peekable();
        if let Some(first) = proved.peek() {
            let release = first.release.clone();
            let found = proved.find_map(|info| from_vmcoreinfo(memory, info));
            return found.ok_or(NotFound::NoSymbols { release });
        }
        find_by_shape(memory, &hints).ok_or_else(|| {
            if are_encrypted(memory, &hints) {
                NotFound::Encrypted
            } else if candidates.is_empty() {
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

    /// Whether this boot of the kernel still runs: a few reads. A kernel without KASLR that boots anew is told from the
    /// former one by its random number only.
    #[must_use]
    pub fn is_same_boot(&self, memory: &dyn PhysicalMemory) -> bool {
        let space = self.address_space(memory);
        let boot_id = read_boot_id(&space, &self.symbols);
        self.layout.prove(memory, &self.release)
            && read_page_offset(&space, &self.symbols) == self.page_offset
            && (boot_id == self.boot_id || self.boot_id == BootId::default())
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
        Some(Self {
            release,
            build_id: read_build_id(&space, &symbols),
            layout,
            text,
            page_offset: read_page_offset(&space, &symbols),
            boot_id: read_boot_id(&space, &symbols),
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
                kernel = prove_found(memory, &found, image.phys_base);
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
        kernel = found.phys_bases().find_map(|phys_base| {
            let kernel = prove_found(memory, &found, phys_base)?;
            hints_map(memory, hints, &kernel.layout).then_some(kernel)
        });
        kernel.is_some()
    });
    kernel
}

impl Found {
    fn with_virtual_addresses(mut self, phys_base: u64) -> Symbols {
        if self.is_physical {
            self.symbols.shift(KERNEL_MAP.wrapping_sub(phys_base));
        }
        self.symbols
    }

    fn virtual_address(&self, name: &str, phys_base: u64) -> Option<GuestVirt> {
        let address = self.symbols.address(name)?.0;
        let shift = if self.is_physical { KERNEL_MAP.wrapping_sub(phys_base) } else { 0 };
        Some(GuestVirt(address.wrapping_add(shift)))
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

fn prove_found(memory: &dyn PhysicalMemory, found: &Found, phys_base: u64) -> Option<Kernel> {
    let init_top_pgt = found.virtual_address("init_top_pgt", phys_base)?;
    let uts = found.virtual_address("init_uts_ns", phys_base)?;
    let mut layouts = LEVELS.into_iter().flat_map(|levels| {
        UTS_NAME_OFFSETS.map(|offset| ImageLayout {
            init_top_pgt,
            init_uts_name: GuestVirt(uts.0.wrapping_add(offset)),
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

fn read_boot_id(kernel: &AddressSpace<'_>, symbols: &Symbols) -> BootId {
    let mut boot_id = BootId::default();
    let read = symbols.address("sysctl_bootid").and_then(|at| kernel.read(at, &mut boot_id));
    if read.is_some() { boot_id } else { BootId::default() }
}

/// Where all physical memory is mapped, proved by the uppermost page table's own page.
fn read_page_offset(kernel: &AddressSpace<'_>, symbols: &Symbols) -> Option<u64> {
    let fixed = match kernel.levels {
        PagingLevels::Four => 0xffff_8880_0000_0000,
        PagingLevels::Five => 0xff11_0000_0000_0000,
    };
    let variable = symbols.address("page_offset_base");
    let offset = variable.map_or(Some(fixed), |at| kernel.read_u64(at))?;
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
