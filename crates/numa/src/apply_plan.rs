//! Carrying out a plan: vCPU threads to their nodes, then memory, no faster than requested.
//!
//! ```text
//!  check: may each VM be where it is to be? --> bind vCPUs --> move memory
//!             |                                    | failed       | failed
//!             +--> it stays                        +--> bound and moved back: it is where it was
//! ```
//!
//! All of a VM's changes are made, or none: vCPUs without their memory, or the other way round, are slower than before.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use layout::{Allowed, Move, Plan, Topology};
use model::{Pid, Tid};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::allowed::allowed;
use crate::mover::{Mover, Pace, is_much};
use crate::pinned::why_pinned;
use crate::read::{HostVm, NumaError, VmProcess, started};

/// What a plan's execution did.
#[derive(Debug, Default)]
pub struct AppliedPlan {
    /// VMs whose vCPUs or memory were to move, in the plan's order.
    pub vms: Vec<Applied>,
    pub took: Duration,
    /// What failed; other VMs were moved all the same.
    pub failures: Vec<NumaError>,
    /// It was stopped before everything was done.
    pub stopped: bool,
}

/// What was done to a VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    pub pid: Pid,
    /// The VM's name.
    pub name: String,
    /// vCPUs that were bound to another node.
    pub vcpus: usize,
    /// Bytes that were to move.
    pub wanted: u64,
    /// Bytes that moved: the kernel says so of each page.
    pub moved: u64,
    pub stays: Option<String>,
}

/// The folders of the kernel's files.
#[derive(Debug, Clone, Copy)]
pub struct Roots<'a> {
    pub sys: &'a Path,
    pub proc: &'a Path,
}

/// Carries out a plan for these VMs, which it names by their processes, at so many bytes a second, until `stop` says so. A VM
/// that can't be moved stays where it is, and so do those that would need its room.
pub fn apply_plan(
    roots: Roots<'_>,
    topology: &Topology,
    vms: &[HostVm],
    plan: &Plan,
    bytes_per_s: u64,
    stop: &dyn Fn() -> bool,
) -> AppliedPlan {
    let begin = Instant::now();
    let mut work = Work::new(roots, topology, vms, plan, Pace::new(bytes_per_s));
    work.check();
    work.bind();
    work.move_memory(stop);
    let Work { done, failures, stopped, .. } = work;
    let is_concerned = |done: &Applied| 0 < done.vcpus || 0 < done.wanted || done.stays.is_some();
    let vms = done.into_iter().filter(is_concerned).collect();
    AppliedPlan { vms, took: begin.elapsed(), failures, stopped }
}

/// A plan that is being carried out. VMs are named by their places in it.
struct Work<'a> {
    roots: Roots<'a>,
    topology: &'a Topology,
    plan: &'a Plan,
    vms: Vec<Option<&'a HostVm>>,
    pace: Pace,
    done: Vec<Applied>,
    /// What each VM may use, if it is to be changed.
    allowed: Vec<Allowed>,
    /// VMs that were not changed, or were changed back.
    staying: BTreeSet<usize>,
    /// Each VM's threads that were bound, with the CPUs that they had before.
    bound: Vec<Vec<(Tid, CpuSet)>>,
    /// Moves with the bytes that moved.
    moved: Vec<Move>,
    failures: Vec<NumaError>,
    stopped: bool,
}

impl<'a> Work<'a> {
    fn new(
        roots: Roots<'a>,
        topology: &'a Topology,
        vms: &'a [HostVm],
        plan: &'a Plan,
        pace: Pace,
    ) -> Self {
        let done = |(at, vm): (usize, &layout::VmPlan)| Applied {
            pid: Pid(vm.id),
            name: vm.name.clone(),
            vcpus: 0,
            wanted: plan.moves.iter().filter(|step| step.vm == at).map(|step| step.bytes).sum(),
            moved: 0,
            stays: None,
        };
        let found = |vm: &layout::VmPlan| vms.iter().find(|found| found.process.pid == Pid(vm.id));
        Self {
            roots,
            topology,
            plan,
            vms: plan.vms.iter().map(found).collect(),
            pace,
            done: plan.vms.iter().enumerate().map(done).collect(),
            allowed: vec![Allowed::default(); plan.vms.len()],
            staying: BTreeSet::new(),
            bound: vec![Vec::new(); plan.vms.len()],
            moved: Vec::new(),
            failures: Vec::new(),
            stopped: false,
        }
    }

