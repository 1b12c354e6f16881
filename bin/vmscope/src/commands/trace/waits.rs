//! What was waited for: `--view waits`.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use analysis::Width;
use trace_analysis::group::By;
use trace_analysis::kernel::syscall_label;
use trace_analysis::waits::{Cause, Detail, Group, Life, Sum, details, rows, total, wakers};

use super::super::grid::{Column, Grid};
use super::report::Findings;
use super::scene::{Scale, counted, percent};
use super::states::left_out;
use super::words;

/// Everything that the view shows.
#[derive(Debug)]
pub(super) struct Waits {
    pub(super) total: Life,
    pub(super) names: Vec<trace_analysis::waits::Row>,
    pub(super) processes: Vec<trace_analysis::waits::Row>,
    pub(super) details: Vec<(Detail, Sum)>,
    pub(super) wakers: Vec<((Cause, Option<String>), Sum)>,
}

impl Waits {
    pub(super) fn of(findings: &Findings<'_>) -> Self {
        let (timeline, tasks) = (&findings.scene.timeline, &findings.tasks);
        let (classifier, lives) = (&findings.classifier, &findings.lives);
        Self {
            total: total(lives, tasks),
            names: rows(timeline, lives, By::Name, tasks),
            processes: rows(timeline, lives, By::Process, tasks),
            details: details(timeline, classifier, tasks),
            wakers: wakers(timeline, classifier, tasks),
        }
    }
}

pub(super) fn text(findings: &Findings<'_>, waits: &Waits, width: Width) -> String {
    let limit = findings.limit.unwrap_or(usize::MAX);
    let mut out = summary(findings, &waits.total);
    out += &causes(&waits.total, limit).text(width);
    out += &left_out(waits.total.causes.len(), limit, "cause");
    let scale = Scale::of(waits.total.total_ns());
    let who = who(&waits.names, limit, scale).text(width);
    out += &format!("\nWho waited, in {}\n{who}", scale.unit());
    out += &left_out(waits.names.len(), limit, "name");
    let all = places(waits);
    let places = place_rows(&all, limit, scale).text(width);
    out += &format!(
        "
Where: the kernel function that tells, and who held the lock
{places}"
    );
    out += &left_out(all.len(), limit, "place");
    let ended = ended(waits, limit, scale).text(width);
    out += &format!(
        "
Who ended the waits
{ended}"
    );
    out += &left_out(asleep(&waits.wakers, |it| it.0).count(), limit, "line");
    out
}

/// `45 tasks waited 12.3 s ...`.
pub(super) fn summary(findings: &Findings<'_>, life: &Life) -> String {
    let (waiting, unknown) = (life.waiting(), life.unknown());
    let unknown = percent(unknown.ns, waiting.ns);
    let scale = Scale::of(life.total_ns());
    let (ran, waited) = (scale.show(life.running.ns), scale.show(waiting.ns));
    let unit = scale.unit();
    let whose = findings.whose();
    let tasks = counted(findings.tasks.len() as u64, "task");
    let unknown = if unknown == "-" { "0.0".to_owned() } else { unknown };
    format!(
        "What {whose} waited for: {tasks} ran {ran} {unit}, waited {waited} {unit}; {unknown} % of that not known for what\n"
    )
}

pub(super) fn causes(life: &Life, limit: usize) -> Grid {
    let scale = Scale::of(life.total_ns());
    let mut grid = Grid::new(&[
        ">% of\nwaiting",
        &format!(">{}", scale.unit()),
        ">waits",
        ">mean, ms",
        ">longest, ms",
        "for",
    ]);
    let waiting = life.waiting().ns;
    let (waits, others): (Vec<_>, Vec<_>) =
        life.by_time().into_iter().partition(|(cause, _)| cause.is_waiting());
    for (cause, sum) in waits.into_iter().chain(others).take(limit) {
        let share = if cause.is_waiting() { percent(sum.ns, waiting) } else { "-".to_owned() };
        grid.row([
            share,
            scale.show(sum.ns),
            sum.count.to_string(),
            ms(sum.ns / sum.count.max(1)),
            ms(sum.longest_ns),
            cause.name().to_owned(),
        ]);
    }
    grid
}

