//! Who was seen on each pCPU, and when.

use model::CpuId;
use rustc_hash::FxHashMap;

use super::Occupant;
use super::track::Point;

/// A task or vCPU seen on a pCPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CpuObservation {
    pub(super) time: u64,
    pub(super) who: Occupant,
}

impl CpuObservation {
    pub(super) fn is_idle(&self) -> bool {
        self.who == Occupant::Idle
    }
}

/// Of a gap of this many marks all are looked at. Many vCPUs may have a gap that is as long as the recording.
const MANY: usize = 256;

/// All marks, by pCPU.
#[derive(Debug, Default)]
pub(super) struct CpuObservations(FxHashMap<CpuId, Vec<CpuObservation>>);

impl CpuObservations {
    pub(super) fn add(&mut self, cpu: CpuId, mark: CpuObservation) {
        self.0.entry(cpu).or_default().push(mark);
    }

    /// Puts them in time order.
    pub(super) fn sort(&mut self) {
        for marks in self.0.values_mut() {
            if !marks.is_sorted_by_key(|mark| mark.time) {
                marks.sort_by_key(|mark| mark.time);
            }
        }
    }

    /// In order of the CPUs.
    pub(super) fn by_cpu(&self) -> Vec<(CpuId, &[CpuObservation])> {
        let mut by_cpu: Vec<_> = self.0.iter().map(|(cpu, marks)| (*cpu, &marks[..])).collect();
        by_cpu.sort_unstable_by_key(|(cpu, _)| *cpu);
        by_cpu
    }

    /// The marks of a CPU between two instants, both excluded. Of many marks, an even selection.
    pub(super) fn some_between(
        &self,
        cpu: CpuId,
        from: u64,
        to: u64,
    ) -> impl Iterator<Item = &CpuObservation> {
        let marks = self.between(cpu, from, to);
        marks.iter().step_by(marks.len().div_ceil(MANY).max(1))
    }

    /// How often others were seen between two neighbouring points of a vCPU, on the CPU of either, whichever shows more.
    pub(super) fn absent(&self, a: &Point, b: &Point) -> u64 {
        // The vCPU itself was not seen in between.
        let count = |cpu| self.between(cpu, a.time, b.time).len() as u64;
        let before = count(a.cpu);
        if a.cpu == b.cpu { before } else { before.max(count(b.cpu)) }
    }

    /// Observations of a CPU between two instants, both excluded.
    fn between(&self, cpu: CpuId, from: u64, to: u64) -> &[CpuObservation] {
        let marks = self.0.get(&cpu).map_or(&[][..], |marks| &marks[..]);
        let begin = marks.partition_point(|mark| mark.time <= from);
        let end = marks.partition_point(|mark| mark.time < to);
        marks.get(begin..end).unwrap_or_default()
    }
}
