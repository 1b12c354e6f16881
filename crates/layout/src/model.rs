//! How fast VMs run in a layout: the memory model that predictions and simulations share.
//!
//! ```text
//!  time of a piece of work = what needs no memory + what waits for it
//!                          = (1 - m)              + m x mean over accesses of (distance / 10 x queue)
//! ```
//!
//! `m` is the part of its time that a vCPU waits for local memory: misses a second x latency / overlap. A queue is
//! `1 / (1 - traffic of others / bandwidth)`, of the memory or of the way to it, whichever is longer. `docs/layout.md`
//! has the assumptions and how far they can be trusted.

use crate::load::{CACHE_LINE, Load, Placed, Vm};
use crate::topology::Topology;

/// The model's constants.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Model {
    /// Local latency of memory, in ns.
    pub latency_ns: f64,
    /// Misses that are under way at once.
    pub overlap: f64,
    /// The most that a vCPU waits for local memory.
    pub most_waiting: f64,
    /// Use of a memory or link from which on the queue grows no more.
    pub most_use: f64,
}

impl Default for Model {
    fn default() -> Self {
        Self { latency_ns: 100.0, overlap: 5.0, most_waiting: 0.95, most_use: 0.9 }
    }
}

/// Bytes a second from each node's CPUs to each node's memory.
struct Traffic {
    links: Vec<Vec<f64>>,
    /// To each memory.
    memories: Vec<f64>,
}

impl Model {
    /// The part of its time that a VM waits for memory when all of it is local and no other VM uses it.
    #[must_use]
    pub fn waiting(&self, vm: &Vm) -> f64 {
        let per_vcpu = vm.misses_per_s() / vm.now.vcpus.len().max(1) as f64;
        (per_vcpu * self.latency_ns / 1e9 / self.overlap).min(self.most_waiting)
    }

    /// Misses a second of a vCPU that waits for memory so much of its time.
    #[must_use]
    pub fn misses_for(&self, waiting: f64) -> f64 {
        waiting * self.overlap * 1e9 / self.latency_ns
    }

    /// How fast each VM runs in this layout, relative to being alone with local memory. `None` of the layout: it is not
    /// there.
    #[must_use]
    pub fn speeds(&self, topology: &Topology, load: &Load, layout: &[Option<Placed>]) -> Vec<f64> {
        let n = topology.len();
        let mut all = Traffic { links: vec![vec![0.0; n]; n], memories: vec![0.0; n] };
        let mut running = vec![0.0; n];
        let own: Vec<Vec<Vec<f64>>> = load
            .vms
            .iter()
            .zip(layout)
            .map(|(vm, placed)| {
                let Some(placed) = placed else { return Vec::new() };
                let bytes = vm.misses_per_s() * CACHE_LINE as f64;
                let homes = homes(topology, placed);
                let shares = shares(placed);
                for (home, part) in homes.iter().enumerate() {
                    running[home] += part * placed.vcpus.len() as f64;
                    for (node, share) in shares.iter().enumerate() {
                        all.links[home][node] += bytes * part * share;
                        all.memories[node] += bytes * part * share;
                    }
                }
                let row = |part: &f64| shares.iter().map(|share| bytes * part * share).collect();
                homes.iter().map(row).collect()
            })
            .collect();
        let speed = |(at, (vm, placed)): (usize, (&Vm, &Option<Placed>))| {
            let Some(placed) = placed else { return 0.0 };
            self.speed(topology, vm, placed, (&all, &own[at]), &running)
        };
        load.vms.iter().zip(layout).enumerate().map(speed).collect()
    }

