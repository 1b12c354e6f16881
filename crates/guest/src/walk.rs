//! Walks a kernel's list of tasks in its own memory: which process has which page tables, which
//! thread which FS base, which kernel thread which stack. Pure over a trait, so that the memory may be the running kernel's
//! (`/proc/kcore`) or a guest's RAM seen from outside.
//!
//! ```text
//!  init_task.tasks <-> task.tasks <-> task.tasks <-> ... (thread group leaders, a ring)
//!                        |-- mm -> pgd; of a kernel thread: stack
//!                        '-- signal.thread_head <-> thread.thread_node <-> ... (a ring)
//! ```
//!
//! The list changes while it is read and may be a hostile guest's: every step is checked, counted
//! and bounded, and a walk that goes astray is started again.

use model::GuestVirt;

/// Most steps of one walk: threads of all processes.
const MAX_STEPS: usize = 1 << 19;
/// Walks begun before one that went astray is taken as it is.
const MAX_ATTEMPTS: usize = 4;
/// The kernel's own limit on process ids (`PID_MAX_LIMIT`).
const MAX_PID: u32 = 1 << 22;
/// `task_struct.flags`: a kernel thread (include/linux/sched.h). It may have borrowed a process' memory.
const PF_KTHREAD: u32 = 0x0020_0000;

/// The memory of a kernel, by the kernel's own virtual addresses.
pub trait KernelMemory {
    /// Fills `buffer` from `address` on; `None` if any of it can't be read.
    fn read(&self, address: GuestVirt, buffer: &mut [u8]) -> Option<()>;
}

/// Where the kernel keeps what the walk reads: byte offsets of fields, from its BTF.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// `task_struct.tasks`
    pub tasks: u64,
    /// `task_struct.flags`
    pub flags: u64,
    /// `task_struct.stack`
    pub stack: u64,
    /// `task_struct.pid`
    pub pid: u64,
    /// `task_struct.tgid`
    pub tgid: u64,
    /// `task_struct.comm`
    pub comm: u64,
    /// `task_struct.mm`
    pub mm: u64,
    /// `task_struct.start_time`
    pub start_time: u64,
    /// `task_struct.thread.fsbase`
    pub fs_base: u64,
    /// `task_struct.signal`
    pub signal: u64,
    /// `task_struct.thread_node`
    pub thread_node: u64,
    /// `signal_struct.thread_head`
    pub thread_head: u64,
    /// `mm_struct.pgd`
    pub pgd: u64,
}

/// A user process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    pub pid: u32,
    /// Name of its first thread.
    pub name: String,
    /// Page-table base, guest-physical.
    pub cr3: u64,
    /// When it was made, guest's `CLOCK_MONOTONIC`, ns.
    pub start_ns: u64,
    /// Its threads, the first one among them.
    pub threads: Vec<Thread>,
}

/// A thread of a user process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thread {
    pub tid: u32,
    pub name: String,
    /// FS base as of when it last left the CPU.
    pub fs_base: u64,
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
}

/// What a walk found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Walk {
    /// Processes in list order, which is the order they were made in.
    pub processes: Vec<Process>,
    /// Kernel threads in the same order, without the idle tasks, which the list does not have.
    pub kernel_threads: Vec<KernelThread>,
    /// Why the list may be incomplete.
    pub problem: Option<&'static str>,
}

/// Walks the tasks from `init_task` on. `page_offset` is where the kernel maps physical address 0.
pub fn walk(
    memory: &dyn KernelMemory,
    layout: &Layout,
    init_task: GuestVirt,
    page_offset: u64,
) -> Walk {
    let reader = Reader { memory, layout, page_offset };
    let mut best = Walk::default();
    for _ in 0..MAX_ATTEMPTS {
        let attempt = reader.processes(init_task.0);
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
        let offset = reader.u64(idle.offsets.0, u64::from(*cpu) * 8)?;
        let task = reader.u64(idle.variable.0.wrapping_add(offset), 0)?;
        reader.kernel_thread(task, 0)
    };
    cpus.iter().filter_map(of_cpu).collect()
}

struct Reader<'a> {
    memory: &'a dyn KernelMemory,
    layout: &'a Layout,
    page_offset: u64,
}

