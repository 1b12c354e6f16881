//! Labels of categories and targets in tables, JSON and CSV.

use std::fmt;

use model::BlockOp;

use super::{Category, Target};
use crate::kernel::{Class, interrupt_name, syscall_label};
use crate::timeline::Work;

impl fmt::Display for Category {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(name) => write!(f, "own code of {name}"),
            Self::Kernel(Work::Syscall(number)) => write!(f, "kernel: {}", syscall_label(*number)),
            Self::Kernel(Work::Interrupt(interrupt)) => {
                write!(f, "kernel: {}", interrupt_name(*interrupt))
            }
            Self::Kernel(work) => match Class::from_work(*work) {
                Class::KernelTasks => f.write_str("kernel tasks"),
                class => write!(f, "kernel: {}", class.name()),
            },
            Self::Vcpu => f.write_str("guest code and its exits"),
            Self::CpuWait => f.write_str("waiting for a CPU"),
            Self::WakingUp => f.write_str("being woken"),
            Self::DiskQueue(disk) => write!(f, "disk {disk}: queue"),
            Self::Disk(disk, op) => write!(f, "disk {disk}: {}", op_name(*op)),
            Self::UnknownDisk => f.write_str("disk, by an unknown request"),
            Self::Timer => f.write_str("timer"),
            Self::Polling => f.write_str("polling: timer, in a loop of short sleeps"),
            Self::Lock => f.write_str("lock, by an unknown holder"),
            Self::Network => f.write_str("network"),
            Self::Interrupt(interrupt) => write!(f, "until {}", interrupt_name(*interrupt)),
            Self::Stopped => f.write_str("stopped"),
            Self::NotOver(Some(number)) => write!(f, "not over: {}", syscall_label(*number)),
            Self::NotOver(None) => f.write_str("not over: asleep"),
            Self::Unknown => f.write_str("unknown"),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Category(category) => category.fmt(f),
            Self::Class(class) => write!(f, "kernel: all {}", class.name()),
            Self::Kernel => f.write_str("kernel: all"),
            Self::Disks => f.write_str("all disks"),
            Self::Locks => f.write_str("all waiting for locks"),
        }
    }
}

fn op_name(op: BlockOp) -> &'static str {
    match op {
        BlockOp::Read => "read",
        BlockOp::Write => "write",
        BlockOp::Flush => "flush",
        BlockOp::Discard => "discard",
        BlockOp::Other => "other",
    }
}
