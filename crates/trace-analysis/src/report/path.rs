//! The critical path: what the command's length is made of, and what would make it shorter.

use serde_json::{Value, json};
use table::{Cell, Column, Keep, Part, Scale, Table, clean, cut, length, percent};

use super::{Context, host_side, labels, limited};
use crate::critical_path::{CriticalPath, PathActivity, PathSegment, Summary, Target};
use crate::findings::{Findings, Path};
use crate::timeline::TaskId;

/// Characters of a name in a sentence at most.
const NAME_CHARS: usize = 30;

/// Segments of one task that touch.
#[derive(Debug)]
struct Stretch {
    task: TaskId,
    begin_ns: u64,
    ns: u64,
    most: (String, u64),
}

pub(super) fn parts(context: &Context<'_>, found: &Path) -> Vec<Part> {
    let Path { path, summary } = found;
    let limit = context.limit;
    let task = labels::task(context.findings.task(path.scope.task));
    let n_segments = path.segments.len();
    let mut categories = categories(summary, limit);
    categories.title = "What it is made of".to_owned();
    categories.notes.extend(host_side::path(context, found));
    let worth = improvements(summary, limit);
    let wall = length(summary.wall_ns);
    let mut parts = vec![
        format!("Critical path of {task}: {wall} in {n_segments} segments").into(),
        why(context, summary).into(),
        categories.into(),
        names(summary, limit).into(),
    ];
    if !summary.behind.is_empty() {
        parts.push(behind(summary, limit).into());
    }
    parts.extend([worth.into(), stretches(context, found).into()]);
    parts
}

/// Parts of the path in its first sentence, and tasks outside the command.
const PARTS: usize = 5;

/// Why it took so long: the longest parts of the path, of kernel and disks as a whole, and how much of it lies outside
/// the command.
pub(super) fn why(context: &Context<'_>, summary: &Summary) -> String {
    let mut parts: Vec<(String, u64)> = Vec::new();
    for share in &summary.categories {
        let name = match &share.of {
            of if Target::Kernel.has(of) => "kernel".to_owned(),
            of if Target::Disks.has(of) => "disks".to_owned(),
            of => of.to_string(),
        };
        match parts.iter_mut().find(|(known, _)| *known == name) {
            Some((_, ns)) => *ns += share.ns,
            None => parts.push((name, share.ns)),
        }
    }
    parts.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
    let wall_ns = summary.wall_ns;
    let mut text = format!("Why it took {}: {}", length(wall_ns), largest(&parts, wall_ns));
    if wall_ns / 2000 < summary.outside_ns() {
        let (share, whose) = (percent(summary.outside_ns(), wall_ns, 1), context.whose());
        let names = largest(&summary.outside, wall_ns);
        text += &format!("\nOf this in tasks that are not of {whose}: {share} % ({names})");
    }
    text
}

/// Parts of a time in words, with how much others have.
fn largest(parts: &[(String, u64)], wall_ns: u64) -> String {
    let shown = parts.iter().take(PARTS).take_while(|(_, ns)| wall_ns / 2000 < *ns);
    let n_shown = shown.clone().count();
    let name = |(name, ns): &(String, u64)| {
        format!("{} % {}", percent(*ns, wall_ns, 1), cut(&clean(name), NAME_CHARS, Keep::Start))
    };
    let mut words: Vec<String> = shown.map(name).collect();
    let rest = &parts[n_shown..];
    let rest_ns: u64 = rest.iter().map(|(_, ns)| ns).sum();
    if wall_ns / 2000 < rest_ns {
        words.push(format!("{} % {} other", percent(rest_ns, wall_ns, 1), rest.len()));
    }
    words.join(", ")
}

/// What the path is made of, longest first; what a limit cuts off is one row.
#[must_use]
pub fn categories(summary: &Summary, limit: Option<usize>) -> Table {
    let scale = Scale::ms_or_s(summary.wall_ns);
    let columns = vec![
        Column::number("%").decimals(1).json("share"),
        Column::number(scale.unit()).scale(scale).json("ns"),
        Column::number("segments").json("segments"),
        Column::name("what").json("category"),
    ];
    let mut table = Table::new("Critical path", columns);
    let shown = limited(&summary.categories, limit);
    for share in shown {
        table.row([
            Cell::Share(share.ns, summary.wall_ns),
            Cell::ns(share.ns),
            share.segments.into(),
            share.of.to_string().into(),
        ]);
    }
    let others = &summary.categories[shown.len()..];
    let rest: u64 = others.iter().map(|share| share.ns).sum();
    if 0 < rest {
        let name = format!("({} other)", others.len());
        let share = Cell::Share(rest, summary.wall_ns);
        table.rest.push(vec![share, Cell::ns(rest), Cell::NONE, name.into()]);
    }
    table
}

