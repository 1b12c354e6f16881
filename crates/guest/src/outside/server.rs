//! Answers the host about a guest whose memory it has.

use std::collections::BTreeMap;

use api::guest::{
    GuestMap, GuestMapping, MAX_ANSWER_BYTES, MAX_LOW_PACE_BYTES, ModuleSymbols, Pace, Request,
    Response, StackSample, UnwoundStacks, VERSION,
};
use linux::tasks::Process;
use model::GuestCode;
use rustix::time::ClockId;

use super::found::{Found, NotFound};
use super::images::{Images, Mapped};
use super::memory::VmMemory;
use super::modules::Modules;
use super::stacks::{Guest, Stacks};

/// Bytes that one look may read: some 50,000 threads.
const LOOK_BYTES: u64 = 256 << 20;
/// The same of a search for the kernel, beyond the memory that is there, and in all.
const SEARCH_BYTES: u64 = 1 << 30;
const MAX_SEARCH_BYTES: u64 = 16 << 30;
/// Between two walks of all tasks while none was made: a program may be executed without one.
const WALK_EVERY_NS: u64 = 2_000_000_000;

/// Why processes may be missing where samples do not say what is mapped.
const LOOKS: &str =
    "its memory is looked at every 100 ms: processes that begin and end in between have no names";
const PAGE_BYTES: u64 = 4096;

/// One guest's answers.
pub(super) struct MemoryServer {
    memory: VmMemory,
    found: Option<Found>,
    images: Images,
    modules: Modules,
    stacks: Stacks,
    /// Modules that were reported.
    reported_modules: usize,
    is_kernel_reported: bool,
    /// At the last walk: when, and tasks made so far.
    last_walk: Option<(u64, Option<u64>)>,
}

impl MemoryServer {
    pub(super) fn new(memory: VmMemory) -> Self {
        Self {
            memory,
            found: None,
            images: Images::default(),
            modules: Modules::default(),
            stacks: Stacks::default(),
            reported_modules: 0,
            is_kernel_reported: false,
            last_walk: None,
        }
    }

    pub(super) fn respond(&mut self, request: Request) -> Response {
        let answered = match request {
            Request::Hello { .. } => {
                return Response::Hello { version: VERSION, now_ns: crate::now_ns() };
            }
            Request::Ping { number } => return Response::Pong { number },
            Request::StartLog { .. } => self.start(),
            Request::Changes { pace } => self.changes(most_bytes(pace)),
            Request::WindowEnd => self.window_end(),
            Request::Snapshot => self.changes(most_bytes(Pace::Prompt)),
            Request::Symbols { modules, pace, largest_file } => {
                Ok(Response::Symbols(self.symbols(&modules, pace, largest_file)))
            }
            Request::CurrentTasks => self.current_tasks(),
            Request::AddCode(codes) => self.add_code(&codes),
            Request::Stacks(samples) => self.unwind(samples),
            Request::TraceStart(_)
            | Request::TraceRun
            | Request::TraceLook
            | Request::TraceDrain
            | Request::TraceStop => Err(NotFound::Trace),
        };
        answered.unwrap_or_else(|error| Response::Error(error.to_string()))
    }

    fn start(&mut self) -> Result<Response, NotFound> {
        let now_ns = crate::now_ns();
        self.look(now_ns)?;
        let samples_say = self.found.as_ref().is_some_and(Found::has_tree_of_mappings);
        Ok(Response::LogStarted { now_ns, problem: (!samples_say).then(|| LOOKS.to_owned()) })
    }

    /// Looks at the tasks, unless nothing can have changed.
    fn look(&mut self, now_ns: u64) -> Result<(), NotFound> {
        let found = found(&mut self.found, &self.memory)?;
        self.memory.begin_look(LOOK_BYTES);
        let view = found.view(&self.memory);
        if !view.is_same_boot() {
            // The next one has other tasks, and other addresses: another session asks for them.
            return Err(NotFound::Rebooted);
        }
        let forks = view.forks();
        let (walked_ns, before) = self.last_walk.unwrap_or((0, None));
        let is_due = walked_ns.saturating_add(WALK_EVERY_NS) <= now_ns
            || self.last_walk.is_none()
            || self.images.take_unsure();
        let are_settled = self.images.are_settled(now_ns);
        if !is_due && before == forks && are_settled {
            return Ok(());
        }
        let modules = &mut self.modules;
        let mut mappings = |process: &Process, mark: Option<u64>| {
            let now = view.mappings_mark(process)?;
            if mark == Some(now) {
                return None;
            }
            let (mappings, is_whole) = view.mappings(process, |file| modules.number(&view, file));
            Some(Mapped { mark: if is_whole { now } else { 0 }, mappings })
        };
        if is_due {
            self.images.see(view.walk(), now_ns, &mut mappings);
        } else {
            let images = &self.images;
            let walk = view.walk_new(&|key| images.is_settled(key.pid, key.start_ns, now_ns));
            self.images.see_new(walk, now_ns, &mut mappings);
        }
        self.last_walk = Some((if is_due { now_ns } else { walked_ns }, forks));
        Ok(())
    }

