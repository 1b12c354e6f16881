//! What an ELF file's headers say: build id, segments, and where its tables of functions are. Section headers, which lie
//! at a file's end, are often not in memory: what programs need to run is found without them.

use model::BuildId;
use object::elf::{
    DT_GNU_HASH, DT_HASH, DT_NULL, DT_STRSZ, DT_STRTAB, DT_SYMTAB, FileHeader32, FileHeader64,
    NT_GNU_BUILD_ID, PF_X, PT_DYNAMIC, PT_GNU_EH_FRAME, PT_LOAD, SHT_DYNSYM, SHT_NOBITS,
    SHT_SYMTAB,
};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};
use object::{FileKind, LittleEndian};

use super::bytes::{Bytes, NoBytes};
use crate::memory::PAGE_BYTES;

/// Most segments and tables of symbols that are looked at.
const MAX_SEGMENTS: usize = 1024;
const MAX_TABLES: usize = 8;
/// Programs have some 40; with a section for each function they are not linked.
const MAX_SECTIONS: usize = 2048;
/// More than the entries of any dynamic section take.
const MAX_DYNAMIC_BYTES: u64 = 1 << 16;
/// More than all hash buckets of any dynamic symbol table take.
const MAX_BUCKET_BYTES: u64 = 16 << 20;
/// A chain of a hash table is a few symbols long.
const MAX_CHAIN: u32 = 1 << 12;

/// A part of a file, and where it lies in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Part {
    /// Address of its first byte.
    pub address: u64,
    /// Offset and size in the file.
    pub range: (u64, u64),
}

/// A table of symbols.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SymbolTable {
    /// Where its entries are.
    pub symbols: (u64, u64),
    pub names: (u64, u64),
}

/// What the headers say.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Headers {
    /// Entries of symbol tables have 24 bytes, not 16.
    pub is_64_bit: bool,
    pub build_id: Option<BuildId>,
    /// What is loaded; executable parts first.
    pub segments: Vec<Part>,
    /// Tables of symbols; the full one and the dynamic one.
    pub symbol_tables: Vec<SymbolTable>,
    /// Whether the full table is there: the file is not stripped.
    pub has_full_table: bool,
    /// Whether the table of symbols that other files may use is there.
    pub has_dynamic_table: bool,
    /// The sections could not be read.
    pub is_cut: bool,
    pub eh_frame: Option<Part>,
    /// `.eh_frame_hdr`: where in `.eh_frame` a function is.
    pub frame_index: Option<Part>,
    /// Made by Go's linker: its functions keep frame pointers, and have no `.eh_frame`.
    pub is_go: bool,
    pub text: Option<Part>,
    /// Procedure linkage tables: stubs that jump to other files' functions.
    pub stubs: Vec<Part>,
    /// Go's table of functions.
    pub go_table: Option<Part>,
    /// Go's module data.
    pub go_module: Option<Part>,
    /// A compressed ELF file with a table of symbols.
    pub debug_data: Option<Part>,
}

impl Headers {
    /// Reads the headers of `bytes`.
    ///
    /// # Errors
    /// One clause: it is no ELF file, or the begin of it does not make sense or is missing.
    pub fn read(bytes: &Bytes<'_>) -> Result<Self, String> {
        let headers = match FileKind::parse(bytes) {
            Ok(FileKind::Elf64) => read::<FileHeader64<LittleEndian>>(bytes),
            Ok(FileKind::Elf32) => read::<FileHeader32<LittleEndian>>(bytes),
            _ => return Err("not an ELF file".to_owned()),
        };
        headers.map_err(|error| format!("not a sound ELF file: {error}"))
    }

    /// The file offset of the byte at `address`.
    #[must_use]
    pub fn offset(&self, address: u64) -> Option<u64> {
        self.segments.iter().find_map(|segment| {
            let (start, size) = segment.range;
            let within = address.checked_sub(segment.address).filter(|within| *within < size)?;
            start.checked_add(within)
        })
    }

    /// What a mapping of code adds to the file's addresses, if it maps file offset `offset` to `start`.
    #[must_use]
    pub fn bias(&self, start: u64, offset: u64) -> Option<u64> {
        // Mappings begin at pages, segments may begin within them. Executable ones come first.
        let segment = self.segments.iter().find(|segment| {
            let (first, size) = segment.range;
            first & !(PAGE_BYTES - 1) <= offset && offset < first.saturating_add(size)
        })?;
        let address = segment.address.wrapping_add(offset.wrapping_sub(segment.range.0));
        Some(start.wrapping_sub(address))
    }

