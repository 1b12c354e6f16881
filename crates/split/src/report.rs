//! `vmscope lab split`: turnaround of web requests by parts.

mod joined;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde_json::{Map, Value, json};
use table::{Cell, Column, Report, Scale, Table, length};

use crate::{CaptureNs, Counter, Outcome, Part, Parts, Request, Split, Unknown, WorkTime};

pub use joined::SplitRecording;

const VERSION: u32 = 1;

/// What CSV has a line for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SplitBy {
    Request,
    /// Each time of a request that is one part, to be joined with other times.
    Part,
}

/// What to show of a split capture.
#[derive(Debug, Clone, Copy)]
pub struct SplitQuery<'a> {
    /// What CSV has a line for.
    pub by: SplitBy,
    /// How many of the slowest requests people see; `None`: all.
    pub limit: Option<usize>,
    /// Names of interfaces, by their numbers.
    pub interfaces: &'a [String],
    /// What the VMs did meanwhile.
    pub recording: Option<SplitRecording<'a>>,
}

/// Parts of all requests together, and of the slowest.
#[must_use]
pub fn split(split: &Split, query: &SplitQuery<'_>) -> Report {
    let known: Vec<(&Request, &Parts)> = split.requests.iter().filter_map(with_parts).collect();
    let mut report = Report::default();
    facts(&mut report, split, known.len());
    let summary = summary(&known);
    let reasons = reasons(split);
    let requests = requests(split, split.requests.iter(), query.interfaces);
    report.json = json!({
        "version": VERSION,
        "begin_ns": split.first.map(|first| first.0),
        "end_ns": split.first.map(|_| split.last.0),
        "counts": counts(split),
        "summary": summary.json(),
        "unknown": reasons.json(),
        "requests": request_objects(split, &requests, query.recording),
    });
    if !known.is_empty() {
        report.parts.push(summary.into());
    }
    if !reasons.rows.is_empty() {
        report.parts.push(reasons.into());
    }
    if let Some(recording) = query.recording {
        recording.add(&mut report, split);
    }
    let slowest = slowest(split, query);
    if !slowest.rows.is_empty() {
        report.parts.push(slowest.into());
    }
    report.data = Some(match query.by {
        SplitBy::Request => requests,
        SplitBy::Part => times(split, query),
    });
    report
}

fn with_parts(request: &Request) -> Option<(&Request, &Parts)> {
    match &request.outcome {
        Outcome::Known(parts) => Some((request, parts)),
        Outcome::Unknown(_) => None,
    }
}

fn facts(report: &mut Report, split: &Split, n_known: usize) {
    let packets = split.counts.get(Counter::Packets);
    let took = split.first.map_or(0, |first| split.last.since(first));
    report.fact("Capture", format!("{packets} packets in {}", length(took)));
    let whole = split.requests.len();
    report.fact("Requests", format!("{whole} with a whole response, {n_known} of them split"));
    let queries: u64 =
        split.requests.iter().filter_map(with_parts).map(|(_, p)| u64::from(p.queries())).sum();
    report.fact("Queries", format!("{queries} of these requests"));
    for (counter, (_, words, n)) in NOTED.iter().map(|counter| (counter, of(split, *counter))) {
        if 0 < n {
            let advice = advice(*counter).map(|text| format!(" ({text})")).unwrap_or_default();
            report.notes.push(format!("{words}: {n}{advice}"));
        }
    }
    if !split.strangers.is_empty() {
        let names: Vec<String> = split.strangers.iter().take(4).map(ToString::to_string).collect();
        report.notes.push(format!(
            "queries came from {}, which received no requests: if that is a web server's other address, say --alias",
            names.join(", ")
        ));
    }
    if let Some((outer, inner)) = passed_on(&split.requests) {
        report.notes.push(format!(
            "{outer} passes requests on to {inner}, and both are listed: name the server whose requests count with --web"
        ));
    }
    if whole == 0 {
        report.notes.push("no HTTP/1.x request with its response was found".to_owned());
    }
}

