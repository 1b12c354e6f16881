//! One sampling interrupt.

use crate::{
    CpuId, Cr3, GuestTask, GuestVirt, HostNs, HostVirt, KernelStack, Pid, StackId, Tid, VcpuId,
};

/// What one sampling interrupt on one physical CPU saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// When the interrupt was handled.
    pub time: HostNs,
    pub cpu: CpuId,
    /// The host process that had the CPU; 0 is the idle task.
    pub pid: Pid,
    /// The host thread that had the CPU; 0 is the idle task.
    pub tid: Tid,
    /// The interrupted host address. When a guest was interrupted it only says "inside KVM".
    pub host_ip: HostVirt,
    /// The host privilege level that was interrupted.
    pub host_mode: HostMode,
    /// The call stacks of host and guest, when the recording has call graphs.
    pub stack: Option<StackId>,
    /// What a vCPU was doing, when the thread was one.
    pub vcpu: VcpuState,
}

/// The host's privilege level at the interrupt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HostMode {
    /// Host kernel (also when a guest was interrupted: KVM handles the interrupt).
    Kernel,
    User,
}

/// Whether the interrupted thread was a vCPU, and whether its guest was running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VcpuState {
    /// Not a vCPU thread.
    None,
    /// A guest was interrupted, but the collector had not found its vCPU yet (a VM that just
    /// started). `Sample::pid` still names the VM's process.
    Unknown,
    /// A vCPU thread outside its guest: in KVM or in the VMM's user code. The registers are those of
    /// the last VM exit.
    Vmm(VcpuSample),
    /// The guest was interrupted.
    Guest(VcpuSample),
}

/// A vCPU's registers at the sample (guest interrupted) or at the last VM exit (host interrupted).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VcpuSample {
    /// Which vCPU of which VM.
    pub vcpu: VcpuId,
    pub ip: GuestVirt,
    /// Guest page-table base. `None` where it can't be read (Intel without the helper module,
    /// encrypted guests): such a VM's user time is one line that says why.
    pub cr3: Option<Cr3>,
    /// Guest FS base: tells threads of one process apart.
    pub fs_base: GuestVirt,
    /// Guest privilege level, 0..=3; `NESTED`; anything else: not known (Intel before Linux 6.3).
    pub cpl: u8,
    /// The stack its kernel is on: tells kernel threads, which have no page tables of their own. `None` in user mode and
    /// where the stack pointer can't be read (Intel, encrypted guests).
    pub kernel_stack: Option<KernelStack>,
    /// The task that its kernel says runs. `None` where its memory is not read.
    pub task: Option<GuestTask>,
    /// ASID (AMD) or VPID (Intel).
    pub asid: u16,
    /// Last VM-exit reason: AMD exit code or Intel basic exit reason, see `Header::vendor`.
    pub exit_reason: u32,
    /// Exit interrupt information, as the hardware gives it.
    pub exit_info: u32,
    /// What the vCPU has waited for so far; `None` where this kernel does not count it.
    pub waits: Option<WaitCounters>,
    /// Since its guest's sample before, its VMM took it out of `KVM_RUN` by itself: by a signal, or for its debugger.
    pub kicked: bool,
}

impl VcpuSample {
    /// `cpl` where the guest runs a guest of its own, whose registers say nothing of it: they are 0.
    pub const NESTED: u8 = 0xfe;

    /// Whether the guest runs a guest of its own.
    #[must_use]
    pub fn is_nested(&self) -> bool {
        self.cpl == Self::NESTED
    }
}

/// How long a vCPU has waited since it exists, as the host's kernel counts it: the difference between two
/// samples says exactly what happened in the gap between them. Each is brought up to date when the wait ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct WaitCounters {
    /// Asleep after HLT (`kvm_vcpu.stat.generic.halt_wait_ns`).
    pub halted_ns: u64,
    /// The host polling for the end of a halt, successful or not (`halt_poll_success_ns` + `halt_poll_fail_ns`).
    pub polled_ns: u64,
    /// Runnable and not on a CPU, throttled or not (`task_struct.sched_info.run_delay`).
    pub runnable_ns: u64,
}
