//! Facts about a trace as a whole.

use std::collections::BTreeMap;

use model::{HostNs, MachineId, Note};

/// Facts about a trace as a whole, as `trace.json` has them. What belongs to one machine is in `model::Machine`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TraceHeader {
    /// The writer.
    pub vmscope_version: String,
    /// The host.
    pub hostname: String,
    /// First instant covered, on the host's clock.
    pub begin: HostNs,
    /// Last instant covered.
    pub end: HostNs,
    /// `CLOCK_REALTIME` at `begin`, ns since 1970.
    pub begin_unix_ns: u64,
    /// False while it is written, and for ever when the writer is killed. Writers need not set it.
    pub complete: bool,
    /// What it was limited to, as options of `trace record`; empty: everything.
    pub filters: Vec<String>,
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
        let is_vm = |filter: &&String| filter.starts_with("--vm ");
        let n_vms = self.filters.iter().filter(is_vm).count();
        n_vms < self.filters.len() && (n_vms == 0 || machine != MachineId::HOST)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn what_filters_leave_out() {
        let check = |filters: &[&str], host, guest| {
            let filters = filters.iter().map(|&filter| filter.to_owned()).collect();
            let header = TraceHeader { filters, ..TraceHeader::default() };
            let of = [MachineId::HOST, MachineId(1)].map(|it| header.leaves_out_switches(it));
            assert_eq!(of, [host, guest], "{:?}", header.filters);
        };
        check(&[], false, false);
        check(&["--only-command"], true, true);
        check(&["--cgroup build.slice"], true, true);
        check(&["--vm a", "--vm b"], false, false);
        check(&["--vm a", "--tree 7"], false, true);
    }
}
