//! How VMs use memory: by performance counters where there is a PMU, else by resctrl, else by DAMON.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use layout::{CACHE_LINE, Sample, Source};
use model::Pid;
use probes::{FoundVm, ThreadCounters, ThreadCounts};

use crate::access::Accesses;
use crate::damon::MAX_TARGETS;
use crate::read::VmProcess;
use crate::resctrl::{Bytes, Group, group_of};

/// VMs, and the machine that they run on.
#[derive(Debug, Clone, Copy)]
pub struct Watched<'a> {
    pub sys: &'a Path,
    pub proc: &'a Path,
    pub vms: &'a [VmProcess],
    /// As KVM knows them.
    pub found: &'a [FoundVm],
}

/// Counters, and why some are missing.
#[derive(Debug, Default)]
pub struct Counted {
    /// Samples of a second each by VM, and what counted them.
    pub samples: BTreeMap<Pid, (Source, Vec<Sample>)>,
    /// Why there is none.
    pub notes: Vec<String>,
}

/// Counters of VMs. They count until this is dropped; a mediated vPMU is left alone.
#[derive(Debug)]
pub struct Counters {
    open: Vec<(VmProcess, Counter)>,
    /// Of VMs that nothing else counts.
    accesses: Option<Accesses>,
    last: Instant,
}

/// What counts a VM.
#[derive(Debug)]
enum Counter {
    Threads(Vec<ThreadCounters>, ThreadCounts),
    Group(Group, Bytes),
}

/// Counts for this many seconds, or until `stop` returns true. Leaves the machine as it was.
pub fn count(watched: &Watched, seconds: u32, stop: &dyn Fn() -> bool) -> Counted {
    let mut counters = Counters::none();
    let mut counted = Counted { notes: counters.follow(watched), ..Counted::default() };
    for _ in 0..seconds {
        if counters.is_empty() || stop() {
            break;
        }
        std::thread::sleep(counters.until_second());
        for (vm, source, sample) in counters.sample(watched.proc) {
            counted.samples.entry(vm.pid).or_insert((source, Vec::new())).1.push(sample);
        }
    }
    counted
}

impl Counters {
    /// No VM is counted yet.
    #[must_use]
    pub fn none() -> Self {
        Self { open: Vec::new(), accesses: None, last: Instant::now() }
    }

    fn is_empty(&self) -> bool {
        self.open.is_empty() && self.accesses.is_none()
    }

    /// Counts these VMs from now on, and no others; existing counters continue. Returns why some are not.
    pub fn follow(&mut self, watched: &Watched) -> Vec<String> {
        let Watched { sys, vms, .. } = *watched;
        self.open.retain(|(vm, _)| vms.contains(vm));
        if self.is_empty() {
            self.last = Instant::now();
        }
        let perf = host::machine::cycles_are_safe(sys);
        let mut others = Vec::new();
        for vm in vms {
            if self.open.iter().any(|(open, _)| open == vm) {
                continue;
            }
            let threads = match &perf {
                Ok(()) => by_threads(vm).map_err(|error| error.to_string()),
                Err(_) => Err("no usable PMU".to_owned()),
            };
            match (threads, by_group(sys, vm, vms)) {
                (Ok(counter), _) | (Err(_), Some(counter)) => self.open.push((vm.clone(), counter)),
                (Err(why), None) => others.push((vm.clone(), why)),
            }
        }
        self.follow_accesses(watched, &others)
    }

    /// Watches the accesses of VMs that nothing else counts, and why not.
    fn follow_accesses(&mut self, watched: &Watched, vms: &[(VmProcess, String)]) -> Vec<String> {
        let mut processes: Vec<VmProcess> = vms.iter().map(|(vm, _)| vm.clone()).collect();
        processes.sort_unstable_by_key(|vm| vm.pid);
        if self.accesses.as_ref().is_some_and(|accesses| accesses.is_of(&processes)) {
            return Vec::new();
        }
        // There can be one: the old one ends first.
        self.accesses = None;
        if vms.is_empty() {
            return Vec::new();
        }
        let why_not = match Accesses::start(watched, &processes) {
            Ok(accesses) => {
                self.accesses = Some(accesses);
                format!("DAMON watches {MAX_TARGETS} VMs at most")
            }
            Err(error) => error.to_string(),
        };
        let is_watched =
            |vm: &VmProcess| self.accesses.as_ref().is_some_and(|accesses| accesses.has(vm));
        let note = |(vm, why): &(VmProcess, String)| {
            let nothing = "nothing counts how it uses memory";
            format!("{}: {nothing} ({why}, no resctrl group, {why_not})", vm.name)
        };
        vms.iter().filter(|(vm, _)| !is_watched(vm)).map(note).collect()
    }

    /// Until a second has gone by since the last sample.
    #[must_use]
    pub fn until_second(&self) -> Duration {
        Duration::from_secs(1).saturating_sub(self.last.elapsed())
    }

