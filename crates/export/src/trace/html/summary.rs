//! The page's head: what was traced, and what was missed.

use std::fmt::Write as _;

use model::{HostNs, Machine, TraceTables};

use super::super::Run;
use super::super::names::{Names, bounded, short};
use crate::html::escape::escape;

/// Notes of one kind and machine at most.
const NOTES: usize = 30;
/// Characters of a note or a command at most.
const LONG: usize = 300;

pub(super) fn title(runs: &[Run<'_>]) -> String {
    let labels: Vec<String> = runs.iter().map(|run| short(run.label)).collect();
    escape(&format!("vmscope trace: {}", labels.join(" and ")))
}

/// A table with a line per machine of each run.
pub(super) fn facts(runs: &[Run<'_>]) -> String {
    let mut rows = String::new();
    for run in runs {
        for timeline in run.timelines {
            let names = Names { tables: run.tables, timeline };
            let machine = names.machine();
            let of_machine = |show: fn(&Machine) -> String| machine.map_or_else(String::new, show);
            let _ = writeln!(
                rows,
                "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td>\
                 <td class=\"number\">{}</td><td class=\"number\">{}</td><td>{}</td></tr>",
                escape(&short(run.label)),
                escape(&names.machine_name()),
                escape(&of_machine(|machine| short(&machine.kernel))),
                escape(&command(run.tables, timeline.machine)),
                seconds(timeline.end.since(timeline.begin)),
                timeline.cpus.len(),
                timeline.disks.len(),
                timeline.tasks.len(),
                escape(&of_machine(taken)),
            );
        }
    }
    format!(
        "<div class=\"scroll\"><table>\n<thead><tr><th>Trace</th><th>Machine</th><th>Kernel</th><th>Command</th>\
         <th class=\"number\">Length, s</th><th class=\"number\">CPUs</th><th class=\"number\">Disks</th>\
         <th class=\"number\">Tasks</th><th>Events taken</th></tr></thead>\n<tbody>\n{rows}</tbody>\n</table></div>"
    )
}

fn command(tables: &TraceTables, machine: model::MachineId) -> String {
    let Some(command) = tables.command.as_ref().filter(|command| command.machine == machine) else {
        return String::new();
    };
    let words = bounded(&command.words.join(" "), LONG);
    match command.exit_code {
        Some(0) => words,
        Some(code) => format!("{words} (exit code {code})"),
        None => format!("{words} (still running at the end)"),
    }
}

/// How events came out, and how good their clock is.
fn taken(machine: &Machine) -> String {
    let path = short(&machine.path);
    match machine.clock_error_ns {
        Some(ns) => format!("{path}, clock within {ns} ns"),
        None => path,
    }
}

/// What was missed or is doubtful, as a list; nothing when nothing was.
pub(super) fn notes(runs: &[Run<'_>]) -> String {
    let mut notes: Vec<String> = Vec::new();
    for run in runs {
        for timeline in run.timelines {
            let names = Names { tables: run.tables, timeline };
            let about = format!("{}, {}", short(run.label), names.machine_name());
            let machine = names.machine().map_or_else(Vec::new, machine_notes);
            notes.extend(machine.into_iter().map(|note| format!("{about}: {note}")));
            let problems = timeline.problems.iter().filter(|(_, count)| 0 < **count);
            notes.extend(
                problems.map(|(problem, n)| {
                    format!("{about}: {}: {n}", words(&format!("{problem:?}")))
                }),
            );
        }
    }
    if notes.is_empty() {
        return String::new();
    }
    let items: String = notes.iter().map(|note| format!("<li>{}</li>\n", escape(note))).collect();
    format!("<ul class=\"notes\">\n{items}</ul>")
}

/// `LostEvents` as `lost events`.
fn words(name: &str) -> String {
    name.chars().fold(String::new(), |mut out, c| {
        if c.is_uppercase() && !out.is_empty() {
            out.push(' ');
        }
        out.extend(c.to_lowercase());
        out
    })
}

fn machine_notes(machine: &Machine) -> Vec<String> {
    let lost = machine.lost.iter().take(NOTES);
    let lost =
        lost.map(|lost| format!("{} {} events lost on cpu {}", lost.count, lost.kind, lost.cpu));
    let missing = machine.missing.iter().take(NOTES);
    let missing = missing.map(|(probe, why)| format!("no probe {probe}: {why}"));
    let ended = machine.ended_early.iter().map(|why| format!("its trace ended early: {why}"));
    lost.chain(missing).chain(ended).map(|note| bounded(&note, LONG)).collect()
}

/// Thousandths of a second.
pub(super) fn seconds(ns: u64) -> String {
    let ms = ns / 1_000_000 + u64::from(500_000 <= ns % 1_000_000);
    format!("{}.{:03}", ms / 1_000, ms % 1_000)
}

impl Run<'_> {
    /// The first instant of any machine.
    pub(super) fn begin(&self) -> HostNs {
        self.timelines.iter().map(|timeline| timeline.begin).min().unwrap_or_default()
    }

    /// The last one.
    pub(super) fn end(&self) -> HostNs {
        self.timelines.iter().map(|timeline| timeline.end).max().unwrap_or_default()
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_variants_name_in_words() {
        assert_eq!(words("EndWithoutBegin"), "end without begin");
    }

    #[test]
    fn seconds_are_rounded() {
        let check = |ns, expected: &str| assert_eq!(seconds(ns), expected);
        check(0, "0.000");
        check(1_499_999, "0.001");
        check(1_500_000, "0.002");
        check(61_999_500_000, "62.000");
    }
}