/// A web server that sends a request to another one during a request of its own, and that one. Requests are in the order
/// in which they began.
fn passed_on(requests: &[Request]) -> Option<(SocketAddr, SocketAddr)> {
    // By address, the request that ends last of those that have begun.
    let mut under_way: BTreeMap<IpAddr, &Request> = BTreeMap::new();
    for request in requests {
        let outer = under_way.get(&request.client.ip());
        let is_inner =
            |outer: &&&Request| request.end <= outer.end && outer.server != request.server;
        if let Some(outer) = outer.filter(is_inner) {
            return Some((outer.server, request.server));
        }
        let latest = under_way.entry(request.server.ip()).or_insert(request);
        if latest.end < request.end {
            *latest = request;
        }
    }
    None
}

/// What makes results less complete.
const NOTED: [Counter; 24] = [
    Counter::DroppedByCapture,
    Counter::LostPlaces,
    Counter::LostBytes,
    Counter::CutBytes,
    Counter::LeftOut,
    Counter::WithoutTime,
    Counter::UnknownInterface,
    Counter::UnknownBlocks,
    Counter::BadHeaders,
    Counter::Fragments,
    Counter::TimeWentBack,
    Counter::BeganBefore,
    Counter::Retransmitted,
    Counter::Reordered,
    Counter::LostMessages,
    Counter::Evicted,
    Counter::TooMany,
    Counter::Http2,
    Counter::Encrypted,
    Counter::DbEncrypted,
    Counter::DbUndecoded,
    Counter::WithoutResponse,
    Counter::WithoutRequest,
    Counter::Ambiguous,
];

fn advice(counter: Counter) -> Option<&'static str> {
    match counter {
        Counter::DroppedByCapture => Some("capture less, or with a larger --ring"),
        Counter::CutBytes => Some("capture with a larger --snaplen"),
        _ => None,
    }
}

fn of(split: &Split, counter: Counter) -> (&'static str, &'static str, u64) {
    split.counts.iter().nth(counter as usize).unwrap_or(("", "", 0))
}

fn counts(split: &Split) -> Value {
    let all = split.counts.iter().map(|(key, _, n)| (key.to_owned(), Value::from(n)));
    Value::Object(all.collect::<Map<_, _>>())
}

/// Whether a request with these parts has this one, be it of no time.
fn has(part: Part, parts: &Parts) -> bool {
    (part == Part::NoQueries) == (parts.trips() == 0)
}

/// Parts and their sum over all requests that have them.
fn summary(known: &[(&Request, &Parts)]) -> Table {
    let ms = |title: &str, key| Column::number(title).scale(Scale::Ms).key(key);
    let columns = vec![
        Column::name("Part").key("part"),
        Column::number("Requests").key("requests"),
        ms("Sum", "sum_ns"),
        Column::number("%").json("share").csv("percent").decimals(1),
        ms("Mean", "mean_ns"),
        ms("50 %", "p50_ns"),
        ms("90 %", "p90_ns"),
        ms("95 %", "p95_ns"),
        ms("99 %", "p99_ns"),
        ms("Longest", "longest_ns"),
    ];
    let mut table = Table::new("Turnaround and its parts, in ms", columns);
    let all: Vec<u64> = known.iter().map(|(request, _)| request.turnaround_ns()).collect();
    let whole: u64 = all.iter().sum();
    for part in Part::ALL {
        // A request with one query has none in between: that is a part of no time.
        let own = known.iter().filter(|(_, parts)| has(part, parts));
        let lengths: Vec<u64> = own.map(|(_, parts)| parts.ns(part)).collect();
        if !lengths.is_empty() {
            table.row(summary_row(part.name(), lengths, whole));
        }
    }
    table.row(summary_row("Turnaround", all, whole));
    table.notes = vec![
        "C-W-D: request to first query; W-D-W: the database owes an answer; D-W-D: between answers and queries"
            .to_owned(),
        "D-W-C: last answer to the response's last byte; C-W-C: requests without queries".to_owned(),
        "Parts add up to the turnaround exactly, of each request and in all.".to_owned(),
    ];
    table
}

fn summary_row(name: &str, mut lengths: Vec<u64>, whole: u64) -> Vec<Cell> {
    lengths.sort_unstable();
    let sum: u64 = lengths.iter().sum();
    let percentile = |percent: usize| {
        let rank = (lengths.len() * percent).div_ceil(100).max(1);
        Cell::ns(lengths.get(rank - 1).copied().unwrap_or(0))
    };
    let n = lengths.len() as u64;
    vec![
        name.into(),
        n.into(),
        Cell::ns(sum),
        Cell::Share(sum, whole),
        Cell::ns(sum / n.max(1)),
        percentile(50),
        percentile(90),
        percentile(95),
        percentile(99),
        percentile(100),
    ]
}

