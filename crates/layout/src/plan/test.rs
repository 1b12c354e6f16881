//! Plans by table, and what holds for all plans of 10,000 random loads.

use super::*;
use crate::load::{Allowed, Sample, Source};
use crate::policy::{POLICIES, policy_named};
use crate::simulate::random_case;
use crate::topology::Node;
use crate::topology::test::machine;

const G: u64 = 1 << 30;

/// A VM on one node that waits for memory so much of its time; half of its time it computes at 1 instruction a ns.
pub(crate) fn vm(name: &str, vcpus: usize, node: usize, bytes: u64, waiting: f64) -> Vm {
    let misses = Model::default().misses_for(waiting) * vcpus as f64;
    let sample =
        Sample { seconds: 1.0, misses, instructions: Some(5e8 * vcpus as f64), remote: None };
    Vm {
        id: 0,
        name: name.to_owned(),
        now: Placed::on(node, vcpus, bytes, 4),
        arrival: Arrival::Resident,
        stays: None,
        page: None,
        cells: Vec::new(),
        allowed: Allowed::default(),
        samples: vec![sample; 10],
        source: Source::Recorded,
        ran_s: 3600.0,
        move_bytes_per_s: G,
    }
}

/// `web 1@0: 5@2 w57`: 1 vCPU on node 0, 5 GiB on node 2, waits 57 % of its time; `+`: it arrives, `=`: it may not move,
/// `c02`: its vCPUs may run on nodes 0 and 2 only, `m1`: its memory may lie on node 1 only.
fn drawn(line: &str) -> Vm {
    let mut words = line.split_whitespace();
    let name = words.next().unwrap();
    let (vcpus, home) = words.next().unwrap().strip_suffix(':').unwrap().split_once('@').unwrap();
    let (bytes, node) = words.next().unwrap().split_once('@').unwrap();
    let waiting: f64 = words.next().unwrap().strip_prefix('w').unwrap().parse().unwrap();
    let [vcpus, home, bytes, node] =
        [vcpus, home, bytes, node].map(|n| n.parse::<usize>().unwrap());
    let mut vm = vm(name, vcpus, home, bytes as u64 * G, waiting / 100.0);
    vm.now.memory.rotate_right((4 + node - home) % 4);
    for word in words {
        let nodes = || word[1..].bytes().map(|digit| usize::from(digit - b'0'));
        match word.as_bytes()[0] {
            b'+' => vm.arrival = Arrival::Incoming,
            b'=' => vm.stays = Some("it may not be moved".to_owned()),
            b'c' => {
                let cpus = nodes().flat_map(|node| 4 * node as u32..4 * node as u32 + 4);
                vm.allowed.cpus = vec![Some(cpus.collect()); vcpus];
            }
            b'm' => vm.allowed.memory = Some(nodes().collect()),
            _ => panic!("{line}"),
        }
    }
    vm
}

/// The result: `web 1@2: 5@2`.
fn shown(plan: &Plan) -> Vec<String> {
    let all = |vm: &VmPlan| {
        let mut homes: Vec<String> = Vec::new();
        for node in 0..4 {
            let n = vm.after.vcpus.iter().filter(|home| **home == Some(node)).count();
            homes.extend((0 < n).then(|| format!("{n}@{node}")));
        }
        let memory = vm.after.memory.iter().enumerate().filter(|(_, bytes)| 0 < **bytes);
        let memory: Vec<String> =
            memory.map(|(node, bytes)| format!("{}@{node}", bytes / G)).collect();
        format!("{} {}: {}", vm.name, homes.join(" "), memory.join(" "))
    };
    plan.vms.iter().map(all).collect()
}

fn planned(policy: &str, free: [u64; 4], vms: &[&str]) -> (Topology, Load, Plan) {
    let topology = machine(4).with_free(&free.map(|n| n * G));
    let vms = vms.iter().zip(1..).map(|(line, id)| Vm { id, ..drawn(line) });
    let load = Load { vms: vms.collect() };
    let options = Options { reserve_per_mille: 0, ..Options::default() };
    let plan = plan(&topology, &load, policy_named(policy).unwrap().as_mut(), &options);
    (topology, load, plan)
}

