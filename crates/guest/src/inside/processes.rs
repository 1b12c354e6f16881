//! Processes as `/proc` shows them, and the files they map, each read once.

use std::collections::HashMap;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use api::guest::{GuestImage, GuestMapping, GuestModule, GuestThread, MAX_IMAGES, ModuleSymbols};
use host::procfs::{self, MapsEntry};
use linux::tasks::{Process, Thread};
use rustix::time::ClockId;

use super::elf;
use super::job::{HungUp, Waiting};

/// The files that images map, numbered as the host will ask for them.
#[derive(Debug, Default)]
pub(crate) struct Modules {
    pub(crate) list: Vec<GuestModule>,
    /// Where each may be opened, best first.
    files: Vec<Vec<PathBuf>>,
    by_content: HashMap<GuestModule, u32>,
    /// By device, inode and path.
    by_file: HashMap<(String, u64, String), u32>,
    /// Of paths that the log names without a build id.
    build_ids: HashMap<String, Vec<u8>>,
}

impl Modules {
    /// The number of the file behind a line of the maps of the process at `directory`.
    fn number_of_mapped(&mut self, directory: &Path, entry: &MapsEntry) -> Option<u32> {
        if entry.inode == 0 || !entry.path.starts_with('/') {
            return self.intern(pseudo(&entry.path), Vec::new(), &[]);
        }
        let file = (entry.device.clone(), entry.inode, entry.path.clone());
        if let Some(number) = self.by_file.get(&file) {
            return Some(*number);
        }
        let mut paths = procfs::mapped_file_paths(directory, entry).to_vec();
        // The process may be gone when the host asks for symbols; its file mostly is not.
        paths.push(PathBuf::from(&entry.path));
        let build_id = paths.iter().find_map(|path| elf::read_build_id(path)).unwrap_or_default();
        let number = self.intern(entry.path.clone(), build_id, &paths)?;
        self.by_file.insert(file, number);
        Some(number)
    }

    /// The number of a file that the log names.
    pub(crate) fn number_of_logged(
        &mut self,
        path: &str,
        build_id: Option<Vec<u8>>,
    ) -> Option<u32> {
        let path = path.strip_suffix(" (deleted)").unwrap_or(path);
        // `//anon`, `//toolong`: labels of perf's.
        if !path.starts_with('/') || path.starts_with("//") {
            return self.intern(pseudo(path), Vec::new(), &[]);
        }
        let build_id = build_id.unwrap_or_else(|| {
            let known = self.build_ids.entry(path.to_owned());
            known.or_insert_with(|| elf::read_build_id(Path::new(path)).unwrap_or_default()).clone()
        });
        self.intern(path.to_owned(), build_id, &[PathBuf::from(path)])
    }

    fn intern(&mut self, path: String, build_id: Vec<u8>, paths: &[PathBuf]) -> Option<u32> {
        let module = GuestModule { path, build_id };
        if let Some(number) = self.by_content.get(&module) {
            return Some(*number);
        }
        if MAX_IMAGES <= self.list.len() {
            return None;
        }
        let number = u32::try_from(self.list.len()).ok()?;
        self.list.push(module.clone());
        self.files.push(paths.to_vec());
        self.by_content.insert(module, number);
        Some(number)
    }

