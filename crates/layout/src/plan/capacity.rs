//! What nodes have room for, and choices made to fit it.

use super::ordered;
use crate::load::{Arrival, Load, Placed, Vm};
use crate::moves::Move;
use crate::policy::{Choice, MemoryChoice, Part, Room};
use crate::topology::Topology;

/// What the VMs that may move can use.
#[derive(Debug)]
pub(super) struct Capacity {
    room: Room,
    /// Bytes that are free now, without the reserve.
    free: Vec<u64>,
    /// VMs that arrive and find no room.
    too_large: Vec<String>,
}

impl Capacity {
    pub(super) fn new(topology: &Topology, load: &Load, reserve_per_mille: u64) -> Self {
        let reserve = |total: u64| (total / 1000).saturating_mul(reserve_per_mille);
        let nodes = topology.nodes().iter();
        let free: Vec<u64> =
            nodes.map(|node| node.free.saturating_sub(reserve(node.total))).collect();
        let (too_large, vms) = fitting(load, &free);
        let mut room = Room { vcpus: vcpus(topology, &vms), bytes: free.clone() };
        for vm in vms.iter().filter(|vm| !vm.may_move) {
            for home in vm.now.vcpus.iter().flatten() {
                room.vcpus[*home] = room.vcpus[*home].saturating_sub(1);
            }
        }
        let residents = vms.iter().filter(|vm| vm.may_move && vm.arrival == Arrival::Resident);
        for vm in residents {
            for (room, bytes) in room.bytes.iter_mut().zip(&vm.now.memory) {
                *room = room.saturating_add(*bytes);
            }
        }
        Self { room, free, too_large }
    }

    /// Whether the host has room for a VM.
    pub(super) fn has(&self, vm: &Vm) -> bool {
        !self.too_large.contains(&vm.name)
    }

    pub(super) fn room(&self) -> &Room {
        &self.room
    }

    /// vCPUs of the node that has room for most.
    pub(super) fn most_vcpus(&self) -> usize {
        self.room.vcpus.iter().copied().max().unwrap_or(0)
    }

    pub(super) fn notes(&self) -> Vec<String> {
        let note =
            |name: &String| format!("{name} does not fit: the host has too little free memory");
        self.too_large.iter().map(note).collect()
    }

    /// Where everything goes by the policy's choices, made to fit.
    pub(super) fn placed(
        &self,
        topology: &Topology,
        load: &Load,
        parts: &[(usize, Part)],
        choices: &[Choice],
    ) -> Vec<Placed> {
        let mut room = self.room.clone();
        let mut placed: Vec<Placed> = load.vms.iter().map(|vm| vm.now.clone()).collect();
        let movable = || parts.iter().zip(choices).filter(|((_, part), _)| part.may_move);
        let homes = homes(topology, &mut room, movable());
        let mut memories: Vec<Option<Vec<u64>>> = vec![None; homes.len()];
        for (n, ((_, part), choice)) in movable().enumerate() {
            if choice.memory == MemoryChoice::Stay {
                // A VM that arrives has no right to it yet.
                let fits = part.memory.iter().zip(&room.bytes).all(|(bytes, room)| bytes <= room);
                let home = homes[n].or(part.home).unwrap_or_default();
                let near = || room.nearest(topology, home, part.bytes());
                let memory = if fits { part.memory.clone() } else { near() };
                room.take(None, 0, &memory);
                memories[n] = Some(memory);
            }
        }
        let mut following: Vec<(usize, &Part, &Choice)> = movable()
            .enumerate()
            .filter(|(n, _)| memories[*n].is_none())
            .map(|(n, ((_, part), choice))| (n, part, choice))
            .collect();
        following.sort_by_key(|(n, _, choice)| (choice.rank, *n));
        for (n, part, _) in following {
            let memory = match homes[n].or(part.home) {
                Some(home) => room.nearest(topology, home, part.bytes()),
                None => part.memory.clone(),
            };
            room.take(None, 0, &memory);
            memories[n] = Some(memory);
        }
        put_together(&mut placed, movable().map(|(part, _)| part), &homes, memories);
        placed
    }

    /// The residents' moves, each of which has room.
    pub(super) fn order(&self, load: &Load, wanted: &[Placed]) -> Vec<Move> {
        let residents: Vec<Placed> = load
            .vms
            .iter()
            .zip(wanted)
            .map(|(vm, wanted)| match vm.arrival {
                Arrival::Resident => wanted.clone(),
                Arrival::Incoming => vm.now.clone(),
            })
            .collect();
        ordered(load, &residents, &self.free)
    }