fn check(policy: &str, free: [u64; 4], vms: &[&str], expected: &[&str]) {
    let (_, _, plan) = planned(policy, free, vms);
    assert_eq!(shown(&plan), expected, "{policy}: {:?} {:?}", plan.outcome, plan.notes);
}

#[test]
fn one_vm_goes_where_there_is_room() {
    let topology = machine(4).with_free(&[0, 0, 1 << 30, 8 << 30]);
    let (now, wanted) = (Placed::on(0, 2, 3 << 30, 4), Placed::on(2, 2, 4 << 30, 4));
    let plan = Plan::for_one(&topology, (1, "a"), None, &now, &wanted);
    let expected = Move { vm: 0, from: 0, to: 2, bytes: 1 << 30, page: None, cell: None };
    assert_eq!((&plan.moves[..], &plan.vms[0].after), (&[expected][..], &wanted));
}

#[test]
fn simple_gives_the_best_place_to_who_misses_most() {
    // Case 1-1 of the original: the VM that arrives needs the memory of one that does not.
    check(
        "simple",
        [1, 1, 0, 6],
        &[
            "in 1@0: 5@3 w57 +",
            "calm 1@0: 5@0 w2",
            "quiet 1@1: 5@1 w2",
            "full 4@2: 9@2 w0 =",
            "also 4@3: 9@3 w0 =",
        ],
        &[
            "in 1@0: 5@0",
            "calm 1@1: 5@1",
            "quiet 1@1: 1@0 1@1 3@3",
            "full 4@2: 9@2",
            "also 4@3: 9@3",
        ],
    );
}

#[test]
fn dino_keeps_devils_apart() {
    check(
        "dino",
        [8; 4],
        &["a 1@0: 2@0 w57", "b 1@0: 2@0 w57", "c 1@1: 2@1 w0"],
        &["a 1@0: 2@0", "b 1@1: 2@1", "c 1@1: 2@1"],
    );
}

#[test]
fn a_vm_goes_only_where_it_may() {
    // Its memory follows to where its vCPUs are: they may not go there.
    check("asymsched", [8; 4], &["a 1@0: 5@2 w57 c01"], &["a 1@0: 5@0"]);
    check("simple", [8; 4], &["a 1@0: 5@2 w57 c01"], &["a 1@0: 5@0"]);
    // Its vCPUs go to where its memory may lie.
    check("asymsched", [8; 4], &["a 1@0: 5@2 w57 m23"], &["a 1@2: 5@2"]);
    check("dino", [8; 4], &["a 1@0: 5@2 w57 m23"], &["a 1@2: 5@2"]);
    check("simple", [8; 4], &["a 1@0: 5@3 w57 c0 m13"], &["a 1@0: 5@1"]);
    // Of two devils the one that may leave does.
    let two = ["a 4@0: 2@0 w57", "b 4@0: 2@0 w57 c0"];
    check("dino", [8; 4], &two, &["a 4@1: 2@1", "b 4@0: 2@0"]);
    // Its memory could not follow.
    let two = ["a 1@0: 2@0 w57 m0", "b 1@0: 2@0 w57 m0"];
    check("dino", [8; 4], &two, &["a 1@0: 2@0", "b 1@0: 2@0"]);
    // Nothing can be done.
    for policy in POLICIES {
        check(policy, [8; 4], &["a 1@0: 5@2 w57 c0 m2"], &["a 1@0: 5@2"]);
    }
}

