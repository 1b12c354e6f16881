//! How VMs use memory as DAMON sees it: how much of it is accessed, and on which nodes that lies.
//!
//! DAMON does not count misses of caches. They are estimated, at `MISSES_PER_S` for each second in which a guest ran, less the
//! part of the accessed memory that finds room in a cache: a guest that sleeps, or uses less than a cache, has none.

use std::fs::File;
use std::io::Read as _;
use std::ops::Range;
use std::path::Path;

use layout::{Placed, Sample, Topology};
use probes::{FoundVm, MemorySlot};

use crate::apply_plan::still_there;
use crate::count::Watched;
use crate::damon::{Damon, DamonError, MAX_TARGETS, Region, Target};
use crate::pages::{self, BATCH};
use crate::read::{self, VmProcess, guest_s, home, slot_end};

/// Of a vCPU that uses much more memory than a cache has: it then waits for memory a fifth of its time.
const MISSES_PER_S: f64 = 10e6;
/// A host that does not say how large its caches are.
const USUAL_CACHE: f64 = (32 << 20) as f64;
/// Slots of a guest at most, the largest first; the small ones are ROMs and devices.
const MAX_RANGES: usize = 16;
/// Pages of a region that are looked for.
const PAGES: u64 = 8;
const PAGE_BYTES: u64 = 4096;

/// Watches the memory of VMs until it is dropped.
#[derive(Debug)]
pub(crate) struct Accesses {
    damon: Damon,
    topology: Topology,
    cache: f64,
    vms: Vec<(VmProcess, Option<f64>)>,
}

impl Accesses {
    /// Watches these VMs, of `watched`; the first ones if there are too many for DAMON.
    pub(crate) fn start(watched: &Watched, vms: &[VmProcess]) -> Result<Self, DamonError> {
        let vms = &vms[..vms.len().min(MAX_TARGETS)];
        let topology = read::topology(watched.sys).map_err(|_| DamonError::Missing)?;
        let memory = |vm: &VmProcess| {
            let found = watched.found.iter().find(|found| found.pid == vm.pid);
            found.map(guest_memory).unwrap_or_default()
        };
        let targets: Vec<Target> =
            vms.iter().map(|vm| Target { pid: vm.pid, memory: memory(vm) }).collect();
        let damon = Damon::start(watched.sys, &targets)?;
        let began = |vm: &VmProcess| (vm.clone(), guest_s(watched.proc, vm).ok());
        let cache = cache(watched.sys).unwrap_or(USUAL_CACHE);
        Ok(Self { damon, topology, cache, vms: vms.iter().map(began).collect() })
    }

    /// Whether it watches exactly these.
    pub(crate) fn is_of(&self, vms: &[VmProcess]) -> bool {
        self.vms.iter().map(|(vm, _)| vm).eq(vms.iter().take(MAX_TARGETS))
    }

    /// Whether it watches this one.
    pub(crate) fn has(&self, vm: &VmProcess) -> bool {
        self.vms.iter().any(|(watched, _)| watched == vm)
    }

    /// What each VM did since the last time. VMs that have ended are left out. `None`: nothing is watched any more.
    pub(crate) fn sample(&mut self, proc: &Path, seconds: f64) -> Option<Vec<(VmProcess, Sample)>> {
        let seen = self.damon.read().ok()?;
        let (topology, cache) = (&self.topology, self.cache);
        let mut samples = Vec::new();
        for ((vm, before), regions) in self.vms.iter_mut().zip(&seen) {
            let (Ok(()), Ok(now)) = (still_there(proc, vm), guest_s(proc, vm)) else { continue };
            let ran_s = before.replace(now).map_or(0.0, |before| (now - before).max(0.0));
            let task = proc.join(vm.pid.0.to_string()).join("task");
            let home = |tid: &model::Tid| home(topology, &task.join(tid.0.to_string()));
            let accessed = Placed {
                vcpus: vm.threads.iter().map(home).collect(),
                memory: by_node(topology, regions, |pages| {
                    pages::nodes(vm.pid, pages).unwrap_or_default()
                }),
            };
            samples.push((vm.clone(), estimate(topology, &accessed, cache, ran_s, seconds)));
        }
        Some(samples)
    }
}

