//! Puts the guest map together.

use std::collections::{BTreeSet, HashSet};
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use api::guest::{
    GuestImage, GuestKernelThread, GuestMap, MAX_ANSWER_BYTES, MAX_LOW_PACE_BYTES, ModuleSymbols,
    Pace, Response, VERSION,
};
use linux::tasks::{IdleTasks, KernelThread, Layout, Process, Walk, idle_tasks, walk};
use model::GuestVirt;
use rustix::time::ClockId;

use super::job::{HungUp, Waiting};
use super::kcore::Kcore;
use super::kernel::{Kernel, read_kernel};
use super::log::Log;
use super::processes::{self, Modules};
use super::program::LoadedProgram;
use super::timeline::Timeline;
use super::{InsideError, elf};
use crate::frame;

/// The log's younger events wait for the next answer: another CPU's ring may hold their causes.
const SETTLING_NS: u64 = 50_000_000;

/// Reads one guest's inside for one session; numbers of modules and images stay valid as long as it lives.
#[derive(Debug)]
pub(crate) struct Reader {
    boot: Arc<Mutex<OfThisBoot>>,
    modules: Modules,
    tasks: Option<Tasks>,
    log: Option<(Log, Timeline)>,
    /// Those alive when the log began; reported first.
    first_kernel_threads: Vec<GuestKernelThread>,
    /// What was reported already.
    reported_modules: usize,
    reported_kernel: Option<Arc<Kernel>>,
    /// Whether the kernel was looked at: only the first answer, the last one and those at the ends of windows do.
    is_begun: bool,
    /// CPU time of this thread when the session began.
    cpu_before_ns: u64,
}

/// What stays as it is while the guest is up, read once for all sessions: the kernel's symbols (unless modules come or go)
/// and types are the expensive part. Work for an answer has it alone, so that one session's is done at a time.
#[derive(Debug, Default)]
pub(crate) struct OfThisBoot {
    kernel: Option<Arc<Kernel>>,
    layout: Option<Layout>,
    /// The log's program while no log runs.
    program: Option<LoadedProgram>,
}

impl OfThisBoot {
    fn kernel(&mut self) -> Result<Arc<Kernel>, InsideError> {
        let kernel = read_kernel(Path::new("/proc"), self.kernel.as_ref())?;
        Ok(Arc::clone(self.kernel.insert(kernel)))
    }

    fn layout(&mut self) -> Result<Layout, InsideError> {
        let layout = match self.layout {
            Some(layout) => layout,
            None => super::btf::read_layout(Path::new("/sys/kernel/btf/vmlinux"))?,
        };
        Ok(*self.layout.insert(layout))
    }

    /// Whether anything was read for an answer.
    #[cfg(test)]
    pub(crate) fn was_read(&self) -> bool {
        self.kernel.is_some() || self.layout.is_some()
    }

    /// Takes the log's program, or loads another one: each log has its own.
    fn program(&mut self) -> Result<LoadedProgram, String> {
        if let Some(program) = self.program.take() {
            return Ok(program);
        }
        let layout = self.layout.ok_or("the kernel's layout is unknown")?;
        LoadedProgram::load(&layout).map_err(|error| error.to_string())
    }
}

fn lock(boot: &Mutex<OfThisBoot>) -> MutexGuard<'_, OfThisBoot> {
    boot.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The way to the kernel's tasks.
#[derive(Debug)]
struct Tasks {
    kcore: Kcore,
    layout: Layout,
    init_task: GuestVirt,
    idle: Option<IdleTasks>,
    page_offset: u64,
}

impl Tasks {
    fn open(boot: &mut OfThisBoot) -> Result<Self, InsideError> {
        let kernel = boot.kernel()?;
        let kcore = Kcore::open(Path::new("/proc/kcore"))?;
        let layout = boot.layout()?;
        let init_task = GuestVirt(kernel.init_task.ok_or(InsideError::NoSymbol("init_task"))?);
        let page_offset = kcore.page_offset().ok_or_else(|| InsideError::Content {
            path: "/proc/kcore".into(),
            text: "no range of physical memory".into(),
        })?;
        let idle = kernel.idle_threads.zip(kernel.per_cpu_offset).map(|(variable, offsets)| {
            IdleTasks { variable: GuestVirt(variable), offsets: GuestVirt(offsets) }
        });
        Ok(Self { kcore, layout, init_task, idle, page_offset })
    }

