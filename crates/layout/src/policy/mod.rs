//! Policies: which node each part of a VM should be on.

mod asym_sched;
mod dino;
mod external;
mod simple;

use std::fmt::Debug;

use crate::load::Placed;
use crate::topology::{HugePage, NodeBytes, Topology};

pub use asym_sched::AsymSched;
pub use dino::{Class, Dino};
pub use external::External;
pub use simple::Simple;

/// Names of the policies.
pub const POLICIES: [&str; 3] = ["simple", "dino", "asymsched"];

/// What chooses nodes. A policy does not know which VM is still on its way.
pub trait Policy: Debug {
    /// Its name: one of `POLICIES`, or `exec`.
    fn name(&self) -> &'static str;

    /// A choice for each part, in the parts' order. `room` is what nodes have for all parts that may move: what these use
    /// now is part of it. The choices need not fit: `plan` sees to that.
    fn place(&mut self, topology: &Topology, room: &Room, parts: &[Part]) -> Vec<Choice>;
}

/// The policy of that name.
#[must_use]
pub fn policy_named(name: &str) -> Option<Box<dyn Policy>> {
    match name {
        "simple" => Some(Box::new(Simple)),
        "dino" => Some(Box::new(Dino::default())),
        "asymsched" => Some(Box::new(AsymSched)),
        _ => None,
    }
}

/// A VM that fits into one node, or a share of a VM that does not.
#[derive(Debug, Clone, PartialEq)]
pub struct Part {
    /// The VM's number.
    pub vm: u32,
    /// Its name, which its owner chose: policies compare it with nothing.
    pub name: String,
    /// Which of the VM's parts.
    pub number: usize,
    /// Where its vCPUs are now, by node; `None`: they run anywhere.
    pub home: Option<usize>,
    pub vcpus: usize,
    /// So many of them are on each node now.
    pub vcpus_on: Vec<usize>,
    /// The nodes on which all its vCPUs may run at once.
    pub homes: Vec<bool>,
    /// Bytes on each node now.
    pub memory: Vec<u64>,
    /// What its memory is made of.
    pub page: HugePage,
    /// The nodes on which its memory may lie.
    pub memory_nodes: Vec<bool>,
    /// Misses of the last level cache a second.
    pub misses_per_s: f64,
    /// The part of them that goes to another node now.
    pub remote: f64,
    /// Misses in 10,000 instructions of each sample, the oldest first; empty where instructions are not counted.
    pub signatures: Vec<f64>,
    pub may_move: bool,
    /// Seconds that the VM has run.
    pub ran_s: f64,
    /// Seconds that moving a byte of its memory takes.
    pub seconds_per_byte: f64,
}

/// What a policy wants for a part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The node for its vCPUs; `None`: as they are.
    pub home: Option<usize>,
    /// What becomes of its memory.
    pub memory: MemoryChoice,
    /// Parts of a lower rank get memory first.
    pub rank: usize,
    /// Why, as a sentence without its full stop.
    pub reason: String,
}

/// What becomes of a part's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryChoice {
    Stay,
    /// It goes to the vCPUs' node, and what has no room there to the nearest.
    Follow,
}

/// What nodes have for vCPUs and memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Room {
    pub vcpus: Vec<usize>,
    pub bytes: NodeBytes,
}

impl Choice {
    /// A choice to leave the VM where it is.
    #[must_use]
    pub fn stay(reason: impl Into<String>) -> Self {
        Self { home: None, memory: MemoryChoice::Stay, rank: usize::MAX, reason: reason.into() }
    }
}

impl Part {
    /// Bytes of its memory.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.memory.iter().sum()
    }

    /// Seconds that moving all its memory to these nodes takes.
    #[must_use]
    pub fn moving_s(&self, to: &[u64]) -> f64 {
        let arriving = |(to, now): (&u64, &u64)| to.saturating_sub(*now);
        let bytes: u64 = to.iter().zip(&self.memory).map(arriving).sum();
        bytes as f64 * self.seconds_per_byte
    }

    /// Why no node is found for its vCPUs.
    pub(crate) fn homeless(&self) -> Choice {
        Choice::stay(match self.homes.contains(&true) {
            true => "no node has room for its vCPUs",
            false => "its vCPUs may not run on one node",
        })
    }

    /// Whether these nodes have all its memory.
    #[must_use]
    pub fn holds(&self, placed: &[u64]) -> bool {
        placed.iter().sum::<u64>() == self.bytes()
    }

    /// Where it is now.
    #[must_use]
    pub fn placed(&self) -> Placed {
        Placed { vcpus: vec![self.home; self.vcpus], memory: self.memory.clone() }
    }
}

impl Room {
    /// Whether a node has room for a part's vCPUs, and they may run there.
    #[must_use]
    pub fn has_vcpus(&self, node: usize, part: &Part) -> bool {
        part.homes[node] && part.vcpus <= self.vcpus[node]
    }

    /// Where a part's memory goes when it should be near a node. It is less than the part has where the nodes that it may
    /// use have no room for more.
    #[must_use]
    pub fn nearest(&self, topology: &Topology, home: usize, part: &Part) -> Vec<u64> {
        self.nearest_of(topology, home, (part.bytes(), part.page), &part.memory_nodes)
    }

    /// Where so many bytes go when they should be near a node, and may lie on these only.
    pub(crate) fn nearest_of(
        &self,
        topology: &Topology,
        home: usize,
        (bytes, page): (u64, HugePage),
        nodes: &[bool],
    ) -> Vec<u64> {
        let mut placed = vec![0; topology.len()];
        let mut left = bytes;
        for node in topology.nearest(home).into_iter().filter(|node| nodes[*node]) {
            placed[node] = left.min(self.bytes.on(page, node));
            left -= placed[node];
        }
        placed
    }

    /// Takes a part's vCPUs and so much memory away; what is not there does not become less.
    pub fn take(&mut self, home: Option<usize>, part: &Part, memory: &[u64]) {
        if let Some(home) = home {
            self.vcpus[home] = self.vcpus[home].saturating_sub(part.vcpus);
        }
        self.bytes.take(part.page, memory);
    }
}
