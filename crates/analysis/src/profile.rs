//! A profile: the answer to a query.

use std::collections::BTreeMap;

use model::{Header, Note, StackEnd, TimeAccount, TimeClass, Vm};

use crate::steal::Accounts;
use crate::{Query, Unsampled, VmNodes};

/// Who used the time. The rows, with `other`, add up to `total`.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    pub query: Query,
    /// The VM's name, when one was requested.
    pub vm: Option<String>,
    /// What it was queried of.
    pub header: Header,
    pub vms: Vec<VmSummary>,
    /// Samples, including those expected of a guest and not seen.
    pub total: u64,
    /// The total by what ran.
    pub shares: Shares,
    /// Most samples first, then by label.
    pub rows: Vec<Row>,
    /// What `Query::limit` cut off.
    pub other: Other,
    /// By node: what the VMs have on the nodes.
    pub nodes: Vec<VmNodes>,
    /// VMs that have fewer samples than CPU time, as far as the timelines were read.
    pub unsampled: Vec<Unsampled>,
    /// How complete guests' call stacks are; `None`: the recording has none.
    pub guest_stacks: Option<GuestStacks>,
    /// Samples without a name, by reason; most first.
    pub unresolved: Vec<Unresolved>,
    /// Counters of the recording that are not zero.
    pub counters: BTreeMap<String, u64>,
    /// The recording's notes, then the report's own.
    pub notes: Vec<Note>,
}

/// How complete the call stacks of guests' samples are.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GuestStacks {
    /// Samples in user mode: all, and those whose stack reaches the first function of its process or thread.
    pub user: (u64, u64),
    /// Samples in kernel mode: all, and those whose stack reaches the entry from user mode, or the kernel's first function.
    pub kernel: (u64, u64),
    /// Why the others end early; `None`: no stack was taken.
    pub ends: BTreeMap<Option<StackEnd>, u64>,
}

impl GuestStacks {
    pub(crate) fn add(&mut self, is_kernel: bool, end: Option<StackEnd>) {
        let (all, whole) = if is_kernel { &mut self.kernel } else { &mut self.user };
        *all += 1;
        if end.is_some_and(StackEnd::is_whole) {
            *whole += 1;
        } else {
            *self.ends.entry(end).or_default() += 1;
        }
    }
}

/// A VM of the recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmSummary {
    /// Its row of the tables.
    pub vm: Vm,
    pub n_vcpus: usize,
}

/// Samples by what ran; the fields add up to `Profile::total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Shares {
    /// Kernel: the host's; in the guest view the guest's.
    pub os: u64,
    /// User code: the host's, the VMMs' included; in the guest view the guest's.
    pub user: u64,
    /// An interrupted guest (not in the guest view).
    pub vm: u64,
    /// The host's idle task.
    pub idle: u64,
    /// Guest view: what vCPUs did while no sample saw them run their guest, also at a privilege level that is not known.
    pub unseen: Accounts,
    /// Guest view: they could run, and another vCPU of the same VM had the CPU.
    pub steal_own_vcpu: u64,
}

impl Shares {
    /// The sum of all shares.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.os + self.user + self.vm + self.idle + self.unseen.total() + self.steal_own_vcpu
    }

    /// Type 1 and type 2.
    #[must_use]
    pub fn steal(&self) -> u64 {
        let stolen = TimeAccount::ALL.into_iter().filter(|of| of.class() == TimeClass::Stolen);
        stolen.map(|account| self.unseen.get(account)).sum::<u64>() + self.steal_own_vcpu
    }
}

/// A row of the profile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub samples: u64,
    pub label: Label,
}

/// What a line stands for; only the fields that `Query::by` asks for are set.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Label {
    /// Function, or what stands for it: `(stripped)`, `[unknown]`, `[vmname]`, a side's `line`.
    pub function: Option<String>,
    /// Process name, or `[kernel]`, `[idle]`, `[unknown]`, `[vmname]`.
    pub process: Option<String>,
    /// Process id in its owner's numbering.
    pub pid: Option<u32>,
    pub thread: Option<String>,
    /// Thread id in its owner's numbering.
    pub tid: Option<u32>,
    /// Module path or bracketed name.
    pub module: Option<String>,
    /// Offset in the module, for code without symbols.
    pub offset: Option<u64>,
    /// The VM, of a guest or VMM line.
    pub vm: Option<String>,
    /// Whose time it is; not set by physical CPU.
    pub side: Option<Side>,
    /// Physical CPU.
    pub cpu: Option<u32>,
    /// vCPU (by CPU in the guest view).
    pub vcpu: Option<u32>,
    /// NUMA node of the physical CPU.
    pub node: Option<u32>,
}

/// Who the time of a label belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    Guest,
    /// Of a VM's own process on the host: QEMU, and KVM for it.
    Vmm,
    /// The rest of the host.
    Host,
    /// The host's idle task.
    Idle,
    /// A guest's, without a sample of it.
    Unseen(TimeAccount),
    /// A guest's: it could run, and another vCPU of the same VM had the CPU.
    StealOwnVcpu {
        /// The other's number.
        thief: u32,
    },
}

impl Side {
    /// Its name in CSV and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Guest => "guest",
            Self::Vmm => "vmm",
            Self::Host => "host",
            Self::Idle => "idle",
            Self::Unseen(account) => account.name(),
            Self::StealOwnVcpu { .. } => "steal_own_vcpu",
        }
    }

    /// What stands for a function where no sample says one.
    #[must_use]
    pub fn line(self) -> Option<String> {
        match self {
            Self::Guest | Self::Vmm | Self::Host | Self::Idle => None,
            Self::Unseen(account) => Some(account.line().to_owned()),
            Self::StealOwnVcpu { thief } => Some(format!("[ steal ] (on vcpu{thief})")),
        }
    }

    /// The vCPU of the same VM that had the CPU.
    #[must_use]
    pub fn thief_vcpu(self) -> Option<u32> {
        match self {
            Self::StealOwnVcpu { thief } => Some(thief),
            _ => None,
        }
    }
}

/// The rows that the limit cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Other {
    pub rows: usize,
    pub samples: u64,
}

/// Samples without the name of a function or a process.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unresolved {
    /// What has no name.
    pub what: Unnamed,
    /// A VM's name, or `host`.
    pub subject: String,
    /// The function's module, when that is known.
    pub module: Option<String>,
    pub reason: String,
    pub samples: u64,
}

/// What has no name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unnamed {
    /// The function: its module was read and has no symbol there.
    Stripped,
    /// The function, for another reason.
    Function,
    /// The function has a name, its process none.
    Process,
}
