//! Puts the guest map together.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;

use api::guest::{
    GuestImage, GuestKernelThread, GuestMap, MAX_ANSWER_BYTES, ModuleSymbols, Response, VERSION,
};
use model::GuestVirt;

use super::InsideError;
use super::kcore::Kcore;
use super::kernel::{Kernel, read_kernel};
use super::log::Log;
use super::processes::{self, Modules};
use super::timeline::{self, Story};
use crate::frame;
use crate::walk::{IdleTasks, KernelThread, Layout, Process, Walk, idle_tasks, walk};

/// Reads one guest's inside; numbers of modules stay valid as long as it lives.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    modules: Modules,
    /// Found once: reading the kernel's symbols and types is the expensive part.
    tasks: Option<Tasks>,
    /// Of when the log began.
    kernel: Option<Kernel>,
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
    fn open(kernel: &Kernel) -> Result<Self, InsideError> {
        let kcore = Kcore::open(Path::new("/proc/kcore"))?;
        let layout = super::btf::read_layout(Path::new("/sys/kernel/btf/vmlinux"))?;
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
            let cpus = super::log::online_cpus(Path::new("/sys"));
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
    /// Starts a log and notes who is alive.
    pub(crate) fn start_log(&mut self) -> Log {
        // The slow part first: between the log's begin and the walk nobody should end unseen.
        let ready = self.ready_tasks();
        let mut log = Log::start(self.tasks.as_ref().map(|tasks| &tasks.layout));
        match ready {
            Ok(()) => log.before = self.alive(&mut log.problems).0,
            Err(error) => log.problems.push(no_processes(&error)),
        }
        log
    }

    /// The guest map now, with what the log saw.
    pub(crate) fn map(&mut self, log: Option<Log>) -> GuestMap {
        let mut problems = Vec::new();
        let kernel = read_kernel(Path::new("/proc"), self.kernel.take()).unwrap_or_else(|error| {
            problems.push(format!("the kernel's functions have no names: {error}"));
            Kernel::default()
        });
        let mut map = GuestMap {
            version: VERSION,
            boot_id: first_line(Path::new("/proc/sys/kernel/random/boot_id")),
            kernel_release: first_line(Path::new("/proc/sys/kernel/osrelease")),
            ..GuestMap::default()
        };
        if self.tasks.is_none() {
            match Tasks::open(&kernel) {
                Ok(tasks) => self.tasks = Some(tasks),
                Err(error) => problems.push(no_processes(&error)),
            }
        }
        map.kernel = kernel.map;
        if let (Some(tasks), Some(virt)) = (&self.tasks, kernel.page_tables) {
            map.kernel.cr3 = tasks.kcore.image_phys(virt).unwrap_or(0);
        }
        map.now_ns = super::now_ns();
        let alive = self.alive(&mut problems);
        let story = self.story(log, alive, map.now_ns, &mut problems);
        map.kernel_threads = timeline::kernel_threads(&story);
        map.images = timeline::images(story);
        map.modules.clone_from(&self.modules.list);
        map.problems = problems;
        map
    }

    fn story(
        &mut self,
        log: Option<Log>,
        (after, kernel_threads): (Vec<GuestImage>, Vec<GuestKernelThread>),
        now_ns: u64,
        problems: &mut Vec<String>,
    ) -> Story {
        let mut story = Story {
            after,
            kernel_threads,
            ended_ns: now_ns,
            started_ns: now_ns,
            ..Story::default()
        };
        let Some(mut log) = log else {
            // Without a log nobody knows what was here before: who is alive always was.
            for image in &mut story.after {
                image.start_ns = None;
            }
            return story;
        };
        story.started_ns = log.started_ns;
        story.before = std::mem::take(&mut log.before);
        problems.append(&mut log.problems);
        let page_offset = self.tasks.as_ref().map_or(0, |tasks| tasks.page_offset);
        story.events = log.finish(page_offset, &mut self.modules, problems);
        story
    }

    /// The symbols of some of the last map's modules, as many as one answer holds.
    pub(crate) fn symbols(&self, modules: &[u32]) -> Vec<ModuleSymbols> {
        let mut bytes_left = MAX_ANSWER_BYTES - (1 << 16);
        modules
            .iter()
            .map(|module| {
                let mut symbols = self.modules.symbols(*module);
                let bytes = encoded_bytes(&symbols);
                match bytes_left.checked_sub(bytes) {
                    Some(rest) => bytes_left = rest,
                    None => {
                        symbols.symbols.clear();
                        symbols.problem = Some("its symbol table is too large to send".into());
                    }
                }
                symbols
            })
            .collect()
    }

    fn ready_tasks(&mut self) -> Result<(), InsideError> {
        if self.tasks.is_none() {
            let kernel = self.kernel.insert(read_kernel(Path::new("/proc"), None)?);
            self.tasks = Some(Tasks::open(kernel)?);
        }
        Ok(())
    }

    /// Processes and kernel threads that are there now.
    fn alive(&mut self, problems: &mut Vec<String>) -> (Vec<GuestImage>, Vec<GuestKernelThread>) {
        let Some(tasks) = &self.tasks else { return Default::default() };
        let walked = tasks.walk();
        problems.extend(walked.problem.map(str::to_owned));
        let kernel_thread = |thread: KernelThread| GuestKernelThread {
            tid: thread.tid,
            name: thread.name,
            stack: thread.stack,
            start_ns: Some(thread.start_ns),
            end_ns: None,
        };
        let kernel_threads = walked.kernel_threads.into_iter().map(kernel_thread).collect();
        let processes: Vec<Process> = walked.processes;
        (processes::images(Path::new("/proc"), processes, &mut self.modules), kernel_threads)
    }
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
/// told in the map's problems, which are returned.
pub fn write_snapshot(output: &mut dyn Write) -> Result<Vec<String>, InsideError> {
    let mut reader = Reader::default();
    let map = reader.map(None);
    if map.images.is_empty() && map.kernel.symbols.is_empty() {
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
        write_frame(output, &Response::Symbols(reader.symbols(&[module])))?;
    }
    output.flush().map_err(InsideError::Write)?;
    Ok(problems)
}

fn write_frame(output: &mut dyn Write, response: &Response) -> Result<(), InsideError> {
    let frame = frame::encode(0, response, MAX_ANSWER_BYTES).map_err(InsideError::Answer)?;
    output.write_all(&frame).map_err(InsideError::Write)
}
