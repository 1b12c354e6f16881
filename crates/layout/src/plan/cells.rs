//! VMs whose guests have NUMA nodes of their own.
//!
//! ```text
//!  web: vCPUs 0 1 2 3 --> cell 0: vCPUs 0 1, its memory --+--> planned like VMs --> web: vCPUs, memory and moves of both
//!                         cell 1: vCPUs 2 3, its memory --+
//! ```
//! The guest believes that a cell's vCPUs are near the cell's memory, so they go together.

use super::{Plan, VmPlan};
use crate::load::{Allowed, Cell, Load, Placed, Sample, Vm};
use crate::moves::Move;
use crate::topology::Topology;

/// A load whose VMs are whole, or cells.
#[derive(Debug)]
pub(super) struct Split {
    pub(super) load: Load,
    /// The VM's place in the load before, and which of its cells it is.
    from: Vec<(usize, Option<usize>)>,
}

impl Split {
    /// `None`: no guest has NUMA nodes of its own.
    pub(super) fn new(load: &Load) -> Option<Self> {
        if load.vms.iter().all(|vm| vm.cells.is_empty()) {
            return None;
        }
        let mut split = Self { load: Load::default(), from: Vec::new() };
        for (at, vm) in load.vms.iter().enumerate() {
            if vm.cells.is_empty() {
                split.load.vms.push(vm.clone());
                split.from.push((at, None));
            }
            // One without vCPUs has nothing to be near to, and stays.
            let cells = vm.cells.iter().enumerate().filter(|(_, cell)| !cell.vcpus.is_empty());
            for (number, _) in cells {
                split.load.vms.push(cell(vm, number));
                split.from.push((at, Some(number)));
            }
        }
        Some(split)
    }

    /// The plan for the load before.
    pub(super) fn whole(&self, load: &Load, plan: Plan) -> Plan {
        let mut vms: Vec<VmPlan> = super::nothing(plan.policy, load).vms;
        for ((at, number), part) in self.from.iter().zip(plan.vms) {
            match number {
                None => vms[*at] = part,
                Some(number) => join(&mut vms[*at], &load.vms[*at], *number, part),
            }
        }
        let step = |step: Move| {
            let (vm, cell) = self.from[step.vm];
            Move { vm, cell, ..step }
        };
        let moves = plan.moves.into_iter().map(step).collect();
        Plan { vms, moves, ..plan }
    }
}

impl Plan {
    /// The part of a VM's accesses that goes to another node than the vCPU's, before and after: each cell's vCPUs use the
    /// cell's memory.
    #[must_use]
    pub fn remote(&self, topology: &Topology, at: usize, vm: &Vm) -> [f64; 2] {
        let planned = &self.vms[at];
        let after = |(number, cell): (usize, &Cell)| Cell {
            vcpus: cell.vcpus.clone(),
            memory: self.cell_after(at, vm, number),
        };
        let cells: Vec<Cell> = vm.cells.iter().enumerate().map(after).collect();
        let before = planned.before.remote_of_cells(topology, &vm.cells);
        [before, planned.after.remote_of_cells(topology, &cells)]
    }

    /// The memory of a cell after the plan's moves.
    pub(super) fn cell_after(&self, at: usize, vm: &Vm, cell: usize) -> Vec<u64> {
        let mut memory = vm.cells[cell].memory.clone();
        for step in self.moves.iter().filter(|step| (step.vm, step.cell) == (at, Some(cell))) {
            memory[step.from] = memory[step.from].saturating_sub(step.bytes);
            memory[step.to] = memory[step.to].saturating_add(step.bytes);
        }
        memory
    }
}

fn cell(vm: &Vm, number: usize) -> Vm {
    let cell = &vm.cells[number];
    let share = cell.vcpus.len() as f64 / vm.now.vcpus.len().max(1) as f64;
    let sample = |sample: &Sample| Sample {
        misses: sample.misses * share,
        instructions: sample.instructions.map(|n| n * share),
        ..*sample
    };
    let cpus = cell.vcpus.iter().map(|vcpu| vm.allowed.cpus.get(*vcpu).cloned().flatten());
    let vcpus = cell.vcpus.iter().map(|vcpu| vm.now.vcpus[*vcpu]).collect();
    Vm {
        name: format!("{}, NUMA node {number}", vm.name),
        now: Placed { vcpus, memory: cell.memory.clone() },
        allowed: Allowed { cpus: cpus.collect(), memory: vm.allowed.memory.clone() },
        samples: vm.samples.iter().map(sample).collect(),
        cells: Vec::new(),
        ..vm.clone()
    }
}

/// Adds what is planned for a cell.
fn join(whole: &mut VmPlan, vm: &Vm, number: usize, part: VmPlan) {
    let cell = &vm.cells[number];
    let share = cell.vcpus.len() as f64 / vm.now.vcpus.len().max(1) as f64;
    whole.speed_before += share * part.speed_before;
    whole.speed_after += share * part.speed_after;
    whole.fits &= part.fits;
    for (vcpu, home) in cell.vcpus.iter().zip(&part.after.vcpus) {
        whole.after.vcpus[*vcpu] = *home;
    }
    for ((sum, before), after) in
        whole.after.memory.iter_mut().zip(&part.before.memory).zip(&part.after.memory)
    {
        *sum = sum.saturating_sub(*before).saturating_add(*after);
    }
    if !whole.reason.contains(&part.reason) {
        let comma = if whole.reason.is_empty() { "" } else { ", " };
        whole.reason += &format!("{comma}{}", part.reason);
    }
}
