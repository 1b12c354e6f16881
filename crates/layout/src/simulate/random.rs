//! Random hosts and VMs, for tests and to compare policies.

use super::{Case, Migration};
use crate::load::{Allowed, Arrival, Load, Placed, Sample, Source, Vm};
use crate::model::Model;
use crate::plan::default_placement;
use crate::topology::{Node, Topology};

const G: u64 = 1 << 30;

/// SplitMix64 (Steele and others, 2014): short, and the same everywhere.
#[derive(Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `end`.
    fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    fn index(&mut self, end: usize) -> usize {
        usize::try_from(self.below(end as u64)).unwrap_or(0)
    }

    /// From 0 to 1.
    fn part(&mut self) -> f64 {
        self.below(1 << 32) as f64 / (1_u64 << 32) as f64
    }

    fn is(&mut self, probability: f64) -> bool {
        self.part() < probability
    }
}

/// A random host with random VMs, of which some arrive.
#[must_use]
pub fn random_case(seed: u64) -> Case {
    let mut random = Random::new(seed);
    let topology = topology(&mut random);
    case(&topology, &mut random, format!("random {seed}"))
}

/// Random VMs on a host whose memory is all free.
pub(super) fn case(topology: &Topology, random: &mut Random, name: String) -> Case {
    let all: u64 = topology.nodes().iter().map(|node| node.total).sum();
    let fill = 0.2 + 0.75 * random.part();
    let mut free: Vec<u64> = topology.nodes().iter().map(|node| node.total).collect();
    let mut load = Load::default();
    let most = 2 * topology.cpus();
    while load.vms.len() < most {
        let used = all - free.iter().sum::<u64>();
        if fill * all as f64 <= used as f64 {
            break;
        }
        let mut vm = resident(topology, random, &free, &format!("vm{}", load.vms.len()));
        for (free, bytes) in free.iter_mut().zip(&vm.now.memory) {
            *free -= bytes;
        }
        vm.id = number(&load);
        load.vms.push(vm);
    }
    let topology = topology.clone().with_free(&free);
    for n in 0..=random.below(2) {
        let bytes = size(random).min(topology.nodes()[0].total);
        let mut vm = described(&topology, random, &format!("arrives{n}"));
        vm.now = default_placement(
            &topology,
            &load,
            vm.now.vcpus.len(),
            (bytes, None),
            &Allowed::default(),
        );
        if random.is(0.5) {
            // The kernel's balancer moved its vCPUs since.
            let home = random.index(topology.len());
            vm.now.vcpus.fill(Some(home));
        }
        vm.arrival = Arrival::Incoming;
        vm.id = number(&load);
        load.vms.push(vm);
    }
    Case { name, topology, load, migration: Migration::default() }
}

/// The next VM's.
fn number(load: &Load) -> u32 {
    u32::try_from(load.vms.len()).unwrap_or(u32::MAX)
}

fn topology(random: &mut Random) -> Topology {
    let n = [1, 2, 2, 4, 4, 8][random.index(6)];
    let cpus = 2 + random.index(11);
    let total = (8 + random.below(57)) * G;
    let ids = |at: usize| (at * cpus..(at + 1) * cpus).filter_map(|cpu| u32::try_from(cpu).ok());
    let node = |at: usize| Node {
        id: u32::try_from(at).unwrap_or(u32::MAX),
        cpus: ids(at).collect(),
        total,
        free: total,
        ..Node::default()
    };
    let between: Vec<u32> = (0..n * n).map(|_| [16, 21, 22, 32][random.index(4)]).collect();
    let distance = |a: usize, b: usize| if a == b { 10 } else { between[a.min(b) * n + a.max(b)] };
    let distances = (0..n).map(|a| (0..n).map(|b| distance(a, b)).collect()).collect();
    let made = Topology::new((0..n).map(node).collect(), distances, None);
    made.expect("each node has CPUs of its own, and no distance is below 16")
}

fn size(random: &mut Random) -> u64 {
    // Whole pages.
    G / 2 + random.below(16) * G / 2 + random.below(64) * 4096
}

fn resident(topology: &Topology, random: &mut Random, free: &[u64], name: &str) -> Vm {
    let mut vm = described(topology, random, name);
    let home = random.index(topology.len());
    let floats = random.is(0.1);
    vm.now.vcpus.fill((!floats).then_some(home));
    // Sometimes memory lies where the VM once was.
    let from = if random.is(0.6) { home } else { random.index(topology.len()) };
    vm.now.memory = vec![0; topology.len()];
    let mut left = size(random);
    for node in topology.nearest(from) {
        vm.now.memory[node] = left.min(free[node]);
        left -= vm.now.memory[node];
    }
    vm.stays = random.is(0.1).then(|| "it may not be moved".to_owned());
    vm
}

/// A VM that is nowhere yet.
fn described(topology: &Topology, random: &mut Random, name: &str) -> Vm {
    let most = topology.nodes().iter().map(|node| node.cpus.len()).max().unwrap_or(1);
    let vcpus = 1 + random.index(most.min(8));
    let waiting = if random.is(0.4) { 0.9 * random.part() } else { 0.1 * random.part() };
    let misses = Model::default().misses_for(waiting) * vcpus as f64;
    let instructions = (0.2 + (1.0 - waiting) * 2.0) * 1e9 * vcpus as f64;
    let has_instructions = !random.is(0.05);
    let sample = |noise: f64| Sample {
        seconds: 1.0,
        misses: misses * noise,
        instructions: has_instructions.then_some(instructions),
        remote: None,
    };
    let samples = (0..10).map(|_| sample(0.9 + 0.2 * random.part())).collect();
    Vm {
        id: 0,
        name: name.to_owned(),
        now: Placed { vcpus: vec![None; vcpus], memory: Vec::new() },
        arrival: Arrival::Resident,
        stays: None,
        page: None,
        cells: Vec::new(),
        allowed: Allowed::default(),
        samples,
        source: Source::Recorded,
        ran_s: 10.0 + random.below(10_000) as f64,
        move_bytes_per_s: G,
    }
}
