//! Events to a timeline, in one pass.
//!
//! ```text
//!                    Waking .. Wakeup               Switch(next)
//!   Asleep, Stopped ------------------> Runnable ---------------> Running ---Switch(Dead), end
//!      ^                                   ^  ^                    |    |
//!      |                                   |  +--Switch(Runnable)--+    |
//!      |                     Fork: begins -+                            |
//!      +------------------------Switch(Sleep, Stopped)------------------+
//! ```
//!
//! An event that can't follow shows that others were lost: what they leave open is `State::Unknown` for the task and
//! `Work::Unknown` without a task for the CPU, until the next event that tells.
//!
//! Where no event was lost or left out, the first event of a task or a CPU also tells of the time before it: who is switched
//! out had the CPU since the begin, who is switched in waited for it since then (taken as preempted: no wake-up was seen), who
//! is woken slept since then, who leaves a system call was in it.
//!
//! Time only goes on: an event before its predecessor is moved to it, one outside the trace to the trace's edge.

mod calls;
mod cpus;
mod disks;
mod invariants;
#[cfg(test)]
pub(crate) mod random;
mod scope;
#[cfg(test)]
mod simulated;
mod tasks;
#[cfg(test)]
mod test;
#[cfg(test)]
pub(crate) mod testing;

use std::collections::BTreeMap;

use model::{
    BlockRequest, HostNs, Interrupt, LockKind, Machine, MachineId, Off, Pid, TaskName, Tid,
    TraceEvent, TraceStack, TraceTables, What,
};

use super::{LockWait, Problem, Sleep, State, TaskId, Timeline, Waker, WokenBy, Work};
use calls::CallCounts;
use cpus::{Current, TrackedCpu};
use disks::Disks;
use scope::{FaultEnds, Scope};
use tasks::{Fault, Mode, Tasks, Told};

/// The system calls that end a task and run another program, on x86-64.
const EXIT_GROUP: u16 = 231;
const EXECVE: u16 = 59;

/// Puts one machine's events on the time axis; events of other machines are passed over.
#[must_use]
pub fn build(tables: &TraceTables, machine: MachineId, events: &[TraceEvent]) -> Timeline {
    let untold = Machine::default();
    let row = tables.machines.get(machine.index()).unwrap_or(&untold);
    let scope = Scope::of(row, machine, events);
    let mut builder = Builder::new(tables, machine, row, scope);
    for event in events.iter().filter(|event| event.machine == machine) {
        builder.event(event);
    }
    let timeline = builder.finish();
    debug_assert_eq!(invariants::check(&timeline), Ok(()));
    timeline
}

/// What is known at the time that the events have reached.
#[derive(Debug)]
struct Builder<'a> {
    machine: MachineId,
    scope: Scope,
    now: HostNs,
    tasks: Tasks,
    /// Ascending by number, as `scope.cpus`.
    cpus: Vec<TrackedCpu>,
    disks: Disks<'a>,
    calls: CallCounts,
    problems: Problems,
}

/// What makes the timeline doubtful, with how often.
#[derive(Debug, Default)]
struct Problems(BTreeMap<Problem, u64>);

impl Problems {
    fn count(&mut self, problem: Problem) {
        self.add(problem, 1);
    }

    fn add(&mut self, problem: Problem, count: u64) {
        if 0 < count {
            let sum = self.0.entry(problem).or_default();
            *sum = sum.saturating_add(count);
        }
    }
}

impl<'a> Builder<'a> {
    fn new(tables: &'a TraceTables, machine: MachineId, row: &Machine, scope: Scope) -> Self {
        let mut problems = Problems::default();
        let lost = row.lost.iter().fold(0, |sum: u64, lost| sum.saturating_add(lost.count));
        problems.add(Problem::LostEvents, lost);
        let there = tables.tasks.iter().filter(|task| task.machine == machine);
        Self {
            machine,
            now: scope.begin,
            tasks: Tasks::new(there, scope.begin),
            cpus: scope.cpus.iter().map(|number| TrackedCpu::new(*number, scope.begin)).collect(),
            disks: Disks::new(tables, machine),
            calls: CallCounts::default(),
            problems,
            scope,
        }
    }

    fn finish(mut self) -> Timeline {
        self.now = self.scope.end;
        for row in 0..self.cpus.len() {
            self.flush(row);
        }
        Timeline {
            machine: self.machine,
            begin: self.scope.begin,
            end: self.scope.end,
            calls: self.calls.finish(&self.tasks, self.scope.end),
            tasks: self.tasks.finish(self.scope.end),
            cpus: self.cpus.into_iter().map(TrackedCpu::finish).collect(),
            disks: self.disks.finish(self.scope.end),
            problems: self.problems.0,
        }
    }

