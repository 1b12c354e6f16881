//! Tables as HTML, times in the unit that suits the longest.

use std::fmt::Write as _;
use view::escape;

use crate::trace::table::{Cell, Column, Table, Unit};

/// A unit of time, and how many digits it is shown with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Scale {
    pub(super) unit: &'static str,
    ns: u64,
}

/// The unit for times of which the longest is this.
pub(super) fn scale(longest_ns: u64) -> Scale {
    match longest_ns {
        0..1_000 => Scale { unit: "ns", ns: 1 },
        1_000..1_000_000 => Scale { unit: "us", ns: 1_000 },
        1_000_000..1_000_000_000 => Scale { unit: "ms", ns: 1_000_000 },
        _ => Scale { unit: "s", ns: 1_000_000_000 },
    }
}

impl Scale {
    /// Three digits behind the point; none of nanoseconds.
    pub(super) fn text(self, ns: u64) -> String {
        if self.ns == 1 {
            return ns.to_string();
        }
        let thousandths = (u128::from(ns) * 1_000 + u128::from(self.ns) / 2) / u128::from(self.ns);
        format!("{}.{:03}", thousandths / 1_000, thousandths % 1_000)
    }

    pub(super) fn with_unit(self, ns: u64) -> String {
        format!("{} {}", self.text(ns), self.unit)
    }
}

/// The table with its heading; at most `most` rows, then how many more there are. Columns that say nothing are left
/// out; nothing when there are no rows. Each column has the unit that suits it.
pub(super) fn html(table: &Table, most: usize) -> String {
    on_scales(table, most, |n| scale(longest(table, n)))
}

/// The same with one unit for all times, so that they can be compared.
pub(super) fn html_on_one_scale(table: &Table, most: usize) -> String {
    let longest = (0..table.columns.len())
        .filter(|n| table.columns[*n].unit == Unit::Ns)
        .map(|n| longest(table, n));
    let scale = scale(longest.max().unwrap_or(0));
    on_scales(table, most, |_| scale)
}

fn on_scales(table: &Table, most: usize, scale: impl Fn(usize) -> Scale) -> String {
    if table.rows.is_empty() {
        return String::new();
    }
    let says = |n: &usize| *n == 0 || table.rows.iter().any(|row| says_something(row.get(*n)));
    let columns: Vec<(usize, &Column, Scale)> =
        (0..table.columns.len()).filter(says).map(|n| (n, &table.columns[n], scale(n))).collect();
    let heads: String = columns.iter().map(|(_, column, scale)| head(column, *scale)).collect();
    let mut rows = String::new();
    for row in table.rows.iter().take(most) {
        let cells = columns
            .iter()
            .map(|(n, column, scale)| cell(column, *scale, row.get(*n).unwrap_or(&Cell::None)));
        let _ = writeln!(rows, "<tr>{}</tr>", cells.collect::<String>());
    }
    let more = match table.rows.len().saturating_sub(most) {
        0 => String::new(),
        more => format!("<p class=\"faint\">and {more} more</p>\n"),
    };
    let heading = match table.title.as_str() {
        "" => String::new(),
        title => format!("<h3>{}</h3>\n", escape(title)),
    };
    format!(
        "{heading}<div class=\"scroll\"><table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table></div>\n{more}"
    )
}

fn says_something(cell: Option<&Cell>) -> bool {
    match cell {
        None | Some(Cell::None | Cell::Number(0)) => false,
        Some(Cell::Text(text)) => !text.is_empty(),
        Some(Cell::Number(_) | Cell::Less(_)) => true,
    }
}

/// The largest number of a column.
fn longest(table: &Table, n: usize) -> u64 {
    let numbers = table.rows.iter().filter_map(|row| match row.get(n) {
        Some(Cell::Number(number) | Cell::Less(number)) => Some(*number),
        _ => None,
    });
    numbers.max().unwrap_or(0)
}

fn head(column: &Column, scale: Scale) -> String {
    let name = escape(&column.name);
    match column.unit {
        Unit::Text => format!("<th>{name}</th>"),
        Unit::Ns => format!("<th class=\"number\">{name}, {}</th>", scale.unit),
        Unit::Bytes => format!("<th class=\"number\">{name}, bytes</th>"),
        Unit::Share => format!("<th class=\"number\">{name}, %</th>"),
        Unit::Count | Unit::Factor => format!("<th class=\"number\">{name}</th>"),
    }
}

fn cell(column: &Column, scale: Scale, cell: &Cell) -> String {
    let number = |text: &str| format!("<td class=\"number\">{text}</td>");
    match cell {
        Cell::Text(text) => format!("<td>{}</td>", escape(text)),
        Cell::None if column.unit == Unit::Text => "<td></td>".to_owned(),
        Cell::None => number("-"),
        Cell::Number(n) => number(&figure(column.unit, scale, *n)),
        Cell::Less(n) => number(&format!("−{}", figure(column.unit, scale, *n))),
    }
}

fn figure(unit: Unit, scale: Scale, n: u64) -> String {
    match unit {
        Unit::Ns => scale.text(n),
        Unit::Share => format!("{}.{:02}", n / 100, n % 100),
        Unit::Factor => format!("{}.{:03}", n / 1_000, n % 1_000),
        Unit::Text | Unit::Count | Unit::Bytes => n.to_string(),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn times_in_the_unit_that_suits_the_longest() {
        let check =
            |longest, ns, expected: &str| assert_eq!(scale(longest).with_unit(ns), expected);
        check(999, 12, "12 ns");
        check(1_000, 12, "0.012 us");
        check(1_000_000, 1_500, "0.002 ms");
        check(1_000_000_000, 61_999_500_000, "62.000 s");
    }

    #[test]
    fn rows_are_limited_and_cells_escaped() {
        let mut table = Table::new("T", &[("name", Unit::Text), ("time", Unit::Ns)]);
        assert_eq!(html(&table, 1), "");
        table.rows =
            vec![vec![Cell::name("<b>"), Cell::Number(5_000)], vec![Cell::None, Cell::None]];
        let text = html(&table, 1);
        assert!(text.contains("<td>&lt;b&gt;</td><td class=\"number\">5.000</td>"), "{text}");
        assert!(text.contains("time, us") && text.contains("and 1 more"));
    }
}
