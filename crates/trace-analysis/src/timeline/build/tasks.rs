//! The tasks while their events go by.

use std::ops::{Index, IndexMut};

use model::{HostNs, Pid, Tid, TraceTask};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{EXIT_GROUP, IOCTL};
use crate::timeline::{LockWait, Segments, Sleep, State, Task, TaskId, Waker, Work};

/// The kernel's task that makes all others of the kernel's own.
const KTHREADD: Tid = Tid(2);

/// The tasks while their events go by.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    rows: Vec<Tracked>,
    /// Those that live.
    by_tid: FxHashMap<Tid, TaskId>,
}

/// A task while its events go by.
#[derive(Debug)]
pub(super) struct Tracked {
    pub(super) task: Task,
    /// Since its last segment's end.
    pub(super) state: State,
    /// Who began to wake it, until it is queued.
    pub(super) waking: Option<Waker>,
    pub(super) context: Context,
    /// Slices in which it had a CPU before any event showed its mode: rows of CPUs and of their slices.
    pub(super) unknown_slices: Vec<(usize, usize)>,
    /// It runs a VM's CPU.
    vcpu: bool,
    ended: bool,
}

/// A task that is made.
#[derive(Debug, Clone, Copy)]
pub(super) struct Made {
    pub(super) tid: Tid,
    pub(super) pid: Pid,
    /// It never runs a program's code.
    pub(super) kernel: bool,
}

/// What a task is in the middle of, whether it has a CPU or not.
#[derive(Debug, Default)]
pub(super) struct Context {
    pub(super) mode: Mode,
    pub(super) fault: Option<Fault>,
    /// User code had a fault, and made no system call since.
    pub(super) faulted: bool,
    pub(super) lock: Option<LockWait>,
    /// Of the system call under way.
    pub(super) futex: Option<LockWait>,
    exiting: bool,
}

/// Where a task of a program is when it handles no fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Mode {
    /// No event yet.
    #[default]
    Unknown,
    User,
    Syscall(u16),
}

/// A page fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// Its end will be seen, unless it was missed: then it is over when it has had a CPU for this much longer.
    Open { left_ns: u64 },
    /// It takes until then, as an estimate.
    Until(HostNs),
}

impl Fault {
    /// The kernel does not tell of a fault's end where it could not handle it (a signal, `EFAULT`). To clear a huge page of
    /// which the hypervisor has none either takes some ms; what takes longer sleeps, which begins this anew.
    pub(super) const OPEN: Self = Self::Open { left_ns: 10_000_000 };

    /// It has a CPU from `from` to `to`: until when it uses it, and what is left of it then.
    pub(super) fn runs(self, from: HostNs, to: HostNs) -> (HostNs, Option<Self>) {
        match self {
            Self::Until(until) => (until.min(to), None),
            Self::Open { left_ns } => match left_ns.checked_sub(to.since(from)) {
                Some(left_ns) => (to, Some(Self::Open { left_ns })),
                None => (HostNs(from.0 + left_ns), None),
            },
        }
    }

    fn work(self) -> Work {
        Work::Fault { estimated: matches!(self, Self::Until(_)) }
    }
}

/// The mode of a task before an event, as the event shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KnownMode {
    InUser,
    InSyscall(u16),
}

impl Index<TaskId> for Tasks {
    type Output = Tracked;

    fn index(&self, id: TaskId) -> &Tracked {
        &self.rows[id.index()]
    }
}

impl IndexMut<TaskId> for Tasks {
    fn index_mut(&mut self, id: TaskId) -> &mut Tracked {
        &mut self.rows[id.index()]
    }
}

