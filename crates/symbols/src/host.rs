//! Names in the host's processes and kernel.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::ControlFlow;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use blazesym::SymType;
use blazesym::inspect::source::{Elf, Source as ElfSource};
use blazesym::inspect::{Inspector, SymInfo};
use model::{BuildId, Module, ModuleId, SymbolName};
use rustix::fs::OFlags;

use crate::guest::names_in_table;
use crate::{Demangler, Function, FunctionTable, KernelNames, Source, unreadable, vdso};

/// Larger files are not read.
const MAX_FILE_BYTES: u64 = 4 << 30;

/// Where each file can be opened, best first. A process in a container has its own file system and
/// a file may have been deleted, so its path alone is not enough:
/// `/proc/PID/map_files/START-END`, `/proc/PID/root/PATH`, `PATH`.
pub type Places = BTreeMap<ModuleId, Vec<PathBuf>>;

/// The symbols of the host.
#[derive(Debug, Default)]
pub struct HostSource {
    kernel: KernelNames,
    places: Places,
    demangler: Demangler,
}

impl HostSource {
    /// A source for the modules that have `places`, and for `kernel`.
    #[must_use]
    pub fn new(kernel: KernelNames, places: Places) -> Self {
        Self { kernel, places, ..Self::default() }
    }

    fn table(&self, id: ModuleId, module: &Module) -> Result<FunctionTable, String> {
        if module.path == "[vdso]" {
            let image = vdso::image().map_err(|error| error.to_string())?;
            return functions_of(&image, None);
        }
        if !module.path.starts_with('/') {
            return Err("no file behind this mapping".to_owned());
        }
        let places = self.places.get(&id).map(Vec::as_slice).unwrap_or_default();
        let mut reason = "the process ended before its file was read".to_owned();
        for place in places {
            match open(place).and_then(|file| functions_of(&file, module.build_id.as_ref())) {
                Ok(table) => return Ok(table),
                Err(why) => reason = why,
            }
        }
        Err(reason)
    }
}

impl Source for HostSource {
    fn names(&mut self, id: ModuleId, module: &Module, offsets: &[u64]) -> Vec<SymbolName> {
        if self.kernel.has(&module.path) {
            return offsets.iter().map(|offset| self.kernel.name(&module.path, *offset)).collect();
        }
        match self.table(id, module) {
            Ok(table) => names_in_table(&table, &mut self.demangler, offsets),
            Err(reason) => unreadable(&reason, offsets.len()),
        }
    }
}

/// Opens a regular file and nothing else: what lies under a container's path may be a pipe by now.
fn open(path: &Path) -> Result<File, String> {
    let nonblocking = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(nonblocking)
        .open(path)
        .map_err(|error| describe(&error))?;
    let metadata = file.metadata().map_err(|error| describe(&error))?;
    if !metadata.is_file() {
        return Err("not a regular file".to_owned());
    }
    if MAX_FILE_BYTES < metadata.len() {
        return Err(format!("larger than {} GiB", MAX_FILE_BYTES >> 30));
    }
    Ok(file)
}

/// The functions of an open ELF file, if it has the build id `expected` (when given).
///
/// The file is read through its descriptor, so what was checked is what is read. blazesym maps it: a
/// file that is cut short in this very moment ends us with SIGBUS; a container could only do that by
/// destroying a library that its own process runs.
fn functions_of(file: &File, expected: Option<&BuildId>) -> Result<FunctionTable, String> {
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    if expected.is_some() {
        let found =
            blazesym::helper::read_elf_build_id(&path).map_err(|error| error.to_string())?;
        if found.and_then(|bytes| BuildId::new(&bytes)).as_ref() != expected {
            return Err("file changed since it was mapped".to_owned());
        }
    }
    // Its parser trusts headers more than a container's file deserves.
    let functions =
        catch_panic::catch_panic(|| read_functions(&path)).ok_or("not a sound ELF file")?;
    Ok(FunctionTable::new(functions.map_err(|error| error.to_string())?))
}

/// Functions of the full symbol table and, where that has none, of the dynamic one.
fn read_functions(path: &Path) -> blazesym::Result<Vec<Function>> {
    let mut elf = Elf::new(path);
    elf.debug_syms = false;
    let mut functions = Vec::new();
    Inspector::new().for_each(&ElfSource::from(elf), |symbol| {
        functions.extend(function(symbol));
        ControlFlow::Continue(())
    })?;
    Ok(functions)
}

fn function(symbol: &SymInfo<'_>) -> Option<Function> {
    (symbol.sym_type == SymType::Function).then_some(())?;
    Some(Function {
        offset: symbol.file_offset?,
        size: symbol.size.map_or(0, |size| size as u64),
        name: symbol.name.clone().into_owned(),
    })
}

fn describe(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "its file is gone".to_owned(),
        io::ErrorKind::PermissionDenied => "no permission to read its file".to_owned(),
        _ => error.to_string(),
    }
}
