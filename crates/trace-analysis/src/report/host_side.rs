//! A VM's time as its host saw it. Nothing where the host was not traced.

use serde_json::{Value, json};
use table::{Cell, Column, Part, Scale, Table, clean, percent};

use super::{Context, labels, limited, note_cut};
use crate::critical_path::CriticalPath;
use crate::findings::{OnHost, Path};
use crate::group::By;
use crate::host_side::{CpuSide, Share, Thief};

/// Thieves in a line of text.
const THIEVES: usize = 4;

/// `VM b 50.1 %, [kworker/0:1] 1.2 %` of the time stolen.
fn thieves_line(host: &OnHost<'_>, share: &Share) -> String {
    let stolen_ns = share.stolen_ns();
    let shown = host.thieves.sums(share).into_iter();
    let shown = shown.filter(|(_, ns)| stolen_ns < ns.saturating_mul(2000)).take(THIEVES);
    let shown = shown.map(|(thief, ns)| format!("{thief} {} %", percent(ns, stolen_ns, 1)));
    shown.collect::<Vec<_>>().join(", ")
}

/// What guest CPUs were by what their threads did, and who stole.
pub(super) fn overview(context: &Context<'_>) -> Option<Table> {
    let host = context.findings.host.as_ref()?;
    Some(cpus(context, host, &[]))
}

/// The same for each CPU, and for command names.
pub(super) fn kernel(context: &Context<'_>) -> Vec<Part> {
    let Some(host) = &context.findings.host else { return Vec::new() };
    let each = if let [_, _, ..] = host.side.cpus[..] { &host.side.cpus[..] } else { &[] };
    vec![cpus(context, host, each).into(), tasks(context, host, By::Name, "command").into()]
}

/// The same for each process.
pub(super) fn processes(context: &Context<'_>) -> Option<Table> {
    let host = context.findings.host.as_ref()?;
    let mut table = tasks(context, host, By::Process, "process");
    table.notes.extend(clock_warning(context));
    Some(table)
}

fn cpus(context: &Context<'_>, host: &OnHost<'_>, each: &[CpuSide]) -> Table {
    let total = host.side.total();
    let scale = Scale::ms_or_s(total.total().total_ns());
    let title = format!("The host's side of the guest's CPUs, in {}", scale.unit());
    let time = |title: &str| Column::number(title).scale(scale);
    let columns = vec![
        Column::name("guest's CPU"),
        Column::number("%").decimals(1),
        time("all"),
        time("thread\nruns"),
        time("stolen"),
        time("asleep"),
        time("unknown"),
        Column::name("asleep is"),
    ];
    let mut table = Table::new(title, columns);
    for cpu in each {
        cpu_rows(&mut table, &format!("CPU {} ", cpu.number), cpu);
    }
    cpu_rows(&mut table, "", &total);
    let all = total.total();
    table.notes.push(match thieves_line(host, &all) {
        line if line.is_empty() && all.total_ns() / 2 < all.unknown_ns => {
            "The host has no events of most of this time".to_owned()
        }
        line if line.is_empty() => "Nothing was stolen".to_owned(),
        line => format!("Stolen by: {line}"),
    });
    table.notes.extend(clock_warning(context));
    table
}

fn cpu_rows(table: &mut Table, before: &str, cpu: &CpuSide) {
    let all_ns = cpu.total().total_ns();
    let rows = [
        ("busy", &cpu.busy, "in the VMM"),
        ("idle", &cpu.idle, "halted"),
        ("unknown", &cpu.unknown, "-"),
    ];
    for (name, share, asleep) in rows {
        // Mostly there is nothing unknown.
        if name == "unknown" && share.total_ns() == 0 {
            continue;
        }
        let cells = [format!("{before}{name}").into(), Cell::Share(share.total_ns(), all_ns)];
        let ns = [share.total_ns()].into_iter().chain(numbers(share)).map(Cell::ns);
        table.row(cells.into_iter().chain(ns).chain([asleep.into()]));
    }
}

fn tasks(context: &Context<'_>, host: &OnHost<'_>, by: By, title: &str) -> Table {
    let findings = &context.findings;
    let rows = host.side.rows(findings.timeline, by, &findings.tasks);
    let scale = Scale::ms_or_s(host.side.total().total().total_ns());
    let time = |title: &str| Column::number(title).scale(scale);
    let columns = vec![
        Column::name(title),
        Column::json_only("name"),
        Column::json_only("pid"),
        Column::json_only("time"),
        time("had a\nguest CPU"),
        time("ran"),
        time("stolen"),
        Column::number("%").decimals(1),
        time("asleep\nin VMM"),
        time("unknown"),
        Column::name("stolen by"),
    ];
    let heading = format!(
        "Of the time that they had a guest CPU, from the host's side: {}, in {}",
        context.whose(),
        scale.unit()
    );
    let mut table = Table::new(heading, columns);
    for row in limited(&rows, context.limit) {
        let share = &row.share;
        let first = host.thieves.sums(share).into_iter().next();
        table.row([
            labels::key(&row.key).into(),
            row.key.name.as_str().into(),
            row.key.pid.map(|pid| pid.0).into(),
            Cell::Json(self::share(host, share)),
            Cell::ns(share.total_ns()),
            Cell::ns(share.running_ns),
            Cell::ns(share.stolen_ns()),
            Cell::Share(share.stolen_ns(), share.total_ns()),
            Cell::ns(share.asleep_ns),
            Cell::ns(share.unknown_ns),
            first.map(|(thief, _)| thief.to_string()).into(),
        ]);
    }
    note_cut(&mut table, rows.len(), title);
    table
}

