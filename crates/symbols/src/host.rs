//! Names in the host's processes and kernel.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use model::{Module, ModuleId, SymbolName};

use crate::file::{FileNames, Place, perf_map};
use crate::guest::names_of;
use crate::{Demangler, KernelNames, Source, unreadable, vdso};

/// Most bytes that are read of the files of one owner: who has many large files loses their names and nobody else's.
const MAX_OWNER_BYTES: u64 = 1 << 30;

/// Where each file can be opened, best first: through the mapping itself, in the process' own root, in ours.
pub type Places = BTreeMap<ModuleId, Vec<Place>>;

/// The symbols of the host.
#[derive(Debug, Default)]
pub struct HostSource {
    kernel: KernelNames,
    places: Places,
    demangler: Demangler,
    /// What may still be read of the files of each owner (user id).
    budgets: HashMap<u32, u64>,
    /// Where files with the symbols of stripped ones are, by build id.
    debug_folder: Option<PathBuf>,
}

impl HostSource {
    /// A source for the modules that have `places`, and for `kernel`.
    #[must_use]
    pub fn new(kernel: KernelNames, places: Places) -> Self {
        Self { kernel, places, ..Self::default() }
    }

    /// Adds modules that have appeared since, and lets every owner's files be read anew: for who asks again and again.
    pub fn go_on(&mut self, places: Places) {
        self.places.extend(places);
        self.budgets.clear();
    }

    /// Looks for symbols of stripped files below `folder` (`/usr/lib/debug`), by build id.
    #[must_use]
    pub fn with_debug_files(mut self, folder: PathBuf) -> Self {
        self.debug_folder = Some(folder);
        self
    }

    /// Opens the module's file; its bytes are somebody else's work.
    fn open<T>(
        &mut self,
        id: ModuleId,
        read: impl Fn(&File, &mut u64) -> Result<T, String>,
    ) -> Result<T, String> {
        let places = self.places.get(&id).map(Vec::as_slice).unwrap_or_default();
        let mut reason = "the process ended before its file was read".to_owned();
        for place in places {
            let read = place.open().and_then(|file| {
                let owner = file.metadata().map_err(|error| error.to_string())?.uid();
                read(&file, self.budgets.entry(owner).or_insert(MAX_OWNER_BYTES))
            });
            match read {
                Ok(names) => return Ok(names),
                Err(why) => reason = why,
            }
        }
        Err(reason)
    }

    fn read(&mut self, id: ModuleId, module: &Module, at: &[u64]) -> Result<FileNames, String> {
        if module.path == "[vdso]" {
            let image = vdso::image().map_err(|error| error.to_string())?;
            return FileNames::read(&image, None, None, at, &mut u64::MAX.clone());
        }
        if !module.path.starts_with('/') {
            return Err("no file behind this mapping".to_owned());
        }
        let debug = self.debug_file(module);
        let debug = debug.as_ref().map(|file| file as _);
        self.open(id, |file, budget| {
            FileNames::read(file, debug, module.build_id.as_ref(), at, budget)
        })
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
        if is_perf_map(&module.path) {
            let table = self.open(id, |file, budget| Ok(perf_map::read(file, offsets, budget)));
            return match table {
                Ok(table) => {
                    let find = |offset| table.find(offset);
                    names_of(offsets, find, &mut self.demangler, &SymbolName::Stripped)
                }
                Err(reason) => unreadable(&reason, offsets.len()),
            };
        }
        let names = match self.read(id, module, offsets) {
            Ok(names) => names,
            Err(reason) => return unreadable(&reason, offsets.len()),
        };
        let missing = names
            .why_missing()
            .map_or(SymbolName::Stripped, |reason| SymbolName::Unreadable(reason.to_owned()));
        names_of(offsets, |offset| names.find(offset), &mut self.demangler, &missing)
    }
}
