//! Walks a kernel's list of tasks: which process has which page tables and memory, which thread which FS base, which
//! kernel thread which stack.
//!
//! ```text
//!  init_task.tasks <-> task.tasks <-> task.tasks <-> ... (thread group leaders, a ring)
//!                        |-- mm -> pgd; of a kernel thread: stack
//!                        '-- signal.thread_head <-> thread.thread_node <-> ... (a ring)
//! ```
//!
//! The list changes while it is read and may be a hostile guest's: every step is checked, counted
//! and bounded, and a walk that goes astray is started again. A process' ids and memory are read again after all else:
//! what was a new process, or began a program, meanwhile is not mixed with what it was.

use model::GuestVirt;

use crate::fields::Fields;
use crate::memory::KernelMemory;
use crate::types::layout;

/// Most steps of one walk: threads of all processes.
const MAX_STEPS: usize = 1 << 19;
/// Walks begun before one that went astray is taken as it is.
const MAX_ATTEMPTS: usize = 4;
/// How often a process that changes is read.
const MAX_READS: usize = 3;
/// The kernel's own limit on process ids (`PID_MAX_LIMIT`).
const MAX_PID: u32 = 1 << 22;
/// `task_struct.flags`: a kernel thread (include/linux/sched.h). It may have borrowed a process' memory.
const PF_KTHREAD: u32 = 0x0020_0000;

const ASTRAY: &str = "the kernel's list of tasks changed while it was read";

layout! {
    /// Where the kernel keeps what the walk reads: byte offsets of fields.
    Layout {
        tasks: "task_struct" "tasks",
        flags: "task_struct" "flags",
        stack: "task_struct" "stack",
        pid: "task_struct" "pid",
        tgid: "task_struct" "tgid",
        comm: "task_struct" "comm",
        mm: "task_struct" "mm",
        exit_state: "task_struct" "exit_state",
        start_time: "task_struct" "start_time",
        fs_base: "task_struct" "thread.fsbase",
        signal: "task_struct" "signal",
        thread_node: "task_struct" "thread_node",
        thread_head: "signal_struct" "thread_head",
        pgd: "mm_struct" "pgd",
    }
    optional {}
}

/// A user process.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Process {
    /// The thread group's id, which is its first thread's.
    pub pid: u32,
    /// Name of its first thread.
    pub name: String,
    /// Page-table base, guest-physical.
    pub cr3: u64,
    /// When it was made, guest's `CLOCK_MONOTONIC`, ns.
    pub start_ns: u64,
    /// Its first thread's `task_struct`.
    pub task: GuestVirt,
    /// Its `mm_struct`.
    pub mm: GuestVirt,
    /// Its first thread has ended, others have not.
    pub leader_has_ended: bool,
    /// Its threads, the first one among them.
    pub threads: Vec<Thread>,
}

/// A thread of a user process.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Thread {
    pub tid: u32,
    pub name: String,
    /// FS base as of when it last left the CPU.
    pub fs_base: u64,
    /// Its `task_struct`.
    pub task: GuestVirt,
}

/// A kernel thread, or a CPU's idle task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelThread {
    /// Thread id; 0 for an idle task.
    pub tid: u32,
    pub name: String,
    /// First address of its stack.
    pub stack: u64,
    /// When it was made, guest's `CLOCK_MONOTONIC`, ns.
    pub start_ns: u64,
    /// Its `task_struct`.
    pub task: GuestVirt,
}

/// What a walk found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Walk {
    /// Processes in list order, which is the order they were made in; the newest first in a walk for new ones.
    pub processes: Vec<Process>,
    /// Kernel threads in the same order, without the idle tasks, which the list does not have.
    pub kernel_threads: Vec<KernelThread>,
    /// How many processes were left out because they changed each time they were read.
    pub n_changing: usize,
    /// Why the list may be incomplete.
    pub problem: Option<&'static str>,
}

/// Which task a walk came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TaskKey {
    /// Its `task_struct`. Another task may have it later.
    pub task: GuestVirt,
    pub pid: u32,
    /// When it was made, guest's `CLOCK_MONOTONIC`, ns.
    pub start_ns: u64,
}

