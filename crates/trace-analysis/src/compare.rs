//! Two traces side by side: the same figures of both, with their differences.
//!
//! If both traces have a command: the commands' tasks, and the machines while they ran. Otherwise both whole
//! machines, because the tasks of a command cannot be compared with all tasks.

use std::collections::BTreeMap;

use crate::critical_path::{Category, Scope, Summary, critical_path, summary};
use crate::kernel::{Class, ClassGroup, KernelTime};
use crate::profile::profile_within;
use crate::states::{States, Table, Use, states};
use crate::timeline::{TaskId, Timeline, Work};
use crate::tree;
use crate::waits::{Classifier, Life, lives, total};

/// A trace to be compared.
#[derive(Debug, Clone, Copy)]
pub struct Side<'a> {
    /// Its machine.
    pub timeline: &'a Timeline,
    /// Finds what its tasks waited for.
    pub classifier: &'a Classifier,
    /// The command: its task and all that come from it, the machine within its time. `None`: the whole machine.
    pub scope: Option<Scope>,
}

/// Figures of two traces.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Comparison {
    pub of: Compared,
    /// In the order of the output.
    pub groups: Vec<Group>,
}

/// Who is compared, of both traces alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compared {
    /// The commands' tasks, and the machines while they ran.
    Commands,
    /// All tasks, and the machines while they were traced: not both traces have a command there.
    #[default]
    Machines,
}

/// Rows that belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    pub kind: Kind,
    /// Its rows; what is 0 in both has none.
    pub rows: Vec<Row>,
}

/// What a group's rows are about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Wall time, CPU time, waiting time, time of disks.
    Time,
    /// How many processes, system calls, requests.
    Counts,
    /// CPU and disk: both, one, neither. Adds up to the wall time.
    Profile,
    /// The nine states of tasks, and unknown. Adds up to the tasks' lives.
    States,
    /// What was waited for. With CPU time it adds up to the tasks' lives.
    Waits,
    /// What CPUs executed for the tasks, by class. Adds up to their CPU time.
    Kernel,
    /// CPU time by command name. Adds up to their CPU time.
    Commands,
    /// The critical path by category. Adds up to the wall time.
    CriticalPath,
}

/// A figure of both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub name: String,
    pub unit: Unit,
    /// In the first.
    pub a: u64,
    /// In the second.
    pub b: u64,
}

/// What a figure counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Ns,
    /// Things.
    Count,
    Bytes,
}

impl Kind {
    /// Its name in tables, JSON and CSV.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Time => "time",
            Self::Counts => "counts",
            Self::Profile => "cpu and disk",
            Self::States => "states",
            Self::Waits => "waits",
            Self::Kernel => "cpu time by class",
            Self::Commands => "cpu time by command",
            Self::CriticalPath => "critical path",
        }
    }
}

impl Row {
    /// The second less the first.
    #[must_use]
    pub fn difference(&self) -> i128 {
        i128::from(self.b) - i128::from(self.a)
    }

    /// The second over the first; `None` when the first is 0.
    #[must_use]
    pub fn ratio(&self) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
        (0 < self.a).then(|| self.b as f64 / self.a as f64)
    }
}

/// The same figures of both.
#[must_use]
pub fn compare(a: &Side<'_>, b: &Side<'_>) -> Comparison {
    let of = match (a.scope, b.scope) {
        (Some(_), Some(_)) => Compared::Commands,
        _ => Compared::Machines,
    };
    let (a, b) = (figures(&within(a, of)), figures(&within(b, of)));
    let groups = a
        .into_iter()
        .zip(b)
        .map(|((kind, a), (_, b))| Group { kind, rows: side_by_side(kind, a, b) });
    Comparison { of, groups: groups.filter(|group| !group.rows.is_empty()).collect() }
}

/// A side, restricted to what can be compared with the other.
fn within<'a>(side: &Side<'a>, of: Compared) -> Side<'a> {
    match of {
        Compared::Commands => *side,
        Compared::Machines => Side { scope: None, ..*side },
    }
}

type Figure = (String, Unit, u64);

/// One trace's figures, in the order of `Kind`.
fn figures(side: &Side<'_>) -> Vec<(Kind, Vec<Figure>)> {
    let timeline = side.timeline;
    let range = side.scope.map_or(timeline.begin..timeline.end, |scope| scope.begin..scope.end);
    let tasks =
        side.scope.map_or_else(|| tree::all(timeline), |scope| tree::tree(timeline, scope.task));
    let profile = profile_within(timeline, &range).machine;
    let states = states(timeline, &tasks);
    let life = total(&lives(timeline, side.classifier), &tasks);
    let summary = side.scope.map(|scope| summary(timeline, &critical_path(timeline, scope)));
    vec![
        (
            Kind::Time,
            times([
                ("wall time", range.end.since(range.start)),
                ("CPU time", life.running.ns),
                ("waiting", life.waiting().ns),
                ("any CPU busy", profile.cpu_ns()),
                ("any disk busy", profile.disk_ns()),
                (
                    "critical path outside the command",
                    summary.as_ref().map_or(0, Summary::outside_ns),
                ),
            ]),
        ),
        (Kind::Counts, counts(timeline, &tasks, &states)),
        (
            Kind::Profile,
            times([
                ("CPU only", profile.cpu_only_ns),
                ("both", profile.both_ns),
                ("disk only", profile.disk_only_ns),
                ("neither", profile.neither_ns),
                ("unknown", profile.unknown_ns),
                ("unknown, and disk", profile.unknown_and_disk_ns),
            ]),
        ),
        (Kind::States, nine(&states.total)),
        (Kind::Waits, waits(&life)),
        (Kind::Kernel, classes(timeline, &tasks)),
        (Kind::Commands, commands(&states)),
        (Kind::CriticalPath, summary.map_or_else(Vec::new, path)),
    ]
}

