//! The critical path: `--view critical-path`.

use analysis::Width;
use trace_analysis::critical_path::{CriticalPath, PathActivity, PathSegment, Summary};
use trace_analysis::findings::Path;
use trace_analysis::timeline::TaskId;

use super::super::grid::{Column, Grid};
use super::report::Findings;
use super::scene::{Scale, length, percent};
use super::{host_side, words};

/// Segments of one task that touch.
#[derive(Debug)]
struct Stretch {
    task: TaskId,
    begin_ns: u64,
    ns: u64,
    /// What most of it is.
    most: (String, u64),
}

pub(super) fn text(findings: &Findings<'_>, path: &Path, width: Width) -> String {
    let Path { path: found, summary } = path;
    let task = findings.scene.task(found.scope.task);
    let mut out = format!(
        "Critical path of {}: {} in {} segments\n",
        analysis::clean(&words::task(task)),
        length(summary.wall_ns),
        found.segments.len()
    );
    out += &format!("\nWhat it is made of\n{}", categories(summary, findings.limit).text(width));
    out += &host_side::path(findings, path, width);
    out += &format!(
        "\nWhose time it is, in {}\n{}",
        Scale::of(summary.wall_ns).unit(),
        names(summary, findings.limit).text(width)
    );
    if !summary.behind.is_empty() {
        out += "\nWho had the CPUs that it waited for\n";
        out += &behind(summary, findings.limit).text(width);
    }
    out += &format!("\nWhat would make it faster\n{}", worth(summary, findings.limit).text(width));
    out += "At best: once a part is gone, another path may be the longest\n";
    out += &format!(
        "\nIts longest stretches, in order of time\n{}",
        stretches(findings, path).text(width)
    );
    out
}

pub(super) fn csv(findings: &Findings<'_>, path: &Path) -> String {
    let mut grid = Grid::new(&[">begin_ns", ">ns", "task", ">tid", ">pid", "doing"]);
    if findings.host.is_some() {
        grid.push(Column::Number("stolen_ns".to_owned()));
    }
    for segment in &path.path.segments {
        let task = findings.scene.task(segment.task);
        let begin = segment.begin.since(findings.scene.timeline.begin);
        let ns = segment.length_ns();
        let cells = [
            begin.to_string(),
            ns.to_string(),
            task.name().to_owned(),
            task.tid.to_string(),
            task.pid.to_string(),
            words::activity(&segment.activity),
        ];
        let stolen = host_side::stolen_of(findings, segment).map(|ns| ns.to_string());
        grid.row(cells.into_iter().chain(stolen));
    }
    grid.csv()
}

pub(super) fn categories(summary: &Summary, limit: Option<usize>) -> Grid {
    let scale = Scale::of(summary.wall_ns);
    let mut grid = Grid::new(&[">%", &format!(">{}", scale.unit()), ">segments", "what"]);
    let limit = limit.unwrap_or(usize::MAX);
    for share in summary.categories.iter().take(limit) {
        grid.row([
            percent(share.ns, summary.wall_ns),
            scale.show(share.ns),
            share.segments.to_string(),
            share.of.to_string(),
        ]);
    }
    let rest: u64 = summary.categories.iter().skip(limit).map(|share| share.ns).sum();
    if 0 < rest {
        let n = summary.categories.len() - limit;
        let share = percent(rest, summary.wall_ns);
        grid.row([share, scale.show(rest), "-".to_owned(), format!("({n} other)")]);
    }
    grid
}

fn names(summary: &Summary, limit: Option<usize>) -> Grid {
    let titles = [
        ">%",
        ">all",
        ">own\ncode",
        ">kernel",
        ">CPU\nwait",
        ">disk",
        ">other",
        ">processes",
        "command",
    ];
    let scale = Scale::of(summary.wall_ns);
    let mut grid = Grid::new(&titles);
    for share in summary.names.iter().take(limit.unwrap_or(usize::MAX)) {
        let parts =
            [share.user_ns, share.kernel_ns, share.cpu_wait_ns, share.disk_ns, share.other_ns];
        let cells = [percent(share.ns, summary.wall_ns), scale.show(share.ns)].into_iter();
        let cells = cells.chain(parts.map(|ns| scale.show(ns)));
        grid.row(cells.chain([share.processes.to_string(), share.name.clone()]));
    }
    grid
}

