//! What a task waited for in a segment of its life.
//!
//! The first of these that gives an answer decides:
//!
//! 1. its state: runnable, stopped, unknown;
//! 2. the lock that it waits for, as the kernel's lock events have it;
//! 3. its stack, or where it was found asleep when the trace began;
//! 4. the request whose completion woke it;
//! 5. that the kernel counts it as waiting for I/O;
//! 6. its system call, if that can hardly wait for anything else;
//! 7. that it handles a page fault.

use std::collections::BTreeMap;

use model::{BlockOp, LockKind, MachineId, Tid, TraceStack, TraceTables};

use super::calls::{CALLS, DISK_CALLS, INODE_CALLS, by_name};
use super::cause::{Cause, LockClass, Unknown};
use super::names::Names;
use super::stack::{Family, Finding, Functions, Reading, split_stack};
use crate::kernel::syscall_name;
use crate::timeline::{LockWait, Segment, Sleep, State, Task, Timeline, WokenBy};

/// Finds what the tasks of one machine wait for.
#[derive(Debug, Clone)]
pub struct Classifier {
    functions: Functions,
    calls: Names<Cause>,
    disk_calls: Names<Cause>,
    stacks: BTreeMap<TraceStack, Reading>,
    asleep_in: BTreeMap<Tid, Reading>,
}

/// What a task waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait<'a> {
    pub cause: Cause,
    /// The kernel function that decided; for a lock the one that wants it. For an unrecognised stack its innermost
    /// functions. Empty without a stack.
    pub function: &'a str,
    /// What the cause was derived from.
    pub evidence: Evidence,
}

/// What a cause was derived from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Evidence {
    /// The task's state.
    State,
    /// A lock's events.
    Lock,
    Stack,
    /// The completed request that woke it.
    Request,
    /// The kernel counts it as waiting for I/O.
    IoWait,
    Syscall,
    /// It handles a page fault.
    Fault,
    Nothing,
}

impl Classifier {
    /// Reads the stacks of one machine, each once.
    #[must_use]
    pub fn new(tables: &TraceTables, machine: MachineId) -> Self {
        let functions = Functions::new();
        let is_kernel_s = |(of, number, _): &&_| *of == machine && !TraceStack::is_user(*number);
        let stacks = tables.stacks.iter().filter(is_kernel_s);
        let stacks = stacks.map(|(_, number, names)| (*number, functions.read(names))).collect();
        let tasks = tables.tasks.iter().filter(|task| task.machine == machine);
        let asleep_in = tasks.filter_map(|task| {
            let names: Vec<&str> = split_stack(task.asleep_in.as_deref()?).collect();
            Some((task.tid, functions.read(&names)))
        });
        let asleep_in = asleep_in.collect();
        let (calls, disk_calls) = (Names::new(by_name(CALLS)), Names::new(by_name(DISK_CALLS)));
        Self { functions, calls, disk_calls, stacks, asleep_in }
    }

