//! `vmscope replay` and `vmscope capacity`: what a server took, and what it can take; and what it found.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::recording::cleaned;
use crate::{Cell, Column, Part, Report, Table, utc};

const VERSION: u32 = 1;

/// What was sent to a server in the name of many hosts.
#[derive(Debug, Clone, Default)]
pub struct ReplayFigures {
    pub hosts: u64,
    /// Windows that the server stored.
    pub accepted: u64,
    /// That it had already.
    pub known: u64,
    /// That it does not want.
    pub refused: u64,
    /// Why, and how many.
    pub reasons: BTreeMap<String, u64>,
    /// Times that the server wanted a window later.
    pub put_off: u64,
    /// Times that it did not answer.
    pub unanswered: u64,
    /// Bytes of windows that it has.
    pub bytes: u64,
    /// Since the first window was sent.
    pub took_ns: u64,
    /// A window's transfer: the median.
    pub transfer_median_ns: u64,
    /// The time within which 95 % were transferred.
    pub transfer_p95_ns: u64,
}

impl ReplayFigures {
    fn per_second(&self, of: u64) -> f64 {
        let seconds = seconds(self.took_ns);
        if 0.0 < seconds { real(of) / seconds } else { 0.0 }
    }
}

/// What was sent, as a table of one row.
#[must_use]
pub fn replay(figures: &ReplayFigures) -> Report {
    let number = |title: &str, key: &'static str| Column::number(title).key(key);
    let acknowledged = figures.accepted + figures.known;
    let cells = [
        (number("Hosts", "hosts"), Cell::count(figures.hosts)),
        (number("Sent", "sent"), Cell::count(acknowledged + figures.refused)),
        (number("Accepted", "accepted"), Cell::count(figures.accepted)),
        (number("There already", "known"), Cell::count(figures.known)),
        (number("Refused", "refused"), Cell::count(figures.refused)),
        (number("Put off", "put_off"), Cell::count(figures.put_off)),
        (number("Unanswered", "unanswered"), Cell::count(figures.unanswered)),
        (number("Time", "took_ns"), Cell::ns(figures.took_ns)),
        (number("Windows/s", "windows_per_s").decimals(1), per_s(figures, acknowledged)),
        (number("Bytes/s", "bytes_per_s").decimals(0), per_s(figures, figures.bytes)),
        (number("Transfer, median", "transfer_median_ns"), Cell::ns(figures.transfer_median_ns)),
        (number("95 %", "transfer_p95_ns"), Cell::ns(figures.transfer_p95_ns)),
        (Column::data("bytes"), Cell::count(figures.bytes)),
    ];
    let (columns, row): (Vec<_>, Vec<_>) = cells.into_iter().unzip();
    let mut table = Table::new("", columns);
    table.row(row);
    let mut report = Report::default();
    for (reason, count) in &figures.reasons {
        report.notes.push(format!("refused {count} times: {reason}"));
    }
    let mut json = table.json()[0].take();
    json["version"] = json!(VERSION);
    json["reasons"] =
        figures.reasons.iter().map(|(reason, n)| (cleaned(reason), json!(n))).collect();
    report.json = json;
    report.parts.push(table.into());
    report
}

fn per_s(figures: &ReplayFigures, of: u64) -> Cell {
    Cell::Real(figures.per_second(of))
}

