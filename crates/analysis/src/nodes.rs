//! VMs' memory and guest time on NUMA nodes.
//!
//! ```text
//!  guest time by node   n0 70 %   n1 30 %
//!  memory by node       n0 25 %   n1 75 %
//!  remote share         70 % x 75 % + 30 % x 25 % = 60 %
//! ```
//! As if all memory of a VM were used alike: of each stretch of guest time, the part of the VM's memory that is not on the
//! node of the CPU counts as remote.

use std::collections::{BTreeMap, BTreeSet};

use model::{CpuId, HostNs, NumaReading, Tables, TimeAccount, VmId};

use crate::vcpu_timeline::VcpuTimelines;

/// Why nothing is known of any VM's memory.
const NOT_RECORDED: &str = "not recorded";
/// The same of a VM without a reading.
const NOT_READ: &str = "not read";

/// The nodes of a recording's CPUs and of its VMs' memory.
#[derive(Debug, Clone, Default)]
pub struct Nodes {
    of_cpu: BTreeMap<CpuId, u32>,
    memory: BTreeMap<VmId, NodeMemory>,
}

/// Guest time by node, in any unit. `None`: on CPUs whose node is not known.
pub type GuestTimeByNode = BTreeMap<Option<u32>, u64>;

/// A VM's memory by node: the mean of its readings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeMemory {
    /// Bytes.
    Known(BTreeMap<u32, u64>),
    /// It was not read; the text says why.
    Unknown(String),
}

/// What a VM has on the nodes.
#[derive(Debug, Clone, PartialEq)]
pub struct VmNodes {
    pub vm: String,
    /// Its guest time, in samples.
    pub guest: GuestTimeByNode,
    pub memory: NodeMemory,
    /// The remote share of its guest time: 0 to 1.
    pub remote: Option<f64>,
}

impl Nodes {
    /// Those that a recording tells.
    #[must_use]
    pub fn new(tables: &Tables) -> Self {
        let of_cpu = tables.cpu_nodes.iter().map(|row| (row.cpu, row.node)).collect();
        let mut readings: BTreeMap<VmId, BTreeSet<HostNs>> = BTreeMap::new();
        let mut sums: BTreeMap<VmId, BTreeMap<u32, u128>> = BTreeMap::new();
        let mut memory = BTreeMap::new();
        for row in &tables.memory {
            match &row.found {
                NumaReading::OnNode { node, bytes } => {
                    readings.entry(row.vm).or_default().insert(row.time);
                    let sum = sums.entry(row.vm).or_default().entry(*node).or_default();
                    *sum += u128::from(*bytes);
                }
                NumaReading::Unknown(reason) => {
                    memory.insert(row.vm, NodeMemory::Unknown(reason.clone()));
                }
            }
        }
        for (vm, by_node) in sums {
            let n = readings.get(&vm).map_or(1, BTreeSet::len).max(1) as u128;
            let mean = |sum: u128| u64::try_from(sum / n).unwrap_or(u64::MAX);
            let by_node = by_node.into_iter().map(|(node, sum)| (node, mean(sum))).collect();
            memory.insert(vm, NodeMemory::Known(by_node));
        }
        Self { of_cpu, memory }
    }

    /// The node of a CPU; `None`: not known.
    #[must_use]
    pub fn of_cpu(&self, cpu: CpuId) -> Option<u32> {
        self.of_cpu.get(&cpu).copied()
    }

    /// The memory of a VM, by node.
    #[must_use]
    pub fn memory(&self, vm: VmId) -> NodeMemory {
        let is_recorded = !self.of_cpu.is_empty();
        let reason = if is_recorded { NOT_READ } else { NOT_RECORDED };
        self.memory.get(&vm).cloned().unwrap_or_else(|| NodeMemory::Unknown(reason.to_owned()))
    }

    /// The remote share of a VM's guest time on the time axis.
    #[must_use]
    pub fn remote_share(&self, tables: &Tables, vm: VmId, axis: &VcpuTimelines) -> Option<f64> {
        let of_vm = |row: usize| tables.vcpus.get(row).is_some_and(|vcpu| vcpu.vm == vm);
        let of_vm = axis.timelines.iter().filter(|timeline| of_vm(timeline.vcpu.index()));
        let segments = of_vm.flat_map(|timeline| &timeline.segments);
        let mut guest = GuestTimeByNode::new();
        for segment in segments.filter(|segment| segment.state.account() == TimeAccount::Guest) {
            let node = segment.cpu.and_then(|cpu| self.of_cpu(cpu));
            *guest.entry(node).or_default() += segment.length_ns();
        }
        self.memory(vm).remote_share(&guest)
    }
}

