//! Two runs' figures with their differences, as tables.

use trace_analysis::compare::{Group, Kind, Row, Side, Unit, compare};
use trace_analysis::findings::Findings;
use view::{Cell, Column, Scale, Table, escape};

use crate::trace::Run;
use crate::trace::names::{Names, short};

/// Rows of a table at most.
const ROWS: usize = 60;

/// A section when there are two runs with machines to compare; nothing otherwise.
pub(super) fn section(runs: &[Run<'_>], found: &[&[Findings<'_>]]) -> String {
    let ([a, b], [of_a, of_b]) = (runs, found) else { return String::new() };
    let labels = [short(a.label), short(b.label)];
    let several = 1 < of_a.len().max(of_b.len());
    let both = pairs(of_a, of_b).into_iter().map(|(a, b)| {
        let heading = match several {
            true => format!("<h3>{}</h3>\n", escape(&Names::new(a).machine_name())),
            false => String::new(),
        };
        heading + &tables(&labels, &compare(&side(a), &side(b)).groups)
    });
    let body: String = both.collect();
    crate::page::section("Side by side", "", &body)
}

fn side<'a>(findings: &'a Findings<'_>) -> Side<'a> {
    let Findings { timeline, classifier, scope, .. } = findings;
    Side { timeline, classifier, scope: *scope }
}

/// Machines of one name; if each run has but one machine, these.
fn pairs<'f, 'a>(
    a: &'f [Findings<'a>],
    b: &'f [Findings<'a>],
) -> Vec<(&'f Findings<'a>, &'f Findings<'a>)> {
    if let ([a], [b]) = (a, b) {
        return vec![(a, b)];
    }
    let name = |findings: &Findings<'_>| Names::new(findings).machine_name();
    let other = |one: &'f Findings<'a>| Some((one, b.iter().find(|two| name(two) == name(one))?));
    a.iter().filter_map(other).collect()
}

/// Times and counts, and behind them all else.
fn tables(labels: &[String; 2], groups: &[Group]) -> String {
    let (first, rest): (Vec<&Group>, Vec<&Group>) =
        groups.iter().partition(|group| matches!(group.kind, Kind::Time | Kind::Counts));
    let html = |groups: Vec<&Group>| -> String {
        groups.into_iter().flat_map(|group| by_unit(labels, group)).collect()
    };
    let (first, rest) = (html(first), html(rest));
    if rest.is_empty() {
        return first;
    }
    format!("{first}<details><summary>All differences</summary>\n{rest}</details>\n")
}

/// A group's times, and what else it counts (bytes say so in their names).
fn by_unit(labels: &[String; 2], group: &Group) -> [String; 2] {
    let (times, counts): (Vec<&Row>, Vec<&Row>) =
        group.rows.iter().partition(|row| row.unit == Unit::Ns);
    [times, counts].map(|rows| table(labels, group.kind, &rows).html(ROWS))
}

/// One unit for all times, so that they can be compared.
fn table(labels: &[String; 2], kind: Kind, rows: &[&Row]) -> Table {
    let is_time = rows.iter().any(|row| row.unit == Unit::Ns);
    let scale = Scale::for_longest(rows.iter().map(|row| row.a.max(row.b)).max().unwrap_or(0));
    let title =
        if is_time { format!("{}, {}", kind.name(), scale.unit()) } else { kind.name().to_owned() };
    let number = |title: &str| Column::number(title).scale(scale);
    let columns = vec![
        Column::name(""),
        number(&labels[0]),
        number(&labels[1]),
        number("difference"),
        Column::number("ratio").decimals(3),
    ];
    let mut table = Table::new(title, columns);
    for row in rows {
        let unit = if is_time { view::Unit::Ns } else { view::Unit::Count };
        let difference = i64::try_from(row.difference());
        table.row([
            row.name.as_str().into(),
            Cell::Number(row.a, unit),
            Cell::Number(row.b, unit),
            difference.map_or(Cell::NONE, |difference| Cell::Change(difference, unit)),
            row.ratio().map_or(Cell::NONE, Cell::Real),
        ]);
    }
    table
}