#[test]
fn a_vm_whose_nodes_are_full_stays_and_others_go() {
    let vms = ["a 1@0: 5@2 w57 c0 m02", "b 1@1: 5@3 w57", "full 1@0: 7@0 w0 ="];
    let (_, _, plan) = planned("simple", [1, 8, 0, 0], &vms);
    assert_eq!(shown(&plan), ["a 1@0: 1@0 4@2", "b 1@3: 5@3", "full 1@0: 7@0"]);
    // Node 0 has room for one of two VMs that may use only that.
    let vms = ["a 1@0: 5@2 w57 c0 m0", "b 1@0: 5@3 w57 c0 m0"];
    let (_, _, plan) = planned("simple", [6, 8, 8, 8], &vms);
    assert_eq!(shown(&plan), ["a 1@0: 5@0", "b 1@0: 5@3"]);
    assert_eq!(plan.vms[1].reason, "its memory has no room on the nodes that it may use");
}

#[test]
fn vcpus_with_nodes_of_their_own_are_parts() {
    let mut vm = drawn("a 4@0: 8@3 w57");
    vm.now.vcpus = vec![Some(0), Some(1), Some(0), Some(1)];
    let cpus = |node: u32| Some((4 * node..4 * node + 4).collect());
    vm.allowed.cpus = [0, 1, 0, 1].map(cpus).to_vec();
    let load = Load { vms: vec![vm] };
    let plan = plan(&machine(4), &load, &mut crate::Simple, &Options::default());
    assert_eq!(plan.vms[0].after.vcpus, load.vms[0].now.vcpus);
    assert_eq!(shown(&plan), ["a 2@0 2@1: 4@0 4@1"], "{:?}", plan.vms[0].reason);
}

#[test]
fn a_vm_that_stays_stays_whole_with_its_reason() {
    let why = "4096 MiB of its memory are pinned";
    for policy in POLICIES {
        let mut held = drawn("held 2@0: 4@2 w57");
        held.stays = Some(why.to_owned());
        let load = Load { vms: vec![held, drawn("free 1@1: 2@3 w57")] };
        let mut chosen = policy_named(policy).unwrap();
        let plan = plan(&machine(4), &load, chosen.as_mut(), &Options::default());
        assert!(matches!(plan.outcome, Outcome::Move { .. }), "{policy}: {:?}", plan.outcome);
        assert_eq!((&plan.vms[0].after, &*plan.vms[0].reason), (&load.vms[0].now, why), "{policy}");
        let load = Load { vms: load.vms[..1].to_vec() };
        let plan = super::plan(&machine(4), &load, chosen.as_mut(), &Options::default());
        assert_eq!((plan.outcome, &*plan.vms[0].reason), (Outcome::NoCounters, why), "{policy}");
    }
}

#[test]
fn huge_pages_go_where_huge_pages_are_free() {
    const PAGE: u64 = 2 << 20;
    // Usual memory is free on node 0, where its vCPU must stay; huge pages are free on node 1 only.
    let planned = |huge: [u64; 4], free: [u64; 4]| {
        let topology = machine(4).with_free(&free.map(|n| n * G));
        let nodes = topology
            .nodes()
            .iter()
            .zip(huge)
            .map(|(node, huge)| Node { huge_free: [(PAGE, huge * G)].into(), ..node.clone() });
        let distances = (0..4).map(|a| (0..4).map(|b| topology.distance(a, b)).collect()).collect();
        let topology = Topology::new(nodes.collect(), distances, None).unwrap();
        let mut vm = drawn("a 1@0: 4@2 w57 c0");
        vm.page = Some(PAGE);
        let load = Load { vms: vec![vm] };
        let plan = plan(&topology, &load, &mut crate::Simple, &Options::default());
        (shown(&plan).remove(0), plan.moves)
    };
    assert_eq!(planned([0; 4], [8; 4]).0, "a 1@0: 4@2");
    assert_eq!(planned([0, 8, 0, 0], [8; 4]).0, "a 1@0: 4@1");
    let (shown, moves) = planned([4, 8, 0, 0], [0; 4]);
    let step = Move { vm: 0, from: 2, to: 0, bytes: 4 * G, page: Some(PAGE), cell: None };
    assert_eq!((&*shown, moves), ("a 1@0: 4@0", vec![step]));
}

