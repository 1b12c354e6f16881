//! `vmscope correct` as text and as CSV.

use analysis::steal::Victims;
use analysis::{Width, clean};

use super::super::grid::Grid;
use super::super::scene::{seconds, with_id};
use super::{Answer, Corrected, Findings, rounded, run_bound_ns};

/// Of the table of processes, in text and in CSV.
const TITLES: &[&str] = &[
    ">apparent",
    ">corrected",
    ">±",
    ">steal\ntype 1",
    ">steal\ntype 2",
    ">throttled",
    ">samples",
    "Process",
];
const COLUMNS: &[&str] = &[
    "apparent_s",
    "corrected_s",
    "bound_s",
    "steal_outside_s",
    "steal_vmm_s",
    "throttled_s",
    "samples",
    "process",
];

pub(super) fn text(findings: &Findings<'_>, width: Width) -> String {
    let mut out = findings.scene.heading();
    let start = findings.scene.recording.header.start;
    let [from, to] =
        [findings.window.from, findings.window.to].map(|at| seconds(at.since(start), 3));
    out += &format!("Of: {}, from {from} s to {to} s\n\n", clean(&target(findings)));
    out + &match &findings.answer {
        Answer::One(corrected) => one(findings, corrected, width),
        Answer::Processes(victims) => listed(findings, victims, width),
    }
}

pub(super) fn csv(findings: &Findings<'_>) -> String {
    match &findings.answer {
        Answer::One(corrected) => items(findings, corrected),
        Answer::Processes(victims) => processes(findings, victims, COLUMNS, s).csv(),
    }
}

/// `function f of process p of VM v`.
fn target(findings: &Findings<'_>) -> String {
    let mut parts = Vec::new();
    parts.extend(findings.args.function.as_ref().map(|name| format!("function {name}")));
    parts.extend(findings.args.process.as_ref().map(|name| format!("process {name}")));
    parts.push(format!("VM {}", findings.scene.vm_row(findings.vm).name));
    parts.join(" of ")
}

fn one(findings: &Findings<'_>, corrected: &Corrected, width: Width) -> String {
    let stolen = &corrected.found.time.stolen;
    let mut grid = Grid::new(&["", ">s", ""]);
    let mut line = |what: &str, ns: u64, note: String| grid.row([what.to_owned(), s(ns), note]);
    let given = findings.args.apparent.map_or("seen on the time axis", |_| "as measured");
    line("  Apparent", corrected.apparent_ns, given.to_owned());
    line("- Steal type 1, outside", stolen.outside_ns, String::new());
    for (name, ns) in thieves(findings, corrected) {
        line(&format!("      {name}"), ns, String::new());
    }
    line("- Steal type 2, in the VMM", stolen.vmm_ns, String::new());
    for (name, ns) in reasons(findings, corrected) {
        line(&format!("      {name}"), ns, String::new());
    }
    line("- Throttled", stolen.throttled_ns, String::new());
    let samples = corrected.found.time.samples;
    let bound = format!("± {} s (95 %, {samples} samples)", s(corrected.bound_ns));
    line("= Corrected", corrected.corrected_ns, bound);
    grid.text(width) + &unattributed(findings, corrected) + &beyond(corrected)
}

/// What the window holds besides the run, when that is more than the bound.
fn beyond(corrected: &Corrected) -> String {
    if corrected.beyond_ns <= corrected.bound_ns {
        return String::new();
    }
    format!(
        "\nBetween --from and --to it seemed to run for {} s, longer than measured:\n\
         up to {} s may have been taken from it before or after. The corrected time\n\
         would be longer by that: better let --from and --to hold no more than the run.\n",
        s(corrected.found.time.apparent_ns()),
        s(corrected.beyond_ns)
    )
}