impl Tasks {
    /// Those that were there at the begin. `vcpus` are the threads that run VMs' CPUs.
    pub(super) fn new<'a>(
        there: impl Iterator<Item = &'a TraceTask>,
        vcpus: &FxHashSet<(Pid, Tid)>,
        begin: HostNs,
    ) -> Self {
        let mut tasks = Self::default();
        for row in there {
            if row.tid == Tid(0) || tasks.by_tid.contains_key(&row.tid) {
                continue;
            }
            let task = Task {
                pid: row.pid,
                parent_pid: row.parent,
                names: vec![(begin, row.name.clone())],
                kernel: row.kernel,
                before: true,
                ..blank(row.tid, begin)
            };
            // Where is said in `TraceTables`, in words.
            let asleep = row.asleep_in.as_ref().map(|_| State::Asleep(Sleep::default()));
            let vcpu = vcpus.contains(&(row.pid, row.tid));
            let task = Tracked::new(task, asleep.unwrap_or(State::Unknown));
            tasks.add(Tracked { vcpu, ..task });
        }
        tasks
    }

    /// The one that lives under this id.
    pub(super) fn find(&self, tid: Tid) -> Option<TaskId> {
        self.by_tid.get(&tid).copied()
    }

    /// One of which nothing is known but that it is there now.
    pub(super) fn unseen(&mut self, tid: Tid, now: HostNs) -> TaskId {
        self.add(Tracked::new(blank(tid, now), State::Unknown))
    }

    /// A new one: in its own row, or in that of a task of the tables, which were then read after its begin.
    pub(super) fn fork(&mut self, parent: Option<TaskId>, made: Made, now: HostNs) {
        let Made { tid: child, pid, kernel } = made;
        let mut task = Task { pid, parent, kernel, ..blank(child, now) };
        let mut mode = Mode::Unknown;
        if let Some(parent) = parent {
            let parent = &self[parent];
            let is_thread = child.0 != pid.0;
            task.parent_pid = if is_thread { parent.task.parent_pid } else { parent.task.pid };
            task.names = vec![(now, parent.task.name().to_owned())];
            task.kernel |= parent.task.kernel || parent.task.tid == KTHREADD;
            if !task.kernel {
                // It returns from the system call that made it.
                mode = parent.context.mode;
            }
        }
        let mut tracked = Tracked::new(task, State::Runnable { preempted: false });
        tracked.context.mode = mode;
        match self.find(child) {
            Some(id) => self[id] = tracked,
            None => {
                self.add(tracked);
            }
        }
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Tracked> {
        self.rows.iter_mut()
    }

    /// It lives no longer.
    pub(super) fn end(&mut self, id: TaskId, now: HostNs) {
        let tracked = &mut self[id];
        tracked.become_state(now, State::Unknown);
        tracked.task.end = now;
        tracked.task.exited = true;
        tracked.ended = true;
        let tid = tracked.task.tid;
        if self.find(tid) == Some(id) {
            self.by_tid.remove(&tid);
        }
    }

    /// Its life goes on as another task's, of this name and under the same id.
    pub(super) fn succeed(&mut self, old: TaskId, now: HostNs, name: String) -> TaskId {
        let tracked = &mut self[old];
        let (vcpu, state) = (tracked.vcpu, tracked.state);
        let context = std::mem::take(&mut tracked.context);
        let task = Task {
            pid: tracked.task.pid,
            parent: tracked.task.parent,
            parent_pid: tracked.task.parent_pid,
            names: vec![(now, name)],
            ..blank(tracked.task.tid, now)
        };
        self.end(old, now);
        self.add(Tracked { context, vcpu, ..Tracked::new(task, state) })
    }

    /// It goes on under another thread id.
    pub(super) fn change_tid(&mut self, id: TaskId, tid: Tid) {
        let old = std::mem::replace(&mut self[id].task.tid, tid);
        self.by_tid.remove(&old);
        self.by_tid.insert(tid, id);
    }

    pub(super) fn finish(self, end: HostNs) -> Vec<Task> {
        let ended = |mut tracked: Tracked| {
            if !tracked.ended {
                tracked.become_state(end, State::Unknown);
                tracked.task.end = end;
            }
            tracked.task
        };
        self.rows.into_iter().map(ended).collect()
    }

    fn add(&mut self, tracked: Tracked) -> TaskId {
        let row = u32::try_from(self.rows.len()).expect("fewer tasks than 2^32 fit in memory");
        self.by_tid.insert(tracked.task.tid, TaskId(row));
        self.rows.push(tracked);
        TaskId(row)
    }
}

impl Tracked {
    fn new(task: Task, state: State) -> Self {
        let context = Context::default();
        let (unknown_slices, vcpu, ended) = (Vec::new(), false, false);
        Self { task, state, waking: None, context, unknown_slices, vcpu, ended }
    }

    /// From `time` on it is in another state.
    pub(super) fn become_state(&mut self, time: HostNs, state: State) {
        let was = std::mem::replace(&mut self.state, state);
        let segments = &mut self.task.segments;
        if segments.end() < time && !segments.extend(time, was) {
            segments.push(time, was);
        }
    }

    /// When its life ended; `None`: it lives.
    pub(super) fn ended_at(&self) -> Option<HostNs> {
        self.ended.then_some(self.task.end)
    }

    pub(super) fn runs_on(&self, cpu: u32) -> bool {
        self.state == State::Running { cpu }
    }

