//! What VMs need, and how they use memory.

use std::collections::BTreeSet;

use crate::topology::{HugePage, Topology};

/// VMs at most.
pub const MAX_VMS: usize = 1024;
/// vCPUs of a VM at most.
pub const MAX_VCPUS: usize = 1024;
/// More than all CPUs of a machine count of anything in a second.
const MAX_A_SECOND: f64 = 1e14;
/// A sample that is longer is none.
const MAX_SECONDS: f64 = 1e10;
/// Bytes that a cache miss moves.
pub const CACHE_LINE: u64 = 64;

/// The VMs of a host, those that are on their way included.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Load {
    pub vms: Vec<Vm>,
}

/// A VM.
#[derive(Debug, Clone, PartialEq)]
pub struct Vm {
    /// Its number, different from those of all others: on a running host the process's.
    pub id: u32,
    /// Its name, which its owner chose: shown to people, and compared with nothing.
    pub name: String,
    /// Where it is. Of a VM that arrives: where it would be without a plan.
    pub now: Placed,
    /// Whether it is there yet.
    pub arrival: Arrival,
    /// Why neither its memory nor its vCPUs may be moved; `None`: they may.
    pub stays: Option<String>,
    /// What its memory is made of.
    pub page: HugePage,
    /// The guest's own NUMA nodes; empty: it has none.
    pub cells: Vec<Cell>,
    /// What it may use of the host.
    pub allowed: Allowed,
    /// What was counted of it, the oldest first.
    pub samples: Vec<Sample>,
    /// What counted.
    pub source: Source,
    /// Seconds that it has run.
    pub ran_s: f64,
    /// Bytes a second at which its memory can be moved.
    pub move_bytes_per_s: u64,
}

/// A NUMA node of a guest.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cell {
    /// Its vCPUs, by their places in the VM; no other cell has them.
    pub vcpus: Vec<usize>,
    /// Bytes on each node of the host: a part of the VM's.
    pub memory: Vec<u64>,
}

/// Where a VM's vCPUs run and its memory lies, by the nodes' places in the topology.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Placed {
    /// The node of each vCPU; `None`: it runs anywhere.
    pub vcpus: Vec<Option<usize>>,
    /// Bytes on each node.
    pub memory: Vec<u64>,
}

/// What the host's administrator lets a VM use. The default: everything.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Allowed {
    /// The CPUs that each vCPU may run on, in the vCPUs' order; `None`, or no entry: all.
    pub cpus: Vec<Option<BTreeSet<u32>>>,
    /// The nodes that its memory may lie on, by their places in the topology; `None`: all.
    pub memory: Option<BTreeSet<usize>>,
}

/// Whether a VM is there yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Arrival {
    /// It runs on this host.
    #[default]
    Resident,
    /// It is being migrated to this host: its memory is not there yet, and can be put anywhere at no cost.
    Incoming,
}

/// What was counted of all vCPUs of a VM for a while.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Sample {
    pub seconds: f64,
    /// Misses of the last level cache.
    pub misses: f64,
    /// Instructions; `None`: the source does not count them.
    pub instructions: Option<f64>,
    /// The part of its accesses that went to another node; `None`: as its memory lies.
    pub remote: Option<f64>,
}

/// What counted a VM's memory traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Source {
    /// Performance counters of the vCPU threads.
    Perf,
    /// The kernel's resource control: bytes that the VM's group moved.
    Resctrl,
    /// The kernel's monitor of accessed memory: misses are estimated from how much is accessed, instructions not known.
    Damon,
    /// A file.
    Recorded,
    /// Nothing: the VM's use of memory is not known.
    #[default]
    None,
}

/// What is wrong with a load.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// Too many.
    #[error("{0} VMs: at most {MAX_VMS} are allowed")]
    Vms(usize),
    /// None, or too many.
    #[error("VM {name}: {vcpus} vCPUs: there must be 1 to {MAX_VCPUS}")]
    Vcpus { name: String, vcpus: usize },
    /// It is somewhere that the topology does not have.
    #[error("VM {0}: it is on a node that the host does not have")]
    Node(String),
    /// Cells that are no parts of it.
    #[error("VM {0}: the NUMA nodes of its guest do not fit it")]
    Cells(String),
    /// A count that is negative, no number, or more than any machine counts.
    #[error("VM {0}: a counter, time, rate or share is out of range")]
    Number(String),
}

