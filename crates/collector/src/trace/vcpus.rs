//! Which threads run their guests during a trace.
//!
//! A vCPU's thread that always has something to do makes no system call in a whole trace: it is in `ioctl` from before the begin
//! until after the end, and `/proc` does not say in which call a task is that has a CPU. It says for how long a thread has run a
//! guest. Where that grows, the thread is in the call that runs guests.

use std::collections::HashSet;
use std::path::Path;

use model::{Pid, Tid};

/// The system call that runs guests, on x86-64.
pub(super) const IOCTL: u16 = 16;

/// Threads of vCPUs.
#[derive(Debug, Default)]
pub(super) struct Vcpus {
    threads: Vec<(Pid, Tid)>,
    /// How long each had run its guest at the begin; `None`: not known.
    begin: Vec<Option<u64>>,
    ran: HashSet<Tid>,
}

impl Vcpus {
    pub(super) fn new(threads: Vec<(Pid, Tid)>) -> Self {
        Self { threads, ..Self::default() }
    }

    /// The trace has begun.
    pub(super) fn begin(&mut self, proc: &Path) {
        let ticks =
            self.threads.iter().map(|(pid, tid)| host::tasks::guest_ticks(proc, *pid, *tid));
        self.begin = ticks.collect();
    }

    /// The trace continues.
    pub(super) fn look(&mut self, proc: &Path) {
        for ((pid, tid), begin) in self.threads.iter().zip(&self.begin) {
            let now = || host::tasks::guest_ticks(proc, *pid, *tid);
            if !self.ran.contains(tid)
                && begin.is_some_and(|begin| now().is_some_and(|now| begin < now))
            {
                self.ran.insert(*tid);
            }
        }
    }

    /// Those that ran their guests since the begin.
    pub(super) fn ran(&self) -> &HashSet<Tid> {
        &self.ran
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn threads_whose_guests_ran() {
        let proc = tempfile::tempdir().unwrap();
        let write = |tid: u32, guest_ticks: u64| {
            let folder = proc.path().join(format!("7/task/{tid}"));
            std::fs::create_dir_all(&folder).unwrap();
            let before = "S 1 7 7 0 -1 4194304".to_owned() + &" 0".repeat(33);
            let stat = format!("{tid} (CPU 0/KVM) {before} {guest_ticks} 0\n");
            std::fs::write(folder.join("stat"), stat).unwrap();
        };
        let ids = [8, 9, 10].map(|tid| (Pid(7), Tid(tid)));
        let mut vcpus = Vcpus::new(ids.to_vec());
        write(8, 100);
        write(9, 0);
        vcpus.begin(proc.path());
        vcpus.look(proc.path());
        assert_eq!(*vcpus.ran(), HashSet::new());
        write(8, 101);
        // It was not there at the begin.
        write(10, 5);
        vcpus.look(proc.path());
        assert_eq!(*vcpus.ran(), HashSet::from([Tid(8)]));
    }
}
