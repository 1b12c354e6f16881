//! A session that writes nothing: short windows of samples in memory, for an observer.
//!
//! ```text
//!  Windows: session --next_window()--> samples since the window before --+--> analysis
//!  Names: guests' maps and symbols                                       |
//!         \--tables_for(window)--> tables that name its addresses -------+
//! ```

use std::time::Duration;

use host::vms::VmProcess;
use model::{Header, Sample, Switch, Vcpu, Vm, VmId};

use crate::CollectError;
use crate::plan::SessionPlan;
use crate::resets::Resets;
use crate::session::Session;
use crate::sink::MemorySink;
use crate::throttling::Quotas;

/// Records consecutive windows into memory.
#[derive(Debug)]
pub struct Windows {
    session: Session,
    sink: MemorySink,
}

/// Samples since the previous window.
#[derive(Debug, Clone)]
pub struct Window {
    /// Its bounds are `start` and `end`.
    pub header: Header,
    /// In time order.
    pub samples: Vec<Sample>,
    /// What each vCPU did at the window's edges.
    pub switches: Vec<Switch>,
    /// How long quotas held VMs back.
    pub quotas: Quotas,
    /// All VMs met so far.
    pub vms: Vec<Vm>,
    pub vcpus: Vec<Vcpu>,
    /// How the guests of those that run can be reached.
    pub processes: Vec<(VmId, VmProcess)>,
    /// Signs that guests booted again.
    pub(crate) resets: Resets,
}

impl Windows {
    /// Begins to sample.
    ///
    /// # Errors
    /// When sampling can't begin; the error says what to do.
    pub fn begin(plan: &SessionPlan) -> Result<Self, CollectError> {
        let mut session = Session::load(plan.clone())?;
        session.find_vms();
        session.attach()?;
        let sink = MemorySink::new(&session.header().cpus);
        Ok(Self { session, sink })
    }

    /// How often `poll` is to be called within a window, lest samples are lost.
    #[must_use]
    pub fn poll_interval(&self) -> Duration {
        self.session.poll_interval()
    }

    /// Drains the samples since the last call.
    ///
    /// # Errors
    /// None today: memory takes everything.
    pub fn poll(&mut self) -> Result<(), CollectError> {
        self.session.poll(&mut self.sink).map(drop)
    }

    /// Ends a window and begins the next.
    ///
    /// # Errors
    /// None today: memory takes everything.
    pub fn next_window(&mut self) -> Result<Window, CollectError> {
        let end = self.session.cut(&mut self.sink)?;
        let full = std::mem::replace(&mut self.sink, MemorySink::new(&end.header.cpus));
        let MemorySink { mut samples, switches, .. } = full;
        samples.sort_by_key(|sample| sample.time);
        let reachable = self.session.reachable().iter();
        Ok(Window {
            header: end.header,
            samples,
            switches,
            quotas: end.quotas,
            vms: end.vms,
            vcpus: end.vcpus,
            resets: end.resets,
            processes: reachable.map(|(vm, process)| (*vm, process.clone())).collect(),
        })
    }
}