    /// The VMs that are to be changed.
    fn to_change(&self) -> Vec<(usize, &'a HostVm)> {
        let vms = self.vms.iter().enumerate().filter_map(|(at, vm)| Some((at, (*vm)?)));
        vms.filter(|(at, _)| !self.staying.contains(at)).collect()
    }

    /// Leaves alone what may not be where it is to be: cpusets may have changed since the plan was made.
    fn check(&mut self) {
        for (at, vm) in self.to_change() {
            if self.staying.contains(&at) {
                continue;
            }
            match self.may_move(at, vm) {
                Ok(allowed) => self.allowed[at] = allowed,
                Err(error) => self.leave(at, error),
            }
        }
    }

    /// What it may use.
    fn may_move(&self, at: usize, vm: &HostVm) -> Result<Allowed, NumaError> {
        let homes = self.new_homes(at, vm);
        if homes.is_empty() && self.done[at].wanted == 0 {
            return Ok(Allowed::default());
        }
        let Roots { sys, proc } = self.roots;
        still_there(proc, &vm.process)?;
        let folder = proc.join(vm.process.pid.0.to_string());
        if let Some(why) = why_pinned(&folder, vm.placed.bytes()) {
            return Err(NumaError::Held { vm: vm.process.name.clone(), why });
        }
        let (vm, n) = (&vm.process, vm.process.threads.len());
        let allowed = allowed(sys, proc, self.topology, vm, n);
        let (name, id) = (|| vm.name.clone(), |node: usize| self.topology.nodes()[node].id);
        for (vcpu, _, home) in homes {
            if allowed.cpus_on(self.topology, &[vcpu])[home] == 0 {
                return Err(NumaError::CpusNotAllowed { vm: name(), vcpu, node: id(home) });
            }
        }
        let mut targets = self.plan.moves.iter().filter(|step| step.vm == at).map(|step| step.to);
        match targets.find(|node| !allowed.allows_memory(*node)) {
            Some(node) => Err(NumaError::MemoryNotAllowed { vm: name(), node: id(node) }),
            None => Ok(allowed),
        }
    }

    /// vCPUs that go to another node, with their threads.
    fn new_homes(&self, at: usize, vm: &HostVm) -> Vec<(usize, Tid, usize)> {
        let planned = vm.process.threads.iter().zip(&self.plan.vms[at].after.vcpus).enumerate();
        let is_new = |(vcpu, (tid, home)): (usize, (&Tid, &Option<usize>))| {
            let home = home.filter(|home| vm.placed.vcpus.get(vcpu) != Some(&Some(*home)))?;
            Some((vcpu, *tid, home))
        };
        planned.filter_map(is_new).collect()
    }

    fn bind(&mut self) {
        for (at, vm) in self.to_change() {
            if self.staying.contains(&at) {
                continue;
            }
            for (vcpu, tid, home) in self.new_homes(at, vm) {
                let cpus = self.allowed[at].cpus_of(self.topology, vcpu, home);
                match self.bind_one(vm, vcpu, tid, &cpus) {
                    Ok(before) => {
                        self.bound[at].push((tid, before));
                        self.done[at].vcpus += 1;
                    }
                    Err(error) => {
                        self.leave(at, error);
                        break;
                    }
                }
            }
        }
    }

    /// Binds a vCPU to CPUs; those that it had before.
    fn bind_one(
        &self,
        vm: &HostVm,
        vcpu: usize,
        tid: Tid,
        cpus: &[u32],
    ) -> Result<CpuSet, NumaError> {
        still_there(self.roots.proc, &vm.process)?;
        let failed = |source| NumaError::Affinity { vm: vm.process.name.clone(), vcpu, source };
        let before = affinity(tid).map_err(failed)?;
        set_affinity(tid, cpus).map_err(failed)?;
        Ok(before)
    }

    fn move_memory(&mut self, stop: &dyn Fn() -> bool) {
        for step in &self.plan.moves {
            if self.staying.contains(&step.vm) {
                continue;
            }
            self.stopped |= stop();
            if self.stopped {
                break;
            }
            match self.move_one(*step, stop) {
                Ok(finished) => self.stopped |= !finished,
                Err(error) => self.leave(step.vm, error),
            }
        }
        if self.stopped {
            self.stop_half_way();
        }
    }