    fn walk(&self) -> Walk {
        let mut walked = walk(&self.kcore, &self.layout, self.init_task, self.page_offset);
        if let Some(idle) = &self.idle {
            let cpus = super::cpus::online_cpus(Path::new("/sys"));
            // First: whatever is cut off, these are not.
            let of_list = std::mem::replace(
                &mut walked.kernel_threads,
                idle_tasks(&self.kcore, &self.layout, idle, &cpus),
            );
            walked.kernel_threads.extend(of_list);
        }
        walked
    }
}

impl Reader {
    /// A reader of the guest that `boot` is of.
    pub(crate) fn new(boot: Arc<Mutex<OfThisBoot>>) -> Self {
        Self {
            boot,
            modules: Modules::default(),
            tasks: None,
            log: None,
            first_kernel_threads: Vec::new(),
            reported_modules: 0,
            reported_kernel: None,
            is_begun: false,
            cpu_before_ns: cpu_ns(),
        }
    }

    /// Starts a log and notes who is alive. When it began, and why it will not be complete.
    pub(crate) fn start_log(&mut self, waiting: Waiting<'_>) -> Result<(u64, Vec<String>), HungUp> {
        let boot = Arc::clone(&self.boot);
        let boot = &mut *lock(&boot);
        waiting.check()?;
        // An old log's program would count among the new one's.
        self.end_log(boot);
        // The slow part first: between the log's begin and the walk no process should end unseen.
        let ready = self.ready_tasks(boot);
        let program = boot.program();
        waiting.check()?;
        let mut log = Log::start(program);
        let alive = match ready {
            Ok(()) => self.alive(&mut log.problems, waiting),
            Err(error) => {
                log.problems.push(no_processes(&error));
                Ok(Default::default())
            }
        };
        let Ok((before, kernel_threads)) = alive else {
            boot.program = log.end();
            return Err(HungUp);
        };
        let began = (log.started_ns, log.problems.clone());
        let mut timeline = Timeline::begin(before, log.started_ns);
        self.first_kernel_threads = timeline.kernel_threads(kernel_threads);
        self.log = Some((log, timeline));
        Ok(began)
    }

    /// What was not reported yet, as far as the log has it. Work for what happened, not for what is there.
    pub(crate) fn changes(&mut self, pace: Pace, waiting: Waiting<'_>) -> Result<GuestMap, HungUp> {
        let boot = Arc::clone(&self.boot);
        let boot = &mut *lock(&boot);
        waiting.check()?;
        Ok(self.changes_with(boot, pace))
    }

    fn changes_with(&mut self, boot: &mut OfThisBoot, pace: Pace) -> GuestMap {
        let mut map = self.new_map();
        if !std::mem::replace(&mut self.is_begun, true) {
            self.tell_kernel(boot, &mut map);
            map.kernel_threads = std::mem::take(&mut self.first_kernel_threads);
        }
        map.now_ns = super::now_ns().saturating_sub(SETTLING_NS);
        if let Some((mut log, mut timeline)) = self.log.take() {
            timeline.follow(log.drain(map.now_ns, self.page_offset(), &mut self.modules));
            map.images = timeline.changes(most_bytes(pace));
            map.kernel_threads.extend(timeline.kernel_threads(Vec::new()));
            self.log = Some((log, timeline));
        }
        self.tell_modules(&mut map);
        map
    }

    /// The same, and what the log has nothing of: modules that the kernel loaded, kernel threads that are there now.
    pub(crate) fn window_end(&mut self, waiting: Waiting<'_>) -> Result<GuestMap, HungUp> {
        let boot = Arc::clone(&self.boot);
        let boot = &mut *lock(&boot);
        waiting.check()?;
        let mut map = self.changes_with(boot, Pace::Low);
        self.tell_kernel(boot, &mut map);
        if let (Some(tasks), Some((_, timeline))) = (&self.tasks, &mut self.log) {
            let walked = tasks.walk();
            if walked.problem.is_none() {
                let walked: HashSet<u32> = walked.processes.iter().map(|it| it.pid).collect();
                // The list lacks processes whose first thread has ended.
                let is_there =
                    |pid| walked.contains(&pid) || Path::new(&format!("/proc/{pid}")).exists();
                timeline.end_lost(map.now_ns, is_there);
            }
            let alive = walked.kernel_threads.into_iter().map(kernel_thread).collect();
            map.kernel_threads.extend(timeline.kernel_threads(alive));
            map.problems.extend(walked.problem.map(str::to_owned));
        }
        if let Some((log, _)) = &mut self.log {
            map.problems.extend(log.new_losses());
        }
        map.cpu_ns = cpu_ns().saturating_sub(self.cpu_before_ns);
        Ok(map)
    }