    /// The address of the byte at file offset `offset`.
    #[must_use]
    pub fn address(&self, offset: u64) -> Option<u64> {
        self.segments.iter().find_map(|segment| {
            let (start, size) = segment.range;
            let within = offset.checked_sub(start).filter(|within| *within < size)?;
            segment.address.checked_add(within)
        })
    }
}

fn read<H: FileHeader<Endian = LittleEndian>>(bytes: &Bytes<'_>) -> object::Result<Headers> {
    let header = H::parse(bytes)?;
    let endian = header.endian()?;
    let mut headers = Headers { is_64_bit: header.is_class_64(), ..Headers::default() };
    let mut others = Vec::new();
    let mut dynamic = None;
    for program in header.program_headers(endian, bytes)?.iter().take(MAX_SEGMENTS) {
        let part =
            Part { address: program.p_vaddr(endian).into(), range: program.file_range(endian) };
        match program.p_type(endian) {
            PT_DYNAMIC => dynamic = Some(part),
            PT_GNU_EH_FRAME => headers.frame_index = Some(part),
            _ => {}
        }
        if program.p_type(endian) == PT_LOAD {
            let is_code = program.p_flags(endian) & PF_X != 0;
            if is_code { headers.segments.push(part) } else { others.push(part) }
        }
        read_notes::<H>(program, endian, bytes, &mut headers);
    }
    headers.segments.append(&mut others);
    // A file without sections, or with damaged ones, still has its build id.
    let sections = read_sections(header, endian, bytes, &mut headers);
    headers.is_cut = sections.is_err();
    // Where sections are, they are right: a file of debugging symbols has the program headers of another.
    if !sections.unwrap_or(false) {
        if let Some(part) = dynamic.filter(|_| !headers.has_dynamic_table) {
            headers.is_cut |= add_dynamic_table(part, bytes, &mut headers).is_err();
        }
        let frames = headers.frame_index.and_then(|part| frames_of_index(part, bytes, &headers));
        headers.eh_frame = headers.eh_frame.or(frames);
    }
    Ok(headers)
}

/// A note that makes no sense costs what follows it in its segment.
fn read_notes<H: FileHeader<Endian = LittleEndian>>(
    program: &H::ProgramHeader,
    endian: LittleEndian,
    bytes: &Bytes<'_>,
    headers: &mut Headers,
) {
    /// Go's own build id (`ELF_NOTE_GOBUILDID_TAG`).
    const GO_BUILD_ID: u32 = 4;
    let Ok(Some(mut notes)) = program.notes(endian, bytes) else { return };
    while let Ok(Some(note)) = notes.next() {
        match (note.name(), note.n_type(endian)) {
            (b"GNU", NT_GNU_BUILD_ID) if headers.build_id.is_none() => {
                headers.build_id = BuildId::new(note.desc());
            }
            (b"Go", GO_BUILD_ID) => headers.is_go = true,
            _ => {}
        }
    }
}

/// Whether there are sections, and have names.
fn read_sections<H: FileHeader<Endian = LittleEndian>>(
    header: &H,
    endian: LittleEndian,
    bytes: &Bytes<'_>,
    headers: &mut Headers,
) -> object::Result<bool> {
    let sections = header.section_headers(endian, bytes)?;
    // Tables of symbols are known by their kind: they need no names.
    let names = header.section_strings(endian, bytes, sections).unwrap_or_default();
    let mut have_names = !sections.is_empty();
    for section in sections.iter().take(MAX_SECTIONS) {
        let kind = section.sh_type(endian);
        let range = (section.sh_offset(endian).into(), section.sh_size(endian).into());
        if kind == SHT_NOBITS {
            continue;
        }
        if matches!(kind, SHT_SYMTAB | SHT_DYNSYM) && headers.symbol_tables.len() < MAX_TABLES {
            let link = usize::try_from(section.sh_link(endian)).ok();
            let Some(names) = link.and_then(|link| sections.get(link)) else { continue };
            let names = (names.sh_offset(endian).into(), names.sh_size(endian).into());
            headers.symbol_tables.push(SymbolTable { symbols: range, names });
            headers.has_full_table |= kind == SHT_SYMTAB;
            headers.has_dynamic_table |= kind == SHT_DYNSYM;
            continue;
        }
        let part = Part { address: section.sh_addr(endian).into(), range };
        let name = section.name(endian, names);
        have_names &= name.is_ok();
        match name.unwrap_or_default() {
            b".eh_frame" => headers.eh_frame = Some(part),
            b".text" => headers.text = Some(part),
            b".plt" | b".plt.sec" | b".plt.got" if headers.stubs.len() < MAX_TABLES => {
                headers.stubs.push(part);
            }
            b".gopclntab" | b".data.rel.ro.gopclntab" => headers.go_table = Some(part),
            b".go.module" => headers.go_module = Some(part),
            b".gnu_debugdata" => headers.debug_data = Some(part),
            _ => {}
        }
    }
    Ok(have_names)
}

