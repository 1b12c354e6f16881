//! What was waited for.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde_json::{Value, json};
use table::{Cell, Column, Part, Scale, Table, clean, counted, percent};

use super::{Context, labels, limited, note_cut};
use crate::findings::Findings;
use crate::group::By;
use crate::kernel::syscall_label;
use crate::waits::{self, Cause, Detail, Group, Life, Sum, WaitStack};

/// Innermost functions of a program that are shown: those of libraries, and some of its own.
const SHOWN_FUNCTIONS: usize = 5;

pub(super) fn parts(context: &Context<'_>) -> Vec<Part> {
    let life = context.findings.life();
    let scale = Scale::ms_or_s(life.total_ns());
    let mut causes = causes(&life, context.limit);
    causes.title = summary(context, &life);
    note_cut(&mut causes, life.causes.len(), "cause");
    let mut names = lives(context, By::Name, scale);
    names.title = format!("Who waited, in {}", scale.unit());
    let lengths = lengths(context);
    let programs = program_places(context, scale);
    [Some(causes), Some(lengths), Some(names), Some(places(context, scale)), programs]
        .into_iter()
        .flatten()
        .chain([ended(context, scale)])
        .map(Part::from)
        .collect()
}

/// `What the command waited for: 45 tasks ran 12.3 s, waited ...`.
pub(super) fn summary(context: &Context<'_>, life: &Life) -> String {
    let (waiting, unknown) = (life.waiting(), life.unknown());
    let scale = Scale::ms_or_s(life.total_ns());
    let (ran, waited) = (scale.show(life.running.ns), scale.show(waiting.ns));
    let (unit, whose) = (scale.unit(), context.whose());
    let tasks = counted(context.findings.tasks.len() as u64, "task");
    let unknown = percent(unknown.ns, waiting.ns.max(1), 1);
    format!(
        "What {whose} waited for: {tasks} ran {ran} {unit}, waited {waited} {unit}; the cause of {unknown} % is unknown"
    )
}

/// Waits by cause, most time first; what is no waiting comes last.
#[must_use]
pub fn causes(life: &Life, limit: Option<usize>) -> Table {
    let (mut causes, others): (Vec<_>, Vec<_>) =
        life.by_time().into_iter().partition(|(cause, _)| cause.is_waiting());
    causes.extend(others);
    causes_table(life, limited(&causes, limit))
}

fn causes_table(life: &Life, causes: &[(Cause, Sum)]) -> Table {
    let scale = Scale::ms_or_s(life.total_ns());
    let columns = vec![
        Column::number("% of\nwaiting").decimals(1),
        Column::number(scale.unit()).scale(scale).json("ns"),
        Column::number("waits").json("count"),
        Column::number("mean, ms").scale(Scale::Ms),
        Column::number("longest, ms").scale(Scale::Ms).json("longest_ns"),
        Column::name("for").json("cause"),
        Column::json_only("group"),
    ];
    let mut table = Table::new("Causes", columns);
    let waiting = life.waiting().ns;
    for (cause, sum) in causes {
        let share = Cell::Share(sum.ns, waiting);
        table.row([
            if cause.is_waiting() { share } else { Cell::NONE },
            Cell::ns(sum.ns),
            sum.count.into(),
            Cell::ns(sum.ns / sum.count.max(1)),
            Cell::ns(sum.longest_ns),
            cause.name().into(),
            cause.group().name().into(),
        ]);
    }
    table
}

