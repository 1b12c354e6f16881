//! `vmscope report`: who used the CPUs.
//!
//! ```text
//! Total samples:29996 OS:USER:VM:IDLE = 4.71%:0.34%:94.95%:0.00%
//!
//! Samples  %Ratio  Function         Process     Module           VM
//!   16984   56.62  quantum_toffoli  shor (412)  libquantum.so.8  vm1
//! ```

mod unnamed;

use std::fmt::Write as _;

use model::{Guest, Note, StackEnd, TimeAccount};
use serde_json::{Value, json};
use table::{
    Cell, Column, Keep, LISTED, Report, Table, Width, cleaned, percent, short_module, with_id,
};

use crate::report::recording::{
    INCOMPLETE, dropped, host, missed, n_vcpus, sampling, trigger, vendor,
};
use crate::{
    By, GuestStacks, Label, NodeMemory, Profile, Side, Unsampled, View, VmNodes, VmSummary,
};

/// Version of the JSON that docs/report.md describes.
pub(crate) const VERSION: u32 = 1;

/// A profile, its names cut for this width.
#[must_use]
pub fn profile(profile: &Profile, width: Width) -> Report {
    let table = table(profile);
    let mut report = Report { json: json(profile, &table), ..Report::default() };
    heading(&mut report, profile);
    report.parts = vec![totals(profile).into(), table.into()];
    report.parts.extend((!profile.nodes.is_empty()).then(|| nodes(profile).into()));
    report.parts.extend(unnamed::lists(profile, width).into_iter().map(Into::into));
    report
}

fn heading(report: &mut Report, profile: &Profile) {
    let header = &profile.header;
    report.fact("Host", host(header));
    report.fact("Recorded", format!("{} (vmscope {})", sampling(header), header.vmscope_version));
    report.fact("VMs", vms(profile));
    report.fact("View", question(profile));
    report.fact("Dropped", dropped(header));
    report.fact("Missed", missed(header));
    if !profile.unsampled.is_empty() {
        report.fact("Unsampled", unsampled(&profile.unsampled));
    }
    if let Some(stacks) = profile.guest_stacks.as_ref().filter(|it| **it != GuestStacks::default())
    {
        report.fact("Guest stacks", guest_stacks(stacks));
    }
    let others = header.other_counters().filter(|(_, count)| 0 < *count);
    let others: Vec<String> = others.map(|(name, count)| format!("{name} {count}")).collect();
    if !others.is_empty() {
        report.fact("Counted", others.join(", "));
    }
    if !header.complete {
        report.fact("Incomplete", INCOMPLETE);
    }
    let notes = profile.notes.iter().map(|Note { subject, text }| format!("{subject}: {text}"));
    report.notes = notes.collect();
}

fn vms(profile: &Profile) -> String {
    let vms = profile.vms.iter().map(|summary| {
        let map = match &summary.vm.guest {
            Guest::Mapped { via, .. } => format!("map via {via}"),
            Guest::Unmapped { .. } => "no guest map".to_owned(),
        };
        format!("{} ({}, {map})", summary.vm.name, n_vcpus(summary.n_vcpus))
    });
    let mut vms: Vec<String> = vms.collect();
    if vms.is_empty() {
        return "none".to_owned();
    }
    if LISTED < vms.len() {
        let more = vms.split_off(LISTED).len();
        vms.push(format!("and {more} more"));
    }
    vms.join(", ")
}

/// `web 74.0 %, db 6.1 % of their time on CPUs`.
fn unsampled(vms: &[Unsampled]) -> String {
    let share = |vm: &Unsampled| format!("{} {:.1} %", vm.vm, 100.0 * vm.share());
    let mut shares: Vec<String> = vms.iter().take(LISTED).map(share).collect();
    if LISTED < vms.len() {
        shares.push(format!("and less of {} more", vms.len() - LISTED));
    }
    let whose = if vms.len() == 1 { "its" } else { "their" };
    format!("{} of {whose} time on CPUs", shares.join(", "))
}