    /// Processes that were not reported yet, and those alive now; ends the log.
    pub(crate) fn snapshot(&mut self, waiting: Waiting<'_>) -> Result<GuestMap, HungUp> {
        let boot = Arc::clone(&self.boot);
        let boot = &mut *lock(&boot);
        waiting.check()?;
        let mut map = self.new_map();
        self.tell_kernel(boot, &mut map);
        if let Err(error) = self.ready_tasks(boot) {
            map.problems.push(no_processes(&error));
        }
        map.now_ns = super::now_ns();
        let (mut after, kernel_threads) = self.alive(&mut map.problems, waiting)?;
        if let Some((mut log, mut timeline)) = self.log.take() {
            timeline.follow(log.drain(map.now_ns, self.page_offset(), &mut self.modules));
            map.kernel_threads = timeline.kernel_threads(kernel_threads);
            map.images = timeline.end(after, map.now_ns);
            map.problems.extend(log.take_problems());
            boot.program = log.end().or(boot.program.take());
        } else {
            // Without a log the past is unknown: living processes count as always there.
            for (id, image) in (0..).zip(&mut after) {
                (image.id, image.start_ns) = (id, None);
            }
            map.kernel_threads =
                Timeline::begin(Vec::new(), u64::MAX).kernel_threads(kernel_threads);
            map.images = after;
        }
        self.tell_modules(&mut map);
        Ok(map)
    }

    /// Takes its program off the kernel's tracepoints.
    fn end_log(&mut self, boot: &mut OfThisBoot) {
        if let Some((log, _)) = self.log.take() {
            boot.program = log.end().or(boot.program.take());
        }
    }

    fn new_map(&self) -> GuestMap {
        GuestMap {
            version: VERSION,
            boot_id: first_line(Path::new("/proc/sys/kernel/random/boot_id")),
            kernel_release: first_line(Path::new("/proc/sys/kernel/osrelease")),
            cpu_ns: cpu_ns().saturating_sub(self.cpu_before_ns),
            ..GuestMap::default()
        }
    }

    /// Unless it was reported, and is the same.
    fn tell_kernel(&mut self, boot: &mut OfThisBoot, map: &mut GuestMap) {
        let kernel = match boot.kernel() {
            Ok(kernel) => kernel,
            Err(error) => {
                map.problems.push(format!("the kernel's functions have no names: {error}"));
                return;
            }
        };
        if self.reported_kernel.as_ref().is_some_and(|reported| Arc::ptr_eq(reported, &kernel)) {
            return;
        }
        let mut reported = kernel.map.clone();
        if let (Ok(()), Some(virt)) = (self.ready_tasks(boot), kernel.page_tables) {
            reported.cr3 = self.tasks.as_ref().and_then(|t| t.kcore.image_phys(virt)).unwrap_or(0);
        }
        map.kernel = Some(reported);
        self.reported_kernel = Some(kernel);
    }

    fn tell_modules(&mut self, map: &mut GuestMap) {
        map.modules = self.modules.list[self.reported_modules..].to_vec();
        self.reported_modules = self.modules.list.len();
    }

    fn page_offset(&self) -> u64 {
        self.tasks.as_ref().map_or(0, |tasks| tasks.page_offset)
    }

