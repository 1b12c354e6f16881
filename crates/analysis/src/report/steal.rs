//! `vmscope steal`: where the time of VMs went.

mod matrix;
mod victims;

use std::collections::BTreeMap;

use model::{TimeAccount, VcpuId, VmId};
use serde_json::{Value, json};
use table::{Cell, Column, Report, Scale, Table, Width, clean, cleaned, ms, percent};

use crate::Nodes;
use crate::report::vcpu_time::{VERSION, VcpuTime, stolen_json};
use crate::steal::{AttributionLevel, TimeBreakdown, Victims, balances, hundredths, victims};

/// Accounts that are left out of the overview where they are 0.
pub const RARE: [TimeAccount; 5] = [
    TimeAccount::HaltPolling,
    TimeAccount::Throttled,
    TimeAccount::Paused,
    TimeAccount::NotSampled,
    TimeAccount::Unknown,
];

/// What a line of the table stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StealBy {
    /// Who had the CPU (type 1).
    Thief,
    /// The VM exit (type 2).
    Reason,
    /// The guest's function that suffered.
    Function,
    /// The same with its callers.
    Stack,
    /// The guest's process that suffered.
    Process,
    /// The guest's thread that suffered.
    Thread,
}

impl StealBy {
    /// The part of the guest's code that time is charged to; `None`: it is not charged to code.
    fn level(self) -> Option<AttributionLevel> {
        match self {
            Self::Thief | Self::Reason => None,
            Self::Function => Some(AttributionLevel::Function),
            Self::Stack => Some(AttributionLevel::Stack),
            Self::Process => Some(AttributionLevel::Process),
            Self::Thread => Some(AttributionLevel::Thread),
        }
    }
}

/// Options of `vmscope steal`.
#[derive(Debug, Clone)]
pub struct StealQuery {
    pub vms: Vec<VmId>,
    /// Whether that is all of them.
    pub all: bool,
    /// `None`: of one VM both thief and reason.
    pub by: Option<StealBy>,
    /// Lines of a table at most.
    pub limit: Option<usize>,
}

/// A VM's time.
struct VmTime {
    vm: VmId,
    sum: TimeBreakdown,
    /// By their numbers.
    vcpus: Vec<(u32, VcpuId, TimeBreakdown)>,
    /// When `by` asks for them.
    victims: Option<Victims>,
    /// The remote share of its guest time, where its memory is known.
    remote: Option<f64>,
}

/// Where the time of VMs went. The matrix has as many thieves as fit this width.
#[must_use]
pub fn steal(source: &VcpuTime<'_>, query: &StealQuery, width: Width) -> Report {
    let mut found = balances(&source.evidence, &source.names);
    let nodes = Nodes::new(source.evidence.tables);
    let vm = |vm: &VmId| VmTime::new(source, *vm, query.by, &mut found, &nodes);
    let vms: Vec<VmTime> = query.vms.iter().map(vm).collect();
    let mut report = source.report();
    report.parts.push(overview(source, &vms).into());
    if query.all {
        report.parts.push(matrix::matrix(source, &vms, width).into());
    }
    report.parts.extend(vms.iter().flat_map(|vm| details(source, query, vm)).map(Into::into));
    report.data = Some(match query.by {
        Some(by) if by.level().is_some() => {
            let tables = vms.iter().filter_map(|vm| Some((vm, vm.victims.as_ref()?)));
            let mut all = Table::new("", victims::columns(by));
            for (vm, victims) in tables {
                let table = victims::table(source, vm, victims, by, query.limit);
                all.rows.extend(table.rows.into_iter().chain(table.rest));
            }
            all
        }
        by => causes(source, &vms, by),
    });
    report.json = json!({
        "version": VERSION,
        "recording": source.recording(),
        "vms": vms.iter().map(|vm| vm_json(source, query, vm)).collect::<Value>(),
    });
    report
}

