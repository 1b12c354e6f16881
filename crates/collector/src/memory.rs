//! On which NUMA nodes VMs' memory lies, read at a window's begin and end.
//!
//! ```text
//!  window 1          window 2          window 3
//!  |--------|--------|--------|--------|---...
//!  reading           reading           reading        each in a thread of its own; the end's is the next begin's
//! ```
//! The kernel walks all page tables of a process for its `numa_maps`, and holds the lock of its mappings meanwhile. So very
//! large processes are left out, the thread rests between two, and no wait for it is longer than `LIMIT`.
//! On a host with one node nothing is read.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use host::numa;
use model::{CpuId, CpuNode, HostNs, NumaReading, Pid, Vm, VmId, VmMemory};

use crate::Roots;
use crate::vm_table::VmTable;

/// A reading takes no longer, for all VMs.
const LIMIT: Duration = Duration::from_secs(10);
/// Bytes that a process may have resident, huge pages of hugetlbfs apart: to walk so many small pages takes about a second.
const MAX_RESIDENT_BYTES: u64 = 64 << 30;
/// The thread rests this many times as long as it has read.
const REST: u32 = 4;

const TOO_LATE: &str = "not read within 10 s";
const BUSY: &str = "the reading before it had not ended";

/// Reads where VMs' memory is.
#[derive(Debug)]
pub(crate) struct MemoryReader {
    proc: PathBuf,
    cpu_nodes: Arc<[CpuNode]>,
    thread: Option<JoinHandle<()>>,
    last: Arc<Reading>,
}

/// Memory readings of a window, finished or pending.
#[derive(Debug)]
pub(crate) struct WindowMemory {
    cpu_nodes: Arc<[CpuNode]>,
    /// At its begin and its end.
    readings: [Arc<Reading>; 2],
}

/// The memory of all VMs at one time; it may still be read.
#[derive(Debug, Default)]
struct Reading {
    requested: Vec<Pid>,
    answers: Mutex<Answers>,
}

#[derive(Debug, Default)]
struct Answers {
    /// `None`: nothing more will come.
    coming: Option<(Receiver<Answer>, Instant)>,
    came: BTreeMap<Pid, (HostNs, Memory)>,
}

/// Bytes by node, or why they are not known.
type Memory = Result<BTreeMap<u32, u64>, String>;
type Answer = (Pid, HostNs, Memory);

impl MemoryReader {
    /// Reads the memory of the VMs that run.
    pub(crate) fn begin(roots: &Roots, vms: &VmTable) -> Self {
        let mut reader = Self {
            proc: roots.proc.clone(),
            cpu_nodes: cpu_nodes(&roots.sys).into(),
            thread: None,
            last: Arc::default(),
        };
        reader.last = reader.read(vms);
        reader
    }

    /// Ends a window and begins the next one: reads again.
    pub(crate) fn cut(&mut self, vms: &VmTable) -> WindowMemory {
        let end = self.read(vms);
        let begin = std::mem::replace(&mut self.last, Arc::clone(&end));
        WindowMemory { cpu_nodes: Arc::clone(&self.cpu_nodes), readings: [begin, end] }
    }

    fn read(&mut self, vms: &VmTable) -> Arc<Reading> {
        if self.cpu_nodes.is_empty() {
            return Arc::default();
        }
        let mut requested: Vec<Pid> = vms.running().map(|(_, pid, _)| Pid(pid)).collect();
        requested.sort_unstable();
        requested.dedup();
        if self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            let now = probes::now();
            let came = requested.iter().map(|pid| (*pid, (now, Err(BUSY.to_owned())))).collect();
            return Arc::new(Reading { requested, answers: Answers { coming: None, came }.into() });
        }
        let (answer, coming) = channel();
        let (proc, pids, until) = (self.proc.clone(), requested.clone(), Instant::now() + LIMIT);
        let thread = std::thread::Builder::new().name("memory".to_owned());
        // Without a thread nothing comes, and the report says so.
        self.thread = thread.spawn(move || read_all(&proc, &pids, until, &answer)).ok();
        let answers = Answers { coming: Some((coming, until)), came: BTreeMap::new() };
        Arc::new(Reading { requested, answers: answers.into() })
    }
}

impl WindowMemory {
    /// The rows of the tables. Waits for pending readings.
    pub(crate) fn into_rows(self, vms: &[Vm]) -> (Vec<CpuNode>, Vec<VmMemory>) {
        let rows = self.readings.iter().flat_map(|reading| reading.rows(vms));
        let rows = rows.collect();
        (self.cpu_nodes.to_vec(), rows)
    }
}

impl Reading {
    fn rows(&self, vms: &[Vm]) -> Vec<VmMemory> {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.wait();
        let mut rows = Vec::new();
        for pid in &self.requested {
            let late = (probes::now(), Err(TOO_LATE.to_owned()));
            let (time, memory) = answers.came.entry(*pid).or_insert(late);
            // A process of the same number may be another VM's at another time.
            let is_it = |vm: &Vm| {
                vm.pid == *pid
                    && vm.started.is_none_or(|started| started <= *time)
                    && vm.ended.is_none_or(|ended| *time <= ended)
            };
            for (row, _) in vms.iter().enumerate().filter(|(_, vm)| is_it(vm)) {
                let of_vm = |found| VmMemory { vm: VmId::from_index(row), time: *time, found };
                match memory {
                    Ok(nodes) => rows.extend(nodes.iter().map(|(node, bytes)| {
                        of_vm(NumaReading::OnNode { node: *node, bytes: *bytes })
                    })),
                    Err(reason) => rows.push(of_vm(NumaReading::Unknown(reason.clone()))),
                }
            }
        }
        rows
    }
}

