//! Builds a timeline from events in two passes: `Survey` finds what the trace covers, `Builder` applies the events.
//! Neither keeps them.
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
//! An event that cannot follow the ones before shows that events were lost. Until the next event that settles it, the
//! task is in `State::Unknown` and the CPU executes `Work::Unknown` without a task.
//!
//! If no event was lost or filtered out, the first event of a task or CPU also determines the time before it. A task
//! that is switched out had the CPU since the beginning. One that is switched in waited for it (as preempted, since
//! there was no wake-up). One that is woken was asleep. One that leaves a system call was in it. `inferred_syscalls`
//! handles tasks without system call events.
//!
//! A filter keeps every switch of the tasks that it selects, and none between other tasks. While another task has a
//! CPU, the CPU's task is unknown until the next event (`Builder::skip_filtered`).
//!
//! Time never goes back: an event before its predecessor is moved to it, one outside the trace to the trace's edge.

mod calls;
mod cpus;
mod disks;
mod files;
mod inferred_syscalls;
mod invariants;
mod lives;
#[cfg(test)]
pub(crate) mod random;
mod scope;
#[cfg(test)]
mod simulated;
mod switches;
mod tasks;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod work;

use std::collections::BTreeMap;

use model::{
    BlockRequest, HostNs, LockKind, Machine, MachineId, Pid, Tid, TraceEvent, TraceEventKind,
    TraceStack, TraceTables,
};
use rustc_hash::FxHashSet;

use super::{LockWait, Problem, State, TaskId, Timeline};
use calls::CallCounts;
use cpus::{Current, TrackedCpu};
use disks::Disks;
use files::FileCounts;
use inferred_syscalls::SyscallEvidence;
use scope::Scope;
pub use scope::Survey;
use tasks::{Made, Tasks};

/// The system calls that end a task, run another program, and (in a vCPU's thread) run a guest, on x86-64.
const EXIT_GROUP: u16 = 231;
const EXECVE: u16 = 59;
const IOCTL: u16 = 16;

/// Puts one machine's events on the time axis; events of other machines are passed over.
#[must_use]
pub fn build(tables: &TraceTables, machine: MachineId, events: &[TraceEvent]) -> Timeline {
    let mut survey = Survey::new(tables, machine);
    survey.see(events);
    let mut builder = survey.builder();
    builder.see(events);
    builder.finish()
}

/// The threads that run the CPUs of a machine's VMs.
fn vcpus(tables: &TraceTables, machine: MachineId) -> FxHashSet<(Pid, Tid)> {
    let vms = tables.machines.iter().filter(|_| machine == MachineId::HOST);
    let threads = vms.flat_map(|vm| vm.vcpu_threads.iter().map(|tid| (vm.vm_process, *tid)));
    threads.filter_map(|(process, tid)| Some((process?, tid))).collect()
}

