//! What stands above every view: the trace, its machine, its command, and how complete the data is.

use model::{LostEvents, Machine, MachineId, Note, TraceFilter};
use serde_json::{Map, Value, json};
use table::{Keep, Report, clean, counted, cut, grouped, length, seconds};

use super::{Context, JSON_VERSION, data_quality};
use crate::critical_path::Scope;
use crate::findings::Selection;

/// Characters of the command's words at most.
const COMMAND_CHARS: usize = 60;

/// The heading of a report.
pub(super) fn report(context: &Context<'_>) -> Report {
    let mut report = facts(context);
    let shown = match &context.findings.selection {
        Selection::Command => "the command and all that it started".to_owned(),
        Selection::Tree(root) => format!("task {root} and all that it started"),
        Selection::Everyone | Selection::Process(_) => return report,
    };
    report.fact("Shown", format!("{shown} (--all: everyone)"));
    report
}

/// The same without whose tasks are looked at.
pub(super) fn facts(context: &Context<'_>) -> Report {
    let (about, machine) = (context.about, context.machine());
    let mut report = Report::default();
    let (title, name) = match context.findings.timeline.machine {
        MachineId::HOST => ("Host", about.hostname),
        _ => ("VM", machine.name.as_str()),
    };
    report.fact(
        title,
        format!(
            "{name} (Linux {}), {}; traced {}, {} events",
            machine.kernel,
            counted(machine.cpus.len() as u64, "CPU"),
            length(context.wall_ns()),
            grouped(about.n_events)
        ),
    );
    if let Some(range) = about.range {
        let [from, to] = range.map(|at| seconds(at.since(about.begin), 3));
        let text = format!("{from} s to {to} s of the trace; times in tables count from {from} s");
        report.fact("Range", text);
    }
    if let Some(text) = command_line(context) {
        report.fact("Command", text);
    }
    let others: Vec<&str> =
        traced(context).map(|row| row.name.as_str()).filter(|name| *name != machine.name).collect();
    if !others.is_empty() {
        report.fact("Also traced", format!("{} (--machine NAME)", others.join(", ")));
    }
    let filters: Vec<_> = filters(context).map(ToString::to_string).collect();
    if !filters.is_empty() {
        let filters = filters.join(" ");
        report.fact("Filter", format!("{filters}: machine-wide figures lack what it left out"));
    }
    data_quality::facts(context, &mut report);
    report
}

/// The filters that left out events of this machine. If VMs were traced, those that name VMs belong to the host, the
/// others to the VMs.
pub(super) fn filters<'a>(context: &'a Context<'_>) -> impl Iterator<Item = &'a TraceFilter> {
    let filters = context.about.filters.iter();
    let is_vm = |filter: &TraceFilter| matches!(filter, TraceFilter::Vm(_));
    let any_vm = filters.clone().any(is_vm);
    let of_vms = context.findings.timeline.machine == MachineId::HOST && any_vm;
    filters.filter(move |filter| is_vm(filter) == of_vms)
}

fn traced<'a>(context: &'a Context<'_>) -> impl Iterator<Item = &'a Machine> {
    context.findings.tables.machines.iter().filter(|row| !row.cpus.is_empty())
}

/// The command's life, where it ran on this machine.
fn command(context: &Context<'_>) -> Option<Scope> {
    Scope::command(context.findings.tables, context.findings.timeline)
}

/// What was run, how it ended, how long it took: or where, when that was another machine.
fn command_line(context: &Context<'_>) -> Option<String> {
    let tables = context.findings.tables;
    let ran = tables.command.as_ref()?;
    let words = ran.words.join(" ").replace(['\n', '\r', '\t'], " ");
    let words = cut(&clean(&words), COMMAND_CHARS, Keep::Start);
    let Some(scope) = command(context) else {
        let machine = tables.machines.get(ran.machine.index());
        let machine = machine.map_or("another machine", |row| row.name.as_str());
        return Some(format!("{words}, on {machine}"));
    };
    let ended = match ran.exit_code {
        Some(code) => format!("exit code {code}"),
        None => "did not end by itself".to_owned(),
    };
    let took = length(scope.end.since(scope.begin));
    Some(format!("{words} (pid {}), {ended}, {took}", ran.task))
}

/// The heading as JSON.
pub(super) fn object(context: &Context<'_>) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("version".into(), JSON_VERSION.into());
    object.insert("trace".into(), trace(context));
    object.insert("machine".into(), machine(context));
    object.extend(command_json(context).map(|command| ("command".to_owned(), command)));
    object
}

fn trace(context: &Context<'_>) -> Value {
    let about = context.about;
    let note = |note: &Note| clean(&format!("{}: {}", note.subject, note.text)).into_owned();
    let filter = |filter: &TraceFilter| clean(&filter.to_string()).into_owned();
    let counter = |(name, n): (&String, &u64)| (clean(name).into_owned(), Value::from(*n));
    json!({
        "vmscope_version": clean(about.vmscope_version),
        "hostname": clean(about.hostname),
        "begin_unix_ns": about.begin_unix_ns,
        "duration_ns": about.end.since(about.begin),
        "range_ns": about.range.map(|range| range.map(|at| at.since(about.begin))),
        "complete": about.complete,
        "filters": about.filters.iter().map(filter).collect::<Vec<_>>(),
        "machines": traced(context).map(|row| clean(&row.name)).collect::<Vec<_>>(),
        "counters": Map::from_iter(about.counters.iter().map(counter)),
        "notes": about.notes.iter().map(note).collect::<Vec<_>>(),
    })
}

fn machine(context: &Context<'_>) -> Value {
    let row = context.machine();
    let lost =
        |it: &LostEvents| json!({ "cpu": it.cpu, "kind": it.kind_name(), "count": it.count });
    let missing = |(probe, reason): &(String, String)| json!({ "probe": clean(probe), "reason": clean(reason) });
    json!({
        "name": clean(&row.name),
        "kernel": clean(&row.kernel),
        "cpus": row.cpus,
        "path": clean(&row.path),
        "wall_ns": context.wall_ns(),
        "events": context.about.n_events,
        "lost": row.lost.iter().map(lost).collect::<Value>(),
        "missing": row.missing.iter().map(missing).collect::<Value>(),
        "doubtful": data_quality::problems(context),
        "fault_estimate_ns": row.fault_estimate_ns,
        "clock_error_ns": row.clock_error_ns,
        "ended_early": row.ended_early.as_deref().map(clean),
    })
}

fn command_json(context: &Context<'_>) -> Option<Value> {
    let (scope, ran) = (command(context)?, context.findings.tables.command.as_ref()?);
    Some(json!({
        "words": ran.words.iter().map(|word| clean(word)).collect::<Vec<_>>(),
        "pid": ran.task.0,
        "exit_code": ran.exit_code,
        "wall_ns": scope.end.since(scope.begin),
    }))
}