impl Answers {
    fn wait(&mut self) {
        let Some((coming, until)) = self.coming.take() else { return };
        loop {
            match coming.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok((pid, time, memory)) => drop(self.came.insert(pid, (time, memory))),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}

/// The node of each CPU, of hosts with several nodes.
fn cpu_nodes(sys: &Path) -> Vec<CpuNode> {
    // A host with unreadable nodes counts as one without nodes.
    let nodes = numa::nodes(sys).unwrap_or_default();
    if nodes.len() < 2 {
        return Vec::new();
    }
    let of_node = |node: &numa::NumaNode| {
        let id = node.id;
        node.cpus.iter().map(move |cpu| CpuNode { cpu: CpuId(*cpu), node: id }).collect::<Vec<_>>()
    };
    nodes.iter().flat_map(of_node).collect()
}

fn read_all(proc: &Path, pids: &[Pid], until: Instant, answer: &Sender<Answer>) {
    for pid in pids {
        let began = Instant::now();
        if until <= began {
            return;
        }
        let memory = read(&proc.join(pid.0.to_string()));
        if answer.send((*pid, probes::now(), memory)).is_err() {
            return;
        }
        std::thread::sleep((began.elapsed() * REST).min(until - began));
    }
}

fn read(folder: &Path) -> Memory {
    let resident = resident_bytes(folder).ok_or("its process has ended")?;
    if MAX_RESIDENT_BYTES < resident {
        let gib = resident >> 30;
        return Err(format!("{gib} GiB in small pages take too long to read"));
    }
    let maps = numa::read_numa_maps(folder).map_err(|error| format!("numa_maps: {error}"))?;
    if maps.is_cut {
        return Err("its process has too many mappings".to_owned());
    }
    let mut nodes = BTreeMap::new();
    for (node, bytes) in maps.mappings.iter().flat_map(numa::NumaMapping::bytes) {
        let sum: &mut u64 = nodes.entry(node).or_default();
        *sum = sum.saturating_add(bytes);
    }
    Ok(nodes)
}

/// Without pages of hugetlbfs, which `statm` leaves out.
fn resident_bytes(folder: &Path) -> Option<u64> {
    let statm = fs::read_to_string(folder.join("statm")).ok()?;
    let pages: u64 = statm.split(' ').nth(1)?.parse().ok()?;
    Some(pages.saturating_mul(rustix::param::page_size() as u64))
}

#[cfg(test)]
mod test {
    use super::*;

    fn write(root: &Path, files: &[(&str, &str)]) {
        for (name, text) in files {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    fn node(root: &Path, id: usize, cpus: &str) {
        let folder = format!("sys/devices/system/node/node{id}");
        let meminfo = format!("Node {id} MemTotal: 4096 kB\nNode {id} MemFree: 1024 kB\n");
        let files = [("cpulist", cpus), ("distance", "10 20\n"), ("meminfo", &meminfo)];
        files.iter().for_each(|(name, text)| write(root, &[(&format!("{folder}/{name}"), *text)]));
    }

    /// A VM's row: bytes on a node, or why they are not known.
    type Expected<'a> = (u32, Result<(u32, u64), &'a str>);

    fn check(root: &Path, vms: &VmTable, expected: &[Expected<'_>]) {
        let roots = Roots { proc: root.join("proc"), sys: root.join("sys"), ..Roots::default() };
        let mut reader = MemoryReader::begin(&roots, vms);
        reader.thread.take().into_iter().for_each(|thread| thread.join().unwrap());
        let (_, rows) = reader.cut(vms).into_rows(&vms.vms);
        let found: Vec<_> = rows
            .iter()
            .map(|row| {
                let found = match &row.found {
                    NumaReading::OnNode { node, bytes } => Ok((*node, *bytes)),
                    NumaReading::Unknown(reason) => Err(reason.as_str()),
                };
                (row.vm.0, found)
            })
            .collect();
        assert_eq!(found, [expected, expected].concat(), "at begin and end");
    }

    #[test]
    fn memory_of_a_vm_by_node() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let vms = VmTable::with_one_vcpu(50, 51);
        let maps = "1000 default N0=2\n9000 default N0=1 N1=3 kernelpagesize_kB=2048\n";
        write(root, &[("proc/50/numa_maps", maps), ("proc/50/statm", "9 8 7\n")]);
        node(root, 0, "0-1\n");
        check(root, &vms, &[]);
        node(root, 1, "2\n");
        let on_0 = (2 << 12) + (2 << 20);
        check(root, &vms, &[(0, Ok((0, on_0))), (0, Ok((1, 6 << 20)))]);
        write(root, &[("proc/50/statm", "9 99999999 7\n")]);
        check(root, &vms, &[(0, Err("381 GiB in small pages take too long to read"))]);
        fs::remove_dir_all(root.join("proc")).unwrap();
        check(root, &vms, &[(0, Err("its process has ended"))]);
        let nodes = cpu_nodes(&root.join("sys"));
        let nodes: Vec<_> = nodes.iter().map(|row| (row.cpu.0, row.node)).collect();
        assert_eq!(nodes, [(0, 0), (1, 0), (2, 1)]);
    }

    #[test]
    fn a_reader_that_hangs_is_not_waited_for() {
        let (answer, coming) = channel();
        let came = Answers { coming: Some((coming, Instant::now())), came: BTreeMap::new() };
        let reading = Reading { requested: vec![Pid(50)], answers: came.into() };
        let vms = VmTable::with_one_vcpu(50, 51);
        let found: Vec<_> = reading.rows(&vms.vms).into_iter().map(|row| row.found).collect();
        assert_eq!(found, [NumaReading::Unknown(TOO_LATE.to_owned())]);
        drop(answer);
    }
}
