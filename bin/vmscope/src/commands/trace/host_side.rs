//! A VM's time as its host saw it, in the views of a guest's trace. Nothing where the host was not traced.

use analysis::{Width, clean};
use api::trace as json;
use trace_analysis::critical_path::PathSegment;
use trace_analysis::findings::Path;
use trace_analysis::group::By;
use trace_analysis::host_side::{CpuSide, Share, Thief, Thieves};
use trace_analysis::timeline::TaskId;

use super::super::grid::Grid;
use super::json::cleaned;
use super::report::Findings;
use super::scene::{Scale, percent, wrapped};
use super::states::left_out;
use super::words;

/// Thieves in a line of text.
const THIEVES: usize = 4;

/// `VM b 50.1 %, [kworker/0:1] 1.2 %` of the time stolen.
fn thieves_line(thieves: &Thieves<'_>, share: &Share) -> String {
    let stolen_ns = share.stolen_ns();
    let shown = thieves.sums(share).into_iter();
    let shown = shown.filter(|(_, ns)| stolen_ns < ns.saturating_mul(2000)).take(THIEVES);
    let shown = shown.map(|(thief, ns)| format!("{thief} {} %", percent(ns, stolen_ns)));
    clean(&shown.collect::<Vec<_>>().join(", ")).into_owned()
}

/// What guest CPUs were by what their threads did, and who stole.
pub(super) fn overview(findings: &Findings<'_>, width: Width) -> String {
    let Some(host) = &findings.host else { return String::new() };
    let total = host.side.total();
    let scale = Scale::of(total.total().total_ns());
    let mut out = format!("The host's side of the guest's CPUs, in {}\n", scale.unit());
    let mut grid = cpus_grid();
    cpu_rows(&mut grid, scale, "", &total);
    out += &grid.text(width);
    out + &stolen_line(&host.thieves, &total.total(), width) + &blurred(findings, width)
}

/// The same for each CPU, and for command names.
pub(super) fn kernel(findings: &Findings<'_>, width: Width) -> String {
    let Some(host) = &findings.host else { return String::new() };
    let total = host.side.total();
    let scale = Scale::of(total.total().total_ns());
    let mut grid = cpus_grid();
    if let [_, _, ..] = host.side.cpus[..] {
        for cpu in &host.side.cpus {
            cpu_rows(&mut grid, scale, &format!("CPU {} ", cpu.number), cpu);
        }
    }
    cpu_rows(&mut grid, scale, "", &total);
    let mut out =
        format!("\nThe host's side of the guest's CPUs, in {}\n{}", scale.unit(), grid.text(width));
    out += &(stolen_line(&host.thieves, &total.total(), width) + &blurred(findings, width));
    out + &tasks(findings, By::Name, "command", width)
}

/// The same for each process.
pub(super) fn processes(findings: &Findings<'_>, width: Width) -> String {
    let text = tasks(findings, By::Process, "process", width);
    if text.is_empty() { text } else { text + &blurred(findings, width) }
}

fn tasks(findings: &Findings<'_>, by: By, what: &str, width: Width) -> String {
    let Some(host) = &findings.host else { return String::new() };
    let rows = host.side.rows(&findings.scene.timeline, by, &findings.tasks);
    let thieves = &host.thieves;
    let scale = Scale::of(host.side.total().total().total_ns());
    let limit = findings.limit.unwrap_or(usize::MAX);
    let mut grid = Grid::new(&[
        what,
        ">had a\nguest CPU",
        ">ran",
        ">stolen",
        ">%",
        ">asleep\nin VMM",
        ">unknown",
        "stolen by",
    ]);
    for row in rows.iter().take(limit) {
        let share = &row.share;
        let numbers = [share.total_ns(), share.running_ns, share.stolen_ns()];
        let cells = std::iter::once(words::key(&row.key));
        let cells = cells.chain(numbers.map(|ns| scale.show(ns)));
        let cells = cells.chain([percent(share.stolen_ns(), share.total_ns())]);
        let cells = cells.chain([share.asleep_ns, share.unknown_ns].map(|ns| scale.show(ns)));
        let most = thieves.sums(share).first().map(|(thief, _)| thief.to_string());
        grid.row(cells.chain([most.unwrap_or_else(|| "-".to_owned())]));
    }
    let unit = scale.unit();
    let title = format!(
        "\nOf the time that they had a guest CPU, from the host's side: {}, in {unit}\n",
        findings.whose()
    );
    title + &grid.text(width) + &left_out(rows.len(), limit, what)
}

/// Under the table of what the path is made of: a part of its running and CPU waits.
pub(super) fn path(findings: &Findings<'_>, path: &Path, width: Width) -> String {
    let Some(host) = &findings.host else { return String::new() };
    let side = host.side.path(&path.path);
    let (ran, waited) = (&side.running, &side.waiting);
    let scale = Scale::of(path.summary.wall_ns);
    let show = |ns| format!("{} {}", scale.show(ns), scale.unit());
    let mut both = ran.clone();
    both.merge(waited);
    let mut text = format!(
        "Stolen by the host's others: {} ({} %) of it: {} of the {} with a guest CPU",
        show(both.stolen_ns()),
        percent(both.stolen_ns(), path.summary.wall_ns),
        show(ran.stolen_ns()),
        show(ran.total_ns()),
    );
    if 0 < waited.total_ns() {
        let (stolen, all) = (show(waited.stolen_ns()), show(waited.total_ns()));
        text += &format!(", {stolen} of the {all} of waits for one");
    }
    if 0 < both.stolen_ns() {
        let at_best = show(path.summary.wall_ns.saturating_sub(both.stolen_ns()));
        let by = thieves_line(&host.thieves, &both);
        text += &format!("; by {by}; without it at best {at_best}");
    }
    if 0 < ran.asleep_ns {
        text += &format!("; {} asleep in the VMM", show(ran.asleep_ns));
    }
    if 0 < both.unknown_ns {
        text += &format!("; of {} the host's events don't say", show(both.unknown_ns));
    }
    wrapped(&text, width)
}

