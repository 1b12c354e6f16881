//! A host's NUMA nodes.

use std::collections::BTreeMap;

use crate::moves::Move;

/// Nodes of a host at most.
pub const MAX_NODES: usize = 64;
/// CPUs of a host at most.
pub const MAX_CPUS: usize = 4096;
/// What the kernel calls local: a distance of 10.
const LOCAL: u32 = 10;
/// Default bandwidth of a node's memory: two channels of DDR3-1600 in practice. It only matters relative to
/// the traffic of the VMs.
const USUAL_BANDWIDTH: u64 = 12_800_000_000;

/// A host's NUMA nodes, and what lies between them. A node is named by its place in `nodes`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    nodes: Vec<Node>,
    distances: Vec<Vec<u32>>,
    bandwidths: Vec<Vec<u64>>,
}

/// A NUMA node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Node {
    /// The kernel's number for it.
    pub id: u32,
    /// Its CPUs; there are nodes of memory only.
    pub cpus: Vec<u32>,
    /// Bytes of its memory.
    pub total: u64,
    /// Bytes that are free, or can be made so at once.
    pub free: u64,
    /// Bytes of free huge pages by their size, in the kernel's pool for programs that ask for them. `free` is without these.
    pub huge_free: BTreeMap<u64, u64>,
}

/// The size of the pages that memory is made of: of huge pages of the kernel's pool; `None`: usual memory.
pub type HugePage = Option<u64>;

/// Bytes on each node. Usual memory and each size of huge pages are apart: one can't become the other while VMs run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeBytes(BTreeMap<HugePage, Vec<u64>>);

/// What is wrong with a description of nodes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// There is none, or too many.
    #[error("{0} nodes: there must be 1 to {MAX_NODES}")]
    Nodes(usize),
    /// There is none, or too many.
    #[error("{0} CPUs: there must be 1 to {MAX_CPUS}")]
    Cpus(usize),
    /// A CPU is in two nodes.
    #[error("CPU {0} is in two nodes")]
    CpuTwice(u32),
    /// A node is named twice.
    #[error("node {0} is given twice")]
    NodeTwice(u32),
    /// A table that does not have a row and a column for each node.
    #[error("{0} needs a row for each node, with a number for each node")]
    Shape(&'static str),
    /// A node is nearer to another than to itself, or distance or bandwidth is 0.
    #[error(
        "node {0}: its distance to itself must be {LOCAL}, other distances more, and no bandwidth 0"
    )]
    Value(u32),
}

impl Topology {
    /// Nodes with their distances (as in `/sys/devices/system/node/node*/distance`) and, where known, the bytes a second
    /// from each node's CPUs to each node's memory. Where not, farther memory delivers less, in proportion to distance.
    ///
    /// # Errors
    /// If tables and nodes do not fit together.
    pub fn new(
        nodes: Vec<Node>,
        distances: Vec<Vec<u32>>,
        bandwidths: Option<Vec<Vec<u64>>>,
    ) -> Result<Self, TopologyError> {
        let n = nodes.len();
        if n == 0 || MAX_NODES < n {
            return Err(TopologyError::Nodes(n));
        }
        let mut cpus: Vec<u32> = nodes.iter().flat_map(|node| node.cpus.iter().copied()).collect();
        if cpus.is_empty() || MAX_CPUS < cpus.len() {
            return Err(TopologyError::Cpus(cpus.len()));
        }
        if let Some(cpu) = twice(&mut cpus) {
            return Err(TopologyError::CpuTwice(cpu));
        }
        if let Some(id) = twice(&mut nodes.iter().map(|node| node.id).collect::<Vec<_>>()) {
            return Err(TopologyError::NodeTwice(id));
        }
        if !is_square(n, distances.iter().map(Vec::len)) {
            return Err(TopologyError::Shape("distances"));
        }
        let bandwidths = bandwidths.unwrap_or_else(|| estimated(&distances));
        if !is_square(n, bandwidths.iter().map(Vec::len)) {
            return Err(TopologyError::Shape("bandwidths"));
        }
        for (at, node) in nodes.iter().enumerate() {
            let distance_is_wrong = |(to, distance): (usize, &u32)| {
                if to == at { *distance != LOCAL } else { *distance < LOCAL }
            };
            if distances[at].iter().enumerate().any(distance_is_wrong)
                || bandwidths[at].contains(&0)
            {
                return Err(TopologyError::Value(node.id));
            }
        }
        Ok(Self { nodes, distances, bandwidths })
    }

