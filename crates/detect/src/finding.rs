//! What was found: findings, their causes, the evidence and what to do.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::cause::is_lock;
use crate::{Code, Owner};

/// The name of a finding: the same windows give the same one on every server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FindingId(pub u64);

impl std::fmt::Display for FindingId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A text that names no finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadFindingId;

impl std::fmt::Display for BadFindingId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a finding's id has 16 hexadecimal digits (0-9, a-f)")
    }
}

impl std::error::Error for BadFindingId {}

impl std::str::FromStr for FindingId {
    type Err = BadFindingId;

    /// Only of what `Display` writes: each finding has one name.
    fn from_str(text: &str) -> Result<Self, BadFindingId> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if text.len() != 16 || !text.bytes().all(is_digit) {
            return Err(BadFindingId);
        }
        u64::from_str_radix(text, 16).map(Self).map_err(|_| BadFindingId)
    }
}

/// A measure of every window.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Measure {
    /// Share of the samples that a host should have had and did not.
    SamplesMissing,
    /// A host's windows: they stopped.
    Windows,
    /// CPU time that VMs and processes of a host had or wanted, as a share of its CPUs' time.
    Demand,
    /// A VM's time held back by a quota, as a share of its vCPUs' time.
    Throttled,
    /// Steal type 1, as a share of its vCPUs' time.
    StealOutside,
    /// VM exits of a reason per second and vCPU.
    Exits(String),
    /// Steal type 2, as a share of its vCPUs' time.
    StealVmm,
    /// The host polled for the end of halts, as a share of its vCPUs' time.
    HaltPolling,
    /// Time of a function, as a share of the time in which its guest ran.
    Function(Code),
    /// The same of a process.
    Process(String),
    /// Time that the guest ran, as a share of its demand.
    Useful,
}

impl Measure {
    /// Whether it is time that a VM wanted and did not have.
    pub(crate) fn is_loss(&self) -> bool {
        matches!(self, Self::Throttled | Self::StealOutside | Self::StealVmm | Self::HaltPolling)
    }

    /// Whether it is of code of a guest.
    pub(crate) fn is_code(&self) -> bool {
        matches!(self, Self::Function(_) | Self::Process(_))
    }
}

/// A series of a fleet. Without a VM: of the host; without a host: of all VMs in which a function runs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SeriesName {
    pub host: Option<String>,
    pub vm: Option<String>,
    pub measure: Measure,
}

/// A series that changed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Symptom {
    pub series: SeriesName,
    /// What is known of its VM when it is found, by name: `project`, `owner`, ...
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Begin of the first window after the change, s since 1970.
    pub began_s: u32,
    /// The change lies between these with a probability of 95 %.
    pub interval_s: (u32, u32),
    /// What is normal for it.
    pub before: f64,
    pub after: f64,
    /// How sure it is: the change in standard errors, or in scales of what is normal.
    pub score: f64,
    /// What it costs in CPUs, on average.
    pub cpus: f64,
    pub is_over: bool,
}

/// What caused a symptom.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Cause {
    /// A party takes the CPU from others.
    Thief {
        owner: Owner,
        /// Its part of the additional steal type 1, 0 to 1.
        part: f64,
        /// What he was running, with CPUs, the most expensive first.
        functions: Vec<(Code, f64)>,
        /// He was not there before.
        is_new: bool,
    },
    /// The host's CPUs are wanted by more than they can serve, and no single owner is to blame.
    Overcommitted {
        /// CPUs wanted on average.
        wanted: f64,
        cpus: u32,
        /// Who wants most, with CPUs.
        owners: Vec<(Owner, f64)>,
        /// A VM that arrived when it began.
        arrived: Option<String>,
    },
    /// A quota holds the VM back.
    Quota {
        /// CPUs that it would have used without, on average.
        wanted: f64,
        /// CPUs that it got.
        got: f64,
        /// Other VMs under the same quota, with the CPUs that they had, the most first; where that is known.
        #[serde(default)]
        others: Vec<(String, f64)>,
    },
    /// The guest makes the VMM work.
    Exits {
        reason: String,
        /// How many more each second, where they are counted.
        per_s: f64,
        /// Guest functions that exit, with the CPUs that the VMM spends on them.
        functions: Vec<(Code, f64)>,
    },
    /// The guest halts for shorter than the host polls.
    HaltPolling,
    /// Guest code became more expensive.
    Function {
        code: Code,
        /// It is in the guest's lock code: threads wait for one another.
        is_lock: bool,
        /// It did not run before.
        is_new: bool,
        /// Build ids of its module before and after, if they changed.
        build: Option<(String, String)>,
        /// The function whose calls of it grew most, where call graphs say so.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        caller: Option<String>,
    },
    /// A process of the guest became more expensive, in no single function.
    Process {
        process: String,
        /// It did not run before.
        is_new: bool,
    },
    /// The host has another kernel.
    Kernel { before: String, after: String },
    /// Collection loses data: the counters that rose.
    Collection(Vec<(String, u64)>),
    /// Nothing comes from the host any more.
    Silent,
    /// The evidence does not say.
    Unknown,
}

/// Advice.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Action {
    /// Give a VM CPUs of its own: pin it and keep others off.
    Pin(String),
    /// Move a VM, or a thief, to another host.
    Move(String),
    /// Raise a VM's `cpu.weight`.
    RaiseWeight(String),
    /// Limit what a process of the host may use, or run it elsewhere.
    Limit(Owner),
    /// Lower the host's `halt_poll_ns`.
    LowerHaltPoll,
    /// Raise the VM's quota (`cpu.max`).
    RaiseQuota(String),
    /// Make this function cheaper, or go back to the build before.
    Fix(Code),
    /// Have the guest exit less for this reason.
    AvoidExits(String),
    /// Look at the agent of the host.
    CheckAgent(String),
}

/// Advice with the figure behind it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Advice {
    pub action: Action,
    /// CPUs that it would give back, on average.
    pub cpus: f64,
}

/// Something is not as it was.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    pub id: FindingId,
    /// The windows until this one were seen when it was found, s since 1970.
    pub found_s: u32,
    pub cause: Cause,
    /// What changed, what says most first. At most [`MAX_SYMPTOMS`].
    pub symptoms: Vec<Symptom>,
    /// How many more changed.
    pub n_more: usize,
    /// What can be done, what gives back most first.
    pub advice: Vec<Advice>,
}

/// Symptoms of a finding at most.
pub const MAX_SYMPTOMS: usize = 64;

/// What happened to findings.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// There is a new one.
    Opened(Finding),
    /// Its cause or its symptoms changed.
    Updated(Finding),
    /// All its symptoms are over, or have become normal.
    Resolved(FindingId),
}

impl Cause {
    /// Of a function that grew in many VMs.
    pub(crate) fn in_pool(measure: &Measure) -> Self {
        let Measure::Function(code) = measure else { return Self::Unknown };
        Self::Function {
            code: code.clone(),
            is_lock: is_lock(code),
            is_new: false,
            build: None,
            caller: None,
        }
    }
}
