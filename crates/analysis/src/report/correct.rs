//! `vmscope correct`: run times without what was stolen.

use model::{TimelineState, VcpuId, VmId};
use serde_json::{Value, json};
use table::{Cell, Column, Part, Report, Scale, Table, cleaned, seconds, with_id};

use crate::report::vcpu_time::{VERSION, VcpuTime, stolen_json};
use crate::steal::{Correction, Stolen, VictimTime, Victims, Window, share_bound_ns};

/// Options of `vmscope correct`.
#[derive(Debug, Clone, Copy)]
pub struct CorrectQuery<'a> {
    pub vm: VmId,
    /// The part of the time that is looked at.
    pub window: Window,
    /// Only this process.
    pub process: Option<&'a str>,
    /// Only this thread.
    pub thread: Option<&'a str>,
    /// Only this function.
    pub function: Option<&'a str>,
    /// Only this function with what it calls.
    pub callees: Option<&'a str>,
    /// The run time that was measured in the guest.
    pub measured_ns: Option<u64>,
}

/// What was taken is more than the run time: it was measured at another time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TakenExceedsRun {
    pub stolen_ns: u64,
    pub apparent_ns: u64,
}

/// A corrected run time.
struct Corrected<'a> {
    found: &'a Correction,
    apparent_ns: u64,
    corrected_ns: u64,
    bound_ns: u64,
    /// Taken from it, and possibly before or after what was measured.
    beyond_ns: u64,
}

/// One run time without what was stolen.
///
/// # Errors
/// More was taken than it ran.
pub fn correct(
    source: &VcpuTime<'_>,
    query: &CorrectQuery<'_>,
    found: &Correction,
) -> Result<Report, TakenExceedsRun> {
    let corrected = Corrected::new(source, query, found)?;
    let mut report = report(source, query);
    report.parts.push(sum(source, query, &corrected).into());
    report.parts.extend(unattributed(query, &corrected).map(Part::Text));
    report.parts.extend(beyond(&corrected).map(Part::Text));
    report.data = Some(items(source, &corrected));
    let thieves = source.thieves(&found.thieves, corrected.apparent_ns);
    let reasons = source.reasons(&found.reasons, corrected.apparent_ns);
    report.json["correction"] = json!({
        "process": query.process.map(cleaned),
        "thread": query.thread.map(cleaned),
        "function": query.function.map(cleaned),
        "callees": query.callees.map(cleaned),
        "apparent_ns": corrected.apparent_ns,
        "apparent_given": query.measured_ns.is_some(),
        "corrected_ns": corrected.corrected_ns,
        "bound_ns": corrected.bound_ns,
        "beyond_ns": corrected.beyond_ns,
        "samples": found.time.samples,
        "stolen": stolen_json(&found.time.stolen),
        "thieves": thieves.json(),
        "reasons": reasons.json(),
        "unattributed": stolen_json(&found.unattributed),
    });
    Ok(report)
}

/// The run time of each process of the VM, most apparent time first.
#[must_use]
pub fn correct_all(source: &VcpuTime<'_>, query: &CorrectQuery<'_>, victims: &Victims) -> Report {
    let mut report = report(source, query);
    let table = processes(source, victims);
    report.json["processes"] = table.json();
    report.parts.push(table.into());
    report
}

fn report(source: &VcpuTime<'_>, query: &CorrectQuery<'_>) -> Report {
    let vm = &source.vm(query.vm).name;
    let start = source.evidence.header.start;
    let [from_ns, to_ns] = [query.window.from, query.window.to].map(|at| at.since(start));
    let mut of = Vec::new();
    of.extend(query.function.map(|name| format!("function {name}")));
    of.extend(query.callees.map(|name| format!("function {name} with what it calls")));
    of.extend(query.thread.map(|name| format!("thread {name}")));
    of.extend(query.process.map(|name| format!("process {name}")));
    of.push(format!("VM {vm}"));
    let (from, to) = (seconds(from_ns, 3), seconds(to_ns, 3));
    let paused_ns = paused_ns(source, query);
    let mut report = source.report();
    report.fact("Of", format!("{}, from {from} s to {to} s", of.join(" of ")));
    if 0 < paused_ns {
        report.fact("Paused", format!("{} s of its vCPUs' time, left out", seconds(paused_ns, 3)));
    }
    report.json = json!({
        "version": VERSION,
        "recording": source.recording(),
        "vm": cleaned(vm),
        "from_ns": from_ns,
        "to_ns": to_ns,
        "paused_ns": paused_ns,
        "correction": Value::Null,
        "processes": [],
    });
    report
}