/// Why requests were not split.
fn reasons(split: &Split) -> Table {
    let columns = vec![
        Column::number("Requests").key("requests"),
        Column::number("Turnaround, sum").scale(Scale::Ms).key("sum_ns"),
        Column::name("Why").csv("words"),
        Column::data("unknown"),
    ];
    let mut table = Table::new("Requests that can't be split, in ms", columns);
    let mut found: Vec<(Unknown, u64, u64)> = Vec::new();
    for request in &split.requests {
        let Outcome::Unknown(why) = request.outcome else { continue };
        match found.iter_mut().find(|(known, ..)| *known == why) {
            Some((_, n, sum)) => {
                *n += 1;
                *sum += request.turnaround_ns();
            }
            None => found.push((why, 1, request.turnaround_ns())),
        }
    }
    found.sort();
    for (why, n, sum) in found {
        table.row([n.into(), Cell::ns(sum), why.words().into(), why.key().into()]);
        if why == Unknown::NoDatabase {
            table.notes.push(
                "A database in the web server's own guest is not seen on a tap: trace the guest meanwhile (vmscope trace record --vm), and give --trace"
                    .to_owned(),
            );
        }
    }
    table
}

/// A line for each of these requests.
fn requests<'a>(
    split: &Split,
    requests: impl Iterator<Item = &'a Request>,
    interfaces: &[String],
) -> Table {
    let ms = |title: &str, key| Column::number(title).scale(Scale::Ms).key(key);
    let mut columns = vec![
        Column::number("at, s").scale(Scale::S),
        Column::name("Request"),
        Column::data("method"),
        Column::data("target"),
        Column::number("Status").key("status"),
        ms("Turnaround", "turnaround_ns"),
    ];
    columns.extend(PART_KEYS.iter().zip(Part::ALL).map(|(key, part)| ms(part.name(), key)));
    columns.extend([
        Column::number("Queries").key("queries"),
        Column::name("Not split because"),
        Column::data("trips"),
        Column::data("unknown"),
        Column::data("begin_ns"),
        Column::data("sent_ns"),
        Column::data("answered_ns"),
        Column::data("end_ns"),
        Column::data("client"),
        Column::data("server"),
        Column::data("interface"),
    ]);
    let mut table = Table::new("Requests", columns);
    let origin = split.first.unwrap_or_default();
    requests.for_each(|request| table.row(request_row(request, origin, interfaces)));
    table
}

const PART_KEYS: [&str; 5] = ["c_w_d_ns", "w_d_w_ns", "d_w_d_ns", "d_w_c_ns", "c_w_c_ns"];

fn request_row(request: &Request, origin: CaptureNs, interfaces: &[String]) -> Vec<Cell> {
    let mut row = vec![
        Cell::ns(request.begin.since(origin)),
        format!("{} {}", request.method, request.target).into(),
        (&*request.method).into(),
        (&*request.target).into(),
        Cell::count(request.status),
        Cell::ns(request.turnaround_ns()),
    ];
    let (parts, why) = match &request.outcome {
        Outcome::Known(parts) => (Some(parts), None),
        Outcome::Unknown(why) => (None, Some(why)),
    };
    row.extend(Part::ALL.map(|part| match parts {
        Some(parts) if has(part, parts) => Cell::ns(parts.ns(part)),
        Some(_) | None => Cell::NONE,
    }));
    row.extend([
        parts.map(|parts| Cell::count(parts.queries())).into(),
        why.map(|why| Cell::from(why.words())).into(),
        parts.map(|parts| Cell::count(parts.trips())).into(),
        why.map(|why| Cell::from(why.key())).into(),
        Cell::count(request.begin.0),
        Cell::count(request.sent.0),
        Cell::count(request.answered.0),
        Cell::count(request.end.0),
        request.client.to_string().into(),
        request.server.to_string().into(),
        interface(request.interface, interfaces),
    ]);
    row
}

fn interface(number: u32, interfaces: &[String]) -> Cell {
    let name = interfaces.get(number as usize).filter(|name| !name.is_empty());
    name.map_or_else(|| number.to_string(), Clone::clone).into()
}