    /// Nodes of the host.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Never: a host has at least one node.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// How many CPUs all nodes have.
    #[must_use]
    pub fn cpus(&self) -> usize {
        self.nodes.iter().map(|node| node.cpus.len()).sum()
    }

    /// How far memory of one node is for CPUs of another; 10 is local.
    #[must_use]
    pub fn distance(&self, from: usize, to: usize) -> u32 {
        self.distances[from][to]
    }

    /// The same relative to local memory.
    #[must_use]
    pub fn relative_distance(&self, from: usize, to: usize) -> f64 {
        f64::from(self.distances[from][to]) / f64::from(LOCAL)
    }

    /// Bytes a second from a node's CPUs to a node's memory.
    #[must_use]
    pub fn bandwidth(&self, from: usize, to: usize) -> u64 {
        self.bandwidths[from][to]
    }

    /// All nodes, in the order that the kernel allocates from when `home` is full.
    #[must_use]
    pub fn nearest(&self, home: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.len()).collect();
        order.sort_by_key(|node| (self.distance(home, *node), *node));
        order
    }

    /// The place of the node that the kernel calls so.
    #[must_use]
    pub fn index_of(&self, id: u32) -> Option<usize> {
        self.nodes.iter().position(|node| node.id == id)
    }

    /// The place of the node that has a CPU.
    #[must_use]
    pub fn node_of_cpu(&self, cpu: u32) -> Option<usize> {
        self.nodes.iter().position(|node| node.cpus.contains(&cpu))
    }

    /// What is free on each node.
    #[must_use]
    pub fn free(&self) -> NodeBytes {
        let usual: Vec<u64> = self.nodes.iter().map(|node| node.free).collect();
        let mut free = NodeBytes::from(usual);
        for (at, node) in self.nodes.iter().enumerate() {
            for (size, bytes) in &node.huge_free {
                free.add_on(Some(*size), at, *bytes);
            }
        }
        free
    }

    /// The same nodes with so much less that is free.
    #[must_use]
    pub fn without(mut self, taken: &NodeBytes) -> Self {
        for (at, node) in self.nodes.iter_mut().enumerate() {
            node.free = node.free.saturating_sub(taken.on(None, at));
            for (size, free) in &mut node.huge_free {
                *free = free.saturating_sub(taken.on(Some(*size), at));
            }
        }
        self
    }

    /// The same nodes with so much free memory.
    #[must_use]
    pub fn with_free(mut self, free: &[u64]) -> Self {
        for (node, free) in self.nodes.iter_mut().zip(free) {
            node.free = (*free).min(node.total);
        }
        self
    }
}

impl From<Vec<u64>> for NodeBytes {
    /// Usual memory.
    fn from(bytes: Vec<u64>) -> Self {
        Self(BTreeMap::from([(None, bytes)]))
    }
}

impl NodeBytes {
    /// Bytes on a node.
    #[must_use]
    pub fn on(&self, page: HugePage, node: usize) -> u64 {
        self.0.get(&page).and_then(|bytes| bytes.get(node)).copied().unwrap_or(0)
    }

    /// Bytes on the node that has most.
    #[must_use]
    pub fn most(&self, page: HugePage) -> u64 {
        self.0.get(&page).and_then(|bytes| bytes.iter().max()).copied().unwrap_or(0)
    }

    /// Whether there are so many bytes on each node.
    #[must_use]
    pub fn has(&self, page: HugePage, bytes: &[u64]) -> bool {
        bytes.iter().enumerate().all(|(node, bytes)| *bytes <= self.on(page, node))
    }

    /// Puts bytes to those of each node.
    pub fn add(&mut self, page: HugePage, bytes: &[u64]) {
        self.change(page, bytes, u64::saturating_add);
    }

    /// Takes bytes away; what is not there does not become less.
    pub fn take(&mut self, page: HugePage, bytes: &[u64]) {
        self.change(page, bytes, u64::saturating_sub);
    }