/// Walks the tasks from `init_task` on. `page_offset` is where the kernel maps physical address 0.
pub fn walk(
    memory: &dyn KernelMemory,
    layout: &Layout,
    init_task: GuestVirt,
    page_offset: u64,
) -> Walk {
    let reader = Reader { memory, layout, page_offset };
    best(|| reader.walk(init_task.0, Direction::OldestFirst, &|_| false))
}

/// Walks the tasks that were made last, the newest first, until one that `is_known`. New threads of a known process are
/// not among them.
pub fn walk_new(
    memory: &dyn KernelMemory,
    layout: &Layout,
    init_task: GuestVirt,
    page_offset: u64,
    is_known: &dyn Fn(TaskKey) -> bool,
) -> Walk {
    let reader = Reader { memory, layout, page_offset };
    best(|| reader.walk(init_task.0, Direction::NewestFirst, is_known))
}

/// The first walk without a problem, or the longest.
fn best(walk: impl Fn() -> Walk) -> Walk {
    let mut best = Walk::default();
    for _ in 0..MAX_ATTEMPTS {
        let attempt = walk();
        if best.processes.len() <= attempt.processes.len() || attempt.problem.is_none() {
            best = attempt;
        }
        if best.problem.is_none() {
            break;
        }
    }
    best
}

/// Where a kernel keeps the idle tasks of its CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdleTasks {
    /// `idle_threads`: a per-CPU variable, a pointer to the CPU's idle task.
    pub variable: GuestVirt,
    /// `__per_cpu_offset`: what to add for each CPU.
    pub offsets: GuestVirt,
}

/// The idle tasks of these CPUs, as far as they can be read.
pub fn idle_tasks(
    memory: &dyn KernelMemory,
    layout: &Layout,
    idle: &IdleTasks,
    cpus: &[u32],
) -> Vec<KernelThread> {
    let reader = Reader { memory, layout, page_offset: 0 };
    let of_cpu = |cpu: &u32| {
        let offset = memory.u64_at(idle.offsets.0, u64::from(*cpu) * 8)?;
        let task = memory.u64_at(idle.variable.0.wrapping_add(offset), 0)?;
        Some(reader.task(task)?.into_kernel_thread(0))
    };
    cpus.iter().filter_map(of_cpu).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    OldestFirst,
    NewestFirst,
}

/// What is read of a `task_struct`.
#[derive(Debug)]
struct Task {
    address: u64,
    pid: u32,
    tgid: u32,
    mm: u64,
    flags: u32,
    name: String,
    stack: u64,
    start_ns: u64,
    fs_base: u64,
    signal: u64,
    has_ended: bool,
}

impl Task {
    fn into_kernel_thread(self, tid: u32) -> KernelThread {
        KernelThread {
            tid,
            name: self.name,
            stack: self.stack,
            start_ns: self.start_ns,
            task: GuestVirt(self.address),
        }
    }

    fn has_id(&self) -> bool {
        (1..=MAX_PID).contains(&self.pid)
    }
}

struct Reader<'a> {
    memory: &'a dyn KernelMemory,
    layout: &'a Layout,
    page_offset: u64,
}

