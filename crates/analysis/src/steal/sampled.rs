//! When each vCPU was sampled: so that counts of samples are counts, not lengths divided by the period.

use model::{HostNs, Sample, VcpuId, VcpuState};

use crate::vcpu_timeline::Segment;

/// The instants of all samples of vCPUs.
#[derive(Debug, Clone, Default)]
pub struct SampleTimes {
    /// By row of `Tables::vcpus`, in time order.
    times: Vec<Vec<HostNs>>,
    without_waits: u64,
}

impl SampleTimes {
    /// Takes the next sample, in time order.
    pub fn push(&mut self, sample: &Sample) {
        let (VcpuState::Guest(vcpu) | VcpuState::Vmm(vcpu)) = &sample.vcpu else {
            return;
        };
        let row = vcpu.vcpu.index();
        if self.times.len() <= row {
            self.times.resize(row + 1, Vec::new());
        }
        self.times[row].push(sample.time);
        self.without_waits += u64::from(vcpu.waits.is_none());
    }

    /// How many samples of the vCPU lie in a segment.
    #[must_use]
    pub fn within(&self, vcpu: VcpuId, segment: &Segment) -> u64 {
        let Some(times) = self.times.get(vcpu.index()) else {
            return 0;
        };
        let before = |end: HostNs| times.partition_point(|time| *time < end);
        (before(segment.to) - before(segment.from)) as u64
    }

    /// Whether every sample has its vCPU's waiting time: gaps between them have exact lengths.
    #[must_use]
    pub fn waits_are_known(&self) -> bool {
        self.without_waits == 0
    }
}