/// What the bound does not hold, and what to do when that is much.
fn unattributed(findings: &Findings<'_>, corrected: &Corrected) -> String {
    let maybe = &corrected.found.unattributed;
    if maybe.total_ns() == 0 {
        return String::new();
    }
    let mut out = format!(
        "\nUp to {} s more may have been taken from it (type 1 {},\n\
         type 2 {}, throttled {}): the samples before and after do\n\
         not agree on whose time that was.",
        s(maybe.total_ns()),
        s(maybe.outside_ns),
        s(maybe.vmm_ns),
        s(maybe.throttled_ns)
    );
    out += match findings.args.apparent {
        Some(_) => " The corrected time would be shorter by that.\n",
        None => " The apparent time would be longer by that,\nthe corrected time is the same.\n",
    };
    if findings.args.apparent.is_some() && corrected.bound_ns < maybe.total_ns() {
        out += match findings.args.function {
            Some(_) => "That is more than ±: better correct its process, without --function.\n",
            None => {
                "That is more than ±: better measure and correct the whole VM, without --process;\n\
                 or record with a shorter --period.\n"
            }
        };
    }
    out
}

/// The same numbers as a table of items.
fn items(findings: &Findings<'_>, corrected: &Corrected) -> String {
    let stolen = &corrected.found.time.stolen;
    let maybe = &corrected.found.unattributed;
    let mut grid = Grid::new(&["item", "cause", "seconds"]);
    let mut line = |item: &str, cause: String, ns: u64| grid.row([item.to_owned(), cause, s(ns)]);
    line("apparent", String::new(), corrected.apparent_ns);
    for (name, ns) in thieves(findings, corrected) {
        line("steal_outside", name, ns);
    }
    for (name, ns) in reasons(findings, corrected) {
        line("steal_vmm", name, ns);
    }
    line("throttled", String::new(), stolen.throttled_ns);
    line("corrected", String::new(), corrected.corrected_ns);
    line("bound", String::new(), corrected.bound_ns);
    line("beyond", String::new(), corrected.beyond_ns);
    line("unattributed_outside", String::new(), maybe.outside_ns);
    line("unattributed_vmm", String::new(), maybe.vmm_ns);
    line("unattributed_throttled", String::new(), maybe.throttled_ns);
    grid.csv()
}

/// Each process of the VM; CSV and JSON have all digits.
fn listed(findings: &Findings<'_>, victims: &Victims, width: Width) -> String {
    let table = processes(findings, victims, TITLES, |ns| seconds(ns, 3)).text(width);
    let mut out = format!("Run times of its processes, in s\n{table}");
    if 0 < victims.unattributed.total_ns() {
        out += "(unattributed): not the same process before and after. --process NAME says how\n\
                much of it may have been taken from that one.\n";
    }
    out
}

fn processes(
    findings: &Findings<'_>,
    victims: &Victims,
    titles: &[&str],
    shown: impl Fn(u64) -> String,
) -> Grid {
    let mut grid = Grid::new(titles);
    let period_ns = findings.scene.recording.header.period_ns;
    for (victim, time) in &victims.rows {
        let bound = rounded(run_bound_ns(period_ns, time, victims.samples));
        let stolen = &time.stolen;
        let times = [
            time.apparent_ns(),
            time.run_ns(),
            bound,
            stolen.outside_ns,
            stolen.vmm_ns,
            stolen.throttled_ns,
        ];
        let who = [time.samples.to_string(), with_id(&victim.process, victim.pid)];
        grid.row(times.map(&shown).into_iter().chain(who));
    }
    let stolen = &victims.unattributed;
    let nobody = [stolen.outside_ns, stolen.vmm_ns, stolen.throttled_ns].map(shown);
    let dash = || "-".to_owned();
    let ends = [dash(), "(unattributed)".to_owned()];
    grid.row([dash(), dash(), dash()].into_iter().chain(nobody).chain(ends));
    grid
}

/// Most time first.
fn thieves(findings: &Findings<'_>, corrected: &Corrected) -> Vec<(String, u64)> {
    let names = findings.scene.thief_names();
    let rows = corrected.found.thieves.iter();
    ranked(rows.map(|(thief, ns)| (names.name(*thief), *ns)).collect())
}

/// Most time first.
fn reasons(findings: &Findings<'_>, corrected: &Corrected) -> Vec<(String, u64)> {
    let rows = corrected.found.reasons.iter();
    let named = rows.map(|(reason, time)| (findings.scene.reason(*reason), time.total_ns()));
    ranked(named.collect())
}

fn ranked(mut rows: Vec<(String, u64)>) -> Vec<(String, u64)> {
    rows.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
    rows
}

fn s(ns: u64) -> String {
    seconds(ns, 6)
}