impl Reader<'_> {
    fn walk(
        &self,
        init_task: u64,
        direction: Direction,
        is_known: &dyn Fn(TaskKey) -> bool,
    ) -> Walk {
        let mut walk = Walk::default();
        let head = init_task.wrapping_add(self.layout.tasks);
        let mut steps_left = MAX_STEPS;
        let end = self.ring(head, direction, &mut steps_left, &mut |node, steps_left| {
            let task = self.task(node.wrapping_sub(self.layout.tasks)).filter(Task::has_id)?;
            let Task { pid, start_ns, .. } = task;
            if is_known(TaskKey { task: GuestVirt(task.address), pid, start_ns }) {
                return Some(Next::Stop);
            }
            if task.flags & PF_KTHREAD != 0 {
                walk.kernel_threads.push(task.into_kernel_thread(pid));
                return Some(Next::Go);
            }
            match self.process(task, steps_left)? {
                Found::Process(process) => walk.processes.push(process),
                Found::Changing => walk.n_changing += 1,
                Found::NoMemory => {}
            }
            Some(Next::Go)
        });
        walk.problem = end.err();
        walk
    }

    fn process(&self, mut task: Task, steps_left: &mut usize) -> Option<Found> {
        for _ in 0..MAX_READS {
            let (threads, mm) = self.threads(&task, steps_left);
            // A process that is ending has no memory any more.
            if mm == 0 {
                return Some(Found::NoMemory);
            }
            let pgd = self.memory.u64_at(mm, self.layout.pgd)?;
            let again = self.task(task.address)?;
            let ids = |task: &Task| (task.pid, task.tgid, task.mm, task.start_ns);
            if ids(&task) == ids(&again) && task.pid == task.tgid {
                return Some(Found::Process(Process {
                    pid: task.pid,
                    name: again.name,
                    cr3: pgd.wrapping_sub(self.page_offset),
                    start_ns: task.start_ns,
                    task: GuestVirt(task.address),
                    mm: GuestVirt(mm),
                    leader_has_ended: again.has_ended,
                    threads,
                }));
            }
            task = again;
        }
        Some(Found::Changing)
    }

    /// Its threads, and the memory that they share: a first thread that has ended has none.
    fn threads(&self, leader: &Task, steps_left: &mut usize) -> (Vec<Thread>, u64) {
        let thread = |task: Task| Thread {
            tid: task.pid,
            name: task.name,
            fs_base: task.fs_base,
            task: GuestVirt(task.address),
        };
        let (mut threads, mut mm) = (Vec::new(), leader.mm);
        let head = leader.signal.wrapping_add(self.layout.thread_head);
        // The threads of a process that ends under our eyes may be gone; the process still counts.
        let _ = self.ring(head, Direction::OldestFirst, steps_left, &mut |node, _| {
            let task = self.task(node.wrapping_sub(self.layout.thread_node));
            let task = task.filter(|task| task.has_id() && task.tgid == leader.pid)?;
            if mm == 0 {
                mm = task.mm;
            }
            threads.push(thread(task));
            Some(Next::Go)
        });
        if threads.is_empty()
            && let Some(task) = self.task(leader.address)
        {
            threads.push(thread(task));
        }
        (threads, mm)
    }

    fn task(&self, address: u64) -> Option<Task> {
        let at = self.layout;
        let words = [at.stack, at.mm, at.start_time, at.fs_base, at.signal, at.comm, at.comm + 8];
        let halves = [at.flags, at.pid, at.tgid, at.exit_state];
        let words = words.iter().map(|at| (*at, 8)).chain(halves.iter().map(|at| (*at, 4)));
        let fields = Fields::read(self.memory, address, &words.collect::<Vec<_>>())?;
        Some(Task {
            address,
            pid: fields.u32(at.pid)?,
            tgid: fields.u32(at.tgid)?,
            mm: fields.u64(at.mm)?,
            flags: fields.u32(at.flags)?,
            name: comm(&fields.array(at.comm)?),
            stack: fields.u64(at.stack)?,
            start_ns: fields.u64(at.start_time)?,
            fs_base: fields.u64(at.fs_base)?,
            signal: fields.u64(at.signal)?,
            has_ended: fields.u32(at.exit_state)? != 0,
        })
    }

    /// Visits the nodes of the ring at `head` but the head itself, checking that each one refers back to
    /// the node before it: memory that was freed and used again does not look like that.
    fn ring(
        &self,
        head: u64,
        direction: Direction,
        steps_left: &mut usize,
        visit: &mut dyn FnMut(u64, &mut usize) -> Option<Next>,
    ) -> Result<(), &'static str> {
        let (on, back) = if direction == Direction::OldestFirst { (0, 8) } else { (8, 0) };
        let first = self.memory.u64_at(head, on);
        let mut node = first.ok_or("failed to read the kernel's list of tasks")?;
        let mut previous = head;
        while node != head {
            *steps_left = steps_left.checked_sub(1).ok_or("the kernel has too many threads")?;
            if self.memory.u64_at(node, back) != Some(previous) {
                return Err(ASTRAY);
            }
            if visit(node, steps_left).ok_or(ASTRAY)? == Next::Stop {
                break;
            }
            previous = node;
            node = self.memory.u64_at(node, on).ok_or(ASTRAY)?;
        }
        Ok(())
    }
}

/// Whether a ring's next node is visited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Go,
    Stop,
}

/// What a task of the list is.
enum Found {
    Process(Process),
    /// It ends.
    NoMemory,
    /// It was another one each time it was read.
    Changing,
}

/// A `comm` field: up to the first NUL.
#[must_use]
pub fn comm(bytes: &[u8; 16]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

#[cfg(test)]
mod test;
