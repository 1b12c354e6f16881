//! The host's nodes, and where its VMs are on them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use host::numa::{self, NumaMaps, NumaNode};
use layout::{
    Allowed, Arrival, Cell, HugePage, Load, Node, Placed, Sample, Source, Topology, TopologyError,
    Vm,
};
use model::{Pid, Tid};
use probes::{FoundVm, MemorySlot};

use crate::allowed::allowed;
use crate::cells::{self, HostCell};
use crate::pinned::why_pinned;

/// Bytes of `status` and `stat` that are read at most.
const MAX_STATUS_BYTES: usize = 64 << 10;

/// The host's nodes, and its VMs.
#[derive(Debug)]
pub struct Host {
    pub topology: Topology,
    /// The VMs, by process.
    pub vms: Vec<HostVm>,
    /// What could not be read.
    pub notes: Vec<String>,
}

/// The process of a VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmProcess {
    /// The VM's name, different from those of all others here.
    pub name: String,
    pub pid: Pid,
    /// When it began, in ticks since the boot: a process of the same number that began at another time is another one.
    pub started: u64,
    /// The thread of each vCPU that has run.
    pub threads: Vec<Tid>,
}

/// A VM that runs on this host.
#[derive(Debug, Clone, PartialEq)]
pub struct HostVm {
    pub process: VmProcess,
    /// Where the guest's memory lies in the process.
    pub ranges: Vec<MemoryRange>,
    /// Where vCPUs and memory are.
    pub placed: Placed,
    /// What its cpusets let it use.
    pub allowed: Allowed,
    /// Why neither its memory nor its vCPUs can be moved.
    pub stays: Option<String>,
    /// What most of its memory is made of.
    pub page: HugePage,
    /// The guest's own NUMA nodes, if it has several.
    pub cells: Vec<HostCell>,
    /// Seconds that it has run.
    pub ran_s: f64,
    /// A memory policy other than the default one keeps its memory where it is: new pages go there, too.
    pub has_policy: bool,
}

/// A range of a process's addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryRange {
    pub start: u64,
    /// The first after it.
    pub end: u64,
    pub page_bytes: u64,
}

/// Why nodes or VMs can't be read, or VMs not be moved.
#[derive(Debug, thiserror::Error)]
pub enum NumaError {
    /// The kernel was built without NUMA, or hides it.
    #[error("this kernel shows no NUMA nodes ({0})")]
    NoNodes(PathBuf),
    /// The nodes can't be read.
    #[error("failed to read the NUMA nodes: {0}")]
    Nodes(#[source] io::Error),
    #[error("the NUMA nodes are invalid: {0}")]
    Topology(#[from] TopologyError),
    #[error("VM {0} has ended")]
    Gone(String),
    /// A thread can't be bound to CPUs.
    #[error("VM {vm} stays where it was: failed to bind vCPU {vcpu} to its node: {source}")]
    Affinity { vm: String, vcpu: usize, source: io::Error },
    /// A cpuset keeps a vCPU from its node.
    #[error("VM {vm} stays where it is: its cpuset allows vCPU {vcpu} no CPU of node {node}")]
    CpusNotAllowed {
        vm: String,
        vcpu: usize,
        /// The kernel's number of the node.
        node: u32,
    },
    /// A cpuset keeps memory from its node.
    #[error("VM {vm} stays where it is: its cpuset allows it no memory of node {node}")]
    MemoryNotAllowed {
        vm: String,
        /// The kernel's number of the node.
        node: u32,
    },
    /// Its memory has been pinned since the plan was made.
    #[error("VM {vm} stays where it is: {why}")]
    Held { vm: String, why: String },
    /// Most pages did not move: they are pinned, or the node has no room.
    #[error(
        "VM {vm} stays where it was: the kernel did not move {} of {} MiB to node {node}: they are pinned, or there is no room",
        .left >> 20, .wanted >> 20
    )]
    Stuck {
        vm: String,
        left: u64,
        wanted: u64,
        /// The kernel's number of the node.
        node: u32,
    },
    /// Other VMs could not be moved.
    #[error("VM {0} stays where it is: other VMs stay, and have the room that it needs")]
    RoomTaken(String),
    /// What was done to a VM before something failed.
    #[error("failed to roll back VM {vm}: {source}")]
    TakeBack { vm: String, source: Box<Self> },
    /// A thread can't be bound to CPUs while memory arrives.
    #[error("failed to have VM {vm} run on the CPUs of a node: {source}")]
    Steer { vm: String, source: io::Error },
    /// Pages can't be moved.
    #[error("VM {vm} stays where it was: failed to move its pages: {source}")]
    Pages { vm: String, source: io::Error },
}

