//! `vmscope meter`: CPU time to charge for. The ready-made query `metering` gives the same lines of a fleet.

use std::collections::BTreeMap;

use model::{Results, ThiefKind, TimeAccount, TimeClass, VcpuTimeRow, VcpuTimeState};
use serde_json::json;
use table::{Cell, Column, Report, Scale, Table, utc};

/// The version of the JSON.
const VERSION: u32 = 1;
const DAY_US: i64 = 86_400_000_000;

/// Whose time a line is, and how far it may be charged.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    /// Days since 1970, UTC.
    day: i64,
    host: String,
    vm: String,
    line: Line,
    process: Option<String>,
}

/// In the order of their names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Line {
    Idle,
    Process,
    Unattributed,
    Unknown,
}

/// Time of a line. All but the last are of the time that the guest wanted.
#[derive(Debug, Clone, Copy, Default)]
struct Times {
    corrected_ns: u64,
    steal_outside_ns: u64,
    steal_vmm_ns: u64,
    throttled_ns: u64,
    /// Steal type 1 by class of taker: VMs, processes, the kernel, unknown.
    taken_by_ns: [u64; 4],
    not_charged_ns: u64,
}

/// A host's time without a recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gap {
    pub host: String,
    pub ns: u64,
}

/// CPU time to charge for, by day, VM, label and process. Unattributed time, idle time, unknown time and gaps have rows of
/// their own. All rows but gaps add up to the time of all vCPUs.
#[must_use]
pub fn meter(windows: &[Results], gaps: &[Gap], limit: Option<usize>) -> Report {
    let mut lines = BTreeMap::<Key, Times>::new();
    let mut labels = BTreeMap::<(&str, &str), [Option<&str>; 2]>::new();
    for window in windows {
        for row in &window.vms {
            let of_vm = [&row.row.labels.project, &row.row.labels.owner].map(Option::as_deref);
            labels.insert((&row.window.host, &row.row.vm), of_vm);
        }
        for row in &window.vcpu_time {
            let state = VcpuTimeState::from_name(&row.row.state);
            let line = Line::new(state, &row.row);
            let process = row.row.code.process.clone().filter(|_| line == Line::Process);
            let day = row.slice_unix_us.div_euclid(DAY_US);
            let (host, vm) = (row.window.host.clone(), row.row.vm.clone());
            let times = lines.entry(Key { day, host, vm, line, process }).or_default();
            times.add(state, &row.row);
        }
    }
    let mut table = Table::new("CPU time to charge for, in s", columns());
    for (key, times) in &lines {
        let labels = labels.get(&(&*key.host, &*key.vm)).copied().unwrap_or_default();
        let day = u64::try_from(key.day * (DAY_US / 1_000_000)).unwrap_or(0);
        let names = [utc(day)[..10].into(), key.host.as_str().into(), key.vm.as_str().into()];
        let labels = labels.map(|label| label.map(str::to_owned).into());
        let who = [key.line.name().into(), key.process.clone().into()];
        table.row(names.into_iter().chain(labels).chain(who).chain(times.cells()));
    }
    for gap in gaps.iter().filter(|gap| 0 < gap.ns) {
        let none = || Cell::NONE;
        let names =
            [none(), gap.host.as_str().into(), none(), none(), none(), "gap".into(), none()];
        let times = Times { not_charged_ns: gap.ns, ..Times::default() };
        table.row(names.into_iter().chain(times.cells()));
    }
    let mut report = Report { data: Some(table.clone()), ..Report::default() };
    report.json = json!({ "version": VERSION, "lines": table.json() });
    table.limit(limit);
    report.parts.push(table.into());
    report
}

fn columns() -> Vec<Column> {
    let name = |title: &str, key| Column::name(title).key(key);
    let time = |title: &str, key| Column::number(title).scale(Scale::S).adds_up().key(key);
    vec![
        name("Day", "day"),
        name("Host", "host"),
        name("VM", "vm"),
        name("Project", "project"),
        name("Owner", "owner"),
        name("Line", "line"),
        name("Process", "process"),
        time("apparent", "apparent_ns"),
        time("corrected", "corrected_ns"),
        time("steal\ntype 1", "steal_outside_ns"),
        time("steal\ntype 2", "steal_vmm_ns"),
        time("throttled", "throttled_ns"),
        Column::data("taken_by_vms_ns"),
        Column::data("taken_by_processes_ns"),
        Column::data("taken_by_kernel_ns"),
        Column::data("taken_by_unknown_ns"),
        time("not\ncharged", "not_charged_ns"),
    ]
}

impl Line {
    fn new(state: VcpuTimeState, row: &VcpuTimeRow) -> Self {
        match (state.account(), state.account().class(), &row.code.process) {
            (TimeAccount::Unknown, ..) => Self::Unknown,
            (_, TimeClass::Idle, _) => Self::Idle,
            (_, _, None) => Self::Unattributed,
            _ => Self::Process,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Process => "process",
            Self::Unattributed => "unattributed",
            Self::Unknown => "unknown",
        }
    }
}

impl Times {
    fn add(&mut self, state: VcpuTimeState, row: &VcpuTimeRow) {
        self.corrected_ns += row.corrected_ns;
        match state.account() {
            TimeAccount::StealOutside => {
                self.steal_outside_ns += row.ns;
                self.taken_by_ns[taker(row)] += row.ns;
            }
            TimeAccount::StealVmm => self.steal_vmm_ns += row.ns,
            TimeAccount::Throttled => self.throttled_ns += row.ns,
            _ if !state.is_apparent() => self.not_charged_ns += row.ns,
            _ => {}
        }
    }

    fn cells(&self) -> impl Iterator<Item = Cell> {
        let lost = [self.steal_outside_ns, self.steal_vmm_ns, self.throttled_ns];
        let apparent_ns = self.corrected_ns + lost.iter().sum::<u64>();
        [apparent_ns, self.corrected_ns]
            .into_iter()
            .chain(lost)
            .chain(self.taken_by_ns)
            .chain([self.not_charged_ns])
            .map(Cell::ns)
    }
}

/// The class of a taker, as a place in `Times::taken_by_ns`.
fn taker(row: &VcpuTimeRow) -> usize {
    match (&row.thief_vm, row.thief_is.as_ref().map(|thief| thief.kind)) {
        (Some(_), _) => 0,
        (None, Some(ThiefKind::Process)) => 1,
        (None, Some(ThiefKind::KernelThread)) => 2,
        _ => 3,
    }
}
