//! `perf_event_open` for the sampling interrupt.

use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};

use model::Trigger;
use perf_event::events::{Hardware, Software};
use perf_event::{Builder, SampleFlag};

use crate::ProbeError;

/// What to ask of the kernel for one CPU.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Event {
    pub(crate) trigger: Trigger,
    /// Nanoseconds for cpu-clock, cycles for the cycle counter.
    pub(crate) period: u64,
    /// Ask perf for the sample's IP first: on Intel this makes KVM cache the guest's IP (>= 6.3).
    pub(crate) prepare_ip: bool,
}

impl Event {
    fn name(self) -> &'static str {
        match self.trigger {
            Trigger::CpuClock => "cpu-clock",
            Trigger::Cycles => "cycles",
        }
    }

    /// Opens the event on `cpu`, for all processes, disabled until a program is attached.
    pub(crate) fn open(self, cpu: u32) -> Result<OwnedFd, ProbeError> {
        let mut event = match self.trigger {
            Trigger::CpuClock => Builder::new(Software::CPU_CLOCK),
            Trigger::Cycles => Builder::new(Hardware::CPU_CYCLES),
        };
        event.any_pid().one_cpu(cpu as usize).exclude_kernel(false).exclude_hv(false);
        event.sample_period(self.period);
        if self.prepare_ip {
            event.sample(SampleFlag::IP);
        }
        let failed = |source| ProbeError::PerfEvent { event: self.name(), cpu, source };
        let fd = event.build().map_err(failed)?.into_raw_fd();
        // SAFETY: the descriptor was given away and has no other owner.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}
