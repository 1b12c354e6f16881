//! The JSON of `vmscope steal`, `vmscope exits` and `vmscope correct`, described for its readers in docs/steal.md.
//!
//! Stable: within a version fields are only added. Times are ns, shares are fractions of 1.

use serde::{Deserialize, Serialize};

/// Version of these formats.
pub const VERSION: u32 = 1;

/// `vmscope steal`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Steal {
    /// `VERSION` of the writer.
    pub version: u32,
    /// What it was asked of.
    pub recording: Recording,
    /// Each VM asked for. Together their vCPUs' thieves are the matrix of victims and thieves.
    pub vms: Vec<Vm>,
}

/// What a command was asked of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recording {
    /// The host's name.
    pub hostname: String,
    /// The host's kernel release.
    pub kernel: String,
    /// `amd`, `intel` or `other`: how to read exit reasons.
    pub vendor: String,
    /// Time between samples of one CPU.
    pub period_ns: u64,
    /// Time covered.
    pub duration_ns: u64,
    /// How gaps' edges were found: `samples` or `switches`.
    pub edges: String,
    /// False: the writer did not finish, the end is missing.
    pub complete: bool,
    /// What the reader should know.
    pub notes: Vec<String>,
}

/// A VM's time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Vm {
    /// Its name.
    pub name: String,
    /// Its VMM's process id on the host.
    pub pid: u32,
    /// All of its vCPUs together.
    pub time: Time,
    /// Each of them.
    pub vcpus: Vec<Vcpu>,
    /// `process` or `function` when `--by` asked for victims.
    pub by: Option<String>,
    /// Most time taken first. With `unattributed` they add up to the VM's two types of steal and throttling.
    pub victims: Vec<Victim>,
    /// Taken from the VM, not known from which of its victims.
    pub unattributed: Option<Stolen>,
}

/// A vCPU's time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Vcpu {
    /// Its number in the VM.
    pub number: u32,
    /// The host thread that runs it.
    pub tid: u32,
    /// What it went to.
    pub time: Time,
}

/// What time went to. All but `wall_ns` and the lists add up to `wall_ns`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Time {
    /// All.
    pub wall_ns: u64,
    /// The guest ran.
    pub guest_ns: u64,
    /// Asleep after a halt.
    pub halt_ns: u64,
    /// The host polled for the end of a halt.
    pub halt_polling_ns: u64,
    /// Type 1: it could run, and somebody else had the CPU.
    pub steal_outside_ns: u64,
    /// Type 2: in the VMM.
    pub steal_vmm_ns: u64,
    /// Held back by a CPU quota.
    pub throttled_ns: u64,
    /// On a CPU, and no sample says doing what.
    pub not_sampled_ns: u64,
    /// Not known.
    pub unknown_ns: u64,
    /// Type 1 by who had the CPU; adds up to `steal_outside_ns`.
    pub thieves: Vec<Thief>,
    /// Type 2 by exit reason; adds up to `steal_vmm_ns`.
    pub reasons: Vec<Reason>,
    /// The part of type 2 that was the host's interrupts.
    pub interrupts_ns: u64,
}

/// Who had the CPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Thief {
    /// `vcpu`, `vmm_thread`, `vhost`, `process`, `kernel_thread`, `idle` (nobody: on the way to an idle CPU) or
    /// `unknown`.
    pub kind: String,
    /// As in text.
    pub name: String,
    /// The VM that it belongs to.
    pub vm: Option<String>,
    /// How long.
    pub ns: u64,
    /// Of the victim's time.
    pub share: f64,
}

/// Time in the VMM by exit reason.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reason {
    /// The vendor's number; null: not known.
    pub reason: Option<u32>,
    /// As in text.
    pub name: String,
    /// How long.
    pub ns: u64,
    /// The part of it that the vCPU slept.
    pub waiting_ns: u64,
    /// Of the victim's time.
    pub share: f64,
}

