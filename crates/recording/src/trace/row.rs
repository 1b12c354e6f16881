//! An event as a row of `events.parquet`, and back.

use model::{
    BlockOp, BlockRequest, HostNs, Interrupt, LockKind, MachineId, Pid, PrevState, TaskName, Tid,
    TraceEvent, TraceEventKind, TraceStack, Vector,
};

/// An event's columns. What it does not have is absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Row<'a> {
    pub(super) time_ns: u64,
    pub(super) machine: u32,
    pub(super) cpu: u32,
    pub(super) kind: &'a str,
    pub(super) tid: Option<u32>,
    pub(super) other_tid: Option<u32>,
    pub(super) detail: Option<&'a str>,
    pub(super) name: Option<TaskName>,
    pub(super) number: Option<u32>,
    pub(super) address: Option<u64>,
    pub(super) stack: Option<u32>,
    pub(super) sector: Option<u64>,
    pub(super) bytes: Option<u32>,
}

impl Row<'static> {
    pub(super) fn of(event: &TraceEvent) -> Self {
        let row = Self {
            time_ns: event.time.0,
            machine: event.machine.0,
            cpu: event.cpu,
            kind: event.kind.name(),
            ..Self::default()
        };
        let (tid, number) = (|tid: Tid| Some(tid.0), |number: u16| Some(u32::from(number)));
        match event.kind {
            TraceEventKind::Switch { prev, prev_state, stack, next } => Self {
                tid: tid(prev),
                other_tid: tid(next),
                detail: Some(prev_state_name(prev_state)),
                stack: stack.map(|stack| stack.0),
                ..row
            },
            TraceEventKind::Waking { task, by } => {
                Self { tid: tid(task), other_tid: tid(by), ..row }
            }
            TraceEventKind::Wakeup { task, target_cpu } => {
                Self { tid: tid(task), number: Some(target_cpu), ..row }
            }
            TraceEventKind::Fork { parent, child, pid, kernel } => Self {
                tid: tid(parent),
                other_tid: tid(child),
                number: Some(pid.0),
                detail: kernel.then_some(KERNEL),
                ..row
            },
            TraceEventKind::Exec { task, name } | TraceEventKind::Rename { task, name } => {
                Self { tid: tid(task), name: Some(name), ..row }
            }
            TraceEventKind::Exit { task } => Self { tid: tid(task), ..row },
            TraceEventKind::SyscallEnter { task, number: call } => {
                Self { tid: tid(task), number: number(call), ..row }
            }
            TraceEventKind::SyscallExit { task, number: call, failed } => Self {
                tid: tid(task),
                number: number(call),
                detail: failed.then_some(FAILED),
                ..row
            },
            TraceEventKind::InterruptEnter(interrupt)
            | TraceEventKind::InterruptExit(interrupt) => {
                let (detail, number) = interrupt_name(interrupt);
                Self { detail: Some(detail), number, ..row }
            }
            TraceEventKind::FaultEnter { address, user } => Self {
                address: Some(address),
                detail: Some(if user { USER } else { KERNEL }),
                ..row
            },
            TraceEventKind::FaultExit { major } => {
                Self { detail: Some(if major { MAJOR } else { MINOR }), ..row }
            }
            TraceEventKind::BlockInsert(request) | TraceEventKind::BlockIssue(request) => {
                row.with_request(&request)
            }
            TraceEventKind::BlockRequeue { request } | TraceEventKind::BlockMerge { request } => {
                Self { address: Some(request), ..row }
            }
            TraceEventKind::BlockComplete { request, bytes } => {
                Self { address: Some(request), bytes: Some(bytes), ..row }
            }
            TraceEventKind::LockBegin { task, lock, kind, owner, stack } => Self {
                tid: tid(task),
                other_tid: owner.map(|owner| owner.0),
                detail: Some(lock_name(kind)),
                address: Some(lock),
                stack: stack.map(|stack| stack.0),
                ..row
            },
            TraceEventKind::LockEnd { task, lock } => {
                Self { tid: tid(task), address: Some(lock), ..row }
            }
        }
    }

    fn with_request(self, request: &BlockRequest) -> Self {
        Self {
            tid: Some(request.task.0),
            detail: Some(op_name(request.op)),
            number: Some(request.disk),
            address: Some(request.request),
            sector: Some(request.sector),
            bytes: Some(request.bytes),
            ..self
        }
    }
}