/// The table of the symbols that other files may use, as the dynamic linker finds it.
fn add_dynamic_table(part: Part, bytes: &Bytes<'_>, headers: &mut Headers) -> Result<(), NoBytes> {
    let entries = bytes.window(part.range).all(MAX_DYNAMIC_BYTES)?;
    let words = |bytes: &[u8]| -> Vec<u64> {
        let (words, _) = bytes.as_chunks::<8>();
        let (halves, _) = bytes.as_chunks::<4>();
        if headers.is_64_bit {
            words.iter().map(|word| u64::from_le_bytes(*word)).collect()
        } else {
            halves.iter().map(|half| u32::from_le_bytes(*half).into()).collect()
        }
    };
    let words = words(&entries);
    let (pairs, _) = words.as_chunks::<2>();
    let entry = |wanted: i64| {
        let mut pairs = pairs.iter().take_while(|[tag, _]| *tag != DT_NULL.cast_unsigned());
        pairs.find(|[tag, _]| *tag == wanted.cast_unsigned()).map(|[_, value]| *value)
    };
    // A file without dynamic symbols is a whole one.
    let (Some(symbols), Some(names)) = (entry(DT_SYMTAB), entry(DT_STRTAB)) else { return Ok(()) };
    let (symbols, names) = headers.offset(symbols).zip(headers.offset(names)).ok_or(NoBytes)?;
    let place = |tag: i64| headers.offset(entry(tag)?);
    let count = match (place(DT_GNU_HASH), place(DT_HASH)) {
        (Some(table), _) => n_gnu_hashed(table, bytes, headers.is_64_bit)?,
        (None, Some(table)) => u32::from_le_bytes(bytes.window((table, 8)).array(4)?),
        (None, None) => return Err(NoBytes),
    };
    let entry_bytes = if headers.is_64_bit { 24 } else { 16 };
    headers.symbol_tables.push(SymbolTable {
        symbols: (symbols, u64::from(count).saturating_mul(entry_bytes)),
        names: (names, entry(DT_STRSZ).unwrap_or(u64::MAX)),
    });
    Ok(())
}

/// How many symbols there are up to the last one of a GNU hash table: number of buckets, number of the first symbol,
/// words of the filter, shift; filter; buckets (their first symbols); hashes of symbols, odd at a bucket's end.
fn n_gnu_hashed(table: u64, bytes: &Bytes<'_>, is_64_bit: bool) -> Result<u32, NoBytes> {
    let window = bytes.window((table, u64::MAX));
    let word = |at| window.array(at).map(u32::from_le_bytes);
    let (n_buckets, first, n_filter) = (word(0)?, word(4)?, word(8)?);
    let filter_bytes = u64::from(n_filter).saturating_mul(if is_64_bit { 8 } else { 4 });
    let buckets_at = filter_bytes.saturating_add(16);
    let bucket_bytes = u64::from(n_buckets).saturating_mul(4);
    let start = table.checked_add(buckets_at).ok_or(NoBytes)?;
    let buckets = bytes.window((start, bucket_bytes)).all(MAX_BUCKET_BYTES)?;
    let (buckets, _) = buckets.as_chunks::<4>();
    let last = buckets.iter().map(|bucket| u32::from_le_bytes(*bucket)).max().unwrap_or(0);
    let Some(hashed) = last.checked_sub(first) else { return Ok(first) };
    let hashes_at = buckets_at.saturating_add(bucket_bytes);
    for more in 0..MAX_CHAIN {
        let at = u64::from(hashed).saturating_add(more.into()).saturating_mul(4);
        if word(hashes_at.saturating_add(at))? & 1 == 1 {
            return Ok(last.saturating_add(more).saturating_add(1));
        }
    }
    Err(NoBytes)
}

/// `.eh_frame`, up to the end of its segment: it ends by itself before.
fn frames_of_index(index: Part, bytes: &Bytes<'_>, headers: &Headers) -> Option<Part> {
    // Version 1; a 4-byte address relative to its own place, as all linkers write it.
    let [1, 0x1b, _, _, distance @ ..] = bytes.window(index.range).array::<8>(0).ok()? else {
        return None;
    };
    let distance = i64::from(i32::from_le_bytes(distance));
    let address = index.address.checked_add(4)?.checked_add_signed(distance)?;
    headers.segments.iter().find_map(|segment| {
        let within = address.checked_sub(segment.address)?;
        let size = segment.range.1.checked_sub(within).filter(|size| 0 < *size)?;
        Some(Part { address, range: (segment.range.0.checked_add(within)?, size) })
    })
}