#[test]
fn cpus_that_no_vm_may_use_are_no_room() {
    // Two CPUs of each node are isolated.
    let usual = || Some((0..16).filter(|cpu| cpu % 4 < 2).collect());
    let vms = ["a 2@0: 2@0 w57", "b 2@0: 2@0 w57"].map(|line| {
        let mut vm = drawn(line);
        vm.allowed.cpus = vec![usual(); 2];
        vm
    });
    let load = Load { vms: vms.to_vec() };
    let plan = plan(&machine(4), &load, &mut crate::Simple, &Options::default());
    assert_eq!(shown(&plan), ["a 2@0: 2@0", "b 2@1: 2@1"], "{:?}", plan.outcome);
}

#[test]
fn cells_of_a_guest_keep_their_vcpus_with_their_memory() {
    // Each cell's memory is where the other's vCPUs are; as a whole it is everywhere already.
    let mut vm = drawn("a 4@0: 4@0 w57");
    vm.now = Placed {
        vcpus: vec![Some(0), Some(0), Some(2), Some(2)],
        memory: vec![2 * G, 0, 2 * G, 0],
    };
    let cell = |vcpus: [usize; 2], node: usize| {
        let mut memory = vec![0; 4];
        memory[node] = 2 * G;
        crate::Cell { vcpus: vcpus.to_vec(), memory }
    };
    vm.cells = vec![cell([0, 1], 2), cell([2, 3], 0)];
    let load = Load { vms: vec![vm] };
    for policy in POLICIES {
        let mut chosen = policy_named(policy).unwrap();
        let plan = plan(&machine(4), &load, chosen.as_mut(), &Options::default());
        assert!(matches!(plan.outcome, Outcome::Move { gain } if 0.1 < gain), "{:?}", plan.outcome);
        let mut cells = load.vms[0].cells.clone();
        for step in &plan.moves {
            let memory = &mut cells[step.cell.unwrap()].memory;
            memory[step.from] -= step.bytes;
            memory[step.to] += step.bytes;
        }
        let after = &plan.vms[0].after;
        for cell in &cells {
            let homes: BTreeSet<_> =
                cell.vcpus.iter().map(|vcpu| after.vcpus[*vcpu].unwrap()).collect();
            let home = *homes.first().unwrap();
            assert_eq!((homes.len(), cell.memory[home]), (1, 2 * G), "{policy}: {plan:?}");
        }
        assert_eq!(plan.remote(&machine(4), 0, &load.vms[0]), [1.0, 0.0]);
        let sum = |node: usize| cells.iter().map(|cell| cell.memory[node]).sum::<u64>();
        assert_eq!(after.memory, (0..4).map(sum).collect::<Vec<_>>(), "{policy}");
        assert!(0.9 < plan.vms[0].speed_after && plan.vms[0].speed_before < 0.8);
    }
    let mut wrong = load.clone();
    wrong.vms[0].cells[1].vcpus.push(0);
    assert_eq!(wrong.check(&machine(4)), Err(crate::LoadError::Cells("a".to_owned())));
}

#[test]
fn what_gains_nothing_is_not_moved() {
    // Two change places, to have their vCPUs beside memory that is as near as before.
    let vms = ["a 1@0: 5@1 w57", "b 1@1: 6@0 w57"];
    let (_, _, plan) = planned("dino", [1, 1, 8, 8], &vms);
    assert_eq!(shown(&plan), ["a 1@1: 5@1", "b 1@0: 6@0"]);
    assert_eq!(plan.moved_bytes(), 0);
    // `calm` hardly uses memory: it stays where it is as long as no other VM needs its room.
    for policy in POLICIES {
        let (_, _, plan) = planned(policy, [8; 4], &["a 1@0: 5@2 w57", "calm 1@1: 6@3 w1"]);
        assert_eq!(plan.vms[1].after.memory, plan.vms[1].before.memory, "{policy}");
        assert!(matches!(plan.outcome, Outcome::Move { gain } if 0.5 < gain), "{policy}");
    }
}

