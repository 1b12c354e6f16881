//! A plan that was made before, as files have it, and whether it can still be carried out.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::capacity::usable_cpus;
use super::{Options, Outcome, Plan, VmPlan, nothing};
use crate::load::{Load, Placed, Vm};
use crate::moves::{self, Move};
use crate::report::VERSION;
use crate::topology::{HugePage, Topology};

/// Where a plan wants a VM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedVm {
    pub vm: String,
    pub pid: u32,
    /// When the process began, in ticks since the boot.
    pub started: u64,
    /// The node of each vCPU, by the kernel's number; `null`: any.
    pub vcpus: Vec<Option<u32>>,
    /// Bytes on each node; one object for each NUMA node of the guest, if it has several.
    pub memory: Vec<BTreeMap<u32, u64>>,
}

/// Why a plan that was made before can't be carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    #[error("VM {0} has ended")]
    Gone(String),
    #[error("VM {vm} has ended: process {pid} is another one")]
    OtherProcess { vm: String, pid: u32 },
    #[error("VM {0} has other vCPUs or NUMA nodes than when the plan was made")]
    Changed(String),
    #[error("VM {0} is in the plan twice")]
    Twice(String),
    #[error("this host has no node {0}")]
    NoNode(u32),
    #[error("VM {vm} can't be moved: {why}")]
    Held { vm: String, why: String },
    #[error("vCPU {vcpu} of VM {vm} may not run on node {node}")]
    Vcpu { vm: String, vcpu: usize, node: u32 },
    #[error("the memory of VM {vm} may not lie on node {node}")]
    Memory { vm: String, node: u32 },
    #[error("node {node} has no room for {} MiB of VM {vm}", .bytes >> 20)]
    NoRoom { vm: String, node: u32, bytes: u64 },
    #[error("node {node} would have {vcpus} vCPUs, and has room for {most}")]
    Vcpus { node: u32, vcpus: usize, most: usize },
}

#[derive(Debug, Deserialize)]
struct PlanFile {
    version: u32,
    placement: Vec<SavedVm>,
}

/// The VMs of a plan that was saved: of the JSON of `vmscope layout plan`.
///
/// # Errors
/// If it is something else.
pub fn read_plan(text: &str) -> Result<Vec<SavedVm>, String> {
    let file: PlanFile = serde_json::from_str(text)
        .map_err(|error| format!("not a plan of `vmscope layout plan`: {error}"))?;
    match file.version == VERSION {
        true => Ok(file.placement),
        false => Err("a plan of another version of vmscope".to_owned()),
    }
}

impl Plan {
    /// The plan as files have it. `started` is when each VM's process began.
    #[must_use]
    pub fn saved(
        &self,
        topology: &Topology,
        load: &Load,
        started: impl Fn(&Vm) -> u64,
    ) -> Vec<SavedVm> {
        let id = |node: usize| topology.nodes()[node].id;
        let saved = |(at, (vm, planned)): (usize, (&Vm, &VmPlan))| {
            let rows = match vm.cells.is_empty() {
                true => vec![planned.after.memory.clone()],
                false => (0..vm.cells.len()).map(|cell| self.cell_after(at, vm, cell)).collect(),
            };
            let by_node = |row: Vec<u64>| {
                let nodes = row.into_iter().enumerate().filter(|(_, bytes)| 0 < *bytes);
                nodes.map(|(node, bytes)| (id(node), bytes)).collect()
            };
            SavedVm {
                vm: vm.name.clone(),
                pid: vm.id,
                started: started(vm),
                vcpus: planned.after.vcpus.iter().map(|home| home.map(id)).collect(),
                memory: rows.into_iter().map(by_node).collect(),
            }
        };
        load.vms.iter().zip(&self.vms).enumerate().map(saved).collect()
    }

