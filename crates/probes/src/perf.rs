//! `perf_event_open` for the sampling interrupt.

use std::os::fd::{FromRawFd, OwnedFd};

use model::Trigger;
use perf_event_open_sys as sys;

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
        let mut attr = sys::bindings::perf_event_attr::default();
        attr.size = u32::try_from(size_of_val(&attr)).expect("the struct is small");
        (attr.type_, attr.config) = match self.trigger {
            Trigger::CpuClock => (
                sys::bindings::PERF_TYPE_SOFTWARE,
                u64::from(sys::bindings::PERF_COUNT_SW_CPU_CLOCK),
            ),
            Trigger::Cycles => (
                sys::bindings::PERF_TYPE_HARDWARE,
                u64::from(sys::bindings::PERF_COUNT_HW_CPU_CYCLES),
            ),
        };
        attr.__bindgen_anon_1.sample_period = self.period;
        attr.set_disabled(1);
        if self.prepare_ip {
            attr.sample_type = u64::from(sys::bindings::PERF_SAMPLE_IP);
        }
        let cpu_arg = i32::try_from(cpu).expect("CPU numbers are below 2^31");
        let flags = u64::from(sys::bindings::PERF_FLAG_FD_CLOEXEC);
        // SAFETY: `attr` is a valid, initialised structure of the size it states.
        let fd = unsafe { sys::perf_event_open(&mut attr, -1, cpu_arg, -1, flags) };
        if fd < 0 {
            let source = std::io::Error::last_os_error();
            return Err(ProbeError::PerfEvent { event: self.name(), cpu, source });
        }
        // SAFETY: the kernel just gave us this descriptor and it has no other owner.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}