/// Requests for JSON: with their times, and what VMs did in them. Without a recording nothing is known of a request that
/// can't be split.
fn request_objects(split: &Split, table: &Table, recording: Option<SplitRecording<'_>>) -> Value {
    let time_json = |time: &WorkTime| {
        let mut object = json!({
            "part": time.part.map(Part::name),
            "begin_ns": time.begin.0,
            "end_ns": time.end.0,
        });
        if let Some(recording) = recording {
            object["spent"] = recording.time_json(time);
        }
        object
    };
    let object = |(request, row): (&Request, &table::Row)| {
        let mut object = table.object(row);
        if recording.is_some() || with_parts(request).is_some() {
            object["times"] = request.work_times().iter().map(time_json).collect();
        }
        object
    };
    split.requests.iter().zip(&table.rows).map(object).collect()
}

/// A line for each time that is one part of a request; with a recording, for requests that can't be split, too.
fn times(split: &Split, query: &SplitQuery<'_>) -> Table {
    let keys =
        ["request", "part", "begin_ns", "end_ns", "ns", "client", "server", "interface", "target"];
    let mut table = Table::new("", keys.map(Column::data).to_vec());
    if query.recording.is_some() {
        table.columns.extend(SplitRecording::columns());
    }
    for (n, request) in (1_u64..).zip(&split.requests) {
        if query.recording.is_none() && with_parts(request).is_none() {
            continue;
        }
        for time in request.work_times() {
            let row = [
                n.into(),
                joined::name(time.part).into(),
                Cell::count(time.begin.0),
                Cell::count(time.end.0),
                Cell::ns(time.end.since(time.begin)),
                request.client.to_string().into(),
                request.server.to_string().into(),
                interface(request.interface, query.interfaces),
                (&*request.target).into(),
            ];
            let spent = query.recording.iter().flat_map(|recording| recording.cells(&time));
            table.row(row.into_iter().chain(spent));
        }
    }
    table
}

fn slowest(split: &Split, query: &SplitQuery<'_>) -> Table {
    let mut slow: Vec<&Request> = split.requests.iter().collect();
    slow.sort_by_key(|request| Reverse(request.turnaround_ns()));
    let n = query.limit.unwrap_or(slow.len()).min(slow.len());
    let mut table = requests(split, slow[..n].iter().copied(), query.interfaces);
    table.title = format!("Slowest of {} requests, in ms", slow.len());
    table
}

#[cfg(test)]
mod test {
    use crate::drawn::Drawing;
    use crate::{Roles, Splitter};

    use super::*;

    const PROXY: &str = "10.0.0.2:80";
    const WEB: &str = "10.0.0.3:8000";

    /// A request from 100 to 200 us to the proxy, and one to the web server from `begin` to `end`.
    fn proxied(begin: u64, end: u64, roles: Roles) -> Report {
        let mut drawing = Drawing::default();
        let outer = drawing.open(10, "10.0.0.9:40000", PROXY);
        let inner = drawing.open(20, "10.0.0.2:40000", WEB);
        let (question, answer) = (
            &b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..],
            &b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"[..],
        );
        drawing.client(outer, 100, question);
        drawing.client(inner, begin, question);
        drawing.server(inner, end, answer);
        drawing.server(outer, 200, answer);
        let mut splitter = Splitter::new(roles);
        drawing.in_order().iter().for_each(|drawn| splitter.packet(&drawn.packet()));
        let query =
            SplitQuery { by: SplitBy::Request, limit: None, interfaces: &[], recording: None };
        super::split(&splitter.finish(), &query)
    }

    #[test]
    fn a_proxy_is_noted_with_what_helps() {
        let notes = |report: Report| report.notes.iter().filter(|n| n.contains("--web")).count();
        let report = proxied(110, 190, Roles::default());
        assert!(
            report.notes.iter().any(|note| note.starts_with(
                "10.0.0.2:80 passes requests on to 10.0.0.3:8000, and both are listed"
            )),
            "{:?}",
            report.notes
        );
        // With --web one of them counts, and a request outside of the proxy's is its own.
        let roles = Roles { web: vec![WEB.parse().unwrap()], ..Roles::default() };
        assert_eq!(notes(proxied(110, 190, roles)), 0);
        assert_eq!(notes(proxied(110, 250, Roles::default())), 0);
    }
}