#[test]
fn those_that_need_room_depend_on_who_leaves() {
    let topology = machine(2).with_free(&[0, 4 * G]);
    let now = |memory: [u64; 2]| Placed { vcpus: vec![Some(0)], memory: memory.to_vec() };
    let load = ["a", "b", "c"].map(|name| vm(name, 1, 0, 4 * G, 0.5)).to_vec();
    let mut plan = nothing("simple", &Load { vms: load });
    plan.vms.iter_mut().for_each(|vm| vm.before = now([4 * G, 0]));
    let step = |vm, from, to| Move { vm, from, to, bytes: 4 * G, page: None, cell: None };
    plan.moves = vec![step(0, 0, 1), step(1, 1, 0), step(2, 0, 1)];
    let depending = |staying: &[usize]| -> Vec<usize> {
        plan.depending(&topology, &staying.iter().copied().collect()).into_iter().collect()
    };
    assert!(depending(&[]).is_empty());
    assert_eq!(depending(&[0]), [0, 1]);
    assert_eq!(depending(&[1]), [1, 2]);
    assert_eq!(depending(&[2]), [2]);
}

#[test]
fn asymsched_brings_vcpus_to_their_memory_and_moves_little() {
    check(
        "asymsched",
        [8; 4],
        &["a 1@0: 5@2 w57", "b 1@1: 2@1 w57"],
        &["a 1@2: 5@2", "b 1@1: 2@1"],
    );
    // No CPU there: memory comes.
    check(
        "asymsched",
        [8; 4],
        &["a 1@0: 5@2 w57", "full 4@2: 2@2 w0 ="],
        &["a 1@0: 5@0", "full 4@2: 2@2"],
    );
}

#[test]
fn asymsched_does_not_move_for_longer_than_a_part_of_run_time() {
    let topology = machine(4);
    let mut young = drawn("a 1@0: 5@2 w57");
    // 5 s of moving are more than 5 % of 99 s, and not more of 101 s.
    for (ran_s, expected) in [(99.0, 2), (101.0, 0)] {
        young.ran_s = ran_s;
        let load = Load { vms: vec![young.clone(), drawn("full 4@2: 2@2 w0 =")] };
        let plan = plan(&topology, &load, &mut crate::AsymSched, &Options::default());
        let at = plan.vms[0].after.memory.iter().position(|bytes| 0 < *bytes);
        assert_eq!(at, Some(expected), "{:?}", plan.outcome);
    }
}

#[test]
fn nothing_is_worth_moving() {
    let check = |vms: &[&str], expected: fn(&Outcome) -> bool| {
        for policy in POLICIES {
            let (_, _, plan) = planned(policy, [8; 4], vms);
            assert!(expected(&plan.outcome), "{policy}: {:?}", plan.outcome);
            assert!(plan.moves.is_empty());
        }
    };
    check(&["a 1@0: 2@3 w4", "b 1@1: 2@1 w0"], |o| matches!(o, Outcome::LittleTraffic { .. }));
    check(&["a 1@0: 2@0 w57"], |o| matches!(o, Outcome::InPlace));
    check(&["a 1@0: 2@3 w57 ="], |o| {
        matches!(o, Outcome::LittleTraffic { .. } | Outcome::NoCounters)
    });
    check(&[], |o| *o == Outcome::NoCounters);
}

#[test]
fn a_vm_that_stays_has_a_reason() {
    let mut uncounted = drawn("a 1@0: 2@3 w57");
    uncounted.samples.iter_mut().for_each(|sample| sample.instructions = None);
    let check = |policy: &str, vm: Vm, expected: &str| {
        let mut policy = policy_named(policy).unwrap();
        let load = Load { vms: vec![vm] };
        let plan = plan(&machine(4), &load, policy.as_mut(), &Options::default());
        assert_eq!((plan.outcome, &*plan.vms[0].reason), (Outcome::InPlace, expected));
    };
    check("dino", uncounted, "its instructions are not counted");
    check("asymsched", drawn("a 1@0: 2@0 w57"), "all its accesses are local");
    check("simple", drawn("a 1@0: 2@0 w57"), "number 1 by cache misses");
}