    /// Reads the symbols of a module, if its file has at most so many bytes. The file may be gone, or have changed.
    pub(crate) fn symbols(&self, number: u32, most_bytes: u64) -> ModuleSymbols {
        let cpu_before_ns = crate::clock_ns(ClockId::ThreadCPUTime);
        let symbols = match (self.list.get(number as usize), self.files.get(number as usize)) {
            (Some(module), _) if module.path == "[vdso]" => read_vdso(),
            (Some(module), Some(files)) => read_symbols(module, files, most_bytes),
            _ => Err(SymbolsError::NoModule),
        };
        let (symbols, problem) = match symbols {
            Ok(symbols) => (symbols, None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        let cpu_ns = crate::clock_ns(ClockId::ThreadCPUTime).saturating_sub(cpu_before_ns);
        ModuleSymbols { module: number, symbols, problem, cpu_ns }
    }
}

/// Why a module has no symbols.
#[derive(Debug, thiserror::Error)]
enum SymbolsError {
    #[error("no such module")]
    NoModule,
    #[error("not a file")]
    NoFile,
    #[error("this process has no vDSO")]
    NoVdso,
    #[error("{0}")]
    Read(#[from] io::Error),
    #[error("{0}")]
    Elf(#[from] elf::ElfError),
}

fn read_symbols(
    module: &GuestModule,
    files: &[PathBuf],
    most_bytes: u64,
) -> Result<Vec<api::guest::FunctionSymbol>, SymbolsError> {
    let mut problem = SymbolsError::NoFile;
    for path in files {
        match elf::read_functions(path, &module.build_id, most_bytes) {
            Ok(symbols) => return Ok(symbols),
            Err(error) => problem = error.into(),
        }
    }
    Err(problem)
}

/// The vDSO is the same in all 64-bit processes: this one's is read.
fn read_vdso() -> Result<Vec<api::guest::FunctionSymbol>, SymbolsError> {
    const MAX_BYTES: u64 = 1 << 20;
    let maps = procfs::read_maps(Path::new("/proc/self"), procfs::MAX_MAPS_BYTES)?;
    let vdso =
        maps.executable.iter().find(|entry| entry.path == "[vdso]").ok_or(SymbolsError::NoVdso)?;
    let mut memory = std::fs::File::open("/proc/self/mem")?;
    memory.seek(SeekFrom::Start(vdso.start))?;
    let mut image = Vec::new();
    let length = (vdso.end - vdso.start).min(MAX_BYTES);
    memory.take(length).read_to_end(&mut image)?;
    Ok(elf::functions_of_image(&image)?)
}

/// The name of something that is no file.
fn pseudo(path: &str) -> String {
    match path {
        "" | "//anon" => "[anon]".into(),
        _ if path.starts_with('[') => path.to_owned(),
        _ => format!("[{}]", path.trim_start_matches('/')),
    }
}

/// What the walk found, with the mappings that `/proc` adds. A process that ends meanwhile has none.
pub(crate) fn images(
    proc: &Path,
    walked: Vec<Process>,
    modules: &mut Modules,
    waiting: Waiting<'_>,
) -> Result<Vec<GuestImage>, HungUp> {
    // All mappings before any file: reading build ids takes time, in which processes end.
    let mapped = walked.into_iter().take(MAX_IMAGES).map(|process| {
        waiting.check()?;
        let directory = proc.join(process.pid.to_string());
        let maps = procfs::read_maps(&directory, procfs::MAX_MAPS_BYTES).unwrap_or_default();
        Ok((process, directory, maps.executable))
    });
    let mapped: Vec<(Process, PathBuf, Vec<MapsEntry>)> = mapped.collect::<Result<_, _>>()?;
    let image = |(process, directory, maps): (Process, PathBuf, Vec<MapsEntry>)| {
        waiting.check()?;
        Ok(image(process, &directory, &maps, modules))
    };
    mapped.into_iter().map(image).collect()
}

fn image(
    process: Process,
    directory: &Path,
    maps: &[MapsEntry],
    modules: &mut Modules,
) -> GuestImage {
    let mapping = |entry: &MapsEntry| {
        let module = modules.number_of_mapped(directory, entry)?;
        Some(GuestMapping { start: entry.start, end: entry.end, offset: entry.offset, module })
    };
    let thread = |thread: Thread| GuestThread {
        tid: thread.tid,
        name: thread.name,
        fs_base: thread.fs_base,
    };
    GuestImage {
        // The sender numbers it.
        id: 0,
        pid: process.pid,
        name: process.name,
        cr3: process.cr3,
        start_ns: Some(process.start_ns),
        end_ns: None,
        threads: process.threads.into_iter().map(thread).collect(),
        mappings: maps.iter().filter_map(mapping).collect(),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn this_process_shows_its_mappings_and_symbols() {
        let own = std::process::id();
        let process =
            Process { pid: own, name: "test".into(), cr3: 1, start_ns: 5, ..Process::default() };
        let mut modules = Modules::default();
        let images =
            images(Path::new("/proc"), vec![process], &mut modules, Waiting::always()).unwrap();
        let module = |path: &str| {
            let number = modules.list.iter().position(|module| module.path.contains(path)).unwrap();
            u32::try_from(number).unwrap()
        };
        let exe = std::env::current_exe().unwrap();
        let program = module(exe.to_str().unwrap());
        // The address of a function of this program, found by way of its mapping and symbol.
        let address = this_process_shows_its_mappings_and_symbols as *const () as u64;
        let mapping = images[0].mappings.iter().find(|m| m.start <= address && address < m.end);
        let offset = address - mapping.unwrap().start + mapping.unwrap().offset;
        let symbols = modules.symbols(program, elf::MAX_FILE_BYTES);
        assert_eq!(symbols.problem, None);
        let symbol = symbols.symbols.iter().find(|symbol| symbol.offset == offset).unwrap();
        assert!(symbol.name.contains("shows_its_mappings"), "{}", symbol.name);

        let vdso = modules.symbols(module("[vdso]"), 0).symbols;
        assert!(vdso.iter().any(|symbol| symbol.name == "__vdso_clock_gettime"));
        assert!(modules.symbols(9999, 0).problem.is_some());
        assert_eq!(modules.list[module("libc") as usize].build_id.len(), 20);
    }

    #[test]
    fn the_log_and_proc_number_a_file_alike() {
        let mut modules = Modules::default();
        let path = std::fs::canonicalize("/bin/sh").unwrap();
        let path = path.to_str().unwrap();
        let build_id = elf::read_build_id(Path::new(path)).unwrap();
        let first = modules.number_of_logged(path, Some(build_id));
        assert_eq!(modules.number_of_logged(path, None), first);
        assert_eq!(modules.number_of_logged(&format!("{path} (deleted)"), None), first);
        assert_ne!(modules.number_of_logged("//anon", None), first);
        assert_eq!(modules.list.last().unwrap().path, "[anon]");
    }
}