impl Load {
    /// Checks it against a topology.
    ///
    /// # Errors
    /// If it does not fit, or has numbers that are none.
    pub fn check(&self, topology: &Topology) -> Result<(), LoadError> {
        if MAX_VMS < self.vms.len() {
            return Err(LoadError::Vms(self.vms.len()));
        }
        self.vms.iter().try_for_each(|vm| vm.check(topology))
    }
}

impl Load {
    /// Leaves out the VMs for which no plan can be made; why. One VM costs others nothing.
    pub fn leave_out_unsound(&mut self, topology: &Topology) -> Vec<LoadError> {
        let mut why = Vec::new();
        self.vms.retain(|vm| vm.check(topology).map_err(|error| why.push(error)).is_ok());
        if MAX_VMS < self.vms.len() {
            why.push(LoadError::Vms(self.vms.len()));
            self.vms.truncate(MAX_VMS);
        }
        why
    }
}

impl Vm {
    fn check(&self, topology: &Topology) -> Result<(), LoadError> {
        let name = || self.name.clone();
        let Placed { vcpus, memory } = &self.now;
        if vcpus.is_empty() || MAX_VCPUS < vcpus.len() {
            return Err(LoadError::Vcpus { name: name(), vcpus: vcpus.len() });
        }
        let is_unknown = |node: &usize| topology.len() <= *node;
        if memory.len() != topology.len() || vcpus.iter().flatten().any(is_unknown) {
            return Err(LoadError::Node(name()));
        }
        if !self.has_sound_cells() {
            return Err(LoadError::Cells(name()));
        }
        if is_bad(self.ran_s)
            || self.move_bytes_per_s == 0
            || self.samples.iter().any(Sample::is_bad)
        {
            return Err(LoadError::Number(name()));
        }
        Ok(())
    }

    /// Whether each vCPU is in one cell at most, and no cell has more memory than the VM.
    fn has_sound_cells(&self) -> bool {
        let mut seen = BTreeSet::new();
        let mut vcpus = self.cells.iter().flat_map(|cell| &cell.vcpus);
        let mut are_vcpus = |vcpu: &usize| *vcpu < self.now.vcpus.len() && seen.insert(*vcpu);
        let sum = |node: usize| {
            self.cells.iter().try_fold(0, |sum: u64, cell| sum.checked_add(*cell.memory.get(node)?))
        };
        let is_part = |(node, bytes): (usize, &u64)| sum(node).is_some_and(|sum| sum <= *bytes);
        vcpus.all(&mut are_vcpus) && self.now.memory.iter().enumerate().all(is_part)
    }

    /// Bytes of its memory.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.now.bytes()
    }

    /// Misses a second; 0 when nothing was counted.
    #[must_use]
    pub fn misses_per_s(&self) -> f64 {
        let seconds: f64 = self.samples.iter().map(|sample| sample.seconds).sum();
        let misses: f64 = self.samples.iter().map(|sample| sample.misses).sum();
        if 0.0 < seconds { misses / seconds } else { 0.0 }
    }

    /// Bytes a second that it moves between memory and caches.
    #[must_use]
    pub fn bytes_per_s(&self) -> f64 {
        self.misses_per_s() * CACHE_LINE as f64
    }

    /// The part of its accesses that go to another node than their vCPU's, as counted; `None`: nothing counted that.
    #[must_use]
    pub fn counted_remote(&self) -> Option<f64> {
        counted_remote(&self.samples)
    }
}

/// The same of samples.
pub(crate) fn counted_remote(samples: &[Sample]) -> Option<f64> {
    let counted = samples.iter().filter_map(|sample| Some((sample.remote?, sample.misses)));
    let (remote, all) =
        counted.fold((0.0, 0.0), |(remote, all), (part, n)| (remote + part * n, all + n));
    (0.0 < all).then(|| remote / all)
}

impl Sample {
    /// Whether it has numbers that are none, or more than any machine does in the time.
    #[must_use]
    pub fn is_bad(&self) -> bool {
        let Self { seconds, misses, instructions, remote } = *self;
        let is_count = |n: f64| (0.0..=seconds * MAX_A_SECOND).contains(&n);
        let has_time = 0.0 < seconds && seconds <= MAX_SECONDS;
        let counts = is_count(misses) && instructions.is_none_or(is_count);
        !has_time || !counts || remote.is_some_and(|part| !(0.0..=1.0).contains(&part))
    }
}

fn is_bad(value: f64) -> bool {
    !value.is_finite() || value < 0.0
}