/// What a server found: its answer of `/v1/findings`.
#[must_use]
pub fn findings_listing(answer: Value) -> Report {
    let columns = ["id", "state", "found_unix_s", "over_unix_s", "text"];
    let mut data = Table::new("", columns.map(Column::csv_only).into());
    let mut report = Report::default();
    report.fact("Windows", answer["windows"].to_string());
    let text = |finding: &Value, key: &str| finding[key].as_str().unwrap_or_default().to_owned();
    for finding in answer["findings"].as_array().into_iter().flatten() {
        let head = format!("{} {}", text(finding, "id"), text(finding, "state"));
        let head = std::iter::once(head).chain(handled(finding)).collect::<Vec<_>>().join("\n");
        report.parts.push(Part::Text(format!("{head}\n{}", text(finding, "text"))));
        let time = |key: &str| finding[key].as_u64().map(Cell::count);
        data.row([
            text(finding, "id").into(),
            text(finding, "state").into(),
            time("found_unix_s").unwrap_or(Cell::Unknown("")),
            time("over_unix_s").unwrap_or(Cell::Unknown("")),
            text(finding, "text").into(),
        ]);
    }
    if report.parts.is_empty() {
        report.parts.push(Part::Prose("Nothing was found.".to_owned()));
    }
    report.data = Some(data);
    report.json = answer;
    report
}

/// What operators said about a finding, a line each.
fn handled(finding: &Value) -> Vec<String> {
    let said = |what: &str, of: &Value, time: &str| {
        let text = |key: &str| cleaned(of[key].as_str().unwrap_or_default());
        let at = of[time].as_u64().map(utc).unwrap_or_default();
        let note = text("note");
        let note = if note.is_empty() { note } else { format!(": {note}") };
        format!("  {what} {at} by {}{note}", text("by"))
    };
    let acknowledged = &finding["acknowledged"];
    let acknowledged =
        acknowledged.is_object().then(|| said("acknowledged", acknowledged, "unix_s"));
    let silenced = &finding["silenced"];
    let silenced = silenced.is_object().then(|| said("silenced until", silenced, "until_unix_s"));
    acknowledged.into_iter().chain(silenced).collect()
}

/// How long a window takes where, as measured.
#[derive(Debug, Clone, Copy)]
pub struct Capacity {
    /// Transfer and durable storage of one window, nothing else going on; `None`: not measured.
    pub t0_ns: Option<u64>,
    /// Collection: a window's length.
    pub t1_ns: u64,
    /// Analysis of one window.
    pub t2_ns: u64,
    /// Windows that were transferred and analysed with all that the server has, and the time that it took.
    pub all: Option<(u64, u64)>,
    /// Windows that t2 is the mean of.
    pub windows: u64,
}

impl Capacity {
    /// Hosts of a server that does one thing at a time: the condition of the thesis, solved for n.
    #[must_use]
    pub fn one_at_a_time(&self) -> f64 {
        let (t0, t1, t2) = (real(self.t0_ns.unwrap_or(0)), real(self.t1_ns), real(self.t2_ns));
        // Collection goes on while windows are stored, so t0 does not lengthen the cycle of a host: stricter than (5.1).
        if 0.0 < t0 + t2 { t1 / (t0 + t2) } else { 0.0 }
    }

    /// The same where a host would collect nothing while it stores, as the original did.
    #[must_use]
    pub fn condition(&self) -> f64 {
        let (t0, t1, t2) = (real(self.t0_ns.unwrap_or(0)), real(self.t1_ns), real(self.t2_ns));
        if 0.0 < t0 + t2 { (t0 + t1) / (t0 + t2) } else { 0.0 }
    }

    /// Hosts whose windows the server transferred and analysed in the time that it takes to collect them.
    #[must_use]
    pub fn measured(&self) -> Option<f64> {
        let (windows, took_ns) = self.all?;
        (0 < took_ns).then(|| real(windows) * real(self.t1_ns) / real(took_ns))
    }
}