impl Reader<'_> {
    fn processes(&self, init_task: u64) -> Walk {
        let mut walk = Walk::default();
        let head = init_task.wrapping_add(self.layout.tasks);
        let mut steps_left = MAX_STEPS;
        let end = self.ring(head, &mut steps_left, &mut |node, steps_left| {
            let task = node.wrapping_sub(self.layout.tasks);
            if self.u32(task, self.layout.flags)? & PF_KTHREAD != 0 {
                walk.kernel_threads.push(self.kernel_thread(task, self.id(task)?)?);
                return Some(());
            }
            // A process that is ending has no memory any more.
            let mm = self.u64(task, self.layout.mm)?;
            if mm != 0 {
                walk.processes.push(self.process(task, mm, steps_left)?);
            }
            Some(())
        });
        walk.problem = end.err();
        walk
    }

    fn process(&self, task: u64, mm: u64, steps_left: &mut usize) -> Option<Process> {
        let pid = self.id(task)?;
        let pgd = self.u64(mm, self.layout.pgd)?;
        let mut threads = Vec::new();
        let signal = self.u64(task, self.layout.signal)?;
        let head = signal.wrapping_add(self.layout.thread_head);
        // The threads of a process that ends under our eyes may be gone; the process still counts.
        let _ = self.ring(head, steps_left, &mut |node, _| {
            threads.push(self.thread(node.wrapping_sub(self.layout.thread_node))?);
            Some(())
        });
        if threads.is_empty() {
            threads.push(self.thread(task)?);
        }
        Some(Process {
            pid,
            name: self.name(task)?,
            cr3: pgd.wrapping_sub(self.page_offset),
            start_ns: self.u64(task, self.layout.start_time)?,
            threads,
        })
    }

    fn kernel_thread(&self, task: u64, tid: u32) -> Option<KernelThread> {
        Some(KernelThread {
            tid,
            name: self.name(task)?,
            stack: self.u64(task, self.layout.stack)?,
            start_ns: self.u64(task, self.layout.start_time)?,
        })
    }

    fn thread(&self, task: u64) -> Option<Thread> {
        Some(Thread {
            tid: self.id(task)?,
            name: self.name(task)?,
            fs_base: self.u64(task, self.layout.fs_base)?,
        })
    }

    /// Visits the nodes of the ring at `head` but the head itself, checking that each one's `prev` is
    /// the node before it: memory that was freed and used again does not look like that.
    fn ring(
        &self,
        head: u64,
        steps_left: &mut usize,
        visit: &mut dyn FnMut(u64, &mut usize) -> Option<()>,
    ) -> Result<(), &'static str> {
        let astray = "the kernel's list of tasks changed while it was read";
        let mut previous = head;
        let mut node = self.u64(head, 0).ok_or("failed to read the kernel's list of tasks")?;
        while node != head {
            *steps_left = steps_left.checked_sub(1).ok_or("the kernel has too many threads")?;
            if self.u64(node, 8) != Some(previous) {
                return Err(astray);
            }
            visit(node, steps_left).ok_or(astray)?;
            previous = node;
            node = self.u64(node, 0).ok_or(astray)?;
        }
        Ok(())
    }

    fn id(&self, task: u64) -> Option<u32> {
        let id = self.u32(task, self.layout.pid)?;
        (1..=MAX_PID).contains(&id).then_some(id)
    }

    fn name(&self, task: u64) -> Option<String> {
        let mut bytes = [0; 16];
        self.read(task, self.layout.comm, &mut bytes)?;
        Some(comm(&bytes))
    }

    fn u32(&self, base: u64, offset: u64) -> Option<u32> {
        let mut bytes = [0; 4];
        self.read(base, offset, &mut bytes)?;
        Some(u32::from_le_bytes(bytes))
    }

    fn u64(&self, base: u64, offset: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read(base, offset, &mut bytes)?;
        Some(u64::from_le_bytes(bytes))
    }

    fn read(&self, base: u64, offset: u64, buffer: &mut [u8]) -> Option<()> {
        // Upper half: a pointer into user memory or to nothing is a list gone astray.
        let address =
            base.checked_add(offset).filter(|_| base >> 47 == 0x1_ffff || base >> 56 == 0xff)?;
        self.memory.read(GuestVirt(address), buffer)
    }
}

/// A `comm` field: up to the first NUL.
pub(crate) fn comm(bytes: &[u8; 16]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

#[cfg(test)]
mod test;