    /// Whether it was not stopped.
    fn move_one(&mut self, step: Move, stop: &dyn Fn() -> bool) -> Result<bool, NumaError> {
        let Some(vm) = self.vms[step.vm] else { return Ok(true) };
        let id = |node: usize| self.topology.nodes()[node].id;
        let (from, to, proc) = (id(step.from), id(step.to), self.roots.proc);
        let ranges = match step.cell.and_then(|cell| vm.cells.get(cell)) {
            Some(cell) => &cell.ranges[..],
            None => &vm.ranges,
        };
        let pace = &mut self.pace;
        let (left, moved, stuck) = (step.bytes, 0, 0);
        let mut mover = Mover { proc, vm, from, to, ranges, left, moved, stuck, pace };
        let moved = mover.run(stop);
        let (bytes, left, stuck) = (mover.moved, mover.left, mover.stuck);
        self.moved.push(Move { bytes, ..step });
        let done = &mut self.done[step.vm];
        done.moved = done.moved.saturating_add(bytes);
        let finished = moved?;
        if finished && is_much(left.min(stuck), step.bytes) {
            let (vm, wanted) = (vm.process.name.clone(), step.bytes);
            return Err(NumaError::Stuck { vm, left, wanted, node: to });
        }
        Ok(finished)
    }

    /// If less than half of a VM's memory has moved, its vCPUs stay where most of the memory is.
    fn stop_half_way(&mut self) {
        let few = |done: &Applied| done.moved < done.wanted.div_ceil(2);
        let few: Vec<usize> = (0..self.done.len()).filter(|at| few(&self.done[*at])).collect();
        for at in few {
            self.release(at);
        }
    }

    /// Has a VM stay where it is, and those that need its room; what was done to them is taken back.
    fn leave(&mut self, at: usize, error: NumaError) {
        self.done[at].stays = Some(error.to_string());
        let mut staying = self.staying.clone();
        staying.insert(at);
        // One that has ended needs no room.
        if !matches!(error, NumaError::Gone(_)) {
            staying = self.plan.depending(self.topology, &staying);
        }
        self.failures.push(error);
        let new: BTreeSet<usize> = staying.difference(&self.staying).copied().collect();
        for other in new.iter().filter(|other| **other != at) {
            let error = NumaError::RoomTaken(self.done[*other].name.clone());
            self.done[*other].stays = Some(error.to_string());
            self.failures.push(error);
        }
        self.staying = staying;
        self.take_back(&new);
    }

    fn take_back(&mut self, vms: &BTreeSet<usize>) {
        let moved = std::mem::take(&mut self.moved);
        let (back, kept): (Vec<Move>, Vec<Move>) =
            moved.into_iter().partition(|step| vms.contains(&step.vm));
        for step in back.into_iter().rev().filter(|step| 0 < step.bytes) {
            let at = step.vm;
            let reverse = Move { from: step.to, to: step.from, ..step };
            let before = self.done[at].moved;
            if let Err(error) = self.move_one(reverse, &|| false)
                && !matches!(error, NumaError::Gone(_))
            {
                let vm = self.done[at].name.clone();
                self.failures.push(NumaError::TakeBack { vm, source: Box::new(error) });
            }
            let back = self.done[at].moved - before;
            self.done[at].moved = before.saturating_sub(back);
        }
        self.moved = kept;
        for at in vms {
            self.release(*at);
        }
    }

    /// Has a VM's vCPUs run where they could before.
    fn release(&mut self, at: usize) {
        let Some(vm) = self.vms[at] else { return };
        for (tid, before) in std::mem::take(&mut self.bound[at]) {
            if still_there(self.roots.proc, &vm.process).is_ok()
                && let Ok(tid) = thread_id(tid)
                // One that has ended needs no CPUs.
                && let Err(source) = sched_setaffinity(Some(tid), &before)
            {
                let vm = self.done[at].name.clone();
                let source = Box::new(NumaError::Steer { vm: vm.clone(), source: source.into() });
                self.failures.push(NumaError::TakeBack { vm, source });
            }
        }
        self.done[at].vcpus = 0;
    }
}

