//! What an answer's data lacks.

use model::VcpuTimeState;
use table::{Cell, Table};

use crate::answer::{figure, name, real, seconds};
use crate::facts::is_vm;
use crate::source::Part;

/// Notes and counters of a host's recorder at most.
const NOTES: usize = 6;
/// Part of a span that may lie outside of windows without a word.
const GAP: f64 = 0.01;

/// An empty table.
pub(crate) fn table() -> Table {
    let columns = vec![name("what"), figure("amount"), name("unit"), name("of"), name("reason")];
    Table::new("Missing from the data", columns)
}

/// What is missing from a part, of one VM or of all.
pub(crate) fn of_part(part: &Part, vm: Option<&str>) -> Table {
    let mut missing = table();
    let mut add = |what: &str, amount: Cell, unit: &str, of: &str, reason: &str| {
        missing.row([what.into(), amount, unit.into(), of.into(), reason.into()]);
    };
    for reason in &part.partial {
        add("rows", Cell::NONE, "", "", reason);
    }
    let is_meant = |name: &str| vm.is_none_or(|vm| is_vm(name, vm));
    let vms = part.summary.vms.iter().filter(|(name, _)| is_meant(name));
    let sum = |state| vms.clone().map(|(_, vm)| vm.ns(state)).sum::<u64>();
    for (state, reason) in [
        (VcpuTimeState::Unknown, "no evidence of what the vCPUs did"),
        (VcpuTimeState::NotSampled, "the vCPUs ran, and no sample says what"),
    ] {
        if 0 < sum(state) {
            add("vcpu_time", seconds(sum(state)), "s", vm.unwrap_or_default(), reason);
        }
    }
    let unnamed = part.results.vcpu_time.iter().map(|row| &row.row);
    let unnamed = unnamed.filter(|row| is_meant(&row.vm) && row.code.function.is_none());
    let unnamed: u64 = unnamed.map(|row| row.corrected_ns).sum();
    if 0 < unnamed {
        let reason = "guest time without the name of its function";
        add("function_names", seconds(unnamed), "s", vm.unwrap_or_default(), reason);
    }
    for row in part.results.vms.iter().map(|row| &row.row).filter(|row| is_meant(&row.vm)) {
        if let Some(reason) = &row.no_map_reason {
            add("guest_map", Cell::NONE, "", &row.vm, reason);
        }
    }
    for host in part.results.hosts.iter().map(|row| &row.row) {
        for (what, n) in [
            ("samples_dropped", host.samples_lost),
            ("sampling_interrupts_missed", host.samples_missed),
        ] {
            if 0 < n {
                add(what, n.into(), "samples", "host", "");
            }
        }
        let gap_s = part.span.seconds() - host.length_ns as f64 / 1e9;
        if GAP * part.span.seconds() < gap_s {
            add("windows", real(gap_s), "s", "host", "time without a window");
        }
    }
    let health = part.results.health.iter().map(|row| &row.row);
    let health = health.filter(|row| row.subject == "host" || is_meant(&row.subject));
    let mut health: Vec<_> = health.collect();
    health.sort_by_key(|row| std::cmp::Reverse(row.count));
    for row in health.into_iter().take(NOTES) {
        let what = if row.count.is_some() { "counter" } else { "note" };
        add(what, row.count.into(), "", &row.subject, &row.what);
    }
    missing
}
