//! From a load to a plan: what all policies have in common.
//!
//! ```text
//!  gate: does memory matter at all? --> parts --> policy --> capacity --> order of moves --> less of them? --> gain
//! ```
//!
//! A plan is only made if the model says that the VMs gain by it. Plans for the same load, carried out one after the
//! other, thus make it faster each time, and can't go round in circles.

mod capacity;
mod cells;
mod parts;
mod saved;
#[cfg(test)]
pub(crate) mod test;
mod worth;

use std::collections::BTreeSet;
use std::slice::from_ref;

use crate::load::{Allowed, Arrival, Load, Placed, Vm};
use crate::model::Model;
use crate::moves::{self, Move};
use crate::policy::Policy;
use crate::topology::{HugePage, NodeBytes, Topology};

pub use saved::{Misfit, SavedVm, read_plan};

use capacity::Capacity;
use cells::Split;
use worth::Scales;

/// What a vCPU counts for that does not wait for memory at all.
const MIN_WEIGHT: f64 = 0.01;
/// Every plan makes the VMs together faster by at least this much: otherwise plans could alternate for ever.
const PROGRESS: f64 = 0.001;

/// What a plan must keep to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    pub model: Model,
    /// Nothing is planned if no VM waits for memory so much of its time.
    pub least_waiting: f64,
    /// A plan must make the VMs faster by at least this much.
    pub least_gain: f64,
    /// Or one of them by so much, and all together no slower.
    pub least_vm_gain: f64,
    /// Thousandths of each node's memory that stay free.
    pub reserve_per_mille: u64,
    /// The part of their speed that VMs lose while memory is moved.
    pub moving: f64,
    /// A move must make up for that within so many seconds.
    pub pay_back_s: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            model: Model::default(),
            least_waiting: 0.05,
            least_gain: 0.02,
            least_vm_gain: 0.1,
            reserve_per_mille: 10,
            moving: 0.05,
            pay_back_s: 100.0,
        }
    }
}

impl Options {
    /// What plans may use of the free memory.
    fn free(&self, topology: &Topology) -> NodeBytes {
        let reserve =
            |node: &crate::Node| (node.total / 1000).saturating_mul(self.reserve_per_mille);
        let mut free = topology.free();
        free.take(None, &topology.nodes().iter().map(reserve).collect::<Vec<_>>());
        free
    }
}

/// What to do with the VMs of a host.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    pub policy: &'static str,
    /// Whether there is something to do.
    pub outcome: Outcome,
    /// Each VM of the load, in its order.
    pub vms: Vec<VmPlan>,
    /// Memory to move, in this order. Memory of VMs that arrive is not among it.
    pub moves: Vec<Move>,
    /// What the reader should know.
    pub notes: Vec<String>,
}

/// Whether there is something to do, and if not, why.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Outcome {
    /// Yes: all VMs together become faster by this part.
    Move {
        /// A part of their speed before.
        gain: f64,
    },
    /// Nothing counted how VMs use memory.
    NoCounters,
    /// No VM waits for memory long enough for its place to matter.
    LittleTraffic {
        /// The most that any does, as a part of its time.
        waiting: f64,
    },
    /// The policy wants everything as it is.
    InPlace,
    /// The gain is not worth the moves.
    LittleGain {
        /// The part by which VMs would become faster; may be negative.
        gain: f64,
    },
}

/// What becomes of a VM.
#[derive(Debug, Clone, PartialEq)]
pub struct VmPlan {
    /// Its number in the load.
    pub id: u32,
    pub name: String,
    /// Whether it is there yet.
    pub arrival: Arrival,
    /// Whether the host has room for it; if not, it is left out of the plan.
    pub fits: bool,
    /// Where it is; for a VM that arrives: where it would be without a plan.
    pub before: Placed,
    /// Where it is to be.
    pub after: Placed,
    /// Its speed before, relative to being alone with local memory.
    pub speed_before: f64,
    pub speed_after: f64,
    /// Why it is to be there.
    pub reason: String,
}

impl Plan {
    /// The load once the plan is carried out: VMs that arrived are residents. Those that do not fit are not there.
    #[must_use]
    pub fn carried_out(&self, load: &Load) -> Load {
        let vm = |(vm, plan): (&Vm, &VmPlan)| Vm {
            now: plan.after.clone(),
            arrival: Arrival::Resident,
            ..vm.clone()
        };
        Load { vms: load.vms.iter().zip(&self.vms).filter(|(_, plan)| plan.fits).map(vm).collect() }
    }

