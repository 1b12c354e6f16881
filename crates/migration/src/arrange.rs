//! Where the VM that comes goes, and the report of it: pure.

use api::layout::{HostLayout, NodePlacement, VmLayout};
use layout::{
    Allowed, Arrival, Load, Options, Outcome, Placed, Plan, Sample, Source, Topology, Vm,
    default_placement,
};
use model::Pid;
use numa::Host;

use crate::config::NO_POLICY;
use crate::offer::CheckedOffer;

/// What is done for a VM that comes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Placement {
    /// For all VMs of the host, if there is one: it is carried out for the residents.
    pub(crate) plan: Option<Plan>,
    /// Where the VM that comes goes, or why the kernel is left to choose.
    pub(crate) place: Result<Placed, String>,
    /// As reported.
    pub(crate) layout: HostLayout,
    /// The processes of the VMs in it, in their order.
    pub(crate) processes: Vec<Pid>,
}

/// The VM that comes, as it is known before it is here.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Coming<'a> {
    pub(crate) requested: &'a CheckedOffer,
    /// The process that waits for it, if there is one by now.
    pub(crate) process: Option<Pid>,
    /// What that may use.
    pub(crate) allowed: &'a Allowed,
}

/// Plans for the residents and the VM that comes.
pub(crate) fn arrange(
    topology: &Topology,
    mut load: Load,
    Coming { requested, process, allowed }: Coming<'_>,
    counters: Result<(Source, Vec<Sample>), String>,
    policy: &str,
    move_bytes_per_s: u64,
) -> Placement {
    // No process has this number.
    let process = process.unwrap_or(Pid(0));
    // A resident of the same name is another VM; this one is none as it waits for its memory.
    load.vms.retain(|vm| vm.id != process.0);
    let now = default_placement(topology, &load, requested.vcpus, requested.memory, allowed);
    let why_not = match &counters {
        _ if policy == NO_POLICY => Some("no plan was requested".to_owned()),
        Err(why) => Some(why.clone()),
        Ok(_) => None,
    };
    let (source, samples) = counters.unwrap_or_default();
    load.vms.push(Vm {
        id: process.0,
        name: requested.vm.clone(),
        now,
        arrival: Arrival::Incoming,
        may_move: true,
        allowed: allowed.clone(),
        samples,
        source,
        ran_s: requested.ran_s,
        move_bytes_per_s,
    });
    // Without a policy the plan says where everything is, and moves nothing.
    let mut chosen = layout::policy_named(policy).unwrap_or_else(|| Box::new(layout::Simple));
    let plan = layout::plan(topology, &load, chosen.as_mut(), &Options::default());
    let why_not = why_not.or_else(|| why_no_place(&plan));
    let processes: Vec<Pid> = plan.vms.iter().map(|vm| Pid(vm.id)).collect();
    match why_not {
        Some(why) => {
            let layout = reported(topology, &plan, Err(&why));
            Placement { plan: None, place: Err(why), layout, processes }
        }
        None => {
            let place = plan.vms.last().map(|vm| vm.after.clone()).unwrap_or_default();
            let layout = reported(topology, &plan, Ok(()));
            Placement { plan: Some(plan), place: Ok(place), layout, processes }
        }
    }
}

/// Why a plan has no place for the VM that comes. Where the policy wants everything as the kernel is expected to do it, that
/// is its place.
fn why_no_place(plan: &Plan) -> Option<String> {
    if !plan.vms.last().is_some_and(|vm| vm.fits) {
        return Some("the nodes have too little free memory".to_owned());
    }
    match plan.outcome {
        Outcome::NoCounters => Some("nothing counted how VMs use memory".to_owned()),
        Outcome::LittleTraffic { waiting } => {
            let percent = 100.0 * waiting;
            Some(format!("no VM waits for memory more than {percent:.1} % of its time"))
        }
        Outcome::Move { .. } | Outcome::InPlace | Outcome::LittleGain { .. } => None,
    }
}