#[test]
fn a_vm_that_is_too_large_to_arrive_is_said() {
    for policy in POLICIES {
        let (_, _, plan) = planned(policy, [1; 4], &["in 1@0: 5@0 w57 +", "a 1@0: 2@2 w57"]);
        assert_eq!(
            plan.notes.first().unwrap(),
            "in does not fit: the host has too little free memory"
        );
        assert_eq!(plan.vms[0].after, plan.vms[0].before);
    }
}

#[test]
fn a_vm_that_is_larger_than_a_node_is_split() {
    let (_, _, plan) = planned("dino", [16; 4], &["big 8@0: 12@3 w57"]);
    assert_eq!(shown(&plan), ["big 4@0 4@3: 6@0 6@3"], "{:?}", plan.outcome);
}

/// Nodes never hold more than they can, at no time; vCPUs never exceed what a node may have, unless they did before.
fn fits(topology: &Topology, load: &Load, plan: &Plan) {
    let mut free: Vec<u64> = topology.nodes().iter().map(|node| node.free).collect();
    let mut memory: Vec<Vec<u64>> = load.vms.iter().map(|vm| vm.now.memory.clone()).collect();
    for step in &plan.moves {
        assert!(
            step.bytes <= free[step.to] && step.bytes <= memory[step.vm][step.from],
            "{step:?}"
        );
        free[step.to] -= step.bytes;
        free[step.from] += step.bytes;
        memory[step.vm][step.to] += step.bytes;
        memory[step.vm][step.from] -= step.bytes;
    }
    let is_planned = matches!(plan.outcome, Outcome::Move { .. });
    for ((vm, plan), memory) in load.vms.iter().zip(&plan.vms).zip(&memory) {
        assert_eq!(plan.after.bytes(), vm.bytes(), "{}", vm.name);
        assert_eq!(plan.after.vcpus.len(), vm.now.vcpus.len());
        if vm.stays.is_some() {
            assert_eq!(plan.after, vm.now, "{} may not be moved", vm.name);
        }
        match vm.arrival {
            Arrival::Resident => assert_eq!(&plan.after.memory, memory),
            Arrival::Incoming if !is_planned || !plan.fits => {}
            Arrival::Incoming => {
                for (free, bytes) in free.iter_mut().zip(&plan.after.memory) {
                    *free = free.checked_sub(*bytes).expect("arriving memory has room");
                }
            }
        }
    }
    let used = |of: fn(&VmPlan) -> &Placed, node: usize| -> usize {
        plan.vms
            .iter()
            .filter(|vm| vm.fits)
            .flat_map(|vm| &of(vm).vcpus)
            .filter(|home| **home == Some(node))
            .count()
    };
    let there = plan.vms.iter().filter(|vm| vm.fits);
    let all: usize = there.map(|vm| vm.after.vcpus.len()).sum();
    let fitting: Vec<&Vm> =
        load.vms.iter().zip(&plan.vms).filter(|(_, plan)| plan.fits).map(|(vm, _)| vm).collect();
    let cpus = capacity::usable_cpus(topology, &fitting);
    for (node, here) in cpus.iter().enumerate() {
        let may = here * all.div_ceil(cpus.iter().sum::<usize>().max(1)).max(1);
        let (before, after) = (used(|vm| &vm.before, node), used(|vm| &vm.after, node));
        assert!(after <= may.max(before), "node {node}: {after} vCPUs, before {before}");
    }
}