    /// The plan that brings one VM to where it should be, as far as there is room.
    #[must_use]
    pub fn for_one(
        topology: &Topology,
        (id, name): (u32, &str),
        page: HugePage,
        now: &Placed,
        wanted: &Placed,
    ) -> Self {
        let vm = VmPlan {
            id,
            name: name.to_owned(),
            arrival: Arrival::Resident,
            fits: true,
            before: now.clone(),
            after: wanted.clone(),
            speed_before: 0.0,
            speed_after: 0.0,
            reason: String::new(),
        };
        let moves = moves::order(
            from_ref(&now.memory),
            from_ref(&wanted.memory),
            from_ref(&page),
            &topology.free(),
        );
        let outcome = Outcome::InPlace;
        Self { policy: "", outcome, vms: vec![vm], moves, notes: Vec::new() }
    }

    /// The VMs that can't be where they should if `staying` do not move: these, and those whose memory then finds no room.
    /// By their places in the plan.
    #[must_use]
    pub fn depending(&self, topology: &Topology, staying: &BTreeSet<usize>) -> BTreeSet<usize> {
        depending(&self.moves, &topology.free(), staying)
    }

    /// Bytes of residents that it moves.
    #[must_use]
    pub fn moved_bytes(&self) -> u64 {
        self.moves.iter().map(|step| step.bytes).sum()
    }
}

/// Plans for a load. It must fit the topology (`Load::check`); what does not is left alone.
#[must_use]
pub fn plan(topology: &Topology, load: &Load, policy: &mut dyn Policy, options: &Options) -> Plan {
    if let Err(error) = load.check(topology) {
        return Plan { notes: vec![error.to_string()], ..nothing(policy.name(), load) };
    }
    match Split::new(load) {
        Some(split) => split.whole(load, plan_whole(topology, &split.load, policy, options)),
        None => plan_whole(topology, load, policy, options),
    }
}

fn plan_whole(
    topology: &Topology,
    load: &Load,
    policy: &mut dyn Policy,
    options: &Options,
) -> Plan {
    let capacity = Capacity::new(topology, load, options);
    let is_there = |(at, vm): (usize, &Vm)| capacity.has(at).then(|| vm.now.clone());
    let before: Vec<Option<Placed>> = load.vms.iter().enumerate().map(is_there).collect();
    let speeds_before = options.model.speeds(topology, load, &before);
    let mut plan = nothing(policy.name(), load);
    plan.notes = capacity.notes(load);
    for ((vm, speed), before) in plan.vms.iter_mut().zip(&speeds_before).zip(&before) {
        (vm.speed_before, vm.speed_after) = (*speed, *speed);
        vm.fits = before.is_some();
    }
    if let Some(outcome) = gate(load, options) {
        return Plan { outcome, ..plan };
    }
    let (capacity, wanted) = wanted(topology, load, policy, options, &mut plan);
    let scales =
        Scales { topology, load, capacity: &capacity, options, speeds_before: &speeds_before };
    let moves = capacity.order(load, &wanted);
    let layout = scales.layout(wanted, moves);
    let is_as_before = |layout: &worth::Layout| {
        let mut vms = layout.after.iter().zip(&before);
        vms.all(|(after, before)| before.as_ref().is_none_or(|before| before == after))
    };
    if is_as_before(&layout) {
        return Plan { outcome: Outcome::InPlace, ..plan };
    }
    let layout = scales.worth_it(layout);
    let gain = layout.gain;
    let vm_gain = |(after, before): (&f64, &f64)| after / before.max(1e-9) - 1.0;
    let vm_gain = layout.speeds.iter().zip(&speeds_before).map(vm_gain).fold(0.0, f64::max);
    let is_little = gain < PROGRESS || vm_gain < options.least_vm_gain;
    if is_as_before(&layout) || gain < options.least_gain && is_little {
        return Plan { outcome: Outcome::LittleGain { gain }, ..plan };
    }
    let worth::Layout { wanted, moves, after, speeds, .. } = layout;
    for ((vm, after), speed) in plan.vms.iter_mut().zip(after).zip(speeds) {
        (vm.after, vm.speed_after) = (after, speed);
    }
    if plan.vms.iter().zip(&wanted).any(|(vm, wanted)| vm.after.memory != wanted.memory) {
        plan.notes
            .push("not all memory can be where the policy wants it: too little is free".to_owned());
    }
    Plan { outcome: Outcome::Move { gain }, moves, ..plan }
}

/// Where everything goes by the policy, and the reasons, which go into the plan. A VM whose memory finds no room on the nodes
/// that it may use stays where it is.
fn wanted(
    topology: &Topology,
    load: &Load,
    policy: &mut dyn Policy,
    options: &Options,
    plan: &mut Plan,
) -> (Capacity, Vec<Placed>) {
    let mut load = load.clone();
    loop {
        let capacity = Capacity::new(topology, &load, options);
        let parts = parts::split(topology, &load, &capacity);
        let seen: Vec<_> = parts.iter().map(|(_, part)| part.clone()).collect();
        let choices = policy.place(topology, capacity.room(), &seen);
        let short = match capacity.placed(topology, &load, &parts, &choices) {
            Ok(wanted) => {
                let mut reasons = parts.iter().zip(&choices);
                reasons
                    .by_ref()
                    .for_each(|((at, _), choice)| add(&mut plan.vms[*at].reason, choice));
                for (vm, planned) in load.vms.iter().zip(&mut plan.vms) {
                    if let Some(why) = &vm.stays {
                        planned.reason.clone_from(why);
                    }
                }
                return (capacity, wanted);
            }
            Err(short) => short,
        };
        for at in short {
            let why = "its memory has no room on the nodes that it may use";
            load.vms[at].stays = Some(why.to_owned());
        }
    }
}