    /// What a task waits for in a segment; `None`: it runs.
    #[must_use]
    pub fn wait<'a>(
        &'a self,
        timeline: &Timeline,
        task: &Task,
        segment: &Segment,
    ) -> Option<Wait<'a>> {
        let by_state = |cause| Some(Wait { cause, function: "", evidence: Evidence::State });
        match &segment.state {
            State::Running { .. } => None,
            State::Runnable { preempted: true } => by_state(Cause::CpuPreempted),
            State::Runnable { preempted: false } => by_state(Cause::CpuWoken),
            State::Stopped { .. } => by_state(Cause::Stopped),
            State::Asleep(sleep) => Some(self.asleep(timeline, task, segment, sleep)),
            State::Unknown => {
                let cause = Cause::Unknown(Unknown::NoEvent);
                Some(Wait { cause, function: "", evidence: Evidence::Nothing })
            }
        }
    }

    fn asleep<'a>(
        &'a self,
        timeline: &Timeline,
        task: &Task,
        segment: &Segment,
        sleep: &Sleep,
    ) -> Wait<'a> {
        let stack = sleep.stack.and_then(|stack| self.stacks.get(&stack));
        let first = task.before && segment.begin == task.begin;
        let found = first.then(|| self.asleep_in.get(&task.tid)).flatten();
        let reading = stack.or(found);
        if let Some(lock) = &sleep.lock
            && is_in_lock(lock.kind, reading)
        {
            return self.lock(sleep, lock, reading);
        }
        let op = request_op(timeline, sleep);
        let by_stack = reading.and_then(|reading| self.by_stack(task, sleep, reading, op));
        let cause = by_stack.or_else(|| self.by_less(sleep, reading, op));
        if let Some((cause, evidence)) = cause {
            let function = reading.map_or("", |reading| &reading.function);
            return Wait { cause, function, evidence };
        }
        let innermost = reading.map_or("", |reading| &reading.innermost);
        let why = if innermost.is_empty() { Unknown::NoStack } else { Unknown::Unrecognised };
        Wait { cause: Cause::Unknown(why), function: innermost, evidence: Evidence::Nothing }
    }

    /// A lock with events of its own.
    fn lock<'a>(
        &'a self,
        sleep: &Sleep,
        lock: &LockWait,
        sleeps_at: Option<&'a Reading>,
    ) -> Wait<'a> {
        let at_begin = lock.stack.and_then(|stack| self.stacks.get(&stack));
        let caller =
            [at_begin, sleeps_at].into_iter().flatten().find_map(|it| it.caller.as_deref());
        let family = match lock.kind {
            LockKind::Spin => {
                let cause = Cause::Lock(LockClass::Spin);
                return Wait { cause, function: caller.unwrap_or(""), evidence: Evidence::Lock };
            }
            LockKind::Futex => {
                let function = caller.unwrap_or("");
                return Wait { cause: Cause::Futex, function, evidence: Evidence::Lock };
            }
            LockKind::Mutex => Family::Mutex,
            LockKind::SemRead | LockKind::SemWrite => Family::Semaphore,
            LockKind::Other => Family::Either,
        };
        let other = Cause::Lock(LockClass::Other);
        if let Some(function) = caller {
            let cause = self.functions.lock_of(family, function).unwrap_or(other);
            return Wait { cause, function, evidence: Evidence::Lock };
        }
        let holders = lock.owner.and_then(|(_, syscall)| syscall);
        let of_inode = |call: Option<u16>| call.is_some_and(changes_inodes);
        let inode = family == Family::Semaphore && (of_inode(sleep.syscall) || of_inode(holders));
        if inode {
            return Wait { cause: Cause::InodeLock, function: "", evidence: Evidence::Syscall };
        }
        Wait { cause: other, function: "", evidence: Evidence::Lock }
    }

    fn by_stack(
        &self,
        task: &Task,
        sleep: &Sleep,
        reading: &Reading,
        op: Option<Cause>,
    ) -> Option<(Cause, Evidence)> {
        let by_stack = |cause| Some((cause, Evidence::Stack));
        match reading.finding {
            Finding::Is(Cause::AsyncIo) if op.is_some() => op.map(|op| (op, Evidence::Request)),
            Finding::Is(Cause::DiskRead) if reading.in_fault => by_stack(Cause::DiskFault),
            Finding::Is(cause) | Finding::Lock(cause) => by_stack(cause),
            Finding::Disk => Some(self.disk(sleep, reading, op)),
            Finding::Page => match op {
                Some(op) => Some((in_fault(op, reading.in_fault), Evidence::Request)),
                None => by_stack(Cause::Lock(LockClass::Page)),
            },
            Finding::Within(_) | Finding::Nothing if task.kernel && is_idle(sleep, reading) => {
                by_stack(Cause::KernelIdle)
            }
            Finding::Within(_) | Finding::Nothing => None,
        }
    }

    /// A wait for a disk whose stack does not show the purpose.
    fn disk(&self, sleep: &Sleep, reading: &Reading, op: Option<Cause>) -> (Cause, Evidence) {
        let by_call =
            || Self::call(sleep, Some(reading)).and_then(|call| self.disk_calls.get(call));
        match (op, reading.in_fault) {
            (Some(op), fault) => (in_fault(op, fault), Evidence::Request),
            (None, true) => (Cause::DiskFault, Evidence::Stack),
            (None, false) => (by_call().unwrap_or(Cause::Disk), Evidence::Stack),
        }
    }

    /// A wait with a stack that is missing or ambiguous.
    fn by_less(
        &self,
        sleep: &Sleep,
        reading: Option<&Reading>,
        op: Option<Cause>,
    ) -> Option<(Cause, Evidence)> {
        let fault = reading.map_or(sleep.in_fault, |reading| reading.in_fault);
        if let Some(op) = op {
            return Some((in_fault(op, fault), Evidence::Request));
        }
        let call = Self::call(sleep, reading).filter(|_| !fault);
        if sleep.io {
            let cause = call.and_then(|call| self.disk_calls.get(call));
            return Some((cause.unwrap_or(in_fault(Cause::Disk, fault)), Evidence::IoWait));
        }
        if let Some(Reading { finding: Finding::Within(cause), .. }) = reading {
            return Some((*cause, Evidence::Stack));
        }
        let by_call = call.and_then(|call| self.calls.get(call));
        by_call
            .map(|cause| (cause, Evidence::Syscall))
            .or(fault.then_some((Cause::PageFault, Evidence::Fault)))
    }

    /// The system call that a task sleeps in.
    fn call<'a>(sleep: &Sleep, reading: Option<&'a Reading>) -> Option<&'a str> {
        let by_number = sleep.syscall.and_then(syscall_name);
        by_number.or_else(|| reading.and_then(|reading| reading.syscall.as_deref()))
    }
}