    fn event(&mut self, event: &TraceEvent) {
        let Some(row) = self.scope.row(event.cpu) else { return };
        if event.time < self.now || self.scope.end < event.time {
            self.problems.count(Problem::Backwards);
        }
        self.now = self.now.max(event.time).min(self.scope.end);
        self.take_over_tid(row, &event.what);
        let told = self.runs_here(row, &event.what);
        let told = told.map(|tid| self.current_of(tid));
        if told.is_some_and(|told| self.cpus[row].contradicts(told)) {
            self.problems.count(Problem::SwitchFromAnother);
            self.lose(row);
        }
        self.flush(row);
        if let Some(told) = told {
            self.place(row, told);
        }
        self.apply(row, &event.what);
    }

    /// The task that must have the CPU when this event happens on it.
    fn runs_here(&self, row: usize, what: &What) -> Option<Tid> {
        match *what {
            What::Switch { prev: task, .. }
            | What::Fork { parent: task, .. }
            | What::Exec { task, .. }
            | What::Exit { task }
            | What::SyscallEnter { task, .. }
            | What::SyscallExit { task, .. } => Some(task),
            // They may come in the middle of a switch: good enough only where nothing better is known.
            What::Waking { by: task, .. }
            | What::LockBegin { task, .. }
            | What::LockEnd { task, .. } => {
                (self.cpus[row].current == Current::Unknown).then_some(task)
            }
            _ => None,
        }
    }

    fn apply(&mut self, row: usize, what: &What) {
        match *what {
            What::Switch { prev, off, stack, next } => self.switch(row, prev, off, stack, next),
            What::Waking { task, by } => self.waking(row, task, by),
            What::Wakeup { task, .. } => self.wakeup(row, task),
            What::Fork { parent, child, pid } => self.fork(row, parent, child, pid),
            What::Exec { task, name } => self.exec(task, name),
            What::Rename { task, name } => self.rename(task, name),
            What::Exit { task } => self.exit(task),
            What::SyscallEnter { task, number } => self.syscall_enter(row, task, number),
            What::SyscallExit { task, number, failed } => {
                self.syscall_exit(row, task, number);
                if let Some(id) = self.tasks.find(task) {
                    self.calls.end(id, failed, self.now);
                }
            }
            What::InterruptEnter(interrupt) => self.cpus[row].interrupt_enter(interrupt),
            What::InterruptExit(interrupt) => self.interrupt_exit(row, interrupt),
            What::FaultEnter { user, .. } => self.fault_enter(row, user),
            What::FaultExit { .. } => self.fault_exit(row),
            What::BlockInsert(request) => self.block_insert(&request),
            What::BlockIssue(request) => self.block_issue(&request),
            What::BlockRequeue { request } => {
                self.disks.requeue(request, self.now, &mut self.tasks, &mut self.problems);
            }
            What::BlockComplete { request, bytes } => self.block_complete(row, request, bytes),
            What::LockBegin { task, lock, kind, owner, stack } => {
                self.lock_begin(task, lock, kind, owner, stack);
            }
            What::LockEnd { task, lock } => self.lock_end(task, lock),
        }
    }

    /// The task of a thread id; one that was never seen begins now. The idle tasks are none.
    fn task_of(&mut self, tid: Tid) -> Option<TaskId> {
        if tid == Tid(0) {
            return None;
        }
        Some(self.tasks.find(tid).unwrap_or_else(|| {
            self.problems.count(Problem::UnseenTask);
            self.tasks.unseen(tid, self.now)
        }))
    }

    fn current_of(&mut self, tid: Tid) -> Current {
        self.task_of(tid).map_or(Current::Idle, Current::Task)
    }
}