    /// The symbols of some modules, as many as one answer holds.
    pub(crate) fn symbols(
        &self,
        modules: &[u32],
        pace: Pace,
        largest_file: u64,
        waiting: Waiting<'_>,
    ) -> Result<Vec<ModuleSymbols>, HungUp> {
        let _alone = lock(&self.boot);
        let mut bytes_left = most_bytes(pace);
        let largest_file = largest_file.min(elf::MAX_FILE_BYTES);
        modules
            .iter()
            .map(|module| {
                waiting.check()?;
                let mut symbols = self.modules.symbols(*module, largest_file);
                let bytes = encoded_bytes(&symbols);
                match bytes_left.checked_sub(bytes) {
                    Some(rest) => bytes_left = rest,
                    None => {
                        symbols.symbols.clear();
                        symbols.problem = Some("its symbol table is too large to send".into());
                    }
                }
                Ok(symbols)
            })
            .collect()
    }

    fn ready_tasks(&mut self, boot: &mut OfThisBoot) -> Result<(), InsideError> {
        if self.tasks.is_none() {
            let tasks = Tasks::open(boot)?;
            self.tasks = Some(tasks);
        }
        Ok(())
    }

    /// Processes and kernel threads that are there now.
    fn alive(
        &mut self,
        problems: &mut Vec<String>,
        waiting: Waiting<'_>,
    ) -> Result<(Vec<GuestImage>, Vec<GuestKernelThread>), HungUp> {
        let Some(tasks) = &self.tasks else { return Ok(Default::default()) };
        let walked = tasks.walk();
        problems.extend(walked.problem.map(str::to_owned));
        let kernel_threads = walked.kernel_threads.into_iter().map(kernel_thread).collect();
        let processes: Vec<Process> = walked.processes;
        let images = processes::images(Path::new("/proc"), processes, &mut self.modules, waiting)?;
        Ok((images, kernel_threads))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if self.log.is_some() {
            let boot = Arc::clone(&self.boot);
            self.end_log(&mut lock(&boot));
        }
    }
}

fn kernel_thread(thread: KernelThread) -> GuestKernelThread {
    GuestKernelThread {
        tid: thread.tid,
        name: thread.name,
        stack: thread.stack,
        start_ns: Some(thread.start_ns),
        end_ns: None,
    }
}

/// CPU time of this thread, which answers one host.
fn cpu_ns() -> u64 {
    crate::clock_ns(ClockId::ThreadCPUTime)
}

/// Of an answer, with room for what is not counted.
fn most_bytes(pace: Pace) -> usize {
    let most = match pace {
        Pace::Prompt => MAX_ANSWER_BYTES,
        Pace::Low => MAX_LOW_PACE_BYTES,
    };
    most - (1 << 16)
}

/// About the bytes that these symbols take in an answer, rather more than less.
fn encoded_bytes(symbols: &ModuleSymbols) -> usize {
    symbols.symbols.iter().map(|symbol| symbol.name.len() + 20).sum::<usize>() + 64
}

fn no_processes(error: &InsideError) -> String {
    format!("failed to tell processes apart: {error}")
}

fn first_line(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}

/// Writes a snapshot file: the map, then the symbols of each module that it names.
///
/// # Errors
/// If the kernel could not be read at all, or the output can't be written. What else is missing is
/// reported in the map's problems, which are returned.
pub fn write_snapshot(output: &mut dyn Write) -> Result<Vec<String>, InsideError> {
    let mut reader = Reader::new(Arc::default());
    // Its file is written in any case.
    let ended = |HungUp| InsideError::NothingRead("the snapshot was given up".to_owned());
    let map = reader.snapshot(Waiting::always()).map_err(ended)?;
    if map.images.is_empty() && map.kernel.is_none() {
        return Err(InsideError::NothingRead(map.problems.join("; ")));
    }
    let problems = map.problems.clone();
    let used: BTreeSet<u32> = map
        .images
        .iter()
        .flat_map(|image| image.mappings.iter().map(|mapping| mapping.module))
        .collect();
    write_frame(output, &Response::Map(Box::new(map)))?;
    for module in used {
        let symbols = reader.symbols(&[module], Pace::Prompt, u64::MAX, Waiting::always());
        write_frame(output, &Response::Symbols(symbols.map_err(ended)?))?;
    }
    output.flush().map_err(InsideError::Write)?;
    Ok(problems)
}

fn write_frame(output: &mut dyn Write, response: &Response) -> Result<(), InsideError> {
    let frame = frame::encode(0, response, MAX_ANSWER_BYTES).map_err(InsideError::Answer)?;
    output.write_all(&frame).map_err(InsideError::Write)
}
