//! Names in the host's processes and kernel.

use std::collections::{BTreeMap, HashMap};
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use api::symbols::{FileFormat, FileFunctions, MAX_PLACES, SymbolAnswer, SymbolQuestion};
use model::{BuildId, Module, ModuleId, SymbolName};
use sandbox::{Failure, Sandbox};

use crate::demangle::printable;
use crate::file::{Place, SymbolReader};
use crate::{KernelNames, Source, unreadable, vdso};

/// Most bytes that are read of the files of one owner: who has many large files loses their names and no other owner's.
const MAX_OWNER_BYTES: u64 = 1 << 30;

/// Files of one owner that may stop the process that reads them: from then on that owner's files have no names.
const MAX_OWNER_FAILURES: u32 = 3;

/// Where each file can be opened, best first: through the mapping itself, in the process' own root, in ours.
pub type Places = BTreeMap<ModuleId, Vec<Place>>;

/// The symbols of the host.
#[derive(Debug, Default)]
pub struct HostSource {
    kernel: KernelNames,
    places: Places,
    files: Files,
    known: Known,
    /// Where files with the symbols of stripped ones are, by build id.
    debug_folder: Option<PathBuf>,
}

/// Names that are kept of all files; more are forgotten, all at once.
const MAX_KNOWN: usize = 1 << 18;
/// Files that stopped the process that read them and are remembered.
const MAX_STOPPED: usize = 1 << 10;

/// A file as long as it is unchanged. Not by its build id, which the file's maker chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct FileState {
    device: u64,
    inode: u64,
    changed: (i64, i64),
}

impl FileState {
    fn from_file(file: &File) -> Option<Self> {
        let metadata = file.metadata().ok()?;
        let changed = (metadata.ctime(), metadata.ctime_nsec());
        Some(Self { device: metadata.dev(), inode: metadata.ino(), changed })
    }
}

/// What files said: they are not read again for it.
#[derive(Debug, Default)]
struct Known {
    build_ids: HashMap<FileState, Option<BuildId>>,
    names: HashMap<(FileState, u64), SymbolName>,
}

impl Known {
    fn keep(&mut self, file: FileState, places: &[u64], names: &[SymbolName]) {
        if MAX_KNOWN < self.names.len() + names.len() {
            self.names.clear();
        }
        for (place, name) in places.iter().zip(names) {
            // Another time there may be a way to read it.
            if !matches!(name, SymbolName::Unreadable(_)) {
                self.names.insert((file, *place), name.clone());
            }
        }
    }

    fn keep_build_id(&mut self, file: FileState, build_id: Option<BuildId>) {
        if MAX_KNOWN <= self.build_ids.len() {
            self.build_ids.clear();
        }
        self.build_ids.insert(file, build_id);
    }
}

impl HostSource {
    /// A source for `kernel`, and for the given modules.
    #[must_use]
    pub fn new(kernel: KernelNames) -> Self {
        Self { kernel, ..Self::default() }
    }

    /// Modules are numbered anew from now on. What is known of files stays.
    pub fn reset(&mut self) {
        self.places.clear();
        self.files.allowances.clear();
        if MAX_STOPPED < self.files.stopped.len() {
            self.files.stopped.clear();
        }
    }

    /// Starts the process that reads files, which has this thread's priority.
    pub fn start_reader(&mut self) {
        // If it can't be started, the first question says why.
        let _ = self.files.sandbox.ask(&SymbolQuestion::Readable(Vec::new()), &[]);
    }

    /// The kernel has other names: its modules changed.
    pub fn set_kernel(&mut self, kernel: KernelNames) {
        self.kernel = kernel;
    }

    /// Adds modules that have appeared since, and lets every owner's files be read anew: for who asks again and again.
    pub fn reuse(&mut self, places: Places) {
        self.places.extend(places);
        self.files.allowances.values_mut().for_each(|allowance| allowance.bytes = MAX_OWNER_BYTES);
    }

    /// Looks for symbols of stripped files below `folder` (`/usr/lib/debug`), by build id.
    #[must_use]
    pub fn with_debug_files(mut self, folder: PathBuf) -> Self {
        self.debug_folder = Some(folder);
        self
    }