fn names(summary: &Summary, limit: Option<usize>) -> Table {
    let scale = Scale::ms_or_s(summary.wall_ns);
    let time = |title: &str, key| Column::number(title).scale(scale).json(key);
    let columns = vec![
        Column::number("%").decimals(1),
        time("all", "ns"),
        time("own\ncode", "user_ns"),
        time("kernel", "kernel_ns"),
        time("CPU\nwait", "cpu_wait_ns"),
        time("disk", "disk_ns"),
        time("other", "other_ns"),
        Column::number("processes").json("processes"),
        Column::name("command").json("name"),
    ];
    let mut table = Table::new(format!("Whose time it is, in {}", scale.unit()), columns);
    for share in limited(&summary.names, limit) {
        table.row([
            Cell::Share(share.ns, summary.wall_ns),
            Cell::ns(share.ns),
            Cell::ns(share.user_ns),
            Cell::ns(share.kernel_ns),
            Cell::ns(share.cpu_wait_ns),
            Cell::ns(share.disk_ns),
            Cell::ns(share.other_ns),
            share.processes.into(),
            share.name.as_str().into(),
        ]);
    }
    table
}

/// Adds up to the waits for CPUs.
fn behind(summary: &Summary, limit: Option<usize>) -> Table {
    let scale = Scale::ms_or_s(summary.wall_ns);
    let columns = vec![
        Column::number("%").decimals(1),
        Column::number(scale.unit()).scale(scale),
        Column::name("process"),
    ];
    let mut table = Table::new("Who had the CPUs that it waited for", columns);
    let cells = |ns, name: &str| vec![Cell::Share(ns, summary.wall_ns), Cell::ns(ns), name.into()];
    let shown = limited(&summary.behind, limit);
    for (name, ns) in shown {
        table.row(cells(*ns, name.as_deref().unwrap_or("idle, or not known")));
    }
    let others = &summary.behind[shown.len()..];
    if !others.is_empty() {
        let rest = others.iter().map(|(_, ns)| ns).sum();
        table.rest.push(cells(rest, &format!("({} other)", others.len())));
    }
    table
}

/// How long the command would take without a part, by a replay. Parts that would show as no gain are left out.
#[must_use]
pub fn improvements(summary: &Summary, limit: Option<usize>) -> Table {
    let mut table = all_improvements(summary, limit);
    table.rows.retain(|row| !matches!(row[3], Cell::Real(factor) if factor < 1.005));
    table
}

fn all_improvements(summary: &Summary, limit: Option<usize>) -> Table {
    let scale = Scale::ms_or_s(summary.wall_ns);
    let unit = scale.unit();
    let columns = vec![
        Column::number(format!("on the\npath, {unit}")).scale(scale).json("on_path_ns"),
        Column::number(format!("CPU waits\nfor it, {unit}")).scale(scale).json("cpu_waits_ns"),
        Column::number(format!("without\nit, {unit}")).scale(scale).json("without_ns"),
        Column::number("times\nas fast").json("factor"),
        Column::name("what").json("what"),
    ];
    let mut table = Table::new("What would make it faster (by a replay)", columns);
    let note = "Replayed without the part, wherever it is: all else takes as long as it did, in the same order";
    table.notes.push(note.to_owned());
    for gain in limited(&summary.improvements, limit) {
        table.row([
            Cell::ns(gain.on_path_ns),
            Cell::ns(gain.cpu_waits_ns),
            Cell::ns(gain.without_ns),
            gain.factor().map_or(Cell::NONE, Cell::Real),
            gain.target.to_string().into(),
        ]);
    }
    table
}