/// How long the waits of each cause took, and the longest's moment and task.
fn lengths(context: &Context<'_>) -> Table {
    let findings = &context.findings;
    let found = waits::lengths(findings.timeline, &findings.classifier, &findings.tasks);
    let mut rows: Vec<_> = found.into_iter().filter(|(cause, _)| cause.is_waiting()).collect();
    rows.sort_by_key(|(_, lengths)| Reverse(lengths.longest.map(|longest| longest.0)));
    let time = |title: &str, key| Column::number(title.to_owned()).scale(Scale::Ms).json(key);
    let columns = vec![
        Column::number("waits").json("count"),
        time("median", "p50_ns"),
        time("90 %", "p90_ns"),
        time("99 %", "p99_ns"),
        time("longest", "longest_ns"),
        time("begins at", "longest_begin_ns"),
        Column::name("in").json("longest_task"),
        Column::name("for").json("cause"),
    ];
    let mut table = Table::new("How long waits took, longest first, in ms", columns);
    for (cause, lengths) in limited(&rows, context.limit) {
        let Some((longest_ns, begin, task)) = lengths.longest else { continue };
        table.row([
            lengths.count.into(),
            Cell::ns(lengths.percentile(50)),
            Cell::ns(lengths.percentile(90)),
            Cell::ns(lengths.percentile(99)),
            Cell::ns(longest_ns),
            Cell::ns(begin.since(findings.timeline.begin)),
            labels::task(findings.task(task)).into(),
            cause.name().into(),
        ]);
    }
    note_cut(&mut table, rows.len(), "cause");
    table
}

/// What command names or processes waited for. Groups of causes have columns where anything waited for them.
fn lives(context: &Context<'_>, by: By, scale: Scale) -> Table {
    let rows = context.findings.lives_by(by);
    let mut all = Life::default();
    rows.iter().for_each(|row| all.merge(&row.life));
    let groups = all.groups();
    let shown: Vec<Group> =
        Group::ALL.into_iter().filter(|group| groups.contains_key(group)).collect();
    let mut columns = vec![
        Column::name("command"),
        Column::json_only("name"),
        Column::json_only("pid"),
        Column::json_only("kernel"),
        Column::number("life").scale(scale),
        Column::number("ran").scale(scale),
        Column::json_only("life"),
    ];
    let group =
        |group: &Group| Column::number(group.name().replace(' ', "\n")).scale(scale).spare();
    columns.extend(shown.iter().map(group));
    let mut table = Table::new("", columns);
    for row in limited(&rows, context.limit) {
        let groups = row.life.groups();
        let waited = shown.iter().map(|group| groups.get(group).map_or(0, |sum| sum.ns));
        let first = [
            labels::key(&row.key).into(),
            row.key.name.as_str().into(),
            row.key.pid.map(|pid| pid.0).into(),
            Cell::Flag(row.key.kernel),
            Cell::ns(row.life.total_ns()),
            Cell::ns(row.life.running.ns),
            Cell::Json(life_json(&row.life)),
        ];
        table.row(first.into_iter().chain(waited.map(|ns| Cell::ns(ns).or_none())));
    }
    note_cut(&mut table, rows.len(), "name");
    table
}

/// Waits for a CPU have no place, and no task to end them; kernel tasks without work do not wait.
fn asleep<T>(rows: &[(T, Sum)], cause: impl Fn(&T) -> Cause) -> impl Iterator<Item = &(T, Sum)> {
    rows.iter().filter(move |(row, _)| {
        let cause = cause(row);
        cause.is_waiting() && cause.group() != Group::Cpu
    })
}

/// Cause, function and holder: which of the locks it was, and the evidence of the cause, are not shown.
type Place = (Cause, String, Option<String>);

fn places(context: &Context<'_>, scale: Scale) -> Table {
    let mut sums: BTreeMap<Place, Sum> = BTreeMap::new();
    for (detail, sum) in asleep(&all_details(&context.findings), |it| it.cause) {
        let place = (detail.cause, detail.function.clone(), holder(detail));
        sums.entry(place).or_default().merge(sum);
    }
    let mut places: Vec<_> = sums.into_iter().collect();
    places.sort_by_key(|(_, sum)| Reverse(sum.ns));
    let shown = limited(&places, context.limit);
    let mut columns = vec![
        Column::number(scale.unit()).scale(scale),
        Column::number("waits"),
        Column::name("for"),
        Column::name("function"),
    ];
    if shown.iter().any(|((.., holder), _)| holder.is_some()) {
        columns.push(Column::name("holder"));
    }
    let n_columns = columns.len();
    let mut table =
        Table::new("Where: the kernel function waited in, and who held the lock", columns);
    for ((cause, function, holder), sum) in shown {
        let cells = [
            Cell::ns(sum.ns),
            sum.count.into(),
            cause.name().into(),
            Some(function.as_str()).filter(|it| !it.is_empty()).into(),
            holder.as_deref().into(),
        ];
        table.row(cells.into_iter().take(n_columns));
    }
    note_cut(&mut table, places.len(), "place");
    table
}

