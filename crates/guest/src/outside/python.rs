//! CPython in a guest's processes: where it keeps its frames, and the names of the code that these run.

use std::collections::BTreeMap;
use std::ops::Range;

use api::guest::{FunctionSymbol, GuestMapping};
use linux::elf::{Bytes, Headers, ReadAt, find_symbols};
use model::{Cr3, Interpreter};
use unwind::python::{CodeObject, Frames, LOOP, Layout, RUNTIME, RUNTIME_BYTES, VERSION};

use super::found::View;
use super::modules::Modules;

/// What is read of a file: mostly the names of its symbols.
const MAX_READ_BYTES: u64 = 64 << 20;
/// Most functions of all processes.
const MAX_FUNCTIONS: usize = 1 << 16;

/// A program or library that contains CPython. Addresses are the file's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PythonFile {
    layout: Layout,
    runtime: u64,
    /// First address and bytes of the loop that runs code.
    run_loop: (u64, u64),
}

impl PythonFile {
    /// Whether a file may have it, by its name.
    pub(super) fn may_be(path: &str) -> bool {
        let name = path.rsplit('/').next().unwrap_or_default();
        name.starts_with("python3") || name.starts_with("libpython3")
    }

    pub(super) fn read(file: &dyn ReadAt) -> Option<Self> {
        let bytes = Bytes::new(file, MAX_READ_BYTES);
        let headers = Headers::read(&bytes).ok()?;
        let [run_loop, runtime, version] = find_symbols(&bytes, &headers, [LOOP, RUNTIME, VERSION]);
        let (run_loop, runtime, version) = (run_loop?, runtime?, version?);
        let version = bytes.window((headers.offset(version.start)?, 8)).array::<8>(0).ok()?;
        // Before 3.13 it need not be in the file.
        let published = headers
            .offset(runtime.start)
            .and_then(|at| bytes.window((at, RUNTIME_BYTES as u64)).all(RUNTIME_BYTES as u64).ok());
        let layout = Layout::new(u64::from_le_bytes(version), &published.unwrap_or_default())?;
        Some(Self { layout, runtime: runtime.start, run_loop: (run_loop.start, run_loop.size) })
    }
}

/// A process that runs it.
#[derive(Debug)]
struct Program {
    layout: Layout,
    interpreter: Interpreter,
    run_loop: Range<u64>,
    /// By address of the code object.
    functions: BTreeMap<u64, Function>,
}

#[derive(Debug)]
struct Function {
    identity: [u64; 2],
    /// The request that last found it the same; `None`: another is in its place.
    seen: Option<u64>,
}

/// The processes that run CPython.
#[derive(Debug, Default)]
pub(super) struct Pythons {
    /// By process id and page tables.
    programs: BTreeMap<(u32, u64), Program>,
    /// Not in the map yet.
    new: BTreeMap<(u32, u64, String), Vec<FunctionSymbol>>,
    n_functions: usize,
}

impl Pythons {
    /// A process has these mappings by now. `bias`: what a mapping adds to its file's addresses.
    pub(super) fn know(
        &mut self,
        (pid, cr3): (u32, u64),
        mappings: &[GuestMapping],
        file: &dyn Fn(u32) -> Option<PythonFile>,
        bias: &mut dyn FnMut(&GuestMapping) -> Option<u64>,
    ) {
        let key = (pid, Cr3::new(cr3).base());
        let mut found = mappings.iter().filter_map(|mapping| {
            let PythonFile { layout, runtime, run_loop: (start, size) } = file(mapping.module)?;
            let bias = bias(mapping)?;
            let start = start.wrapping_add(bias);
            Some(Program {
                layout,
                interpreter: layout.interpreter(runtime.wrapping_add(bias)),
                run_loop: start..start.saturating_add(size),
                functions: BTreeMap::new(),
            })
        });
        let Some(program) = found.next() else { return };
        if self.programs.get(&key).is_some_and(|known| known.run_loop == program.run_loop) {
            return;
        }
        if MAX_FUNCTIONS < self.n_functions.saturating_add(self.programs.len()) {
            // Most have ended.
            *self = Self { new: std::mem::take(&mut self.new), ..Self::default() };
        }
        self.programs.insert(key, program);
    }

    /// What a sample is to copy, if the process runs it.
    pub(super) fn interpreter(&self, pid: u32, cr3: u64) -> Option<Interpreter> {
        self.programs.get(&(pid, Cr3::new(cr3).base())).map(|program| program.interpreter)
    }

    /// Puts the frames that were copied in place of the loop's.
    pub(super) fn interleave(
        &mut self,
        view: &View<'_>,
        (pid, cr3): (u32, u64),
        request: u64,
        copy: &[u8],
        (native, is_whole): (&[u64], bool),
    ) -> Option<Vec<u64>> {
        let key = (pid, Cr3::new(cr3).base());
        let Self { programs, new, n_functions } = self;
        let program = programs.get_mut(&key)?;
        let memory = |address: u64, buffer: &mut [u8]| view.read_process(cr3, address, buffer);
        let frames: Frames = program.layout.frames(copy);
        for code in frames.codes() {
            let Some(known) = program.functions.get_mut(&code) else {
                if MAX_FUNCTIONS <= *n_functions {
                    continue;
                }
                let Some(object) = program.layout.code_object(&memory, code) else { continue };
                let CodeObject { name, file, bytes, identity } = object;
                let symbol = FunctionSymbol { offset: code, size: bytes, name };
                new.entry((pid, cr3, file)).or_default().push(symbol);
                program.functions.insert(code, Function { identity, seen: Some(request) });
                *n_functions += 1;
                continue;
            };
            if known.seen.is_some_and(|seen| seen != request) {
                let is_same = program.layout.identity(&memory, code) == Some(known.identity);
                known.seen = is_same.then_some(request);
            }
        }
        let has_name = |code: u64| program.functions.get(&code).is_some_and(|it| it.seen.is_some());
        let is_loop = |address: u64| program.run_loop.contains(&address);
        Some(frames.interleave(native, is_whole, &is_loop, &has_name))
    }

    /// Moves new functions out, as modules: process and page tables, and where they are.
    pub(super) fn take_new(&mut self, modules: &mut Modules) -> Vec<(u32, u64, Vec<GuestMapping>)> {
        let new = std::mem::take(&mut self.new).into_iter();
        let mappings = new.filter_map(|((pid, cr3, path), functions)| {
            let places: Vec<(u64, u64)> = functions.iter().map(|it| (it.offset, it.size)).collect();
            let module = modules.add_script(path, functions)?;
            let mapping = |(start, size): (u64, u64)| GuestMapping {
                start,
                end: start.saturating_add(size),
                offset: start,
                module,
            };
            Some((pid, cr3, places.into_iter().map(mapping).collect()))
        });
        mappings.collect()
    }
}
