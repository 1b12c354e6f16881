//! Build ids and function symbols of ELF files. Reads only what it needs of a file, never maps it: a file that shrinks
//! while it is read is an error, not a signal.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use api::guest::{FunctionSymbol, MAX_ANSWER_BYTES, MAX_SYMBOLS};
use object::elf::{
    FileHeader32, FileHeader64, NT_GNU_BUILD_ID, PT_LOAD, SHN_UNDEF, SHT_DYNSYM, SHT_SYMTAB,
    STT_FUNC, STT_GNU_IFUNC,
};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader, Sym};
use object::{Endianness, FileKind, ReadCache, ReadRef, StringTable};
use rustix::fs::OFlags;

/// Larger files are not read.
pub(crate) const MAX_FILE_BYTES: u64 = 512 << 20;

/// What is read of an ELF file.
#[derive(Debug, Default, PartialEq, Eq)]
struct Elf {
    build_id: Vec<u8>,
    functions: Vec<FunctionSymbol>,
}

/// How much of an ELF file to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Read {
    BuildId,
    Functions,
}

/// Why a file's functions can't be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ElfError {
    /// The file is gone or unreadable.
    #[error("{0}")]
    Read(#[from] io::Error),
    /// The path names another file by now.
    #[error("the file was replaced by another one")]
    Replaced,
    #[error("not a regular file")]
    NotRegular,
    #[error("larger than {} MiB", .0 >> 20)]
    TooLarge(u64),
    #[error("not an ELF file")]
    NotElf,
    #[error("{0}")]
    Damaged(#[from] object::Error),
}

/// Reads the GNU build id of the file at `path`; `None` if it has none or is no ELF file.
pub(crate) fn read_build_id(path: &Path) -> Option<Vec<u8>> {
    let cache = ReadCache::new(open(path, MAX_FILE_BYTES).ok()?);
    let build_id = parse(&cache, Read::BuildId).ok()?.build_id;
    (!build_id.is_empty()).then_some(build_id)
}

/// Reads the function symbols of the file at `path`, if it has the build id `expected` (when given) and at most so many bytes.
pub(crate) fn read_functions(
    path: &Path,
    expected: &[u8],
    most_bytes: u64,
) -> Result<Vec<FunctionSymbol>, ElfError> {
    let cache = ReadCache::new(open(path, most_bytes)?);
    if !expected.is_empty() && expected != parse(&cache, Read::BuildId)?.build_id {
        return Err(ElfError::Replaced);
    }
    Ok(parse(&cache, Read::Functions)?.functions)
}

/// The function symbols of an ELF image in memory (the vDSO).
pub(crate) fn functions_of_image(image: &[u8]) -> Result<Vec<FunctionSymbol>, ElfError> {
    Ok(parse(image, Read::Functions)?.functions)
}

fn open(path: &Path, most_bytes: u64) -> Result<BufReader<File>, ElfError> {
    // Whatever the path leads to by now is not waited for.
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(ElfError::NotRegular);
    }
    if most_bytes < metadata.len() {
        return Err(ElfError::TooLarge(most_bytes));
    }
    Ok(BufReader::new(file))
}

fn parse<'data>(data: impl ReadRef<'data>, read: Read) -> Result<Elf, ElfError> {
    let elf = match FileKind::parse(data) {
        Ok(FileKind::Elf64) => parse_class::<FileHeader64<Endianness>>(data, read),
        Ok(FileKind::Elf32) => parse_class::<FileHeader32<Endianness>>(data, read),
        _ => return Err(ElfError::NotElf),
    };
    Ok(elf?)
}

fn parse_class<'data, H: FileHeader<Endian = Endianness>>(
    data: impl ReadRef<'data>,
    read: Read,
) -> object::Result<Elf> {
    let header = H::parse(data)?;
    let endian = header.endian()?;
    let mut elf = Elf::default();
    let mut segments = Vec::new();
    for program in header.program_headers(endian, data)? {
        if program.p_type(endian) == PT_LOAD {
            let (offset, size) = program.file_range(endian);
            segments.push(Segment { address: program.p_vaddr(endian).into(), offset, size });
        }
        let Some(mut notes) = program.notes(endian, data)? else { continue };
        while let Some(note) = notes.next()? {
            if note.name() == b"GNU" && note.n_type(endian) == NT_GNU_BUILD_ID {
                elf.build_id = note.desc().to_vec();
            }
        }
    }
    if read == Read::Functions {
        elf.functions = functions(header, endian, data, &segments)?;
    }
    Ok(elf)
}

