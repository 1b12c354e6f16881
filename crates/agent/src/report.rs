//! Reports of a server: what it answered and found, what it took of a replay, and what it can take.

mod answer;

use std::time::Duration;

use serde_json::{Value, json};
use table::{Cell, Column, Part, Report, Table, cleaned, utc};

use crate::Replayed;

pub use answer::{QueryAnswer, query_answer};

const VERSION: u32 = 1;

/// What was sent in the name of so many hosts, as a table of one row.
#[must_use]
pub fn replay(hosts: u32, replayed: &Replayed) -> Report {
    let number = |title: &str, key: &'static str| Column::number(title).key(key);
    let acknowledged = replayed.accepted + replayed.known;
    let took_ns = ns(replayed.took);
    let per_s = |of: u64| {
        let seconds = seconds(took_ns);
        Cell::Real(if 0.0 < seconds { real(of) / seconds } else { 0.0 })
    };
    let cells = [
        (number("Hosts", "hosts"), Cell::count(hosts)),
        (number("Sent", "sent"), Cell::count(acknowledged + replayed.refused)),
        (number("Accepted", "accepted"), Cell::count(replayed.accepted)),
        (number("There already", "known"), Cell::count(replayed.known)),
        (number("Refused", "refused"), Cell::count(replayed.refused)),
        (number("Put off", "put_off"), Cell::count(replayed.put_off)),
        (number("Unanswered", "unanswered"), Cell::count(replayed.unanswered)),
        (number("Time", "took_ns"), Cell::ns(took_ns)),
        (number("Windows/s", "windows_per_s").decimals(1), per_s(acknowledged)),
        (number("Bytes/s", "bytes_per_s").decimals(0), per_s(replayed.bytes)),
        (number("Transfer, median", "transfer_median_ns"), Cell::ns(ns(replayed.transfer(0.5)))),
        (number("95 %", "transfer_p95_ns"), Cell::ns(ns(replayed.transfer(0.95)))),
        (Column::data("bytes"), Cell::count(replayed.bytes)),
    ];
    let (columns, row): (Vec<_>, Vec<_>) = cells.into_iter().unzip();
    let mut table = Table::new("", columns);
    table.row(row);
    let mut report = Report::default();
    for (reason, count) in &replayed.reasons {
        report.notes.push(format!("refused {count} times: {reason}"));
    }
    let mut json = table.json()[0].take();
    json["version"] = json!(VERSION);
    json["reasons"] =
        replayed.reasons.iter().map(|(reason, n)| (cleaned(reason), json!(n))).collect();
    report.json = json;
    report.parts.push(table.into());
    report
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

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn seconds(ns: u64) -> f64 {
    real(ns) / 1e9
}

#[cfg(test)]
mod test {
    use super::*;
    use table::Width;

    const S: u64 = 1_000_000_000;

    #[test]
    fn what_was_sent_is_one_row() {
        let replayed = Replayed {
            accepted: 90,
            known: 10,
            refused: 1,
            reasons: [("too\u{1b} old".to_owned(), 1)].into(),
            bytes: 1000,
            took: Duration::from_secs(10),
            ..Replayed::default()
        };
        let report = replay(2, &replayed);
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