impl VmTime {
    fn new(
        source: &VcpuTime<'_>,
        vm: VmId,
        by: Option<StealBy>,
        balances: &mut BTreeMap<VcpuId, TimeBreakdown>,
        nodes: &Nodes,
    ) -> Self {
        let mut sum = TimeBreakdown::default();
        let mut vcpus = Vec::new();
        for (number, vcpu) in source.vcpus(vm) {
            let balance = balances.remove(&vcpu).unwrap_or_default();
            sum.add(&balance);
            vcpus.push((number, vcpu, balance));
        }
        let whose = by.and_then(StealBy::level);
        let evidence = &source.evidence;
        let victims = whose.map(|whose| victims(evidence, vm, whose, evidence.all()));
        let remote = nodes.remote_share(evidence.tables, vm, evidence.axis);
        Self { vm, sum, vcpus, victims, remote }
    }

    /// The VM, and its vCPUs if there are several.
    fn lines(&self, source: &VcpuTime<'_>) -> impl Iterator<Item = (String, &TimeBreakdown)> {
        let name = source.vm(self.vm).name.clone();
        let several = if 1 < self.vcpus.len() { &self.vcpus[..] } else { &[] };
        let vcpus = several.iter().map(|(number, _, balance)| (format!("  vcpu{number}"), balance));
        std::iter::once((name, &self.sum)).chain(vcpus)
    }
}

/// VMs and vCPUs, and what their time went to, in per cent which add up to 100. What is rare has a column when
/// it happened.
fn overview(source: &VcpuTime<'_>, vms: &[VmTime]) -> Table {
    let happened = |account| vms.iter().any(|vm| 0 < vm.sum.accounts.get(account));
    let shown = TimeAccount::ALL.map(|account| !RARE.contains(&account) || happened(account));
    let mut columns = vec![Column::name("VM"), Column::number("s").scale(Scale::S)];
    let accounts = TimeAccount::ALL.into_iter().zip(shown).filter(|(_, shown)| *shown);
    let title = |account: TimeAccount| account.words().replacen(' ', "\n", 1);
    columns.extend(accounts.map(|(account, _)| Column::number(title(account))));
    let has_remote = vms.iter().any(|vm| vm.remote.is_some());
    columns.extend(has_remote.then(|| Column::number("remote\nmemory")));
    let mut table = Table::new("Where the time of vCPUs went, in %", columns);
    for vm in vms {
        let mut remote = vm.remote;
        for (name, balance) in vm.lines(source) {
            let shares = hundredths(&balance.accounts.all()).into_iter().zip(shown);
            let shares = shares.filter(|(_, shown)| *shown).map(|(n, _)| Cell::Share(n, 10_000));
            let first = [name.into(), Cell::ns(balance.accounts.total())];
            // It is the VM's, not its vCPUs'.
            let remote = remote.take().map_or(Cell::NONE, |part| Cell::Real(100.0 * part));
            table.row(first.into_iter().chain(shares).chain(has_remote.then_some(remote)));
        }
    }
    if has_remote {
        let text = "remote memory: share of guest time, weighted by the VM's memory on other nodes";
        table.notes.push(text.to_owned());
    }
    table
}

/// The tables of one VM.
fn details(source: &VcpuTime<'_>, query: &StealQuery, vm: &VmTime) -> Vec<Table> {
    let wall_ns = vm.sum.accounts.total();
    let thieves = || {
        let table = source.thieves(&vm.sum.thieves, wall_ns);
        titled(source, vm, ("type 1, outside", TimeAccount::StealOutside), table, query.limit)
    };
    let reasons = || {
        let table = source.reasons(&vm.sum.reasons, wall_ns);
        titled(source, vm, ("type 2, in the VMM", TimeAccount::StealVmm), table, query.limit)
    };
    match query.by {
        None if query.all => Vec::new(),
        None => vec![thieves(), reasons()],
        Some(StealBy::Thief) => vec![thieves()],
        Some(StealBy::Reason) => vec![reasons()],
        Some(by) => {
            let table = |victims| victims::table(source, vm, victims, by, query.limit);
            vm.victims.iter().map(table).collect()
        }
    }
}

