//! Stacks of a guest's threads, unwound by the tables of its kernel and of the files that its processes map.

use std::collections::{BTreeMap, VecDeque};

use api::guest::{
    GuestMapping, MAX_BASIS_WORDS, MAX_STACK_FRAMES, PYTHON_FRAMES, StackBasis, StackBytes,
    StackPart, StackRegisters, StackSample, UnwoundStack,
};
use model::StackEnd;
use unwind::{Area, AreaCode, Code, FrameTable, Process, Registers, StackCopy, Unwinder};

use super::found::View;
use super::images::Images;
use super::modules::Modules;
use super::python::Pythons;

/// Most bytes of all unwind tables that are kept.
const MAX_TABLE_BYTES: usize = 64 << 20;
/// Most mappings of all processes that are kept.
const MAX_AREAS: usize = 1 << 17;
/// Bytes of tables that one request may have evaluated: some 100,000 rules.
const WORK_BYTES: usize = 16 << 20;
/// Tables with missing pages are read again after this time.
const READ_AGAIN_NS: u64 = 10_000_000_000;

/// Unwinds one guest's stacks.
#[derive(Debug, Default)]
pub(super) struct Stacks {
    unwinder: Unwinder,
    kernel: Option<unwind::Kernel>,
    /// When its tables were last searched for.
    kernel_read_ns: Option<u64>,
    /// By process id.
    processes: BTreeMap<u32, KnownProcess>,
    tables: Tables,
    pub(super) pythons: Pythons,
    last_number: u32,
    n_requests: u64,
}

/// What a look at the guest found.
pub(super) struct Guest<'g> {
    pub(super) view: &'g View<'g>,
    pub(super) images: &'g Images,
    pub(super) modules: &'g Modules,
    pub(super) now_ns: u64,
}

/// A process, as long as it has these mappings.
#[derive(Debug)]
struct KnownProcess {
    areas: Vec<Area>,
    number: u32,
    /// Page tables and request for which its mappings were last compared.
    compared: (u64, u64),
}

impl Stacks {
    /// Unwinds stacks, with what is known of the guest.
    pub(super) fn unwind(
        &mut self,
        guest: &Guest<'_>,
        samples: Vec<StackSample>,
    ) -> Vec<UnwoundStack> {
        self.unwinder.workspace.allow(WORK_BYTES);
        self.n_requests = self.n_requests.wrapping_add(1);
        samples.into_iter().map(|sample| self.unwind_one(guest, sample)).collect()
    }

    /// After its modules have changed.
    pub(super) fn forget_kernel(&mut self) {
        (self.kernel, self.kernel_read_ns) = (None, None);
    }

    fn unwind_one(&mut self, guest: &Guest<'_>, sample: StackSample) -> UnwoundStack {
        let StackSample { pid, cr3, kernel, user, copies } = sample;
        let copy = |StackBytes { start, bytes }| StackCopy { start, bytes };
        let mut copies: Vec<StackCopy> = copies.into_iter().map(copy).collect();
        let python = copies.pop_if(|copy| copy.start == PYTHON_FRAMES);
        let given = user.as_ref().map(registers);
        let mut user = given;
        let kernel = kernel.as_ref().map(|start| {
            let (part, end) = self.unwind_kernel(guest, &registers(start), &copies);
            if part.end == StackEnd::UserMode {
                user = Some(end);
            }
            part
        });
        let user = user.map(|user| {
            let mut part = self.unwind_user(guest, (pid, cr3), &user, &copies);
            // What the basis says of the registers at its start is compared with those that were given.
            let is_given = given.is_some_and(|given| given.main() == user.main());
            part.basis.take_if(|_| !is_given);
            part
        });
        let interpreter = self.pythons.interpreter(pid, cr3);
        let user = user.map(|part| match (&python, interpreter) {
            (Some(python), Some(_)) => self.with_python(guest, (pid, cr3), &python.bytes, part),
            // The next ones have it.
            (None, Some(_)) => StackPart { basis: None, ..part },
            (_, None) => part,
        });
        UnwoundStack { kernel, user, interpreter: interpreter.filter(|_| python.is_none()) }
    }

