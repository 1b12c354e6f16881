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
    Process { name: String, pid: Pid },
    /// The host's kernel, by its task's name.
    Kernel(String),
    /// Idle, or not known.
    Unknown,
}

/// Who the host's tasks are to one of its VMs.
#[derive(Debug)]
pub struct Thieves<'a> {
    tables: &'a TraceTables,
    machine: MachineId,
    host: &'a Timeline,
    processes: Processes<'a>,
}

impl<'a> Thieves<'a> {
    /// Those of the VM `machine`.
    #[must_use]
    pub fn new(tables: &'a TraceTables, machine: MachineId, host: &'a Timeline) -> Self {
        Self { tables, machine, host, processes: Processes::new(host) }
    }

    /// Who stole the time, most first; adds up to it.
    #[must_use]
    pub fn sums(&self, share: &Share) -> Vec<(Thief, u64)> {
        let mut sums: BTreeMap<Thief, u64> = BTreeMap::new();
        for (by, ns) in &share.stolen {
            let sum = sums.entry(self.who(*by)).or_default();
            *sum = sum.saturating_add(*ns);
        }
        let mut sums: Vec<_> = sums.into_iter().collect();
        sums.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
        sums
    }

    /// Classifies a task of the host that had the pCPU.
    #[must_use]
    pub fn who(&self, by: Option<TaskId>) -> Thief {
        let known = by.and_then(|by| Some((by, self.host.tasks.get(by.index())?)));
        let Some((by, task)) = known else { return Thief::Unknown };
        if task.kernel {
            return Thief::Kernel(task.name().to_owned());
        }
        let machines = &self.tables.machines;
        if let Some(vm) = machines.iter().position(|row| row.vm_process == Some(task.pid)) {
            let threads = &machines[vm].vcpu_threads;
            let vcpu = threads.iter().position(|thread| *thread == task.tid).map(u32::try_from);
            return match vcpu {
                _ if vm != self.machine.index() => Thief::Vm(machines[vm].name.clone()),
                Some(Ok(vcpu)) => Thief::OwnVcpu(vcpu),
                _ => Thief::OwnVmm,
            };
        }
        let leader = self.host.tasks.get(self.processes.leader_of(by).index()).unwrap_or(task);
        Thief::Process { name: leader.name().to_owned(), pid: task.pid }
    }
}

impl fmt::Display for Thief {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OwnVcpu(number) => write!(f, "its own vCPU {number}"),
            Self::OwnVmm => write!(f, "its own VMM"),
            Self::Vm(name) => write!(f, "VM {name}"),
            Self::Process { name, pid } => write!(f, "{name} ({pid})"),
            Self::Kernel(name) => write!(f, "[{name}]"),
            Self::Unknown => write!(f, "idle, or not known"),
        }
    }
}