fn reported(topology: &Topology, plan: &Plan, planned: Result<(), &String>) -> HostLayout {
    let vm = |vm: &layout::VmPlan| VmLayout {
        name: vm.name.clone(),
        arrives: vm.arrival == Arrival::Incoming,
        before: place(topology, &vm.before),
        planned: planned.is_ok().then(|| place(topology, &vm.after)),
        now: None,
        speed_before: vm.speed_before,
        speed_planned: if planned.is_ok() { vm.speed_after } else { vm.speed_before },
        moved_bytes: 0,
    };
    let gain = match plan.outcome {
        Outcome::Move { gain } if planned.is_ok() => Some(gain),
        _ => None,
    };
    let outcome = match planned {
        Err(why) => format!("the kernel's layout: {why}"),
        Ok(()) => match gain {
            Some(gain) => format!("planned: VMs become {:.1} % faster in all", 100.0 * gain),
            None => {
                "planned: no layout is better than the one that the kernel would choose".to_owned()
            }
        },
    };
    HostLayout {
        policy: planned.is_ok().then(|| plan.policy.to_owned()),
        outcome,
        gain,
        vms: plan.vms.iter().map(vm).collect(),
        notes: plan.notes.clone(),
        ..HostLayout::default()
    }
}

/// Changes the layout's mind: the VM's memory could not be where it was planned.
pub(crate) fn give_up(layout: &mut HostLayout, why: &str) {
    layout.outcome = format!("the kernel's layout for {}: {why}", arriving(layout));
    for vm in layout.vms.iter_mut().filter(|vm| vm.arrives) {
        vm.planned = None;
        vm.speed_planned = vm.speed_before;
    }
}

fn arriving(layout: &HostLayout) -> String {
    layout.vms.iter().find(|vm| vm.arrives).map(|vm| vm.name.clone()).unwrap_or_default()
}

/// Where everything is, of what was read from the kernel.
pub(crate) fn with_now(layout: &mut HostLayout, processes: &[Pid], host: &Host, incoming: Pid) {
    for (vm, process) in layout.vms.iter_mut().zip(processes) {
        let process = if vm.arrives { incoming } else { *process };
        let found = host.vms.iter().find(|found| found.process.pid == process);
        vm.now = found.map(|found| place(&host.topology, &found.placed));
    }
}

/// With the kernel's numbers of nodes.
pub(crate) fn place(topology: &Topology, placed: &Placed) -> NodePlacement {
    let nodes = || topology.nodes().iter().enumerate();
    let count = |home: Option<usize>| {
        let n = placed.vcpus.iter().filter(|other| **other == home).count();
        u32::try_from(n).unwrap_or(u32::MAX)
    };
    let bound = nodes().map(|(at, node)| (Some(node.id), count(Some(at))));
    let vcpus = bound.chain(std::iter::once((None, count(None))));
    let memory = nodes().map(|(at, node)| (node.id, placed.memory.get(at).copied().unwrap_or(0)));
    NodePlacement {
        vcpus: vcpus.filter(|(_, n)| 0 < *n).collect(),
        memory: memory.filter(|(_, bytes)| 0 < *bytes).collect(),
        remote: placed.remote(topology),
    }
}

#[cfg(test)]
mod test {
    use api::layout::StartedBy;
    use layout::Node;

    use super::*;

    const G: u64 = 1 << 30;

    fn topology(free: [u64; 2]) -> Topology {
        let node = |id: u32| Node {
            id: 10 * id,
            cpus: vec![2 * id, 2 * id + 1],
            total: 16 * G,
            free: free[id as usize],
        };
        let distances = vec![vec![10, 21], vec![21, 10]];
        Topology::new(vec![node(0), node(1)], distances, None).unwrap()
    }

    fn requested() -> CheckedOffer {
        CheckedOffer {
            vm: "web".to_owned(),
            uuid: None,
            vcpus: 1,
            memory: 4 * G,
            ran_s: 100.0,
            policy: None,
            started_by: StartedBy::Daemon,
        }
    }

    /// Waits for memory most of its time.
    fn heavy() -> Result<(Source, Vec<Sample>), String> {
        let sample = Sample { seconds: 1.0, misses: 2.8e7, instructions: Some(5e8), remote: None };
        Ok((Source::Perf, vec![sample; 10]))
    }

    /// A resident that fills node 0 and has nothing to do with memory.
    fn idle() -> Vm {
        let sample = Sample { seconds: 1.0, misses: 1.0, instructions: Some(1e9), remote: None };
        Vm {
            id: 7,
            name: "idle".to_owned(),
            now: Placed { vcpus: vec![Some(1)], memory: vec![12 * G, 0] },
            arrival: Arrival::Resident,
            may_move: true,
            allowed: Allowed::default(),
            samples: vec![sample; 10],
            source: Source::Perf,
            ran_s: 100.0,
            move_bytes_per_s: G,
        }
    }