pub(crate) fn affinity(tid: Tid) -> io::Result<CpuSet> {
    Ok(sched_getaffinity(Some(thread_id(tid)?))?)
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

#[cfg(test)]
mod test {
    use layout::{Allowed, Arrival, Node, Outcome, Placed, VmPlan};

    use super::*;

    const MIB: u64 = 1 << 20;
    const PROC: &str = "/proc";

    fn own_threads(n: usize) -> Vec<Tid> {
        let tid = || Tid(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs());
        let spawn = |_| {
            let (tell, reported) = std::sync::mpsc::channel();
            // It lives for as long as this test.
            std::thread::spawn(move || {
                tell.send(tid()).unwrap();
                std::thread::park();
            });
            reported.recv().unwrap()
        };
        (0..n).map(spawn).collect()
    }

    fn vm(pid: u32, name: &str, threads: Vec<Tid>, placed: Placed) -> HostVm {
        let started = started(&Path::new(PROC).join(pid.to_string())).unwrap();
        HostVm {
            process: VmProcess { name: name.to_owned(), pid: Pid(pid), started, threads },
            ranges: Vec::new(),
            placed,
            allowed: Allowed::default(),
            stays: None,
            page: None,
            cells: Vec::new(),
            ran_s: 1.0,
            has_policy: false,
        }
    }

    /// Node 0 has a CPU of this thread's, node 1 one that no machine has.
    fn topology(cpu: u32, free: [u64; 2]) -> Topology {
        let node = |id: u32, cpu| Node {
            id,
            cpus: vec![cpu],
            total: 64 * MIB,
            free: free[id as usize],
            ..Node::default()
        };
        let distances = vec![vec![10, 20], vec![20, 10]];
        Topology::new(vec![node(0, cpu), node(1, 1023)], distances, None).unwrap()
    }

    fn plan(vms: &[(&HostVm, Placed)], moves: &[Move]) -> Plan {
        let vm = |(vm, after): &(&HostVm, Placed)| VmPlan {
            id: vm.process.pid.0,
            name: vm.process.name.clone(),
            arrival: Arrival::Resident,
            fits: true,
            before: vm.placed.clone(),
            after: after.clone(),
            speed_before: 1.0,
            speed_after: 1.0,
            reason: String::new(),
        };
        Plan {
            policy: "simple",
            outcome: Outcome::InPlace,
            vms: vms.iter().map(vm).collect(),
            moves: moves.to_vec(),
            notes: Vec::new(),
        }
    }

    fn first_cpu(tid: Tid) -> u32 {
        let set = affinity(tid).unwrap();
        let cpu = (0..CpuSet::MAX_CPU).find(|cpu| set.is_set(*cpu)).unwrap();
        u32::try_from(cpu).unwrap()
    }

    #[test]
    fn a_vm_that_cannot_be_bound_stays_as_it_was_and_so_do_those_that_need_its_room() {
        let threads = own_threads(2);
        let before: Vec<CpuSet> = threads.iter().map(|tid| affinity(*tid).unwrap()).collect();
        let topology = topology(first_cpu(threads[0]), [0, 8 * MIB]);
        let memory = |on: [u64; 2]| on.map(|mib| mib * MIB).to_vec();
        let on =
            |vcpus: &[Option<usize>], mib| Placed { vcpus: vcpus.to_vec(), memory: memory(mib) };
        let held = vm(std::process::id(), "held", threads.clone(), on(&[None, None], [8, 0]));
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let next = vm(child.id(), "next", Vec::new(), on(&[], [0, 8]));
        // Two ways to fail: the kernel refuses to bind the second vCPU, and this host may have no node 1.
        let after = on(&[Some(0), Some(1)], [0, 8]);
        let moves = [
            Move { vm: 0, from: 0, to: 1, bytes: 8 * MIB, page: None, cell: None },
            Move { vm: 1, from: 1, to: 0, bytes: 8 * MIB, page: None, cell: None },
        ];
        let plan = plan(&[(&held, after), (&next, on(&[], [8, 0]))], &moves);
        let nothing = tempfile::tempdir().unwrap();
        let roots = Roots { sys: nothing.path(), proc: Path::new(PROC) };
        let vms = [held.clone(), next];
        let done = apply_plan(roots, &topology, &vms, &plan, 1 << 30, &|| false);
        child.kill().unwrap();
        child.wait().unwrap();
        let [first, second] = &done.vms[..] else { panic!("{done:?}") };
        assert_eq!((first.vcpus, first.wanted, first.moved), (0, 8 * MIB, 0), "{done:?}");
        assert!(first.stays.as_ref().unwrap().contains("held"), "{done:?}");
        let room = "VM next stays where it is: other VMs stay, and have the room that it needs";
        assert_eq!(second.stays.as_deref(), Some(room));
        assert_eq!(done.failures.len(), 2, "{done:?}");
        let after: Vec<CpuSet> = threads.iter().map(|tid| affinity(*tid).unwrap()).collect();
        assert_eq!(after, before, "the first vCPU may run where it could before");
    }

    #[test]
    fn vcpus_that_the_kernel_refuses_to_bind_are_released() {
        let threads = own_threads(2);
        let before: Vec<CpuSet> = threads.iter().map(|tid| affinity(*tid).unwrap()).collect();
        let topology = topology(first_cpu(threads[0]), [MIB, MIB]);
        let now = Placed { vcpus: vec![None, None], memory: vec![MIB, 0] };
        let vms = [vm(std::process::id(), "held", threads.clone(), now.clone())];
        let after = Placed { vcpus: vec![Some(0), Some(1)], ..now };
        let plan = plan(&[(&vms[0], after)], &[]);
        let nothing = tempfile::tempdir().unwrap();
        let roots = Roots { sys: nothing.path(), proc: Path::new(PROC) };
        let done = apply_plan(roots, &topology, &vms, &plan, 1 << 30, &|| false);
        assert!(matches!(done.failures[..], [NumaError::Affinity { vcpu: 1, .. }]), "{done:?}");
        assert_eq!((done.vms[0].vcpus, done.vms[0].stays.is_some()), (0, true));
        let after: Vec<CpuSet> = threads.iter().map(|tid| affinity(*tid).unwrap()).collect();
        assert_eq!(after, before);
    }

    #[test]
    fn what_a_cpuset_forbids_is_seen_before_anything_is_done() {
        let (root, found) = crate::read::test::machine();
        let (sys, proc) = (root.path().join("sys"), root.path().join("proc"));
        let host = crate::read(&sys, &proc, &found).unwrap();
        let vm = &host.vms[0];
        let check = |after: Placed, moves: &[Move], expected: &str| {
            let plan = plan(&[(vm, after)], moves);
            let roots = Roots { sys: &sys, proc: &proc };
            let done = apply_plan(roots, &host.topology, &host.vms, &plan, 1 << 30, &|| false);
            assert_eq!(done.vms[0].stays.as_deref(), Some(expected));
            assert_eq!((done.vms[0].vcpus, done.vms[0].moved), (0, 0));
        };
        let group = sys.join("fs/cgroup/vm");
        std::fs::create_dir_all(&group).unwrap();
        std::fs::write(group.join("cpuset.cpus.effective"), "2-3\n").unwrap();
        for task in ["41", "42"] {
            std::fs::write(proc.join(format!("40/task/{task}/cgroup")), "0::/vm\n").unwrap();
        }
        let vcpus = Placed { vcpus: vec![Some(0), Some(0)], ..vm.placed.clone() };
        let expected = "VM web stays where it is: its cpuset allows vCPU 0 no CPU of node 0";
        check(vcpus, &[], expected);
        let status = "Cpus_allowed_list:\t2-3\nMems_allowed_list:\t1\n";
        std::fs::write(proc.join("40/task/41/status"), status).unwrap();
        let memory = Placed { memory: vec![4 * 4096, 0], ..vm.placed.clone() };
        let expected = "VM web stays where it is: its cpuset allows it no memory of node 0";
        check(
            memory.clone(),
            &[Move { vm: 0, from: 1, to: 0, bytes: 3 * 4096, page: None, cell: None }],
            expected,
        );
    }

    #[test]
    fn a_vm_that_has_ended_is_not_touched() {
        let (root, found) = crate::read::test::machine();
        let (sys, proc) = (root.path().join("sys"), root.path().join("proc"));
        let host = crate::read(&sys, &proc, &found).unwrap();
        let vm = host.vms[0].clone();
        let vm = HostVm { process: VmProcess { started: 1, ..vm.process.clone() }, ..vm };
        let after = Placed { vcpus: vec![Some(0), Some(0)], ..vm.placed.clone() };
        let plan = plan(&[(&vm, after)], &[]);
        let roots = Roots { sys: &sys, proc: &proc };
        let done = apply_plan(roots, &host.topology, &[vm], &plan, 1, &|| false);
        assert_eq!(done.vms[0].stays.as_deref(), Some("VM web has ended"));
    }
}