/// Reads nodes from `sys`, and where `found` VMs are from `proc`. A VM that has ended is left out.
///
/// # Errors
/// If the nodes can't be read.
pub fn read(sys: &Path, proc: &Path, found: &[FoundVm]) -> Result<Host, NumaError> {
    let mut host = Host { topology: topology(sys)?, vms: Vec::new(), notes: Vec::new() };
    for (found, process) in found.iter().zip(processes(proc, found)) {
        let vm = process.and_then(|process| vm((sys, proc), &host.topology, found, process));
        match vm {
            Ok((vm, is_cut)) => {
                if is_cut {
                    let name = &vm.process.name;
                    host.notes.push(format!("{name} has too many mappings: not all were read"));
                }
                host.vms.push(vm);
            }
            Err(error) => host.notes.push(format!("process {} was left out: {error}", found.pid.0)),
        }
    }
    Ok(host)
}

/// The processes of `found` VMs, in their order. Reads little: memory is not looked at.
pub fn processes(proc: &Path, found: &[FoundVm]) -> Vec<io::Result<VmProcess>> {
    let mut names = BTreeSet::new();
    let mut process = |found: &FoundVm| {
        let mut process = process(proc, found)?;
        // VMs are called what their owners like, also what another one would be called then.
        while !names.insert(process.name.clone()) {
            process.name = format!("{}-{}", process.name, found.pid.0);
        }
        Ok(process)
    };
    found.iter().map(&mut process).collect()
}

fn process(proc: &Path, found: &FoundVm) -> io::Result<VmProcess> {
    let pid = found.pid.0;
    let started = started(&proc.join(pid.to_string()))?;
    let mut threads: Vec<(u32, Tid)> =
        found.vcpus.iter().filter_map(|vcpu| Some((vcpu.number, vcpu.tid?))).collect();
    threads.sort_unstable();
    let threads = threads.into_iter().map(|(_, tid)| tid).collect();
    let name = host::vms::describe(proc, pid, "").name;
    Ok(VmProcess { name, pid: found.pid, started, threads })
}

pub(crate) fn topology(sys: &Path) -> Result<Topology, NumaError> {
    let nodes = numa::nodes(sys).map_err(NumaError::Nodes)?;
    if nodes.is_empty() {
        return Err(NumaError::NoNodes(sys.join("devices/system/node")));
    }
    let node = |node: &NumaNode| Node {
        id: node.id,
        cpus: node.cpus.clone(),
        total: node.total,
        free: node.free,
        huge_free: node.huge_free.clone(),
    };
    // The firmware tells how fast a memory is for its nearest CPUs only.
    let row = |from: &NumaNode| -> Option<Vec<u64>> {
        let distances = from.distances.iter().zip(&nodes);
        distances.map(|(d, to)| Some(to.read_bandwidth? * 10 / u64::from(*d).max(1))).collect()
    };
    let bandwidths: Option<Vec<Vec<u64>>> = nodes.iter().map(row).collect();
    let distances = nodes.iter().map(|node| node.distances.clone()).collect();
    Ok(Topology::new(nodes.iter().map(node).collect(), distances, bandwidths)?)
}

fn vm(
    (sys, proc): (&Path, &Path),
    topology: &Topology,
    found: &FoundVm,
    process: VmProcess,
) -> io::Result<(HostVm, bool)> {
    let folder = proc.join(process.pid.0.to_string());
    let maps = numa::read_numa_maps(&folder)?;
    let home = |tid: &Tid| home(topology, &folder.join("task").join(tid.0.to_string()));
    let (memory, has_policy, page) = memory(topology, &maps, &found.slots);
    let pinned = why_pinned(&folder, memory.iter().sum());
    let guest = host::vms::describe(proc, process.pid.0, "").cells;
    let (cells, unclear) = match cells::find(&guest, found, process.threads.len()) {
        Ok(cells) => (cells.iter().map(|cell| host_cell(topology, &maps, cell)).collect(), None),
        Err(why) => (Vec::new(), Some(why.to_owned())),
    };
    let began_s = seconds(process.started);
    let vm = HostVm {
        allowed: allowed(sys, proc, topology, &process, found.vcpus.len()),
        placed: Placed { vcpus: process.threads.iter().map(home).collect(), memory },
        process,
        stays: pinned.or(unclear),
        page,
        cells,
        ranges: of_page(ranges(&maps, &found.slots), page),
        ran_s: uptime_s(proc).map_or(0.0, |uptime| (uptime - began_s).max(0.0)),
        has_policy,
    };
    Ok((vm, maps.is_cut))
}