#[test]
fn ten_thousand_random_loads() {
    let options = Options::default();
    let mut moved = 0;
    for seed in 0..10_000_u64 {
        let case = random_case(seed);
        let policy = POLICIES[(seed % 3) as usize];
        let plans = |load: &Load| {
            let mut policy = policy_named(policy).unwrap();
            plan(&case.topology, load, policy.as_mut(), &options)
        };
        let first = plans(&case.load);
        fits(&case.topology, &case.load, &first);
        let mut limited = case.load.clone();
        limit(&case.topology, &mut limited, seed);
        let limited_plan = plans(&limited);
        fits(&case.topology, &limited, &limited_plan);
        keeps_to_what_is_allowed(&case.topology, &limited, &limited_plan);
        assert_eq!(plans(&case.load), first, "same input, same plan");
        moved += usize::from(matches!(first.outcome, Outcome::Move { .. }));
        settles(policy, &case, &options);
    }
    assert!((2_000..10_000).contains(&moved), "{moved} of 10,000 loads had a plan");
}

/// Lets some of the VMs use some nodes only.
fn limit(topology: &Topology, load: &mut Load, seed: u64) {
    for (at, vm) in load.vms.iter_mut().enumerate() {
        let draw = |what: u64| seed.wrapping_mul(31).wrapping_add(at as u64 * 7 + what) % 5;
        let node = |what: u64| (seed as usize + at + what as usize) % topology.len();
        let cpus = topology.nodes()[node(1)].cpus.iter().copied();
        match draw(0) {
            0 => vm.allowed.cpus = vec![Some(cpus.collect()); vm.now.vcpus.len()],
            1 => vm.allowed.cpus = vec![Some(cpus.take(1).collect()); vm.now.vcpus.len()],
            _ => {}
        }
        if draw(1) < 2 {
            vm.allowed.memory = Some([node(1), node(draw(2))].into());
        }
    }
}

fn keeps_to_what_is_allowed(topology: &Topology, load: &Load, plan: &Plan) {
    let residents =
        load.vms.iter().zip(&plan.vms).filter(|(vm, _)| vm.arrival != Arrival::Incoming);
    for (vm, plan) in residents {
        for (vcpu, (before, after)) in vm.now.vcpus.iter().zip(&plan.after.vcpus).enumerate() {
            let goes = after.filter(|_| before != after);
            let may = |node: usize| 0 < vm.allowed.cpus_on(topology, &[vcpu])[node];
            assert!(goes.is_none_or(may), "{}: {plan:?}", vm.name);
        }
    }
    let is_forbidden = |step: &&Move| !load.vms[step.vm].allowed.allows_memory(step.to);
    assert_eq!(plan.moves.iter().find(is_forbidden), None);
}

/// One policy after plan and plan on a constant load: it comes to rest, and no layout is there twice.
fn settles(policy: &str, case: &crate::Case, options: &Options) {
    let mut policy = policy_named(policy).unwrap();
    let (mut topology, mut load) = (case.topology.clone(), case.load.clone());
    let mut seen = vec![];
    for _ in 0..16 {
        let plan = plan(&topology, &load, policy.as_mut(), options);
        if !matches!(plan.outcome, Outcome::Move { .. }) {
            return;
        }
        let layout: Vec<Placed> = plan.vms.iter().map(|vm| vm.after.clone()).collect();
        assert!(!seen.contains(&layout), "{}: a layout comes back", case.name);
        seen.push(layout);
        let after = plan.carried_out(&load);
        topology = free_after(&topology, &load, &after);
        load = after;
    }
    panic!("{}: {} does not come to rest", case.name, policy.name());
}

/// The nodes when VMs are where they are after.
fn free_after(topology: &Topology, before: &Load, after: &Load) -> Topology {
    let used = |load: &Load, node: usize| -> u64 {
        let residents = load.vms.iter().filter(|vm| vm.arrival == Arrival::Resident);
        residents.map(|vm| vm.now.memory[node]).sum()
    };
    let free = |(at, node): (usize, &crate::Node)| node.free + used(before, at) - used(after, at);
    let free: Vec<u64> = topology.nodes().iter().enumerate().map(free).collect();
    topology.clone().with_free(&free)
}
