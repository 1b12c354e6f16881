//! Files and other code that a guest's processes map, numbered as the host will ask for them.

use std::collections::{BTreeMap, HashMap};

use api::guest::{FunctionSymbol, GuestModule, MAX_IMAGES, ModuleSymbols};
use linux::elf::ReadAt;
use linux::files::File;
use model::{GuestCode, GuestVirt, StackEnd};
use unwind::FrameTable;

use super::found::{Mapped, View};
use super::python::PythonFile;
use crate::elf;

/// Bytes of a mapping without a file that is read as one: the vDSO.
const MAX_IMAGE_BYTES: u64 = 1 << 20;
const VDSO: &str = "[vdso]";
const ANONYMOUS: &str = "[anon]";
/// Files with missing pages are searched for CPython again after this time.
const PYTHON_AGAIN_NS: u64 = 1_000_000_000;
/// Bytes of all paths.
const MAX_TEXT_BYTES: usize = 16 << 20;

/// What is mapped anywhere in the guest.
#[derive(Debug, Default)]
pub(super) struct Modules {
    list: Vec<GuestModule>,
    /// Where each is; `None`: nowhere that has symbols.
    places: Vec<Option<Place>>,
    by_content: HashMap<GuestModule, u32>,
    by_file: BTreeMap<FileKey, u32>,
    /// Of all paths.
    text_bytes: usize,
    /// Functions of scripts that an interpreter runs.
    scripts: BTreeMap<u32, Vec<FunctionSymbol>>,
    /// Files that may have CPython in them, by their names, among the first so many. `None`: it was not found, as parts of the
    /// file were missing.
    interpreters: BTreeMap<u32, Option<PythonFile>>,
    n_searched: usize,
    interpreters_read_ns: u64,
}

/// What tells files apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct FileKey {
    device: u32,
    inode: u64,
    generation: u32,
    bytes: u64,
}

/// Where a module's bytes are.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// In the page cache of this `struct address_space`; bytes of the file.
    Cached { pages: GuestVirt, bytes: u64 },
    /// In a process.
    Process { cr3: u64, start: u64, bytes: u64 },
    /// Nowhere: its functions are kept.
    Script,
}

impl Modules {
    pub(super) fn list(&self) -> &[GuestModule] {
        &self.list
    }

    /// The number of what a mapping shows; `None`: there are too many.
    pub(super) fn number(&mut self, view: &View<'_>, mapped: Mapped<'_>) -> Option<u32> {
        match mapped {
            Mapped::File(file) => self.number_of_file(view, file),
            Mapped::Memory(name, process, mapping) => {
                let bytes = (mapping.end - mapping.start).min(MAX_IMAGE_BYTES);
                let place = Place::Process { cr3: process.cr3, start: mapping.start, bytes };
                let place = (name == VDSO).then_some(place);
                self.intern(name.to_owned(), Vec::new(), place)
            }
        }
    }

    /// The number of what a sample hit; `None`: kernel code, unknown, or there are too many.
    pub(super) fn number_of_code(&mut self, view: &View<'_>, code: &GuestCode) -> Option<u32> {
        match (code.end, code.file) {
            (0, _) => None,
            (_, 0) => self.intern(ANONYMOUS.to_owned(), Vec::new(), None),
            _ => self.number_of_file(view, &view.file_of(code)?),
        }
    }

    fn number_of_file(&mut self, view: &View<'_>, file: &File) -> Option<u32> {
        let key = FileKey {
            device: file.device,
            inode: file.inode,
            generation: file.generation,
            bytes: file.size,
        };
        let place = Some(Place::Cached { pages: file.pages, bytes: file.size });
        if let Some(number) = self.by_file.get(&key) {
            self.places[*number as usize] = place;
            return Some(*number);
        }
        let cached = view.cached(file.pages);
        let build_id = cached.and_then(|file| elf::build_id(&file)).unwrap_or_default();
        // The page that has it may come later.
        let is_known = !build_id.is_empty() && self.by_file.len() < MAX_IMAGES;
        let number = self.intern(file.path.clone(), build_id, place)?;
        if is_known {
            self.by_file.insert(key, number);
        }
        Some(number)
    }

    fn intern(&mut self, path: String, build_id: Vec<u8>, place: Option<Place>) -> Option<u32> {
        let module = GuestModule { path, build_id };
        if let Some(number) = self.by_content.get(&module) {
            // It may have left the memory, and come back elsewhere.
            self.places[*number as usize] = place;
            return Some(*number);
        }
        self.text_bytes = self.text_bytes.saturating_add(module.path.len());
        if MAX_TEXT_BYTES < self.text_bytes {
            return None;
        }
        let number =
            u32::try_from(self.list.len()).ok().filter(|_| self.list.len() < MAX_IMAGES)?;
        self.list.push(module.clone());
        self.places.push(place);
        self.by_content.insert(module, number);
        Some(number)
    }

    /// Adds functions of a script. Those that are found later become another module, as symbols are sent once.
    pub(super) fn add_script(
        &mut self,
        path: String,
        mut functions: Vec<FunctionSymbol>,
    ) -> Option<u32> {
        let names: usize = functions.iter().map(|function| function.name.len()).sum();
        self.text_bytes = self.text_bytes.saturating_add(path.len() + names);
        let number =
            u32::try_from(self.list.len()).ok().filter(|_| self.list.len() < MAX_IMAGES)?;
        if MAX_TEXT_BYTES < self.text_bytes {
            return None;
        }
        functions.sort_by_key(|function| function.offset);
        self.list.push(GuestModule { path, build_id: Vec::new() });
        self.places.push(Some(Place::Script));
        self.scripts.insert(number, functions);
        Some(number)
    }

