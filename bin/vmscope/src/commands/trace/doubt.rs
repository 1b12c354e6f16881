//! What of a report is doubtful, and why: events lost, probes missing, events that make no sense.

use std::collections::BTreeMap;

use trace_analysis::timeline::Problem;

use super::scene::{Scene, counted, grouped, seconds};

/// One line for each reason; a trace without losses says so.
pub(super) fn lines(scene: &Scene) -> Vec<String> {
    let (header, machine) = (&scene.trace.header, scene.machine());
    let mut lines = vec![lost(machine.lost.iter().map(|lost| (lost.kind.as_str(), lost.count)))];
    for (probe, reason) in &machine.missing {
        lines.push(format!("Missing: probe {probe}: {reason}"));
    }
    if let Some(ns) = machine.fault_estimate_ns.filter(|_| estimates_faults(scene)) {
        lines.push(format!("Estimated: each page fault's end, {ns} ns after its begin"));
    }
    if let Some(ns) = machine.clock_error_ns {
        let text = format!("Clock: brought onto the host's with an error of at most {ns} ns");
        lines.push(format!("{text}; events came by {}", machine.path));
    }
    if let Some(reason) = &machine.ended_early {
        let at = seconds(machine.end.since(header.begin));
        lines.push(format!("Ended early: after {at} s: {reason}"));
    }
    if !header.complete {
        let text = "Incomplete: the trace's writer did not finish; the end is missing";
        lines.push(text.to_owned());
    }
    lines.extend(problems(scene).iter().map(|text| format!("Doubtful: {text}")));
    lines.extend(left_out(scene));
    let counters = header.counters.iter().filter(|(_, count)| 0 < **count);
    lines.extend(counters.map(|(name, count)| format!("Counted: {name}: {count}")));
    let notes = header.notes.iter();
    lines.extend(notes.map(|note| format!("Note: {}: {}", note.subject, note.text)));
    lines
}

/// Events that make no sense together.
pub(super) fn problems(scene: &Scene) -> Vec<String> {
    let (left_out, problems) = (filter_explains(scene), scene.timeline.problems.iter());
    // The counts of losses say more.
    let told = problems.filter(|(what, _)| **what != Problem::LostEvents);
    let told = told.filter(|(what, _)| !(left_out && comes_of_filters(**what)));
    told.map(|(problem, count)| doubtful(*problem, *count)).collect()
}

/// Whether gaps in who ran are there on purpose.
fn filter_explains(scene: &Scene) -> bool {
    !scene.trace.header.filters.is_empty() && scene.machine().lost.is_empty()
}

/// Of others than the tasks that a filter keeps, only switches and wake-ups from and to those are there.
fn comes_of_filters(problem: Problem) -> bool {
    matches!(problem, Problem::SwitchFromAnother | Problem::UnseenTask)
}

/// What the filter leaves unknown: nothing of the tasks that it keeps.
fn left_out(scene: &Scene) -> Option<String> {
    let problems = &scene.timeline.problems;
    let gaps = problems.get(&Problem::SwitchFromAnother).copied().filter(|gaps| 0 < *gaps)?;
    let text = "that CPU time shows as unknown; of the tasks that it keeps nothing is missing";
    let times = counted(gaps, "time");
    filter_explains(scene)
        .then(|| format!("Filter: {times} it left out who had a CPU next: {text}"))
}

/// `Lost: no events`, or how many, of which kinds, and what they make doubtful.
fn lost<'a>(kinds: impl Iterator<Item = (&'a str, u64)>) -> String {
    let mut by_kind: BTreeMap<&str, u64> = BTreeMap::new();
    for (kind, count) in kinds.filter(|(_, count)| 0 < *count) {
        *by_kind.entry(kind).or_default() += count;
    }
    let all: u64 = by_kind.values().sum();
    if all == 0 {
        return "Lost: no events".to_owned();
    }
    let mut makes: Vec<&str> = by_kind.keys().map(|kind| made_doubtful(kind)).collect();
    makes.sort_unstable();
    makes.dedup();
    let mut kinds: Vec<_> = by_kind.into_iter().collect();
    kinds.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let kinds = kinds.into_iter().map(|(kind, count)| format!("{kind} {}", grouped(count)));
    let kinds = kinds.collect::<Vec<_>>().join(", ");
    let makes = makes.join("; ");
    format!("Lost: {} ({kinds}); doubtful: {makes}; a larger --buffer helps", counted(all, "event"))
}

/// What an analysis without some events of this kind can't be trusted with.
fn made_doubtful(kind: &str) -> &'static str {
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
        _ => "all figures",
    }
}

fn doubtful(problem: Problem, count: u64) -> String {
    let what = match problem {
        Problem::LostEvents => "events lost",
        Problem::SwitchFromAnother => "switches from a task that was not known to run",
        Problem::UnseenTask => "tasks that were never seen to be made",
        Problem::EndWithoutBegin => "begins or ends without the other",
        Problem::Backwards => "events that went back in time",
    };
    format!("{what}: {}", grouped(count))
}

/// Whether some page fault's end is an estimate.
fn estimates_faults(scene: &Scene) -> bool {
    use trace_analysis::timeline::Work;
    let slices = scene.timeline.cpus.iter().flat_map(|cpu| &cpu.slices);
    slices.into_iter().any(|slice| slice.work == Work::Fault { estimated: true })
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn losses() {
        let check =
            |kinds: &[(&str, u64)], expected| assert_eq!(lost(kinds.iter().copied()), expected);
        check(&[], "Lost: no events");
        check(&[("switch", 0)], "Lost: no events");
        check(
            &[("switch", 1000), ("fork", 1), ("switch", 500)],
            "Lost: 1,501 events (switch 1,500, fork 1); doubtful: names and lives of processes; who ran when, and \
             every wait; a larger --buffer helps",
        );
    }
}
