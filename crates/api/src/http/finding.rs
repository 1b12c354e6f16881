//! Findings of the fleet: what changed, since when, why, and what to do. Each type stands for one of `detect`, and can be
//! made into it again, so that a program shows a server's findings as its own.
//!
//! Names of VMs, processes and functions are as guests and hosts chose them: who shows them has to escape them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::handled::{Acknowledgement, RefusedMessage, SilenceEntry};

/// Whether what was found is still so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FindingState {
    /// It is.
    Open,
    /// It is over, or has become normal.
    Over,
}

/// Something in the fleet is not as it was.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FindingEntry {
    /// 16 hexadecimal digits; on each server of a store the same.
    pub id: String,
    /// Whether it is still so.
    pub state: FindingState,
    /// When it was found, seconds since 1970.
    pub found_unix_s: u64,
    /// Since when it is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over_unix_s: Option<u64>,
    /// Who looks after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acknowledged: Option<Acknowledgement>,
    /// Why it is not sent; the silence that lasts longest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silenced: Option<SilenceEntry>,
    /// Messages of it that webhooks refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<RefusedMessage>,
    /// What it concerns: `HOST` or `HOST/VM`; at most eight. `changes` has the names one by one.
    pub places: Vec<String>,
    /// The cause as a sentence without its full stop.
    pub summary: String,
    /// The cause, what to do, and what changed, for people.
    pub text: String,
    /// Why.
    pub cause: FindingCause,
    /// The series that changed: what says most first, at most 64.
    pub changes: Vec<FindingChange>,
    /// How many more changed.
    pub more_changes: u64,
    /// What can be done, what gives back most first.
    pub advice: Vec<FindingAdvice>,
    /// A time to compare with: up to an hour before the change.
    pub before: TimeRange,
    /// A time to compare: from the change until it was over, or at most an hour after it was found.
    pub after: TimeRange,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FindingList {
    /// The newest first.
    pub findings: Vec<FindingEntry>,
    /// Windows that were looked at since the server's start.
    pub windows: u64,
    /// Of those, left out because later ones of their host came before.
    pub late: u64,
}

/// A range of time, seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TimeRange {
    /// From here on.
    pub from_unix_s: u64,
    /// Up to here, exclusive.
    pub to_unix_s: u64,
}

/// A function. What is not known is absent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FindingCode {
    /// Process name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub process: String,
    /// Path of its module, or a name in brackets.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub module: String,
    /// Its name.
    pub function: String,
}

/// A function as evidence, with the CPUs that it used when the cause was found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FindingFunction {
    /// Which.
    pub code: FindingCode,
    /// CPUs, on average over the window.
    pub cpus: f64,
}

/// Who had CPU time of a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", content = "name", rename_all = "kebab-case")]
pub enum FindingOwner {
    /// A VM: its guest, its VMM, its vhost threads.
    Vm(String),
    /// Processes of the host.
    Process(String),
    /// A thread of the host's kernel, without the number of its CPU.
    KernelThread(String),
    /// The CPU was idle.
    Idle,
    /// No sample says.
    Unknown,
}

/// An owner of CPU time, and how much of it he wants.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FindingDemand {
    /// Who.
    pub owner: FindingOwner,
    /// CPUs, on average.
    pub cpus: f64,
}

/// Build ids of a module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FindingBuild {
    /// Until the change.
    pub before: String,
    /// From then on.
    pub after: String,
}

/// A counter of lost data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FindingCounter {
    /// Its name in `health`.
    pub what: String,
    /// Its value in the window.
    pub count: u64,
}

