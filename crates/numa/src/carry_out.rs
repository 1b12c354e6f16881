//! Carrying out a plan: vCPU threads to their nodes, then memory, no faster than asked for.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use layout::{Plan, Topology};
use model::Tid;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::pages::{self, BATCH};
use crate::read::{HostVm, MemoryRange, NumaError, VmProcess, started};

/// Times that pages are asked to move: some are busy for a moment.
const TRIES: u32 = 3;

/// What was done.
#[derive(Debug, Default)]
pub struct CarriedOut {
    /// VMs whose vCPUs or memory were to move, in the plan's order.
    pub vms: Vec<Done>,
    /// Time that it took.
    pub took: Duration,
    /// What failed; the rest went on.
    pub failures: Vec<NumaError>,
    /// It was told to stop before everything was done.
    pub stopped: bool,
}

/// What was done to a VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done {
    /// The VM.
    pub name: String,
    /// vCPUs that were bound to another node.
    pub vcpus: usize,
    /// Bytes that were to move.
    pub wanted: u64,
    /// Bytes that moved: the kernel says so of each page.
    pub moved: u64,
}

/// Carries out a plan for these VMs, at so many bytes a second, until `stop` says so. What fails is noted, and the rest goes
/// on: a half-done plan leaves VMs running, only slower.
pub fn carry_out(
    proc: &Path,
    topology: &Topology,
    vms: &[HostVm],
    plan: &Plan,
    bytes_per_s: u64,
    stop: &dyn Fn() -> bool,
) -> CarriedOut {
    let mut result = CarriedOut::default();
    let begin = Instant::now();
    let of = |name: &str| vms.iter().find(|vm| vm.process.name == name);
    for planned in &plan.vms {
        let mut done = Done { name: planned.name.clone(), vcpus: 0, wanted: 0, moved: 0 };
        if let Some(vm) = of(&planned.name) {
            match bind(proc, topology, vm, &planned.after.vcpus) {
                Ok(vcpus) => done.vcpus = vcpus,
                Err(error) => result.failures.push(error),
            }
        }
        result.vms.push(done);
    }
    let mut pace = Pace { begin, bytes: 0, bytes_per_s };
    for step in &plan.moves {
        let (done, nodes) = (&mut result.vms[step.vm], topology.nodes());
        let Some(vm) = of(&done.name) else { continue };
        if stop() {
            result.stopped = true;
            break;
        }
        done.wanted = done.wanted.saturating_add(step.bytes);
        let (from, to) = (nodes[step.from].id, nodes[step.to].id);
        let mut mover = Mover { proc, vm, from, to, left: step.bytes, moved: 0, pace: &mut pace };
        let moved = mover.run(stop);
        done.moved = done.moved.saturating_add(mover.moved);
        match moved {
            Ok(finished) => result.stopped |= !finished,
            Err(error) => result.failures.push(error),
        }
    }
    result.vms.retain(|done| 0 < done.vcpus || 0 < done.wanted);
    result.took = begin.elapsed();
    result
}

/// Binds vCPU threads to the CPUs of their nodes; how many were not bound there before.
fn bind(
    proc: &Path,
    topology: &Topology,
    vm: &HostVm,
    homes: &[Option<usize>],
) -> Result<usize, NumaError> {
    let mut bound = 0;
    for (vcpu, (tid, home)) in vm.process.threads.iter().zip(homes).enumerate() {
        let Some(home) = home.filter(|home| vm.placed.vcpus.get(vcpu) != Some(&Some(*home))) else {
            continue;
        };
        still_there(proc, &vm.process)?;
        let failed = |source| NumaError::Affinity { vm: vm.process.name.clone(), vcpu, source };
        set_affinity(*tid, &topology.nodes()[home].cpus).map_err(failed)?;
        bound += 1;
    }
    Ok(bound)
}

pub(crate) fn set_affinity(tid: Tid, cpus: &[u32]) -> io::Result<()> {
    let mut set = CpuSet::new();
    for cpu in cpus.iter().map(|cpu| *cpu as usize).filter(|cpu| *cpu < CpuSet::MAX_CPU) {
        set.set(cpu);
    }
    Ok(sched_setaffinity(Some(thread_id(tid)?), &set)?)
}

