//! A VM's CPUs from the host's side, with names.

use model::MachineId;
use trace_analysis::host_side::{HostSide, Thieves};
use trace_analysis::timeline::{TaskId, Timeline};

use super::Run;
use super::names::{Names, short};

/// What a VM's host says of it.
#[derive(Debug)]
pub(super) struct OnHost<'a> {
    pub(super) side: HostSide,
    pub(super) thieves: Thieves<'a>,
    host: Names<'a>,
}

impl<'a> OnHost<'a> {
    /// `None`: not a VM, or its host was not traced with it.
    pub(super) fn of(run: Run<'a>, guest: &Timeline) -> Option<Self> {
        if guest.machine == MachineId::HOST {
            return None;
        }
        let row = run.tables.machines.get(guest.machine.index())?;
        let host = run.timelines.iter().find(|timeline| timeline.machine == MachineId::HOST)?;
        let side = HostSide::new(host, guest, row)?;
        let thieves = Thieves::new(run.tables, guest.machine, host);
        Some(Self { side, thieves, host: Names { tables: run.tables, timeline: host } })
    }

    /// What to call a vCPU, and its thread: a row of `HostSide::cpus`.
    pub(super) fn vcpu(&self, row: u32) -> (String, String) {
        let Some(cpu) = self.side.cpus.get(row as usize) else { return Default::default() };
        let about = match cpu.thread {
            Some(thread) => format!("from the host's side: its thread {}", thread.0),
            None => "its thread on the host is not known".to_owned(),
        };
        (format!("vcpu {}", cpu.number), about)
    }

    /// `stolen by VM b`.
    pub(super) fn stolen_by(&self, by: Option<TaskId>) -> String {
        short(&format!("by {}", self.thieves.who(by)))
    }

    /// The host's thread, `CPU 0/KVM (152)`.
    pub(super) fn thread(&self, by: TaskId) -> String {
        self.host.task(by)
    }
}
