//! The JSON of `vmscope report --format json`, described for its readers in docs/report.md.
//!
//! Stable: within a version fields are only added. Times are ns, shares are fractions of 1.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Version of this format.
pub const VERSION: u32 = 1;

/// A report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// `VERSION` of the writer.
    pub version: u32,
    /// What was asked.
    pub query: Query,
    /// What it was asked of.
    pub recording: Recording,
    /// Samples by what ran; all but `samples` add up to `samples`.
    pub totals: Totals,
    /// Most samples first. With `other` they add up to `totals.samples`.
    pub rows: Vec<Row>,
    /// What `query.limit` cut off.
    pub other: Other,
    /// Samples without a name, by reason; most first.
    pub unresolved: Vec<Unresolved>,
    /// Counters of what was dropped, truncated or missed, those that are not zero.
    pub counters: BTreeMap<String, u64>,
    /// What the reader should know.
    pub notes: Vec<Note>,
}

/// What was asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Query {
    /// `unified`, `host`, `guest` or `native`.
    pub view: String,
    /// `function`, `process`, `thread`, `module`, `vm` or `cpu`.
    pub by: String,
    /// Only this VM.
    pub vm: Option<String>,
    /// Only this vCPU of it.
    pub vcpu: Option<u32>,
    /// Only this process, by name or id.
    pub process: Option<String>,
    /// Rows at most.
    pub limit: Option<u64>,
}

/// Facts about the recording.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recording {
    /// Version of vmscope that wrote it.
    pub vmscope_version: String,
    /// The host's name.
    pub hostname: String,
    /// The host's kernel release.
    pub kernel: String,
    /// `amd`, `intel` or `other`.
    pub vendor: String,
    /// What made the samples: `cpu-clock` or `cycles`.
    pub trigger: String,
    /// Time between samples of one CPU.
    pub period_ns: u64,
    /// The CPUs that were sampled.
    pub cpus: Vec<u32>,
    /// First instant covered, ns since 1970.
    pub start_unix_ns: u64,
    /// Time covered.
    pub duration_ns: u64,
    /// False: the writer did not finish, the end is missing.
    pub complete: bool,
    /// The virtual machines.
    pub vms: Vec<Vm>,
}

/// A virtual machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vm {
    /// Its name.
    pub name: String,
    /// Its VMM's process id on the host.
    pub pid: u32,
    /// How many vCPUs it had.
    pub vcpus: u64,
    /// Where the guest map came from: `vsock`, `virtio-serial`, `file`; null: there is none.
    pub map_via: Option<String>,
    /// Why there is no guest map.
    pub no_map_reason: Option<String>,
    /// How far the guest's clock may be off the host's, when there is a map.
    pub clock_error_ns: Option<u64>,
}

/// Samples by what ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// All.
    pub samples: u64,
    /// Kernel: the host's; in the guest view the guest's.
    pub os: u64,
    /// User code: the host's; in the guest view the guest's.
    pub user: u64,
    /// An interrupted guest; 0 in the guest view.
    pub vm: u64,
    /// The host's idle task.
    pub idle: u64,
    /// Guest view, as all below: samples not taken because the vCPUs had nothing to do and slept.
    pub halt: u64,
    /// The host polled for the end of a halt.
    pub halt_polling: u64,
    /// The vCPUs could run, and others had the CPU.
    pub steal_outside: u64,
    /// The vCPUs could run, and another vCPU of the same VM had the CPU.
    pub steal_own_vcpu: u64,
    /// The vCPUs waited in KVM or the VMM for the end of a VM exit.
    pub steal_vmm: u64,
    /// A CPU quota held them back.
    pub throttled: u64,
    /// They ran, and no sample says what.
    pub not_sampled: u64,
    /// Nobody knows what they did, or they ran (side `guest`) at a privilege level that is not known.
    pub unknown: u64,
}

/// A line. What `query.by` does not ask for is null.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// How many samples.
    pub samples: u64,
    /// `samples` of `totals.samples`, to six decimals.
    pub share: f64,
    /// `guest`, `vmm` (a VM's process on the host), `host`, `idle`; in the guest view also `halt`, `halt_polling`,
    /// `steal_outside`, `steal_own_vcpu`, `steal_vmm`, `throttled`, `not_sampled`, `unknown`; null by CPU.
    pub side: Option<String>,
    /// The VM of a guest or VMM line.
    pub vm: Option<String>,
    /// Process name, or `[kernel]`, `[idle]`, `[unknown]`, `[vmname]`, or a line of the guest view.
    pub process: Option<String>,
    /// Process id in its owner's numbering.
    pub pid: Option<u32>,
    /// Thread name.
    pub thread: Option<String>,
    /// Thread id in its owner's numbering.
    pub tid: Option<u32>,
    /// Module: absolute path or bracketed name.
    pub module: Option<String>,
    /// Offset in the module, for code without symbols.
    pub offset: Option<u64>,
    /// Function, or `(stripped)`, `[unknown]`, `[vmname]`, or a line of the guest view (`[ idle ] (halt exit)`).
    pub function: Option<String>,
    /// Physical CPU.
    pub cpu: Option<u32>,
    /// vCPU number (by CPU in the guest view).
    pub vcpu: Option<u32>,
    /// Side `steal_own_vcpu`: the number of the vCPU that had the CPU.
    pub thief_vcpu: Option<u32>,
}

/// The rows that the limit cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Other {
    /// How many rows.
    pub rows: u64,
    /// Their samples.
    pub samples: u64,
}

/// Samples without a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unresolved {
    /// What has no name: `function` or `process`.
    pub part: String,
    /// Whether the module was read and has no symbol there: `(stripped)`, not `[unknown]`.
    #[serde(default)]
    pub stripped: bool,
    /// A VM's name, or `host`.
    pub subject: String,
    /// The function's module, when that is known.
    #[serde(default)]
    pub module: Option<String>,
    /// Why.
    pub reason: String,
    /// How many samples.
    pub samples: u64,
}

/// Something that was not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// A VM's name, a file, a process, `host`, or `report`.
    pub subject: String,
    /// One sentence.
    pub text: String,
}

/// What `--edges both` prints: how well gaps found by samples and by switches agree.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Agreement {
    /// `VERSION` of the writer.
    pub version: u32,
    /// Time between samples of one CPU.
    pub period_ns: u64,
    /// By VM and number.
    pub vcpus: Vec<VcpuAgreement>,
}

/// One vCPU's agreement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VcpuAgreement {
    /// Its VM.
    pub vm: String,
    /// Its number.
    pub vcpu: u32,
    /// The time looked at.
    pub wall_ns: u64,
    /// What it did, by either way; each way's add up to `wall_ns`.
    pub accounts: Vec<AccountAgreement>,
    /// Times off the CPU that were compared one by one: those of more than two periods.
    pub gaps: u64,
    /// Those whose lengths differ by at most one period.
    pub gaps_within_period: u64,
    /// The largest difference of such a gap's lengths, in periods.
    pub largest_gap_periods: f64,
    /// The mean difference, without signs.
    pub mean_gap_periods: f64,
    /// The largest of `accounts[].points`, without sign; guest and not sampled are one here.
    pub largest_points: f64,
}

/// A vCPU's time of one kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AccountAgreement {
    /// `guest`, `halt`, `halt_polling`, `steal_outside` (all of type 1), `steal_vmm`, `throttled`, `not_sampled`, `unknown`.
    pub account: String,
    /// By samples.
    pub samples_ns: u64,
    /// By switches.
    pub switches_ns: u64,
    /// By samples less by switches, in per cent of `wall_ns`.
    pub points: f64,
}
