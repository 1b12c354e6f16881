//! The analyses of a machine as tables.

use trace_analysis::findings::{Findings, Path};
use trace_analysis::group::By;
use trace_analysis::kernel::syscall_label;
use trace_analysis::profile::FourWay;
use trace_analysis::states::{self, Use};
use trace_analysis::waits::{self, Group};

use super::names::{key_name, lock_name, short};
use super::table::{Cell, Table, Unit};

/// What to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum View {
    /// What was waited for.
    Waits,
    /// Where in the kernel was waited, for which lock and its holder.
    WaitPlaces,
    /// System calls.
    Calls,
    /// What the command's length is made of.
    CriticalPath,
    /// What would make the command faster.
    Improvements,
    /// Each process: its life, and what it waited for.
    Process,
}

pub(super) fn table(findings: &Findings<'_>, view: View) -> Table {
    match view {
        View::Waits => waits(findings),
        View::WaitPlaces => wait_places(findings),
        View::Calls => calls(findings),
        View::CriticalPath => critical_path(findings),
        View::Improvements => improvements(findings),
        View::Process => processes(findings),
    }
}

/// The parts of the four-way profile, with their styles.
pub(super) const FOUR_WAY: [(&str, &str); 6] = [
    ("CPU only", "user"),
    ("CPU and disk", "reads"),
    ("disk only", "disk-wait"),
    ("neither", "idle"),
    ("CPU unknown", "unknown"),
    ("disk, CPU unknown", "c3"),
];

pub(super) fn four_way(profile: &FourWay) -> [u64; 6] {
    let FourWay { cpu_only_ns, both_ns, disk_only_ns, neither_ns, unknown_ns, unknown_and_disk_ns } =
        *profile;
    [cpu_only_ns, both_ns, disk_only_ns, neither_ns, unknown_ns, unknown_and_disk_ns]
}

/// The nine states and unknown, row by row, with their styles.
pub(super) const STATES: [(&str, &str); 10] = [
    ("CPU running, disk running", "s00"),
    ("CPU running, disk waiting", "s01"),
    ("CPU running, no disk", "s02"),
    ("CPU waiting, disk running", "s10"),
    ("CPU waiting, disk waiting", "s11"),
    ("CPU waiting, no disk", "s12"),
    ("no CPU, disk running", "s20"),
    ("no CPU, disk waiting", "s21"),
    ("no CPU, no disk", "s22"),
    ("unknown", "unknown"),
];

pub(super) fn nine_states(table: &states::Table) -> Vec<u64> {
    let cells = Use::ALL.into_iter().flat_map(|cpu| Use::ALL.map(|disk| table.ns(cpu, disk)));
    cells.chain([table.unknown_ns]).collect()
}

fn waits(findings: &Findings<'_>) -> Table {
    let mut table = Table::new(
        "Causes",
        &[
            ("cause", Unit::Text),
            ("group", Unit::Text),
            ("times", Unit::Count),
            ("time", Unit::Ns),
            ("longest", Unit::Ns),
            ("of waiting", Unit::Share),
        ],
    );
    let life = findings.life();
    let waiting = life.waiting().ns;
    for (cause, sum) in life.by_time() {
        table.rows.push(vec![
            Cell::name(cause.name()),
            Cell::name(cause.group().name()),
            Cell::Number(sum.count),
            Cell::Number(sum.ns),
            Cell::Number(sum.longest_ns),
            if cause.is_waiting() { Cell::share(sum.ns, waiting) } else { Cell::None },
        ]);
    }
    table
}

fn wait_places(findings: &Findings<'_>) -> Table {
    let mut table = Table::new(
        "Where, and behind whom",
        &[
            ("cause", Unit::Text),
            ("kernel function", Unit::Text),
            ("lock", Unit::Text),
            ("holder", Unit::Text),
            ("in system call", Unit::Text),
            ("times", Unit::Count),
            ("time", Unit::Ns),
            ("longest", Unit::Ns),
        ],
    );
    let text = |text: Option<String>| text.map_or(Cell::None, |text| Cell::Text(short(&text)));
    for (detail, sum) in waits::details(findings.timeline, &findings.classifier, &findings.tasks) {
        let lock = detail.lock.as_ref();
        let holder = lock.and_then(|lock| lock.holder.as_ref());
        table.rows.push(vec![
            Cell::name(detail.cause.name()),
            Cell::name(&detail.function),
            text(lock.map(|lock| format!("{} {:#x}", lock_name(lock.kind), lock.address))),
            text(holder.map(|holder| holder.name.clone())),
            text(holder.and_then(|holder| holder.syscall).map(syscall_label)),
            Cell::Number(sum.count),
            Cell::Number(sum.ns),
            Cell::Number(sum.longest_ns),
        ]);
    }
    table
}