/// Adds up to the waits for CPUs.
fn behind(summary: &Summary, limit: Option<usize>) -> Grid {
    let scale = Scale::of(summary.wall_ns);
    let mut grid = Grid::new(&[">%", &format!(">{}", scale.unit()), "process"]);
    let mut row = |ns, name| grid.row([percent(ns, summary.wall_ns), scale.show(ns), name]);
    let (shown, rest) =
        summary.behind.split_at(summary.behind.len().min(limit.unwrap_or(usize::MAX)));
    for (name, ns) in shown {
        row(*ns, name.clone().unwrap_or_else(|| "nobody, or not known".to_owned()));
    }
    if !rest.is_empty() {
        row(rest.iter().map(|(_, ns)| ns).sum(), format!("({} other)", rest.len()));
    }
    grid
}

/// Amdahl: what the command would take at best without a part.
pub(super) fn worth(summary: &Summary, limit: Option<usize>) -> Grid {
    let scale = Scale::of(summary.wall_ns);
    let unit = scale.unit();
    let (on_path, without) = (
        format!(
            ">on the
path, {unit}"
        ),
        format!(
            ">without it
at best, {unit}"
        ),
    );
    let mut grid = Grid::new(&[
        &on_path,
        &without,
        ">times
as fast",
        "what",
    ]);
    for gain in summary.improvements.iter().take(limit.unwrap_or(usize::MAX)) {
        // What would show as no gain is left out.
        if gain.factor().is_some_and(|factor| factor < 1.005) {
            continue;
        }
        let factor = gain.factor().map_or("-".to_owned(), |factor| format!("{factor:.2}"));
        let (on_path, at_best) = (scale.show(gain.on_path_ns), scale.show(gain.at_best_ns));
        grid.row([on_path, at_best, factor, gain.target.to_string()]);
    }
    grid
}

/// The longest, in order of time.
fn stretches(findings: &Findings<'_>, path: &Path) -> Grid {
    let mut all = joined(findings, &path.path);
    let limit = findings.limit.unwrap_or(usize::MAX);
    let mut lengths: Vec<u64> = all.iter().map(|stretch| stretch.ns).collect();
    lengths.sort_unstable_by(|a, b| b.cmp(a));
    let least = lengths.get(limit.saturating_sub(1)).copied().unwrap_or(0);
    let left_out = all.len();
    let mut room = limit;
    all.retain(|stretch| {
        let keep = least <= stretch.ns && 0 < room;
        room -= usize::from(keep);
        keep
    });
    let (shown, left_out) = (all.iter().map(|s| s.ns).sum::<u64>(), left_out - all.len());
    let scale = Scale::of(path.summary.wall_ns);
    let unit = format!(">{}", scale.unit());
    let mut grid = Grid::new(&[&format!(">from, {}", scale.unit()), &unit, "task", "mostly"]);
    for stretch in all {
        let task = words::task(findings.scene.task(stretch.task));
        let mostly = match percent(stretch.most.1, stretch.ns).as_str() {
            "100.0" => stretch.most.0,
            share => format!("{share} % {}", stretch.most.0),
        };
        grid.row([scale.show(stretch.begin_ns), scale.show(stretch.ns), task, mostly]);
    }
    if 0 < left_out {
        let rest = scale.show(path.summary.wall_ns - shown);
        grid.row(["-".to_owned(), rest, format!("({left_out} shorter stretches)")]);
    }
    grid
}

fn joined(findings: &Findings<'_>, path: &CriticalPath) -> Vec<Stretch> {
    let begin = findings.scene.timeline.begin;
    let mut stretches = Vec::new();
    for segments in path.segments.chunk_by(|a, b| a.task == b.task) {
        let mut parts: Vec<(String, u64)> = Vec::new();
        for (what, ns) in segments.iter().flat_map(parts_of) {
            match parts.iter_mut().find(|(known, _)| *known == what) {
                Some((_, sum)) => *sum += ns,
                None => parts.push((what, ns)),
            }
        }
        let most = parts.into_iter().max_by_key(|(_, ns)| *ns).unwrap_or_default();
        let first = &segments[0];
        stretches.push(Stretch {
            task: first.task,
            begin_ns: first.begin.since(begin),
            ns: segments.iter().map(PathSegment::length_ns).sum(),
            most,
        });
    }
    stretches
}

fn parts_of(segment: &PathSegment) -> Vec<(String, u64)> {
    match &segment.activity {
        PathActivity::Running { work, .. } => {
            work.iter().map(|&(work, ns)| (words::work(work), ns)).collect()
        }
        other => vec![(words::activity(other), segment.length_ns())],
    }
}