    /// The plan for the VMs as they are now.
    ///
    /// # Errors
    /// If it can't be carried out as a whole.
    pub fn again(
        topology: &Topology,
        load: &Load,
        started: impl Fn(&Vm) -> u64,
        saved: &[SavedVm],
        options: &Options,
    ) -> Result<Self, Misfit> {
        let mut plan = nothing("file", load);
        let mut rows = Rows::default();
        let mut seen = BTreeSet::new();
        for saved in saved {
            let name = || saved.vm.clone();
            let at = load.vms.iter().position(|vm| vm.id == saved.pid);
            let at = at.ok_or_else(|| Misfit::Gone(name()))?;
            let vm = &load.vms[at];
            if started(vm) != saved.started {
                return Err(Misfit::OtherProcess { vm: name(), pid: saved.pid });
            }
            if !seen.insert(at) {
                return Err(Misfit::Twice(name()));
            }
            plan.vms[at].after.vcpus = vcpus(topology, vm, saved)?;
            rows.add(topology, at, vm, saved)?;
        }
        plan.moves = rows.order(topology, load, options)?;
        for step in &plan.moves {
            let memory = &mut plan.vms[step.vm].after.memory;
            memory[step.from] = memory[step.from].saturating_sub(step.bytes);
            memory[step.to] = memory[step.to].saturating_add(step.bytes);
        }
        check_vms(topology, load, &plan)?;
        check_nodes(topology, load, &plan)?;
        if plan.vms.iter().any(|vm| vm.before != vm.after) || !plan.moves.is_empty() {
            plan.outcome = Outcome::Move { gain: 0.0 };
        }
        Ok(plan)
    }
}

fn vcpus(topology: &Topology, vm: &Vm, saved: &SavedVm) -> Result<Vec<Option<usize>>, Misfit> {
    if saved.vcpus.len() != vm.now.vcpus.len() || saved.memory.len() != vm.cells.len().max(1) {
        return Err(Misfit::Changed(saved.vm.clone()));
    }
    let index = |id: u32| topology.index_of(id).ok_or(Misfit::NoNode(id));
    saved.vcpus.iter().map(|home| home.map(index).transpose()).collect()
}

/// The memory of each VM or cell, now and then.
#[derive(Debug, Default)]
struct Rows {
    /// The VM's place in the load, and the cell.
    of: Vec<(usize, Option<usize>)>,
    before: Vec<Vec<u64>>,
    after: Vec<Vec<u64>>,
    pages: Vec<HugePage>,
}

impl Rows {
    fn add(
        &mut self,
        topology: &Topology,
        at: usize,
        vm: &Vm,
        saved: &SavedVm,
    ) -> Result<(), Misfit> {
        for (number, wanted) in saved.memory.iter().enumerate() {
            let mut after = vec![0; topology.len()];
            for (id, bytes) in wanted {
                after[topology.index_of(*id).ok_or(Misfit::NoNode(*id))?] = *bytes;
            }
            let cell = vm.cells.get(number);
            self.of.push((at, cell.map(|_| number)));
            self.before.push(cell.map_or(&vm.now.memory, |cell| &cell.memory).clone());
            self.after.push(after);
            self.pages.push(vm.page);
        }
        Ok(())
    }

    /// The moves. Memory that a VM has had since then stays where it is.
    fn order(
        &self,
        topology: &Topology,
        load: &Load,
        options: &Options,
    ) -> Result<Vec<Move>, Misfit> {
        let free = options.free(topology);
        let moves = moves::order(&self.before, &self.after, &self.pages, &free);
        for wanted in moves::pairs(&self.before, &self.after, &self.pages) {
            let is_same =
                |step: &&Move| (step.vm, step.from, step.to) == (wanted.vm, wanted.from, wanted.to);
            let bytes: u64 = moves.iter().filter(is_same).map(|step| step.bytes).sum();
            let missing = wanted.bytes.saturating_sub(bytes);
            // A huge page is moved as a whole.
            if wanted.page.unwrap_or(1) <= missing {
                let vm = load.vms[self.of[wanted.vm].0].name.clone();
                let node = topology.nodes()[wanted.to].id;
                return Err(Misfit::NoRoom { vm, node, bytes: missing });
            }
        }
        let step = |step: Move| {
            let (vm, cell) = self.of[step.vm];
            Move { vm, cell, ..step }
        };
        Ok(moves.into_iter().map(step).collect())
    }
}