fn times<const N: usize>(figures: [(&str, u64); N]) -> Vec<Figure> {
    figures.map(|(name, ns)| (name.to_owned(), Unit::Ns, ns)).into()
}

fn counts(timeline: &Timeline, tasks: &[TaskId], states: &States) -> Vec<Figure> {
    let rows = || tasks.iter().filter_map(|id| timeline.tasks.get(id.index()));
    let requests =
        || rows().flat_map(|task| &task.requests).filter(|request| request.done.is_some());
    let calls = |id: &TaskId| {
        timeline.calls.range((*id, 0)..=(*id, u16::MAX)).map(|(_, calls)| calls.count)
    };
    let bytes: u64 =
        requests().filter(|it| !it.for_loop).map(|request| u64::from(request.bytes)).sum();
    vec![
        ("processes".to_owned(), Unit::Count, states.processes.len() as u64),
        ("threads".to_owned(), Unit::Count, tasks.len() as u64),
        ("system calls".to_owned(), Unit::Count, tasks.iter().flat_map(calls).sum()),
        ("disk requests".to_owned(), Unit::Count, requests().count() as u64),
        ("bytes of disk requests".to_owned(), Unit::Bytes, bytes),
    ]
}

fn nine(table: &Table) -> Vec<Figure> {
    let cpu = |it| match it {
        Use::Running => "CPU running",
        Use::Waiting => "CPU waiting",
        Use::None => "no CPU",
    };
    let disk = |it| match it {
        Use::Running => "disk running",
        Use::Waiting => "disk waiting",
        Use::None => "no disk",
    };
    let pairs = Use::ALL.into_iter().flat_map(|cpu| Use::ALL.map(|disk| (cpu, disk)));
    let cell = |(c, d)| (format!("{}, {}", cpu(c), disk(d)), Unit::Ns, table.ns(c, d));
    let unknown = ("unknown".to_owned(), Unit::Ns, table.unknown_ns);
    pairs.map(cell).chain([unknown]).collect()
}

fn waits(life: &Life) -> Vec<Figure> {
    let causes = life.causes.iter();
    causes.map(|(cause, sum)| (cause.name().to_owned(), Unit::Ns, sum.ns)).collect()
}

fn classes(timeline: &Timeline, tasks: &[TaskId]) -> Vec<Figure> {
    let groups = KernelTime::new(timeline).times_of(tasks).groups();
    let row = |group: ClassGroup| {
        let ns = groups.get(&group).copied().unwrap_or(0);
        (group.name().to_owned(), Unit::Ns, ns)
    };
    ClassGroup::ALL.map(row).into()
}

fn commands(states: &States) -> Vec<Figure> {
    let running = |table: &Table| Use::ALL.map(|disk| table.ns(Use::Running, disk)).iter().sum();
    let named = states.names.iter();
    named.map(|named| (named.name.clone(), Unit::Ns, running(&named.table))).collect()
}

/// The kernel's work by class: one trace's calls are hardly another's.
fn path(summary: Summary) -> Vec<Figure> {
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for share in summary.categories {
        let name = match share.of {
            Category::Kernel(work) => kernel(work),
            other => other.to_string(),
        };
        *sums.entry(name).or_default() += share.ns;
    }
    sums.into_iter().map(|(name, ns)| (name, Unit::Ns, ns)).collect()
}

fn kernel(work: Work) -> String {
    match Class::from_work(work).group() {
        ClassGroup::KernelTasks => "kernel tasks".to_owned(),
        group => format!("kernel: {}", group.name()),
    }
}

/// Rows with the figures of both, in the first's order, or largest first where that order says nothing.
fn side_by_side(kind: Kind, a: Vec<Figure>, b: Vec<Figure>) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    let mut known: BTreeMap<String, usize> = BTreeMap::new();
    let a = a.into_iter().map(|(name, unit, a)| Row { name, unit, a, b: 0 });
    let b = b.into_iter().map(|(name, unit, b)| Row { name, unit, a: 0, b });
    for row in a.chain(b) {
        match known.get(&row.name) {
            Some(&at) => (rows[at].a, rows[at].b) = (rows[at].a + row.a, rows[at].b + row.b),
            None => {
                known.insert(row.name.clone(), rows.len());
                rows.push(row);
            }
        }
    }
    rows.retain(|row| 0 < row.a || 0 < row.b);
    if matches!(kind, Kind::Waits | Kind::Commands | Kind::CriticalPath) {
        rows.sort_by_key(|row| std::cmp::Reverse(row.a.max(row.b)));
    }
    rows
}