/// Which code of which program waited; `None`: user stacks were not traced.
fn program_places(context: &Context<'_>, scale: Scale) -> Option<Table> {
    let mut sums: BTreeMap<(Cause, String, Vec<&str>), Sum> = BTreeMap::new();
    let stacks: Vec<_> = all_stacks(&context.findings).into_iter().collect();
    for (stack, sum) in asleep(&stacks, |it| it.cause) {
        let innermost = stack.user.iter().rev().take(SHOWN_FUNCTIONS).copied().collect();
        sums.entry((stack.cause, stack.process.clone(), innermost)).or_default().merge(sum);
    }
    if sums.keys().all(|(.., functions)| functions.is_empty()) {
        return None;
    }
    let mut places: Vec<_> = sums.into_iter().collect();
    places.sort_by_key(|(_, sum)| Reverse(sum.ns));
    let columns = vec![
        Column::number(scale.unit()).scale(scale),
        Column::number("waits"),
        Column::name("for"),
        Column::name("command"),
        Column::name("function < its caller ..."),
    ];
    let mut table = Table::new("Where in the program", columns);
    for ((cause, process, functions), sum) in limited(&places, context.limit) {
        let functions = functions.join(" < ");
        table.row([
            Cell::ns(sum.ns),
            sum.count.into(),
            cause.name().into(),
            process.as_str().into(),
            Some(functions.as_str()).filter(|it| !it.is_empty()).into(),
        ]);
    }
    note_cut(&mut table, places.len(), "place");
    Some(table)
}

/// Waits by their stacks, most time first: outermost functions first.
fn stacks(findings: &Findings<'_>, limit: Option<usize>) -> Table {
    let columns = vec![
        Column::json_only("process"),
        Column::json_only("cause"),
        Column::json_only("user"),
        Column::json_only("kernel"),
        Column::json_only("ns"),
        Column::json_only("count"),
        Column::json_only("longest_ns"),
    ];
    let mut table = Table::new("", columns);
    let mut stacks: Vec<_> = all_stacks(findings).into_iter().collect();
    stacks.sort_by_key(|(_, sum)| Reverse(sum.ns));
    let functions = |names: &[&str]| Cell::Json(names.iter().map(|name| clean(name)).collect());
    for (stack, sum) in limited(&stacks, limit) {
        table.row([
            stack.process.as_str().into(),
            stack.cause.name().into(),
            functions(&stack.user),
            functions(&stack.kernel),
            Cell::ns(sum.ns),
            sum.count.into(),
            Cell::ns(sum.longest_ns),
        ]);
    }
    table
}

fn all_stacks<'a>(findings: &Findings<'a>) -> BTreeMap<WaitStack<'a>, Sum> {
    waits::stacks(findings.tables, findings.timeline, &findings.classifier, &findings.tasks)
}

/// `cc1 in openat`.
fn holder(detail: &Detail) -> Option<String> {
    let holder = detail.lock.as_ref()?.holder.as_ref()?;
    Some(match holder.syscall {
        Some(number) => format!("{} in {}", holder.name, syscall_label(number)),
        None => holder.name.clone(),
    })
}

fn ended(context: &Context<'_>, scale: Scale) -> Table {
    let all = all_wakers(&context.findings);
    let shown: Vec<_> = asleep(&all, |it| it.0).cloned().collect();
    let mut table = wakers(limited(&shown, context.limit), scale);
    table.title = "Who ended the waits".to_owned();
    note_cut(&mut table, shown.len(), "line");
    table
}