/// `user 97.8 % to the first function, kernel 99.1 % to the entry; 12 end early: ...`.
fn guest_stacks(stacks: &GuestStacks) -> String {
    let share = |(all, whole): (u64, u64)| percent(whole, all.max(1), 1);
    let parts =
        [("user", stacks.user, "to the first function"), ("kernel", stacks.kernel, "to the entry")];
    let parts = parts.into_iter().filter(|(_, (all, _), _)| 0 < *all);
    let parts = parts.map(|(name, counts, to)| format!("{name} {} % {to}", share(counts)));
    let mut text = parts.collect::<Vec<_>>().join(", ");
    let mut ends: Vec<(&Option<StackEnd>, &u64)> = stacks.ends.iter().collect();
    ends.sort_by_key(|(_, n)| std::cmp::Reverse(**n));
    let why = |end: &Option<StackEnd>| end.map_or("not taken".to_owned(), |end| end.to_string());
    let ends: Vec<String> = ends.iter().map(|(end, n)| format!("{n} {}", why(end))).collect();
    if !ends.is_empty() {
        let _ = write!(text, "; others end early: {}", ends.join(", "));
    }
    text
}

fn guest_stacks_json(stacks: &GuestStacks) -> Value {
    let part = |(all, whole): (u64, u64)| json!({ "samples": all, "whole": whole });
    let name = |end: &Option<StackEnd>| end.map_or("not_taken", StackEnd::name).to_owned();
    let ends = stacks.ends.iter().map(|(end, n)| (name(end), (*n).into()));
    let ends: serde_json::Map<String, Value> = ends.collect();
    json!({ "user": part(stacks.user), "kernel": part(stacks.kernel), "ends": ends })
}

/// `guest of web vcpu0, by function, process postgres`.
fn question(profile: &Profile) -> String {
    let selection = &profile.query.selection;
    let mut text = selection.view().name().to_owned();
    if let Some(vm) = &profile.vm {
        let _ = write!(text, " of {vm}");
    }
    if let Some(vcpu) = selection.vcpu() {
        let _ = write!(text, " vcpu{vcpu}");
    }
    let _ = write!(text, ", by {}", profile.query.by.name());
    if let Some(process) = selection.process() {
        let _ = write!(text, ", process {}", process.text());
    }
    text
}

/// The line of totals above the table.
fn totals(profile: &Profile) -> String {
    let shares = &profile.shares;
    let unseen = |account| shares.unseen.get(account);
    let mut parts = vec![("OS", shares.os), ("USER", shares.user)];
    match profile.query.selection.view() {
        View::Unified | View::Host => parts.extend([("VM", shares.vm), ("IDLE", shares.idle)]),
        View::Native => parts.push(("IDLE", shares.idle)),
        // Unseen samples of one process are unknown.
        View::Guest if profile.query.selection.process().is_some() => {}
        View::Guest => {
            parts.extend([("IDLE(halt)", unseen(TimeAccount::Halt)), ("steal", shares.steal())])
        }
    }
    let others = [
        ("HALT-POLLING", TimeAccount::HaltPolling),
        ("THROTTLED", TimeAccount::Throttled),
        ("PAUSED", TimeAccount::Paused),
        ("NOT-SAMPLED", TimeAccount::NotSampled),
        ("UNKNOWN", TimeAccount::Unknown),
    ]
    .map(|(name, account)| (name, unseen(account)));
    parts.extend(others.into_iter().filter(|(_, samples)| *samples > 0));
    let names: Vec<&str> = parts.iter().map(|(name, _)| *name).collect();
    let share = |n: u64| percent(n, profile.total.max(1), 2) + "%";
    let values: Vec<String> = parts.iter().map(|(_, n)| share(*n)).collect();
    format!("Total samples:{} {} = {}", profile.total, names.join(":"), values.join(":"))
}