/// Whether each VM that is to change may be where it is to be.
fn check_vms(topology: &Topology, load: &Load, plan: &Plan) -> Result<(), Misfit> {
    let id = |node: usize| topology.nodes()[node].id;
    for (at, (vm, planned)) in load.vms.iter().zip(&plan.vms).enumerate() {
        let name = || vm.name.clone();
        let mut moves = plan.moves.iter().filter(|step| step.vm == at);
        if planned.after.vcpus == vm.now.vcpus && moves.clone().next().is_none() {
            continue;
        }
        if let Some(why) = &vm.stays {
            return Err(Misfit::Held { vm: name(), why: why.clone() });
        }
        let vcpus = planned.after.vcpus.iter().zip(&vm.now.vcpus);
        let changed = vcpus.map(|(after, now)| after.filter(|_| after != now)).collect();
        let changed = Placed { vcpus: changed, memory: Vec::new() };
        if let Some((vcpu, node)) = vm.allowed.forbidden_vcpu(topology, &changed) {
            return Err(Misfit::Vcpu { vm: name(), vcpu, node: id(node) });
        }
        if let Some(step) = moves.find(|step| !vm.allowed.allows_memory(step.to)) {
            return Err(Misfit::Memory { vm: name(), node: id(step.to) });
        }
    }
    Ok(())
}