fn titled(
    source: &VcpuTime<'_>,
    vm: &VmTime,
    (kind, account): (&str, TimeAccount),
    mut table: Table,
    limit: Option<usize>,
) -> Table {
    let (ns, wall_ns) = (vm.sum.accounts.get(account), vm.sum.accounts.total());
    let (name, share) = (clean(&source.vm(vm.vm).name), percent(ns, wall_ns.max(1), 2));
    table.title = format!("Steal {kind}, of {name}: {} ms ({share} %)", ms(ns));
    table.limit(limit);
    if ns == 0 {
        (table.rows, table.rest) = (Vec::new(), Vec::new());
    }
    table
}

/// Every account of every vCPU; steal divided by who, or what, caused it. Adds up, for each vCPU, to its time.
fn causes(source: &VcpuTime<'_>, vms: &[VmTime], by: Option<StealBy>) -> Table {
    let columns = ["vm", "vcpu", "account", "cause", "ns", "percent"].map(Column::csv_only);
    let mut table = Table::new("", columns.to_vec());
    let is_wanted = |account: &TimeAccount| match by {
        Some(StealBy::Thief) => *account == TimeAccount::StealOutside,
        Some(StealBy::Reason) => *account == TimeAccount::StealVmm,
        _ => true,
    };
    for vm in vms {
        for (number, _, balance) in &vm.vcpus {
            let name = &source.vm(vm.vm).name;
            let wall_ns = balance.accounts.total().max(1);
            for account in TimeAccount::ALL.into_iter().filter(is_wanted) {
                for (cause, ns) in parts(source, balance, account) {
                    let who = [name.as_str().into(), (*number).into(), account.name().into()];
                    table.row(who.into_iter().chain([
                        cause,
                        Cell::ns(ns),
                        Cell::Share(ns, wall_ns),
                    ]));
                }
            }
        }
    }
    table
}

fn parts(source: &VcpuTime<'_>, balance: &TimeBreakdown, account: TimeAccount) -> Vec<(Cell, u64)> {
    match account {
        TimeAccount::StealOutside => {
            let thieves = balance.thieves.iter();
            thieves.map(|(thief, ns)| (source.names.name(*thief).into(), *ns)).collect()
        }
        TimeAccount::StealVmm => {
            let reasons = balance.reasons.iter();
            reasons.map(|(reason, time)| (source.reason(*reason).into(), time.total_ns())).collect()
        }
        _ => vec![(Cell::NONE, balance.accounts.get(account))],
    }
}

fn vm_json(source: &VcpuTime<'_>, query: &StealQuery, vm: &VmTime) -> Value {
    let vcpu = |(number, vcpu, balance): &(u32, VcpuId, TimeBreakdown)| {
        let tid = source.evidence.tables.vcpus[vcpu.index()].tid.0;
        json!({ "number": number, "tid": tid, "time": time_json(source, balance) })
    };
    let by = query.by.and_then(StealBy::level).map(AttributionLevel::name);
    let victims = match (&vm.victims, query.by) {
        (Some(victims), Some(by)) => victims::table(source, vm, victims, by, query.limit).json(),
        _ => json!([]),
    };
    let row = source.vm(vm.vm);
    json!({
        "name": cleaned(&row.name),
        "pid": row.pid.0,
        "time": time_json(source, &vm.sum),
        "vcpus": vm.vcpus.iter().map(vcpu).collect::<Value>(),
        "remote_share": vm.remote,
        "by": by,
        "victims": victims,
        "unattributed": vm.victims.as_ref().map(|victims| stolen_json(&victims.unattributed)),
    })
}

/// A VM's time, for JSON.
#[must_use]
pub fn time_json(source: &VcpuTime<'_>, balance: &TimeBreakdown) -> Value {
    let wall_ns = balance.accounts.total();
    let mut time = serde_json::Map::from_iter([("wall_ns".to_owned(), wall_ns.into())]);
    for account in TimeAccount::ALL {
        let name = format!("{}_ns", account.name());
        time.insert(name, balance.accounts.get(account).into());
    }
    let more = [
        ("thieves", source.thieves(&balance.thieves, wall_ns).json()),
        ("reasons", source.reasons(&balance.reasons, wall_ns).json()),
        ("interrupts_ns", balance.interrupts_ns(source.evidence.header.vendor).into()),
    ];
    time.extend(more.map(|(key, value)| (key.to_owned(), value)));
    Value::Object(time)
}
