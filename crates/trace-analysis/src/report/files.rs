//! Files: bytes, waits, the page cache, and what disks did for them.

use serde_json::{Value, json};
use table::{Cell, Column, Keep, Part, Scale, Table, counted};

use super::{Context, limited, note_cut};
use crate::files::{FileRow, files, label, lock_waits, requests, sockets};
use crate::findings::Findings;
use crate::timeline::TaskId;
use crate::timeline::files::SocketUse;

pub(super) fn parts(context: &Context<'_>) -> Vec<Part> {
    let mut parts: Vec<Part> = vec![table(context).into()];
    let locks = locks(context);
    if !locks.rows.is_empty() {
        parts.push(locks.into());
    }
    parts.push(disks(context).into());
    let network = network(context);
    if !network.rows.is_empty() {
        parts.push(network.into());
    }
    parts
}

/// A row per file.
pub(super) fn table(context: &Context<'_>) -> Table {
    let rows = files(&context.findings);
    let longest = rows.iter().map(|row| row.used.call_ns.max(row.used.lock.ns)).max().unwrap_or(0);
    let scale = Scale::ms_or_s(longest);
    let title = format!(
        "{} of {}, most time in their calls first; times in {}, sizes in MB",
        counted(rows.len() as u64, "file"),
        context.whose(),
        scale.unit()
    );
    let time = |title: &str| Column::number(title).scale(scale);
    let size = |title: &str| Column::number(title).decimals(1);
    let columns = vec![
        Column::name("file").key("file").keep(Keep::PathEnd, 3),
        Column::data("device"),
        Column::data("inode"),
        Column::data("kind"),
        Column::data("links"),
        Column::number("calls").key("calls"),
        time("in\ncalls").key("call_ns"),
        size("read"),
        Column::data("reads"),
        Column::data("read_bytes"),
        size("written"),
        Column::data("writes"),
        Column::data("written_bytes"),
        Column::number("hits\n%").decimals(1).spare(),
        Column::data("cached_reads"),
        Column::data("cached_bytes"),
        size("missed").spare(),
        Column::data("pages_read_bytes"),
        Column::data("pages_made_bytes"),
        time("waits:\ndisk").key("disk_wait_ns"),
        Column::data("disk_waits"),
        time("lock").key("lock_wait_ns"),
        Column::data("lock_waits"),
        Column::data("other_wait_ns"),
        Column::data("other_waits"),
        size("disk\ndid").spare(),
        Column::data("requests"),
        Column::data("disk_read_bytes"),
        Column::data("disk_written_bytes"),
    ];
    let mut table = Table::new(title, columns);
    for row in limited(&rows, context.limit) {
        table.row(cells(row));
    }
    note_cut(&mut table, rows.len(), "file");
    let of_disk = "disk did: requests of all tasks, as the kernel writes for others";
    table.notes.push(format!("hits: reads that waited for no page; missed: pages read; {of_disk}"));
    table
}

fn cells(row: &FileRow<'_>) -> [Cell; 29] {
    let (used, requests) = (&row.used, &row.requests);
    let mb = |bytes: u64| Cell::Real(bytes as f64 / 1e6);
    let hits = match used.reads.calls {
        0 => Cell::NONE,
        reads => Cell::Share(used.cached.calls, reads),
    };
    [
        row.label().into(),
        row.file.map(|file| format!("{}:{}", file.device >> 20, file.device & 0xf_ffff)).into(),
        row.file.map(|file| file.inode).into(),
        row.file.map(|file| file.kind.word()).into(),
        row.file.map(|file| file.links).into(),
        used.calls.into(),
        Cell::ns(used.call_ns),
        mb(used.reads.bytes),
        used.reads.calls.into(),
        Cell::bytes(used.reads.bytes),
        mb(used.writes.bytes),
        used.writes.calls.into(),
        Cell::bytes(used.writes.bytes),
        hits,
        used.cached.calls.into(),
        Cell::bytes(used.cached.bytes),
        mb(used.pages_read_bytes),
        Cell::bytes(used.pages_read_bytes),
        Cell::bytes(used.pages_made_bytes),
        Cell::ns(used.disk.ns),
        used.disk.count.into(),
        Cell::ns(used.lock.ns),
        used.lock.count.into(),
        Cell::ns(used.other.ns),
        used.other.count.into(),
        mb(requests.read_bytes + requests.write_bytes),
        requests.count.into(),
        Cell::bytes(requests.read_bytes),
        Cell::bytes(requests.write_bytes),
    ]
}