/// The columns that CSV and JSON always have.
const FIELDS: [&str; 12] = [
    "side",
    "vm",
    "process",
    "pid",
    "thread",
    "tid",
    "module",
    "offset",
    "function",
    "cpu",
    "vcpu",
    "thief_vcpu",
];

fn table(profile: &Profile) -> Table {
    let names = names(profile);
    let mut columns = vec![
        Column::number("Samples").key("samples"),
        Column::number("%Ratio").csv("percent").json("share"),
    ];
    columns.extend(FIELDS.map(Column::data));
    let by_node = profile.query.by == By::Node;
    if by_node {
        columns.extend([
            Column::data("node"),
            Column::number("MiB"),
            Column::data("memory_bytes"),
            Column::number("%Memory").csv("memory_percent").json("memory_share"),
            Column::csv_only("remote_percent"),
        ]);
    }
    columns.extend(names.iter().map(|(column, _)| column.clone()));
    let mut table = Table::new("", columns);
    let total = profile.total;
    for row in &profile.rows {
        let numbers = [Cell::count(row.samples), Cell::Share(row.samples, total)];
        let on_node = by_node.then(|| node_fields(profile, &row.label)).into_iter().flatten();
        let shown = names.iter().map(|(_, cell)| Cell::Text(cell(&row.label)));
        table.row(numbers.into_iter().chain(fields(&row.label)).chain(on_node).chain(shown));
    }
    if profile.other.rows > 0 {
        let other = Cell::Text(match profile.other.rows {
            1 => "(other 1 row)".to_owned(),
            rows => format!("(other {rows} rows)"),
        });
        let samples = profile.other.samples;
        let numbers = [Cell::count(samples), Cell::Share(samples, total)];
        let fields = FIELDS.map(|key| if key == "function" { other.clone() } else { Cell::NONE });
        let on_node = by_node.then_some([const { Cell::NONE }; 5]).into_iter().flatten();
        table.rest.push(numbers.into_iter().chain(fields).chain(on_node).chain([other]).collect());
        table.n_cut = profile.other.rows;
    }
    table
}

fn fields(label: &Label) -> [Cell; 12] {
    // `node_fields` has the node.
    let Label { function, process, pid, thread, tid, module, offset, vm, side, cpu, vcpu, .. } =
        label;
    let text = |field: &Option<String>| Cell::from(field.clone());
    [
        side.map(Side::name).into(),
        text(vm),
        text(process),
        (*pid).into(),
        text(thread),
        (*tid).into(),
        text(module),
        (*offset).into(),
        text(function),
        (*cpu).into(),
        (*vcpu).into(),
        side.and_then(Side::thief_vcpu).into(),
    ]
}

/// By node: the node, the VM's memory there, and the VM's remote share.
fn node_fields(profile: &Profile, label: &Label) -> [Cell; 5] {
    let is_guest = |vm: &&VmNodes| {
        label.side == Some(Side::Guest) && label.vm.as_deref() == Some(vm.vm.as_str())
    };
    let vm = profile.nodes.iter().find(is_guest);
    let memory =
        vm.zip(label.node).and_then(|(vm, node)| vm.memory.on(node).zip(vm.memory.total()));
    let [shown, bytes, share] = memory.map_or([const { Cell::NONE }; 3], |(bytes, total)| {
        let [shown, bytes_cell] = Cell::mib_and_bytes(bytes);
        [shown, bytes_cell, Cell::Share(bytes, total.max(1))]
    });
    let remote = vm.and_then(|vm| vm.remote);
    [label.node.into(), shown, bytes, share, remote.map_or(Cell::NONE, hundred)]
}

fn hundred(part: f64) -> Cell {
    Cell::Real(100.0 * part)
}

