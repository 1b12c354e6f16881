//! The page's head: what was traced and missed.

use table::{Cell, Column, Table};

use model::{HostNs, Machine, TraceTables};

use super::super::Run;
use super::super::names::{Names, bounded, short};

/// Notes of one kind and machine at most.
const NOTES: usize = 30;
/// Characters of a note or a command at most.
const LONG: usize = 300;

pub(super) fn title(runs: &[Run<'_>]) -> String {
    let labels: Vec<String> = runs.iter().map(|run| short(run.label)).collect();
    format!("vmscope trace: {}", labels.join(" and "))
}

/// A line per machine of each run.
pub(super) fn facts(runs: &[Run<'_>]) -> Table {
    let mut table = Table::new(
        "",
        vec![
            Column::name("Trace"),
            Column::name("Machine"),
            Column::name("Kernel"),
            Column::name("Command"),
            Column::number("Length"),
            Column::number("CPUs"),
            Column::number("Disks"),
            Column::number("Tasks"),
            Column::name("Events taken"),
        ],
    );
    for run in runs {
        for timeline in run.timelines {
            let names = Names { tables: run.tables, timeline };
            let machine = names.machine();
            table.row([
                short(run.label).into(),
                names.machine_name().into(),
                machine.map(|machine| short(&machine.kernel)).into(),
                command(run.tables, timeline.machine).into(),
                Cell::ns(timeline.end.since(timeline.begin)),
                Cell::count(timeline.cpus.len() as u64),
                Cell::count(timeline.disks.len() as u64),
                Cell::count(timeline.tasks.len() as u64),
                machine.map(taken).into(),
            ]);
        }
    }
    table
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

/// What was missed or is doubtful.
pub(super) fn notes(runs: &[Run<'_>]) -> Vec<String> {
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
    notes
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
    let lost = lost
        .map(|lost| format!("{} {} events lost on cpu {}", lost.count, lost.kind_name(), lost.cpu));
    let missing = machine.missing.iter().take(NOTES);
    let missing = missing.map(|(probe, why)| format!("no probe {probe}: {why}"));
    let ended = machine.ended_early.iter().map(|why| format!("its trace ended early: {why}"));
    lost.chain(missing).chain(ended).map(|note| bounded(&note, LONG)).collect()
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
}