/// Whether a stack is compatible with the lock of the lock events. A stack that waits for something else shows that
/// the event at the end of the lock wait was lost.
fn is_in_lock(kind: LockKind, reading: Option<&Reading>) -> bool {
    let Some(reading) = reading else { return true };
    match (kind, reading.finding) {
        (_, Finding::Within(_) | Finding::Nothing) => true,
        (_, Finding::Disk | Finding::Page) => false,
        (LockKind::Futex, Finding::Is(cause) | Finding::Lock(cause)) => cause == Cause::Futex,
        (_, Finding::Lock(_)) => true,
        (_, Finding::Is(cause)) => matches!(cause, Cause::Lock(_)),
    }
}

/// Whether a kernel thread is idle: its main function sleeps, or a function that this calls does and can be
/// interrupted by a signal. Other waits are deeper on the stack, or uninterruptible.
fn is_idle(sleep: &Sleep, reading: &Reading) -> bool {
    match reading.kernel_loop {
        Some(0 | 1) => true,
        Some(2) => !sleep.uninterruptible,
        _ => false,
    }
}

fn in_fault(cause: Cause, fault: bool) -> Cause {
    match cause {
        Cause::DiskRead | Cause::Disk if fault => Cause::DiskFault,
        cause => cause,
    }
}

/// The operation of the request whose completion ended the sleep.
fn request_op(timeline: &Timeline, sleep: &Sleep) -> Option<Cause> {
    let WokenBy::Request { task, row } = sleep.woken_by?.by else { return None };
    let requests = &timeline.tasks.get(task.index())?.requests;
    let request = requests.get(usize::try_from(row).ok()?)?;
    Some(match request.op {
        BlockOp::Read => Cause::DiskRead,
        BlockOp::Write => Cause::DiskWrite,
        BlockOp::Flush => Cause::DiskFlush,
        BlockOp::Discard => Cause::DiskDiscard,
        BlockOp::Other => Cause::Disk,
    })
}

fn changes_inodes(number: u16) -> bool {
    syscall_name(number).is_some_and(|name| INODE_CALLS.contains(&name))
}