/// Who suffered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Victim {
    /// Process name in the guest.
    pub process: String,
    /// Its id.
    pub pid: Option<u32>,
    /// Function, when asked for.
    pub function: Option<String>,
    /// Its module.
    pub module: Option<String>,
    /// It was seen to run.
    pub own_ns: u64,
    /// It ran, and was not sampled.
    pub not_sampled_ns: u64,
    /// Taken from it.
    pub stolen: Stolen,
    /// Samples that saw it run.
    pub samples: u64,
}

/// Time taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stolen {
    /// Type 1.
    pub outside_ns: u64,
    /// Type 2.
    pub vmm_ns: u64,
    /// By a CPU quota.
    pub throttled_ns: u64,
}

/// `vmscope exits`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Exits {
    /// `VERSION` of the writer.
    pub version: u32,
    /// What it was asked of.
    pub recording: Recording,
    /// Whether exits were counted (`record --exits`).
    pub counted: bool,
    /// Each VM asked for.
    pub vms: Vec<VmExits>,
}

/// A VM's exits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VmExits {
    /// The VM's name.
    pub name: String,
    /// Most time first.
    pub exits: Vec<Exit>,
}

/// The exits of one reason.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Exit {
    /// The vendor's number; null: not known.
    pub reason: Option<u32>,
    /// As in text.
    pub name: String,
    /// How often; null: not counted.
    pub count: Option<u64>,
    /// Time in the VMM.
    pub ns: u64,
    /// The part of it that the vCPU slept.
    pub waiting_ns: u64,
    /// Samples that saw them handled.
    pub samples: u64,
    /// `ns` of `count`, when there are both.
    pub mean_ns: Option<u64>,
    /// What caused them, most time first; adds up to `ns`.
    pub causes: Vec<Cause>,
}

/// A guest function that exited.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// Process name in the guest; null: not known.
    pub process: Option<String>,
    /// Its id.
    pub pid: Option<u32>,
    /// Function.
    pub function: Option<String>,
    /// Its module.
    pub module: Option<String>,
    /// Time in the VMM.
    pub ns: u64,
}

/// `vmscope correct`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Correct {
    /// `VERSION` of the writer.
    pub version: u32,
    /// What it was asked of.
    pub recording: Recording,
    /// The VM.
    pub vm: String,
    /// First instant looked at, from the recording's start.
    pub from_ns: u64,
    /// Last instant looked at.
    pub to_ns: u64,
    /// What `--process`, `--function` or `--apparent` asked for; null: `processes` instead.
    pub correction: Option<Correction>,
    /// Every process of the VM, most apparent time first; empty when `correction` is not.
    pub processes: Vec<Process>,
}

/// A run time without what was taken from it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Correction {
    /// The process asked for.
    pub process: Option<String>,
    /// The function asked for.
    pub function: Option<String>,
    /// As given, or as seen on the axis.
    pub apparent_ns: u64,
    /// Whether it was given.
    pub apparent_given: bool,
    /// `apparent_ns` without `stolen`.
    pub corrected_ns: u64,
    /// With 95 % confidence `corrected_ns` is off by less.
    pub bound_ns: u64,
    /// What `stolen` may hold of the time before and after the run: `corrected_ns` would be longer by that.
    #[serde(default)]
    pub beyond_ns: u64,
    /// Samples that saw it run.
    pub samples: u64,
    /// Taken from it.
    pub stolen: Stolen,
    /// Type 1 by who had the CPU; adds up to `stolen.outside_ns`.
    pub thieves: Vec<Thief>,
    /// Type 2 by exit reason; adds up to `stolen.vmm_ns`.
    pub reasons: Vec<Reason>,
    /// Taken from the VM, and possibly from it: not in `stolen`.
    pub unattributed: Stolen,
}

/// A process' run time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its name in the guest.
    pub process: String,
    /// Its id.
    pub pid: Option<u32>,
    /// How long it seemed to run.
    pub apparent_ns: u64,
    /// Without what was taken from it.
    pub corrected_ns: u64,
    /// With 95 % confidence `corrected_ns` is off by less.
    pub bound_ns: u64,
    /// Samples that saw it run.
    pub samples: u64,
    /// Taken from it.
    pub stolen: Stolen,
}
