//! CPU and disk together.

use serde_json::{Value, json};
use table::{Cell, Column, Part, Scale, Table, length, percent};

use super::{Context, object};
use crate::profile::BusyMatrix;
use crate::timeline::files::{SocketUse, Traffic};

/// What can be busy, and under which keys.
const PARTS: [(&str, &str); 6] = [
    ("CPU only", "cpu_only_ns"),
    ("both", "both_ns"),
    ("disk only", "disk_only_ns"),
    ("neither", "neither_ns"),
    ("unknown", "unknown_ns"),
    ("unknown and disk", "unknown_and_disk_ns"),
];
/// Those that are there always.
const N_KNOWN: usize = 4;

pub(super) fn parts(context: &Context<'_>) -> Vec<Part> {
    let mut disks = disks(context);
    disks.title = "Disks, in all of the trace".to_owned();
    let mut parts = vec![table(context).into(), disks.into()];
    parts.extend(network(context).map(Part::from));
    parts
}

/// The machine, each CPU and each disk.
pub(super) fn table(context: &Context<'_>) -> Table {
    let findings = &context.findings;
    let profile = findings.profile();
    let known = profile.machine;
    let has_unknown = 0 < known.unknown_ns + known.unknown_and_disk_ns;
    let n_shown = if has_unknown { N_KNOWN + 1 } else { N_KNOWN };
    let mut columns = vec![Column::name("of").csv("of")];
    columns.extend(PARTS[..n_shown].iter().map(|(title, _)| Column::number(*title).decimals(1)));
    columns.extend(PARTS.map(|(_, key)| Column::csv_only(key)));
    let mut table = Table::new(title(context), columns);
    let cpus = profile.cpus.iter().map(|(number, of)| (format!("CPU {number}"), of));
    let disks = findings.timeline.disks.iter().zip(&profile.disks);
    let disks = disks.map(|(disk, of)| (format!("disk {}", disk.name), of));
    for (name, of) in [("machine".to_owned(), &known)].into_iter().chain(cpus).chain(disks) {
        let (ns, wall) = (self::ns(of), of.total_ns());
        let [.., unknown, unknown_and_disk] = ns;
        let shares = ns[..N_KNOWN].iter().copied().chain([unknown + unknown_and_disk]);
        let shares = shares.take(n_shown).map(|part| Cell::Share(part, wall));
        table.row([name.into()].into_iter().chain(shares).chain(ns.map(Cell::ns)));
    }
    table.notes.push("The machine: any CPU, any disk; a CPU: it and any disk".to_owned());
    table
}

/// The machine's figures cover the time that the selected tasks lived.
fn title(context: &Context<'_>) -> String {
    let wall = length(context.findings.profile().machine.total_ns());
    let title = format!("CPU and disk, used by any task: what was busy, in % of {wall}");
    match context.findings.is_everyone() {
        true => title,
        false => format!("{title}, the time of {}", context.whose()),
    }
}

/// `CPU only 80.0 %, both 5.0 %, ...`.
pub(super) fn line(of: &BusyMatrix) -> String {
    let wall = of.total_ns();
    let parts = ns(of).into_iter().zip(PARTS).enumerate();
    let shown = parts.filter(|(n, (ns, _))| *n < N_KNOWN || wall < ns.saturating_mul(2000));
    let shown = shown.map(|(_, (ns, (title, _)))| format!("{title} {} %", percent(ns, wall, 1)));
    shown.collect::<Vec<_>>().join(", ")
}

fn ns(of: &BusyMatrix) -> [u64; 6] {
    let BusyMatrix {
        cpu_only_ns,
        both_ns,
        disk_only_ns,
        neither_ns,
        unknown_ns,
        unknown_and_disk_ns,
    } = *of;
    [cpu_only_ns, both_ns, disk_only_ns, neither_ns, unknown_ns, unknown_and_disk_ns]
}

