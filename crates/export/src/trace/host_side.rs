//! What to call a VM's CPUs, and who took pCPUs from them.

use trace_analysis::findings::OnHost;
use trace_analysis::timeline::{TaskId, Timeline};

use super::Run;
use super::names::{short, task_label};

/// What the run's host says of a VM; `None`: the host was not traced with it.
pub(super) fn on_host<'a>(run: Run<'a>, guest: &Timeline) -> Option<OnHost<'a>> {
    OnHost::new(run.tables, guest, run.host()?)
}

/// What to call a vCPU, and its thread: a row of `HostSide::cpus`.
pub(super) fn vcpu(host: &OnHost<'_>, row: u32) -> (String, String) {
    let Some(cpu) = host.side.cpus.get(row as usize) else { return Default::default() };
    let about = match cpu.thread {
        Some(thread) => format!("from the host's side: its thread {}", thread.0),
        None => "its thread on the host is not known".to_owned(),
    };
    (format!("vcpu {}", cpu.number), about)
}

/// `stolen by VM b`.
pub(super) fn stolen_by(host: &OnHost<'_>, by: Option<TaskId>) -> String {
    short(&format!("by {}", host.thieves.who(by)))
}

/// The host's thread, `CPU 0/KVM (152)`.
pub(super) fn thread(host: &OnHost<'_>, by: TaskId) -> String {
    task_label(host.timeline, by)
}