/// The longest, in order of time.
fn stretches(context: &Context<'_>, found: &Path) -> Table {
    let mut all = joined(&context.findings, &found.path);
    let n_all = all.len();
    let limit = context.limit.unwrap_or(n_all);
    let mut lengths: Vec<u64> = all.iter().map(|stretch| stretch.ns).collect();
    lengths.sort_unstable_by(|a, b| b.cmp(a));
    let least = lengths.get(limit.saturating_sub(1)).copied().unwrap_or(0);
    let mut room = limit;
    all.retain(|stretch| {
        let keep = least <= stretch.ns && 0 < room;
        room -= usize::from(keep);
        keep
    });
    let (shown, n_cut) = (all.iter().map(|it| it.ns).sum::<u64>(), n_all - all.len());
    let wall_ns = found.summary.wall_ns;
    let scale = Scale::ms_or_s(wall_ns);
    let columns = vec![
        Column::number(format!("from, {}", scale.unit())).scale(scale),
        Column::number(scale.unit()).scale(scale),
        Column::name("task"),
        Column::name("mostly"),
    ];
    let mut table = Table::new("Its longest stretches, in order of time", columns);
    for stretch in all {
        let task = labels::task(context.findings.task(stretch.task));
        let mostly = match percent(stretch.most.1, stretch.ns, 1).as_str() {
            "100.0" => stretch.most.0,
            share => format!("{share} % {}", stretch.most.0),
        };
        table.row([Cell::ns(stretch.begin_ns), Cell::ns(stretch.ns), task.into(), mostly.into()]);
    }
    if 0 < n_cut {
        let name = format!("({n_cut} shorter stretches)");
        table.rest.push(vec![Cell::NONE, Cell::ns(wall_ns - shown), name.into()]);
    }
    table
}

fn joined(findings: &Findings<'_>, path: &CriticalPath) -> Vec<Stretch> {
    let stretch = |segments: &[PathSegment]| {
        let mut parts: Vec<(String, u64)> = Vec::new();
        for (what, ns) in segments.iter().flat_map(parts_of) {
            match parts.iter_mut().find(|(known, _)| *known == what) {
                Some((_, sum)) => *sum += ns,
                None => parts.push((what, ns)),
            }
        }
        Stretch {
            task: segments[0].task,
            begin_ns: segments[0].begin.since(findings.timeline.begin),
            ns: segments.iter().map(PathSegment::length_ns).sum(),
            most: parts.into_iter().max_by_key(|(_, ns)| *ns).unwrap_or_default(),
        }
    };
    path.segments.chunk_by(|a, b| a.task == b.task).map(stretch).collect()
}

fn parts_of(segment: &PathSegment) -> Vec<(String, u64)> {
    match &segment.activity {
        PathActivity::Running { work, .. } => {
            work.iter().map(|&(work, ns)| (labels::work(work), ns)).collect()
        }
        other => vec![(labels::activity(other), segment.length_ns())],
    }
}

/// For CSV and JSON: every segment, in order of time.
pub(super) fn segments(context: &Context<'_>, found: &Path) -> Table {
    let findings = &context.findings;
    let mut columns = vec![
        Column::data("begin_ns"),
        Column::data("ns"),
        Column::csv_only("task").json("task.name"),
        Column::csv_only("tid").json("task.tid"),
        Column::csv_only("pid").json("task.pid"),
        Column::data("doing"),
        Column::json_only("host_side"),
    ];
    if findings.host.is_some() {
        columns.push(Column::csv_only("stolen_ns"));
    }
    let mut table = Table::new("", columns);
    for segment in limited(&found.path.segments, context.limit) {
        let task = findings.task(segment.task);
        let share = findings.host.as_ref().map(|host| (host, host.side.segment(segment)));
        let reported = share.as_ref().filter(|(_, share)| 0 < share.total_ns());
        table.row([
            Cell::ns(segment.begin.since(findings.timeline.begin)),
            Cell::ns(segment.length_ns()),
            task.name().into(),
            task.tid.0.into(),
            task.pid.0.into(),
            labels::activity(&segment.activity).into(),
            reported.map_or(Cell::NONE, |(host, share)| Cell::Json(host_side::share(host, share))),
            share.as_ref().map_or(Cell::NONE, |(_, share)| Cell::ns(share.stolen_ns())),
        ]);
    }
    table
}

pub(super) fn json(context: &Context<'_>, found: &Path) -> Value {
    let Path { path, summary } = found;
    let task = context.findings.task(path.scope.task);
    let outside = |(name, ns): &(String, u64)| json!({ "name": clean(name), "ns": ns });
    let mut object = json!({
        "task": {
            "name": table::clean(task.name()),
            "tid": task.tid.0,
            "pid": task.pid.0,
        },
        "wall_ns": summary.wall_ns,
        "categories": categories(summary, None).json(),
        "names": names(summary, None).json(),
        "outside_ns": summary.outside_ns(),
        "outside": summary.outside.iter().map(outside).collect::<Value>(),
        "improvements": all_improvements(summary, None).json(),
        "segments": segments(context, found).json(),
    });
    if let Some(host_side) = host_side::path_json(context, path) {
        object["host_side"] = host_side;
    }
    object
}
