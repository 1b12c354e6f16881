//! Leaves out of a plan what is not worth its moves.
//!
//! Policies say where everything should be, not what it is worth: a VM may be moved that hardly uses memory, or two may
//! change places for nothing. Each VM that moves, and those that need its room, are tried without.

use std::collections::BTreeSet;

use super::capacity::Capacity;
use super::{Options, depending};
use crate::load::{Arrival, Load, Placed};
use crate::moves::Move;
use crate::topology::Topology;

/// VMs that are tried without at most, those with most to move first.
const MAX_TRIED: usize = 64;

/// Where everything goes, in which moves, and what comes of it.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    pub(super) wanted: Vec<Placed>,
    pub(super) moves: Vec<Move>,
    /// Where everything is after the moves.
    pub(super) after: Vec<Placed>,
    pub(super) speeds: Vec<f64>,
    /// The speed-up of all VMs together, as a fraction.
    pub(super) gain: f64,
}

/// What layouts are weighed with.
#[derive(Debug)]
pub(super) struct Scales<'a> {
    pub(super) topology: &'a Topology,
    pub(super) load: &'a Load,
    pub(super) capacity: &'a Capacity,
    pub(super) options: &'a Options,
    pub(super) speeds_before: &'a [f64],
}

impl Scales<'_> {
    /// What comes of a layout by these moves.
    pub(super) fn layout(&self, wanted: Vec<Placed>, moves: Vec<Move>) -> Layout {
        let Self { topology, load, capacity, options, speeds_before } = *self;
        let after = capacity.reached(topology, load, &wanted, &moves);
        let present: Vec<Option<Placed>> = after
            .iter()
            .enumerate()
            .map(|(at, placed)| capacity.has(at).then(|| placed.clone()))
            .collect();
        let speeds = options.model.speeds(topology, load, &present);
        let total = |speeds: &[f64]| super::total(load, speeds, &options.model);
        let gain = total(&speeds) / total(speeds_before).max(1e-9) - 1.0;
        Layout { wanted, moves, after, speeds, gain }
    }

    /// The layout without what is not worth its moves.
    pub(super) fn worth_it(&self, whole: Layout) -> Layout {
        let mut best = whole;
        let mut movers: Vec<usize> = (0..self.load.vms.len()).collect();
        let bytes = |at: usize| moved(&best.moves, at);
        movers.retain(|at| 0 < bytes(*at));
        movers.sort_by_key(|at| (std::cmp::Reverse(bytes(*at)), *at));
        for at in movers.into_iter().take(MAX_TRIED) {
            if moved(&best.moves, at) == 0 {
                continue;
            }
            let less = self.without(&best, at);
            if self.is_as_good(&less, &best) {
                best = less;
            }
        }
        best
    }

    /// The layout if one VM stays, and with it those that would have no room.
    fn without(&self, layout: &Layout, at: usize) -> Layout {
        let free = self.capacity.free();
        let mut staying = BTreeSet::from([at]);
        loop {
            staying = depending(&layout.moves, free, &staying);
            let mut wanted = layout.wanted.clone();
            for at in &staying {
                wanted[*at] = self.load.vms[*at].now.clone();
            }
            let crowding = self.crowding(&wanted);
            if crowding.is_empty() {
                let stays = |step: &&Move| !staying.contains(&step.vm);
                let moves = layout.moves.iter().filter(stays).copied().collect();
                return self.layout(wanted, moves);
            }
            staying.extend(crowding);
        }
    }

    /// VMs whose vCPUs come to a node that then has more than it may.
    fn crowding(&self, wanted: &[Placed]) -> Vec<usize> {
        let count =
            |placed: &Placed, node| placed.vcpus.iter().filter(|home| **home == Some(node)).count();
        let vms = || {
            self.load.vms.iter().zip(wanted).enumerate().filter(|(at, _)| self.capacity.has(*at))
        };
        let is_crowded = |node: &usize| {
            let used: usize = vms().map(|(_, (_, wanted))| count(wanted, *node)).sum();
            let before: usize = vms().map(|(_, (vm, _))| count(&vm.now, *node)).sum();
            self.capacity.most_vcpus_on(*node).max(before) < used
        };
        let crowded: Vec<usize> = (0..self.topology.len()).filter(is_crowded).collect();
        let comes = |node: &usize, (vm, wanted): (&crate::Vm, &Placed)| {
            count(&vm.now, *node) < count(wanted, *node)
        };
        let crowds = vms().filter(|(_, pair)| crowded.iter().any(|node| comes(node, *pair)));
        crowds.map(|(at, _)| at).collect()
    }

    /// Whether a layout with fewer moves is as good as one with more: what it lacks of the gain is less than the moves cost,
    /// and no VM is noticeably slower.
    fn is_as_good(&self, less: &Layout, more: &Layout) -> bool {
        let saved = self.moving_s(&more.moves) - self.moving_s(&less.moves);
        let cost = self.options.moving * saved / self.options.pay_back_s;
        let is_slower = |(less, more): (&f64, &f64)| *less < more * (1.0 - self.options.least_gain);
        more.gain - less.gain <= cost && !less.speeds.iter().zip(&more.speeds).any(is_slower)
    }

    fn moving_s(&self, moves: &[Move]) -> f64 {
        let seconds = |step: &Move| {
            let vm = &self.load.vms[step.vm];
            match vm.arrival {
                Arrival::Resident => step.bytes as f64 / vm.move_bytes_per_s as f64,
                Arrival::Incoming => 0.0,
            }
        };
        moves.iter().map(seconds).sum()
    }
}

fn moved(moves: &[Move], at: usize) -> u64 {
    moves.iter().filter(|step| step.vm == at).map(|step| step.bytes).sum()
}
