//! System calls on x86-64: their names, from the crate `syscalls`, and their classes.

use std::collections::HashMap;
use std::sync::LazyLock;

use syscalls::x86_64::Sysno;

use CallClass::{File, Ipc, Memory, Network, Poll, Process, Signal, System, Time};

/// What a system call is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CallClass {
    /// Files, directories, mounts, devices, asynchronous I/O.
    File,
    /// Processes and threads: making, ending, waiting for them, their rights and scheduling.
    Process,
    Memory,
    /// Sockets.
    Network,
    /// Pipes, futexes, message queues, semaphores, shared memory, events.
    Ipc,
    /// poll, select, epoll.
    Poll,
    /// Clocks, timers, sleeping.
    Time,
    Signal,
    /// The system as a whole: modules, keys, BPF, performance events...
    System,
    /// A number without a name.
    Unknown,
}

/// The name of a system call; `None` if the number has none.
#[must_use]
pub fn syscall_name(number: u16) -> Option<&'static str> {
    Sysno::new(usize::from(number)).map(|call| call.name())
}

/// The number of a system call on x86-64.
pub(crate) fn syscall_number(name: &str) -> Option<u16> {
    let call: Sysno = name.parse().ok()?;
    u16::try_from(call.id()).ok()
}

/// The name of a system call, or `syscall N`.
#[must_use]
pub fn syscall_label(number: u16) -> String {
    syscall_name(number).map_or_else(|| format!("syscall {number}"), str::to_owned)
}

/// The class of a system call.
#[must_use]
pub fn syscall_class(number: u16) -> CallClass {
    static CLASSES: LazyLock<HashMap<&str, CallClass>> = LazyLock::new(|| rows().collect());
    let class = syscall_name(number).and_then(|name| CLASSES.get(name));
    class.copied().unwrap_or(CallClass::Unknown)
}

/// Each system call's name with its class. A unit test checks that no line is malformed.
fn rows() -> impl Iterator<Item = (&'static str, CallClass)> {
    let lines = include_str!("syscall_classes.tsv").lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_once('\t')).flat_map(|(class, names)| {
        let class = CallClass::from_table(class);
        names.split(' ').map(move |name| (name, class))
    })
}

impl CallClass {
    fn from_table(word: &str) -> Self {
        match word {
            "file" => File,
            "process" => Process,
            "memory" => Memory,
            "network" => Network,
            "ipc" => Ipc,
            "poll" => Poll,
            "time" => Time,
            "signal" => Signal,
            "system" => System,
            _ => Self::Unknown,
        }
    }

    /// Its name in tables, JSON and CSV.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            File => "file system calls",
            Process => "process system calls",
            Memory => "memory system calls",
            Network => "network system calls",
            Ipc => "ipc system calls",
            Poll => "poll system calls",
            Time => "time system calls",
            Signal => "signal system calls",
            System => "administrative system calls",
            Self::Unknown => "unnamed system calls",
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn every_named_call_has_one_class() {
        let named: Vec<&str> = (0..1024).filter_map(syscall_name).collect();
        assert!(380 < named.len());
        for name in &named {
            let classes: Vec<CallClass> =
                rows().filter(|(row, _)| row == name).map(|(_, class)| class).collect();
            assert!(
                matches!(classes[..], [class] if class != CallClass::Unknown),
                "{name}: {classes:?}"
            );
        }
        let unknown: Vec<_> = rows().filter(|(name, _)| !named.contains(name)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }

    #[test]
    fn names_and_classes() {
        let check = |number, name: &str, class| {
            assert_eq!((syscall_label(number).as_str(), syscall_class(number)), (name, class));
        };
        check(0, "read", File);
        check(9, "mmap", Memory);
        check(23, "select", Poll);
        check(35, "nanosleep", Time);
        check(45, "recvfrom", Network);
        check(58, "vfork", Process);
        check(62, "kill", Signal);
        check(202, "futex", Ipc);
        check(321, "bpf", System);
        check(452, "fchmodat2", File);
        check(462, "mseal", Memory);
        check(400, "syscall 400", CallClass::Unknown);
        check(u16::MAX, "syscall 65535", CallClass::Unknown);
    }
}
