//! Who was seen on each pCPU, and when.

use model::{CpuId, VcpuId};
use rustc_hash::FxHashMap;

use super::Occupant;
use super::track::Point;

/// Somebody seen on a pCPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) time: u64,
    pub(super) who: Occupant,
}

impl Mark {
    pub(super) fn is_idle(&self) -> bool {
        self.who == Occupant::Idle
    }
}

/// All marks, by pCPU.
#[derive(Debug, Default)]
pub(super) struct Marks(FxHashMap<CpuId, Vec<Mark>>);

impl Marks {
    pub(super) fn add(&mut self, cpu: CpuId, mark: Mark) {
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
    pub(super) fn by_cpu(&self) -> Vec<(CpuId, &[Mark])> {
        let mut by_cpu: Vec<_> = self.0.iter().map(|(cpu, marks)| (*cpu, &marks[..])).collect();
        by_cpu.sort_unstable_by_key(|(cpu, _)| *cpu);
        by_cpu
    }

    /// Who else was seen on a CPU between two instants, both excluded.
    pub(super) fn others(
        &self,
        vcpu: VcpuId,
        cpu: CpuId,
        from: u64,
        to: u64,
    ) -> impl Iterator<Item = &Mark> {
        let marks = self.0.get(&cpu).map_or(&[][..], |marks| &marks[..]);
        let begin = marks.partition_point(|mark| mark.time <= from);
        let within = marks.get(begin..).unwrap_or_default();
        let within = within.iter().take_while(move |mark| mark.time < to);
        within.filter(move |mark| mark.who != Occupant::Vcpu(vcpu))
    }

    /// How often others were seen between two points on the CPU of either, whichever shows more.
    pub(super) fn absent(&self, vcpu: VcpuId, a: &Point, b: &Point) -> u64 {
        let count = |cpu| self.others(vcpu, cpu, a.time, b.time).count() as u64;
        let before = count(a.cpu);
        if a.cpu == b.cpu { before } else { before.max(count(b.cpu)) }
    }
}