    fn speed(
        &self,
        topology: &Topology,
        vm: &Vm,
        placed: &Placed,
        (all, own): (&Traffic, &[Vec<f64>]),
        running: &[f64],
    ) -> f64 {
        let (homes, shares) = (homes(topology, placed), shares(placed));
        let own_at = |node: usize| own.iter().map(|row| row[node]).sum::<f64>();
        let (mut cost, mut cpu) = (0.0, 0.0);
        for (home, part) in homes.iter().enumerate().filter(|(_, part)| 0.0 < **part) {
            for (node, share) in shares.iter().enumerate().filter(|(_, share)| 0.0 < **share) {
                let at_memory =
                    self.queue(all.memories[node] - own_at(node), topology.bandwidth(node, node));
                let on_link = match home == node {
                    true => 1.0,
                    false => self.queue(
                        all.links[home][node] - own[home][node],
                        topology.bandwidth(home, node),
                    ),
                };
                let distance = topology.relative_distance(home, node);
                cost += part * share * distance * at_memory.max(on_link);
            }
            let cpus = topology.nodes()[home].cpus.len() as f64;
            cpu += part * (cpus / running[home].max(1e-9)).min(1.0);
        }
        if shares.iter().all(|share| *share == 0.0) {
            // No memory yet: nothing to wait for.
            cost = 1.0;
        }
        let waiting = self.waiting(vm);
        cpu / (1.0 - waiting + waiting * cost)
    }

    fn queue(&self, others: f64, bandwidth: u64) -> f64 {
        1.0 / (1.0 - (others / bandwidth as f64).clamp(0.0, self.most_use))
    }
}

/// The part of its vCPUs on each node; those that run anywhere are spread by CPUs.
fn homes(topology: &Topology, placed: &Placed) -> Vec<f64> {
    let mut homes = vec![0.0; topology.len()];
    let each = 1.0 / placed.vcpus.len().max(1) as f64;
    let anywhere = placed.vcpus.iter().filter(|home| home.is_none()).count() as f64;
    for home in placed.vcpus.iter().flatten() {
        homes[*home] += each;
    }
    for (node, home) in topology.nodes().iter().zip(&mut homes) {
        *home += each * anywhere * node.cpus.len() as f64 / topology.cpus() as f64;
    }
    homes
}

/// The part of its memory on each node: all memory is accessed alike.
fn shares(placed: &Placed) -> Vec<f64> {
    let bytes = placed.bytes().max(1) as f64;
    placed.memory.iter().map(|part| *part as f64 / bytes).collect()
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::plan::test::vm;
    use crate::topology::test::machine;

    fn check(layout: &[(usize, usize)], expected: &[f64]) {
        let topology = machine(4);
        let model = Model::default();
        let names = ["a", "b", "c"];
        let vms = layout.iter().zip(names).map(|(_, name)| vm(name, 1, 0, 1 << 30, 0.57)).collect();
        let place = |(home, memory): &(usize, usize)| {
            Some(Placed { vcpus: vec![Some(*home)], ..Placed::on(*memory, 1, 1 << 30, 4) })
        };
        let layout: Vec<_> = layout.iter().map(place).collect();
        let speeds = model.speeds(&topology, &Load { vms }, &layout);
        for (speed, expected) in speeds.iter().zip(expected) {
            assert!((speed - expected).abs() < 0.01, "{speeds:?}");
        }
    }

    /// The original's preliminary experiment: 68.3 % more time at a distance of 22.
    #[test]
    fn distance_costs_what_the_original_measured() {
        check(&[(0, 0)], &[1.0]);
        check(&[(0, 1)], &[1.0 / 1.342]);
        check(&[(0, 2)], &[1.0 / 1.684]);
    }

    #[test]
    fn a_shared_memory_is_slower_for_both() {
        check(&[(0, 0), (0, 0)], &[0.91, 0.91]);
        check(&[(0, 0), (1, 0)], &[0.91, 0.66]);
        check(&[(0, 0), (1, 1)], &[1.0, 1.0]);
    }

    #[test]
    fn too_many_vcpus_share_cpus() {
        let topology = machine(2);
        let load = Load { vms: vec![vm("a", 8, 0, 1 << 30, 0.0)] };
        let layout = [Some(Placed::on(0, 8, 1 << 30, 2))];
        let speeds = Model::default().speeds(&topology, &load, &layout);
        assert!((speeds[0] - 0.5).abs() < 1e-9, "{speeds:?}");
        let anywhere = [Some(Placed { vcpus: vec![None; 8], memory: vec![1 << 30, 0] })];
        let speeds = Model::default().speeds(&topology, &load, &anywhere);
        assert!((speeds[0] - 1.0).abs() < 1e-9, "{speeds:?}");
    }
}
