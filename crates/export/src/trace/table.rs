//! A table of figures with their units: as CSV, or behind a chart of the page.

use super::names::short;

/// A table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Its heading.
    pub title: String,
    /// Its columns.
    pub columns: Vec<Column>,
    /// Its rows, each with a cell per column.
    pub rows: Vec<Vec<Cell>>,
}

/// A column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Its name, without the unit.
    pub name: String,
    /// What its cells are.
    pub unit: Unit,
}

/// What a column's cells are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Names.
    Text,
    /// Nanoseconds.
    Ns,
    /// How many.
    Count,
    /// Bytes.
    Bytes,
    /// Hundredths of a per cent.
    Share,
    /// Thousandths of a factor.
    Factor,
}

/// A cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cell {
    /// A name.
    Text(String),
    /// A figure in the column's unit.
    Number(u64),
    /// A figure below 0, without its sign.
    Less(u64),
    /// Not known, or there is none.
    None,
}

impl Table {
    pub(super) fn new(title: &str, columns: &[(&str, Unit)]) -> Self {
        let column = |(name, unit): &(&str, Unit)| Column { name: (*name).to_owned(), unit: *unit };
        Self {
            title: title.to_owned(),
            columns: columns.iter().map(column).collect(),
            rows: Vec::new(),
        }
    }
}

impl Cell {
    /// A name, which may come from a guest.
    pub(super) fn name(text: &str) -> Self {
        Self::Text(short(text))
    }

    /// A share of a whole; none of nothing.
    pub(super) fn share(part: u64, whole: u64) -> Self {
        if whole == 0 { Self::None } else { Self::Number(hundredths(part, whole)) }
    }
}

/// Hundredths of a per cent.
pub(super) fn hundredths(part: u64, whole: u64) -> u64 {
    let share = (u128::from(part) * 10_000 + u128::from(whole) / 2) / u128::from(whole.max(1));
    u64::try_from(share).unwrap_or(u64::MAX)
}

/// The table as CSV (RFC 4180): a header line that says each column's unit, and a line per row.
#[must_use]
pub fn csv(table: &Table) -> String {
    let header = table.columns.iter().map(|column| quoted(&header(column)));
    let mut out = header.collect::<Vec<_>>().join(",") + "\r\n";
    for row in &table.rows {
        let cells = table.columns.iter().zip(row).map(|(column, cell)| value(column.unit, cell));
        out.push_str(&cells.collect::<Vec<_>>().join(","));
        out.push_str("\r\n");
    }
    out
}

/// `lifetime_ns`, `cpu_running_disk_none_ns`, `share_percent`.
fn header(column: &Column) -> String {
    let words = column.name.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    let unit = match column.unit {
        Unit::Ns => Some("ns"),
        Unit::Bytes => Some("bytes"),
        Unit::Share => Some("percent"),
        Unit::Text | Unit::Count | Unit::Factor => None,
    };
    words.chain(unit).collect::<Vec<_>>().join("_").to_lowercase()
}

fn value(unit: Unit, cell: &Cell) -> String {
    match (unit, cell) {
        (_, Cell::None) => String::new(),
        (_, Cell::Text(text)) => quoted(text),
        (unit, Cell::Less(n)) => format!("-{}", value(unit, &Cell::Number(*n))),
        (Unit::Share, Cell::Number(n)) => format!("{}.{:02}", n / 100, n % 100),
        (Unit::Factor, Cell::Number(n)) => format!("{}.{:03}", n / 1_000, n % 1_000),
        (_, Cell::Number(n)) => n.to_string(),
    }
}

fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\r', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn columns_say_their_unit() {
        let check = |name: &str, unit, expected: &str| {
            assert_eq!(header(&Column { name: name.to_owned(), unit }), expected);
        };
        check("name", Unit::Text, "name");
        check("CPU running, disk none", Unit::Ns, "cpu_running_disk_none_ns");
        check("share", Unit::Share, "share_percent");
        check("requests", Unit::Count, "requests");
    }

    #[test]
    fn cells_in_their_units() {
        let check = |unit, cell: Cell, expected: &str| assert_eq!(value(unit, &cell), expected);
        check(Unit::Text, Cell::name("a,\"b\"\u{1b}"), "\"a,\"\"b\"\"\\u{1b}\"");
        check(Unit::Ns, Cell::Number(12), "12");
        check(Unit::Share, Cell::share(1, 3), "33.33");
        check(Unit::Share, Cell::share(0, 0), "");
        check(Unit::Factor, Cell::Number(1_250), "1.250");
        check(Unit::Ns, Cell::Less(7), "-7");
    }
}
