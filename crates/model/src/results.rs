//! What the analysis of a window finds, as rows that any engine can add up.

use std::sync::Arc;

use crate::{Header, VmLabels};

/// Which window a row comes from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WindowKey {
    /// The name under which the host is enrolled.
    pub host: String,
    /// The host's boot id.
    pub boot: String,
    /// First instant of the window, `CLOCK_MONOTONIC` of that boot.
    pub window_ns: u64,
}

impl WindowKey {
    /// Of a recording; `host` is the name under which its rows are kept.
    #[must_use]
    pub fn new(host: String, header: &Header) -> Self {
        let boot = header.boot.map_or(String::new(), |boot| boot.to_string());
        Self { host, boot, window_ns: header.start.0 }
    }
}

/// A row of a window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResultRow<T> {
    pub window: Arc<WindowKey>,
    /// First instant of the row's time slice, `CLOCK_REALTIME`, us since 1970.
    pub slice_unix_us: i64,
    pub row: T,
}

/// A program's code, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ResultCode {
    pub process: Option<String>,
    /// Its id in its own host or guest.
    pub pid: Option<u32>,
    pub thread: Option<String>,
    /// Its id in its own host or guest.
    pub tid: Option<u32>,
    pub function: Option<String>,
    /// Path of its module, or a name in brackets.
    pub module: Option<String>,
    /// The module's build id, hexadecimal.
    pub build_id: Option<String>,
}

/// A thief, without the marks that its name in `VcpuTimeRow::thief` has: a process chooses its own name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResultThief {
    pub kind: ThiefKind,
    /// What a process or a kernel thread calls itself.
    pub name: Option<String>,
    pub pid: Option<u32>,
}

macro_rules! thief_kinds {
    ($($(#[$doc:meta])* $variant:ident $name:literal,)*) => {
        /// What had the CPU that a vCPU waited for, by what the kernel says of it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum ThiefKind {
            $($(#[$doc])* $variant,)*
        }

        impl ThiefKind {
            /// Its name: column `thief_kind`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The kind of a name; a name of a later version is `Unknown`.
            #[must_use]
            pub fn from_name(name: &str) -> Self {
                match name {
                    $($name => Self::$variant,)*
                    _ => Self::Unknown,
                }
            }
        }
    };
}

thief_kinds! {
    /// A vCPU, in its guest or its VMM.
    Vcpu "vcpu",
    /// Another thread of a VMM.
    VmmThread "vmm_thread",
    /// A VM's vhost thread.
    Vhost "vhost",
    /// A process of the host.
    Process "process",
    /// A thread of the host's kernel.
    KernelThread "kernel_thread",
    /// The CPU was idle.
    Idle "idle",
    /// No sample says.
    Unknown "unknown",
}

/// A call stack of a guest.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResultStack {
    /// Functions, the outermost first, joined by `;`. In their names that is `\x3b`, and a backslash `\x5c`.
    pub functions: String,
    /// The last so many of them are the guest's kernel's.
    pub n_kernel: u32,
}

impl ResultStack {
    /// The names in a text that `join` made, the outermost first.
    pub fn names(functions: &str) -> impl DoubleEndedIterator<Item = String> {
        let name = |name: &str| name.replace("\\x3b", ";").replace("\\x5c", "\\");
        functions.split(';').map(name)
    }

    /// Functions as one text: names come from binaries, and have any characters.
    pub fn join<'a>(functions: impl Iterator<Item = &'a str>) -> String {
        let mut text = String::new();
        for function in functions {
            if !text.is_empty() {
                text.push(';');
            }
            text.push_str(&function.replace('\\', "\\x5c").replace(';', "\\x3b"));
        }
        text
    }
}

/// Time of a vCPU. Of one vCPU and slice all `ns` add up to the time that the vCPU was there.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct VcpuTimeRow {
    pub vm: String,
    /// Number of the vCPU in the VM.
    pub vcpu: u32,
    pub state: String,
    /// Whose time it was in the guest.
    pub code: ResultCode,
    /// The path to `code.function`, where it is known and has a part of the VM's time that is worth a row.
    pub stack: Option<ResultStack>,
    /// What had the CPU in that time.
    pub thief: Option<String>,
    /// The VM that the thief belongs to.
    pub thief_vm: Option<String>,
    /// What the thief is. `None`: there is none, or the table is of version 0.2 or before.
    pub thief_is: Option<ResultThief>,
    /// The VM exit that took the time.
    pub exit_reason: Option<String>,
    pub ns: u64,
    /// The part of `ns` that is left when all lost time is taken away.
    pub corrected_ns: u64,
    /// Samples that saw it.
    pub samples: u64,
}