/// Who has which CPU.
impl Builder<'_> {
    /// Draws what the CPU did until now. An estimated fault ends here at the latest.
    fn flush(&mut self, row: usize) {
        let cpu = &mut self.cpus[row];
        if let Some(interrupt) = cpu.interrupts.last() {
            cpu.push_until(self.now, Work::Interrupt(*interrupt));
            return;
        }
        let Current::Task(id) = cpu.current else {
            cpu.push_until(self.now, cpu.current.work());
            return;
        };
        let task = &mut self.tasks[id];
        if let Some(Fault::Until(until)) = task.context.fault {
            cpu.push_until(until.min(self.now), Work::Fault { estimated: true });
            task.context.fault = None;
        }
        let slice = cpu.push_until(self.now, task.work());
        if task.is_untold() {
            task.untold.extend(slice.map(|slice| (row, slice)));
        }
    }

    /// Nobody knows what this CPU did since its last event, up to which it is drawn.
    fn lose(&mut self, row: usize) {
        let cpu = &mut self.cpus[row];
        if let Current::Task(id) = cpu.current {
            let task = &mut self.tasks[id];
            task.waking = None;
            if task.runs_on(cpu.number) {
                task.become_state(cpu.drawn, State::Unknown);
            }
        }
        cpu.forget();
    }

    /// The same for the CPU that a task was thought to have.
    fn lose_cpu_of(&mut self, id: TaskId) {
        if let State::Running { cpu } = self.tasks[id].state
            && let Some(row) = self.scope.row(cpu)
        {
            self.lose(row);
        }
    }

    /// This CPU is seen to run somebody; if that is news, nobody knows since when.
    fn place(&mut self, row: usize, seen: Current) {
        if self.cpus[row].current == seen {
            return;
        }
        if self.cpus[row].is_first_told() && self.scope.complete {
            self.tell_cpu(row, seen);
        }
        if let Current::Task(id) = seen {
            let number = self.cpus[row].number;
            if self.tasks[id].runs_on(number) {
                self.cpus[row].current = seen;
                return;
            }
            self.lose_cpu_of(id);
            let task = &mut self.tasks[id];
            (task.state, task.waking) = (State::Unknown, None);
            task.become_state(self.now, State::Running { cpu: number });
        }
        self.cpus[row].current = seen;
    }

    /// The first event that tells whom a CPU runs tells of all its time so far.
    fn tell_cpu(&mut self, row: usize, seen: Current) {
        let cpu = &mut self.cpus[row];
        let Current::Task(id) = seen else {
            cpu.had(None, seen.work());
            return;
        };
        let task = &mut self.tasks[id];
        task.was(State::Running { cpu: cpu.number });
        if task.runs_on(cpu.number) {
            let slices = cpu.had(Some(id), task.work());
            if task.is_untold() {
                task.untold.extend(slices.into_iter().map(|slice| (row, slice)));
            }
        }
    }

    fn switch(&mut self, row: usize, prev: Tid, off: Off, stack: Option<TraceStack>, next: Tid) {
        self.end_interrupts(row);
        self.cpus[row].completed = None;
        if let Some(id) = self.tasks.find(prev) {
            self.leave(id, off, stack);
        }
        let next = self.current_of(next);
        if let Current::Task(id) = next {
            self.arrive(row, id);
        }
        self.cpus[row].current = next;
    }

    /// A task loses its CPU.
    fn leave(&mut self, id: TaskId, off: Off, stack: Option<TraceStack>) {
        let task = &mut self.tasks[id];
        let (uninterruptible, io) = match off {
            Off::Runnable => {
                task.waking = None;
                return task.become_state(self.now, State::Runnable { preempted: true });
            }
            Off::Stopped => return task.become_state(self.now, State::Stopped),
            Off::Dead => return self.tasks.end(id, self.now),
            Off::Sleep => (false, false),
            Off::Uninterruptible { io } => (true, io),
        };
        // A waker that came while it still had the CPU: the kernel queues it as soon as it is off.
        if let Some(waker) = &mut task.waking {
            waker.time = self.now;
        }
        let context = &task.context;
        let sleep = Sleep {
            stack,
            uninterruptible,
            io,
            syscall: context.syscall(),
            in_fault: context.sleeps_in_fault(),
            lock: context.lock.clone(),
            woken_by: task.waking,
        };
        task.become_state(self.now, State::Asleep(sleep));
    }

    /// A task gets a CPU.
    fn arrive(&mut self, row: usize, id: TaskId) {
        if let State::Running { .. } = self.tasks[id].state {
            self.problems.count(Problem::SwitchFromAnother);
            self.lose_cpu_of(id);
        }
        let task = &mut self.tasks[id];
        match (task.waking.take(), &task.state) {
            (_, State::Runnable { .. }) => {}
            // Whoever was not woken since the begin, waited since then; the tables may have been read before that.
            (None, _) if self.scope.complete && task.is_untouched(task.task.pid) => {
                task.state = State::Runnable { preempted: true };
            }
            (None, State::Unknown) => {}
            (Some(waker), _) => task.become_state(waker.time, State::Runnable { preempted: false }),
            (None, _) => {
                self.problems.count(Problem::UnseenTask);
                task.state = State::Unknown;
            }
        }
        task.become_state(self.now, State::Running { cpu: self.cpus[row].number });
    }
}

