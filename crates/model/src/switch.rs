//! What the scheduler did with a vCPU's thread.

use crate::{
    CpuId, Cr3, GuestVirt, HostMode, HostNs, HostVirt, KernelStack, Pid, Sample, Tid,
    TimelineState, VcpuId, VcpuSample, VcpuState, WaitCounters,
};

/// Takes the samples of a recording in time order, then its switches, those of each vCPU in time order.
pub trait RecordConsumer {
    /// Takes the next sample.
    fn push_sample(&mut self, sample: &Sample);

    /// Takes the next switch; most look at samples only.
    fn push_switch(&mut self, _switch: &Switch) {}
}

/// One event of a vCPU's thread on the host's time axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Switch {
    pub time: HostNs,
    /// The CPU it left or got, or on whose queue it was put.
    pub cpu: CpuId,
    pub vcpu: VcpuId,
    pub event: SwitchEvent,
}

/// What happened to a vCPU's thread.
///
/// ```text
///              Out(Runnable | Throttled)
///   on a CPU --------------------------------> waiting for a CPU --In--> on a CPU
///      \__ Out(Halted | Paused | Asleep) -> asleep __Wake__/\
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SwitchEvent {
    /// It left the CPU.
    Out {
        off_cpu: OffCpuReason,
        /// Who got the CPU; 0 is the idle task.
        pid: Pid,
        tid: Tid,
        /// Last VM-exit reason, as `VcpuSample::exit_reason`.
        exit_reason: u32,
        /// Where its guest will go on; `None` before a halt, and where it can't be read.
        guest: Option<GuestRegisters>,
    },
    /// It got the CPU.
    In {
        /// Who had the CPU before.
        pid: Pid,
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
        off_cpu: Option<OffCpuReason>,
        /// Last VM-exit reason.
        exit_reason: u32,
        /// Its counters then.
        waits: Option<WaitCounters>,
    },
}

/// Where a guest stands while its vCPU does not run; fields as in `VcpuSample`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GuestRegisters {
    pub ip: GuestVirt,
    pub cr3: Option<Cr3>,
    pub fs_base: GuestVirt,
    pub cpl: u8,
    /// The stack its kernel is on.
    pub kernel_stack: Option<KernelStack>,
}

impl Switch {
    /// What a sample of the guest would show at this instant, when the event says where the guest stands.
    #[must_use]
    pub fn guest_sample(&self) -> Option<Sample> {
        let SwitchEvent::Out { exit_reason, guest: Some(guest), .. } = self.event else {
            return None;
        };
        let GuestRegisters { ip, cr3, fs_base, cpl, kernel_stack } = guest;
        let at = VcpuSample {
            vcpu: self.vcpu,
            ip,
            cr3,
            fs_base,
            cpl,
            kernel_stack,
            task: None,
            asid: 0,
            exit_reason,
            exit_info: 0,
            waits: None,
            kicked: false,
        };
        Some(Sample {
            time: self.time,
            cpu: self.cpu,
            pid: Pid(0),
            tid: Tid(0),
            host_ip: HostVirt(0),
            host_mode: HostMode::Kernel,
            stack: None,
            vcpu: VcpuState::Guest(at),
        })
    }
}

macro_rules! off_cpu_reasons {
    ($(
        $(#[$doc:meta])*
        $variant:ident $number:literal $name:literal $queued:literal => |$exit:ident| $state:expr;
    )*) => {
        /// Why a vCPU's thread is not on a CPU.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum OffCpuReason {
            $($(#[$doc])* $variant,)*
        }

        impl OffCpuReason {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// `OFFCPU_*` of `bpf/abi/sample.h`; 0 is on a CPU.
            #[must_use]
            pub const fn number(self) -> u8 {
                match self { $(Self::$variant => $number,)* }
            }

            /// Its name in recordings.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Whether it waits in a CPU's queue; if not, it is asleep.
            #[must_use]
            pub const fn is_queued(self) -> bool {
                match self { $(Self::$variant => $queued,)* }
            }

            /// What its vCPU does then, after an exit of this reason.
            #[must_use]
            pub fn state(self, exit_reason: u32) -> TimelineState {
                match self {
                    $(Self::$variant => (|$exit: u32| $state)(exit_reason),)*
                }
            }
        }
    };
}

off_cpu_reasons! {
    /// Preempted: it could go on.
    Runnable 1 "runnable" true => |_exit| TimelineState::StealOutside;
    /// Its CPU quota is used up.
    Throttled 2 "throttled" true => |_exit| TimelineState::Throttled;
    /// In KVM, after HLT or before its first start, until something happens for the guest.
    Halted 3 "halted" false => |_exit| TimelineState::Halt;
    /// Asleep for another reason: in the VMM, or in KVM for a page.
    Asleep 4 "asleep" false => |exit| TimelineState::StealVmmWaiting { reason: Some(exit) };
    /// Asleep in the VMM, which has paused the vCPU: stopped or migrated the VM, saved its state, or debugs it.
    Paused 5 "paused" false => |_exit| TimelineState::Paused;
}

impl OffCpuReason {
    /// The reason of a number; `None`: on a CPU, or not a number of this version.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.iter().copied().find(|reason| reason.number() == number)
    }

    /// The reason of a name in recordings.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|reason| reason.name() == name)
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::TimeAccount;

    #[test]
    fn reasons_have_numbers_names_and_states() {
        for reason in OffCpuReason::ALL {
            assert_eq!(OffCpuReason::from_number(reason.number()), Some(*reason));
            assert_eq!(OffCpuReason::from_name(reason.name()), Some(*reason));
        }
        assert_eq!([0, 6].map(OffCpuReason::from_number), [None; 2]);
        assert_eq!(OffCpuReason::from_name("on_cpu"), None);
        let check = |reason: OffCpuReason, account, exit| {
            let state = reason.state(7);
            assert_eq!((state.account(), state.exit_reason()), (account, exit), "{reason:?}");
        };
        check(OffCpuReason::Runnable, TimeAccount::StealOutside, None);
        check(OffCpuReason::Throttled, TimeAccount::Throttled, None);
        check(OffCpuReason::Halted, TimeAccount::Halt, None);
        check(OffCpuReason::Asleep, TimeAccount::StealVmm, Some(7));
        check(OffCpuReason::Paused, TimeAccount::Paused, None);
    }
}