impl NodeMemory {
    /// Bytes on all nodes.
    #[must_use]
    pub fn total(&self) -> Option<u64> {
        match self {
            Self::Known(nodes) => {
                Some(nodes.values().fold(0, |sum, n| u64::saturating_add(sum, *n)))
            }
            Self::Unknown(_) => None,
        }
    }

    /// Bytes on a node.
    #[must_use]
    pub fn on(&self, node: u32) -> Option<u64> {
        match self {
            Self::Known(nodes) => Some(nodes.get(&node).copied().unwrap_or(0)),
            Self::Unknown(_) => None,
        }
    }

    /// The remote share of guest time: its mean, over that on known nodes, of the part of the memory that is elsewhere.
    /// `None` without such time or memory.
    #[must_use]
    pub fn remote_share(&self, guest: &GuestTimeByNode) -> Option<f64> {
        let total = self.total().filter(|total| 0 < *total)? as f64;
        let (mut all, mut remote) = (0.0, 0.0);
        for (node, time) in guest {
            let Some(local) = node.and_then(|node| self.on(node)) else { continue };
            all += *time as f64;
            remote += *time as f64 * (1.0 - local as f64 / total);
        }
        (0.0 < all).then(|| remote / all)
    }
}

#[cfg(test)]
mod test {
    use model::{CpuNode, VmMemory};

    use super::*;

    fn tables(memory: &[(u64, NumaReading)]) -> Tables {
        let cpu_nodes = [(0, 0), (1, 0), (2, 1)];
        let row = |(time, found): &(u64, NumaReading)| VmMemory {
            vm: VmId(0),
            time: HostNs(*time),
            found: found.clone(),
        };
        Tables {
            cpu_nodes: cpu_nodes.map(|(cpu, node)| CpuNode { cpu: CpuId(cpu), node }).into(),
            memory: memory.iter().map(row).collect(),
            ..Tables::default()
        }
    }

    #[test]
    fn remote_shares() {
        let check = |memory: &[(u32, u64)], guest: &[(Option<u32>, u64)], expected| {
            let memory = NodeMemory::Known(memory.iter().copied().collect());
            let remote = memory.remote_share(&guest.iter().copied().collect());
            assert_eq!(remote.map(|part| (part * 1e4).round()), expected, "{memory:?} {guest:?}");
        };
        let spread = [(0, 25), (1, 75)];
        check(&spread, &[(Some(0), 70), (Some(1), 30)], Some(6000.0));
        check(&spread, &[(Some(2), 9)], Some(10_000.0));
        check(&[(1, 5)], &[(Some(1), 9)], Some(0.0));
        // Time on CPUs of unknown nodes says nothing.
        check(&spread, &[(Some(0), 1), (None, 1000)], Some(7500.0));
        check(&spread, &[(None, 1000)], None);
        check(&spread, &[], None);
        check(&[(0, 0)], &[(Some(0), 1)], None);
        check(&[], &[(Some(0), 1)], None);
        let most = u64::MAX;
        check(&[(0, most), (1, most)], &[(Some(0), most), (Some(1), most)], Some(0.0));
        assert_eq!(NodeMemory::Unknown(String::new()).remote_share(&[(Some(0), 1)].into()), None);
    }

    #[test]
    fn memory_is_the_mean_of_its_readings() {
        let on = |node, bytes| NumaReading::OnNode { node, bytes };
        let check = |memory: &[(u64, NumaReading)], expected| {
            assert_eq!(Nodes::new(&tables(memory)).memory(VmId(0)), expected, "{memory:?}");
        };
        let known = |nodes: &[(u32, u64)]| NodeMemory::Known(nodes.iter().copied().collect());
        check(&[(1, on(0, 8)), (2, on(0, 4)), (2, on(1, 4))], known(&[(0, 6), (1, 2)]));
        let gone = NumaReading::Unknown("gone".into());
        check(&[(1, on(1, 8)), (2, gone.clone())], known(&[(1, 8)]));
        check(&[(2, gone)], NodeMemory::Unknown("gone".into()));
        check(&[], NodeMemory::Unknown("not read".into()));
        let nothing = Nodes::new(&Tables::default());
        assert_eq!(nothing.memory(VmId(0)), NodeMemory::Unknown("not recorded".into()));
        let of_cpu = [0, 2, 3].map(|cpu| Nodes::new(&tables(&[])).of_cpu(CpuId(cpu)));
        assert_eq!(of_cpu, [Some(0), Some(1), None]);
    }
}