/// How long the VM's vCPUs were paused, which is in none of the times.
fn paused_ns(source: &VcpuTime<'_>, query: &CorrectQuery<'_>) -> u64 {
    let evidence = &source.evidence;
    let of_vm = |vcpu: VcpuId| evidence.tables.vcpus.get(vcpu.index()).map(|row| row.vm);
    let timelines = evidence.axis.timelines.iter();
    let segments =
        timelines.filter(|line| of_vm(line.vcpu) == Some(query.vm)).flat_map(|line| &line.segments);
    let paused = segments.filter(|segment| segment.state == TimelineState::Paused);
    paused.filter_map(|segment| query.window.clip(segment)).map(|cut| cut.length_ns()).sum()
}

impl<'a> Corrected<'a> {
    fn new(
        source: &VcpuTime<'_>,
        query: &CorrectQuery<'_>,
        found: &'a Correction,
    ) -> Result<Self, TakenExceedsRun> {
        let stolen_ns = found.time.stolen.total_ns();
        let (apparent_ns, bound_ns) = match query.measured_ns {
            Some(ns) => (ns, rounded(found.bound_ns)),
            None => (found.time.apparent_ns(), bound_ns(source, &found.time, found.all_samples)),
        };
        let Some(corrected_ns) = apparent_ns.checked_sub(stolen_ns) else {
            return Err(TakenExceedsRun { stolen_ns, apparent_ns });
        };
        // What the axis shows of it in the window may be more than was measured.
        let beyond_ns = found.time.apparent_ns().saturating_sub(apparent_ns).min(stolen_ns);
        Ok(Self { found, apparent_ns, corrected_ns, bound_ns, beyond_ns })
    }
}