    /// The user's part with the frames of Python code.
    fn with_python(
        &mut self,
        guest: &Guest<'_>,
        process: (u32, u64),
        copy: &[u8],
        part: StackPart,
    ) -> StackPart {
        let native = (part.frames.as_slice(), part.end.is_whole());
        let frames = self.pythons.interleave(guest.view, process, self.n_requests, copy, native);
        let Some(mut frames) = frames else { return part };
        let is_too_deep = MAX_STACK_FRAMES < frames.len();
        frames.truncate(MAX_STACK_FRAMES);
        let end = if is_too_deep { StackEnd::TooDeep } else { part.end };
        let (words, _) = copy.as_chunks::<8>();
        let words =
            (PYTHON_FRAMES..).step_by(8).zip(words.iter().map(|it| u64::from_le_bytes(*it)));
        // Up to the one behind the last frame.
        let n_words = words.clone().take_while(|(_, word)| 1 < *word).count() + 1;
        let basis = part.basis.filter(|basis| basis.words.len() + n_words <= MAX_BASIS_WORDS);
        let basis = basis.map(|mut basis| {
            basis.words.extend(words.take(n_words));
            basis
        });
        StackPart { frames, end, basis }
    }

    fn unwind_kernel(
        &mut self,
        guest: &Guest<'_>,
        start: &Registers,
        copies: &[StackCopy],
    ) -> (StackPart, Registers) {
        let is_old = |read_ns: u64| read_ns.saturating_add(READ_AGAIN_NS) <= guest.now_ns;
        if self.kernel.is_none() && self.kernel_read_ns.is_none_or(is_old) {
            let number = self.next_number();
            self.kernel = guest.view.kernel_code(number);
            self.kernel_read_ns = Some(guest.now_ns);
        }
        match &mut self.kernel {
            Some(kernel) => part(&mut self.unwinder, kernel, start, copies),
            None => (without_callers(start, StackEnd::NoTables), *start),
        }
    }

    fn unwind_user(
        &mut self,
        guest: &Guest<'_>,
        (pid, cr3): (u32, u64),
        start: &Registers,
        copies: &[StackCopy],
    ) -> StackPart {
        let compared = (cr3, self.n_requests);
        if self.processes.get(&pid).is_none_or(|known| known.compared != compared) {
            let Some(mappings) = guest.images.mappings(pid, cr3) else {
                return without_callers(start, StackEnd::NoProcess);
            };
            let mut files = Files { guest, tables: &mut self.tables };
            let python = |module: u32| guest.modules.python(module);
            self.pythons.know((pid, cr3), mappings, &python, &mut |mapping| {
                let table = unwind::Files::table(&mut files, mapping.module).ok()?;
                table.bias(mapping.start, mapping.offset)
            });
            let code = mappings.iter().filter(|it| !guest.modules.is_script(it.module));
            self.know(pid, compared, code.map(|mapping| area(guest.modules, mapping)));
        }
        let KnownProcess { areas, number, .. } = &self.processes[&pid];
        let mut files = Files { guest, tables: &mut self.tables };
        let mut process = Process { number: *number, areas, files: &mut files };
        part(&mut self.unwinder, &mut process, start, copies).0
    }

    /// Keeps the number of a process whose areas are as they were.
    fn know(&mut self, pid: u32, compared: (u64, u64), areas: impl Iterator<Item = Area> + Clone) {
        if let Some(known) = self.processes.get_mut(&pid)
            && known.areas.iter().copied().eq(areas.clone())
        {
            known.compared = compared;
            return;
        }
        let n_areas: usize = self.processes.values().map(|known| 1 + known.areas.len()).sum();
        if MAX_AREAS < n_areas {
            // Most have ended. The others come back.
            self.processes.clear();
        }
        let number = self.next_number();
        self.processes.insert(pid, KnownProcess { areas: areas.collect(), number, compared });
    }