    /// Where everything is after these moves. Arriving memory that finds no room goes to the nearest.
    pub(super) fn reached(
        &self,
        topology: &Topology,
        load: &Load,
        wanted: &[Placed],
        moves: &[Move],
    ) -> Vec<Placed> {
        let mut free = Room { vcpus: Vec::new(), bytes: self.free.clone() };
        let mut memories = super::memories(load.vms.iter().map(|vm| &vm.now));
        for step in moves {
            memories[step.vm][step.from] -= step.bytes;
            memories[step.vm][step.to] += step.bytes;
            free.bytes[step.from] += step.bytes;
            free.bytes[step.to] -= step.bytes;
        }
        for ((vm, wanted), memory) in load.vms.iter().zip(wanted).zip(&mut memories) {
            if vm.arrival == Arrival::Incoming && self.has(vm) {
                *memory = arriving(topology, &free, wanted);
                free.take(None, 0, memory);
            }
        }
        let after = |(wanted, memory): (&Placed, Vec<u64>)| Placed { memory, ..wanted.clone() };
        wanted.iter().zip(memories).map(after).collect()
    }
}

fn arriving(topology: &Topology, free: &Room, wanted: &Placed) -> Vec<u64> {
    let mut memory: Vec<u64> =
        wanted.memory.iter().zip(&free.bytes).map(|(bytes, free)| (*bytes).min(*free)).collect();
    let mut left = free.clone();
    left.take(None, 0, &memory);
    let missing = wanted.bytes() - memory.iter().sum::<u64>();
    let home = wanted.vcpus.iter().flatten().next().copied().unwrap_or_default();
    let more = left.nearest(topology, home, missing);
    memory.iter_mut().zip(more).for_each(|(bytes, more)| *bytes += more);
    memory
}

/// Names of the VMs that arrive and do not fit, and all other VMs.
fn fitting<'a>(load: &'a Load, free: &[u64]) -> (Vec<String>, Vec<&'a Vm>) {
    let mut left = free.iter().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
    let (mut too_large, mut fitting) = (Vec::new(), Vec::new());
    for vm in &load.vms {
        match vm.arrival {
            Arrival::Incoming if left < vm.bytes() => too_large.push(vm.name.clone()),
            Arrival::Incoming => {
                left -= vm.bytes();
                fitting.push(vm);
            }
            Arrival::Resident => fitting.push(vm),
        }
    }
    (too_large, fitting)
}

/// vCPUs that each node may have: one for each CPU, or as many more as the whole host has.
fn vcpus(topology: &Topology, vms: &[&Vm]) -> Vec<usize> {
    let all: usize = vms.iter().map(|vm| vm.now.vcpus.len()).sum();
    let times = all.div_ceil(topology.cpus()).max(1);
    topology.nodes().iter().map(|node| times * node.cpus.len()).collect()
}

/// The node to which the vCPUs of each part that may move go; `None`: they stay as they are. If there is no room for
/// all, nobody's go.
fn homes<'a>(
    topology: &Topology,
    room: &mut Room,
    parts: impl Iterator<Item = (&'a (usize, Part), &'a Choice)>,
) -> Vec<Option<usize>> {
    let wanted = |(part, choice): (&'a Part, &Choice)| {
        let home = choice.home.filter(|home| *home < topology.len());
        (part, home.filter(|home| part.vcpus_on[*home] != part.vcpus))
    };
    let parts: Vec<(&Part, Option<usize>)> =
        parts.map(|((_, part), choice)| wanted((part, choice))).collect();
    for (part, _) in parts.iter().filter(|(_, home)| home.is_none()) {
        for (room, vcpus) in room.vcpus.iter_mut().zip(&part.vcpus_on) {
            *room = room.saturating_sub(*vcpus);
        }
    }
    let mut home = |(part, wanted): &(&Part, Option<usize>)| {
        let Some(wanted) = wanted else { return Some(None) };
        let mut nearest = topology.nearest(*wanted).into_iter();
        let found = nearest.find(|node| room.has_vcpus(*node, part.vcpus))?;
        room.take(Some(found), part.vcpus, &[]);
        Some(Some(found))
    };
    let homes: Option<Vec<Option<usize>>> = parts.iter().map(&mut home).collect();
    homes.unwrap_or_else(|| vec![None; parts.len()])
}

/// Parts back to VMs: the vCPUs in the order in which they were dealt out.
fn put_together<'a>(
    placed: &mut [Placed],
    parts: impl Iterator<Item = &'a (usize, Part)>,
    homes: &[Option<usize>],
    memories: Vec<Option<Vec<u64>>>,
) {
    let mut begun = vec![false; placed.len()];
    let mut order: Vec<std::collections::VecDeque<usize>> = vec![Default::default(); placed.len()];
    for (((vm, part), home), memory) in parts.zip(homes).zip(memories) {
        let memory = memory.unwrap_or_else(|| part.memory.clone());
        let whole = &mut placed[*vm];
        if !std::mem::replace(&mut begun[*vm], true) {
            let mut vcpus: Vec<usize> = (0..whole.vcpus.len()).collect();
            vcpus.sort_by_key(|vcpu| whole.vcpus[*vcpu]);
            order[*vm] = vcpus.into();
            whole.memory.fill(0);
        }
        let n = part.vcpus.min(order[*vm].len());
        for vcpu in order[*vm].drain(..n) {
            whole.vcpus[vcpu] = home.or(whole.vcpus[vcpu]);
        }
        whole.memory.iter_mut().zip(&memory).for_each(|(sum, bytes)| *sum += bytes);
    }
}