impl Row<'_> {
    /// `of` undone; `None` when the row lacks what its kind must have.
    pub(super) fn event(&self) -> Option<TraceEvent> {
        Some(TraceEvent {
            time: HostNs(self.time_ns),
            machine: MachineId(self.machine),
            cpu: self.cpu,
            kind: self.what()?,
        })
    }

    fn what(&self) -> Option<TraceEventKind> {
        let tid = || self.tid.map(Tid);
        let call = || u16::try_from(self.number?).ok();
        Some(match self.kind {
            "switch" => TraceEventKind::Switch {
                prev: tid()?,
                prev_state: find(&PREV_STATES, self.detail?)?,
                stack: self.stack.map(TraceStack),
                next: Tid(self.other_tid?),
            },
            "waking" => TraceEventKind::Waking { task: tid()?, by: Tid(self.other_tid?) },
            "wakeup" => TraceEventKind::Wakeup { task: tid()?, target_cpu: self.number? },
            "fork" => TraceEventKind::Fork {
                parent: tid()?,
                child: Tid(self.other_tid?),
                pid: Pid(self.number?),
                kernel: either(self.detail, [None, Some(KERNEL)])?,
            },
            "exec" => TraceEventKind::Exec { task: tid()?, name: self.name? },
            "rename" => TraceEventKind::Rename { task: tid()?, name: self.name? },
            "exit" => TraceEventKind::Exit { task: tid()? },
            "syscall_enter" => TraceEventKind::SyscallEnter { task: tid()?, number: call()? },
            "syscall_exit" => TraceEventKind::SyscallExit {
                task: tid()?,
                number: call()?,
                failed: either(self.detail, [None, Some(FAILED)])?,
            },
            "interrupt_enter" => TraceEventKind::InterruptEnter(self.interrupt()?),
            "interrupt_exit" => TraceEventKind::InterruptExit(self.interrupt()?),
            "fault_enter" => TraceEventKind::FaultEnter {
                address: self.address?,
                user: either(self.detail, [Some(KERNEL), Some(USER)])?,
            },
            "fault_exit" => TraceEventKind::FaultExit {
                major: either(self.detail, [Some(MINOR), Some(MAJOR)])?,
            },
            "block_insert" => TraceEventKind::BlockInsert(self.request()?),
            "block_issue" => TraceEventKind::BlockIssue(self.request()?),
            "block_requeue" => TraceEventKind::BlockRequeue { request: self.address? },
            "block_merge" => TraceEventKind::BlockMerge { request: self.address? },
            "block_complete" => {
                TraceEventKind::BlockComplete { request: self.address?, bytes: self.bytes? }
            }
            "lock_begin" => TraceEventKind::LockBegin {
                task: tid()?,
                lock: self.address?,
                kind: find(&LOCKS, self.detail?)?,
                owner: self.other_tid.map(Tid),
                stack: self.stack.map(TraceStack),
            },
            "lock_end" => TraceEventKind::LockEnd { task: tid()?, lock: self.address? },
            _ => return None,
        })
    }

    fn interrupt(&self) -> Option<Interrupt> {
        Some(match self.detail? {
            DEVICE => Interrupt::Device(self.number?),
            SOFT => Interrupt::Soft(self.number?),
            vector => Interrupt::Vector(find(&VECTORS, vector)?),
        })
    }

    fn request(&self) -> Option<BlockRequest> {
        Some(BlockRequest {
            request: self.address?,
            disk: self.number?,
            sector: self.sector?,
            bytes: self.bytes?,
            op: find(&OPS, self.detail?)?,
            task: Tid(self.tid?),
        })
    }
}

const FAILED: &str = "failed";
const USER: &str = "user";
const KERNEL: &str = "kernel";
const MAJOR: &str = "major";
const MINOR: &str = "minor";
const DEVICE: &str = "device";
const SOFT: &str = "soft";

const PREV_STATES: [(&str, PrevState); 6] = [
    ("runnable", PrevState::Runnable),
    ("sleep", PrevState::Sleep),
    ("uninterruptible", PrevState::Uninterruptible { io: false }),
    ("io", PrevState::Uninterruptible { io: true }),
    ("stopped", PrevState::Stopped),
    ("dead", PrevState::Dead),
];