fn wakers(rows: &[((Cause, Option<String>), Sum)], scale: Scale) -> Table {
    let columns = vec![
        Column::number(scale.unit()).scale(scale).json("ns"),
        Column::number("waits").json("count"),
        Column::name("for").json("cause"),
        Column::name("ended by"),
        Column::json_only("by"),
    ];
    let mut table = Table::new("", columns);
    for ((cause, by), sum) in rows {
        table.row([
            Cell::ns(sum.ns),
            sum.count.into(),
            cause.name().into(),
            by.as_deref().unwrap_or("(not over at the end, or not known)").into(),
            by.as_deref().into(),
        ]);
    }
    table
}

/// Alike waits with their places and locks, most time first.
#[must_use]
pub fn details(findings: &Findings<'_>, limit: Option<usize>) -> Table {
    let columns = vec![
        Column::name("for").json("cause"),
        Column::name("kernel function").json("function"),
        Column::json_only("evidence"),
        Column::name("lock"),
        Column::json_only("lock"),
        Column::name("holder").json("holder"),
        Column::name("in system call").json("holder_syscall"),
        Column::number("time").json("ns"),
        Column::number("waits").json("count"),
        Column::number("longest").json("longest_ns"),
    ];
    let mut table = Table::new("Where, and behind whom", columns);
    for (detail, sum) in limited(&all_details(findings), limit) {
        let lock = detail.lock.as_ref();
        let holder = lock.and_then(|lock| lock.holder.as_ref());
        let address = lock.map(|lock| format!("{:#x}", lock.address));
        table.row([
            detail.cause.name().into(),
            detail.function.as_str().into(),
            labels::evidence(detail.evidence).into(),
            lock.zip(address.as_ref())
                .map(|(lock, at)| format!("{} {at}", labels::lock(lock.kind)))
                .into(),
            address.into(),
            holder.map(|holder| holder.name.as_str()).into(),
            holder.and_then(|holder| holder.syscall).map(syscall_label).into(),
            Cell::ns(sum.ns),
            sum.count.into(),
            Cell::ns(sum.longest_ns),
        ]);
    }
    table
}

fn all_details(findings: &Findings<'_>) -> Vec<(Detail, Sum)> {
    waits::details(findings.timeline, &findings.classifier, &findings.tasks)
}

fn all_wakers(findings: &Findings<'_>) -> Vec<((Cause, Option<String>), Sum)> {
    waits::wakers(findings.timeline, &findings.classifier, &findings.tasks)
}

/// For CSV: a row per process and cause.
pub(super) fn data(context: &Context<'_>) -> Table {
    let columns = ["process", "pid", "group", "cause", "ns", "count", "longest_ns"];
    let mut table = Table::new("", columns.map(Column::csv_only).to_vec());
    for row in limited(&context.findings.lives_by(By::Process), context.limit) {
        let running = ("running", "running", &row.life.running);
        let causes = row.life.causes.iter();
        let causes = causes.map(|(cause, sum)| (cause.group().name(), cause.name(), sum));
        for (group, cause, sum) in std::iter::once(running).chain(causes) {
            table.row([
                row.key.name.as_str().into(),
                row.key.pid.map(|pid| pid.0).into(),
                group.into(),
                cause.into(),
                Cell::ns(sum.ns),
                sum.count.into(),
                Cell::ns(sum.longest_ns),
            ]);
        }
    }
    table
}

pub(super) fn json(context: &Context<'_>) -> Value {
    let Context { findings, limit, .. } = context;
    let wakers = wakers(limited(&all_wakers(findings), *limit), Scale::Ns);
    json!({
        "tasks": findings.tasks.len(),
        "total": life_json(&findings.life()),
        "lengths": lengths(context).json(),
        "names": lives(context, By::Name, Scale::Ns).json(),
        "processes": lives(context, By::Process, Scale::Ns).json(),
        "details": details(findings, *limit).json(),
        "stacks": stacks(findings, *limit).json(),
        "wakers": wakers.json(),
    })
}

/// What tasks' lives are made of: `running_ns` and the causes add up to `life_ns`.
pub(super) fn life_json(life: &Life) -> Value {
    json!({
        "life_ns": life.total_ns(),
        "running_ns": life.running.ns,
        "waiting_ns": life.waiting().ns,
        "unknown_ns": life.unknown().ns,
        "causes": causes_table(life, &life.by_time()).json(),
    })
}