fn host_cell(topology: &Topology, maps: &NumaMaps, cell: &cells::Found) -> HostCell {
    let (memory, _, page) = memory(topology, maps, &cell.slots);
    let ranges = of_page(ranges(maps, &cell.slots), page);
    HostCell { cell: Cell { vcpus: cell.vcpus.clone(), memory }, ranges }
}

/// What most of the guest's memory is made of, the bytes of this on each node, and whether a policy other than the default
/// holds for some of it.
fn memory(
    topology: &Topology,
    maps: &NumaMaps,
    slots: &[MemorySlot],
) -> (Vec<u64>, bool, HugePage) {
    let none = || vec![0_u64; topology.len()];
    let mut of_pages = BTreeMap::<HugePage, Vec<u64>>::new();
    let (mut has_policy, mut seen) = (false, BTreeSet::new());
    for slot in slots {
        for mapping in maps.within(slot.address, slot_end(slot)) {
            if !seen.insert(mapping.start) {
                continue;
            }
            has_policy |= !mapping.default_policy;
            let page = mapping.is_huge.then_some(mapping.page_bytes);
            let memory = of_pages.entry(page).or_insert_with(none);
            for (node, bytes) in mapping.bytes() {
                if let Some(at) = topology.index_of(node) {
                    memory[at] = memory[at].saturating_add(bytes);
                }
            }
        }
    }
    let sum = |memory: &[u64]| memory.iter().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
    let most = of_pages.into_iter().max_by_key(|(_, memory)| sum(memory));
    let (page, memory) = most.unwrap_or_else(|| (None, none()));
    (memory, has_policy, page)
}

pub(crate) fn slot_end(slot: &MemorySlot) -> u64 {
    slot.address.saturating_add(slot.pages.saturating_mul(4096))
}

/// A VM on huge pages has small memories of usual pages besides, such as its firmware: these stay.
fn of_page(mut ranges: Vec<MemoryRange>, page: HugePage) -> Vec<MemoryRange> {
    ranges.retain(|range| page.is_none_or(|page| range.page_bytes == page));
    ranges
}

/// Ascending, those that touch as one.
fn ranges(maps: &NumaMaps, slots: &[MemorySlot]) -> Vec<MemoryRange> {
    let page = |start, end| maps.within(start, end).map(|mapping| mapping.page_bytes).max();
    let range = |slot: &MemorySlot| {
        let (start, end) = (slot.address, slot_end(slot));
        MemoryRange { start, end, page_bytes: page(start, end).unwrap_or(4096) }
    };
    let mut all: Vec<MemoryRange> = slots.iter().map(range).collect();
    all.sort_unstable_by_key(|range| (range.start, range.end));
    let mut ranges: Vec<MemoryRange> = Vec::with_capacity(all.len());
    for range in all {
        match ranges.last_mut() {
            Some(last) if range.start <= last.end && last.page_bytes == range.page_bytes => {
                last.end = last.end.max(range.end);
            }
            _ => ranges.push(range),
        }
    }
    ranges
}

/// The node that a thread is bound to, of its folder in `/proc`; `None`: to none, or to several.
pub(crate) fn home(topology: &Topology, folder: &Path) -> Option<usize> {
    let status = text(&folder.join("status")).ok()?;
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let mut nodes = BTreeSet::new();
    for cpu in host::machine::parse_cpu_list(list.trim())? {
        nodes.extend(topology.node_of_cpu(cpu));
    }
    let only = nodes.pop_first()?;
    nodes.is_empty().then_some(only)
}

/// When a process began, in ticks since the boot, of its folder in `/proc`.
///
/// # Errors
/// When it is gone. One that has ended, and that its parent has not waited for yet, is gone.
pub fn started(folder: &Path) -> io::Result<u64> {
    let stat = stat(folder)?;
    match field(&stat, 0) {
        Some("Z" | "X") => Err(io::ErrorKind::NotFound.into()),
        _ => number(&stat, 19),
    }
}