    fn changes(&mut self, most_bytes: usize) -> Result<Response, NotFound> {
        let now_ns = crate::now_ns();
        self.look(now_ns)?;
        let found = found(&mut self.found, &self.memory)?;
        let mut map = GuestMap {
            version: VERSION,
            boot_id: found.boot_id.clone(),
            kernel_release: found.release().to_owned(),
            now_ns,
            cpu_ns: crate::clock_ns(ClockId::ProcessCPUTime),
            images: self.images.changes(most_bytes / 2),
            kernel_threads: self.images.kernel_thread_changes(),
            ..GuestMap::default()
        };
        if !self.is_kernel_reported {
            let kernel = found.kernel_map();
            let bytes: usize = kernel.symbols.iter().map(|symbol| symbol.name.len() + 16).sum();
            // A new one that is too large for an answer while sampling waits for the last one.
            if bytes <= most_bytes / 2 {
                map.kernel = Some(kernel);
                self.is_kernel_reported = true;
            }
        }
        let modules = self.modules.list();
        map.modules = modules[self.reported_modules..].to_vec();
        self.reported_modules = modules.len();
        if self.memory.is_used_up() {
            map.problems.push("a look at its memory read as much as it may".to_owned());
        }
        Ok(Response::Map(Box::new(map)))
    }

    /// With what may have changed more rarely: modules that the kernel has loaded.
    fn window_end(&mut self) -> Result<Response, NotFound> {
        let found = found(&mut self.found, &self.memory)?;
        self.memory.begin_look(LOOK_BYTES);
        if found.update_modules(&self.memory) {
            self.is_kernel_reported = false;
            self.stacks.forget_kernel();
        }
        self.changes(most_bytes(Pace::Low))
    }

    fn symbols(&mut self, modules: &[u32], pace: Pace, largest_file: u64) -> Vec<ModuleSymbols> {
        let Some(found) = &self.found else { return Vec::new() };
        self.memory.begin_look(LOOK_BYTES.max(largest_file.min(SEARCH_BYTES)));
        let view = found.view(&self.memory);
        let mut bytes_left = most_bytes(pace);
        let symbols = modules.iter().map(|module| {
            let before_ns = crate::clock_ns(ClockId::ProcessCPUTime);
            let mut symbols = self.modules.symbols(&view, *module, largest_file);
            let bytes: usize = symbols.symbols.iter().map(|it| it.name.len() + 20).sum();
            match bytes_left.checked_sub(bytes) {
                Some(left) => bytes_left = left,
                None => {
                    symbols.symbols.clear();
                    symbols.problem = Some("its symbol table is too large to send".into());
                }
            }
            symbols.cpu_ns = crate::clock_ns(ClockId::ProcessCPUTime).saturating_sub(before_ns);
            symbols
        });
        symbols.collect()
    }

    /// Adds tasks that samples hit: they may be gone before the next look.
    fn add_code(&mut self, codes: &[GuestCode]) -> Result<Response, NotFound> {
        let found = found(&mut self.found, &self.memory)?;
        self.memory.begin_look(LOOK_BYTES);
        let view = found.view(&self.memory);
        if !view.is_same_boot() {
            return Err(NotFound::Rebooted);
        }
        // Short-lived programs run from the same few files, and the path of a file takes a hundred reads.
        let mut numbers: BTreeMap<[u64; 4], Option<u32>> = BTreeMap::new();
        for code in codes {
            if self.images.has_code(code) {
                continue;
            }
            let file = [code.mount, code.dentry, code.inode, code.pages];
            let mut number = || self.modules.number_of_code(&view, code);
            let number = match (code.end, code.file) {
                (0, _) => None,
                (_, 0) => number(),
                _ => *numbers.entry(file).or_insert_with(number),
            };
            let mapping = number.map(|module| GuestMapping {
                start: code.start,
                end: code.end,
                offset: if code.file == 0 { 0 } else { code.offset.wrapping_mul(PAGE_BYTES) },
                module,
            });
            self.images.add_code(code, mapping);
        }
        Ok(Response::CodeAdded)
    }

    fn unwind(&mut self, samples: Vec<StackSample>) -> Result<Response, NotFound> {
        let found = found(&mut self.found, &self.memory)?;
        self.memory.begin_look(LOOK_BYTES);
        let view = found.view(&self.memory);
        self.modules.find_python(&view, crate::now_ns());
        let guest = Guest {
            view: &view,
            images: &self.images,
            modules: &self.modules,
            now_ns: crate::now_ns(),
        };
        let before_ns = crate::clock_ns(ClockId::ProcessCPUTime);
        let stacks = self.stacks.unwind(&guest, samples);
        for (pid, cr3, mappings) in self.stacks.pythons.take_new(&mut self.modules) {
            self.images.add_scripts(pid, cr3, &mappings);
        }
        let cpu_ns = crate::clock_ns(ClockId::ProcessCPUTime).saturating_sub(before_ns);
        Ok(Response::Stacks(UnwoundStacks { stacks, cpu_ns }))
    }

    fn current_tasks(&mut self) -> Result<Response, NotFound> {
        let found = found(&mut self.found, &self.memory)?;
        self.memory.begin_look(LOOK_BYTES);
        found
            .view(&self.memory)
            .current_tasks()
            .map(|tasks| Response::CurrentTasks(Box::new(tasks)))
    }
}

/// The kernel, which is searched for until it is there.
fn found<'f>(known: &'f mut Option<Found>, memory: &VmMemory) -> Result<&'f mut Found, NotFound> {
    match known {
        Some(found) => Ok(found),
        none => {
            memory.begin_look(memory.bytes().saturating_add(SEARCH_BYTES).min(MAX_SEARCH_BYTES));
            Ok(none.insert(Found::search(memory)?))
        }
    }
}

/// Of an answer, with room for what is not counted.
fn most_bytes(pace: Pace) -> usize {
    let most = match pace {
        Pace::Prompt => MAX_ANSWER_BYTES,
        Pace::Low => MAX_LOW_PACE_BYTES,
    };
    most - (1 << 16)
}