    /// Reads files in `sandbox`, for tests.
    #[must_use]
    pub fn with_sandbox(mut self, sandbox: Sandbox<SymbolReader>) -> Self {
        self.files.sandbox = sandbox;
        self
    }

    /// The build id of an open ELF file, if it has one.
    pub fn build_id(&mut self, file: &File) -> Option<BuildId> {
        let state = FileState::from_file(file)?;
        if let Some(known) = self.known.build_ids.get(&state) {
            return known.clone();
        }
        let Ok(SymbolAnswer::BuildId(id)) = self.files.ask(&[file], |_| SymbolQuestion::BuildId)
        else {
            return None;
        };
        let id = id.and_then(|id| BuildId::new(&id));
        self.known.keep_build_id(state, id.clone());
        id
    }

    /// Names at places, which ascend, of the module's file.
    fn read(
        &mut self,
        id: ModuleId,
        module: &Module,
        places: &[u64],
    ) -> Result<Vec<SymbolName>, String> {
        let build_id = module.build_id.as_ref().map(|id| id.bytes().to_vec());
        let format = match module.path.as_str() {
            "[vdso]" => {
                let image = vdso::image().map_err(|error| error.to_string())?;
                return self.files.names(&[&image], &FileFormat::Elf { build_id: None }, places);
            }
            path if is_perf_map(path) => FileFormat::PerfMap,
            path if path.starts_with('/') => FileFormat::Elf { build_id },
            _ => return Err("no file behind this mapping".to_owned()),
        };
        let debug = self.debug_file(module);
        let mut reason = "the process ended before its file was read".to_owned();
        for place in self.places.get(&id).cloned().unwrap_or_default() {
            let names = place.open().and_then(|file| self.names_in(&file, &debug, &format, places));
            match names {
                Ok(names) => return Ok(names),
                Err(why) => reason = why,
            }
        }
        Err(reason)
    }

    /// Those that are not known are read.
    fn names_in(
        &mut self,
        file: &File,
        debug: &Option<File>,
        format: &FileFormat,
        places: &[u64],
    ) -> Result<Vec<SymbolName>, String> {
        let files: Vec<&File> = std::iter::once(file).chain(debug).collect();
        let Some(state) = self.state_of(file, format) else {
            return self.files.names(&files, format, places);
        };
        let is_unknown = |place: &u64| !self.known.names.contains_key(&(state, *place));
        let unknown: Vec<u64> = places.iter().copied().filter(is_unknown).collect();
        let read = match unknown.is_empty() {
            true => Vec::new(),
            false => self.files.names(&files, format, &unknown)?,
        };
        let of_read: HashMap<u64, &SymbolName> = unknown.iter().copied().zip(&read).collect();
        let name = |place: &u64| {
            let known =
                of_read.get(place).copied().or_else(|| self.known.names.get(&(state, *place)));
            known.cloned().unwrap_or(SymbolName::Stripped)
        };
        let names = places.iter().map(name).collect();
        self.known.keep(state, &unknown, &read);
        Ok(names)
    }

    /// `None`: what is known of it says nothing: it is another file than the one that was mapped, or a process goes on to
    /// write it.
    fn state_of(&mut self, file: &File, format: &FileFormat) -> Option<FileState> {
        let FileFormat::Elf { build_id } = format else { return None };
        let state = FileState::from_file(file)?;
        let is_it = |own: BuildId| build_id.as_ref().is_none_or(|wanted| own.bytes() == wanted);
        match build_id {
            Some(_) => self.build_id(file).is_some_and(is_it).then_some(state),
            None => Some(state),
        }
    }

    /// `ROOT/.build-id/ab/cdef.debug`.
    fn debug_file(&self, module: &Module) -> Option<File> {
        let folder = self.debug_folder.as_ref()?.join(".build-id");
        let id = module.build_id.as_ref()?.to_string();
        let (first, rest) = id.split_at_checked(2)?;
        Place::Known(folder.join(first).join(format!("{rest}.debug"))).open().ok()
    }
}

/// Whether the module stands for code that a process made, and listed in a file for perf.
fn is_perf_map(path: &str) -> bool {
    path.starts_with("/tmp/perf-") && path.ends_with(".map")
}