/// Where a guest's memory lies in its process: ascending, what touches as one, without what is small.
fn guest_memory(found: &FoundVm) -> Vec<Range<u64>> {
    let mut slots: Vec<&MemorySlot> = found.slots.iter().filter(|slot| 0 < slot.pages).collect();
    slots.sort_by_key(|slot| (std::cmp::Reverse(slot.pages), slot.address));
    slots.truncate(MAX_RANGES);
    slots.sort_by_key(|slot| slot.address);
    let mut memory: Vec<Range<u64>> = Vec::new();
    for slot in slots {
        match memory.last_mut() {
            Some(last) if slot.address <= last.end => last.end = last.end.max(slot_end(slot)),
            _ => memory.push(slot.address..slot_end(slot)),
        }
    }
    memory
}

/// Bytes on each node that are accessed between two checks. `nodes` says where pages are.
fn by_node(
    topology: &Topology,
    regions: &[Region],
    nodes: impl Fn(&[u64]) -> Vec<Option<u32>>,
) -> Vec<u64> {
    let accessed = regions.iter().filter(|region| 0 < region.accessed_bytes());
    let pages: Vec<(u64, u64)> = accessed.flat_map(pages_of).collect();
    let mut memory = vec![0_u64; topology.len()];
    for batch in pages.chunks(BATCH) {
        let addresses: Vec<u64> = batch.iter().map(|(address, _)| *address).collect();
        for ((_, bytes), node) in batch.iter().zip(nodes(&addresses)) {
            if let Some(at) = node.and_then(|id| topology.index_of(id)) {
                memory[at] = memory[at].saturating_add(*bytes);
            }
        }
    }
    memory
}

/// Some pages of a region, at equal distances, each with its share of the accessed bytes.
fn pages_of(region: &Region) -> impl Iterator<Item = (u64, u64)> {
    let Range { start, end } = region.addresses;
    let n = (end.saturating_sub(start) / PAGE_BYTES).clamp(1, PAGES);
    let step = end.saturating_sub(start) / n;
    let share = region.accessed_bytes() / n;
    (0..n).map(move |at| ((start + at * step) / PAGE_BYTES * PAGE_BYTES, share))
}

fn estimate(
    topology: &Topology,
    accessed: &Placed,
    cache: f64,
    ran_s: f64,
    seconds: f64,
) -> Sample {
    let bytes = accessed.bytes() as f64;
    let uncached = if bytes <= cache { 0.0 } else { 1.0 - cache / bytes };
    Sample {
        seconds,
        misses: MISSES_PER_S * ran_s * uncached,
        instructions: None,
        remote: (0.0 < bytes).then(|| accessed.remote(topology)),
    }
}

/// Bytes of the last cache before memory, of the first CPU.
fn cache(sys: &Path) -> Option<f64> {
    let folder = sys.join("devices/system/cpu/cpu0/cache");
    let size = |index: u32| {
        let mut text = String::new();
        let path = folder.join(format!("index{index}/size"));
        File::open(path).ok()?.take(64).read_to_string(&mut text).ok()?;
        text.trim().strip_suffix('K')?.parse::<u32>().ok()
    };
    let largest = (0..8).filter_map(size).max()?;
    Some(f64::from(largest) * 1024.0)
}

#[cfg(test)]
mod test {
    use std::fs;

    use super::*;
    use crate::damon::test::{kernel, seen};
    use crate::read::test::machine;

    fn slot(address: u64, pages: u64) -> MemorySlot {
        MemorySlot { first_page: 0, pages, address, read_only: false }
    }

    #[test]
    fn memory_that_touches_is_one_range() {
        let (_root, mut found) = machine();
        let mut found = found.remove(0);
        found.slots = vec![slot(0x8000, 2), slot(0x1000, 2), slot(0x3000, 1), slot(0x20000, 0)];
        assert_eq!(guest_memory(&found), [0x1000..0x4000, 0x8000..0xa000]);
        found.slots = (0..100).map(|n| slot(n * 0x10_0000, n + 1)).collect();
        assert_eq!(guest_memory(&found).len(), MAX_RANGES);
        assert_eq!(guest_memory(&found)[0].start, 84 * 0x10_0000, "the largest");
    }