fn stat(folder: &Path) -> io::Result<String> {
    text(&folder.join("stat"))
}

/// A field of `stat`, counted from behind the process's name.
fn field(stat: &str, field: usize) -> Option<&str> {
    // Its name may hold anything; what follows its last bracket is the kernel's.
    stat.rsplit(')').next()?.split_whitespace().nth(field)
}

fn number(stat: &str, at: usize) -> io::Result<u64> {
    let number = field(stat, at).and_then(|field| field.parse().ok());
    number.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The CPU time that a process has had, in ticks, of its folder in `/proc`.
///
/// # Errors
/// When it is gone.
pub fn cpu_time(folder: &Path) -> io::Result<u64> {
    let stat = stat(folder)?;
    Ok(number(&stat, 11)?.saturating_add(number(&stat, 12)?))
}

/// The CPU time in which a VM's guest ran, of all vCPUs, in seconds.
///
/// # Errors
/// When a thread is gone.
pub(crate) fn guest_s(proc: &Path, vm: &VmProcess) -> io::Result<f64> {
    let tasks = proc.join(vm.pid.0.to_string()).join("task");
    let of_thread = |tid: &Tid| number(&stat(&tasks.join(tid.0.to_string()))?, 40);
    let ticks: io::Result<u64> = vm.threads.iter().map(of_thread).sum();
    Ok(seconds(ticks?))
}

fn seconds(ticks: u64) -> f64 {
    ticks as f64 / rustix::param::clock_ticks_per_second().max(1) as f64
}

fn uptime_s(proc: &Path) -> Option<f64> {
    text(&proc.join("uptime")).ok()?.split(' ').next()?.parse().ok()
}

fn text(path: &Path) -> io::Result<String> {
    let mut bytes = std::fs::read(path)?;
    bytes.truncate(MAX_STATUS_BYTES);
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

impl HostVm {
    /// The part of its accesses that goes to another node, as its memory lies.
    #[must_use]
    pub fn remote(&self, topology: &Topology) -> f64 {
        let cells: Vec<Cell> = self.cells.iter().map(|cell| cell.cell.clone()).collect();
        self.placed.remote_of_cells(topology, &cells)
    }
}

impl Host {
    /// The VMs as a load. `samples` says how each uses memory, and what counted that.
    #[must_use]
    pub fn load(
        &self,
        move_bytes_per_s: u64,
        samples: impl Fn(&HostVm) -> (Source, Vec<Sample>),
    ) -> Load {
        let vm = |vm: &HostVm| {
            let (source, samples) = samples(vm);
            Vm {
                id: vm.process.pid.0,
                name: vm.process.name.clone(),
                now: vm.placed.clone(),
                arrival: Arrival::Resident,
                stays: vm.stays.clone(),
                page: vm.page,
                cells: vm.cells.iter().map(|cell| cell.cell.clone()).collect(),
                allowed: vm.allowed.clone(),
                samples,
                source,
                ran_s: vm.ran_s,
                move_bytes_per_s,
            }
        };
        // A VM without a vCPU that has run yet has nothing to be near to.
        let vms = self.vms.iter().filter(|vm| !vm.process.threads.is_empty());
        Load { vms: vms.map(vm).collect() }
    }
}

#[cfg(test)]
pub(crate) mod test {
    use std::fs;

    use probes::VcpuClock;

    use super::*;

    pub(crate) const MAPS: &str = "1000 default file=/usr/bin/qemu N0=7\n\
                        7f0000000000 default anon=4 N1=3 N0=1 kernelpagesize_kB=4\n\
                        7f0000010000 default anon=4 N1=9 kernelpagesize_kB=4\n";

    /// A host of two nodes with a VM of two vCPUs, of which one is bound to node 1.
    pub(crate) fn machine() -> (tempfile::TempDir, Vec<FoundVm>) {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for node in 0..2 {
            let folder = format!("sys/devices/system/node/node{node}");
            write(&format!("{folder}/cpulist"), &format!("{}-{}\n", 2 * node, 2 * node + 1));
            write(&format!("{folder}/distance"), ["10 21\n", "21 10\n"][node]);
            let meminfo = format!("Node {node} MemTotal: 4096 kB\nNode {node} MemFree: 1024 kB\n");
            write(&format!("{folder}/meminfo"), &meminfo);
        }
        write("proc/uptime", "1000.50 900.0\n");
        write("proc/40/cmdline", "qemu\0-name\0web\0");
        write(
            "proc/40/stat",
            &format!(
                "40 (a) b) S {}\n",
                (4..=52).map(|n| n.to_string()).collect::<Vec<_>>().join(" ")
            ),
        );
        write("proc/40/numa_maps", MAPS);
        write("proc/40/task/41/status", "Name:\tx\nCpus_allowed_list:\t2-3\n");
        write("proc/40/task/42/status", "Name:\tx\nCpus_allowed_list:\t0-3\n");
        let vcpu = |number, tid| VcpuClock {
            number,
            tid: Some(Tid(tid)),
            tsc_offset: 0,
            tsc_ratio: 0,
            protected: false,
        };
        let slot =
            MemorySlot { first_page: 0, pages: 4, address: 0x7f00_0000_0000, read_only: false };
        let found = FoundVm {
            pid: Pid(40),
            kvm: 1,
            slots: vec![slot],
            more_slots: false,
            vcpus: vec![vcpu(1, 42), vcpu(0, 41)],
        };
        let gone = FoundVm { pid: Pid(50), ..found.clone() };
        (root, vec![found, gone])
    }

    #[test]
    fn a_host_and_its_vms() {
        let (root, found) = machine();
        let host = read(&root.path().join("sys"), &root.path().join("proc"), &found).unwrap();
        assert_eq!(host.topology.distance(0, 1), 21);
        let [vm] = &host.vms[..] else { panic!("{host:?}") };
        assert_eq!((vm.process.name.as_str(), vm.process.started), ("web", 22));
        assert_eq!(vm.process.threads, [Tid(41), Tid(42)]);
        assert_eq!(vm.placed, Placed { vcpus: vec![Some(1), None], memory: vec![4096, 3 * 4096] });
        assert!((vm.ran_s - 1000.28).abs() < 0.01, "{}", vm.ran_s);
        assert!(host.notes[0].starts_with("process 50 was left out: "), "{:?}", host.notes);
        let load = host.load(1, |_| (Source::None, Vec::new()));
        assert_eq!(load.check(&host.topology), Ok(()));
    }

    #[test]
    fn ranges_that_touch_are_one() {
        let slot = |address, pages| MemorySlot { first_page: 0, pages, address, read_only: false };
        let slots = [slot(0x8000, 2), slot(0x1000, 2), slot(0x3000, 1), slot(0x3000, 1)];
        let found: Vec<(u64, u64)> =
            ranges(&NumaMaps::default(), &slots).iter().map(|r| (r.start, r.end)).collect();
        assert_eq!(found, [(0x1000, 0x4000), (0x8000, 0xa000)]);
    }

    #[test]
    fn vms_of_one_name_are_distinguished() {
        let (root, mut found) = machine();
        found[1].pid = found[0].pid;
        let host = read(&root.path().join("sys"), &root.path().join("proc"), &found).unwrap();
        let names: Vec<&str> = host.vms.iter().map(|vm| vm.process.name.as_str()).collect();
        assert_eq!(names, ["web", "web-40"]);
    }

    #[test]
    fn no_names_keep_a_host_from_being_planned() {
        let (root, mut found) = machine();
        let proc = root.path().join("proc");
        // By process: the third would be called what the first is.
        let vms = [(40, "web-60"), (50, "web"), (60, "web"), (70, "web-60")];
        for (pid, name) in vms {
            let folder = proc.join(pid.to_string());
            for file in ["stat", "numa_maps", "task/41/status", "task/42/status"] {
                let text = fs::read_to_string(proc.join("40").join(file)).unwrap();
                fs::create_dir_all(folder.join(file).parent().unwrap()).unwrap();
                fs::write(folder.join(file), text).unwrap();
            }
            fs::write(folder.join("cmdline"), format!("qemu\0-name\0{name}\0")).unwrap();
        }
        found.truncate(1);
        let found: Vec<FoundVm> =
            vms.iter().map(|(pid, _)| FoundVm { pid: Pid(*pid), ..found[0].clone() }).collect();
        let host = read(&root.path().join("sys"), &proc, &found).unwrap();
        let names: BTreeSet<&str> = host.vms.iter().map(|vm| vm.process.name.as_str()).collect();
        assert_eq!(names.len(), 4, "{names:?}");
        let load = host.load(1, |_| (Source::None, Vec::new()));
        assert_eq!(load.check(&host.topology), Ok(()));
        // Whatever they are called.
        let mut same = load.clone();
        same.vms.iter_mut().for_each(|vm| vm.name = "web".to_owned());
        assert_eq!(same.check(&host.topology), Ok(()));
        let ids: Vec<u32> = load.vms.iter().map(|vm| vm.id).collect();
        assert_eq!(ids, [40, 50, 60, 70]);
    }

    #[test]
    fn a_kernel_without_nodes_is_said() {
        let root = tempfile::tempdir().unwrap();
        let error = read(root.path(), root.path(), &[]).unwrap_err();
        assert!(error.to_string().starts_with("this kernel shows no NUMA nodes"), "{error}");
    }

    #[test]
    fn what_holds_a_vm_is_known_before_a_plan_is_made() {
        let (root, found) = machine();
        let (sys, proc) = (root.path().join("sys"), root.path().join("proc"));
        let stays = || {
            let host = read(&sys, &proc, &found).unwrap();
            let load = host.load(1, |_| (Source::None, Vec::new()));
            load.vms[0].stays.clone()
        };
        assert_eq!(stays(), None);
        fs::write(proc.join("40/status"), "VmLck:\t0 kB\nVmPin:\t16 kB\n").unwrap();
        let pinned = "1 MiB of its memory are pinned, by io_uring or a device";
        assert_eq!(stays().as_deref(), Some(pinned));
        fs::remove_file(proc.join("40/status")).unwrap();
        fs::write(proc.join("40/cmdline"), "qemu\0-name\0web\0-numa\0node\0-numa\0node\0").unwrap();
        let cells = "which vCPUs are in which NUMA node of its guest is not known";
        assert_eq!(stays().as_deref(), Some(cells));
    }

    #[test]
    fn huge_pages_and_cells_of_a_guest() {
        let (root, mut found) = machine();
        let (sys, proc) = (root.path().join("sys"), root.path().join("proc"));
        const HUGE: u64 = 2 << 20;
        let maps = "7d0000000000 default anon=64 N0=64 kernelpagesize_kB=4\n\
                    7e0000000000 bind:0 huge anon=1 N0=1 kernelpagesize_kB=2048\n\
                    7f0000000000 bind:1 huge anon=1 N1=1 kernelpagesize_kB=2048\n";
        fs::write(proc.join("40/numa_maps"), maps).unwrap();
        let pool = sys.join("devices/system/node/node1/hugepages/hugepages-2048kB");
        fs::create_dir_all(&pool).unwrap();
        fs::write(pool.join("free_hugepages"), "5\n").unwrap();
        let words = [
            "qemu",
            "-name",
            "web",
            "-object",
            "memory-backend-ram,id=a,size=2M",
            "-object",
            "memory-backend-ram,id=b,size=2M",
            "-numa",
            "node,cpus=1,memdev=a",
            "-numa",
            "node,cpus=0,memdev=b",
        ];
        fs::write(proc.join("40/cmdline"), words.join("\0")).unwrap();
        let slot =
            |first_page, address| MemorySlot { first_page, pages: 512, address, read_only: false };
        found[0].slots = vec![slot(0, 0x7e00_0000_0000), slot(512, 0x7f00_0000_0000)];
        let rom = MemorySlot { pages: 64, read_only: true, ..slot(0xf_ffc0, 0x7d00_0000_0000) };
        found[0].slots.push(rom);
        let host = read(&sys, &proc, &found).unwrap();
        assert_eq!(host.topology.free().on(Some(HUGE), 1), 5 * HUGE);
        let vm = &host.vms[0];
        assert_eq!((vm.page, &vm.stays, vm.has_policy), (Some(HUGE), &None, true));
        assert_eq!((&vm.placed.memory, vm.ranges.len()), (&vec![HUGE, HUGE], 2));
        let cells: Vec<&Cell> = vm.cells.iter().map(|cell| &cell.cell).collect();
        let cell =
            |vcpu: usize, memory: [u64; 2]| Cell { vcpus: vec![vcpu], memory: memory.to_vec() };
        assert_eq!(cells, [&cell(1, [HUGE, 0]), &cell(0, [0, HUGE])]);
        let ranges = &vm.cells[1].ranges;
        let expected =
            MemoryRange { start: 0x7f00_0000_0000, end: 0x7f00_0020_0000, page_bytes: HUGE };
        assert_eq!(ranges[..], [expected]);
        assert_eq!(host.load(1, |_| (Source::None, Vec::new())).check(&host.topology), Ok(()));
    }
}
