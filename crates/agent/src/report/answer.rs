//! Answers to queries of a fleet: tables whose columns are known only when they come.

use serde_json::{Value, json};
use table::{Cell, Column, Report, Table, Unit, cleaned};

/// Version of the JSON.
const VERSION: u32 = 1;

/// What a server answered.
#[derive(Debug, Clone, Copy)]
pub struct QueryAnswer<'a> {
    /// Names of the columns. Those of times end in `ns`, or in `unix_s`.
    pub columns: &'a [String],
    pub rows: &'a [Vec<Value>],
    /// Why rows or windows are missing.
    pub partial: &'a [String],
    /// Number of windows that were read; `None`: the answer does not come from windows.
    pub windows: Option<u64>,
}

/// The answer as a table. That it is partial stands above it.
#[must_use]
pub fn query_answer(answer: &QueryAnswer<'_>) -> Report {
    let QueryAnswer { columns, rows, partial, windows } = *answer;
    let column = |(at, name): (usize, &String)| {
        let values = || rows.iter().filter_map(|row| row.get(at));
        let is_number = values().any(Value::is_number);
        // A mean has no unit behind its name.
        let has_unit = unit_of(name) != Unit::Count && !values().any(Value::is_f64);
        // The unit that is shown stands behind the name.
        let title = match name.as_str() {
            "ns" | "unix_s" if has_unit => "time",
            name if has_unit => {
                ["_ns", "_unix_s"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name)
            }
            name => name,
        };
        let title = cleaned(title);
        let column = if is_number { Column::number(title) } else { Column::name(title) };
        column.csv(name.clone())
    };
    let mut table = Table::new("", columns.iter().enumerate().map(column).collect());
    for row in rows {
        table.row(columns.iter().zip(row).map(|(name, value)| cell(name, value)));
    }
    let mut report = Report::default();
    if let Some(windows) = windows {
        report.fact("Windows", windows.to_string());
    }
    report.notes = partial.iter().map(|reason| format!("partial answer: {reason}")).collect();
    report.parts.push(table.into());
    report.json = json!({
        "version": VERSION,
        "columns": columns.iter().map(|name| cleaned(name)).collect::<Value>(),
        "rows": rows.iter().map(|row| row.iter().map(clean_value).collect::<Value>()).collect::<Value>(),
        "partial": partial.iter().map(|reason| cleaned(reason)).collect::<Value>(),
    });
    if let Some(windows) = windows {
        report.json["windows"] = windows.into();
    }
    report
}

fn unit_of(column: &str) -> Unit {
    match column {
        // A part of a window's name.
        "window_ns" => Unit::Count,
        column if column == "ns" || column.ends_with("_ns") => Unit::Ns,
        column if column == "unix_s" || column.ends_with("_unix_s") => Unit::UnixS,
        _ => Unit::Count,
    }
}

fn cell(column: &str, value: &Value) -> Cell {
    let unit = unit_of(column);
    match value {
        Value::Null => Cell::NONE,
        Value::Bool(flag) => Cell::Flag(*flag),
        Value::String(text) => text.as_str().into(),
        Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(n), _) => Cell::Number(n, unit),
            (_, Some(below_0)) if unit != Unit::UnixS => Cell::Change(below_0, unit),
            _ => Cell::Real(number.as_f64().unwrap_or(f64::NAN)),
        },
        Value::Array(_) | Value::Object(_) => value.to_string().as_str().into(),
    }
}

fn clean_value(value: &Value) -> Value {
    match value {
        Value::String(text) => cleaned(text).into(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use table::Width;

    #[test]
    fn an_answer_is_a_table() {
        let columns = ["vm", "thief", "stolen_ns", "share", "until_unix_s"].map(str::to_owned);
        let rows = [
            vec![json!("db"), json!("web vcpu0"), json!(1_500_000_000_u64), json!(0.5), json!(60)],
            vec![json!("db\u{1b}"), Value::Null, json!(250_000_000_u64), json!(0.25), Value::Null],
        ];
        let partial = ["2 windows are not analysed yet".to_owned()];
        let answer =
            QueryAnswer { columns: &columns, rows: &rows, partial: &partial, windows: Some(7) };
        let report = query_answer(&answer);
        let text = "Windows: 7\n\
                    Note: partial answer: 2 windows are not analysed yet\n\n\
                    vm        thief      stolen, ms  share                 until\n\
                    db        web vcpu0    1500.000   0.50  1970-01-01T00:01:00Z\n\
                    db\\u{1b}  -             250.000   0.25                     -\n";
        assert_eq!(report.text(Width::Unlimited), text);
        assert_eq!(report.csv().lines().next(), Some("vm,thief,stolen_ns,share,until_unix_s"));
        assert_eq!(report.csv().lines().nth(1), Some("db,web vcpu0,1500000000,0.50,60"));
        assert_eq!(report.json["rows"][0][2], 1_500_000_000_u64);
        assert_eq!(report.json["windows"], 7);
        let of_no_windows = query_answer(&QueryAnswer { windows: None, ..answer });
        assert!(of_no_windows.facts.is_empty() && of_no_windows.json.get("windows").is_none());
    }
}
