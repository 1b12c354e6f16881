//! What both ways to find edges produce: when a vCPU was on a CPU, what it did when it was not, and when the
//! host polled for it. Times are ns on the host's axis.

use model::{CpuId, HostNs, OffCpuReason, TimelineState, VcpuId, WaitCounters};

use super::CodeLocationId;

/// One look at a vCPU: a sample of it, or `SwitchEvent::Seen`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Point {
    pub(super) time: u64,
    pub(super) cpu: CpuId,
    pub(super) doing: Activity,
    pub(super) waits: Option<WaitCounters>,
    /// Its VMM took it out of `KVM_RUN` since a sample of the guest.
    pub(super) kicked: bool,
    pub(super) place: Option<CodeLocationId>,
}

/// One for each sample is kept in memory.
const _: () = assert!(size_of::<Point>() <= 72);

/// What a point found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Activity {
    GuestKernel,
    GuestUser,
    GuestUnknown,
    /// In KVM or the VMM; `halted`: in KVM's code after an exit that says halt.
    Vmm {
        reason: u32,
        halted: bool,
    },
    /// On a CPU, in unknown code.
    Running,
    /// Not on a CPU.
    OffCpu(OffCpu),
}

/// Why a vCPU is not on a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OffCpu {
    pub(super) off_cpu: OffCpuReason,
    pub(super) exit_reason: u32,
}

impl OffCpu {
    pub(super) fn state(self) -> TimelineState {
        self.off_cpu.state(self.exit_reason)
    }
}

impl Point {
    /// The state of the time around a sample; `None`: the point is none.
    pub(super) fn state(&self) -> Option<TimelineState> {
        match self.doing {
            Activity::GuestKernel => Some(TimelineState::GuestKernel),
            Activity::GuestUser => Some(TimelineState::GuestUser),
            Activity::GuestUnknown => Some(TimelineState::GuestUnknown),
            Activity::Vmm { reason, .. } => Some(TimelineState::StealVmm { reason }),
            Activity::Running | Activity::OffCpu(_) => None,
        }
    }

    /// Why it was not on a CPU.
    pub(super) fn away(&self) -> Option<OffCpu> {
        match self.doing {
            Activity::OffCpu(away) => Some(away),
            _ => None,
        }
    }

    /// Whether it may have been taken while the host polled for the end of a halt.
    pub(super) fn may_poll(&self) -> bool {
        matches!(self.doing, Activity::Vmm { halted: true, .. })
    }
}

/// A stretch of a vCPU's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stretch {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) what: What,
    pub(super) cpu: Option<CpuId>,
}

/// What a vCPU's thread did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    OnCpu,
    Off(TimelineState),
}

/// Where a guest stood when its vCPU left a CPU.
#[derive(Debug, Clone, Copy)]
pub(super) struct Departure {
    pub(super) time: u64,
    pub(super) place: CodeLocationId,
}

/// The host polled for the end of a halt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Poll {
    pub(super) from: u64,
    pub(super) to: u64,
    /// Where the guest halted, when a sample says so.
    pub(super) place: Option<CodeLocationId>,
}

/// One vCPU's stretches from its first instant to its last: they touch, whatever is pushed.
#[derive(Debug)]
pub(super) struct Track {
    pub(super) vcpu: VcpuId,
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) stretches: Vec<Stretch>,
    /// In time order, apart.
    pub(super) polls: Vec<Poll>,
}

impl Track {
    pub(super) fn new(vcpu: VcpuId, from: HostNs, to: HostNs) -> Self {
        let to = to.0.max(from.0);
        Self { vcpu, from: from.0, to, stretches: Vec::new(), polls: Vec::new() }
    }

    /// Where the next stretch begins.
    pub(super) fn at(&self) -> u64 {
        self.stretches.last().map_or(self.from, |last| last.to)
    }

    /// From where the last stretch ended until `to`, which is cut at the track's end.
    pub(super) fn push_until(&mut self, to: u64, what: What, cpu: Option<CpuId>) {
        let (from, to) = (self.at(), to.min(self.to));
        if to <= from {
            return;
        }
        match self.stretches.last_mut() {
            Some(last) if last.what == what && last.cpu == cpu => last.to = to,
            _ => self.stretches.push(Stretch { from, to, what, cpu }),
        }
    }

    /// The host polled for it here, as far as it was on a CPU.
    pub(super) fn poll(&mut self, (from, to): (u64, u64), place: Option<CodeLocationId>) {
        let from = self.polls.last().map_or(from, |before| from.max(before.to));
        if from < to {
            self.polls.push(Poll { from, to, place });
        }
    }

    /// Whether the host polled for it at an instant.
    pub(super) fn polls_at(&self, time: u64) -> bool {
        let number = self.polls.partition_point(|poll| poll.to <= time);
        self.polls.get(number).is_some_and(|poll| poll.from <= time)
    }

    /// The stretches that a window touches.
    pub(super) fn within(&self, from: u64, to: u64) -> &[Stretch] {
        let first = self.stretches.partition_point(|stretch| stretch.to <= from);
        let end = self.stretches.partition_point(|stretch| stretch.from < to);
        self.stretches.get(first..end).unwrap_or_default()
    }
}

/// How far a look at a vCPU speaks for the time before the first or after the last.
const NEAR_PERIODS: u64 = 10;

/// Whether an edge of a track is so near to the first or last look at it that nothing can have happened between.
pub(super) fn is_near(from: u64, to: u64, period_ns: u64) -> bool {
    to.saturating_sub(from) <= period_ns.saturating_mul(NEAR_PERIODS)
}
