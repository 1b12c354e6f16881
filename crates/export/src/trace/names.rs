//! What machines, tasks, stacks and causes are called: cleaned and of bounded length, for they come from guests.

use analysis::clean;
use model::{Interrupt, LockKind, Machine, TraceStack, TraceTables, Vector};
use tracing::timeline::{LockWait, Sleep, TaskId, Timeline, WokenBy, Work};

/// Characters of a name at most.
const NAME: usize = 80;
/// Functions of a stack at most.
const FRAMES: usize = 12;

/// The names of one machine.
#[derive(Debug, Clone, Copy)]
pub(super) struct Names<'a> {
    pub(super) tables: &'a TraceTables,
    pub(super) timeline: &'a Timeline,
}

/// `text` without what could steer a terminal or a reader's eye, at most `most` characters long.
pub(super) fn bounded(text: &str, most: usize) -> String {
    let mut chars = text.chars();
    let mut short: String = chars.by_ref().take(most).collect();
    if chars.next().is_some() {
        short.push('…');
    }
    clean(&short).into_owned()
}

/// A short name.
pub(super) fn short(text: &str) -> String {
    bounded(text, NAME)
}

impl<'a> Names<'a> {
    pub(super) fn machine(&self) -> Option<&'a Machine> {
        self.tables.machines.get(self.timeline.machine.index())
    }

    /// `host`, or the VM's name.
    pub(super) fn machine_name(&self) -> String {
        self.machine().map_or_else(
            || format!("machine {}", self.timeline.machine.0),
            |machine| short(&machine.name),
        )
    }

    /// `cc1 (812)`.
    pub(super) fn task(&self, id: TaskId) -> String {
        match self.timeline.tasks.get(id.index()) {
            Some(task) => format!("{} ({})", self.task_name(id), task.tid.0),
            None => "[unknown]".to_owned(),
        }
    }

    /// `cc1`.
    pub(super) fn task_name(&self, id: TaskId) -> String {
        let last = self.timeline.tasks.get(id.index()).and_then(|task| task.names.last());
        last.map_or_else(|| "[unknown]".to_owned(), |(_, name)| short(name))
    }

    /// `io_schedule < folio_wait_bit`: innermost first.
    pub(super) fn stack(&self, stack: TraceStack) -> Option<String> {
        let key = (self.timeline.machine, stack);
        let stacks = &self.tables.stacks;
        let row =
            stacks.binary_search_by_key(&key, |(machine, stack, _)| (*machine, *stack)).ok()?;
        let frames: Vec<String> =
            stacks[row].2.iter().take(FRAMES).map(|name| short(name)).collect();
        (!frames.is_empty()).then(|| frames.join(" < "))
    }

    /// Who woke a task: `cc1 (812)`, `timer softirq`, `disk request of cc1 (812)`.
    pub(super) fn woken_by(&self, by: WokenBy) -> String {
        match by {
            WokenBy::Task(task) => self.task(task),
            WokenBy::Interrupt(interrupt) => interrupt_name(interrupt),
            WokenBy::Request { task, .. } => format!("disk request of {}", self.task(task)),
            WokenBy::Unknown => "unknown".to_owned(),
        }
    }

    /// `mutex held by make (12) in openat`.
    pub(super) fn lock(&self, wait: &LockWait) -> String {
        let kind = lock_name(wait.kind);
        match wait.owner {
            Some((owner, Some(call))) => {
                format!("{kind} held by {} in {}", self.task(owner), syscall_name(call))
            }
            Some((owner, None)) => format!("{kind} held by {}", self.task(owner)),
            None => format!("{kind}, holder unknown"),
        }
    }

    /// What a sleep is called on a track.
    pub(super) fn sleep(&self, sleep: &Sleep) -> String {
        let cause = match sleep {
            Sleep { lock: Some(wait), .. } => lock_name(wait.kind).to_owned(),
            Sleep { io: true, .. } => "disk".to_owned(),
            Sleep { in_fault: true, .. } => "page fault".to_owned(),
            Sleep { syscall: Some(call), .. } => syscall_name(*call),
            _ => return "asleep".to_owned(),
        };
        format!("asleep: {cause}")
    }
}

/// The system call's name on x86-64.
pub(super) fn syscall_name(number: u16) -> String {
    format!("syscall {number}")
}

pub(super) fn lock_name(kind: LockKind) -> &'static str {
    match kind {
        LockKind::Spin => "spinlock",
        LockKind::Mutex => "mutex",
        LockKind::SemRead => "rwsem to read",
        LockKind::SemWrite => "rwsem to write",
        LockKind::Other => "lock",
    }
}

/// What a CPU executes.
pub(super) fn work_name(work: Work) -> String {
    match work {
        Work::Idle => "[idle]".to_owned(),
        Work::User => "user".to_owned(),
        Work::Syscall(number) => syscall_name(number),
        Work::Fault { estimated: false } => "page fault".to_owned(),
        Work::Fault { estimated: true } => "page fault (estimated)".to_owned(),
        Work::Interrupt(interrupt) => interrupt_name(interrupt),
        Work::KernelTask => "kernel task".to_owned(),
        Work::Unknown => "[unknown]".to_owned(),
    }
}

pub(super) fn interrupt_name(interrupt: Interrupt) -> String {
    let soft = [
        "hi", "timer", "net tx", "net rx", "block", "irq_poll", "tasklet", "sched", "hrtimer",
        "rcu",
    ];
    match interrupt {
        Interrupt::Device(line) => format!("irq {line}"),
        Interrupt::Soft(number) => match soft.get(number as usize) {
            Some(name) => format!("{name} softirq"),
            None => format!("softirq {number}"),
        },
        Interrupt::Vector(vector) => match vector {
            Vector::LocalTimer => "timer interrupt",
            Vector::Reschedule => "reschedule interrupt",
            Vector::CallFunction | Vector::CallFunctionSingle => "call function interrupt",
            Vector::IrqWork => "irq work",
            Vector::Other => "interrupt",
        }
        .to_owned(),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn names_are_cleaned_and_cut() {
        let check = |text: &str, expected: &str| assert_eq!(bounded(text, 5), expected);
        check("make", "make");
        check("cc1-plus", "cc1-p…");
        check("a\u{202e}b", "a\\u{202e}b");
        check("äöüßé", "äöüßé");
    }

    #[test]
    fn interrupts_by_name() {
        let check = |interrupt, expected: &str| assert_eq!(interrupt_name(interrupt), expected);
        check(Interrupt::Device(24), "irq 24");
        check(Interrupt::Soft(4), "block softirq");
        check(Interrupt::Soft(99), "softirq 99");
        check(Interrupt::Vector(Vector::LocalTimer), "timer interrupt");
    }
}