fn calls(findings: &Findings<'_>) -> Table {
    let mut table = Table::new(
        "System calls",
        &[
            ("system call", Unit::Text),
            ("class", Unit::Text),
            ("calls", Unit::Count),
            ("failed", Unit::Count),
            ("on a CPU", Unit::Ns),
            ("from entry to exit", Unit::Ns),
            ("longest", Unit::Ns),
        ],
    );
    for row in findings.kernel().calls(findings.timeline, &findings.tasks) {
        table.rows.push(vec![
            Cell::name(&row.name),
            Cell::name(row.class.name()),
            Cell::Number(row.calls.count),
            Cell::Number(row.calls.failed),
            Cell::Number(row.on_cpu_ns),
            Cell::Number(row.calls.ns),
            Cell::Number(row.calls.longest_ns),
        ]);
    }
    table
}

fn critical_path(findings: &Findings<'_>) -> Table {
    let mut table = Table::new(
        "Critical path",
        &[
            ("category", Unit::Text),
            ("time", Unit::Ns),
            ("share", Unit::Share),
            ("stretches", Unit::Count),
        ],
    );
    if let Some(Path { summary, .. }) = findings.path() {
        for part in &summary.categories {
            table.rows.push(vec![
                Cell::name(&part.of.to_string()),
                Cell::Number(part.ns),
                Cell::share(part.ns, summary.wall_ns),
                Cell::Number(part.segments),
            ]);
        }
    }
    table
}

fn improvements(findings: &Findings<'_>) -> Table {
    let mut table = Table::new(
        "What would make it faster, at best",
        &[
            ("without", Unit::Text),
            ("on the path", Unit::Ns),
            ("share", Unit::Share),
            ("length then", Unit::Ns),
            ("times as fast", Unit::Factor),
        ],
    );
    if let Some(Path { summary, .. }) = findings.path() {
        for improvement in &summary.improvements {
            table.rows.push(vec![
                Cell::name(&improvement.target.to_string()),
                Cell::Number(improvement.on_path_ns),
                Cell::share(improvement.on_path_ns, summary.wall_ns),
                Cell::Number(improvement.at_best_ns),
                factor(summary.wall_ns, improvement.at_best_ns),
            ]);
        }
    }
    table
}

/// Thousandths of how many times as fast; none when nothing would remain.
fn factor(wall_ns: u64, at_best_ns: u64) -> Cell {
    if at_best_ns == 0 {
        return Cell::None;
    }
    let rounded = u128::from(wall_ns) * 1_000 + u128::from(at_best_ns) / 2;
    let factor = rounded / u128::from(at_best_ns);
    u64::try_from(factor).map_or(Cell::None, Cell::Number)
}

fn processes(findings: &Findings<'_>) -> Table {
    let first = [
        ("process", Unit::Text),
        ("threads", Unit::Count),
        ("begin", Unit::Ns),
        ("lifetime", Unit::Ns),
        ("running", Unit::Ns),
    ];
    let groups = Group::ALL.map(|group| (group_title(group), Unit::Ns));
    let mut table = Table::new("Processes", &[&first[..], &groups[..]].concat());
    let timeline = findings.timeline;
    for row in findings.lives_by(By::Process) {
        let begins = row.tasks.iter().filter_map(|id| timeline.tasks.get(id.index()));
        let begin = begins.map(|task| task.begin).min().unwrap_or(timeline.begin);
        let by_group = row.life.groups();
        let of = |group: Group| by_group.get(&group).map_or(0, |sum| sum.ns);
        let first = [
            Cell::Text(key_name(&row.key)),
            Cell::Number(row.tasks.len() as u64),
            Cell::Number(begin.since(timeline.begin)),
            Cell::Number(row.life.total_ns()),
            Cell::Number(row.life.running.ns),
        ];
        let groups = Group::ALL.map(|group| Cell::Number(of(group)));
        table.rows.push(first.into_iter().chain(groups).collect());
    }
    table
}

/// A group of causes as a column of waits.
fn group_title(group: Group) -> &'static str {
    match group {
        Group::Cpu => "waiting for a CPU",
        Group::Disk => "disk",
        Group::FileServer => "file server",
        Group::InodeLock => "inode lock",
        Group::OtherLocks => "other locks",
        Group::Others => "other tasks",
        Group::Timer => "timer",
        Group::Kernel => "kernel",
        Group::Idle => "kernel task idle",
        Group::Stopped => "stopped",
        Group::Unknown => "unknown",
    }
}