/// By node: each VM's memory, and the part of its guest time that it is remote.
fn nodes(profile: &Profile) -> Table {
    let columns = vec![
        Column::name("VM").key("vm"),
        Column::number("Guest samples").key("samples"),
        Column::number("MiB"),
        Column::data("memory_bytes"),
        Column::number("Remote %").decimals(2),
        Column::json_only("remote_share").decimals(4),
        Column::name("Memory").json("unknown_reason"),
    ];
    let mut table = Table::new("Remote memory", columns);
    for vm in &profile.nodes {
        let samples: u64 = vm.guest.values().sum();
        let [shown, bytes] =
            vm.memory.total().map_or([const { Cell::NONE }; 2], Cell::mib_and_bytes);
        let reason = match &vm.memory {
            NodeMemory::Known(_) => Cell::NONE,
            NodeMemory::Unknown(reason) => reason.as_str().into(),
        };
        table.row([
            vm.vm.as_str().into(),
            samples.into(),
            shown,
            bytes,
            vm.remote.map_or(Cell::NONE, hundred),
            vm.remote.map_or(Cell::NONE, Cell::Real),
            reason,
        ]);
    }
    let text = "Remote: guest time weighted by the part of the VM's memory that is on other nodes";
    table.notes.push(text.to_owned());
    table
}

/// A column that people see, and its text.
type NameColumn = (Column, fn(&Label) -> String);

fn names(profile: &Profile) -> Vec<NameColumn> {
    let column = |title: &str, keep, weight, cell: fn(&Label) -> String| -> NameColumn {
        (Column::name(title).keep(keep, weight), cell)
    };
    let process = column("Process", Keep::StartAndFrom(" ("), 2, process_name);
    let mut columns = match profile.query.by {
        By::Function | By::Address => vec![
            column("Function", Keep::Start, 3, |label| or_dash(label.function.as_deref())),
            process,
            column("Module", Keep::StartAndFrom("+0x"), 2, module_name),
        ],
        By::Process => vec![process],
        By::Thread => vec![column("Thread", Keep::StartAndFrom(" ("), 2, thread_name), process],
        By::Module => {
            let module = |label: &Label| or_dash(label.module.as_deref());
            vec![column("Module", Keep::PathEnd, 2, module)]
        }
        By::Vm => return vec![column("VM", Keep::Start, 2, owner_name)],
        By::Cpu => return vec![column("CPU", Keep::Start, 2, cpu_name)],
        By::Node => {
            let node = column("Node", Keep::Start, 1, node_name);
            return vec![node, column("VM", Keep::Start, 2, owner_name)];
        }
    };
    let tells_vms_apart = match profile.query.selection.view() {
        View::Unified => true,
        View::Host | View::Native => profile.query.by != By::Module,
        View::Guest => false,
    };
    columns.extend(tells_vms_apart.then(|| column("VM", Keep::Start, 2, vm_name)));
    columns
}

fn or_dash(text: Option<&str>) -> String {
    text.unwrap_or("-").to_owned()
}

fn process_name(label: &Label) -> String {
    label.process.as_deref().map_or("-".to_owned(), |name| with_id(name, label.pid))
}

fn thread_name(label: &Label) -> String {
    label.thread.as_deref().map_or("-".to_owned(), |name| with_id(name, label.tid))
}

/// The file's name without its folder; where there are no symbols, with the offset.
fn module_name(label: &Label) -> String {
    let name = label.module.as_deref().map_or("-", short_module);
    label.offset.map_or_else(|| name.to_owned(), |offset| format!("{name}+{offset:#x}"))
}

fn vm_name(label: &Label) -> String {
    match (&label.vm, label.side) {
        (Some(vm), Some(Side::Vmm)) => format!("{vm} (vmm)"),
        (vm, _) => or_dash(vm.as_deref()),
    }
}

fn owner_name(label: &Label) -> String {
    match label.side {
        Some(Side::Host) => "[host]".to_owned(),
        Some(Side::Idle) => "[idle]".to_owned(),
        side => side.and_then(Side::line).unwrap_or_else(|| vm_name(label)),
    }
}

