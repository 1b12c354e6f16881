//! Build ids and function symbols of ELF files. Reads only what it needs of a file, never maps it: a file that shrinks
//! while it is read is an error, not a signal.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use api::guest::FunctionSymbol;
use host::open_file::OpenFile;
use rustix::fs::OFlags;

use crate::elf::{self, FunctionsError};

/// Larger files are not read.
pub(crate) const MAX_FILE_BYTES: u64 = 512 << 20;

/// Why a file's functions can't be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ElfError {
    /// The file is gone or unreadable.
    #[error("{0}")]
    Read(#[from] io::Error),
    #[error("not a regular file")]
    NotRegular,
    #[error("larger than {} MiB", .0 >> 20)]
    TooLarge(u64),
    #[error(transparent)]
    Content(#[from] FunctionsError),
}

/// Reads the GNU build id of the file at `path`; `None` if it has none or is no ELF file.
pub(crate) fn read_build_id(path: &Path) -> Option<Vec<u8>> {
    let file = open(path, MAX_FILE_BYTES).ok()?;
    elf::build_id(&OpenFile::new(&file).ok()?)
}

/// Reads the function symbols of the file at `path`, if it has the build id `expected` (when given) and at most so many bytes.
pub(crate) fn read_functions(
    path: &Path,
    expected: &[u8],
    most_bytes: u64,
) -> Result<Vec<FunctionSymbol>, ElfError> {
    Ok(elf::functions(&OpenFile::new(&open(path, most_bytes)?)?, expected)?)
}

/// The function symbols of an ELF image in memory (the vDSO).
pub(crate) fn functions_of_image(image: &[u8]) -> Result<Vec<FunctionSymbol>, ElfError> {
    Ok(elf::functions(&image, &[])?)
}

fn open(path: &Path, most_bytes: u64) -> Result<File, ElfError> {
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
    Ok(file)
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
            Err(ElfError::Content(FunctionsError::Replaced))
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
        assert!(matches!(check("/proc/self/maps"), ElfError::Content(FunctionsError::NotElf(_))));
        assert!(matches!(check("/dev/zero"), ElfError::NotRegular));
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        let error = read_functions(&fifo, &[], MAX_FILE_BYTES).unwrap_err();
        assert!(matches!(error, ElfError::NotRegular));
        assert_eq!(read_build_id(Path::new("/etc/passwd")), None);
    }
}