impl Allowed {
    /// How many CPUs of each node these vCPUs may share; 0: one of them may run on none there.
    #[must_use]
    pub fn cpus_on(&self, topology: &Topology, vcpus: &[usize]) -> Vec<usize> {
        let limits = || vcpus.iter().map(|vcpu| self.cpus.get(*vcpu).and_then(Option::as_ref));
        let on = |node: &crate::Node| {
            let has_one = |limit: Option<&BTreeSet<u32>>| match limit {
                Some(limit) => node.cpus.iter().any(|cpu| limit.contains(cpu)),
                None => !node.cpus.is_empty(),
            };
            if !limits().all(has_one) {
                return 0;
            }
            let may_be_used =
                |cpu: &&u32| limits().any(|limit| limit.is_none_or(|limit| limit.contains(*cpu)));
            node.cpus.iter().filter(may_be_used).count()
        };
        topology.nodes().iter().map(on).collect()
    }

    /// The CPUs of a node on which a vCPU may run.
    #[must_use]
    pub fn cpus_of(&self, topology: &Topology, vcpu: usize, node: usize) -> Vec<u32> {
        let cpus = topology.nodes()[node].cpus.iter().copied();
        match self.cpus.get(vcpu).and_then(Option::as_ref) {
            Some(limit) => cpus.filter(|cpu| limit.contains(cpu)).collect(),
            None => cpus.collect(),
        }
    }

    /// The first vCPU that may not be where it is placed, and that node.
    #[must_use]
    pub fn forbidden_vcpu(&self, topology: &Topology, placed: &Placed) -> Option<(usize, usize)> {
        placed.vcpus.iter().enumerate().find_map(|(vcpu, home)| {
            let home = home.filter(|home| self.cpus_on(topology, &[vcpu])[*home] == 0)?;
            Some((vcpu, home))
        })
    }

    /// Whether its memory may lie on a node.
    #[must_use]
    pub fn allows_memory(&self, node: usize) -> bool {
        self.memory.as_ref().is_none_or(|nodes| nodes.contains(&node))
    }

    /// The same of each node.
    #[must_use]
    pub fn memory_nodes(&self, topology: &Topology) -> Vec<bool> {
        (0..topology.len()).map(|node| self.allows_memory(node)).collect()
    }
}

impl Placed {
    /// Everything on one node.
    #[must_use]
    pub fn on(node: usize, vcpus: usize, bytes: u64, nodes: usize) -> Self {
        let mut memory = vec![0; nodes];
        memory[node] = bytes;
        Self { vcpus: vec![Some(node); vcpus], memory }
    }

    /// Bytes of memory.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.memory.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// The part of accesses that goes to another node than the vCPU's, if all memory is accessed alike.
    #[must_use]
    pub fn remote(&self, topology: &Topology) -> f64 {
        let bytes = self.bytes();
        if bytes == 0 || self.vcpus.is_empty() {
            return 0.0;
        }
        let local = |node: usize| self.memory[node] as f64 / bytes as f64;
        let cpus = topology.cpus() as f64;
        let anywhere = || {
            let of = |(at, node): (usize, &crate::Node)| local(at) * node.cpus.len() as f64 / cpus;
            topology.nodes().iter().enumerate().map(of).sum::<f64>()
        };
        let near: f64 = self.vcpus.iter().map(|home| home.map_or_else(anywhere, local)).sum();
        (1.0 - near / self.vcpus.len() as f64).max(0.0)
    }

    /// The same of a guest whose vCPUs use the memory of their own cell. Without cells they use all of it.
    #[must_use]
    pub fn remote_of_cells(&self, topology: &Topology, cells: &[Cell]) -> f64 {
        if cells.is_empty() {
            return self.remote(topology);
        }
        let of = |cell: &Cell| {
            let vcpus = cell.vcpus.iter().filter_map(|vcpu| self.vcpus.get(*vcpu).copied());
            let cell = Self { vcpus: vcpus.collect(), memory: cell.memory.clone() };
            cell.remote(topology) * cell.vcpus.len() as f64
        };
        cells.iter().map(of).sum::<f64>() / self.vcpus.len().max(1) as f64
    }
}

impl Source {
    /// The name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Perf => "performance counters",
            Self::Resctrl => "resctrl",
            Self::Damon => "DAMON",
            Self::Recorded => "recorded",
            Self::None => "no source",
        }
    }
}
