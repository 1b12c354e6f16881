//! What this machine can and can't do for vmscope: facts read from `/proc`, `/sys` and `/dev`, and a pure
//! decision about them.
//!
//! ```text
//!   root --read--> Facts --+
//!   trials (others make) --+--findings--> Vec<Finding> --verdict--> Verdict
//! ```

mod decide;
mod read;
mod sysctls;
#[cfg(test)]
mod test;

use model::Vendor;

pub use decide::{findings, verdict};
pub use sysctls::sysctl_costs;

/// What was read. `None`: the file is not there or makes no sense.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    pub kernel: KernelFacts,
    pub process: ProcessFacts,
    pub vendor: Vendor,
    /// Whether the CPU says it can virtualise (`svm`, `vmx`).
    pub cpu_virtualises: bool,
    pub kvm: KvmFacts,
    pub perf: PerfFacts,
    /// `/dev/vhost-vsock` is there.
    pub vhost_vsock: bool,
}

/// The kernel.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KernelFacts {
    /// `uname -r`.
    pub release: String,
    /// Lockdown mode, if the kernel has lockdown: `none`, `integrity`, `confidentiality`.
    pub lockdown: Option<String>,
    /// It has type information of itself.
    pub btf: bool,
    /// It has the bpf system call; what unprivileged users may do with it.
    pub unprivileged_bpf_disabled: Option<i64>,
    /// `kernel.kptr_restrict`.
    pub kptr_restrict: Option<i64>,
}

/// This process.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProcessFacts {
    /// Effective capabilities, as a bit set.
    pub capabilities: u64,
    /// It is in the PID namespace of the host.
    pub host_pids: bool,
    /// It is in the user namespace of the host: elsewhere its capabilities count for nothing.
    pub host_users: bool,
    /// How much memory it may lock, bytes; `None`: unlimited.
    pub memlock: Option<u64>,
}

/// KVM.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KvmFacts {
    /// `/dev/kvm` is there.
    pub device: bool,
    /// Modules named `kvm_*`.
    pub modules: Vec<String>,
    /// Those of them that have type information of their own.
    pub modules_with_btf: Vec<String>,
    pub nested: bool,
    /// The mediated vPMU is on.
    pub mediated_pmu: bool,
}

/// Performance events.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PerfFacts {
    /// There is a hardware PMU.
    pub pmu: bool,
    /// `kernel.perf_event_paranoid`; `None`: no perf events.
    pub paranoid: Option<i64>,
    /// `kernel.perf_event_max_sample_rate`, samples a second.
    pub max_sample_rate: Option<i64>,
    /// `kernel.perf_event_mlock_kb`.
    pub mlock_kb: Option<i64>,
}

/// What others tried on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trials {
    /// Loading and attaching the sampling program.
    pub sampler: Trial,
    /// Starting a child without privileges, which reads host programs' files.
    pub child: Trial,
    /// The kernel has Landlock, which keeps such a child from files.
    pub landlock: bool,
    /// Running a small guest under `/dev/kvm`.
    pub guest: Trial,
    /// The names of the VMs that run now, where they could be looked for.
    pub vms: Option<Vec<String>>,
}

/// What came of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trial {
    Passed,
    Failed(String),
    /// It was not even tried; why.
    NotTried(String),
}

/// Whom a finding concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Area {
    /// All recording.
    Host,
    /// What the host can see of guests.
    Guests,
}

/// How it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    Works,
    /// Something will be missing in recordings.
    Limited,
    /// Nothing can be recorded in this area.
    Missing,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub area: Area,
    pub what: &'static str,
    pub state: State,
    /// Why, a clause.
    pub reason: String,
    /// What to do, where something can be done.
    pub advice: Option<String>,
}

/// All findings of an area taken together: the worst, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AreaVerdict {
    /// The worst state.
    pub state: State,
    /// Things that have this state, and why; none if all works.
    pub reasons: Vec<String>,
}

/// What `vmscope record` will do here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// For the host itself: if this is `Missing` nothing can be recorded at all.
    pub host: AreaVerdict,
    pub guests: AreaVerdict,
}