fn disks(context: &Context<'_>) -> Table {
    let columns = vec![
        Column::name("disk").json("disk"),
        Column::number("requests").json("requests"),
        Column::number("read, MB").decimals(1),
        Column::json_only("read_bytes"),
        Column::number("written, MB").decimals(1),
        Column::json_only("written_bytes"),
        Column::number("busy, s").scale(Scale::S),
        Column::json_only("time"),
    ];
    let mut table = Table::new("", columns);
    for (disk, of) in context.findings.timeline.disks.iter().zip(&context.findings.profile().disks)
    {
        let busy: u64 = disk.busy.iter().map(|(begin, end)| end.since(*begin)).sum();
        let [read, written] = disk.bytes;
        table.row([
            disk.name.as_str().into(),
            disk.requests.into(),
            Cell::Real(read as f64 / 1e6),
            Cell::bytes(read),
            Cell::Real(written as f64 / 1e6),
            Cell::bytes(written),
            Cell::ns(busy),
            Cell::Json(four_way(of)),
        ]);
    }
    table
}

/// `Network: ...` if there was any.
pub(super) fn network_line(context: &Context<'_>) -> Option<String> {
    let sockets = context.findings.timeline.files.sockets.values();
    let mut sum = SocketUse::default();
    sockets.for_each(|of| sum.merge(of));
    let Traffic { sent, received, waits } = sum.network;
    let mb = |bytes: u64| bytes as f64 / 1e6;
    (sum.network != Traffic::default()).then(|| {
        format!(
            "Network: {:.1} MB sent, {:.1} MB received, tasks were asleep in its calls for {}\n",
            mb(sent.bytes),
            mb(received.bytes),
            length(waits.ns)
        )
    })
}

/// What all tasks sent and received; `None`: it was not traced, or nothing was.
fn network(context: &Context<'_>) -> Option<Table> {
    let all = context.findings.timeline.files.sockets.values();
    let sum = all.fold(SocketUse::default(), |mut sum, of| {
        sum.merge(of);
        sum
    });
    let columns = vec![
        Column::name("sockets").json("sockets"),
        Column::number("sends").json("sends"),
        Column::number("sent, MB").decimals(1),
        Column::json_only("sent_bytes"),
        Column::number("receives").json("receives"),
        Column::number("received, MB").decimals(1),
        Column::json_only("received_bytes"),
        Column::number("tasks asleep in it, s").scale(Scale::S).json("wait_ns"),
    ];
    let mut table = Table::new("Network, in all of the trace", columns);
    let used = [("network (IP)", sum.network), ("local", sum.local)];
    for (name, of) in used.into_iter().filter(|(_, of)| *of != Traffic::default()) {
        table.row([
            name.into(),
            of.sent.calls.into(),
            Cell::Real(of.sent.bytes as f64 / 1e6),
            Cell::bytes(of.sent.bytes),
            of.received.calls.into(),
            Cell::Real(of.received.bytes as f64 / 1e6),
            Cell::bytes(of.received.bytes),
            Cell::ns(of.waits.ns),
        ]);
    }
    (!table.rows.is_empty()).then_some(table)
}

pub(super) fn json(context: &Context<'_>) -> Value {
    let findings = &context.findings;
    let (found, range) = (findings.profile(), findings.range());
    let cpu = |(cpu, of): &(u32, BusyMatrix)| json!({ "cpu": cpu, "time": four_way(of) });
    let mut profile = json!({
        "begin_ns": range.start.since(findings.timeline.begin),
        "end_ns": range.end.since(findings.timeline.begin),
        "machine": four_way(&found.machine),
        "cpus": found.cpus.iter().map(cpu).collect::<Value>(),
        "disks": disks(context).json(),
    });
    if let Some(network) = network(context) {
        profile["network"] = network.json();
    }
    profile
}

fn four_way(of: &BusyMatrix) -> Value {
    object(
        [("wall_ns", of.total_ns())]
            .into_iter()
            .chain(PARTS.map(|(_, key)| key).into_iter().zip(ns(of))),
    )
}
