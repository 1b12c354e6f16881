//! One window of one host, as much of it as detection needs: a few hundred numbers instead of ten thousand rows.
//!
//! Names come from guests and host processes. They are cut to [`NAME_BYTES`], and of everything that they can multiply
//! (functions, thieves, processes) the most expensive are kept and the rest is added up. A summary of a host with
//! [`MAX_VMS`] VMs takes at most 64 KiB per VM.

use std::collections::{BTreeMap, BTreeSet};

use model::{Tables, ThiefKind, TimeClass, VcpuTimeRow, VcpuTimeState};
use serde::{Deserialize, Serialize};

/// Bytes of a name at most.
pub const NAME_BYTES: usize = 160;
/// VMs of a host at most; those with the first names are kept.
pub const MAX_VMS: usize = 512;
/// Functions of a VM, or of an owner of host CPU time, at most.
pub const MAX_FUNCTIONS: usize = 48;
/// Callers of a VM's functions at most.
pub const MAX_CALLERS: usize = 96;
/// Thieves of a VM, exit reasons of a VM, owners of host CPU time, at most.
pub const MAX_OTHERS: usize = 24;
/// A function of a program. Unknown texts are empty.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Code {
    pub process: String,
    /// Path of its module, or a name in brackets.
    pub module: String,
    pub function: String,
}

/// An owner of the host's CPU time. Process ids are left out: a process that starts again is the same owner.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Owner {
    /// A VM: its guest, its VMM, its vhost threads.
    Vm(String),
    /// Processes of the host, by name.
    Process(String),
    /// A thread of the host's kernel, by name, without the number of its CPU.
    KernelThread(String),
    /// None: the CPU was idle, and the vCPU on its way to it.
    Idle,
    /// No sample says.
    Unknown,
}

impl Owner {
    /// The thief of a row. `None`: it has none.
    #[must_use]
    pub fn of_thief(row: &VcpuTimeRow) -> Option<Self> {
        let Some(thief) = &row.thief_is else {
            return Some(Self::from_text(row.thief.as_deref()?, row.thief_vm.as_deref()));
        };
        if let Some(vm) = &row.thief_vm {
            return Some(Self::Vm(bounded(vm)));
        }
        Some(match (thief.kind, &thief.name) {
            (ThiefKind::Process, Some(name)) => Self::Process(bounded(name)),
            (ThiefKind::KernelThread, Some(name)) => Self::KernelThread(without_cpu(name)),
            (ThiefKind::Idle, _) => Self::Idle,
            _ => Self::Unknown,
        })
    }

    /// Of tables of version 0.2 and before: from a name of the column `thief` (`web vcpu0`, `postgres (300)`,
    /// `[ksoftirqd/0] (14)`, `[idle]`), and `thief_vm`.
    fn from_text(thief: &str, vm: Option<&str>) -> Self {
        if let Some(vm) = vm {
            return Self::Vm(bounded(vm));
        }
        let name = thief.rsplit_once(" (").map_or(thief, |(name, _)| name);
        match name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
            Some("idle") => Self::Idle,
            Some("unknown") => Self::Unknown,
            Some(thread) => Self::KernelThread(without_cpu(thread)),
            None => Self::Process(bounded(name)),
        }
    }

    /// Its name, without what it is.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Vm(name) | Self::Process(name) | Self::KernelThread(name) => name,
            Self::Idle => "[idle]",
            Self::Unknown => "[unknown]",
        }
    }
}

/// Time of a function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionTime {
    pub code: Code,
    /// In the guest's states: its time without stolen time.
    pub ns: u64,
}

/// Time of a function in calls from another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallerTime {
    pub code: Code,
    /// The function that called it.
    pub caller: String,
    pub ns: u64,
}

/// VM exits of one reason.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ExitUse {
    /// How many; 0 where they were not counted.
    pub count: u64,
    /// How long the VMM worked or waited for them.
    pub ns: u64,
    /// Guest functions that caused them, the most expensive first.
    pub functions: Vec<FunctionTime>,
}

/// What an owner did with the host's CPUs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct OwnerUse {
    pub ns: u64,
    /// Its functions, the most expensive first.
    pub functions: Vec<FunctionTime>,
}

/// A VM in a window.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct VmSummary {
    pub vcpus: u32,
    /// Time of all its vCPUs by state.
    pub states: BTreeMap<VcpuTimeState, u64>,
    /// Its functions, the most expensive first.
    pub functions: Vec<FunctionTime>,
    /// Who calls its functions, the most expensive first; from windows with call graphs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub callers: Vec<CallerTime>,
    /// Time in the guest's states by process.
    pub processes: BTreeMap<String, u64>,
    /// Who had the CPU while it waited for one.
    pub thieves: BTreeMap<Owner, u64>,
    pub exits: BTreeMap<String, ExitUse>,
    /// Build ids of modules whose code ran, where they are known.
    pub builds: BTreeMap<String, String>,
    /// Other VMs under a CPU quota of its own. Result tables don't tell.
    #[serde(default)]
    pub same_quota: BTreeSet<String>,
    /// What its manager knows of it, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