/// A stretch of a vCPU's time in one state, with one thief. Those of a vCPU touch, in time order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IntervalRow {
    /// Its first instant, ns since the recording began.
    pub from_ns: u64,
    /// The same in UTC, us since 1970.
    pub from_unix_us: i64,
    pub time: VcpuTimeRow,
}

/// Time of a physical CPU. Of one CPU and slice all `ns` add up to the slice's length in the window.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuTimeRow {
    pub cpu: u32,
    /// What was interrupted: `guest_kernel`, `guest_user`, `host_kernel`, `host_user`, `idle`, or `not_sampled`.
    pub level: String,
    /// The VM whose guest, or whose VMM, it was.
    pub vm: Option<String>,
    pub code: ResultCode,
    /// The host's call stack, as `ResultStack::functions`. In recordings with call graphs.
    pub stack: Option<String>,
    pub ns: u64,
    /// Samples that saw it.
    pub samples: u64,
}

/// VM exits of a vCPU, where they were counted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExitsRow {
    pub vm: String,
    /// Number of the vCPU in the VM.
    pub vcpu: u32,
    pub exit_reason: String,
    pub exits: u64,
}

/// A host during a window.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostRow {
    pub length_ns: u64,
    /// What the host calls itself.
    pub hostname: String,
    /// Its kernel's release.
    pub kernel: String,
    /// The version of vmscope that recorded.
    pub vmscope_version: String,
    /// Nominal time between two samples of a CPU.
    pub period_ns: u64,
    /// CPUs that were sampled.
    pub cpus: u32,
    /// VMs that ran.
    pub vms: u32,
    pub samples: u64,
    /// Samples taken and lost.
    pub samples_lost: u64,
    /// Interrupts that never came.
    pub samples_missed: u64,
}

/// A VM during a window.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VmRow {
    pub vm: String,
    /// The VMM's process id.
    pub pid: u32,
    pub vcpus: u32,
    /// All time of its vCPUs: what its rows of `VcpuTimeRow` add up to.
    pub vcpu_ns: u64,
    /// Of that, what others had (`steal_outside`); absent in results of earlier versions.
    pub steal_outside_ns: Option<u64>,
    /// The same in the VMM (`steal_vmm` and `steal_vmm_waiting`).
    pub steal_vmm_ns: Option<u64>,
    /// The same in `throttled`.
    pub throttled_ns: Option<u64>,
    /// Where its guest's map came from.
    pub map_via: Option<String>,
    pub no_map_reason: Option<String>,
    pub labels: VmLabels,
}

/// Something lost, cut or noted while a window was collected.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HealthRow {
    /// `host`, or the VM or file that it is about.
    pub subject: String,
    /// A counter's name, or a note.
    pub what: String,
    /// The counter's value; `None`: a note.
    pub count: Option<u64>,
}

/// All that is found in a window.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Results {
    pub vcpu_time: Vec<ResultRow<VcpuTimeRow>>,
    pub cpu_time: Vec<ResultRow<CpuTimeRow>>,
    pub exits: Vec<ResultRow<ExitsRow>>,
    pub hosts: Vec<ResultRow<HostRow>>,
    pub vms: Vec<ResultRow<VmRow>>,
    /// What was lost, and notes.
    pub health: Vec<ResultRow<HealthRow>>,
}
