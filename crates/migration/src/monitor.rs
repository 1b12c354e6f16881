//! How this host's VMs use memory, all the time: a migration's pre-copy would disturb a measurement.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use layout::{Sample, Source};
use model::Pid;
use numa::{Counters, VmProcess, Watched};

use crate::this_host::ThisHost;
use crate::{PROC, SYS};

/// Samples that are kept of each VM.
const KEPT: usize = 60;
/// Between two looks for VMs that came or went.
const LOOK: Duration = Duration::from_secs(10);

/// The last samples of each VM.
#[derive(Debug, Default)]
pub(crate) struct History {
    vms: BTreeMap<(Pid, u64), Vm>,
}

#[derive(Debug)]
struct Vm {
    source: Source,
    /// When each ended.
    samples: VecDeque<(Instant, Sample)>,
}

impl History {
    fn push(&mut self, now: Instant, vm: &VmProcess, source: Source, sample: Sample) {
        let new = || Vm { source, samples: VecDeque::new() };
        let kept = self.vms.entry((vm.pid, vm.started)).or_insert_with(new);
        if kept.source != source {
            *kept = new();
        }
        if kept.samples.len() == KEPT {
            kept.samples.pop_front();
        }
        kept.samples.push_back((now, sample));
    }

    fn keep(&mut self, vms: &[VmProcess]) {
        self.vms.retain(|id, _| vms.iter().any(|vm| (vm.pid, vm.started) == *id));
    }

    /// What was counted of a VM until `end`, and when the last sample ended.
    pub(crate) fn until(
        &self,
        vm: &VmProcess,
        end: Instant,
    ) -> Option<(Source, Vec<Sample>, Instant)> {
        let Vm { source, samples } = self.vms.get(&(vm.pid, vm.started))?;
        let ended = || samples.iter().filter(|(at, _)| *at <= end);
        let (last, _) = ended().next_back()?;
        Some((*source, ended().map(|(_, sample)| *sample).collect(), *last))
    }
}

/// Counts until `stop` is set.
pub(crate) fn run(host: &ThisHost, history: &Mutex<History>, stop: &AtomicBool) {
    let mut counters = Counters::none();
    let mut looked: Option<Instant> = None;
    while !stop.load(Ordering::Relaxed) {
        if looked.is_none_or(|at| LOOK <= at.elapsed()) {
            looked = Some(Instant::now());
            follow(host, &mut counters, history);
        }
        std::thread::sleep(counters.until_second());
        let samples = counters.sample(Path::new(PROC));
        let (now, mut history) = (Instant::now(), lock(history));
        for (vm, source, sample) in samples {
            history.push(now, &vm, source, sample);
        }
    }
}

fn follow(host: &ThisHost, counters: &mut Counters, history: &Mutex<History>) {
    // The kernel's refusal is reported when a migration needs its answer.
    let Ok(found) = host.find() else { return };
    let (sys, proc) = (Path::new(SYS), Path::new(PROC));
    let processes = numa::processes(proc, &found);
    let running = |vm: &VmProcess| !vm.threads.is_empty();
    let vms: Vec<VmProcess> = processes.into_iter().flatten().filter(running).collect();
    // A host without counters is no news every ten seconds.
    let _ = counters.follow(&Watched { sys, proc, vms: &vms, found: &found });
    lock(history).keep(&vms);
}

fn lock(history: &Mutex<History>) -> std::sync::MutexGuard<'_, History> {
    history.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn what_was_counted_before_a_migration_is_what_is_sent() {
        let start = Instant::now();
        let at = |second: u64| start + Duration::from_secs(second);
        let vm =
            |started| VmProcess { name: "a".to_owned(), pid: Pid(7), started, threads: vec![] };
        let sample = |misses| Sample { seconds: 1.0, misses, ..Sample::default() };
        let mut history = History::default();
        for second in 1..=100 {
            history.push(at(second), &vm(1), Source::Perf, sample(second as f64));
        }
        let (source, samples, last) = history.until(&vm(1), at(90)).unwrap();
        assert_eq!((source, samples.len(), last), (Source::Perf, 50, at(90)));
        assert_eq!(samples[49], sample(90.0));
        assert!(history.until(&vm(1), at(40)).is_none(), "only the last are kept");
        assert!(history.until(&vm(2), at(90)).is_none(), "another process of this number");
        history.push(at(101), &vm(1), Source::Resctrl, sample(1.0));
        assert_eq!(history.until(&vm(1), at(101)).unwrap().1.len(), 1);
        history.keep(&[vm(2)]);
        assert!(history.until(&vm(1), at(101)).is_none());
    }
}
