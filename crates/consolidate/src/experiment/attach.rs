//! VMs that run already, and that others ask: measured interval after interval. Nothing of them is started, stopped or
//! switched.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use collector::trace::vm_process;
use lab::observe::{VmRoles, answered};
use lab::{Class, Run, RunKey, ladder};

use super::Lab;
use crate::capture::{self, Interface};
use crate::error::Error;
use crate::recorder;
use crate::switches::VmProcess;

/// The VMs that are measured.
struct Attached {
    vms: Vec<VmProcess>,
    /// Their processes by address, of those whose packets are captured.
    addresses: BTreeMap<IpAddr, u32>,
    taps: Vec<Interface>,
}

impl Lab<'_> {
    /// Measures the remaining intervals.
    pub(super) fn watch(&mut self) -> Result<(), Error> {
        let plan = self.experiment.plan;
        let attached = self.attached()?;
        for rungs in plan.ladders() {
            while let Some((_, orders)) = ladder::left(plan, &rungs, &self.runs) {
                for (_, key) in orders {
                    self.pass(plan.ladder.warm_up_s)?;
                    let partial = self.partial(&key)?;
                    let run = self.interval(&attached, &key, &partial)?;
                    self.keep(run, &partial)?;
                }
            }
        }
        Ok(())
    }

    fn attached(&self) -> Result<Attached, Error> {
        let mut attached =
            Attached { vms: Vec::new(), addresses: BTreeMap::new(), taps: Vec::new() };
        for vm in &self.experiment.plan.attach {
            let name = vm.name.clone();
            let pid = vm_process(&self.roots.proc, &name)
                .map_err(|source| Error::Attach { name: name.clone(), source: Box::new(source) })?;
            if let Some(address) = vm.address {
                let taps = capture::taps_of(&self.roots.proc, &self.roots.sys, pid);
                if taps.is_empty() {
                    return Err(Error::NoTap { name });
                }
                attached.taps.extend(taps);
                attached.addresses.insert(address, pid);
            }
            attached.vms.push(VmProcess { name, pid, is_loaded: true });
        }
        Ok(attached)
    }

    fn interval(&mut self, attached: &Attached, key: &RunKey, folder: &Path) -> Result<Run, Error> {
        let recording = folder.join("recording");
        let window = self.begin_window(&attached.taps, &recording)?;
        self.pass(self.experiment.plan.ladder.measure_s)?;
        let measured = self.end_window(window, folder)?;
        self.recorder.finish()?;
        if let Some(vm) = attached.vms.iter().find(|vm| !self.roots.runs(vm.pid)) {
            return Err(Error::Ended { name: vm.name.clone() });
        }
        let load = answered(measured.requests.as_ref(), &attached.addresses, measured.ns);
        let mut run = Run::new(key.clone(), key.vms, load);
        let cast = VmRoles {
            vms: attached.vms.iter().map(|vm| (vm.pid, Class::Loaded)).collect(),
            generator: None,
            recorder: std::process::id(),
            addresses: attached.addresses.clone(),
        };
        recorder::add_figures(&recording, &cast, measured.requests.as_ref(), &mut run)?;
        self.add_counts(&mut run, &attached.vms, measured);
        Ok(run)
    }

    /// Drains samples for this long.
    fn pass(&mut self, seconds: f64) -> Result<(), Error> {
        let until = Instant::now() + Duration::from_secs_f64(seconds);
        loop {
            self.check_interrupted()?;
            self.recorder.poll()?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(Duration::from_millis(200)));
        }
    }
}
