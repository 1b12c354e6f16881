//! What nodes have room for, and choices made to fit it.

use std::collections::BTreeSet;

use super::{Options, ordered, parts};
use crate::load::{Arrival, Load, Placed, Vm};
use crate::moves::Move;
use crate::policy::{Choice, MemoryChoice, Part, Room};
use crate::topology::{NodeBytes, Topology};

/// What the VMs that may move can use.
#[derive(Debug)]
pub(super) struct Capacity {
    room: Room,
    /// vCPUs that each CPU may have.
    vcpus_per_cpu: usize,
    /// vCPUs that each node may have.
    most_vcpus: Vec<usize>,
    /// Bytes that are free now, without the reserve.
    free: NodeBytes,
    /// VMs that arrive and find no room, by their places in the load.
    too_large: Vec<usize>,
}

impl Capacity {
    pub(super) fn new(topology: &Topology, load: &Load, options: &Options) -> Self {
        let free = options.free(topology);
        let too_large = too_large(topology, load, &free);
        let vms = load.vms.iter().enumerate().filter(|(at, _)| !too_large.contains(at));
        let vms: Vec<&Vm> = vms.map(|(_, vm)| vm).collect();
        let cpus = usable_cpus(topology, &vms);
        let all: usize = vms.iter().map(|vm| vm.now.vcpus.len()).sum();
        // One, or as many more as the whole host has.
        let vcpus_per_cpu = all.div_ceil(cpus.iter().sum::<usize>().max(1)).max(1);
        let most_vcpus: Vec<usize> = cpus.into_iter().map(|cpus| vcpus_per_cpu * cpus).collect();
        let mut room = Room { vcpus: most_vcpus.clone(), bytes: free.clone() };
        for vm in vms.iter().filter(|vm| vm.stays.is_some()) {
            for home in vm.now.vcpus.iter().flatten() {
                room.vcpus[*home] = room.vcpus[*home].saturating_sub(1);
            }
            if vm.arrival == Arrival::Incoming {
                room.bytes.take(vm.page, &vm.now.memory);
            }
        }
        let residents =
            vms.iter().filter(|vm| vm.stays.is_none() && vm.arrival == Arrival::Resident);
        for vm in residents {
            room.bytes.add(vm.page, &vm.now.memory);
        }
        Self { room, vcpus_per_cpu, most_vcpus, free, too_large }
    }

    /// Whether the host has room for a VM.
    pub(super) fn has(&self, at: usize) -> bool {
        !self.too_large.contains(&at)
    }

    /// Bytes that are free now, without the reserve.
    pub(super) fn free(&self) -> &NodeBytes {
        &self.free
    }

    /// vCPUs that each CPU may have.
    pub(super) fn vcpus_per_cpu(&self) -> usize {
        self.vcpus_per_cpu
    }

    /// vCPUs that a node may have.
    pub(super) fn most_vcpus_on(&self, node: usize) -> usize {
        self.most_vcpus[node]
    }

    pub(super) fn room(&self) -> &Room {
        &self.room
    }

    /// vCPUs of the node that has room for most.
    pub(super) fn most_vcpus(&self) -> usize {
        self.room.vcpus.iter().copied().max().unwrap_or(0)
    }

    pub(super) fn notes(&self, load: &Load) -> Vec<String> {
        let note = |at: &usize| {
            let name = &load.vms[*at].name;
            format!("{name} does not fit: the host has too little free memory")
        };
        self.too_large.iter().map(note).collect()
    }

    /// Where everything goes by the policy's choices, made to fit.
    ///
    /// # Errors
    /// VMs whose memory finds no room on the nodes that they may use, by their places in the load.
    pub(super) fn placed(
        &self,
        topology: &Topology,
        load: &Load,
        parts: &[(usize, Part)],
        choices: &[Choice],
    ) -> Result<Vec<Placed>, Vec<usize>> {
        let mut room = self.room.clone();
        let mut placed: Vec<Placed> = load.vms.iter().map(|vm| vm.now.clone()).collect();
        let movable = || parts.iter().zip(choices).filter(|((_, part), _)| part.may_move);
        let homes = homes(topology, &mut room, movable());
        let memories = memories(topology, &mut room, &homes, movable());
        let is_short = |((part, _), memory): &((&(usize, Part), &Choice), &Vec<u64>)| {
            part.1.memory_nodes.contains(&false) && !part.1.holds(memory)
        };
        let short: Vec<usize> =
            movable().zip(&memories).filter(is_short).map(|((part, _), _)| part.0).collect();
        if !short.is_empty() {
            return Err(short);
        }
        put_together(&mut placed, movable().map(|(part, _)| part), &homes, memories);
        Ok(placed)
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
            free.bytes.carry_out(step);
        }
        let vms = load.vms.iter().enumerate();
        for (((at, vm), wanted), memory) in vms.zip(wanted).zip(&mut memories) {
            if vm.arrival == Arrival::Incoming && self.has(at) {
                *memory = arriving(topology, &free, vm, wanted);
                free.bytes.take(vm.page, memory);
            }
        }
        let after = |(wanted, memory): (&Placed, Vec<u64>)| Placed { memory, ..wanted.clone() };
        wanted.iter().zip(memories).map(after).collect()
    }
}

