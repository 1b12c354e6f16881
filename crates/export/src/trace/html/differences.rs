//! Two runs' figures with their differences, as tables.

use trace_analysis::compare::{Group, Kind, Row, Side, Unit as Of, compare};
use trace_analysis::findings::Findings;
use view::escape;

use super::table;
use crate::trace::Run;
use crate::trace::names::{Names, short};
use crate::trace::table::{Cell, Table, Unit};

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
        group.rows.iter().partition(|row| row.unit == Of::Ns);
    [(Unit::Ns, times), (Unit::Count, counts)]
        .map(|(unit, rows)| table::html_on_one_scale(&table(labels, group.kind, unit, &rows), ROWS))
}

fn table(labels: &[String; 2], kind: Kind, unit: Unit, rows: &[&Row]) -> Table {
    let columns = [
        ("", Unit::Text),
        (labels[0].as_str(), unit),
        (labels[1].as_str(), unit),
        ("difference", unit),
        ("ratio", Unit::Factor),
    ];
    let mut table = Table::new(kind.name(), &columns);
    let cells = |row: &&Row| {
        vec![
            Cell::name(&row.name),
            Cell::Number(row.a),
            Cell::Number(row.b),
            difference(row),
            ratio(row.a, row.b),
        ]
    };
    table.rows = rows.iter().map(cells).collect();
    table
}

fn difference(row: &Row) -> Cell {
    let size = u64::try_from(row.difference().unsigned_abs()).unwrap_or(u64::MAX);
    if row.b < row.a { Cell::Less(size) } else { Cell::Number(size) }
}

/// Thousandths of how many times the first the second is; none when there was nothing in the first.
fn ratio(a: u64, b: u64) -> Cell {
    if a == 0 {
        return Cell::None;
    }
    let rounded = (u128::from(b) * 1_000 + u128::from(a) / 2) / u128::from(a);
    u64::try_from(rounded).map_or(Cell::None, Cell::Number)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn differences_have_a_sign() {
        let check = |a, b, expected: Cell, times: Cell| {
            let row = Row { name: String::new(), unit: Of::Ns, a, b };
            assert_eq!((difference(&row), ratio(a, b)), (expected, times));
        };
        check(5, 2, Cell::Less(3), Cell::Number(400));
        check(2, 5, Cell::Number(3), Cell::Number(2_500));
        check(0, 5, Cell::Number(5), Cell::None);
        check(u64::MAX, 0, Cell::Less(u64::MAX), Cell::Number(0));
    }
}
