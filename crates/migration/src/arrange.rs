//! Where the VM that comes goes, and the report of it: pure.

use api::layout::{HostLayout, NodePlacement, VmLayout};
use layout::{
    Arrival, Load, Options, Outcome, Placed, Plan, Topology, Vm, VmPlan, default_placement,
};
use model::Pid;
use numa::Host;

use crate::arrivals::{ComingState, ComingVm};
use crate::config::NO_POLICY;

/// What is done for a VM that comes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Placement {
    /// For all VMs of the host, if there is one: it is carried out for the residents.
    pub(crate) plan: Option<Plan>,
    /// Where the VM that comes goes, or why the kernel is left to choose.
    pub(crate) place: Result<Placed, String>,
    /// Where the kernel would put it, as far as can be known.
    pub(crate) default: Placed,
    /// As reported.
    pub(crate) layout: HostLayout,
    /// The processes of the VMs in it, in their order.
    pub(crate) processes: Vec<Pid>,
}

impl Placement {
    fn none(why: &str) -> Self {
        let (plan, place, default) = (None, Err(why.to_owned()), Placed::default());
        Self { plan, place, default, layout: HostLayout::default(), processes: Vec::new() }
    }
}

/// Plans for the residents and all VMs that are on their way, one of which comes now. `topology` has the memory free that no
/// other needs that has its place already.
pub(crate) fn arrange(
    topology: &Topology,
    mut load: Load,
    coming: &[ComingVm],
    number: u32,
    policy: &str,
    move_bytes_per_s: u64,
) -> Placement {
    let Some(own) = coming.iter().find(|vm| vm.number == number) else {
        return Placement::none("it is not on its way");
    };
    // A process that waits for its VM's memory is no resident.
    let waits = |vm: &Vm, own: &ComingVm| own.process.is_some_and(|process| process.0 == vm.id);
    load.vms.retain(|vm| !waits(vm, own));
    let residents = load.vms.len();
    for other in coming {
        // One that runs here already is a resident.
        if !load.vms.iter().any(|vm| waits(vm, other)) {
            let vm = arriving_vm(topology, &load, other, move_bytes_per_s);
            load.vms.push(vm);
        }
    }
    let at = load.vms.iter().rposition(|vm| vm.id == id_of(own)).unwrap_or_default();
    let why_not = match &own.counters {
        _ if policy == NO_POLICY => Some("no plan was requested".to_owned()),
        Err(why) => Some(why.clone()),
        Ok(_) => None,
    };
    // Without a policy the plan says where everything is, and moves nothing.
    let mut chosen = layout::policy_named(policy).unwrap_or_else(|| Box::new(layout::Simple));
    let mut plan = layout::plan(topology, &load, chosen.as_mut(), &Options::default());
    for other in plan.vms.iter().enumerate().skip(residents).filter(|(other, _)| *other != at) {
        plan.notes.push(format!("{} is on its way, too, and part of the plan", other.1.name));
    }
    let why_not = why_not.or_else(|| why_no_place(&plan, at));
    let processes: Vec<Pid> = plan.vms.iter().map(|vm| Pid(vm.id)).collect();
    let place = match why_not {
        Some(why) => Err(why),
        None => Ok(plan.vms[at].after.clone()),
    };
    let layout = reported(topology, &plan, at, place.as_ref().map(drop));
    let default = plan.vms[at].before.clone();
    Placement { plan: place.is_ok().then_some(plan), place, default, layout, processes }
}

/// The number of a VM that is on its way, in plans.
fn id_of(vm: &ComingVm) -> u32 {
    vm.process.map_or(vm.number, |process| process.0)
}

fn arriving_vm(topology: &Topology, load: &Load, coming: &ComingVm, move_bytes_per_s: u64) -> Vm {
    let ComingVm { requested, allowed, .. } = coming;
    let (source, samples) = coming.counters.clone().unwrap_or_default();
    let vm = Vm {
        id: id_of(coming),
        name: requested.vm.clone(),
        now: Placed::default(),
        arrival: Arrival::Incoming,
        stays: None,
        page: coming.page,
        cells: Vec::new(),
        allowed: allowed.clone(),
        samples,
        source,
        ran_s: requested.ran_s,
        move_bytes_per_s,
    };
    match &coming.state {
        ComingState::Offered => {
            let (vcpus, memory) = (requested.vcpus, (requested.memory, coming.page));
            let now = default_placement(topology, load, vcpus, memory, allowed);
            Vm { now, ..vm }
        }
        // Its QEMU has, or will have, its memory there.
        ComingState::Placed(place) => Vm {
            now: place.clone(),
            arrival: Arrival::Resident,
            stays: Some("it is on its way there".to_owned()),
            ..vm
        },
    }
}