/// The time that tasks had a guest CPU. `None`: the host does not say.
pub(super) fn of_task(findings: &Findings<'_>, tasks: &[TaskId]) -> Option<Share> {
    findings.host.as_ref().map(|host| host.side.share_of(tasks))
}

/// What was stolen of a segment of the critical path. `None`: the host does not say.
pub(super) fn stolen_of(findings: &Findings<'_>, segment: &PathSegment) -> Option<u64> {
    Some(findings.host.as_ref()?.side.segment(segment).stolen_ns())
}

/// The process' time, split, in nanoseconds: ran, stolen, asleep in the VMM, unknown.
pub(super) fn numbers(share: &Share) -> [u64; 4] {
    [share.running_ns, share.stolen_ns(), share.asleep_ns, share.unknown_ns]
}

fn cpus_grid() -> Grid {
    Grid::new(&[
        "guest's CPU",
        ">%",
        ">all",
        ">thread\nruns",
        ">stolen",
        ">asleep",
        ">unknown",
        "asleep is",
    ])
}

fn cpu_rows(grid: &mut Grid, scale: Scale, before: &str, cpu: &CpuSide) {
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
        let cells = [format!("{before}{name}"), percent(share.total_ns(), all_ns)];
        let ns = std::iter::once(share.total_ns()).chain(numbers(share));
        let cells = cells.into_iter().chain(ns.map(|ns| scale.show(ns)));
        grid.row(cells.chain([asleep.to_owned()]));
    }
}

fn stolen_line(thieves: &Thieves<'_>, share: &Share, width: Width) -> String {
    match thieves_line(thieves, share) {
        line if line.is_empty() && share.total_ns() / 2 < share.unknown_ns => {
            "The host has no events of most of this time\n".to_owned()
        }
        line if line.is_empty() => "Nothing was stolen\n".to_owned(),
        line => wrapped(&format!("Stolen by: {line}"), width),
    }
}

/// Where the clocks are further apart than switches, who was stolen from can't be told well.
fn blurred(findings: &Findings<'_>, width: Width) -> String {
    /// Schedulers let tasks run for milliseconds.
    const SHORT_NS: u64 = 1_000_000;
    match findings.scene.machine().clock_error_ns {
        Some(error) if SHORT_NS < error => {
            let ms = Scale::Ms.show(error);
            let text = format!(
                "Doubtful: the guest's times may be {ms} ms off the host's: whose time was stolen is blurred, its total is not"
            );
            wrapped(&text, width)
        }
        _ => String::new(),
    }
}

/// Everything as JSON.
pub(super) fn report(findings: &Findings<'_>) -> Option<json::HostSide> {
    let host = findings.host.as_ref()?;
    let thieves = &host.thieves;
    let cpu = |cpu: &CpuSide| json::CpuHostSide {
        cpu: cpu.number,
        thread: cpu.thread.map(|thread| thread.0),
        busy: share(thieves, &cpu.busy),
        idle: share(thieves, &cpu.idle),
        unknown: share(thieves, &cpu.unknown),
    };
    let limit = findings.limit.unwrap_or(usize::MAX);
    let rows = |by| {
        let rows = host.side.rows(&findings.scene.timeline, by, &findings.tasks);
        let row = |row: trace_analysis::host_side::SideRow| json::NameHostSide {
            name: cleaned(&row.key.name),
            pid: row.key.pid.map(|pid| pid.0),
            time: share(thieves, &row.share),
        };
        rows.into_iter().take(limit).map(row).collect()
    };
    let total = host.side.total();
    Some(json::HostSide {
        busy: share(thieves, &total.busy),
        idle: share(thieves, &total.idle),
        unknown: share(thieves, &total.unknown),
        cpus: host.side.cpus.iter().map(cpu).collect(),
        names: rows(By::Name),
        processes: rows(By::Process),
    })
}

/// The critical path's part as JSON.
pub(super) fn path_report(findings: &Findings<'_>, path: &Path) -> Option<json::PathHostSide> {
    let host = findings.host.as_ref()?;
    let (thieves, side) = (&host.thieves, host.side.path(&path.path));
    let (running, waiting) = (share(thieves, &side.running), share(thieves, &side.waiting));
    Some(json::PathHostSide { running, waiting })
}

/// Each segment's part as JSON, where it is about a guest CPU and the host says something.
pub(super) fn segment_reports(
    findings: &Findings<'_>,
    path: &Path,
) -> Vec<Option<json::HostShare>> {
    let segments = &path.path.segments;
    let Some(host) = &findings.host else { return vec![None; segments.len()] };
    let thieves = &host.thieves;
    let sides = segments.iter().map(|segment| host.side.segment(segment));
    sides.map(|side| (0 < side.total_ns()).then(|| share(thieves, &side))).collect()
}

fn share(thieves: &Thieves<'_>, share: &Share) -> json::HostShare {
    let thief = |(by, ns): (Thief, u64)| json::Thief { by: cleaned(&by.to_string()), ns };
    json::HostShare {
        ns: share.total_ns(),
        ran_ns: share.running_ns,
        stolen_ns: share.stolen_ns(),
        asleep_ns: share.asleep_ns,
        unknown_ns: share.unknown_ns,
        stolen_by: thieves.sums(share).into_iter().map(thief).collect(),
    }
}