/// Functions of the full symbol table and of the dynamic one: a stripped library keeps the latter.
fn functions<'data, H: FileHeader<Endian = Endianness>>(
    header: &'data H,
    endian: Endianness,
    data: impl ReadRef<'data>,
    segments: &[Segment],
) -> object::Result<Vec<FunctionSymbol>> {
    let mut functions = Vec::new();
    // Names may overlap in the file: all of them together may be many times as long.
    let mut bytes_left = MAX_ANSWER_BYTES;
    let sections = header.sections(endian, data)?;
    for section in sections.iter() {
        if !matches!(section.sh_type(endian), SHT_SYMTAB | SHT_DYNSYM) {
            continue;
        }
        let symbols: &[H::Sym] = section.data_as_array(endian, data)?;
        let names = sections.section(section.link(endian))?.data(endian, data)?;
        // Read at once: a look into the file for each name would take ten times as long.
        let names = StringTable::new(names, 0, names.len() as u64);
        for symbol in symbols {
            let Some(function) = function(symbol, endian, names, segments) else { continue };
            let Some(rest) = bytes_left.checked_sub(function.name.len()) else { break };
            bytes_left = rest;
            functions.push(function);
            if MAX_SYMBOLS <= functions.len() {
                break;
            }
        }
    }
    functions.sort_by(|a, b| (a.offset, a.size, &a.name).cmp(&(b.offset, b.size, &b.name)));
    functions.dedup();
    Ok(functions)
}

fn function<S: Sym<Endian = Endianness>>(
    symbol: &S,
    endian: Endianness,
    names: StringTable<'_>,
    segments: &[Segment],
) -> Option<FunctionSymbol> {
    let is_function = matches!(symbol.st_type(), STT_FUNC | STT_GNU_IFUNC);
    if !is_function || symbol.st_shndx(endian) == SHN_UNDEF {
        return None;
    }
    let address = symbol.st_value(endian).into();
    let offset = segments.iter().find_map(|segment| segment.file_offset(address))?;
    let name = String::from_utf8_lossy(symbol.name(endian, names).ok()?).into_owned();
    let size = symbol.st_size(endian).into();
    (!name.is_empty()).then_some(FunctionSymbol { offset, size, name })
}

/// A loadable part of a file.
struct Segment {
    address: u64,
    offset: u64,
    size: u64,
}

impl Segment {
    fn file_offset(&self, address: u64) -> Option<u64> {
        let within = address.checked_sub(self.address)?;
        (within < self.size).then(|| self.offset.wrapping_add(within))
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use std::process::Command;

    const SOURCE: &str = "
        int compute_a(int x) { return x * 3 + 1; }
        static int hidden(int x) { return x + 2; }
        int main(int argc, char **argv) { return compute_a(argc) + hidden(argc); }
    ";

    /// Compiles the source with `flags`, expects these functions, each at the file offset of its code.
    fn check(flags: &[&str], expected: &[&str]) {
        let directory = tempfile::tempdir().unwrap();
        let source = directory.path().join("program.c");
        let program = directory.path().join("program");
        std::fs::write(&source, SOURCE).unwrap();
        let built = Command::new("cc")
            .args(["-O0", "-Wl,--build-id=sha1"])
            .args(flags)
            .arg("-o")
            .args([&program, &source])
            .status();
        if !built.is_ok_and(|status| status.success()) {
            return skip::skip(format_args!("no C compiler that can build with {flags:?}"));
        }
        let build_id = read_build_id(&program).unwrap();
        assert_eq!(build_id.len(), 20);
        let functions = read_functions(&program, &build_id, MAX_FILE_BYTES).unwrap();
        let bytes = std::fs::read(&program).unwrap();
        for name in expected {
            let function = functions.iter().find(|function| function.name == *name).unwrap();
            let code = &bytes[usize::try_from(function.offset).unwrap()..];
            // `push %rbp; mov %rsp, %rbp`, maybe after `endbr64`.
            let code = code.strip_prefix(b"\xf3\x0f\x1e\xfa").unwrap_or(code);
            assert!(code.starts_with(b"\x55\x48\x89\xe5"), "{name} with {flags:?}");
            assert!(0 < function.size);
        }
        assert!(matches!(
            read_functions(&program, &[1; 20], MAX_FILE_BYTES),
            Err(ElfError::Replaced)
        ));
        let bytes = std::fs::metadata(&program).unwrap().len();
        assert!(read_functions(&program, &build_id, bytes).is_ok());
        assert!(matches!(
            read_functions(&program, &build_id, bytes - 1),
            Err(ElfError::TooLarge(_))
        ));
    }

    #[test]
    fn functions_of_programs_and_libraries_are_found() {
        check(&["-pie", "-fPIE"], &["compute_a", "hidden", "main"]);
        check(&["-no-pie"], &["compute_a", "hidden", "main"]);
        check(&["-static"], &["compute_a", "hidden", "main"]);
        check(&["-shared", "-fPIC", "-s"], &["compute_a", "main"]); // only .dynsym
    }

    #[test]
    fn what_is_no_elf_file_is_refused() {
        let check = |path: &str| read_functions(Path::new(path), &[], MAX_FILE_BYTES).unwrap_err();
        assert!(matches!(check("/nonexistent"), ElfError::Read(_)));
        assert!(matches!(check("/proc/self/maps"), ElfError::NotElf));
        assert!(matches!(check("/dev/zero"), ElfError::NotRegular));
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        let error = read_functions(&fifo, &[], MAX_FILE_BYTES).unwrap_err();
        assert!(matches!(error, ElfError::NotRegular));
        assert_eq!(read_build_id(Path::new("/etc/passwd")), None);
    }
}
