//! `vmscope report --children`, `--callers`, `--callees`, `--by stack`: who calls whom.
//!
//! ```text
//! Samples  %Ratio   Self  %Self  Function      Process  Module   VM
//!   16984   56.62      0   0.00  main          redis    redis    vm1
//!   16120   53.74  16120  53.74  rdbSaveRio    redis    redis    vm1
//! ```

use std::sync::Arc;

use model::Header;
use serde_json::{Value, json};
use table::{Cell, Column, Keep, Report, Table, cleaned, short_module};

use crate::calls::{CallRow, Calls, CallsQuery};
use crate::report::profile::VERSION;
use crate::report::recording::{INCOMPLETE, dropped, host, missed, sampling};

/// Stands between the functions of a stack. The innermost comes first.
const CALLED_BY: &str = " < ";

/// A function and its callers in one cell.
pub(super) fn joined(function: &str, callers: &[Arc<str>]) -> String {
    let callers = callers.iter().map(AsRef::as_ref);
    std::iter::once(function).chain(callers).collect::<Vec<_>>().join(CALLED_BY)
}

/// Calls of a recording. `view` names the samples that were selected, `limit` is the number of lines to show.
#[must_use]
pub fn calls(calls: &Calls, header: &Header, view: &str, limit: Option<usize>) -> Report {
    let mut table = table(calls);
    table.limit(limit);
    let mut report = Report { json: json(calls, &table), ..Report::default() };
    report.fact("Host", host(header));
    report.fact("Recorded", format!("{} (vmscope {})", sampling(header), header.vmscope_version));
    report.fact("View", format!("{view}, {}", question(&calls.query)));
    report.fact("Dropped", dropped(header));
    report.fact("Missed", missed(header));
    if !header.complete {
        report.fact("Incomplete", INCOMPLETE);
    }
    report.parts = vec![table.into()];
    report
}

fn question(query: &CallsQuery) -> String {
    match query {
        CallsQuery::Children => "functions with what they call".to_owned(),
        CallsQuery::Callers(name) => format!("callers of {name}"),
        CallsQuery::Callees(name) => format!("what {name} calls"),
        CallsQuery::Stacks => "by stack".to_owned(),
    }
}

fn table(calls: &Calls) -> Table {
    let is_tree = matches!(calls.query, CallsQuery::Callers(_) | CallsQuery::Callees(_));
    let has_own = !matches!(calls.query, CallsQuery::Callers(_) | CallsQuery::Stacks);
    let by_stack = calls.query == CallsQuery::Stacks;
    let mut columns = vec![
        Column::number("Samples").key("samples"),
        Column::number("%Ratio").csv("percent").json("share"),
    ];
    if has_own {
        columns.extend([
            Column::number("Self").key("self_samples"),
            Column::number("%Self").csv("self_percent").json("self_share"),
        ]);
    }
    columns.extend([Column::data("depth"), Column::data("function"), Column::data("module")]);
    columns.push(
        if by_stack { Column::name("Stack").csv("stack") } else { Column::name("Function") }
            .keep(Keep::Start, 3),
    );
    columns.push(Column::json_only("frames"));
    columns.push(Column::name("Module").keep(Keep::PathEnd, 2));
    if !is_tree {
        columns.extend([
            Column::name("Process").key("process").keep(Keep::Start, 2),
            Column::name("VM").key("vm").keep(Keep::Start, 2),
        ]);
    }
    let mut table = Table::new("", columns);
    for row in &calls.rows {
        let CallRow { samples, own, depth, name, module, vm, process, frames, .. } = row;
        let mut cells = vec![Cell::count(*samples), Cell::Share(*samples, calls.total.max(1))];
        if has_own {
            cells.extend([Cell::count(*own), Cell::Share(*own, calls.total.max(1))]);
        }
        let short = module.as_deref().map_or("-", short_module).to_owned();
        let shown = if by_stack {
            frames.join(CALLED_BY)
        } else {
            format!("{}{name}", "  ".repeat(*depth))
        };
        let frames: Value = frames.iter().map(|frame| cleaned(frame)).collect();
        cells.extend([
            (*depth as u64).into(),
            name.as_str().into(),
            module.clone().into(),
            Cell::Text(shown),
            Cell::Json(frames),
            Cell::Text(short),
        ]);
        if !is_tree {
            cells.extend([process.clone().into(), vm.clone().into()]);
        }
        table.row(cells);
    }
    table
}

fn json(calls: &Calls, table: &Table) -> Value {
    let (kind, name) = match &calls.query {
        CallsQuery::Children => ("children", None),
        CallsQuery::Callers(name) => ("callers", Some(cleaned(name))),
        CallsQuery::Callees(name) => ("callees", Some(cleaned(name))),
        CallsQuery::Stacks => ("stack", None),
    };
    json!({
        "version": VERSION,
        "query": { "by": kind, "function": name },
        "totals": { "samples": calls.total, "matched": calls.matched },
        "rows": table.json(),
        "other_rows": table.n_cut,
    })
}
