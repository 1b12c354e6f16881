//! What the scheduler did with a vCPU's thread.

use crate::{CpuId, HostNs, Pid, Tid, VcpuId, Waits};

/// One event of a vCPU's thread on the host's time axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Switch {
    /// When.
    pub time: HostNs,
    /// The CPU it left or got, or on whose queue it was put.
    pub cpu: CpuId,
    /// Whose thread.
    pub vcpu: VcpuId,
    /// What.
    pub event: SwitchEvent,
}

/// What happened to a vCPU's thread.
///
/// ```text
///              Out(Runnable | Throttled)
///   on a CPU --------------------------------> waiting for a CPU --In--> on a CPU
///      \____ Out(Halted | Asleep) ___> asleep ___Wake___/\
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SwitchEvent {
    /// It left the CPU.
    Out {
        /// Why.
        away: Away,
        /// Who got the CPU; 0 is the idle task.
        pid: Pid,
        /// Its thread.
        tid: Tid,
        /// Last VM-exit reason, as `VcpuSample::exit_reason`.
        exit_reason: u32,
    },
    /// It got the CPU.
    In {
        /// Who had the CPU before.
        pid: Pid,
        /// Its thread.
        tid: Tid,
    },
    /// It was woken: from now on it waits for a CPU.
    Wake {
        /// Its quota was used up when it was woken.
        throttled: bool,
    },
    /// Looked at when recording began, when its VM was found and when recording ended.
    Seen {
        /// `None`: it was on a CPU.
        away: Option<Away>,
        /// Last VM-exit reason.
        exit_reason: u32,
        /// Its counters then.
        waits: Option<Waits>,
    },
}

/// Why a vCPU's thread is not on a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Away {
    /// Preempted: it could go on.
    Runnable,
    /// Its CPU quota is used up.
    Throttled,
    /// In KVM, after HLT or before its first start, until something happens for the guest.
    Halted,
    /// Asleep for another reason: in the VMM, or in KVM for a page.
    Asleep,
}