/// t0, t1, t2 and how many hosts a server can take.
#[must_use]
pub fn capacity(capacity: &Capacity) -> Report {
    let mut times = Table::new(
        "",
        vec![
            Column::name("Time of a window"),
            Column::number("Mean").key("ns"),
            Column::name("What"),
        ],
    );
    let t0 = capacity.t0_ns.map_or(Cell::Unknown("not measured"), Cell::ns);
    let what = [
        ("t0", t0, "transfer until stored durably (median)"),
        ("t1", Cell::ns(capacity.t1_ns), "collection"),
        ("t2", Cell::ns(capacity.t2_ns), "analysis"),
    ];
    for (name, cell, text) in what {
        times.row([name.into(), cell, text.into()]);
    }
    let mut hosts = Table::new(
        "",
        vec![
            Column::name("Hosts of this server"),
            Column::number("n").decimals(1),
            Column::name("How"),
        ],
    );
    let all = capacity.measured().map_or(Cell::Unknown("not measured"), Cell::Real);
    let condition = Cell::Real(capacity.condition());
    hosts.row(["measured".into(), all, "all CPUs: windows x t1 / time".into()]);
    let alone = Cell::Real(capacity.one_at_a_time());
    hosts.row(["one at a time".into(), alone, "n < t1 / (t0 + t2): collection never stops".into()]);
    hosts.row(["condition (5.1)".into(), condition, "t0 + t1 > (t0 + t2) x n".into()]);
    let mut report = Report::default();
    report.fact("Windows", capacity.windows.to_string());
    report.json = json!({
        "version": VERSION,
        "t0_ns": capacity.t0_ns,
        "t1_ns": capacity.t1_ns,
        "t2_ns": capacity.t2_ns,
        "windows": capacity.windows,
        "all_windows": capacity.all.map(|(windows, _)| windows),
        "all_ns": capacity.all.map(|(_, ns)| ns),
        "hosts_measured": capacity.measured(),
        "hosts_one_at_a_time": capacity.one_at_a_time(),
        "hosts_by_condition": capacity.condition(),
    });
    report.parts = vec![times.into(), hosts.into()];
    report
}

#[expect(clippy::cast_precision_loss, reason = "rates need no more digits")]
fn real(n: u64) -> f64 {
    n as f64
}

fn seconds(ns: u64) -> f64 {
    real(ns) / 1e9
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::Width;

    const S: u64 = 1_000_000_000;

    #[test]
    fn what_was_sent_is_one_row() {
        let figures = ReplayFigures {
            hosts: 2,
            accepted: 90,
            known: 10,
            refused: 1,
            reasons: [("too\u{1b} old".to_owned(), 1)].into(),
            bytes: 1000,
            took_ns: 10 * S,
            ..ReplayFigures::default()
        };
        let report = replay(&figures);
        let text = report.text(Width::Unlimited);
        assert!(text.starts_with("Note: refused 1 times: too\\u{1b} old\n"), "{text}");
        let json = report.json;
        assert_eq!((&json["sent"], &json["known"]), (&json!(101), &json!(10)));
        assert_eq!((&json["windows_per_s"], &json["bytes_per_s"]), (&json!(10.0), &json!(100.0)));
        assert_eq!(json["reasons"], json!({"too\\u{1b} old": 1}));
    }

    /// One host:  |--------- t1 = 60 s ---------|t0 = 1 s|, of which the server needs t0 + t2 = 3 s.
    #[test]
    fn hosts_follow_from_the_times() {
        let check = |t0_ns, t2_ns, all, expected: (f64, f64, Option<f64>)| {
            let capacity = Capacity { t0_ns, t1_ns: 60 * S, t2_ns, all, windows: 1 };
            let found = (capacity.one_at_a_time(), capacity.condition(), capacity.measured());
            assert_eq!(found, expected);
        };
        check(Some(S), 2 * S, Some((100, 100 * S)), (20.0, 61.0 / 3.0, Some(60.0)));
        check(None, 2 * S, None, (30.0, 30.0, None));
        check(None, 0, Some((0, 0)), (0.0, 0.0, None));
        let shown = Capacity {
            t0_ns: Some(S),
            t1_ns: 60 * S,
            t2_ns: 2 * S,
            all: Some((100, 100 * S)),
            windows: 100,
        };
        let text = capacity(&shown).text(Width::Unlimited);
        let words: Vec<String> = text
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        for line in
            ["Windows: 100", "t1 60.000 collection", "measured 60.0 all CPUs: windows x t1 / time"]
        {
            assert!(words.iter().any(|found| found == line), "{text}");
        }
    }
}
