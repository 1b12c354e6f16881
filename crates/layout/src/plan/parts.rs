//! VMs as policies see them.

use std::collections::BTreeMap;

use super::capacity::Capacity;
use crate::load::{Arrival, Load, Placed, Vm};
use crate::policy::Part;
use crate::topology::Topology;

/// The VMs as parts that each fit into a node where possible, with the VM's place in the load.
pub(super) fn split(topology: &Topology, load: &Load, capacity: &Capacity) -> Vec<(usize, Part)> {
    let vms = load.vms.iter().enumerate().filter(|(at, _)| capacity.has(*at));
    let mut parts: Vec<(usize, Part)> = vms
        .flat_map(|(at, vm)| parts(topology, vm, capacity).into_iter().map(move |part| (at, part)))
        .collect();
    // Cells of a guest are parts of one VM, too.
    let mut counts = BTreeMap::<u32, usize>::new();
    for (_, part) in &mut parts {
        let count = counts.entry(part.vm).or_default();
        part.number = *count;
        *count += 1;
    }
    parts
}

fn parts(topology: &Topology, vm: &Vm, capacity: &Capacity) -> Vec<Part> {
    let least = count(topology, vm, capacity);
    let most = topology.len().min(vm.now.vcpus.len()).max(least);
    let mut ways = (least..=most).map(|n| in_parts(topology, vm, capacity, n));
    let has_homes = |parts: &Vec<Part>| parts.iter().all(|part| part.homes.contains(&true));
    // More parts than must be only where their vCPUs may not be on one node together.
    let first = ways.next().unwrap_or_default();
    if has_homes(&first) { first } else { ways.find(has_homes).unwrap_or(first) }
}

fn in_parts(topology: &Topology, vm: &Vm, capacity: &Capacity, n: usize) -> Vec<Part> {
    let order = in_order(&vm.now);
    let mut left = vm.now.memory.clone();
    let all = vm.bytes();
    let mut parts = Vec::with_capacity(n);
    for number in 0..n {
        let vcpus = &order[number * order.len() / n..(number + 1) * order.len() / n];
        let bytes = share(all, number, n);
        let homes: Vec<Option<usize>> = vcpus.iter().map(|vcpu| vm.now.vcpus[*vcpu]).collect();
        let memory = taken(topology, &mut left, usual(&homes), bytes);
        let mut part = part(topology, vm, (number, n), &homes, memory);
        let may_be_home = |cpus: usize| part.vcpus <= capacity.vcpus_per_cpu() * cpus;
        let cpus = vm.allowed.cpus_on(topology, vcpus);
        part.homes = cpus.into_iter().map(may_be_home).collect();
        parts.push(part);
    }
    parts
}

/// Its vCPUs with those of one node side by side, so that parts are as the VM is.
pub(super) fn in_order(placed: &Placed) -> Vec<usize> {
    let mut order: Vec<usize> = (0..placed.vcpus.len()).collect();
    order.sort_by_key(|vcpu| placed.vcpus[*vcpu]);
    order
}

fn part(
    topology: &Topology,
    vm: &Vm,
    (number, n): (usize, usize),
    vcpus: &[Option<usize>],
    memory: Vec<u64>,
) -> Part {
    let on = |node| vcpus.iter().filter(|home| **home == Some(node)).count();
    let signature = |sample: &crate::Sample| {
        let instructions = sample.instructions.filter(|n| 0.0 < *n)?;
        Some(10_000.0 * sample.misses / instructions)
    };
    let mut part = Part {
        vm: vm.id,
        name: vm.name.clone(),
        number,
        home: usual(vcpus),
        vcpus: vcpus.len(),
        vcpus_on: (0..topology.len()).map(on).collect(),
        homes: Vec::new(),
        memory,
        page: vm.page,
        memory_nodes: vm.allowed.memory_nodes(topology),
        misses_per_s: vm.misses_per_s() / n as f64,
        remote: 0.0,
        signatures: vm.samples.iter().filter_map(signature).collect(),
        may_move: vm.stays.is_none(),
        ran_s: vm.ran_s,
        seconds_per_byte: match vm.arrival {
            Arrival::Resident => 1.0 / vm.move_bytes_per_s as f64,
            Arrival::Incoming => 0.0,
        },
    };
    // What was counted of a VM that arrives was so on another host.
    let counted = vm.counted_remote().filter(|_| vm.arrival == Arrival::Resident);
    part.remote = counted.unwrap_or_else(|| part.placed().remote(topology));
    part
}

/// Into as few as must be; each has a vCPU.
fn count(topology: &Topology, vm: &Vm, capacity: &Capacity) -> usize {
    let vcpus = vm.now.vcpus.len();
    let most_vcpus = capacity.most_vcpus().max(1);
    let most_bytes = match vm.page {
        None => topology.nodes().iter().map(|node| node.total).max().unwrap_or(0),
        Some(_) => capacity.room().bytes.most(vm.page),
    };
    let most_bytes = most_bytes.max(1);
    let by_bytes = usize::try_from(vm.bytes().div_ceil(most_bytes)).unwrap_or(vcpus);
    vcpus.div_ceil(most_vcpus).max(by_bytes).min(topology.len()).min(vcpus).max(1)
}

/// The node of most.
fn usual(vcpus: &[Option<usize>]) -> Option<usize> {
    let count = |home: &Option<usize>| vcpus.iter().filter(|other| *other == home).count();
    vcpus.iter().max_by_key(|home| (count(home), std::cmp::Reverse(**home))).copied().flatten()
}

/// The `number`th of `n` shares that add up to all.
fn share(all: u64, number: usize, n: usize) -> u64 {
    let (number, n) = (number as u64, n as u64);
    all / n + u64::from(number < all % n)
}

/// Takes bytes from what is left, from near `home` first.
fn taken(topology: &Topology, left: &mut [u64], home: Option<usize>, bytes: u64) -> Vec<u64> {
    let mut memory = vec![0; left.len()];
    let mut missing = bytes;
    let order = home.map_or_else(|| (0..left.len()).collect(), |home| topology.nearest(home));
    for node in order {
        memory[node] = missing.min(left[node]);
        left[node] -= memory[node];
        missing -= memory[node];
    }
    memory
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn shares_add_up() {
        for (all, n) in [(10, 3), (0, 2), (7, 7), (1, 4)] {
            assert_eq!((0..n).map(|number| share(all, number, n)).sum::<u64>(), all);
        }
    }
}
