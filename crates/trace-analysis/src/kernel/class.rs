//! What CPUs execute, by class.

use model::{Interrupt, Vector};

use super::calls::{CallClass, syscall_class};
use crate::timeline::Work;

/// What a CPU executes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Programs' own code.
    User,
    /// System calls of a class.
    Calls(CallClass),
    /// Page faults whose end was seen.
    Faults,
    /// Page faults without a recorded end: their length is an estimate.
    EstimatedFaults,
    /// Devices' interrupts.
    Devices,
    Softirqs,
    /// The CPUs' own interrupts: timers, calls of other CPUs.
    Vectors,
    KernelTasks,
    /// VMs' CPUs: guests' code, and the host's handling of their exits. Which of the two is not known.
    Vcpus,
    Idle,
    Unknown,
}

/// Classes that belong together, as they are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClassGroup {
    /// Programs' own code.
    User,
    FileCalls,
    ProcessCalls,
    MemoryCalls,
    OtherCalls,
    /// Page faults.
    Faults,
    Interrupts,
    KernelTasks,
    Vcpus,
    Idle,
    Unknown,
}

impl Class {
    /// The class of what a CPU executes.
    #[must_use]
    pub fn from_work(work: Work) -> Self {
        match work {
            Work::Idle => Self::Idle,
            Work::User => Self::User,
            Work::Syscall(number) => Self::Calls(syscall_class(number)),
            Work::Fault { estimated: false } => Self::Faults,
            Work::Fault { estimated: true } => Self::EstimatedFaults,
            Work::Interrupt(Interrupt::Device(_)) => Self::Devices,
            Work::Interrupt(Interrupt::Soft(_)) => Self::Softirqs,
            Work::Interrupt(Interrupt::Vector(_)) => Self::Vectors,
            Work::KernelTask => Self::KernelTasks,
            Work::Vcpu => Self::Vcpus,
            Work::Unknown => Self::Unknown,
        }
    }

    /// The group it is shown in.
    #[must_use]
    pub fn group(self) -> ClassGroup {
        match self {
            Self::User => ClassGroup::User,
            Self::Calls(CallClass::File) => ClassGroup::FileCalls,
            Self::Calls(CallClass::Process) => ClassGroup::ProcessCalls,
            Self::Calls(CallClass::Memory) => ClassGroup::MemoryCalls,
            Self::Calls(_) => ClassGroup::OtherCalls,
            Self::Faults | Self::EstimatedFaults => ClassGroup::Faults,
            Self::Devices | Self::Softirqs | Self::Vectors => ClassGroup::Interrupts,
            Self::KernelTasks => ClassGroup::KernelTasks,
            Self::Vcpus => ClassGroup::Vcpus,
            Self::Idle => ClassGroup::Idle,
            Self::Unknown => ClassGroup::Unknown,
        }
    }

    /// Its name in tables, JSON and CSV.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Calls(class) => class.name(),
            Self::Faults => "page faults",
            Self::EstimatedFaults => "page faults (estimated)",
            Self::Devices => "device interrupts",
            Self::Softirqs => "softirqs",
            Self::Vectors => "cpu interrupts",
            Self::KernelTasks => "kernel tasks",
            Self::Vcpus => "vcpus",
            Self::Idle => "idle",
            Self::Unknown => "unknown",
        }
    }

    /// Whether the kernel executes. Of a VM's CPU it is not known.
    #[must_use]
    pub fn is_kernel(self) -> bool {
        !matches!(self, Self::User | Self::Vcpus | Self::Idle | Self::Unknown)
    }
}

impl ClassGroup {
    /// In the order in which they are shown.
    pub const ALL: [Self; 11] = [
        Self::User,
        Self::FileCalls,
        Self::ProcessCalls,
        Self::MemoryCalls,
        Self::OtherCalls,
        Self::Faults,
        Self::Interrupts,
        Self::KernelTasks,
        Self::Vcpus,
        Self::Idle,
        Self::Unknown,
    ];

    /// Its name in tables, JSON and CSV.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::FileCalls => "file system calls",
            Self::ProcessCalls => "process system calls",
            Self::MemoryCalls => "memory system calls",
            Self::OtherCalls => "other system calls",
            Self::Faults => "page faults",
            Self::Interrupts => "interrupts",
            Self::KernelTasks => "kernel tasks",
            Self::Vcpus => "vcpus",
            Self::Idle => "idle",
            Self::Unknown => "unknown",
        }
    }
}

/// What to call an interrupt.
#[must_use]
pub fn interrupt_name(interrupt: Interrupt) -> String {
    match interrupt {
        Interrupt::Device(line) => format!("irq {line}"),
        Interrupt::Soft(number) => softirq_name(number),
        Interrupt::Vector(vector) => vector_name(vector).to_owned(),
    }
}

fn softirq_name(number: u32) -> String {
    const NAMES: [&str; 10] = [
        "hi", "timer", "net_tx", "net_rx", "block", "irq_poll", "tasklet", "sched", "hrtimer",
        "rcu",
    ];
    let name = usize::try_from(number).ok().and_then(|number| NAMES.get(number));
    name.map_or_else(|| format!("softirq {number}"), |name| format!("softirq {name}"))
}

fn vector_name(vector: Vector) -> &'static str {
    match vector {
        Vector::LocalTimer => "local timer",
        Vector::Reschedule => "reschedule",
        Vector::CallFunction => "call function",
        Vector::CallFunctionSingle => "call function single",
        Vector::IrqWork => "irq work",
        Vector::Other => "other vector",
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn work_has_a_class_and_a_group() {
        let check = |work, class: &str, group: &str| {
            let found = Class::from_work(work);
            assert_eq!((found.name(), found.group().name()), (class, group), "{work:?}");
        };
        check(Work::User, "user", "user");
        check(Work::Syscall(1), "file system calls", "file system calls");
        check(Work::Syscall(56), "process system calls", "process system calls");
        check(Work::Syscall(11), "memory system calls", "memory system calls");
        check(Work::Syscall(202), "ipc system calls", "other system calls");
        check(Work::Syscall(4000), "unnamed system calls", "other system calls");
        check(Work::Fault { estimated: false }, "page faults", "page faults");
        check(Work::Fault { estimated: true }, "page faults (estimated)", "page faults");
        check(Work::Interrupt(Interrupt::Soft(4)), "softirqs", "interrupts");
        check(Work::Interrupt(Interrupt::Device(9)), "device interrupts", "interrupts");
        check(Work::Interrupt(Interrupt::Vector(Vector::IrqWork)), "cpu interrupts", "interrupts");
        check(Work::KernelTask, "kernel tasks", "kernel tasks");
        check(Work::Vcpu, "vcpus", "vcpus");
        check(Work::Idle, "idle", "idle");
        check(Work::Unknown, "unknown", "unknown");
    }

    #[test]
    fn interrupts_have_names() {
        let check = |interrupt, name: &str| assert_eq!(interrupt_name(interrupt), name);
        check(Interrupt::Device(24), "irq 24");
        check(Interrupt::Soft(9), "softirq rcu");
        check(Interrupt::Soft(4_000_000_000), "softirq 4000000000");
        check(Interrupt::Vector(Vector::LocalTimer), "local timer");
    }
}