/// A run time seen on the axis is a share of the VM's samples.
fn bound_ns(source: &VcpuTime<'_>, time: &VictimTime, all_samples: u64) -> u64 {
    rounded(share_bound_ns(source.evidence.header.period_ns, time.samples, all_samples))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn rounded(ns: f64) -> u64 {
    // Not negative, and `as` saturates.
    ns.round() as u64
}

fn s(ns: u64) -> String {
    seconds(ns, 6)
}

/// The run time as a sum.
fn sum(source: &VcpuTime<'_>, query: &CorrectQuery<'_>, corrected: &Corrected<'_>) -> Table {
    let (found, stolen) = (corrected.found, &corrected.found.time.stolen);
    let columns = vec![Column::name(""), Column::number("s").decimals(6), Column::name("")];
    let mut table = Table::new("", columns);
    let mut line = |what: &str, ns: u64, note: String| {
        table.row([what.into(), in_seconds(ns), note.into()]);
    };
    let given = query.measured_ns.map_or("seen on the time axis", |_| "as measured");
    line("  Apparent", corrected.apparent_ns, given.to_owned());
    line("- Steal type 1, outside", stolen.outside_ns, String::new());
    for (name, ns) in thieves(source, found) {
        line(&format!("      {name}"), ns, String::new());
    }
    line("- Steal type 2, in the VMM", stolen.vmm_ns, String::new());
    for (name, ns) in reasons(source, found) {
        line(&format!("      {name}"), ns, String::new());
    }
    line("- Throttled", stolen.throttled_ns, String::new());
    let bound = format!("± {} s (95 %, {} samples)", s(corrected.bound_ns), found.time.samples);
    line("= Corrected", corrected.corrected_ns, bound);
    table
}

/// What the window holds besides the run, when that is more than the bound.
fn beyond(corrected: &Corrected<'_>) -> Option<String> {
    let seemed = corrected.found.time.apparent_ns();
    (corrected.bound_ns < corrected.beyond_ns).then(|| {
        format!(
            "Between --from and --to it seemed to run for {} s, longer than measured:\n\
             up to {} s may have been taken from it before or after. The corrected time\n\
             would be longer by that: better let --from and --to hold no more than the run.",
            s(seemed),
            s(corrected.beyond_ns)
        )
    })
}

/// What the bound does not hold, and what to do when that is much.
fn unattributed(query: &CorrectQuery<'_>, corrected: &Corrected<'_>) -> Option<String> {
    let maybe = &corrected.found.unattributed;
    if maybe.total_ns() == 0 {
        return None;
    }
    let [all, outside, vmm, throttled] =
        [maybe.total_ns(), maybe.outside_ns, maybe.vmm_ns, maybe.throttled_ns].map(s);
    let mut out = format!(
        "Up to {all} s more may have been taken from it (type 1 {outside},\n\
         type 2 {vmm}, throttled {throttled}): the samples before and after do\n\
         not agree on whose time that was."
    );
    out += match query.measured_ns {
        Some(_) => " The corrected time would be shorter by that.\n",
        None => " The apparent time would be longer by that,\nthe corrected time is the same.\n",
    };
    if query.measured_ns.is_some() && corrected.bound_ns < maybe.total_ns() {
        out += match (query.function, query.thread) {
            (Some(_), _) => {
                "This exceeds ±: correct the whole process instead, without --function."
            }
            (None, Some(_)) => {
                "This exceeds ±: correct the whole process instead, without --thread."
            }
            (None, None) => {
                "That is more than ±: better measure and correct the whole VM, without --process;\n\
                 or record with a shorter --period."
            }
        };
    }
    Some(out)
}

/// The same numbers as a table of items.
fn items(source: &VcpuTime<'_>, corrected: &Corrected<'_>) -> Table {
    let found = corrected.found;
    let seconds = Column::csv_only("seconds").decimals(6);
    let columns = vec![Column::csv_only("item"), Column::csv_only("cause"), seconds];
    let mut table = Table::new("", columns);
    let mut line =
        |item: &str, cause: Cell, ns: u64| table.row([item.into(), cause, in_seconds(ns)]);
    line("apparent", Cell::NONE, corrected.apparent_ns);
    for (name, ns) in thieves(source, found) {
        line("steal_outside", name.into(), ns);
    }
    for (name, ns) in reasons(source, found) {
        line("steal_vmm", name.into(), ns);
    }
    line("throttled", Cell::NONE, found.time.stolen.throttled_ns);
    line("corrected", Cell::NONE, corrected.corrected_ns);
    line("bound", Cell::NONE, corrected.bound_ns);
    line("beyond", Cell::NONE, corrected.beyond_ns);
    line("unattributed_outside", Cell::NONE, found.unattributed.outside_ns);
    line("unattributed_vmm", Cell::NONE, found.unattributed.vmm_ns);
    line("unattributed_throttled", Cell::NONE, found.unattributed.throttled_ns);
    table
}

/// Each process of the VM. Text has milliseconds, CSV and JSON have all digits.
fn processes(source: &VcpuTime<'_>, victims: &Victims) -> Table {
    let time = |title: &str, csv, json| {
        let shown = Column::number(title).scale(Scale::S).json(json);
        [shown, Column::csv_only(csv).decimals(6)]
    };
    let mut columns = vec![Column::json_only("process"), Column::json_only("pid")];
    columns.extend(time("apparent", "apparent_s", "apparent_ns"));
    columns.extend(time("corrected", "corrected_s", "corrected_ns"));
    columns.extend(time("±", "bound_s", "bound_ns"));
    columns.push(Column::json_only("samples"));
    columns.extend(time("steal\ntype 1", "steal_outside_s", "stolen.outside_ns"));
    columns.extend(time("steal\ntype 2", "steal_vmm_s", "stolen.vmm_ns"));
    columns.extend(time("throttled", "throttled_s", "stolen.throttled_ns"));
    columns
        .extend([Column::number("samples").csv("samples"), Column::name("Process").csv("process")]);
    let mut table = Table::new("Run times of its processes, in s", columns);
    let twice = |ns: u64| [Cell::ns(ns), in_seconds(ns)];
    let taken =
        |it: &Stolen| [it.outside_ns, it.vmm_ns, it.throttled_ns].into_iter().flat_map(twice);
    for (victim, time) in &victims.rows {
        let bound_ns = bound_ns(source, time, victims.samples);
        let times = [time.apparent_ns(), time.run_ns(), bound_ns].into_iter().flat_map(twice);
        let samples = Cell::from(time.samples);
        let who = [victim.process.as_str().into(), victim.pid.into()].into_iter().chain(times);
        let name = with_id(&victim.process, victim.pid).into();
        let taken = taken(&time.stolen);
        table.row(who.chain([samples.clone()]).chain(taken).chain([samples, name]));
    }
    let blank = std::iter::repeat_n(Cell::NONE, 9);
    let taken = taken(&victims.unattributed);
    table.rest.push(blank.chain(taken).chain([Cell::NONE, "(unattributed)".into()]).collect());
    if 0 < victims.unattributed.total_ns() {
        let note = "(unattributed): different processes before and after. --process NAME says how\n\
                    much of it may have been taken from that one.";
        table.notes.push(note.to_owned());
    }
    table
}

fn in_seconds(ns: u64) -> Cell {
    Cell::Real(ns as f64 / 1e9)
}

/// Most time first.
fn thieves(source: &VcpuTime<'_>, found: &Correction) -> Vec<(String, u64)> {
    let rows = found.thieves.iter();
    ranked(rows.map(|(thief, ns)| (source.names.name(*thief), *ns)).collect())
}

/// Most time first.
fn reasons(source: &VcpuTime<'_>, found: &Correction) -> Vec<(String, u64)> {
    let rows = found.reasons.iter();
    ranked(rows.map(|(reason, time)| (source.reason(*reason), time.total_ns())).collect())
}

fn ranked(mut rows: Vec<(String, u64)>) -> Vec<(String, u64)> {
    rows.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
    rows
}
