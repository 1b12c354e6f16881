//! What an ELF file's headers say: build id, segments, and where its tables of functions are.

use model::BuildId;
use object::elf::{
    FileHeader32, FileHeader64, NT_GNU_BUILD_ID, PF_X, PT_LOAD, SHT_DYNSYM, SHT_NOBITS, SHT_SYMTAB,
};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};
use object::{FileKind, LittleEndian};

use super::bytes::Bytes;

/// Most segments and tables of symbols that are looked at.
const MAX_SEGMENTS: usize = 1024;
const MAX_TABLES: usize = 8;
/// Programs have some 40; with a section for each function they are not linked.
const MAX_SECTIONS: usize = 2048;

/// A part of a file, and where it lies in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Part {
    /// Address of its first byte.
    pub(crate) address: u64,
    /// Offset and size in the file.
    pub(crate) range: (u64, u64),
}

/// A table of symbols.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SymbolTable {
    /// Where its entries are.
    pub(crate) symbols: (u64, u64),
    pub(crate) names: (u64, u64),
}

/// What the headers say.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Headers {
    /// Entries of symbol tables have 24 bytes, not 16.
    pub(crate) is_64_bit: bool,
    pub(crate) build_id: Option<BuildId>,
    /// What is loaded; executable parts first.
    pub(crate) segments: Vec<Part>,
    /// Tables of symbols; the full one and the dynamic one.
    pub(crate) symbol_tables: Vec<SymbolTable>,
    /// Whether the full table is there: the file is not stripped.
    pub(crate) has_full_table: bool,
    /// The sections could not be read.
    pub(crate) is_cut: bool,
    pub(crate) eh_frame: Option<Part>,
    pub(crate) text: Option<Part>,
    /// Procedure linkage tables: stubs that jump to other files' functions.
    pub(crate) stubs: Vec<Part>,
    /// Go's table of functions.
    pub(crate) go_table: Option<Part>,
    /// Go's module data.
    pub(crate) go_module: Option<Part>,
    /// A compressed ELF file with a table of symbols.
    pub(crate) debug_data: Option<Part>,
}

impl Headers {
    /// Reads the headers of `bytes`.
    pub(crate) fn read(bytes: &Bytes<'_>) -> Result<Self, String> {
        let headers = match FileKind::parse(bytes) {
            Ok(FileKind::Elf64) => read::<FileHeader64<LittleEndian>>(bytes),
            Ok(FileKind::Elf32) => read::<FileHeader32<LittleEndian>>(bytes),
            _ => return Err("not an ELF file".to_owned()),
        };
        headers.map_err(|error| format!("not a sound ELF file: {error}"))
    }

    /// The address of the byte at file offset `offset`.
    pub(crate) fn address(&self, offset: u64) -> Option<u64> {
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
    for program in header.program_headers(endian, bytes)?.iter().take(MAX_SEGMENTS) {
        if program.p_type(endian) == PT_LOAD {
            let range = program.file_range(endian);
            let part = Part { address: program.p_vaddr(endian).into(), range };
            let is_code = program.p_flags(endian) & PF_X != 0;
            if is_code { headers.segments.push(part) } else { others.push(part) }
        }
        // A note that makes no sense costs what follows it in its segment.
        if headers.build_id.is_none() {
            headers.build_id = build_id::<H>(program, endian, bytes);
        }
    }
    headers.segments.append(&mut others);
    // A file without sections, or with damaged ones, still has its build id.
    headers.is_cut = read_sections(header, endian, bytes, &mut headers).is_err();
    Ok(headers)
}

fn build_id<H: FileHeader<Endian = LittleEndian>>(
    program: &H::ProgramHeader,
    endian: LittleEndian,
    bytes: &Bytes<'_>,
) -> Option<BuildId> {
    let mut notes = program.notes(endian, bytes).ok()??;
    while let Ok(Some(note)) = notes.next() {
        if note.name() == b"GNU" && note.n_type(endian) == NT_GNU_BUILD_ID {
            return BuildId::new(note.desc());
        }
    }
    None
}

fn read_sections<H: FileHeader<Endian = LittleEndian>>(
    header: &H,
    endian: LittleEndian,
    bytes: &Bytes<'_>,
    headers: &mut Headers,
) -> object::Result<()> {
    let sections = header.section_headers(endian, bytes)?;
    // Tables of symbols are known by their kind: they need no names.
    let names = header.section_strings(endian, bytes, sections).unwrap_or_default();
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
            continue;
        }
        let part = Part { address: section.sh_addr(endian).into(), range };
        match section.name(endian, names).unwrap_or_default() {
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
    Ok(())
}
