//! What things are called in text, CSV and JSON alike. (Most have their names from `trace-analysis`.)

use model::{BlockOp, LockKind};
use table::with_id;

use crate::critical_path::PathActivity;
use crate::group::Key;
use crate::kernel::{Class, interrupt_name, syscall_label};
use crate::timeline::{Task, Work};
use crate::waits::Evidence;

/// `cc1 (4711)`.
pub(super) fn task(task: &Task) -> String {
    with_id(task.name(), Some(task.tid.0))
}

/// `cc1 (4711)`; a kernel task's name in brackets.
pub(super) fn key(key: &Key) -> String {
    let id = key.pid.map(|pid| pid.0);
    if key.kernel { with_id(&format!("[{}]", key.name), id) } else { with_id(&key.name, id) }
}

pub(super) fn work(work: Work) -> String {
    match work {
        Work::User => "own code".to_owned(),
        Work::Syscall(number) => syscall_label(number),
        Work::Interrupt(interrupt) => interrupt_name(interrupt),
        other => Class::from_work(other).name().to_owned(),
    }
}

/// What a segment of the critical path is, in a few words.
pub(super) fn activity(activity: &PathActivity) -> String {
    match activity {
        PathActivity::Running { .. } => "runs".to_owned(),
        PathActivity::CpuWait { .. } => "waits for a CPU".to_owned(),
        PathActivity::WakingUp => "is being woken".to_owned(),
        PathActivity::DiskQueue { op: request, .. } => {
            format!("{} in the disk's queue", op(*request))
        }
        PathActivity::Disk { op: request, .. } => format!("disk {}", op(*request)),
        PathActivity::Interrupt(interrupt) => {
            format!("sleeps until {}", interrupt_name(*interrupt))
        }
        PathActivity::Lock => "waits for a lock".to_owned(),
        PathActivity::UnknownDisk => "waits for a disk".to_owned(),
        PathActivity::Stopped => "is stopped".to_owned(),
        PathActivity::NotOver { syscall } => {
            format!(
                "{}, not over",
                self::activity(&PathActivity::UnknownSleep { syscall: *syscall })
            )
        }
        PathActivity::UnknownSleep { syscall: Some(number) } => {
            format!("sleeps in {}", syscall_label(*number))
        }
        PathActivity::UnknownSleep { syscall: None } => "sleeps".to_owned(),
        PathActivity::Unknown => "unknown".to_owned(),
    }
}

fn op(op: BlockOp) -> &'static str {
    match op {
        BlockOp::Read => "read",
        BlockOp::Write => "write",
        BlockOp::Flush => "flush",
        BlockOp::Discard => "discard",
        BlockOp::Other => "other",
    }
}

pub(super) fn evidence(evidence: Evidence) -> &'static str {
    match evidence {
        Evidence::State => "state",
        Evidence::Lock => "lock",
        Evidence::Stack => "stack",
        Evidence::Request => "request",
        Evidence::IoWait => "iowait",
        Evidence::Syscall => "syscall",
        Evidence::Fault => "fault",
        Evidence::Nothing => "nothing",
    }
}

pub(super) fn lock(kind: LockKind) -> &'static str {
    match kind {
        LockKind::Spin => "spinlock",
        LockKind::Mutex => "mutex",
        LockKind::SemRead => "rwsem to read",
        LockKind::SemWrite => "rwsem to write",
        LockKind::Other => "lock",
        LockKind::Futex => "futex",
    }
}
