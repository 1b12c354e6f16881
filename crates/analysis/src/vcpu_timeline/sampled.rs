//! When each vCPU was sampled: so that counts of samples are counts, not lengths divided by the period.

use std::ops::Range;

use model::{HostNs, VcpuId};

use super::Segment;
use super::track::Point;

/// The instants of all samples of vCPUs.
#[derive(Debug, Clone, Default)]
pub struct SampleTimes {
    /// By row of `Tables::vcpus`, in time order.
    times: Vec<Vec<HostNs>>,
    /// Those of samples without their vCPU's waiting time.
    without_waits: Vec<HostNs>,
}

impl SampleTimes {
    /// The times of samples that have their vCPUs' waiting times, by vCPU.
    #[cfg(test)]
    pub(crate) fn new(times: Vec<Vec<HostNs>>) -> Self {
        Self { times, without_waits: Vec::new() }
    }

    /// Those of sorted points, by vCPU.
    pub(super) fn from_points(points: &[Vec<Point>]) -> Self {
        let is_sample = |point: &&Point| point.state().is_some();
        let samples = |points: &'_ [Point]| {
            points.iter().filter(is_sample).map(|point| HostNs(point.time)).collect()
        };
        let all = points.iter().flatten().filter(is_sample);
        let without_waits = all.filter(|point| point.waits.is_none());
        Self {
            times: points.iter().map(|points| samples(points)).collect(),
            without_waits: without_waits.map(|point| HostNs(point.time)).collect(),
        }
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
        self.without_waits.is_empty()
    }

    /// Those of a part of the time.
    pub(super) fn keep(&mut self, range: &Range<HostNs>) {
        for times in self.times.iter_mut().chain([&mut self.without_waits]) {
            times.retain(|time| range.contains(time));
        }
    }
}
