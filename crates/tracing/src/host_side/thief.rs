//! Who took pCPUs from a guest.

use std::collections::BTreeMap;
use std::fmt;

use model::{MachineId, Pid, TraceTables};

use super::Share;
use crate::processes::Processes;
use crate::timeline::{TaskId, Timeline};

/// Who had a pCPU that a vCPU waited for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Thief {
    /// Another vCPU of the same VM, by its number.
    OwnVcpu(u32),
    /// Another thread of the same VM's process.
    OwnVmm,
    /// Another VM of the trace, by its name.
    Vm(String),
    /// Any other process of the host.
    Process {
        /// Its name.
        name: String,
        /// Its id.
        pid: Pid,
    },
    /// The host's kernel, by its task's name.
    Kernel(String),
    /// Nobody, or not known.
    Nobody,
}

/// Who stole the time, most first; adds up to it.
#[must_use]
pub fn thieves(
    tables: &TraceTables,
    machine: MachineId,
    host: &Timeline,
    share: &Share,
) -> Vec<(Thief, u64)> {
    if share.stolen.is_empty() {
        return Vec::new();
    }
    let processes = Processes::new(host);
    let mut sums: BTreeMap<Thief, u64> = BTreeMap::new();
    for (by, ns) in &share.stolen {
        let by = by.map_or(Thief::Nobody, |by| thief(tables, machine, host, &processes, by));
        let sum = sums.entry(by).or_default();
        *sum = sum.saturating_add(*ns);
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
    sums
}

fn thief(
    tables: &TraceTables,
    machine: MachineId,
    host: &Timeline,
    processes: &Processes<'_>,
    by: TaskId,
) -> Thief {
    let Some(task) = host.tasks.get(by.index()) else { return Thief::Nobody };
    let vm = tables.machines.iter().position(|row| row.vm_process == Some(task.pid));
    if let Some(row) = vm.map(|vm| &tables.machines[vm])
        && !task.kernel
    {
        let vcpu = row.vcpu_threads.iter().position(|thread| *thread == task.tid);
        return match (vm == Some(machine.index()), vcpu.map(u32::try_from)) {
            (true, Some(Ok(vcpu))) => Thief::OwnVcpu(vcpu),
            (true, _) => Thief::OwnVmm,
            (false, _) => Thief::Vm(row.name.clone()),
        };
    }
    if task.kernel {
        return Thief::Kernel(task.name().to_owned());
    }
    let leader = host.tasks.get(processes.of(by).index()).unwrap_or(task);
    Thief::Process { name: leader.name().to_owned(), pid: task.pid }
}

impl fmt::Display for Thief {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OwnVcpu(number) => write!(f, "its own vCPU {number}"),
            Self::OwnVmm => write!(f, "its own VMM"),
            Self::Vm(name) => write!(f, "VM {name}"),
            Self::Process { name, pid } => write!(f, "{name} ({pid})"),
            Self::Kernel(name) => write!(f, "[{name}]"),
            Self::Nobody => write!(f, "nobody, or not known"),
        }
    }
}