pub(super) fn csv(findings: &Findings<'_>, waits: &Waits) -> String {
    let mut grid =
        Grid::new(&["process", ">pid", "group", "cause", ">ns", ">count", ">longest_ns"]);
    for row in waits.processes.iter().take(findings.limit.unwrap_or(usize::MAX)) {
        let pid = row.key.pid.map_or("-".to_owned(), |pid| pid.to_string());
        let running = ("running", "running", &row.life.running);
        let causes = row.life.causes.iter();
        let causes = causes.map(|(cause, sum)| (cause.group().name(), cause.name(), sum));
        for (group, cause, sum) in std::iter::once(running).chain(causes) {
            let names = [row.key.name.clone(), pid.clone(), group.to_owned(), cause.to_owned()];
            let numbers = [sum.ns, sum.count, sum.longest_ns].map(|n| n.to_string());
            grid.row(names.into_iter().chain(numbers));
        }
    }
    grid.csv()
}

/// Groups in columns, those that happened.
fn who(rows: &[trace_analysis::waits::Row], limit: usize, scale: Scale) -> Grid {
    let mut all = Life::default();
    rows.iter().for_each(|row| all.merge(&row.life));
    let groups = all.groups();
    let shown: Vec<Group> =
        Group::ALL.into_iter().filter(|group| groups.contains_key(group)).collect();
    let mut grid = Grid::new(&["command", ">life", ">ran"]);
    for group in &shown {
        grid.push(Column::Spare(group.name().replace(' ', "\n")));
    }
    for row in rows.iter().take(limit) {
        let groups = row.life.groups();
        let cells = shown.iter().map(|group| groups.get(group).map_or(0, |sum| sum.ns));
        let cells = cells.map(|ns| if ns == 0 { "-".to_owned() } else { scale.show(ns) });
        let first = [
            words::key(&row.key),
            scale.show(row.life.total_ns()),
            scale.show(row.life.running.ns),
        ];
        grid.row(first.into_iter().chain(cells));
    }
    grid
}

/// Waits for a CPU have no place, and nobody to end them; kernel tasks without work do not wait.
fn asleep<T>(rows: &[(T, Sum)], cause: impl Fn(&T) -> Cause) -> impl Iterator<Item = &(T, Sum)> {
    rows.iter().filter(move |(row, _)| {
        let cause = cause(row);
        cause.is_waiting() && cause.group() != Group::Cpu
    })
}

/// Cause, function and holder: which of the locks it was, and what told the cause, are not shown.
type Place<'a> = (Cause, &'a str, Option<String>);

/// Most time first.
fn places(waits: &Waits) -> Vec<(Place<'_>, Sum)> {
    let mut sums: BTreeMap<Place<'_>, Sum> = BTreeMap::new();
    for (detail, sum) in asleep(&waits.details, |it| it.cause) {
        sums.entry((detail.cause, &detail.function, holder(detail))).or_default().merge(sum);
    }
    let mut places: Vec<_> = sums.into_iter().collect();
    places.sort_by_key(|(_, sum)| Reverse(sum.ns));
    places
}

fn place_rows(places: &[(Place<'_>, Sum)], limit: usize, scale: Scale) -> Grid {
    let mut grid = Grid::new(&[&format!(">{}", scale.unit()), ">waits", "for", "function"]);
    let is_held = places.iter().take(limit).any(|((.., holder), _)| holder.is_some());
    if is_held {
        grid.push(Column::Name("holder".to_owned()));
    }
    for ((cause, function, holder), sum) in places.iter().take(limit) {
        let function = if function.is_empty() { "-" } else { function };
        let cells = [scale.show(sum.ns), sum.count.to_string()];
        let cells = cells.into_iter().chain([cause.name().to_owned(), function.to_owned()]);
        let holder = is_held.then(|| holder.clone().unwrap_or("-".to_owned()));
        grid.row(cells.chain(holder));
    }
    grid
}

/// `cc1 in openat`.
fn holder(detail: &Detail) -> Option<String> {
    let holder = detail.lock.as_ref()?.holder.as_ref()?;
    Some(match holder.syscall {
        Some(number) => format!("{} in {}", holder.name, syscall_label(number)),
        None => holder.name.clone(),
    })
}

fn ended(waits: &Waits, limit: usize, scale: Scale) -> Grid {
    let mut grid = Grid::new(&[&format!(">{}", scale.unit()), ">waits", "for", "ended by"]);
    for ((cause, by), sum) in asleep(&waits.wakers, |it| it.0).take(limit) {
        let by = by.clone().unwrap_or("(not over at the end, or not known)".to_owned());
        grid.row([scale.show(sum.ns), sum.count.to_string(), cause.name().to_owned(), by]);
    }
    grid
}

pub(super) fn ms(ns: u64) -> String {
    format!("{:.3}", ns as f64 / 1e6)
}
