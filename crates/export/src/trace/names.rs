//! What machines, tasks, stacks and causes are called: cleaned and of bounded length, for they come from guests.

use model::{LockKind, Machine, TraceStack, TraceTables};
use table::clean;
use trace_analysis::findings::Findings;
use trace_analysis::group::Key;
use trace_analysis::kernel::{interrupt_name, syscall_label};
use trace_analysis::timeline::{LockWait, TaskId, Timeline, WokenBy, Work};

/// Characters of a name at most.
const NAME: usize = 80;
const UNKNOWN: &str = "[unknown]";
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
    /// Those of the machine that was looked at.
    pub(super) fn new(findings: &Findings<'a>) -> Self {
        Self { tables: findings.tables, timeline: findings.timeline }
    }

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
        task_label(self.timeline, id)
    }

    /// `cc1`.
    pub(super) fn task_name(&self, id: TaskId) -> String {
        task_name(self.timeline, id)
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
                format!("{kind} held by {} in {}", self.task(owner), syscall_label(call))
            }
            Some((owner, None)) => format!("{kind} held by {}", self.task(owner)),
            None => format!("{kind}, holder unknown"),
        }
    }
}

/// `cc1 (812)`.
pub(super) fn task_label(timeline: &Timeline, id: TaskId) -> String {
    match timeline.tasks.get(id.index()) {
        Some(task) => format!("{} ({})", task_name(timeline, id), task.tid.0),
        None => UNKNOWN.to_owned(),
    }
}

fn task_name(timeline: &Timeline, id: TaskId) -> String {
    let last = timeline.tasks.get(id.index()).and_then(|task| task.names.last());
    last.map_or_else(|| UNKNOWN.to_owned(), |(_, name)| short(name))
}

/// `cc1`, `cc1 (812)`.
pub(super) fn key_name(key: &Key) -> String {
    match key.tid.map(|tid| tid.0).or(key.pid.map(|pid| pid.0)) {
        Some(id) => format!("{} ({id})", short(&key.name)),
        None => short(&key.name),
    }
}

pub(super) fn lock_name(kind: LockKind) -> &'static str {
    match kind {
        LockKind::Spin => "spinlock",
        LockKind::Mutex => "mutex",
        LockKind::SemRead => "rwsem to read",
        LockKind::SemWrite => "rwsem to write",
        LockKind::Other => "lock",
        LockKind::Futex => "futex",
    }
}

/// What a CPU executes.
pub(super) fn work_name(work: Work) -> String {
    match work {
        Work::Idle => "[idle]".to_owned(),
        Work::User => "user".to_owned(),
        Work::Vcpu => "vcpu".to_owned(),
        Work::Syscall(number) => syscall_label(number),
        Work::Fault { estimated: false } => "page fault".to_owned(),
        Work::Fault { estimated: true } => "page fault (estimated)".to_owned(),
        Work::Interrupt(interrupt) => interrupt_name(interrupt),
        Work::KernelTask => "kernel task".to_owned(),
        Work::Unknown => "[unknown]".to_owned(),
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
}