    /// What it executes when it has a CPU and no interrupt is handled.
    pub(super) fn work(&self) -> Work {
        let fault = self.context.fault.map(Fault::work);
        fault.unwrap_or_else(|| self.executes(self.context.mode))
    }

    /// What it executes in this mode when it handles no fault.
    pub(super) fn executes(&self, mode: Mode) -> Work {
        match mode {
            _ if self.task.kernel => Work::KernelTask,
            Mode::Unknown => Work::Unknown,
            Mode::User => Work::User,
            Mode::Syscall(IOCTL) if self.vcpu => Work::Vcpu,
            Mode::Syscall(number) => Work::Syscall(number),
        }
    }

    /// Its sleeps so far.
    pub(super) fn sleeps(&self) -> impl Iterator<Item = Sleep> {
        let states = self.task.segments.iter().map(|segment| segment.state);
        states.chain([self.state]).filter_map(|state| match state {
            State::Asleep(sleep) => Some(sleep),
            _ => None,
        })
    }

    /// Whether all that is known of it is that the tables name it in this process.
    pub(super) fn is_untouched(&self, pid: Pid) -> bool {
        let silent = match &self.state {
            State::Unknown => true,
            State::Asleep(sleep) => *sleep == Sleep::default(),
            _ => false,
        };
        let task = &self.task;
        let nothing_done = task.segments.is_empty() && task.requests.is_empty();
        task.before && task.pid == pid && nothing_done && silent
    }

    /// It was in this state from the beginning, unless an event or table showed another.
    pub(super) fn was(&mut self, state: State) {
        let nothing_known = self.state == State::Unknown && self.task.segments.is_empty();
        if self.task.before && nothing_known {
            self.state = state;
        }
    }

    /// Whether no event has shown its mode yet.
    pub(super) fn is_mode_unknown(&self) -> bool {
        !self.task.kernel && self.context.mode == Mode::Unknown
    }

    /// All its sleeps so far of which nothing else is known were in this system call.
    pub(super) fn slept_in(&mut self, number: u16) {
        self.task.segments.slept_in(number);
        if let State::Asleep(sleep) = &mut self.state {
            sleep.syscall.get_or_insert(number);
        }
    }

    pub(super) fn rename(&mut self, now: HostNs, name: String) {
        if self.task.name() != name {
            self.task.names.push((now, name));
        }
    }
}

impl Context {
    pub(super) fn syscall(&self) -> Option<u16> {
        match self.mode {
            Mode::Syscall(number) => Some(number),
            Mode::Unknown | Mode::User => None,
        }
    }

    /// Whether a task that falls asleep now does so in a fault. User code can sleep nowhere else, so that one whose
    /// end was not seen is still under way when no system call has begun since.
    pub(super) fn sleeps_in_fault(&self) -> bool {
        let in_user = self.mode == Mode::User && self.faulted && !self.exiting;
        self.fault.is_some() || in_user
    }

    /// Who sleeps in a fault handles it: its end was not missed.
    pub(super) fn sleeps(&mut self) {
        if let Some(fault @ Fault::Open { .. }) = &mut self.fault {
            *fault = Fault::OPEN;
        }
    }

    pub(super) fn fault(&mut self, fault: Fault, user: bool) {
        self.fault = Some(fault);
        if user {
            self.mode = Mode::User;
            self.faulted = true;
        }
    }

    pub(super) fn enter(&mut self, number: u16) {
        self.cross(Mode::Syscall(number));
    }

    pub(super) fn leave(&mut self) {
        self.cross(Mode::User);
    }

    /// No task is in a fault, or waits for a lock, when a call begins or ends: what seems to go on has lost its end.
    fn cross(&mut self, mode: Mode) {
        self.mode = mode;
        (self.fault, self.faulted, self.lock, self.futex) = (None, false, None, None);
    }

    /// Who is killed does what `exit_group` does.
    pub(super) fn exit(&mut self) {
        self.exiting = true;
        (self.fault, self.lock, self.futex) = (None, None, None);
        if self.syscall().is_none() {
            self.mode = Mode::Syscall(EXIT_GROUP);
        }
    }
}

/// A task of which only the id is known.
fn blank(tid: Tid, begin: HostNs) -> Task {
    Task {
        tid,
        pid: Pid(tid.0),
        parent: None,
        parent_pid: Pid(0),
        names: vec![(begin, format!("[{tid}]"))],
        kernel: false,
        begin,
        end: begin,
        before: false,
        exited: false,
        segments: Segments::beginning(begin),
        requests: Vec::new(),
    }
}