/// Who waited for which file's lock, and who held it.
fn locks(context: &Context<'_>) -> Table {
    let findings = &context.findings;
    let rows = lock_waits(findings);
    let scale = Scale::ms_or_s(rows.first().map_or(0, |row| row.waits.ns));
    let columns = vec![
        Column::number(scale.unit()).scale(scale).json("ns"),
        Column::number("waits").json("count"),
        Column::number("longest").scale(scale).json("longest_ns"),
        Column::name("waited").json("waiter"),
        Column::json_only("waiter_tid"),
        Column::name("held by").json("holder"),
        Column::json_only("holder_tid"),
        Column::name("file").json("file").keep(Keep::PathEnd, 2),
    ];
    let mut table = Table::new("Waits for inode locks", columns);
    for row in limited(&rows, context.limit) {
        table.row([
            Cell::ns(row.waits.ns),
            row.waits.count.into(),
            Cell::ns(row.waits.longest_ns),
            task(findings, row.waiter).into(),
            findings.task(row.waiter).tid.0.into(),
            row.holder.map(|holder| task(findings, holder)).into(),
            row.holder.map(|holder| findings.task(holder).tid.0).into(),
            label(row.file).into(),
        ]);
    }
    note_cut(&mut table, rows.len(), "line");
    table
}

fn task(findings: &Findings<'_>, id: TaskId) -> String {
    super::labels::task(findings.task(id))
}

/// What requests of all tasks held.
fn disks(context: &Context<'_>) -> Table {
    let columns = vec![
        Column::name("requests hold").json("content"),
        Column::number("requests").json("requests"),
        Column::number("read, MB").decimals(1),
        Column::json_only("read_bytes"),
        Column::number("written, MB").decimals(1),
        Column::json_only("written_bytes"),
    ];
    let mut table = Table::new("Requests to disks, of all tasks", columns);
    for (class, sum) in requests(&context.findings) {
        table.row([
            class.name().into(),
            sum.count.into(),
            Cell::Real(sum.read_bytes as f64 / 1e6),
            Cell::bytes(sum.read_bytes),
            Cell::Real(sum.write_bytes as f64 / 1e6),
            Cell::bytes(sum.write_bytes),
        ]);
    }
    table
}

/// What tasks sent and received.
pub(super) fn network(context: &Context<'_>) -> Table {
    let findings = &context.findings;
    let mut rows: Vec<(TaskId, SocketUse)> = sockets(findings).collect();
    let bytes = |used: &SocketUse| {
        let all = [&used.network, &used.local].map(|it| it.sent.bytes + it.received.bytes);
        all.iter().sum::<u64>()
    };
    rows.sort_by_key(|(_, used)| std::cmp::Reverse(bytes(used)));
    let size = |title: &str| Column::number(title).decimals(1);
    let columns = vec![
        Column::name("task").json("task"),
        Column::json_only("tid"),
        size("network:\nsent"),
        Column::json_only("sends"),
        Column::json_only("sent_bytes"),
        size("received"),
        Column::json_only("receives"),
        Column::json_only("received_bytes"),
        Column::number("asleep\nin it, ms").scale(Scale::Ms).json("wait_ns"),
        Column::json_only("waits"),
        size("local:\nsent"),
        Column::json_only("local_sent_bytes"),
        size("received"),
        Column::json_only("local_received_bytes"),
        Column::number("asleep\nin it, ms").scale(Scale::Ms).json("local_wait_ns"),
    ];
    let title = "System calls of sockets: bytes in MB; network: IP";
    let mut table = Table::new(title, columns);
    let mb = |bytes: u64| Cell::Real(bytes as f64 / 1e6);
    for (id, SocketUse { network, local }) in limited(&rows, context.limit) {
        table.row([
            task(findings, *id).into(),
            findings.task(*id).tid.0.into(),
            mb(network.sent.bytes),
            network.sent.calls.into(),
            Cell::bytes(network.sent.bytes),
            mb(network.received.bytes),
            network.received.calls.into(),
            Cell::bytes(network.received.bytes),
            Cell::ns(network.waits.ns),
            network.waits.count.into(),
            mb(local.sent.bytes),
            Cell::bytes(local.sent.bytes),
            mb(local.received.bytes),
            Cell::bytes(local.received.bytes),
            Cell::ns(local.waits.ns),
        ]);
    }
    note_cut(&mut table, rows.len(), "task");
    table
}

pub(super) fn json(context: &Context<'_>) -> Value {
    json!({
        "files": table(context).json(),
        "locks": locks(context).json(),
        "requests": disks(context).json(),
        "sockets": network(context).json(),
    })
}