/// Why a plan has no place for the VM that comes. Where the policy wants everything as the kernel is expected to do it, that
/// is its place.
fn why_no_place(plan: &Plan, at: usize) -> Option<String> {
    if !plan.vms.get(at).is_some_and(|vm| vm.fits) {
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

fn reported(
    topology: &Topology,
    plan: &Plan,
    at: usize,
    planned: Result<(), &String>,
) -> HostLayout {
    let vm = |(number, vm): (usize, &VmPlan)| VmLayout {
        name: vm.name.clone(),
        arrives: number == at,
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
        vms: plan.vms.iter().enumerate().map(vm).collect(),
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
    use layout::{Allowed, Node, Sample, Source};

    use crate::offer::CheckedOffer;

    use super::*;

    const G: u64 = 1 << 30;

    fn topology(free: [u64; 2]) -> Topology {
        let node = |id: u32| Node {
            id: 10 * id,
            cpus: vec![2 * id, 2 * id + 1],
            total: 16 * G,
            free: free[id as usize],
            ..Node::default()
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
            stays: None,
            page: None,
            cells: Vec::new(),
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
        let coming = ComingVm { counters, ..coming(9, "web") };
        arrange(&topology(free), load, &[coming], 9, policy, G)
    }

    fn coming(number: u32, name: &str) -> ComingVm {
        ComingVm {
            number,
            requested: CheckedOffer { vm: name.to_owned(), ..requested() },
            counters: heavy(),
            allowed: Allowed::default(),
            process: None,
            page: None,
            state: ComingState::Offered,
        }
    }

    /// For a QEMU that waits already.
    fn arranged_for(residents: Vec<Vm>, process: Pid, allowed: &Allowed) -> Placement {
        let coming =
            ComingVm { process: Some(process), allowed: allowed.clone(), ..coming(9, "web") };
        let load = Load { vms: residents };
        arrange(&topology([8 * G, 8 * G]), load, &[coming], 9, "simple", G)
    }

    /// Two VMs that both want all CPUs and most of the memory of a node.
    fn two() -> [ComingVm; 2] {
        [(9, "a"), (8, "b")].map(|(number, name)| {
            let vm = coming(number, name);
            ComingVm { requested: CheckedOffer { vcpus: 2, memory: 5 * G, ..vm.requested }, ..vm }
        })
    }

    #[test]
    fn vms_that_come_at_once_are_planned_together() {
        let two = two();
        let free = topology([8 * G, 8 * G]);
        let place = |coming: &[ComingVm], number| {
            arrange(&free, Load::default(), coming, number, "simple", G).place.unwrap()
        };
        // Each alone would have the same node.
        assert_eq!(place(&two[..1], 9), place(&two[1..], 8));
        let places = [place(&two, 9), place(&two, 8)];
        for (place, at) in places.iter().zip([0, 1]) {
            assert_eq!(*place, Placed::on(at, 2, 5 * G, 2));
        }
        let arranged = arrange(&free, Load::default(), &two, 8, "simple", G);
        let arrives: Vec<bool> = arranged.layout.vms.iter().map(|vm| vm.arrives).collect();
        assert_eq!(arrives, [false, true]);
        assert_eq!(arranged.layout.notes, ["a is on its way, too, and part of the plan"]);
    }

    #[test]
    fn a_vm_that_is_on_its_way_keeps_its_place_in_the_next_plan() {
        let [first, second] = two();
        let at = |node| ComingState::Placed(Placed::on(node, 2, 5 * G, 2));
        for node in 0..2 {
            let first = ComingVm { state: at(node), process: Some(Pid(50)), ..first.clone() };
            let mut free = [8 * G, 8 * G];
            free[node] -= 5 * G;
            let coming = [first, second.clone()];
            let arranged = arrange(&topology(free), Load::default(), &coming, 8, "simple", G);
            assert_eq!(arranged.place, Ok(Placed::on(1 - node, 2, 5 * G, 2)), "{node}");
            assert_eq!(arranged.processes, [Pid(50), Pid(8)]);
            let planned = arranged.layout.vms[0].planned.as_ref().unwrap();
            assert_eq!(*planned, arranged.layout.vms[0].before);
            // Once it runs it is a resident, and is in the plan once.
            let resident = Vm { id: 50, name: "a".to_owned(), ..idle() };
            let load = Load { vms: vec![resident] };
            let arranged = arrange(&topology(free), load, &coming, 8, "simple", G);
            assert_eq!(arranged.processes, [Pid(50), Pid(8)]);
        }
    }

    #[test]
    fn a_vm_on_huge_pages_comes_where_these_are_free() {
        const PAGE: u64 = 2 << 20;
        let nodes = topology([15 * G, G / 2]).nodes().to_vec();
        let huge = |(node, huge): (&Node, u64)| Node {
            huge_free: [(PAGE, huge * G)].into(),
            ..node.clone()
        };
        let distances = vec![vec![10, 21], vec![21, 10]];
        let nodes = nodes.iter().zip([0, 5]).map(huge).collect();
        let topology = Topology::new(nodes, distances, None).unwrap();
        let of = |page| {
            let coming = ComingVm { page, ..coming(9, "web") };
            arrange(&topology, Load::default(), &[coming], 9, "simple", G).place
        };
        assert_eq!(of(Some(PAGE)), Ok(Placed::on(1, 1, 4 * G, 2)));
        assert_eq!(of(None), Ok(Placed::on(0, 1, 4 * G, 2)));
        assert_eq!(of(Some(1 << 30)), Err("the nodes have too little free memory".to_owned()));
    }

    #[test]
    fn of_two_that_do_not_both_fit_the_first_comes_as_planned() {
        let two = two();
        let of =
            |number| arrange(&topology([6 * G, G]), Load::default(), &two, number, "simple", G);
        assert_eq!(of(9).place, Ok(Placed::on(0, 2, 5 * G, 2)));
        assert_eq!(of(8).place, Err("the nodes have too little free memory".to_owned()));
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