    /// What has been counted of each VM since the last time. A VM that ended is counted no more.
    pub fn sample(&mut self, proc: &Path) -> Vec<(VmProcess, Source, Sample)> {
        let seconds = self.last.elapsed().as_secs_f64();
        self.last = Instant::now();
        let mut samples = Vec::new();
        self.open.retain_mut(|(vm, counter)| {
            let Some(sample) = counter.sample(seconds) else { return false };
            samples.push((vm.clone(), counter.source(), sample));
            true
        });
        let accesses = self.accesses.as_mut().map(|accesses| accesses.sample(proc, seconds));
        match accesses {
            Some(Some(seen)) => {
                samples.extend(seen.into_iter().map(|(vm, sample)| (vm, Source::Damon, sample)));
            }
            Some(None) => self.accesses = None,
            None => {}
        }
        samples
    }
}

fn by_threads(vm: &VmProcess) -> Result<Counter, probes::ProbeError> {
    let threads: Result<Vec<_>, _> =
        vm.threads.iter().map(|tid| ThreadCounters::open(*tid)).collect();
    Ok(Counter::Threads(threads?, ThreadCounts::default()))
}

fn by_group(sys: &Path, vm: &VmProcess, vms: &[VmProcess]) -> Option<Counter> {
    let ids = |vm: &VmProcess| -> BTreeSet<u32> { vm.threads.iter().map(|tid| tid.0).collect() };
    let others = vms.iter().filter(|other| other.pid != vm.pid).flat_map(ids).collect();
    let group = group_of(&sys.join("fs/resctrl"), &ids(vm), &others)?;
    let now = group.read()?;
    Some(Counter::Group(group, now))
}

impl Counter {
    fn source(&self) -> Source {
        match self {
            Self::Threads(..) => Source::Perf,
            Self::Group(..) => Source::Resctrl,
        }
    }

    /// Counts since the last sample. `None`: the VM is gone.
    fn sample(&mut self, seconds: f64) -> Option<Sample> {
        match self {
            Self::Threads(threads, before) => {
                let now = sum(threads).ok()?;
                let sample = thread_sample(before, &now, seconds);
                *before = now;
                Some(sample)
            }
            Self::Group(group, before) => {
                let now = group.read()?;
                let sample = group_sample(before, &now, seconds);
                *before = now;
                Some(sample)
            }
        }
    }
}

fn sum(threads: &mut [ThreadCounters]) -> io::Result<ThreadCounts> {
    let mut sum = ThreadCounts { loads: Some((0.0, 0.0)), ..ThreadCounts::default() };
    for thread in threads {
        let counts = thread.read()?;
        sum.misses += counts.misses;
        sum.instructions += counts.instructions;
        sum.loads = sum.loads.zip(counts.loads).map(|((a, b), (c, d))| (a + c, b + d));
    }
    Ok(sum)
}

fn thread_sample(before: &ThreadCounts, now: &ThreadCounts, seconds: f64) -> Sample {
    // An estimate can fall behind an earlier one.
    let since = |now: f64, before: f64| (now - before).max(0.0);
    let loads = now.loads.map(|(all, far)| {
        let (all_before, far_before) = before.loads.unwrap_or_default();
        (since(all, all_before), since(far, far_before))
    });
    let remote = loads.filter(|(all, _)| 0.0 < *all).map(|(all, far)| (far / all).min(1.0));
    Sample {
        seconds,
        misses: since(now.misses, before.misses),
        instructions: Some(since(now.instructions, before.instructions)),
        remote,
    }
}

fn group_sample(before: &Bytes, now: &Bytes, seconds: f64) -> Sample {
    let total = now.total.saturating_sub(before.total);
    let local = now.local.saturating_sub(before.local).min(total);
    Sample {
        seconds,
        misses: total as f64 / CACHE_LINE as f64,
        instructions: None,
        remote: (0 < total).then(|| 1.0 - local as f64 / total as f64),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn samples_are_differences() {
        let counts = |misses, instructions, loads| ThreadCounts { misses, instructions, loads };
        let check = |before, now, expected: (f64, Option<f64>)| {
            let sample = thread_sample(&before, &now, 1.0);
            assert_eq!((sample.misses, sample.remote), expected);
        };
        let first = counts(10.0, 100.0, Some((8.0, 2.0)));
        check(first, counts(30.0, 300.0, Some((18.0, 7.0))), (20.0, Some(0.5)));
        check(first, counts(9.0, 300.0, Some((8.0, 2.0))), (0.0, None));
        check(first, counts(30.0, 300.0, None), (20.0, None));
        let group = |total, local| Bytes { total, local };
        let sample = group_sample(&group(0, 0), &group(6400, 1600), 1.0);
        assert_eq!((sample.misses, sample.remote, sample.instructions), (100.0, Some(0.75), None));
        // Counters that began anew.
        assert_eq!(group_sample(&group(9, 9), &group(1, 1), 1.0).remote, None);
    }

    #[test]
    fn without_a_source_that_is_said() {
        let root = tempfile::tempdir().unwrap();
        let vm = VmProcess {
            name: "web".to_owned(),
            pid: Pid(1),
            started: 0,
            threads: vec![model::Tid(1)],
        };
        let (sys, proc) = (root.path(), root.path());
        let counted = count(&Watched { sys, proc, vms: &[vm], found: &[] }, 60, &|| false);
        assert_eq!(
            counted.notes,
            [
                "web: nothing counts how it uses memory (no usable PMU, no resctrl group, the kernel has no DAMON)"
            ]
        );
        assert!(counted.samples.is_empty());
    }
}