/// The memory of each part that may move, where it stays and where it follows.
fn memories<'a>(
    topology: &Topology,
    room: &mut Room,
    homes: &[Option<usize>],
    parts: impl Iterator<Item = (&'a (usize, Part), &'a Choice)>,
) -> Vec<Vec<u64>> {
    let mut memories: Vec<Vec<u64>> = vec![Vec::new(); homes.len()];
    let parts = parts.enumerate().map(|(n, ((_, part), choice))| (n, part, choice));
    let (staying, mut following): (Vec<_>, Vec<_>) =
        parts.partition(|(_, _, choice)| choice.memory == MemoryChoice::Stay);
    for (n, part, _) in staying {
        // A VM that arrives has no right to it yet.
        let fits = room.bytes.has(part.page, &part.memory);
        let home = homes[n].or(part.home).unwrap_or_default();
        let near = || room.nearest(topology, home, part);
        memories[n] = if fits { part.memory.clone() } else { near() };
        room.take(None, part, &memories[n]);
    }
    // Those that may use few nodes only come first.
    let nodes = |part: &Part| part.memory_nodes.iter().filter(|may| **may).count();
    following.sort_by_key(|(n, part, choice)| (nodes(part), choice.rank, *n));
    for (n, part, _) in following {
        memories[n] = match homes[n].or(part.home) {
            Some(home) => room.nearest(topology, home, part),
            None => part.memory.clone(),
        };
        room.take(None, part, &memories[n]);
    }
    memories
}

fn arriving(topology: &Topology, free: &Room, vm: &Vm, wanted: &Placed) -> Vec<u64> {
    let least = |(node, bytes): (usize, &u64)| (*bytes).min(free.bytes.on(vm.page, node));
    let mut memory: Vec<u64> = wanted.memory.iter().enumerate().map(least).collect();
    let mut left = free.clone();
    left.bytes.take(vm.page, &memory);
    let missing = wanted.bytes() - memory.iter().sum::<u64>();
    let home = wanted.vcpus.iter().flatten().next().copied().unwrap_or_default();
    let nodes = vm.allowed.memory_nodes(topology);
    let more = left.nearest_of(topology, home, (missing, vm.page), &nodes);
    left.bytes.take(vm.page, &more);
    // Where it may not lie it will not: the kernel then refuses it, and its QEMU does not start.
    let missing = missing - more.iter().sum::<u64>();
    let all = vec![true; topology.len()];
    let elsewhere = left.nearest_of(topology, home, (missing, vm.page), &all);
    memory.iter_mut().zip(more).for_each(|(bytes, more)| *bytes += more);
    memory.iter_mut().zip(elsewhere).for_each(|(bytes, more)| *bytes += more);
    memory
}

/// The VMs that arrive and do not fit on the nodes that they may use.
fn too_large(topology: &Topology, load: &Load, free: &NodeBytes) -> Vec<usize> {
    let mut left = Room { vcpus: Vec::new(), bytes: free.clone() };
    let mut too_large = Vec::new();
    for (at, vm) in load.vms.iter().enumerate() {
        if vm.arrival == Arrival::Incoming {
            let nodes = vm.allowed.memory_nodes(topology);
            let memory = left.nearest_of(topology, 0, (vm.bytes(), vm.page), &nodes);
            match memory.iter().sum::<u64>() == vm.bytes() {
                true => left.bytes.take(vm.page, &memory),
                false => too_large.push(at),
            }
        }
    }
    too_large
}

/// How many CPUs of each node there are for VMs: those that one of them may use at least.
pub(super) fn usable_cpus(topology: &Topology, vms: &[&Vm]) -> Vec<usize> {
    let nodes = topology.nodes().iter();
    let is_free =
        |vm: &&Vm| vm.allowed.cpus.len() < vm.now.vcpus.len() || vm.allowed.cpus.contains(&None);
    if vms.is_empty() || vms.iter().any(is_free) {
        return nodes.map(|node| node.cpus.len()).collect();
    }
    let limits = vms.iter().flat_map(|vm| &vm.allowed.cpus).flatten();
    let usable: BTreeSet<u32> = limits.flatten().copied().collect();
    nodes.map(|node| node.cpus.iter().filter(|cpu| usable.contains(cpu)).count()).collect()
}

/// The node to which the vCPUs of each part that may move go; `None`: they stay as they are. If there is no room for
/// all, of no task go.
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
        let found = nearest.find(|node| room.has_vcpus(*node, part))?;
        room.take(Some(found), part, &[]);
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
    memories: Vec<Vec<u64>>,
) {
    let mut begun = vec![false; placed.len()];
    let mut order: Vec<std::collections::VecDeque<usize>> = vec![Default::default(); placed.len()];
    for (((vm, part), home), memory) in parts.zip(homes).zip(memories) {
        let whole = &mut placed[*vm];
        if !std::mem::replace(&mut begun[*vm], true) {
            order[*vm] = parts::in_order(whole).into();
            whole.memory.fill(0);
        }
        let n = part.vcpus.min(order[*vm].len());
        for vcpu in order[*vm].drain(..n) {
            whole.vcpus[vcpu] = home.or(whole.vcpus[vcpu]);
        }
        whole.memory.iter_mut().zip(&memory).for_each(|(sum, bytes)| *sum += bytes);
    }
}