/// What was stolen of the path: a part of its running and CPU waits.
pub(super) fn path(context: &Context<'_>, found: &Path) -> Option<String> {
    let host = context.findings.host.as_ref()?;
    let wall_ns = found.summary.wall_ns;
    let side = host.side.path(&found.path);
    let (ran, waited) = (&side.running, &side.waiting);
    let scale = Scale::ms_or_s(wall_ns);
    let show = |ns| scale.with_unit(ns);
    let mut both = ran.clone();
    both.merge(waited);
    let mut text = format!(
        "Stolen by the host's others: {} ({} %) of it: {} of the {} with a guest CPU",
        show(both.stolen_ns()),
        percent(both.stolen_ns(), wall_ns, 1),
        show(ran.stolen_ns()),
        show(ran.total_ns()),
    );
    if 0 < waited.total_ns() {
        let (stolen, all) = (show(waited.stolen_ns()), show(waited.total_ns()));
        text += &format!(", {stolen} of the {all} of waits for one");
    }
    if 0 < both.stolen_ns() {
        let at_best = show(wall_ns.saturating_sub(both.stolen_ns()));
        let by = thieves_line(host, &both);
        text += &format!("; by {by}; without it at best {at_best}");
    }
    if 0 < ran.asleep_ns {
        text += &format!("; {} asleep in the VMM", show(ran.asleep_ns));
    }
    if 0 < both.unknown_ns {
        text += &format!("; {} unknown, for lack of events of the host", show(both.unknown_ns));
    }
    Some(text)
}

/// The time, split: ran, stolen, asleep in the VMM, unknown.
pub(super) fn numbers(share: &Share) -> [u64; 4] {
    [share.running_ns, share.stolen_ns(), share.asleep_ns, share.unknown_ns]
}

/// Where the clocks are further apart than switches, who was stolen from is not certain.
fn clock_warning(context: &Context<'_>) -> Option<String> {
    /// Schedulers let tasks run for milliseconds.
    const SHORT_NS: u64 = 1_000_000;
    let error = context.machine().clock_error_ns.filter(|error| SHORT_NS < *error)?;
    let ms = Scale::Ms.show(error);
    Some(format!(
        "Doubtful: the guest's times may be {ms} ms off the host's: the total of stolen time is right, \
         but not from whom it was stolen"
    ))
}

/// The host's side as JSON.
pub(super) fn json(context: &Context<'_>) -> Option<Value> {
    let host = context.findings.host.as_ref()?;
    let cpu = |cpu: &CpuSide| {
        json!({
            "cpu": cpu.number,
            "thread": cpu.thread.map(|thread| thread.0),
            "busy": share(host, &cpu.busy),
            "idle": share(host, &cpu.idle),
            "unknown": share(host, &cpu.unknown),
        })
    };
    let total = host.side.total();
    Some(json!({
        "busy": share(host, &total.busy),
        "idle": share(host, &total.idle),
        "unknown": share(host, &total.unknown),
        "cpus": host.side.cpus.iter().map(cpu).collect::<Value>(),
        "names": tasks(context, host, By::Name, "command").json(),
        "processes": tasks(context, host, By::Process, "process").json(),
    }))
}

/// The critical path's part.
pub(super) fn path_json(context: &Context<'_>, path: &CriticalPath) -> Option<Value> {
    let host = context.findings.host.as_ref()?;
    let side = host.side.path(path);
    Some(json!({ "running": share(host, &side.running), "waiting": share(host, &side.waiting) }))
}

/// Guest time by what the host's thread did meanwhile: all but `ns` add up to `ns`.
pub(super) fn share(host: &OnHost<'_>, share: &Share) -> Value {
    let thief = |(by, ns): (Thief, u64)| json!({ "by": clean(&by.to_string()), "ns": ns });
    let [ran_ns, stolen_ns, asleep_ns, unknown_ns] = numbers(share);
    json!({
        "ns": share.total_ns(),
        "ran_ns": ran_ns,
        "stolen_ns": stolen_ns,
        "asleep_ns": asleep_ns,
        "unknown_ns": unknown_ns,
        "stolen_by": host.thieves.sums(share).into_iter().map(thief).collect::<Value>(),
    })
}