    fn arranged(
        free: [u64; 2],
        counters: Result<(Source, Vec<Sample>), String>,
        policy: &str,
    ) -> Placement {
        let load = Load { vms: vec![idle()] };
        let (requested, allowed) = (requested(), Allowed::default());
        let coming = Coming { requested: &requested, process: None, allowed: &allowed };
        arrange(&topology(free), load, coming, counters, policy, G)
    }

    /// For a QEMU that waits already.
    fn arranged_for(residents: Vec<Vm>, process: Pid, allowed: &Allowed) -> Placement {
        let requested = requested();
        let coming = Coming { requested: &requested, process: Some(process), allowed };
        let load = Load { vms: residents };
        arrange(&topology([8 * G, 8 * G]), load, coming, heavy(), "simple", G)
    }

    #[test]
    fn a_vm_that_needs_memory_gets_it_near_its_vcpus() {
        let arranged = arranged([3 * G, 15 * G], heavy(), "simple");
        let place = arranged.place.unwrap();
        let home = place.vcpus[0].unwrap();
        assert_eq!(place.memory[home], 4 * G, "{place:?}");
        assert!(arranged.plan.is_some() && arranged.layout.outcome.starts_with("planned: "));
        let vm = arranged.layout.vms.iter().find(|vm| vm.name == "web").unwrap();
        assert!(vm.arrives && vm.speed_before <= vm.speed_planned);
        assert_eq!(
            vm.planned.as_ref().unwrap().memory,
            [(10 * u32::try_from(home).unwrap(), 4 * G)]
        );
    }

    #[test]
    fn without_reason_to_plan_the_kernel_chooses_and_it_is_said_why() {
        let check = |free, counters, policy, expected: &str| {
            let arranged = arranged(free, counters, policy);
            assert!(arranged.plan.is_none());
            let why = arranged.place.unwrap_err();
            assert!(why.contains(expected), "{why}");
            assert_eq!(arranged.layout.outcome, format!("the kernel's layout: {why}"));
            assert_eq!(arranged.layout.vms.len(), 2);
            assert!(arranged.layout.vms.iter().all(|vm| vm.planned.is_none()));
        };
        let free = [3 * G, 15 * G];
        check(free, Err("counters are 99 s old".to_owned()), "simple", "99 s old");
        check(free, heavy(), NO_POLICY, "no plan was requested");
        check([G, G], heavy(), "simple", "too little free memory");
        let light = Sample { seconds: 1.0, misses: 1.0, instructions: Some(1e9), remote: None };
        check(free, Ok((Source::Perf, vec![light])), "simple", "no VM waits for memory");
    }

    #[test]
    fn the_vm_itself_is_no_resident_while_it_waits() {
        let itself = Vm { name: "web".to_owned(), ..idle() };
        let arranged = arranged_for(vec![itself], Pid(7), &Allowed::default());
        assert_eq!(arranged.layout.vms.len(), 1);
        assert!(arranged.layout.vms[0].arrives);
    }

    #[test]
    fn a_resident_of_the_same_name_is_planned_for_like_others() {
        let other = Vm { name: "web".to_owned(), ..idle() };
        let arranged = arranged_for(vec![other], Pid(8), &Allowed::default());
        assert_eq!(arranged.processes, [Pid(7), Pid(8)]);
        let arrives: Vec<bool> = arranged.layout.vms.iter().map(|vm| vm.arrives).collect();
        assert_eq!((arrives, arranged.place.is_ok()), (vec![false, true], true));
    }

    #[test]
    fn a_vm_that_comes_goes_only_where_its_qemu_may() {
        let node = |at: usize| {
            let cpus = [2 * at, 2 * at + 1].map(|cpu| u32::try_from(cpu).unwrap());
            let allowed = Allowed { cpus: vec![Some(cpus.into())], memory: Some([at].into()) };
            arranged_for(vec![idle()], Pid(8), &allowed).place.unwrap()
        };
        for at in 0..2 {
            assert_eq!(node(at), Placed::on(at, 1, 4 * G, 2));
        }
    }

    #[test]
    fn a_plan_that_fails_is_taken_back() {
        let mut layout = arranged([3 * G, 15 * G], heavy(), "simple").layout;
        give_up(&mut layout, "node 10 is full");
        assert_eq!(layout.outcome, "the kernel's layout for web: node 10 is full");
        let vm = layout.vms.iter().find(|vm| vm.arrives).unwrap();
        assert_eq!((&vm.planned, vm.speed_planned), (&None, vm.speed_before));
    }
}