fn add(reason: &mut String, choice: &crate::Choice) {
    if !reason.contains(&choice.reason) {
        let comma = if reason.is_empty() { "" } else { ", " };
        *reason += &format!("{comma}{}", choice.reason);
    }
}

/// `staying`, and the VMs whose moves have no room when these do not move.
fn depending(moves: &[Move], free: &NodeBytes, staying: &BTreeSet<usize>) -> BTreeSet<usize> {
    let mut staying = staying.clone();
    loop {
        let mut free = free.clone();
        let has_no_room = |step: &&Move| {
            let has_room = step.bytes <= free.on(step.page, step.to);
            if has_room {
                free.carry_out(step);
            }
            !has_room
        };
        let blocked = moves.iter().filter(|step| !staying.contains(&step.vm)).find(has_no_room);
        match blocked.map(|step| step.vm) {
            Some(vm) => staying.insert(vm),
            None => return staying,
        };
    }
}

/// The plan that leaves everything as it is.
fn nothing(policy: &'static str, load: &Load) -> Plan {
    let vm = |vm: &Vm| VmPlan {
        id: vm.id,
        name: vm.name.clone(),
        arrival: vm.arrival,
        fits: true,
        before: vm.now.clone(),
        after: vm.now.clone(),
        speed_before: 0.0,
        speed_after: 0.0,
        reason: vm.stays.clone().unwrap_or_default(),
    };
    let vms = load.vms.iter().map(vm).collect();
    Plan { policy, outcome: Outcome::InPlace, vms, moves: Vec::new(), notes: Vec::new() }
}

/// Why nothing need be planned, if so.
fn gate(load: &Load, options: &Options) -> Option<Outcome> {
    let movable = load.vms.iter().filter(|vm| vm.stays.is_none());
    if movable.clone().all(|vm| vm.samples.is_empty()) {
        return Some(Outcome::NoCounters);
    }
    let waiting = movable.map(|vm| options.model.waiting(vm)).fold(0.0, f64::max);
    (waiting < options.least_waiting).then_some(Outcome::LittleTraffic { waiting })
}

/// The VMs' speeds. Each counts for as much as it waits for memory, so that many idle VMs do not hide a busy one.
fn total(load: &Load, speeds: &[f64], model: &Model) -> f64 {
    let weight = |vm: &Vm| vm.now.vcpus.len() as f64 * (MIN_WEIGHT + model.waiting(vm));
    load.vms.iter().zip(speeds).map(|(vm, speed)| weight(vm) * speed).sum()
}

/// Where the kernel puts a VM without a plan: vCPUs on the node with most idle CPUs, memory from there on.
#[must_use]
pub fn default_placement(
    topology: &Topology,
    load: &Load,
    vcpus: usize,
    (bytes, page): (u64, HugePage),
    allowed: &Allowed,
) -> Placed {
    let nodes = topology.nodes();
    let all: Vec<usize> = (0..vcpus).collect();
    let cpus = allowed.cpus_on(topology, &all);
    let busy = |node: usize| {
        let here = |vm: &Vm| vm.now.vcpus.iter().filter(|home| **home == Some(node)).count();
        load.vms.iter().map(here).sum::<usize>()
    };
    let idle = |node: usize| nodes[node].cpus.len().saturating_sub(busy(node));
    let best = (0..topology.len()).filter(|node| !nodes[*node].cpus.is_empty());
    let key = |node: &usize| (0 < cpus[*node], idle(*node), std::cmp::Reverse(*node));
    let home = best.max_by_key(key).unwrap_or_default();
    let mut memory = vec![0; topology.len()];
    let (mut left, free) = (bytes, topology.free());
    for node in topology.nearest(home).into_iter().filter(|node| allowed.allows_memory(*node)) {
        memory[node] = left.min(free.on(page, node));
        left -= memory[node];
    }
    memory[home] += left;
    Placed { vcpus: vec![Some(home); vcpus], memory }
}

fn memories<'a>(placed: impl Iterator<Item = &'a Placed>) -> Vec<Vec<u64>> {
    placed.map(|placed| placed.memory.clone()).collect()
}

fn ordered(load: &Load, wanted: &[Placed], free: &NodeBytes) -> Vec<Move> {
    let before = memories(load.vms.iter().map(|vm| &vm.now));
    let pages: Vec<HugePage> = load.vms.iter().map(|vm| vm.page).collect();
    moves::order(&before, &memories(wanted.iter()), &pages, free)
}
