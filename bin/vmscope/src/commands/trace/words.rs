//! What things are called, in text, CSV and JSON alike. (Most have their names from `trace-analysis`.)

use model::BlockOp;
use trace_analysis::critical_path::Doing;
use trace_analysis::group::Key;
use trace_analysis::kernel::{Class, interrupt_name, syscall_label};
use trace_analysis::timeline::{Task, Work};
use trace_analysis::waits::Evidence;

/// `cc1 (4711)`.
pub(super) fn task(task: &Task) -> String {
    format!("{} ({})", task.name(), task.tid)
}

/// `cc1 (4711)`; a kernel task's name in brackets.
pub(super) fn key(key: &Key) -> String {
    let name = if key.kernel { format!("[{}]", key.name) } else { key.name.clone() };
    match key.pid {
        Some(pid) => format!("{name} ({pid})"),
        None => name,
    }
}

pub(super) fn work(work: Work) -> String {
    match work {
        Work::User => "own code".to_owned(),
        Work::Syscall(number) => syscall_label(number),
        Work::Interrupt(interrupt) => interrupt_name(interrupt),
        other => Class::of(other).name().to_owned(),
    }
}

/// What a segment of the critical path is, in a few words.
pub(super) fn doing(doing: &Doing) -> String {
    match doing {
        Doing::Running { .. } => "runs".to_owned(),
        Doing::CpuWait { .. } => "waits for a CPU".to_owned(),
        Doing::WakingUp => "is being woken".to_owned(),
        Doing::DiskQueue { op: what, .. } => format!("{} in the disk's queue", op(*what)),
        Doing::Disk { op: what, .. } => format!("disk {}", op(*what)),
        Doing::Interrupt(interrupt) => format!("sleeps until {}", interrupt_name(*interrupt)),
        Doing::Lock => "waits for a lock".to_owned(),
        Doing::UnknownDisk => "waits for a disk".to_owned(),
        Doing::Stopped => "is stopped".to_owned(),
        Doing::NotOver { syscall } => {
            format!("{}, not over", self::doing(&Doing::UnknownSleep { syscall: *syscall }))
        }
        Doing::UnknownSleep { syscall: Some(number) } => {
            format!("sleeps in {}", syscall_label(*number))
        }
        Doing::UnknownSleep { syscall: None } => "sleeps".to_owned(),
        Doing::Unknown => "unknown".to_owned(),
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