/// Puts events on the time axis, as they come; holds what is known at the time that they have reached.
#[derive(Debug)]
pub struct Builder<'a> {
    machine: MachineId,
    scope: Scope,
    now: HostNs,
    tasks: Tasks,
    /// Ascending by number, as `scope.cpus`.
    cpus: Vec<TrackedCpu>,
    disks: Disks<'a>,
    /// The command's first task, until it begins its program.
    held: Option<Tid>,
    calls: CallCounts,
    files: FileCounts,
    evidence: SyscallEvidence<'a>,
    problems: Problems,
    /// The begin of the requested range, until it is reached.
    counts_from: Option<HostNs>,
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
    /// Takes the next events, in the order in which the survey saw them; those of other machines are passed over.
    pub fn see(&mut self, events: &[TraceEvent]) {
        let machine = self.machine;
        for event in events.iter().filter(|event| event.machine == machine) {
            self.event(event);
        }
    }

    /// The timeline, when all events were seen.
    #[must_use]
    pub fn finish(mut self) -> Timeline {
        self.count_from(self.scope.end);
        self.now = self.scope.end;
        for row in 0..self.cpus.len() {
            self.flush(row);
        }
        self.infer_syscalls();
        let timeline = Timeline {
            machine: self.machine,
            begin: self.scope.begin,
            end: self.scope.end,
            calls: self.calls.finish(&self.tasks, self.scope.end),
            files: self.files.finish(self.scope.end),
            tasks: self.tasks.finish(self.scope.end),
            cpus: self.cpus.into_iter().map(TrackedCpu::finish).collect(),
            disks: self.disks.finish(self.scope.end),
            problems: self.problems.0,
        };
        debug_assert_eq!(invariants::check(&timeline), Ok(()));
        let Some(range) = self.scope.range else { return timeline };
        let timeline = timeline.since(range.start);
        debug_assert_eq!(invariants::check(&timeline), Ok(()));
        timeline
    }

    fn new(
        tables: &'a TraceTables,
        machine: MachineId,
        row: &Machine,
        scope: Scope,
        evidence: SyscallEvidence<'a>,
    ) -> Self {
        let mut problems = Problems::default();
        let lost = row.n_lost();
        problems.add(Problem::LostEvents, lost);
        let there = tables.tasks.iter().filter(|task| task.machine == machine);
        let command = tables.command.as_ref().filter(|command| command.machine == machine);
        Self {
            machine,
            now: scope.begin,
            tasks: Tasks::new(there, &vcpus(tables, machine), scope.begin),
            cpus: scope.cpus.iter().map(|number| TrackedCpu::new(*number, scope.begin)).collect(),
            disks: Disks::new(tables, machine),
            held: command.filter(|it| !it.before).map(|command| command.task),
            calls: CallCounts::default(),
            files: FileCounts::new(tables, machine),
            evidence,
            problems,
            counts_from: scope.range.as_ref().map(|range| range.start),
            scope,
        }
    }

    /// What was counted before the requested range does not count.
    fn count_from(&mut self, now: HostNs) {
        let Some(from) = self.counts_from.take_if(|from| *from <= now) else { return };
        self.calls.restart(from);
        self.disks.restart();
        self.files.restart(from);
        self.problems.0.retain(|problem, _| *problem == Problem::LostEvents);
    }

    fn event(&mut self, event: &TraceEvent) {
        let Some(row) = self.scope.row(event.cpu) else { return };
        if self.scope.range.as_ref().is_some_and(|range| range.end < event.time) {
            return;
        }
        self.count_from(event.time);
        if event.time < self.now || self.scope.end < event.time {
            self.problems.count(Problem::Backwards);
        }
        self.now = self.now.max(event.time).min(self.scope.end);
        self.take_over_tid(row, &event.kind);
        let running = self.runs_here(row, &event.kind);
        let running = running.map(|tid| self.current_of(tid));
        if running.is_some_and(|running| self.cpus[row].contradicts(running)) {
            self.problems.count(Problem::SwitchFromAnother);
            self.lose(row);
        }
        self.flush(row);
        if let Some(running) = running {
            self.place(row, running);
        }
        self.apply(row, &event.kind);
        self.skip_filtered(row);
    }

    /// A task that a filter left out may lose the CPU without an event: nothing is known of it until the next one.
    fn skip_filtered(&mut self, row: usize) {
        let Some(traced) = &self.scope.traced else { return };
        let cpu = &mut self.cpus[row];
        match cpu.current {
            Current::Task(id) if traced.contains(&self.tasks[id].task.tid) => return,
            Current::Task(id) if self.tasks[id].runs_on(cpu.number) => {
                self.tasks[id].become_state(self.now, State::Unknown);
            }
            _ => {}
        }
        cpu.current = Current::Unknown;
    }

    /// The task that must have the CPU when this event happens on it.
    fn runs_here(&self, row: usize, what: &TraceEventKind) -> Option<Tid> {
        match *what {
            TraceEventKind::Switch { prev: task, .. }
            | TraceEventKind::Fork { parent: task, .. }
            | TraceEventKind::Exec { task, .. }
            | TraceEventKind::Exit { task }
            | TraceEventKind::SyscallEnter { task, .. }
            | TraceEventKind::SyscallExit { task, .. } => Some(task),
            // They may come in the middle of a switch: good enough only where nothing better is known.
            TraceEventKind::Waking { by: task, .. }
            | TraceEventKind::LockBegin { task, .. }
            | TraceEventKind::LockEnd { task, .. } => {
                (self.cpus[row].current == Current::Unknown).then_some(task)
            }
            _ => None,
        }
    }

    fn apply(&mut self, row: usize, what: &TraceEventKind) {
        match *what {
            TraceEventKind::Switch { prev, prev_state, stack, user_stack, next } => {
                self.switch(row, prev, prev_state, [stack, user_stack], next)
            }
            TraceEventKind::Waking { task, by } => self.waking(row, task, by),
            TraceEventKind::Wakeup { task, .. } => self.wakeup(row, task),
            TraceEventKind::Fork { parent, child, pid, kernel } => {
                self.fork(row, parent, Made { tid: child, pid, kernel });
            }
            TraceEventKind::Exec { task, name } => self.exec(task, name),
            TraceEventKind::Rename { task, name } => self.rename(task, name),
            TraceEventKind::Exit { task } => self.exit(task),
            TraceEventKind::SyscallEnter { task, number } => {
                self.syscall_enter(row, task, number);
                self.end_call_of_file(task);
            }
            TraceEventKind::SyscallExit { task, number, failed } => {
                self.end_call_of_file(task);
                self.syscall_exit(row, task, number);
                if let Some(id) = self.tasks.find(task) {
                    self.calls.end(id, failed, self.now);
                }
            }
            TraceEventKind::InterruptEnter(interrupt) => self.cpus[row].interrupt_enter(interrupt),
            TraceEventKind::InterruptExit(interrupt) => self.interrupt_exit(row, interrupt),
            TraceEventKind::FaultEnter { user, .. } => {
                self.fault_enter(row, user);
                self.begin_fault_of_file(row);
            }
            TraceEventKind::FaultExit { .. } => self.fault_exit(row),
            TraceEventKind::BlockInsert(request) => self.block_insert(&request),
            TraceEventKind::BlockIssue(request) => self.block_issue(&request),
            TraceEventKind::BlockRequeue { request } => {
                self.disks.requeue(request, self.now, &mut self.tasks, &mut self.problems);
            }
            TraceEventKind::BlockMerge { request } => {
                self.disks.merge(request, self.now, &mut self.tasks)
            }
            TraceEventKind::BlockComplete { request, bytes } => {
                self.block_complete(row, request, bytes)
            }
            TraceEventKind::LockBegin { task, lock, kind, owner, stack } => {
                self.lock_begin(task, lock, kind, owner, stack);
            }
            TraceEventKind::LockEnd { task, lock } => self.lock_end(task, lock),
            TraceEventKind::CallFile { task, file } => self.call_file(task, file),
            TraceEventKind::CallSocket { task, network } => self.call_socket(task, network),
            TraceEventKind::CallBytes { task, bytes } => self.call_bytes(task, bytes),
            TraceEventKind::PageAdded { task, file, bytes } => self.page_added(task, file, bytes),
            TraceEventKind::LockFile { task, file } => self.lock_file(task, file),
            TraceEventKind::BlockFile { request, content, file } => {
                self.block_file(request, content, file);
            }
            // A kind that no view needs.
            _ => {}
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
        if let Some(under_way) = self.disks.under_way(request, &self.tasks) {
            self.files.complete(request, bytes, &under_way);
        }
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
        let Some(id) = self.task_of(task) else { return };
        // What a futex names may be anything, but for a thread of the same process.
        let is_likely = |owner: &TaskId| {
            kind != LockKind::Futex || self.tasks[*owner].task.pid == self.tasks[id].task.pid
        };
        let owner = owner.filter(is_likely).map(|id| (id, self.tasks[id].context.syscall()));
        let wait = Some(LockWait { lock, kind, owner, stack });
        let context = &mut self.tasks[id].context;
        match kind {
            LockKind::Futex => context.futex = wait,
            _ => context.lock = wait,
        }
    }

    fn lock_end(&mut self, task: Tid, lock: u64) {
        let Some(id) = self.task_of(task) else { return };
        let waits = &mut self.tasks[id].context.lock;
        if waits.as_ref().is_some_and(|wait| wait.lock == lock) {
            *waits = None;
            self.files.unlock(id, self.now);
        }
    }
}
