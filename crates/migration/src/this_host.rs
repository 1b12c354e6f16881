//! This host as the kernel shows it, and what was counted on it.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use layout::{Load, Plan, Sample, Source};
use numa::{AppliedPlan, Host, HostVm, NumaError, Roots, VmProcess};
use probes::{FoundVm, ProbeError, VmFinder};

use crate::config::Config;
use crate::monitor::{self, History};
use crate::{PROC, SYS};

/// The host's VMs, where they are, and how they use memory.
#[derive(Debug)]
pub(crate) struct ThisHost {
    pub(crate) config: Config,
    finder: Mutex<VmFinder>,
    history: Mutex<History>,
}

/// What was counted of a VM.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Use {
    pub(crate) source: Source,
    pub(crate) samples: Vec<Sample>,
    /// How long ago the last sample ended.
    pub(crate) age: Duration,
}

impl ThisHost {
    pub(crate) fn new(config: Config) -> Result<Self, ProbeError> {
        let finder = Mutex::new(VmFinder::load()?);
        Ok(Self { config, finder, history: Mutex::default() })
    }

    /// Counts until `stop` is set, unless a file says what is counted.
    pub(crate) fn count(&self, stop: &AtomicBool) {
        if self.config.counters.is_none() {
            monitor::run(self, &self.history, stop);
        }
    }

    /// The VMs that there are.
    pub(crate) fn find(&self) -> Result<Vec<FoundVm>, ProbeError> {
        self.finder.lock().unwrap_or_else(PoisonError::into_inner).find(None)
    }

    /// Nodes and VMs.
    pub(crate) fn read(&self, found: &[FoundVm]) -> Result<Host, NumaError> {
        numa::read(Path::new(SYS), Path::new(PROC), found)
    }

    /// Carries out a plan for some of the host's VMs, at the configured rate.
    pub(crate) fn apply_plan(
        &self,
        host: &Host,
        vms: &[HostVm],
        plan: &Plan,
        stop: &dyn Fn() -> bool,
    ) -> AppliedPlan {
        let roots = Roots { sys: Path::new(SYS), proc: Path::new(PROC) };
        numa::apply_plan(roots, &host.topology, vms, plan, self.config.move_bytes_per_s, stop)
    }

    /// What was counted of a VM until `end`.
    pub(crate) fn use_of(&self, vm: &VmProcess, end: Instant) -> Use {
        if let Some(path) = &self.config.counters {
            return recorded(path, &vm.name);
        }
        let history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        match history.until(vm, end) {
            Some((source, samples, last)) => Use { source, samples, age: last.elapsed() },
            None => Use::default(),
        }
    }

    /// The residents as a load.
    pub(crate) fn load(&self, host: &Host) -> Load {
        let now = Instant::now();
        host.load(self.config.move_bytes_per_s, |vm: &HostVm| {
            let Use { source, samples, .. } = self.use_of(&vm.process, now);
            (source, samples)
        })
    }
}

/// What a file says of a VM; what it does not say is not known.
fn recorded(path: &Path, name: &str) -> Use {
    let text = cli::config_file::text(path).unwrap_or_default();
    let mut counters = layout::read_counters(&text).unwrap_or_default();
    match counters.remove(name) {
        Some(samples) if !samples.is_empty() => {
            Use { source: Source::Recorded, samples, age: Duration::ZERO }
        }
        _ => Use::default(),
    }
}