impl VmSummary {
    /// Time in a state.
    #[must_use]
    pub fn ns(&self, state: VcpuTimeState) -> u64 {
        self.states.get(&state).copied().unwrap_or(0)
    }

    /// Time in any of these states.
    #[must_use]
    pub fn ns_in(&self, states: &[VcpuTimeState]) -> u64 {
        states.iter().map(|state| self.ns(*state)).sum()
    }

    /// Time in the states that count in this way.
    #[must_use]
    pub fn ns_of(&self, class: TimeClass) -> u64 {
        let states = self.states.iter().filter(|(state, _)| state.account().class() == class);
        states.map(|(_, ns)| ns).sum()
    }

    /// All time of its vCPUs.
    #[must_use]
    pub fn total_ns(&self) -> u64 {
        self.states.values().sum()
    }

    /// Time that the guest ran.
    #[must_use]
    pub fn guest_ns(&self) -> u64 {
        self.ns_of(TimeClass::Running)
    }

    /// Time that it had a CPU or waited for its VMM.
    #[must_use]
    pub fn used_ns(&self) -> u64 {
        self.guest_ns() + self.ns_in(&[VcpuTimeState::StealVmm, VcpuTimeState::StealVmmWaiting])
    }

    /// Time that it had or wanted a CPU.
    #[must_use]
    pub fn demand_ns(&self) -> u64 {
        let states = self.states.iter().filter(|(state, _)| state.is_apparent());
        states.map(|(_, ns)| ns).sum()
    }
}

/// A window of a host.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Summary {
    /// The name under which the host is enrolled.
    pub host: String,
    /// The host's boot id.
    pub boot: String,
    /// First instant, `CLOCK_MONOTONIC` of that boot.
    pub window_ns: u64,
    /// First instant, s since 1970.
    pub start_s: u32,
    pub length_ns: u64,
    /// CPUs that were sampled.
    pub cpus: u32,
    /// The kernel's release.
    pub kernel: String,
    /// Time between two samples of a CPU.
    pub period_ns: u64,
    pub samples: u64,
    /// Samples taken and lost, and interrupts that never came.
    pub samples_missing: u64,
    pub vms: BTreeMap<String, VmSummary>,
    /// Who had the host's CPUs: VMs, and by name processes and kernel threads, which are not distinguished here.
    pub owners: BTreeMap<Owner, OwnerUse>,
    /// What was lost while the window was collected.
    pub health: BTreeMap<String, u64>,
}

impl Summary {
    /// Takes in which VMs share a quota, from a recording's tables; of many VMs those that had most CPU time.
    pub fn take_quotas(&mut self, tables: &Tables) {
        let mut by_quota = BTreeMap::<u32, BTreeSet<String>>::new();
        for member in &tables.quota_members {
            let name = tables.vms.get(member.vm.index()).map(|vm| bounded(&vm.name));
            if let Some(name) = name.filter(|name| self.vms.contains_key(name)) {
                by_quota.entry(member.quota).or_default().insert(name);
            }
        }
        for vms in by_quota.values() {
            let mut most: Vec<&String> = vms.iter().collect();
            most.sort_by_key(|vm| std::cmp::Reverse(self.vms[*vm].used_ns()));
            most.truncate(MAX_OTHERS);
            for vm in vms {
                let Some(summary) = self.vms.get_mut(vm) else { continue };
                let others = most.iter().filter(|other| **other != vm);
                summary.same_quota.extend(others.map(|other| (*other).clone()));
            }
        }
    }

    /// What an owner did with the host's CPUs.
    #[must_use]
    pub fn owner_use(&self, owner: &Owner) -> Option<&OwnerUse> {
        match owner {
            Owner::KernelThread(name) => self.owners.get(&Owner::Process(name.clone())),
            owner => self.owners.get(owner),
        }
    }
}

/// `ksoftirqd/3` is `ksoftirqd`, `kworker/3:1H-kblockd` is `kworker`: there is one for each CPU.
pub(crate) fn without_cpu(thread: &str) -> String {
    bounded(thread.split_once('/').map_or(thread, |(name, _)| name))
}

/// The beginning of a name that may be of any length.
pub(crate) fn bounded(name: &str) -> String {
    let mut end = name.len().min(NAME_BYTES);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name[..end].to_owned()
}