/// Why, with the evidence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum FindingCause {
    /// A party takes the CPU from others.
    Thief {
        /// Who.
        owner: FindingOwner,
        /// Its part of the additional steal type 1, 0 to 1.
        part: f64,
        /// What he was running, the most expensive first.
        functions: Vec<FindingFunction>,
        /// He was not there before.
        is_new: bool,
    },
    /// The host's CPUs are wanted by more than they can serve, and no single owner is to blame.
    Overcommitted {
        /// CPUs wanted on average.
        wanted_cpus: f64,
        /// CPUs that there are.
        cpus: u32,
        /// Who wants most.
        owners: Vec<FindingDemand>,
        /// A VM that arrived when it began.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        arrived_vm: Option<String>,
    },
    /// A quota holds the VM back.
    Quota {
        /// CPUs that it would have used without, on average.
        wanted_cpus: f64,
        /// CPUs that it got.
        got_cpus: f64,
    },
    /// The guest makes the VMM work.
    Exits {
        /// The VM exit's reason.
        reason: String,
        /// Additional exits per second and vCPU; 0: exits are not counted.
        per_s: f64,
        /// Guest functions that exit, with the CPUs that the VMM spends on them.
        functions: Vec<FindingFunction>,
    },
    /// The guest halts for shorter than the host polls.
    HaltPolling,
    /// Guest code became more expensive.
    Function {
        /// Which.
        code: FindingCode,
        /// Threads wait for one another in it.
        is_lock: bool,
        /// It did not run before.
        is_new: bool,
        /// Its module is another build.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        build: Option<FindingBuild>,
        /// The function whose calls of it grew most, where call graphs say so.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        caller: Option<String>,
    },
    /// A process of the guest became more expensive, in no single function.
    Process {
        /// Its name.
        process: String,
        /// It did not run before.
        is_new: bool,
    },
    /// The host has another kernel.
    Kernel {
        /// The release before.
        before: String,
        /// And now.
        after: String,
    },
    /// Collection loses data.
    Collection {
        /// The counters that rose.
        counters: Vec<FindingCounter>,
    },
    /// Nothing comes from the host any more.
    Silent,
    /// The evidence does not say.
    Unknown,
}

/// What is measured in every window. All but exits are shares of 1.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum FindingMeasure {
    /// Samples that a host should have had and did not.
    SamplesMissing,
    /// A host's windows: they stopped.
    Windows,
    /// CPU time that VMs and processes of a host had or wanted, of its CPUs' time.
    Demand,
    /// A VM's time held back by a quota, of its vCPUs' time.
    Throttled,
    /// Steal type 1, of its vCPUs' time.
    StealOutside,
    /// VM exits per second and vCPU.
    Exits {
        /// For this reason.
        reason: String,
    },
    /// Steal type 2, of its vCPUs' time.
    StealVmm,
    /// The host polled for the end of halts, of its vCPUs' time.
    HaltPolling,
    /// Time of a function, of the time in which its guest ran.
    Function {
        /// Which.
        code: FindingCode,
    },
    /// The same of a process.
    Process {
        /// Its name.
        process: String,
    },
    /// Time in which the guest ran, of the time in which it wanted to.
    Useful,
}

/// A series that changed. Without a VM: of the host; without a host: of all VMs in which a function runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FindingChange {
    /// Which host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Which of its VMs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<String>,
    /// What the VM's manager knows of it, by name: `project`, `owner`, ...
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// What of it.
    pub measure: FindingMeasure,
    /// The same in words.
    pub what: String,
    /// Begin of the first window after the change, seconds since 1970.
    pub since_unix_s: u64,
    /// The change lies in this range with a probability of 95 %.
    pub onset: TimeRange,
    /// What is normal for it.
    pub before: f64,
    /// What it is now.
    pub after: f64,
    /// How sure it is: the change in standard errors, or in scales of what is normal.
    pub score: f64,
    /// What it costs in CPUs, on average.
    pub cpus: f64,
    /// It is over.
    pub is_over: bool,
}

/// What can be done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum FindingAction {
    /// Give a VM CPUs of its own: pin it and keep others off.
    Pin {
        /// Which.
        vm: String,
    },
    /// Move a VM to another host.
    Move {
        /// Which.
        vm: String,
    },
    /// Raise a VM's `cpu.weight`.
    RaiseWeight {
        /// Which.
        vm: String,
    },
    /// Limit what a process of the host may use, or run it elsewhere.
    Limit {
        /// Which.
        owner: FindingOwner,
    },
    /// Lower the host's `halt_poll_ns`.
    LowerHaltPoll,
    /// Raise a VM's quota (`cpu.max`).
    RaiseQuota {
        /// Which.
        vm: String,
    },
    /// Make this function cheaper, or go back to the build before.
    Fix {
        /// Which.
        code: FindingCode,
    },
    /// Have the guest exit less.
    AvoidExits {
        /// For this reason.
        reason: String,
    },
    /// Look at the agent of a host.
    CheckAgent {
        /// Which.
        host: String,
    },
}

/// What can be done, with the figure behind it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FindingAdvice {
    /// What.
    pub action: FindingAction,
    /// The same in words.
    pub text: String,
    /// CPUs that it would give back, on average; 0: not known.
    pub cpus: f64,
}
