//! The VMs that are on their way to this host: a plan for one of them is a plan for all.
//!
//! ```text
//!  offered --> Offered: the next plan may put it anywhere --> planned --> Placed: others leave it its room --> came, or not
//! ```

use std::sync::{Mutex, PoisonError};

use layout::{Allowed, HugePage, NodeBytes, Placed, Sample, Source};
use model::Pid;
use numa::Host;

use crate::offer::CheckedOffer;

/// All of them, in the order in which they were offered.
#[derive(Debug, Default)]
pub(crate) struct Arrivals(Mutex<Vec<ComingVm>>);

/// A VM that is on its way.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ComingVm {
    /// No process has this number, and no other VM that is on its way.
    pub(crate) number: u32,
    pub(crate) requested: CheckedOffer,
    pub(crate) counters: Result<(Source, Vec<Sample>), String>,
    /// What it may use.
    pub(crate) allowed: Allowed,
    /// The process that waits for it, if there is one by now.
    pub(crate) process: Option<Pid>,
    /// What its memory will be made of.
    pub(crate) page: HugePage,
    pub(crate) state: ComingState,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ComingState {
    /// It may still go anywhere.
    Offered,
    /// This is where it goes.
    Placed(Placed),
}

/// One of them, until it has come, or does not come.
#[derive(Debug)]
pub(crate) struct Announced<'a> {
    arrivals: &'a Arrivals,
    pub(crate) number: u32,
}

impl Arrivals {
    pub(crate) fn announce(
        &self,
        requested: &CheckedOffer,
        counters: &Result<(Source, Vec<Sample>), String>,
    ) -> Announced<'_> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let used = |number: &u32| all.iter().any(|vm| vm.number == *number);
        let number = (0..u32::MAX).map(|n| u32::MAX - n).find(|n| !used(n)).unwrap_or(u32::MAX);
        all.push(ComingVm {
            number,
            requested: requested.clone(),
            counters: counters.clone(),
            allowed: Allowed::default(),
            process: None,
            page: None,
            state: ComingState::Offered,
        });
        Announced { arrivals: self, number }
    }

    pub(crate) fn all(&self) -> Vec<ComingVm> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Announced<'_> {
    pub(crate) fn change(&self, change: impl FnOnce(&mut ComingVm)) {
        let mut all = self.arrivals.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(vm) = all.iter_mut().find(|vm| vm.number == self.number) {
            change(vm);
        }
    }

    /// The memory of each node that others still need of what is free.
    pub(crate) fn reserved_for_others(&self, host: &Host) -> NodeBytes {
        let others = self.arrivals.all();
        reserved(host, others.iter().filter(|vm| vm.number != self.number))
    }
}

impl Drop for Announced<'_> {
    fn drop(&mut self) {
        let mut all = self.arrivals.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|vm| vm.number != self.number);
    }
}

/// The memory of each node that VMs with a place still need of what is free: less what their processes have already.
pub(crate) fn reserved<'a>(host: &Host, vms: impl Iterator<Item = &'a ComingVm>) -> NodeBytes {
    let mut reserved = NodeBytes::default();
    for vm in vms {
        let ComingState::Placed(place) = &vm.state else { continue };
        let has = host.vms.iter().find(|has| Some(has.process.pid) == vm.process);
        let missing = |(node, bytes): (usize, &u64)| {
            let has = has.and_then(|has| has.placed.memory.get(node)).copied().unwrap_or(0);
            bytes.saturating_sub(has)
        };
        let missing: Vec<u64> = place.memory.iter().enumerate().map(missing).collect();
        reserved.add(vm.page, &missing);
    }
    reserved
}