/// As system calls want it, of which 0 would be the caller.
pub(crate) fn thread_id(tid: Tid) -> io::Result<rustix::thread::Pid> {
    let tid = i32::try_from(tid.0).ok().and_then(rustix::thread::Pid::from_raw);
    tid.ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

/// A process of the same number may be another one by now.
pub(crate) fn still_there(proc: &Path, vm: &VmProcess) -> Result<(), NumaError> {
    match started(&proc.join(vm.pid.0.to_string())) {
        Ok(started) if started == vm.started => Ok(()),
        _ => Err(NumaError::Gone(vm.name.clone())),
    }
}

/// Moves some of a VM's memory from one node to another.
struct Mover<'a> {
    proc: &'a Path,
    vm: &'a HostVm,
    from: u32,
    to: u32,
    left: u64,
    moved: u64,
    pace: &'a mut Pace,
}

impl Mover<'_> {
    /// Whether it was not stopped. Pages that can't be moved are left where they are.
    fn run(&mut self, stop: &dyn Fn() -> bool) -> Result<bool, NumaError> {
        for range in &self.vm.ranges {
            for addresses in batches(range) {
                if self.left < range.page_bytes {
                    return Ok(true);
                }
                if stop() {
                    return Ok(false);
                }
                still_there(self.proc, &self.vm.process)?;
                self.batch(&addresses, range.page_bytes).map_err(|source| NumaError::Pages {
                    vm: self.vm.process.name.clone(),
                    source,
                })?;
            }
        }
        Ok(true)
    }

    fn batch(&mut self, addresses: &[u64], page_bytes: u64) -> io::Result<()> {
        let pid = self.vm.process.pid;
        let on = |addresses: &[u64], node: u32| -> io::Result<Vec<u64>> {
            let nodes = pages::nodes(pid, addresses)?;
            let there = addresses.iter().zip(nodes).filter(|(_, found)| *found == Some(node));
            Ok(there.map(|(address, _)| *address).collect())
        };
        let mut waiting = on(addresses, self.from)?;
        waiting.truncate(usize::try_from(self.left / page_bytes).unwrap_or(usize::MAX));
        for _ in 0..TRIES {
            if waiting.is_empty() {
                break;
            }
            pages::move_to(pid, &waiting, self.to)?;
            let moved = on(&waiting, self.to)?.len() as u64 * page_bytes;
            self.left = self.left.saturating_sub(moved);
            self.moved += moved;
            self.pace.wait(moved);
            waiting = on(&waiting, self.from)?;
        }
        Ok(())
    }
}

/// The addresses of a range's pages. No batch ends within a huge page: the kernel moves such a page as a whole, and what of
/// it is in another batch would not be counted.
fn batches(range: &MemoryRange) -> impl Iterator<Item = Vec<u64>> + use<> {
    let MemoryRange { start, end, page_bytes } = *range;
    let span = page_bytes.saturating_mul(BATCH as u64).max(1);
    let mut at = start;
    std::iter::from_fn(move || {
        let stop = (at / span + 1).saturating_mul(span).min(end);
        let first = at;
        let page = |n: u64| first.checked_add(n.checked_mul(page_bytes)?).filter(|at| *at < stop);
        let pages: Vec<u64> = (0..).map_while(page).collect();
        at = stop;
        (!pages.is_empty()).then_some(pages)
    })
}

/// Keeps to a rate.
struct Pace {
    begin: Instant,
    bytes: u64,
    bytes_per_s: u64,
}

impl Pace {
    fn wait(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        let due = Duration::from_secs_f64(self.bytes as f64 / self.bytes_per_s.max(1) as f64);
        std::thread::sleep(due.saturating_sub(self.begin.elapsed()));
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn batches_hold_every_page_once() {
        let check = |start, end, page_bytes, expected: &[usize]| {
            let all: Vec<Vec<u64>> = batches(&MemoryRange { start, end, page_bytes }).collect();
            assert_eq!(all.iter().map(Vec::len).collect::<Vec<_>>(), expected);
            assert!(all.concat().windows(2).all(|pair| pair[0] + page_bytes == pair[1]));
        };
        check(4096, 4096, 4096, &[]);
        check(0, 2500 * 4096, 4096, &[1024, 1024, 452]);
        check(256 * 4096, 2500 * 4096, 4096, &[768, 1024, 452]);
        check(1 << 30, (1 << 30) + (5 << 20), 2 << 20, &[3]);
        check(u64::MAX - 4096, u64::MAX, 4096, &[1]);
    }

    #[test]
    fn a_vm_that_has_ended_is_not_touched() {
        let (root, found) = crate::read::test::machine();
        let proc = root.path().join("proc");
        let host = crate::read(&root.path().join("sys"), &proc, &found).unwrap();
        let vm = host.vms[0].clone();
        let vm = HostVm { process: VmProcess { started: 1, ..vm.process.clone() }, ..vm };
        let error = bind(&proc, &host.topology, &vm, &[Some(0), Some(0)]).unwrap_err();
        assert_eq!(error.to_string(), "VM web has ended");
    }
}
