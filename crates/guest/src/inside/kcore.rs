//! The running kernel's memory through `/proc/kcore`: an ELF core whose program headers say where in
//! the file each range of kernel addresses lies.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use linux::memory::KernelMemory;
use model::GuestVirt;
use object::LittleEndian;
use object::elf::{FileHeader64, PT_LOAD, ProgramHeader64};
use object::read::elf::{FileHeader, ProgramHeader};

use super::InsideError;

/// More than the headers of any kernel: 64 bytes for each range of memory.
const HEADER_BYTES: usize = 1 << 18;
/// Where x86-64 maps the kernel's own image (`__START_KERNEL_map`); modules lie above it too.
const IMAGE_BASE: u64 = 0xffff_ffff_8000_0000;

/// The open core file.
#[derive(Debug)]
pub(crate) struct Kcore {
    file: File,
    ranges: Vec<Range>,
}

/// One program header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    virt: u64,
    phys: u64,
    offset: u64,
    size: u64,
}

impl Kcore {
    pub(crate) fn open(path: &Path) -> Result<Self, InsideError> {
        let file = File::open(path).map_err(InsideError::read(path))?;
        let mut header = vec![0; HEADER_BYTES];
        let mut length = 0;
        while length < header.len() {
            match file.read_at(&mut header[length..], length as u64) {
                Ok(0) => break,
                Ok(more) => length += more,
                Err(source) if length == 0 => {
                    return Err(InsideError::Read { path: path.into(), source });
                }
                Err(_) => break,
            }
        }
        let ranges = parse(&header[..length]).ok_or_else(|| InsideError::Content {
            path: PathBuf::from(path),
            text: "not the core file of a 64-bit kernel".into(),
        })?;
        Ok(Self { file, ranges })
    }

    /// Where the kernel maps physical address 0 (`page_offset_base`).
    pub(crate) fn page_offset(&self) -> Option<u64> {
        let ram = |range: &&Range| range.virt < IMAGE_BASE && range.phys < 1 << 52;
        // The vmalloc and vmemmap ranges have no physical address: 0 up to Linux 6.8, then -1.
        let ram =
            |range: &&Range| ram(range) && (range.phys != 0 || is_first_ram(range, &self.ranges));
        self.ranges.iter().find(ram).map(|range| range.virt.wrapping_sub(range.phys))
    }

    /// The physical address of something in the kernel's image.
    pub(crate) fn image_phys(&self, virt: u64) -> Option<u64> {
        let range =
            self.ranges.iter().find(|range| IMAGE_BASE <= range.virt && range.holds(virt))?;
        Some(range.phys.wrapping_add(virt - range.virt))
    }
}

impl Range {
    fn holds(&self, virt: u64) -> bool {
        self.virt <= virt && virt - self.virt < self.size
    }
}

/// Whether a range with physical address 0 is RAM: the others then lie as far from it in both spaces.
fn is_first_ram(range: &Range, ranges: &[Range]) -> bool {
    ranges.iter().any(|other| {
        other.virt < IMAGE_BASE
            && other.phys != 0
            && other.phys < 1 << 52
            && other.virt.wrapping_sub(range.virt) == other.phys
    })
}

fn parse(bytes: &[u8]) -> Option<Vec<Range>> {
    let header = FileHeader64::<LittleEndian>::parse(bytes).ok()?;
    let headers: &[ProgramHeader64<LittleEndian>] =
        header.program_headers(LittleEndian, bytes).ok()?;
    let loads = headers.iter().filter(|header| header.p_type(LittleEndian) == PT_LOAD);
    let ranges: Vec<Range> = loads
        .map(|header| Range {
            virt: header.p_vaddr(LittleEndian),
            phys: header.p_paddr(LittleEndian),
            offset: header.p_offset(LittleEndian),
            size: header.p_memsz(LittleEndian),
        })
        .collect();
    (!ranges.is_empty()).then_some(ranges)
}

impl KernelMemory for Kcore {
    fn read(&self, address: GuestVirt, buffer: &mut [u8]) -> Option<()> {
        let range = self.ranges.iter().find(|range| range.holds(address.0))?;
        let at = range.offset.checked_add(address.0 - range.virt)?;
        self.file.read_exact_at(buffer, at).ok()
    }
}

#[cfg(test)]
mod test {
    use super::*;

    /// A core file of these (virtual, physical) ranges of a page each.
    fn core(ranges: &[(u64, u64)]) -> Vec<u8> {
        let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
        bytes.resize(16, 0);
        bytes.extend([4u16, 62].iter().flat_map(|half| half.to_le_bytes()));
        bytes.extend(1u32.to_le_bytes());
        bytes.extend([0u64, 64, 0].iter().flat_map(|word| word.to_le_bytes()));
        bytes.extend(0u32.to_le_bytes());
        let count = u16::try_from(ranges.len()).unwrap();
        bytes.extend([64u16, 56, count, 0, 0, 0].iter().flat_map(|half| half.to_le_bytes()));
        for (number, (virt, phys)) in ranges.iter().enumerate() {
            bytes.extend([1u32, 7].iter().flat_map(|word| word.to_le_bytes()));
            let offset = 0x1000 * (number as u64 + 1);
            let words = [offset, *virt, *phys, 0x1000, 0x1000, 0];
            bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        }
        bytes
    }

    fn check(ranges: &[(u64, u64)], page_offset: Option<u64>) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kcore");
        let mut bytes = core(ranges);
        bytes.resize(0x1000 * (ranges.len() + 1), 0);
        bytes[0x1010] = 42;
        std::fs::write(&path, bytes).unwrap();
        let kcore = Kcore::open(&path).unwrap();
        assert_eq!(kcore.page_offset(), page_offset);
        let mut byte = [0];
        assert_eq!(kcore.read(GuestVirt(ranges[0].0 + 0x10), &mut byte), Some(()));
        assert_eq!(byte, [42]);
        assert_eq!(kcore.read(GuestVirt(ranges[0].0 - 1), &mut byte), None);
        assert_eq!(kcore.image_phys(ranges[0].0 + 5), Some(ranges[0].1 + 5));
    }

    #[test]
    fn headers_give_the_direct_mapping() {
        let text = (0xffff_ffff_9a00_0000, 0x1a00_0000);
        let vmalloc = 0xffff_a000_0000_0000;
        let direct = 0xffff_9000_4000_0000;
        // Up to Linux 6.8, and after.
        check(&[text, (vmalloc, 0), (direct + 0x1000, 0x1000)], Some(direct));
        check(&[text, (vmalloc, u64::MAX), (direct + 0x1000, 0x1000)], Some(direct));
        // RAM that begins at 0.
        check(&[text, (direct, 0), (direct + 0x9000, 0x9000), (vmalloc, 0)], Some(direct));
        check(&[text, (vmalloc, 0)], None);
    }

    #[test]
    fn another_file_is_refused() {
        assert!(Kcore::open(Path::new("/proc/self/maps")).is_err());
    }
}
