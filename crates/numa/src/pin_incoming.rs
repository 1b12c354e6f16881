//! Memory to a node before it is there: the kernel takes a page from the node of the thread that touches it first. While a
//! VM's pages arrive, all threads of its process run on the CPUs of the node where it should be.
//!
//! It needs no help: no option of the VMM, no control group. It holds as long as the node has free memory, and for one
//! node only; what comes to lie elsewhere is moved afterwards.

use std::collections::BTreeMap;
use std::path::Path;

use model::Tid;
use rustix::thread::{CpuSet, sched_getaffinity};

use crate::apply_plan::{set_affinity, still_there, thread_id};
use crate::read::{NumaError, VmProcess};

/// Threads of a process at most.
const MAX_THREADS: usize = 1 << 14;

/// A process whose threads run on the CPUs of one node until they are released.
#[derive(Debug)]
pub struct Steered {
    process: VmProcess,
    /// Where each thread could run before.
    before: BTreeMap<u32, CpuSet>,
}

/// Has all threads of a process run on these CPUs only; threads that they start will do so, too.
///
/// # Errors
/// If the process has ended, or the kernel refuses.
pub fn pin_incoming(proc: &Path, process: &VmProcess, cpus: &[u32]) -> Result<Steered, NumaError> {
    let mut steered = Steered { process: process.clone(), before: BTreeMap::new() };
    // Threads may be started meanwhile by those that were not queried yet.
    for _ in 0..2 {
        for tid in threads(proc, process) {
            if steered.before.contains_key(&tid) {
                continue;
            }
            still_there(proc, process)?;
            let before = thread_id(Tid(tid)).and_then(|tid| Ok(sched_getaffinity(Some(tid))?));
            // It may have ended.
            let Ok(before) = before else { continue };
            if let Err(source) = set_affinity(Tid(tid), cpus) {
                let vm = process.name.clone();
                steered.release(proc, &[]);
                return Err(NumaError::Steer { vm, source });
            }
            steered.before.insert(tid, before);
        }
    }
    Ok(steered)
}

impl Steered {
    /// Has its threads run where they could before, all but those to `keep`; those that came since, where its first one could.
    pub fn release(self, proc: &Path, keep: &[Tid]) {
        let first = self.before.get(&self.process.pid.0);
        for tid in threads(proc, &self.process) {
            let before = self.before.get(&tid).or(first);
            if keep.contains(&Tid(tid)) || still_there(proc, &self.process).is_err() {
                continue;
            }
            if let (Some(before), Ok(tid)) = (before, thread_id(Tid(tid))) {
                // One that has ended needs no CPUs.
                let _ = rustix::thread::sched_setaffinity(Some(tid), before);
            }
        }
    }
}

fn threads(proc: &Path, process: &VmProcess) -> Vec<u32> {
    let folder = proc.join(process.pid.0.to_string()).join("task");
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let tid = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    entries.take(MAX_THREADS).filter_map(tid).collect()
}

#[cfg(test)]
mod test {
    use std::process::Command;

    use model::Pid;

    use super::*;
    use crate::read::started;

    #[test]
    fn threads_are_steered_and_released() {
        let proc = Path::new("/proc");
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id();
        let process = VmProcess {
            name: "vm".to_owned(),
            pid: Pid(pid),
            started: started(&proc.join(pid.to_string())).unwrap(),
            threads: Vec::new(),
        };
        let affinity = || sched_getaffinity(Some(thread_id(Tid(pid)).unwrap())).unwrap();
        let before = affinity();
        let cpu = (0..CpuSet::MAX_CPU).find(|cpu| before.is_set(*cpu)).unwrap();
        let steered = pin_incoming(proc, &process, &[u32::try_from(cpu).unwrap()]).unwrap();
        assert_eq!((affinity().count(), affinity().is_set(cpu)), (1, true));
        steered.release(proc, &[]);
        assert_eq!(affinity(), before);
        // A process of the same number is another one.
        let another = VmProcess { started: process.started + 1, ..process.clone() };
        assert!(matches!(pin_incoming(proc, &another, &[0]), Err(NumaError::Gone(_))));
        child.kill().unwrap();
        while started(&proc.join(pid.to_string())).is_ok() {
            std::thread::yield_now();
        }
        // It has not been waited for, and its number stays its own; but it has ended.
        assert!(matches!(pin_incoming(proc, &process, &[0]), Err(NumaError::Gone(_))));
        child.wait().unwrap();
    }
}
