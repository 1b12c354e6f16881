//! Facts about a trace as a whole.

use std::collections::BTreeMap;

use model::{HostNs, MachineId, Note, TraceFilter};

/// Facts about a trace as a whole, as `trace.json` has them. What belongs to one machine is in `model::Machine`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TraceHeader {
    pub vmscope_version: String,
    pub hostname: String,
    /// First instant covered, on the host's clock.
    pub begin: HostNs,
    /// Last instant covered.
    pub end: HostNs,
    /// `CLOCK_REALTIME` at `begin`, ns since 1970.
    pub begin_unix_ns: u64,
    /// False while it is written, and for ever when the writer is killed. Writers need not set it.
    pub complete: bool,
    /// What it was limited to; empty: everything.
    pub filters: Vec<TraceFilter>,
    /// Everything dropped, truncated or missed that no machine's `lost` counts, by name; absent is 0.
    pub counters: BTreeMap<String, u64>,
    /// What the user should know.
    pub notes: Vec<Note>,
}

impl TraceHeader {
    /// Whether a filter left out switches between tasks of a machine that it does not keep. Where VMs were traced, filters
    /// are of tasks in them: switches of the host are all there.
    #[must_use]
    pub fn leaves_out_switches(&self, machine: MachineId) -> bool {
        let is_vm = |filter: &&TraceFilter| matches!(filter, TraceFilter::Vm(_));
        let n_vms = self.filters.iter().filter(is_vm).count();
        n_vms < self.filters.len() && (n_vms == 0 || machine != MachineId::HOST)
    }
}

#[cfg(test)]
mod test {
    use model::Pid;

    use super::*;

    #[test]
    fn what_filters_leave_out() {
        let check = |filters: &[TraceFilter], host, guest| {
            let header = TraceHeader { filters: filters.to_vec(), ..TraceHeader::default() };
            let of = [MachineId::HOST, MachineId(1)].map(|it| header.leaves_out_switches(it));
            assert_eq!(of, [host, guest], "{:?}", header.filters);
        };
        check(&[], false, false);
        let vm = |name: &str| TraceFilter::Vm(name.to_owned());
        check(&[TraceFilter::Command], true, true);
        check(&[TraceFilter::Cgroup("build.slice".to_owned())], true, true);
        check(&[vm("a"), vm("b")], false, false);
        check(&[vm("a"), TraceFilter::Tree(Pid(7))], false, true);
    }
}