fn cpu_name(label: &Label) -> String {
    let line = label.side.and_then(Side::line);
    match (label.cpu, label.vcpu, line) {
        (Some(cpu), _, _) => format!("cpu{cpu}"),
        (None, Some(vcpu), Some(line)) => format!("vcpu{vcpu} {line}"),
        (None, Some(vcpu), None) => format!("vcpu{vcpu}"),
        (None, None, _) => "[unknown]".to_owned(),
    }
}

fn node_name(label: &Label) -> String {
    label.node.map_or("-".to_owned(), |node| format!("node{node}"))
}

fn unsampled_json(profile: &Profile) -> Value {
    let row = |vm: &Unsampled| {
        json!({
            "vm": cleaned(&vm.vm),
            "on_cpu_ns": vm.on_cpu_ns,
            "not_sampled_ns": vm.not_sampled_ns,
        })
    };
    profile.unsampled.iter().map(row).collect()
}

fn json(profile: &Profile, table: &Table) -> Value {
    let selection = &profile.query.selection;
    let notes = profile.notes.iter();
    let counters: serde_json::Map<String, Value> =
        profile.counters.iter().map(|(name, n)| (cleaned(name), (*n).into())).collect();
    json!({
        "version": VERSION,
        "query": {
            "view": selection.view().name(),
            "by": profile.query.by.name(),
            "vm": profile.vm.as_deref().map(cleaned),
            "vcpu": selection.vcpu(),
            "process": selection.process().map(|process| cleaned(process.text())),
            "limit": profile.query.limit,
        },
        "recording": recording(profile),
        "totals": totals_json(profile),
        "rows": table.json(),
        "other": { "rows": profile.other.rows, "samples": profile.other.samples },
        "nodes": nodes(profile).json(),
        "unsampled": unsampled_json(profile),
        "guest_stacks": profile.guest_stacks.as_ref().map(guest_stacks_json),
        "unresolved": unnamed::json(profile),
        "counters": counters,
        "notes": notes
            .map(|note| json!({ "subject": cleaned(&note.subject), "text": cleaned(&note.text) }))
            .collect::<Value>(),
    })
}

fn recording(profile: &Profile) -> Value {
    let header = &profile.header;
    json!({
        "vmscope_version": cleaned(&header.vmscope_version),
        "hostname": cleaned(&header.hostname),
        "kernel": cleaned(&header.kernel),
        "vendor": vendor(header),
        "trigger": trigger(header),
        "period_ns": header.period_ns,
        "cpus": header.cpus,
        "start_unix_ns": header.start_unix_ns,
        "duration_ns": header.end.since(header.start),
        "complete": header.complete,
        "vms": profile.vms.iter().map(vm).collect::<Value>(),
    })
}

fn vm(summary: &VmSummary) -> Value {
    let (map_via, no_map_reason, clock_error_ns) = match &summary.vm.guest {
        Guest::Mapped { via, clock } => (Some(cleaned(via)), None, Some(clock.error_ns)),
        Guest::Unmapped { reason } => (None, Some(cleaned(reason)), None),
    };
    json!({
        "name": cleaned(&summary.vm.name),
        "pid": summary.vm.pid.0,
        "vcpus": summary.n_vcpus,
        "map_via": map_via,
        "no_map_reason": no_map_reason,
        "clock_error_ns": clock_error_ns,
    })
}

fn totals_json(profile: &Profile) -> Value {
    let shares = profile.shares;
    let mut totals = json!({
        "samples": profile.total,
        "os": shares.os,
        "user": shares.user,
        "vm": shares.vm,
        "idle": shares.idle,
    });
    for account in TimeAccount::ALL.into_iter().filter(|account| *account != TimeAccount::Guest) {
        totals[account.name()] = shares.unseen.get(account).into();
        if account == TimeAccount::StealOutside {
            totals["steal_own_vcpu"] = shares.steal_own_vcpu.into();
        }
    }
    totals
}