    fn next_number(&mut self) -> u32 {
        self.last_number = self.last_number.checked_add(1).unwrap_or(1);
        self.last_number
    }
}

fn registers(registers: &StackRegisters) -> Registers {
    let StackRegisters { ip, sp, bp, callee_saved } = *registers;
    let registers = match sp {
        Some(sp) => Registers::new(ip, sp, bp),
        None => Registers::without_sp(ip, bp),
    };
    callee_saved.map_or(registers, |values| registers.with_callee_saved(values))
}

fn part(
    unwinder: &mut Unwinder,
    code: &mut dyn Code,
    start: &Registers,
    copies: &[StackCopy],
) -> (StackPart, Registers) {
    let mut frames = Vec::with_capacity(32);
    let (end, registers) = unwinder.unwind(code, start, copies, &mut frames);
    let unwind::Basis { words, needs_bp, is_partial } = unwinder.basis();
    let is_sure = end.is_whole() && !is_partial && words.len() <= MAX_BASIS_WORDS;
    let basis = is_sure.then(|| StackBasis { words: words.clone(), needs_bp: *needs_bp });
    (StackPart { frames, end, basis }, registers)
}

fn without_callers(start: &Registers, end: StackEnd) -> StackPart {
    StackPart { frames: vec![start.ip], end, basis: None }
}

fn area(modules: &Modules, mapping: &GuestMapping) -> Area {
    let GuestMapping { start, end, offset, module } = *mapping;
    let code = if modules.is_generated(module) {
        AreaCode::Generated
    } else {
        AreaCode::File { file: module, offset }
    };
    Area { start, end, code }
}

/// Tables of files, the latest read last.
#[derive(Debug, Default)]
struct Tables {
    by_file: BTreeMap<u32, Table>,
    order: VecDeque<u32>,
    n_bytes: usize,
}

#[derive(Debug)]
struct Table {
    content: Result<FrameTable, StackEnd>,
    read_ns: u64,
}

impl Table {
    /// Bytes that are kept, also of one without content.
    fn n_bytes(&self) -> usize {
        size_of::<Self>() + self.content.as_ref().map_or(0, FrameTable::n_bytes)
    }

    fn is_stale(&self, now_ns: u64) -> bool {
        let is_old = self.read_ns.saturating_add(READ_AGAIN_NS) <= now_ns;
        is_old && self.content.as_ref().map_or(true, FrameTable::is_cut)
    }
}

impl Tables {
    fn remove(&mut self, file: u32) {
        if let Some(table) = self.by_file.remove(&file) {
            self.n_bytes -= table.n_bytes();
        }
    }

    fn insert(&mut self, file: u32, table: Table) {
        self.n_bytes += table.n_bytes();
        self.by_file.insert(file, table);
        self.order.push_back(file);
        while MAX_TABLE_BYTES < self.n_bytes
            && let Some(oldest) = self.order.pop_front()
        {
            self.remove(oldest);
        }
    }
}

/// The files that are mapped, with the tables that are kept.
struct Files<'f> {
    guest: &'f Guest<'f>,
    tables: &'f mut Tables,
}

impl unwind::Files for Files<'_> {
    fn table(&mut self, file: u32) -> Result<&FrameTable, StackEnd> {
        let Guest { view, modules, now_ns, .. } = *self.guest;
        if self.tables.by_file.get(&file).is_none_or(|table| table.is_stale(now_ns)) {
            self.tables.remove(file);
            self.tables.order.retain(|other| *other != file);
            let content = modules.frame_table(view, file);
            self.tables.insert(file, Table { content, read_ns: now_ns });
        }
        let table = self.tables.by_file.get(&file).ok_or(StackEnd::NoTables)?;
        table.content.as_ref().map_err(|end| *end)
    }
}