    /// Puts bytes to those of one node.
    pub(crate) fn add_on(&mut self, page: HugePage, node: usize, bytes: u64) {
        let of_page = self.0.entry(page).or_default();
        of_page.resize(of_page.len().max(node + 1), 0);
        of_page[node] = of_page[node].saturating_add(bytes);
    }

    /// Takes bytes for a move from one node to another, which frees them on the first.
    pub(crate) fn carry_out(&mut self, step: &Move) {
        self.add_on(step.page, step.from, step.bytes);
        let mut taken = vec![0; step.to + 1];
        taken[step.to] = step.bytes;
        self.take(step.page, &taken);
    }

    /// Has at least what another has.
    pub(crate) fn at_least(&mut self, other: &Self) {
        for (page, bytes) in &other.0 {
            self.change(*page, bytes, u64::max);
        }
    }

    /// Whether nothing of it is more than there.
    pub(crate) fn is_within(&self, most: &Self) -> bool {
        self.0.iter().all(|(page, bytes)| most.has(*page, bytes))
    }

    fn change(&mut self, page: HugePage, bytes: &[u64], changed: fn(u64, u64) -> u64) {
        let of_page = self.0.entry(page).or_default();
        of_page.resize(of_page.len().max(bytes.len()), 0);
        of_page.iter_mut().zip(bytes).for_each(|(sum, bytes)| *sum = changed(*sum, *bytes));
    }
}

fn is_square(n: usize, mut rows: impl ExactSizeIterator<Item = usize>) -> bool {
    rows.len() == n && rows.all(|length| length == n)
}

fn estimated(distances: &[Vec<u32>]) -> Vec<Vec<u64>> {
    let of = |distance: &u32| USUAL_BANDWIDTH * u64::from(LOCAL) / u64::from((*distance).max(1));
    distances.iter().map(|row| row.iter().map(of).collect()).collect()
}

fn twice(ids: &mut [u32]) -> Option<u32> {
    ids.sort_unstable();
    ids.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
}

#[cfg(test)]
pub(crate) mod test {
    use super::*;

    /// Nodes of 4 CPUs and 16 GiB, half of it free; neighbours at 16, others at 22.
    pub(crate) fn machine(n: usize) -> Topology {
        let node = |id: usize| Node {
            id: id as u32,
            cpus: (4 * id as u32..4 * id as u32 + 4).collect(),
            total: 16 << 30,
            free: 8 << 30,
            ..Node::default()
        };
        let distance = |a: usize, b: usize| match a.abs_diff(b) {
            0 => 10,
            1 => 16,
            _ => 22,
        };
        let row = |a| (0..n).map(|b| distance(a, b)).collect();
        Topology::new((0..n).map(node).collect(), (0..n).map(row).collect(), None).unwrap()
    }

    #[test]
    fn farther_memory_is_slower_and_later() {
        let machine = machine(4);
        assert_eq!(machine.nearest(2), [2, 1, 3, 0]);
        assert!(machine.bandwidth(0, 1) < machine.bandwidth(0, 0));
        assert_eq!(machine.node_of_cpu(9), Some(2));
    }

    #[test]
    fn what_does_not_fit_together_is_refused() {
        let node = |id, cpus: &[u32]| Node {
            id,
            cpus: cpus.to_vec(),
            total: 1,
            free: 1,
            ..Node::default()
        };
        let two = || vec![node(0, &[0]), node(1, &[1])];
        let near = || vec![vec![10, 20], vec![20, 10]];
        let check = |nodes, distances, bandwidths, expected| {
            assert_eq!(Topology::new(nodes, distances, bandwidths).unwrap_err(), expected);
        };
        check(vec![], vec![], None, TopologyError::Nodes(0));
        check(vec![node(0, &[])], vec![vec![10]], None, TopologyError::Cpus(0));
        check(vec![node(0, &[3]), node(1, &[3])], near(), None, TopologyError::CpuTwice(3));
        check(vec![node(1, &[0]), node(1, &[1])], near(), None, TopologyError::NodeTwice(1));
        check(two(), vec![vec![10, 20]], None, TopologyError::Shape("distances"));
        check(two(), near(), Some(vec![vec![1]]), TopologyError::Shape("bandwidths"));
        check(two(), vec![vec![10, 9], vec![20, 10]], None, TopologyError::Value(0));
        check(two(), near(), Some(vec![vec![1, 1], vec![0, 1]]), TopologyError::Value(1));
    }
}
