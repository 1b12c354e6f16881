//! What a machine's group says: where its events come from and what was missed.

use super::super::names::{Names, bounded};

/// Lines of a kind at most.
const LINES: usize = 20;
/// Characters of a line at most.
const LINE: usize = 300;

/// `host`, `VM web`.
pub(super) fn name(names: Names<'_>) -> String {
    let name = names.machine_name();
    if names.timeline.machine == model::MachineId::HOST { name } else { format!("VM {name}") }
}

/// Kernel, clock, losses, and how many arrows were left out of it.
pub(super) fn machine(names: Names<'_>, left_out: u64) -> String {
    let mut lines = Vec::new();
    if let Some(machine) = names.machine() {
        lines.push(format!("traced by vmscope, kernel {}", machine.kernel));
        lines.extend(machine.clock_error_ns.map(|ns| format!("clock error: at most {ns} ns")));
        let lost = machine.lost.iter().take(LINES);
        lines.extend(
            lost.map(|lost| {
                format!("lost on cpu {}: {} {}", lost.cpu, lost.count, lost.kind_name())
            }),
        );
        let missing = machine.missing.iter().take(LINES);
        lines.extend(missing.map(|(probe, reason)| format!("no probe {probe}: {reason}")));
        lines.extend(machine.ended_early.iter().map(|why| format!("ended early: {why}")));
    }
    if 0 < left_out {
        lines.push(format!("{left_out} wake-ups have no arrow: those of the shortest sleeps"));
    }
    lines.iter().map(|line| bounded(line, LINE)).collect::<Vec<_>>().join("\n")
}