const VECTORS: [(&str, Vector); 6] = [
    ("local_timer", Vector::LocalTimer),
    ("reschedule", Vector::Reschedule),
    ("call_function", Vector::CallFunction),
    ("call_function_single", Vector::CallFunctionSingle),
    ("irq_work", Vector::IrqWork),
    ("vector", Vector::Other),
];

const OPS: [(&str, BlockOp); 5] = [
    ("read", BlockOp::Read),
    ("write", BlockOp::Write),
    ("flush", BlockOp::Flush),
    ("discard", BlockOp::Discard),
    ("other", BlockOp::Other),
];

const LOCKS: [(&str, LockKind); 5] = [
    ("spin", LockKind::Spin),
    ("mutex", LockKind::Mutex),
    ("sem_read", LockKind::SemRead),
    ("sem_write", LockKind::SemWrite),
    ("other", LockKind::Other),
];

fn find<T: Copy>(names: &[(&str, T)], name: &str) -> Option<T> {
    names.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
}

/// The name of a value that has one.
fn name_in<T: Copy + PartialEq>(names: &[(&'static str, T)], value: T) -> &'static str {
    let named = names.iter().find(|(_, known)| *known == value);
    named.map(|(name, _)| *name).expect("every value is in its table of names")
}

/// False and true, told by what a detail is then.
fn either(detail: Option<&str>, [no, yes]: [Option<&str>; 2]) -> Option<bool> {
    if detail == yes { Some(true) } else { (detail == no).then_some(false) }
}

fn prev_state_name(prev_state: PrevState) -> &'static str {
    name_in(&PREV_STATES, prev_state)
}

fn op_name(op: BlockOp) -> &'static str {
    name_in(&OPS, op)
}

fn lock_name(kind: LockKind) -> &'static str {
    name_in(&LOCKS, kind)
}

fn interrupt_name(interrupt: Interrupt) -> (&'static str, Option<u32>) {
    match interrupt {
        Interrupt::Device(number) => (DEVICE, Some(number)),
        Interrupt::Soft(number) => (SOFT, Some(number)),
        Interrupt::Vector(vector) => (name_in(&VECTORS, vector), None),
    }
}

/// A name from a column of text: at most 15 bytes of it, whole characters.
pub(super) fn name_of(text: &str) -> TaskName {
    let end = (0..=15).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    TaskName::new(&text.as_bytes()[..end.min(text.len())])
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn names_are_cut_between_characters() {
        let check = |text: &str, name: &str| assert_eq!(name_of(text).text(), name);
        check("make", "make");
        check("", "");
        check("a-very-long-name", "a-very-long-nam");
        check("aaaaaaaaaaaaaa\u{fffd}", "aaaaaaaaaaaaaa");
        check("aaaaaaaaaaaa\u{fffd}", "aaaaaaaaaaaa\u{fffd}");
        check(&"\u{fffd}".repeat(15), &"\u{fffd}".repeat(5));
    }

    /// A row with everything that is wanted of one kind, and what it is without one of its columns.
    fn check(row: Row<'_>, lacking: &[Row<'_>]) {
        assert!(row.event().is_some(), "{row:?}");
        for row in lacking {
            assert_eq!(row.event(), None, "{row:?}");
        }
    }

    #[test]
    fn rows_that_lack_something_are_no_events() {
        let switch = Row {
            kind: "switch",
            tid: Some(1),
            other_tid: Some(2),
            detail: Some("sleep"),
            ..Row::default()
        };
        check(
            switch,
            &[
                Row { tid: None, ..switch },
                Row { other_tid: None, ..switch },
                Row { detail: None, ..switch },
                Row { detail: Some("asleep"), ..switch },
                Row { kind: "swap", ..switch },
            ],
        );
        let call =
            Row { kind: "syscall_exit", tid: Some(1), number: Some(65_535), ..Row::default() };
        check(
            call,
            &[Row { number: Some(65_536), ..call }, Row { detail: Some("perhaps"), ..call }],
        );
        let vector = Row { kind: "interrupt_enter", detail: Some("irq_work"), ..Row::default() };
        check(vector, &[Row { detail: Some("device"), ..vector }, Row { detail: None, ..vector }]);
    }
}