/// Wake-ups.
impl Builder<'_> {
    fn waking(&mut self, row: usize, task: Tid, by: Tid) {
        let Some(id) = self.task_of(task) else { return };
        let mut waker = self.waker(row);
        if let WokenBy::Task(_) | WokenBy::Unknown = waker.by {
            // The event names it; whom the CPU was last seen to run may be gone.
            waker.by = self.task_of(by).map_or(WokenBy::Unknown, WokenBy::Task);
        }
        let task = &mut self.tasks[id];
        if self.scope.complete {
            task.was(State::Asleep(Sleep::default()));
        }
        match &mut task.state {
            State::Runnable { .. } => return,
            State::Asleep(sleep) => sleep.woken_by = Some(waker),
            State::Running { .. } | State::Stopped | State::Unknown => {}
        }
        task.waking = Some(waker);
    }

    fn wakeup(&mut self, row: usize, task: Tid) {
        let Some(id) = self.task_of(task) else { return };
        let waker = self.waker(row);
        let task = &mut self.tasks[id];
        if self.scope.complete {
            task.was(State::Asleep(Sleep::default()));
        }
        task.waking = None;
        match &mut task.state {
            // It was about to sleep, and goes on.
            State::Running { .. } | State::Runnable { .. } => return,
            State::Asleep(sleep) => sleep.woken_by = sleep.woken_by.or(Some(waker)),
            State::Stopped | State::Unknown => {}
        }
        task.become_state(self.now, State::Runnable { preempted: false });
    }

    /// Who wakes when this CPU wakes somebody now.
    fn waker(&self, row: usize) -> Waker {
        let cpu = &self.cpus[row];
        let by = match (cpu.completed_here(), cpu.interrupts.last(), cpu.current) {
            (Some((task, row)), _, _) => WokenBy::Request { task, row },
            (None, Some(interrupt), _) => WokenBy::Interrupt(*interrupt),
            (None, None, Current::Task(id)) => WokenBy::Task(id),
            (None, None, Current::Idle | Current::Unknown) => WokenBy::Unknown,
        };
        Waker { time: self.now, by }
    }
}

/// Tasks' lives.
impl Builder<'_> {
    fn fork(&mut self, row: usize, parent: Tid, child: Tid, pid: Pid) {
        self.end_interrupts(row);
        if child == Tid(0) {
            return;
        }
        let parent = self.task_of(parent);
        if let Some(old) = self.tasks.find(child)
            && !self.tasks[old].is_untouched(pid)
        {
            self.lose_cpu_of(old);
            self.tasks[old].state = State::Unknown;
            self.tasks.end(old, self.now);
        }
        self.tasks.fork(parent, child, pid, self.now);
    }

    /// When a thread that is not its process's first runs another program, it takes the first one's id.
    fn take_over_tid(&mut self, row: usize, what: &What) {
        let What::Exec { task: tid, .. } = *what else { return };
        let Current::Task(id) = self.cpus[row].current else { return };
        let task = &self.tasks[id].task;
        if task.tid == tid || task.pid.0 != tid.0 {
            return;
        }
        if let Some(first) = self.tasks.find(tid) {
            self.lose_cpu_of(first);
            self.tasks.end(first, self.now);
        }
        self.tasks.change_tid(id, tid);
    }

    fn exec(&mut self, task: Tid, name: TaskName) {
        let Some(id) = self.task_of(task) else { return };
        let task = &mut self.tasks[id];
        if task.task.kernel {
            // The kernel starts a program of its own accord; on return to it there is the end of a system call.
            task.task.kernel = false;
            task.context.mode = Mode::Syscall(EXECVE);
        }
        task.rename(self.now, name.text());
    }

    fn rename(&mut self, task: Tid, name: TaskName) {
        if let Some(id) = self.task_of(task) {
            self.tasks[id].rename(self.now, name.text());
        }
    }

    fn exit(&mut self, task: Tid) {
        let Some(id) = self.task_of(task) else { return };
        let task = &mut self.tasks[id];
        task.task.exited = true;
        task.context.exit();
    }
}