    #[test]
    fn accessed_bytes_lie_where_their_pages_do() {
        let (root, _) = machine();
        let topology = read::topology(&root.path().join("sys")).unwrap();
        let folder = kernel(root.path());
        let damon = Damon::start(root.path(), &[]).unwrap();
        drop(damon);
        seen(&folder, 0, "0-65536=10 65536-131072=0 131072-135168=5");
        let target = Target { pid: model::Pid(1), memory: Vec::new() };
        let damon = Damon::start(root.path(), &[target]).unwrap();
        let regions = damon.read().unwrap().remove(0);
        let node = |address: &u64| match address {
            0..16384 => Some(1),
            16384..131_072 => Some(0),
            _ => Some(7),
        };
        let nodes = |pages: &[u64]| pages.iter().map(node).collect();
        assert_eq!(by_node(&topology, &regions, nodes), [48 << 10, 16 << 10]);
        assert_eq!(by_node(&topology, &regions, |pages| vec![None; pages.len()]), [0, 0]);
    }

    #[test]
    fn misses_are_estimated_from_time_and_memory() {
        let (root, _) = machine();
        let topology = read::topology(&root.path().join("sys")).unwrap();
        let check = |memory: [u64; 2], ran_s: f64, expected: (f64, Option<f64>)| {
            let accessed = Placed { vcpus: vec![Some(1)], memory: memory.to_vec() };
            let sample = estimate(&topology, &accessed, 100.0, ran_s, 1.0);
            assert_eq!((sample.misses, sample.remote), expected, "{memory:?}");
            assert_eq!(sample.instructions, None, "they are not counted");
        };
        check([300, 100], 1.0, (0.75 * MISSES_PER_S, Some(0.75)));
        check([300, 100], 0.5, (0.375 * MISSES_PER_S, Some(0.75)));
        // It has room in the cache; it sleeps; it uses nothing.
        check([0, 100], 1.0, (0.0, Some(0.0)));
        check([300, 100], 0.0, (0.0, Some(0.75)));
        check([0, 0], 1.0, (0.0, None));
    }

    #[test]
    fn a_vm_is_watched_until_it_ends() {
        let (root, mut found) = machine();
        found.truncate(1);
        let (sys, proc) = (root.path().join("sys"), root.path().join("proc"));
        let folder = kernel(&sys);
        seen(&folder, 0, "0-4096=10");
        let stat = |ticks: u64| {
            let fields: Vec<String> = (4..=52)
                .map(|field| if field == 43 { ticks.to_string() } else { field.to_string() })
                .collect();
            for tid in [41, 42] {
                let text = format!("{tid} (CPU) S {}\n", fields.join(" "));
                fs::write(proc.join(format!("40/task/{tid}/stat")), text).unwrap();
            }
        };
        stat(100);
        let vms: Vec<VmProcess> = read::processes(&proc, &found).into_iter().flatten().collect();
        let watched = Watched { sys: &sys, proc: &proc, vms: &vms, found: &found };
        let mut accesses = Accesses::start(&watched, &vms).unwrap();
        assert!(accesses.is_of(&vms) && accesses.has(&vms[0]) && !accesses.is_of(&[]));
        stat(150);
        let samples = accesses.sample(&proc, 1.0).unwrap();
        // No process 40 of ours has a page there.
        assert_eq!((samples.len(), samples[0].1.misses, samples[0].1.remote), (1, 0.0, None));
        fs::remove_file(proc.join("40/stat")).unwrap();
        assert!(accesses.sample(&proc, 1.0).unwrap().is_empty());
        fs::remove_file(folder.join("0/state")).unwrap();
        assert!(accesses.sample(&proc, 1.0).is_none());
        drop(accesses);
        assert_eq!(fs::read_to_string(folder.join("nr_kdamonds")).unwrap(), "0");
    }
}