    /// Whether it is a script's: nothing in it is executed by the CPU.
    pub(super) fn is_script(&self, number: u32) -> bool {
        self.scripts.contains_key(&number)
    }

    /// Searches new files for CPython, and once more those with missing pages.
    pub(super) fn find_python(&mut self, view: &View<'_>, now_ns: u64) {
        let numbers = (0_u32..).zip(&self.list).skip(self.n_searched);
        let may_be = |number: &u32| {
            matches!(self.places.get(*number as usize), Some(Some(Place::Cached { .. })))
        };
        let new =
            numbers.filter(|(number, module)| may_be(number) && PythonFile::may_be(&module.path));
        let n_before = self.interpreters.len();
        self.interpreters.extend(new.map(|(number, _)| (number, None)));
        self.n_searched = self.list.len();
        let is_due = self.interpreters_read_ns.saturating_add(PYTHON_AGAIN_NS) <= now_ns;
        if !is_due && n_before == self.interpreters.len() {
            return;
        }
        self.interpreters_read_ns = now_ns;
        for (number, found) in self.interpreters.iter_mut().filter(|(_, found)| found.is_none()) {
            if let Some(Some(Place::Cached { pages, bytes })) = self.places.get(*number as usize) {
                let file = view.cached(*pages).filter(|file| file.size == *bytes);
                *found = file.and_then(|file| PythonFile::read(&file));
            }
        }
    }

    /// What a file has of CPython.
    pub(super) fn python(&self, number: u32) -> Option<PythonFile> {
        self.interpreters.get(&number).copied().flatten()
    }

    /// Whether it has no file: a program may have made code there.
    pub(super) fn is_generated(&self, number: u32) -> bool {
        self.places.get(number as usize).is_some_and(Option::is_none)
    }

    /// The unwind tables of a module.
    ///
    /// # Errors
    /// Why there are none.
    pub(super) fn frame_table(&self, view: &View<'_>, number: u32) -> Result<FrameTable, StackEnd> {
        let place = self.places.get(number as usize).copied().flatten();
        match place.ok_or(StackEnd::NoTables)? {
            Place::Cached { pages, bytes } => {
                let file = view.cached(pages).filter(|file| file.size == bytes);
                let table = FrameTable::read(&file.ok_or(StackEnd::NoTables)?)?;
                let expected = self.list.get(number as usize).map(|it| it.build_id.as_slice());
                let is_it = expected.is_none_or(|id| id.is_empty() || table.build_id() == Some(id));
                is_it.then_some(table).ok_or(StackEnd::NoTables)
            }
            Place::Process { cr3, start, bytes } => {
                FrameTable::read(&ProcessImage { view, cr3, start, bytes })
            }
            Place::Script => Err(StackEnd::NoTables),
        }
    }

    /// The functions of a module, if its file has at most so many bytes. It may have left the guest's memory by now.
    pub(super) fn symbols(&self, view: &View<'_>, number: u32, largest_file: u64) -> ModuleSymbols {
        let symbols = ModuleSymbols { module: number, ..ModuleSymbols::default() };
        let problem =
            |text: &str| ModuleSymbols { problem: Some(text.to_owned()), ..symbols.clone() };
        match self.places.get(number as usize) {
            Some(Some(Place::Cached { pages, bytes })) => match view.cached(*pages) {
                Some(file) if file.size != *bytes => {
                    problem("the file was replaced by another one")
                }
                Some(file) if largest_file < file.size => problem("the file is too large"),
                Some(file) => with_functions(symbols, &file, &self.list[number as usize].build_id),
                None => problem("the file is not in the guest's memory any more"),
            },
            Some(Some(Place::Process { cr3, start, bytes })) => {
                let image = ProcessImage { view, cr3: *cr3, start: *start, bytes: *bytes };
                with_functions(symbols, &image, &[])
            }
            Some(Some(Place::Script)) => {
                let functions = self.scripts.get(&number).cloned().unwrap_or_default();
                ModuleSymbols { symbols: functions, ..symbols }
            }
            Some(None) => problem("not a file"),
            None => problem("no such module"),
        }
    }
}

/// A file that is only in a process' memory. Pages that the process has not touched are missing.
struct ProcessImage<'v> {
    view: &'v View<'v>,
    cr3: u64,
    start: u64,
    bytes: u64,
}

impl ReadAt for ProcessImage<'_> {
    fn read_at(&self, at: u64, buffer: &mut [u8]) -> Option<()> {
        let end = at.checked_add(buffer.len() as u64).filter(|end| *end <= self.bytes);
        end.and_then(|_| self.view.read_process(self.cr3, self.start.checked_add(at)?, buffer))
    }

    fn n_bytes(&self) -> u64 {
        self.bytes
    }
}

/// With the functions of a file. Those of a part that is not in the guest's memory are missing.
fn with_functions(symbols: ModuleSymbols, file: &dyn ReadAt, build_id: &[u8]) -> ModuleSymbols {
    match elf::functions(file, build_id) {
        Ok(functions) => ModuleSymbols { symbols: functions, ..symbols },
        Err(error) => ModuleSymbols { problem: Some(error.to_string()), ..symbols },
    }
}