/// Kernel work.
impl Builder<'_> {
    fn syscall_enter(&mut self, row: usize, task: Tid, number: u16) {
        self.end_interrupts(row);
        self.cpus[row].completed = None;
        let Some(id) = self.task_of(task) else { return };
        if let Mode::Syscall(_) = self.tasks[id].context.mode {
            self.problems.count(Problem::EndWithoutBegin);
        }
        self.tell(id, Told::InUser);
        self.tasks[id].context.enter(number);
        self.calls.begin(id, number, self.now);
    }

    fn syscall_exit(&mut self, row: usize, task: Tid, number: u16) {
        self.end_interrupts(row);
        self.cpus[row].completed = None;
        let Some(id) = self.task_of(task) else { return };
        if self.tasks[id].context.mode == Mode::User {
            self.problems.count(Problem::EndWithoutBegin);
        }
        self.tell(id, Told::InSyscall(number));
        self.tasks[id].context.leave();
    }

    /// An event tells for the first time what mode a task was in: in all its time so far, unless events were lost.
    fn tell(&mut self, id: TaskId, told: Told) {
        let task = &mut self.tasks[id];
        if !task.is_untold() {
            return;
        }
        let untold = std::mem::take(&mut task.untold);
        if !self.scope.complete {
            return;
        }
        let work = match told {
            Told::InUser => Work::User,
            Told::InSyscall(number) => {
                task.slept_in(number);
                Work::Syscall(number)
            }
        };
        for (cpu, slice) in untold {
            self.cpus[cpu].did(slice, work);
        }
    }

    fn interrupt_exit(&mut self, row: usize, interrupt: Interrupt) {
        if !self.cpus[row].interrupt_exit(interrupt) {
            self.problems.count(Problem::EndWithoutBegin);
        }
    }

    /// No interrupt is being handled when tasks act: if one seems to be, its end was lost.
    fn end_interrupts(&mut self, row: usize) {
        let lost = self.cpus[row].interrupts.len() as u64;
        self.problems.add(Problem::EndWithoutBegin, lost);
        self.cpus[row].interrupts.clear();
    }

    /// Faults of interrupts count as theirs.
    fn fault_enter(&mut self, row: usize, user: bool) {
        if user {
            self.end_interrupts(row);
        }
        if !self.cpus[row].interrupts.is_empty() {
            return;
        }
        let Current::Task(id) = self.cpus[row].current else { return };
        if user {
            self.tell(id, Told::InUser);
        }
        let fault = match self.scope.fault_ends {
            FaultEnds::Seen => Fault::Open,
            FaultEnds::Estimated { ns } => Fault::Until(HostNs(self.now.0.saturating_add(ns))),
        };
        self.tasks[id].context.fault(fault, user);
    }

    fn fault_exit(&mut self, row: usize) {
        let cpu = &self.cpus[row];
        if !cpu.interrupts.is_empty() {
            return;
        }
        let Current::Task(id) = cpu.current else { return };
        if self.tasks[id].context.fault.take().is_none() {
            self.problems.count(Problem::EndWithoutBegin);
        }
        self.tasks[id].context.faulted = false;
    }
}

/// Disks and locks.
impl Builder<'_> {
    fn block_insert(&mut self, request: &BlockRequest) {
        let maker = self.task_of(request.task);
        self.disks.insert(request, maker, self.now, &mut self.tasks, &mut self.problems);
    }

    fn block_issue(&mut self, request: &BlockRequest) {
        let maker = self.task_of(request.task);
        self.disks.issue(request, maker, self.now, &mut self.tasks, &mut self.problems);
    }

    fn block_complete(&mut self, row: usize, request: u64, bytes: u32) {
        let done = self.disks.complete(request, bytes, self.now, &mut self.tasks);
        match done {
            Some(maker) => self.cpus[row].complete(maker),
            // A flush without data is done by another request, and ends without having been issued.
            None if bytes == 0 => {}
            None => self.problems.count(Problem::EndWithoutBegin),
        }
    }

    fn lock_begin(
        &mut self,
        task: Tid,
        lock: u64,
        kind: LockKind,
        owner: Option<Tid>,
        stack: Option<TraceStack>,
    ) {
        // Who spins does not sleep; a spinlock within another lock's slow path must not hide that lock.
        if kind == LockKind::Spin {
            return;
        }
        let owner = owner.and_then(|tid| self.tasks.find(tid));
        let owner = owner.map(|id| (id, self.tasks[id].context.syscall()));
        if let Some(id) = self.task_of(task) {
            self.tasks[id].context.lock = Some(LockWait { lock, kind, owner, stack });
        }
    }

    fn lock_end(&mut self, task: Tid, lock: u64) {
        let Some(id) = self.task_of(task) else { return };
        let waits = &mut self.tasks[id].context.lock;
        if waits.as_ref().is_some_and(|wait| wait.lock == lock) {
            *waits = None;
        }
    }
}