/// Whether no node has more vCPUs than it may, unless it has them now.
fn check_nodes(topology: &Topology, load: &Load, plan: &Plan) -> Result<(), Misfit> {
    let cpus = usable_cpus(topology, &load.vms.iter().collect::<Vec<_>>());
    let all: usize = load.vms.iter().map(|vm| vm.now.vcpus.len()).sum();
    let per_cpu = all.div_ceil(cpus.iter().sum::<usize>().max(1)).max(1);
    let count = |of: fn(&VmPlan) -> &Placed, node: usize| {
        let homes = plan.vms.iter().flat_map(|vm| &of(vm).vcpus);
        homes.filter(|home| **home == Some(node)).count()
    };
    for (node, cpus) in cpus.iter().enumerate() {
        let vcpus = count(|vm| &vm.after, node);
        let most = (per_cpu * cpus).max(count(|vm| &vm.before, node));
        if most < vcpus {
            return Err(Misfit::Vcpus { node: topology.nodes()[node].id, vcpus, most });
        }
    }
    Ok(())
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::Cell;
    use crate::plan::test::vm;
    use crate::topology::test::machine;

    const G: u64 = 1 << 30;

    /// `a` runs on node 0 with its memory on node 2; each of the cells of `b` has its memory where the other runs.
    fn load() -> Load {
        let mut vms = vec![vm("a", 1, 0, 2 * G, 0.5), vm("b", 2, 1, 2 * G, 0.5)];
        vms.iter_mut().zip(40..).for_each(|(vm, id)| vm.id = id);
        vms[0].now.memory.rotate_right(2);
        vms[1].now = Placed { vcpus: vec![Some(1), Some(3)], memory: vec![0, G, 0, G] };
        let cell =
            |vcpu: usize, memory: [u64; 4]| Cell { vcpus: vec![vcpu], memory: memory.to_vec() };
        let cpus = |node: u32| Some((4 * node..4 * node + 4).collect());
        vms[1].allowed.cpus = vec![cpus(1), cpus(3)];
        vms[1].cells = vec![cell(0, [0, 0, 0, G]), cell(1, [0, G, 0, 0])];
        Load { vms }
    }

    fn made() -> (Plan, Vec<SavedVm>) {
        let (load, options) = (load(), Options::default());
        let plan = crate::plan(&machine(4), &load, &mut crate::Simple, &options);
        let saved = plan.saved(&machine(4), &load, |vm| u64::from(vm.id) * 10);
        (plan, saved)
    }

    fn again(load: &Load, saved: &[SavedVm]) -> Result<Plan, Misfit> {
        Plan::again(&machine(4), load, |vm| u64::from(vm.id) * 10, saved, &Options::default())
    }

    #[test]
    fn a_saved_plan_is_the_plan() {
        let (plan, saved) = made();
        let text = serde_json::to_string(&saved).unwrap();
        let saved: Vec<SavedVm> = serde_json::from_str(&text).unwrap();
        let again = again(&load(), &saved).unwrap();
        assert_eq!(again.moves, plan.moves);
        assert!(!plan.moves.is_empty() && plan.moves.iter().any(|step| step.cell.is_some()));
        for (again, plan) in again.vms.iter().zip(&plan.vms) {
            assert_eq!((&again.before, &again.after), (&plan.before, &plan.after));
        }
        // Carried out, nothing is left to do.
        let mut after = plan.carried_out(&load());
        for (vm, saved) in after.vms.iter_mut().zip(&saved) {
            for (cell, memory) in vm.cells.iter_mut().zip(&saved.memory) {
                let on = |node| memory.get(&node).copied().unwrap_or(0);
                cell.memory = (0..4).map(on).collect();
            }
        }
        assert_eq!(self::again(&after, &saved).unwrap().outcome, Outcome::InPlace);
    }

    #[test]
    fn what_has_grown_since_stays_where_it_is() {
        let (plan, saved) = made();
        let mut grown = load();
        grown.vms[0].now.memory[3] = G;
        let again = again(&grown, &saved).unwrap();
        assert_eq!(again.moves, plan.moves);
        assert_eq!(again.vms[0].after.memory[3], G);
    }

    #[test]
    fn a_plan_that_no_longer_fits_is_refused() {
        let check = |change: &dyn Fn(&mut Load, &mut Vec<SavedVm>), expected: &str| {
            let (mut load, (_, mut saved)) = (load(), made());
            saved[0].vcpus = vec![Some(1)];
            saved[0].memory = vec![[(1, 2 * G)].into()];
            change(&mut load, &mut saved);
            let found = again(&load, &saved).map(|plan| plan.outcome);
            let found =
                found.map_or_else(|misfit| misfit.to_string(), |found| format!("{found:?}"));
            assert_eq!(found, expected);
        };
        check(&|_, _| {}, "Move { gain: 0.0 }");
        check(&|load, _| drop(load.vms.remove(0)), "VM a has ended");
        check(&|_, saved| saved[0].started = 7, "VM a has ended: process 40 is another one");
        check(&|_, saved| saved.push(saved[0].clone()), "VM a is in the plan twice");
        let changed = "VM a has other vCPUs or NUMA nodes than when the plan was made";
        check(&|load, _| load.vms[0].now.vcpus.push(None), changed);
        let changed = changed.replace("VM a", "VM b");
        check(&|load, _| load.vms[1].cells.clear(), &changed);
        check(&|_, saved| saved[0].vcpus = vec![Some(9)], "this host has no node 9");
        check(&|_, saved| saved[0].memory = vec![[(9, 1)].into()], "this host has no node 9");
        let held =
            |load: &mut Load, _: &mut Vec<SavedVm>| load.vms[0].stays = Some("pinned".to_owned());
        check(&held, "VM a can't be moved: pinned");
        let vcpus = |load: &mut Load, _: &mut Vec<SavedVm>| {
            load.vms[0].allowed.cpus = vec![Some((0..4).collect())];
        };
        check(&vcpus, "vCPU 0 of VM a may not run on node 1");
        let memory = |load: &mut Load, _: &mut Vec<SavedVm>| {
            load.vms[0].allowed.memory = Some([0, 2].into());
        };
        check(&memory, "the memory of VM a may not lie on node 1");
        // Node 1 has 8 GiB free, less 1 % of its 16.
        let large = |load: &mut Load, saved: &mut Vec<SavedVm>| {
            load.vms[0].now.memory = vec![0, 0, 8 * G, 0];
            saved[0].memory = vec![[(1, 8 * G)].into()];
            saved.truncate(1);
        };
        check(&large, "node 1 has no room for 163 MiB of VM a");
        let others = |load: &mut Load, _: &mut Vec<SavedVm>| {
            load.vms.push(Vm { id: 50, ..vm("new", 3, 1, G, 0.0) });
        };
        check(&others, "node 1 would have 5 vCPUs, and has room for 4");
    }
}