impl Source for HostSource {
    fn names(&mut self, id: ModuleId, module: &Module, offsets: &[u64]) -> Vec<SymbolName> {
        if self.kernel.has(&module.path) {
            return offsets.iter().map(|offset| self.kernel.name(&module.path, *offset)).collect();
        }
        let names = |places: &[u64]| {
            let names = self.read(id, module, places);
            names.unwrap_or_else(|reason| unreadable(&reason, places.len()))
        };
        offsets.chunks(MAX_PLACES).flat_map(names).collect()
    }
}

/// What reads files, and how much of each owner's it may still read.
#[derive(Debug, Default)]
struct Files {
    sandbox: Sandbox<SymbolReader>,
    allowances: HashMap<FileOwner, Allowance>,
    /// Files that stopped the process that read them, by file system and inode, and how.
    stopped: HashMap<(u64, u64), Failure>,
}

/// The owner that an allowance for reading files belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum FileOwner {
    /// Anybody can mount file systems of his own, in user namespaces: they count together.
    User(u32),
    /// A container's root is often the host's, but has a file system of its own.
    RootOn(u64),
}

impl FileOwner {
    fn from_metadata(metadata: &Metadata) -> Self {
        match metadata.uid() {
            0 => Self::RootOn(metadata.dev()),
            user => Self::User(user),
        }
    }
}

#[derive(Debug)]
struct Allowance {
    bytes: u64,
    failures: u32,
}

impl Files {
    /// The answer to a question about files; the first one's owner pays for it. A question is made of how many bytes may be
    /// read.
    fn ask(
        &mut self,
        files: &[&File],
        question: impl FnOnce(u64) -> SymbolQuestion,
    ) -> Result<SymbolAnswer, String> {
        let metadata = files.first().map(|file| file.metadata());
        let metadata = metadata.ok_or("no file")?.map_err(|error| error.to_string())?;
        let itself = (metadata.dev(), metadata.ino());
        if let Some(failure) = self.stopped.get(&itself) {
            return Err(failure.to_string());
        }
        let unused = Allowance { bytes: MAX_OWNER_BYTES, failures: 0 };
        let allowance =
            self.allowances.entry(FileOwner::from_metadata(&metadata)).or_insert(unused);
        if MAX_OWNER_FAILURES <= allowance.failures {
            return Err("other files of its owner stopped the process that reads them".to_owned());
        }
        match self.sandbox.ask(&question(allowance.bytes), files) {
            Ok(answer) => {
                if let SymbolAnswer::Functions { read_bytes, .. } = answer {
                    allowance.bytes = allowance.bytes.saturating_sub(read_bytes);
                }
                Ok(answer)
            }
            Err(failure @ (Failure::Start(_) | Failure::GivenUp)) => Err(failure.to_string()),
            Err(failure) => {
                allowance.failures = allowance.failures.saturating_add(1);
                let reason = failure.to_string();
                self.stopped.insert(itself, failure);
                Err(reason)
            }
        }
    }

    /// Names at places of the first of `files`.
    fn names(
        &mut self,
        files: &[&File],
        format: &FileFormat,
        places: &[u64],
    ) -> Result<Vec<SymbolName>, String> {
        let question = |max_bytes| SymbolQuestion::Functions {
            format: format.clone(),
            places: places.to_vec(),
            max_bytes,
        };
        match self.ask(files, question)? {
            SymbolAnswer::Functions { functions: Ok(functions), .. } => {
                names_of(functions, places.len())
            }
            SymbolAnswer::Functions { functions: Err(reason), .. } => Err(printable(&reason)),
            _ => Err(Failure::Nonsense.to_string()),
        }
    }
}

/// One name for each of `n` places, of an answer that the file may have made.
fn names_of(functions: FileFunctions, n: usize) -> Result<Vec<SymbolName>, String> {
    let FileFunctions { names, at_places, missing } = functions;
    let missing =
        missing.map_or(SymbolName::Stripped, |why| SymbolName::Unreadable(printable(&why)));
    let names: Vec<SymbolName> =
        names.iter().map(|name| SymbolName::Function(printable(name))).collect();
    let name = |number: Option<u32>| match number {
        Some(number) => names.get(number as usize).cloned(),
        None => Some(missing.clone()),
    };
    let named: Option<Vec<SymbolName>> = at_places.into_iter().map(name).collect();
    named.filter(|named| named.len() == n).ok_or_else(|| Failure::Nonsense.to_string())
}
