//! How complete the data is: events lost, probes missing, events that make no sense together.

use std::collections::BTreeMap;

use table::{Report, counted, grouped, seconds};

use super::{Context, heading};
use crate::timeline::{Problem, Work};

/// One line for each reason; a trace without losses says so.
pub(super) fn facts(context: &Context<'_>, report: &mut Report) {
    let (about, machine) = (context.about, context.machine());
    report.fact("Lost", lost(machine.lost.iter().map(|lost| (lost.kind_name(), lost.count))));
    for (probe, reason) in &machine.missing {
        report.fact("Missing", format!("probe {probe}: {reason}"));
    }
    if let Some(ns) = machine.fault_estimate_ns.filter(|_| estimates_faults(context)) {
        report.fact("Estimated", format!("the end of each page fault, {ns} ns after its begin"));
    }
    if let Some(ns) = machine.clock_error_ns {
        let path = &machine.path;
        let text = format!("converted to the host's with an error of at most {ns} ns");
        report.fact("Clock", format!("{text}; events came through {path}"));
    }
    if let Some(reason) = &machine.ended_early {
        let at = seconds(machine.end.since(about.begin), 3);
        report.fact("Ended early", format!("after {at} s: {reason}"));
    }
    if !about.complete {
        report.fact("Incomplete", "the trace's writer did not finish; the end is missing");
    }
    for problem in problems(context) {
        report.fact("Doubtful", problem);
    }
    if let Some(text) = left_out(context) {
        report.fact("Filter", text);
    }
    for (name, count) in about.counters.iter().filter(|(_, count)| 0 < **count) {
        report.fact("Counted", format!("{name}: {count}"));
    }
    for note in about.notes {
        report.fact("Note", format!("{}: {}", note.subject, note.text));
    }
}

/// Events that make no sense together.
pub(super) fn problems(context: &Context<'_>) -> Vec<String> {
    let filtered = filter_explains(context);
    let problems = context.findings.timeline.problems.iter();
    // The counts of lost events say more.
    let shown = problems.filter(|(problem, _)| **problem != Problem::LostEvents);
    let shown = shown.filter(|(problem, _)| !(filtered && comes_of_filters(**problem)));
    shown.map(|(problem, count)| format!("{}: {}", name(*problem), grouped(*count))).collect()
}

/// Whether gaps in who ran are there on purpose.
fn filter_explains(context: &Context<'_>) -> bool {
    heading::filters(context).next().is_some() && context.machine().lost.is_empty()
}

/// A filter keeps other tasks' switches and wake-ups only where a task that it keeps takes part.
fn comes_of_filters(problem: Problem) -> bool {
    matches!(problem, Problem::SwitchFromAnother | Problem::UnseenTask)
}

/// What a filter leaves unknown: nothing about the tasks that it keeps.
fn left_out(context: &Context<'_>) -> Option<String> {
    let problems = &context.findings.timeline.problems;
    let gaps = problems.get(&Problem::SwitchFromAnother).copied().filter(|gaps| 0 < *gaps)?;
    if !filter_explains(context) {
        return None;
    }
    let switches = if gaps == 1 {
        "1 context switch to a filtered-out task was not recorded".to_owned()
    } else {
        format!("{} context switches to filtered-out tasks were not recorded", grouped(gaps))
    };
    let meaning = "that CPU time is reported as \"unknown\". Data of the traced tasks is complete.";
    Some(format!("{switches}; {meaning}"))
}

/// `no events`, or the number of lost events, their kinds, and which figures they affect.
fn lost<'a>(kinds: impl Iterator<Item = (&'a str, u64)>) -> String {
    let mut by_kind: BTreeMap<&str, u64> = BTreeMap::new();
    for (kind, count) in kinds.filter(|(_, count)| 0 < *count) {
        let of_kind = by_kind.entry(kind).or_default();
        *of_kind = of_kind.saturating_add(count);
    }
    let all = by_kind.values().fold(0, |sum: u64, count| sum.saturating_add(*count));
    if all == 0 {
        return "no events".to_owned();
    }
    let mut affected: Vec<&str> = by_kind.keys().map(|kind| figures_of(kind)).collect();
    affected.sort_unstable();
    affected.dedup();
    let mut kinds: Vec<_> = by_kind.into_iter().collect();
    kinds.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let kinds = kinds.into_iter().map(|(kind, count)| format!("{kind} {}", grouped(count)));
    let (kinds, affected) = (kinds.collect::<Vec<_>>().join(", "), affected.join("; "));
    format!("{} ({kinds}); doubtful: {affected}; a larger --buffer helps", counted(all, "event"))
}

/// The figures that are not right without all events of this kind.
fn figures_of(kind: &str) -> &'static str {
    match kind {
        "switch" => "who ran when, and every wait",
        "waking" | "wakeup" => "waits for a CPU, who woke whom, the critical path",
        "fork" | "exec" | "rename" | "exit" => "names and lives of processes",
        "syscall_enter" | "syscall_exit" => "kernel time by system call",
        "interrupt_enter" | "interrupt_exit" => "interrupts' time",
        "fault_enter" | "fault_exit" => "page faults' time",
        "block_insert" | "block_issue" | "block_requeue" | "block_merge" | "block_complete" => {
            "disks' times"
        }
        "lock_begin" | "lock_end" => "waits for locks",
        "call_file" | "call_bytes" | "call_socket" | "page_added" | "lock_file" | "block_file" => {
            "figures of files and sockets"
        }
        _ => "all figures",
    }
}

fn name(problem: Problem) -> &'static str {
    match problem {
        Problem::LostEvents => "events lost",
        Problem::SwitchFromAnother => "switches from a task that was not known to run",
        Problem::UnseenTask => "tasks whose fork was not seen",
        Problem::EndWithoutBegin => "begin events without an end, or end events without a begin",
        Problem::Backwards => "events that went back in time",
    }
}

/// Whether the end of some page fault is an estimate.
fn estimates_faults(context: &Context<'_>) -> bool {
    let slices = context.findings.timeline.cpus.iter().flat_map(|cpu| &cpu.slices);
    slices.into_iter().any(|slice| slice.work == Work::Fault { estimated: true })
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn losses() {
        let check =
            |kinds: &[(&str, u64)], expected| assert_eq!(lost(kinds.iter().copied()), expected);
        check(&[], "no events");
        check(&[("switch", 0)], "no events");
        check(
            &[("switch", 1000), ("fork", 1), ("switch", 500)],
            "1,501 events (switch 1,500, fork 1); doubtful: names and lives of processes; who ran when, and \
             every wait; a larger --buffer helps",
        );
    }
}
