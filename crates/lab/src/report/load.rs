//! What a load generator found out.

use serde_json::json;
use table::{Cell, Column, Report, Table};

use crate::run::Load;

/// Percentiles that are shown.
const PERCENTILES: [f64; 7] = [50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 100.0];

/// Reports the turnarounds of requests.
#[must_use]
pub fn load(load: &Load) -> Report {
    let all = &load.turnarounds;
    let mut report = Report::default();
    let seconds = load.length_ns as f64 / 1e9;
    report.fact("Requests", format!("{} in {seconds:.1} s, {:.1}/s", all.len(), load.sent_per_s()));
    report.fact("Answers", format!("{}, {:.1}/s", all.n_answered(), load.answered_per_s()));
    for (why, n) in all.failed() {
        report.notes.push(format!("{n} requests failed: {why}"));
    }
    let late_ms = load.late_p99_ns as f64 / 1e6;
    report.fact("Sent late", format!("99 % by less than {late_ms:.3} ms"));
    let columns = vec![
        Column::number("% of requests").key("percent"),
        Column::number("within").key("ns"),
        Column::data("outcome"),
    ];
    let mut table = Table::new("Turnaround, from when a request was meant to be sent", columns);
    for percent in PERCENTILES {
        let ns = all.percentile(percent);
        let outcome = match ns {
            Some(_) => "answered",
            None if all.is_empty() => "none sent",
            None => "failed",
        };
        table.row([
            Cell::Real(percent),
            ns.map_or(Cell::Unknown(outcome), Cell::ns),
            outcome.into(),
        ]);
    }
    report.json = json!({
        "version": 1,
        "sent": all.len(),
        "answered": all.n_answered(),
        "failed": all.failed(),
        "mean_ns": all.mean(),
        "late_p99_ns": load.late_p99_ns,
        "percentiles": table.json(),
    });
    report.parts.push(table.into());
    report
}