#[cfg(test)]
mod test {
    use model::{MachineId, TraceTables};

    use super::*;
    use crate::test_timelines::{By, DrawnTimeline};
    use crate::timeline::build::random::senseless;

    fn classifier() -> Classifier {
        Classifier::new(&TraceTables::default(), MachineId::HOST)
    }

    /// `make` and two compilers, one of which reads.
    fn drawn(lines: [&str; 3], wakers: &[(char, By)]) -> Timeline {
        let [make, one, two] = lines;
        let lines = [("make", "", make), ("one", "make", one), ("two", "make", two)];
        let mut timeline = DrawnTimeline::new(&lines, wakers).timeline;
        timeline.tasks[1..].iter_mut().for_each(|task| task.names[0].1 = "cc1".to_owned());
        timeline
    }

    #[test]
    fn sequential_and_parallel_make() {
        let one = By::Task("one");
        let two = By::Task("two");
        let disk = By::Disk("one", 2, 2, 3);
        let a =
            drawn(["0aaa0bbb0", " 1d1     ", "     111 "], &[('a', one), ('b', two), ('d', disk)]);
        let b = drawn(["00bbb0", " 1d1  ", "  000 "], &[('b', two), ('d', disk)]);
        let classifier = classifier();
        let side = |timeline| {
            let scope = Scope::life(timeline, TaskId(0));
            assert!(scope.is_some());
            Side { timeline, classifier: &classifier, scope }
        };
        let comparison = compare(&side(&a), &side(&b));
        let mut text = String::new();
        for group in &comparison.groups {
            text += &format!("{}:\n", group.kind.name());
            for row in &group.rows {
                text += &format!("  {} {} {} {:+}\n", row.name, row.a, row.b, row.difference());
            }
        }
        assert_eq!(
            text,
            "time:
  wall time 90 60 -30
  CPU time 80 80 +0
  waiting 70 40 -30
  any CPU busy 80 60 -20
  any disk busy 10 10 +0
counts:
  processes 3 3 +0
  threads 3 3 +0
  disk requests 1 1 +0
  bytes of disk requests 4096 4096 +0
cpu and disk:
  CPU only 80 50 -30
  both 0 10 +10
  disk only 10 0 -10
states:
  CPU running, no disk 80 80 +0
  no CPU, disk running 10 10 +0
  no CPU, no disk 60 30 -30
waits:
  unknown (no stack) 60 30 -30
  disk read 10 10 +0
cpu time by class:
  user 80 80 +0
cpu time by command:
  cc1 50 50 +0
  make 30 30 +0
critical path:
  own code of cc1 50 30 -20
  own code of make 30 30 +0
  disk vda: read 10 0 -10
"
        );
        assert_eq!(comparison.groups[0].rows[0].ratio(), Some(60.0 / 90.0));
    }

    /// Groups add up to what `Kind` says.
    #[test]
    fn sums_hold() {
        let classifier = classifier();
        let check = |timeline: &Timeline, scope: Option<Scope>| {
            let side = Side { timeline, classifier: &classifier, scope };
            let comparison = compare(&side, &side);
            let sum = |kind, name: Option<&str>| -> u64 {
                let rows = comparison.groups.iter().filter(|group| group.kind == kind);
                let rows = rows.flat_map(|group| &group.rows);
                let rows = rows.filter(|row| name.is_none_or(|name| row.name == name));
                rows.map(|row| if row.a == row.b { row.a } else { u64::MAX }).sum()
            };
            let [wall, cpu] = ["wall time", "CPU time"].map(|name| sum(Kind::Time, Some(name)));
            assert_eq!(sum(Kind::Profile, None), wall);
            assert_eq!(sum(Kind::States, None), cpu + sum(Kind::Waits, None));
            assert_eq!(sum(Kind::Kernel, None), cpu);
            assert_eq!(sum(Kind::Commands, None), cpu);
            assert_eq!(sum(Kind::CriticalPath, None), scope.map_or(0, |_| wall));
        };
        for timeline in senseless() {
            check(&timeline, None);
            check(&timeline, Scope::life(&timeline, TaskId(1)));
        }
    }

    #[test]
    fn a_command_is_not_compared_with_everybody() {
        let timeline = drawn(["00 ", " 1 ", "  0"], &[]);
        let classifier = classifier();
        let side = |scope| Side { timeline: &timeline, classifier: &classifier, scope };
        let (command, machine) = (side(Scope::life(&timeline, TaskId(1))), side(None));
        assert_eq!(compare(&command, &command).of, Compared::Commands);
        let all = compare(&machine, &machine);
        assert_eq!(all.of, Compared::Machines);
        assert_eq!((compare(&command, &machine), compare(&machine, &command)), (all.clone(), all));
    }
}
