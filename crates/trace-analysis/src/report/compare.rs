//! Two traces side by side.

use serde_json::{Map, Value, json};
use table::{Cell, Column, Scale, Table, Width, clean, indented};

use super::{Context, JSON_VERSION, heading, limited, note_cut};
use crate::compare::{self, Compared, Comparison, Group, Kind, Unit};

const TITLES: [&str; 4] = ["a", "b", "b - a", "b / a"];

/// A trace that is compared.
#[derive(Debug)]
pub struct Side<'a> {
    pub name: &'a str,
    /// Its machine, with all findings of the command or of everyone.
    pub context: Context<'a>,
}

/// For a terminal: both headings, and a table per group of figures.
#[must_use]
pub fn compare_text(a: &Side<'_>, b: &Side<'_>, width: Width) -> String {
    let heading =
        |side: &Side<'_>| indented(&heading::facts(&side.context).heading(Width::Unlimited), width);
    let (name_a, name_b) = (clean(a.name), clean(b.name));
    let mut out = format!("a: {name_a}\n{}\nb: {name_b}\n{}", heading(a), heading(b));
    let found = compared(a, b);
    out += &format!("\n{}\n", who(a, b, found.of));
    for group in &found.groups {
        out += &format!("\n{}", group_table(group, TITLES, a.context.limit).text(width));
    }
    out
}

/// RFC 4180: a row per figure.
#[must_use]
pub fn compare_csv(a: &Side<'_>, b: &Side<'_>) -> String {
    let mut all = Table::default();
    for group in &compared(a, b).groups {
        let table = group_table(group, TITLES, a.context.limit);
        all.columns = table.columns;
        all.rows.extend(table.rows);
    }
    all.csv()
}

/// The comparison as the documented JSON object.
#[must_use]
pub fn compare_json(a: &Side<'_>, b: &Side<'_>) -> Value {
    let found = compared(a, b);
    let side = |side: &Side<'_>| {
        let mut heading = heading::object(&side.context);
        let member = |key: &str| (key.to_owned(), heading.remove(key).unwrap_or_default());
        let members = ["trace", "machine", "command"].map(member);
        let name = ("name".to_owned(), Value::from(clean(side.name)));
        Value::Object(Map::from_iter([name].into_iter().chain(members)))
    };
    let group = |group: &Group| json!({ "group": group.kind.name(), "rows": group_table(group, TITLES, a.context.limit).json() });
    json!({
        "version": JSON_VERSION,
        "of": match found.of {
            Compared::Commands => "commands",
            Compared::Machines => "machines",
        },
        "a": side(a),
        "b": side(b),
        "groups": found.groups.iter().map(group).collect::<Value>(),
    })
}

fn compared(a: &Side<'_>, b: &Side<'_>) -> Comparison {
    let [a, b] = [a, b].map(|side| {
        let findings = &side.context.findings;
        let (timeline, classifier) = (findings.timeline, &findings.classifier);
        compare::Side { timeline, classifier, scope: findings.scope }
    });
    compare::compare(&a, &b)
}

/// Who is compared, and why no less than that.
fn who(a: &Side<'_>, b: &Side<'_>, of: Compared) -> String {
    let why = match (of, a.context.findings.scope, b.context.findings.scope) {
        (Compared::Commands, ..) => {
            return "Compared: the commands' tasks, and the machines while they ran".to_owned();
        }
        (Compared::Machines, None, None) => "neither has a command",
        (Compared::Machines, None, Some(_)) => "a has no command",
        (Compared::Machines, Some(_), _) => "b has no command",
    };
    format!("Compared: all tasks of both machines, as {why}")
}

/// A group's figures in both traces, under these titles: of a, of b, of their difference, of their ratio.
#[must_use]
pub fn group_table(group: &Group, titles: [&str; 4], limit: Option<usize>) -> Table {
    let longest = group.rows.iter().map(|row| row.a.max(row.b)).max().unwrap_or(0);
    let only_times = group.rows.iter().all(|row| row.unit == Unit::Ns);
    let scale = if only_times { Scale::ms_or_s(longest) } else { Scale::S };
    let title = if only_times { format!(", in {}", scale.unit()) } else { String::new() };
    let columns = vec![
        Column::csv_only("group"),
        Column::name("").key("what"),
        Column::data("unit"),
        Column::number(titles[0]).scale(scale).key("a"),
        Column::number(titles[1]).scale(scale).key("b"),
        Column::number(titles[2]).scale(scale).key("difference"),
        Column::number(titles[3]),
        Column::json_only("ratio"),
    ];
    let mut table = Table::new(format!("{}{title}", heading_of(group.kind)), columns);
    for row in limited(&group.rows, limit) {
        let (name, unit) = match row.unit {
            Unit::Ns => ("ns", table::Unit::Ns),
            Unit::Count => ("count", table::Unit::Grouped),
            Unit::Bytes => ("bytes", table::Unit::Grouped),
        };
        let difference = row.difference();
        let difference = i64::try_from(difference).unwrap_or(i64::MAX);
        table.row([
            group.kind.name().into(),
            row.name.as_str().into(),
            name.into(),
            Cell::Number(row.a, unit),
            Cell::Number(row.b, unit),
            Cell::Change(difference, unit),
            row.ratio().map_or(Cell::NONE, Cell::Real),
            if row.a == 0 { Cell::NONE } else { Cell::Share(row.b, row.a) },
        ]);
    }
    note_cut(&mut table, group.rows.len(), "row");
    table
}

fn heading_of(kind: Kind) -> String {
    let name = kind.name().replace("cpu", "CPU");
    let mut letters = name.chars();
    let first = letters.next().map_or(String::new(), |first| first.to_uppercase().collect());
    first + letters.as_str()
}
