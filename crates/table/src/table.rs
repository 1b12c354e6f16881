//! A table of typed cells.

use std::borrow::Cow;

use crate::text::{Keep, Width};

/// Rows of cells under columns.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Table {
    /// One or more lines above it; may be empty.
    pub title: String,
    pub columns: Vec<Column>,
    /// Its rows. A row may be shorter than the columns: its last cell then runs on over those that it lacks.
    pub rows: Vec<Row>,
    /// Rows below that stand for several: what a limit cut off, what has no owner. JSON leaves them out.
    pub rest: Vec<Row>,
    /// How many rows a limit cut off.
    pub n_cut: usize,
    /// Lines below it, for people.
    pub notes: Vec<String>,
}

/// A cell for each column.
pub type Row = Vec<Cell>;

/// What a column is called, and how its cells look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// In text and HTML, of one or more lines; `None`: not shown there.
    pub title: Option<String>,
    /// In CSV; `None`: not there.
    pub csv: Option<Cow<'static, str>>,
    /// In JSON; `None`: not there. `stolen.ns` is the member `ns` of an object `stolen`.
    pub json: Option<&'static str>,
    /// Where cells stand, and what gives way when a line is too long.
    pub(crate) fit: Fit,
    /// What times are shown in.
    pub(crate) scale: Scale,
    /// Decimals of shares and of real numbers.
    pub(crate) decimals: usize,
    /// Whether the rows that a limit cuts off are added up.
    pub(crate) adds_up: bool,
}

/// Where cells stand, and what gives way when a line is too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fit {
    /// Names: to the left, cut. A column of more weight stays wider than others.
    Name { keep: Keep, weight: usize },
    /// Numbers: to the right, never cut.
    Number,
    /// Numbers that are left out, the last first, where names would be cut to less than a dozen characters.
    Spare,
}

/// A typed value.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// A name; it may come from a guest.
    Text(String),
    /// A name with the style class of its colour in a chart, which only HTML shows.
    Coloured(&'static str, String),
    /// How much or how many of a unit.
    Number(u64, Unit),
    /// A difference: shown with its sign.
    Change(i64, Unit),
    /// A part of a whole. Text and CSV have it in per cent, JSON as a fraction of 1.
    Share(u64, u64),
    /// A number that is no whole one: a mean, a factor.
    Real(f64),
    /// The same with its sign.
    RealChange(f64),
    Flag(bool),
    /// An object or an array, of which people and CSV see nothing. Its texts are clean.
    Json(serde_json::Value),
    /// Not known, with the reason; empty where there is nothing to know.
    Unknown(&'static str),
}

/// What a number counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Things.
    Count,
    /// Things, with commas between thousands for people.
    Grouped,
    Ns,
    Bytes,
    /// Seconds since 1970; a date for people.
    UnixS,
}

/// What times are shown in; CSV and JSON always have ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// What suits the column's longest; the renderer adds the unit to the title.
    Auto,
    /// Nanoseconds, as whole numbers.
    Ns,
    /// Microseconds with three decimals, as the next ones.
    Us,
    Ms,
    /// Seconds.
    S,
}

impl Table {
    /// A table without rows.
    #[must_use]
    pub fn new(title: impl Into<String>, columns: Vec<Column>) -> Self {
        Self { title: title.into(), columns, ..Self::default() }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Keeps the first rows. The others become one row `(other 5 rows)` of their sums.
    pub fn limit(&mut self, limit: Option<usize>) {
        let cut = self.rows.split_off(limit.map_or(self.rows.len(), |n| n.min(self.rows.len())));
        if cut.is_empty() {
            return;
        }
        self.n_cut += cut.len();
        let name = if cut.len() == 1 {
            "(other 1 row)".to_owned()
        } else {
            format!("(other {} rows)", cut.len())
        };
        let named =
            self.columns.iter().position(|column| column.is_name() && column.title.is_some());
        let cell = |(n, column): (usize, &Column)| match column.adds_up {
            _ if Some(n) == named => Cell::Text(name.clone()),
            true => {
                cut.iter().filter_map(|row| row.get(n)).fold(Cell::NONE, |sum, cell| sum.plus(cell))
            }
            false => Cell::NONE,
        };
        let mut row: Row = self.columns.iter().enumerate().map(cell).collect();
        // So that the name runs on.
        row.truncate(row.iter().rposition(|cell| *cell != Cell::NONE).map_or(0, |last| last + 1));
        self.rest.insert(0, row);
    }

    /// Whether lines fit with their columns two blanks apart and no name cut to less than a dozen characters.
    #[must_use]
    pub fn fits(&self, width: Width) -> bool {
        crate::text::fits(self, width)
    }
}

impl Column {
    fn new(title: Option<String>, fit: Fit) -> Self {
        Self { title, csv: None, json: None, fit, scale: Scale::Auto, decimals: 2, adds_up: false }
    }

    /// A column of names, for text and HTML.
    #[must_use]
    pub fn name(title: impl Into<String>) -> Self {
        Self::new(Some(title.into()), Fit::Name { keep: Keep::StartAndFrom(" ("), weight: 1 })
    }

    /// A column of numbers, for text and HTML.
    #[must_use]
    pub fn number(title: impl Into<String>) -> Self {
        Self::new(Some(title.into()), Fit::Number)
    }

    /// For CSV and JSON only.
    #[must_use]
    pub fn data(key: &'static str) -> Self {
        Self::new(None, Fit::Number).key(key)
    }

    /// In CSV and JSON under this key, too.
    #[must_use]
    pub fn key(self, key: &'static str) -> Self {
        Self { csv: Some(key.into()), json: Some(key), ..self }
    }

    /// In CSV under this key.
    #[must_use]
    pub fn csv(self, key: impl Into<Cow<'static, str>>) -> Self {
        Self { csv: Some(key.into()), ..self }
    }

    /// In JSON under this key; `stolen.ns` is the member `ns` of an object `stolen`.
    #[must_use]
    pub fn json(self, key: &'static str) -> Self {
        Self { json: Some(key), ..self }
    }

    /// A column that only CSV has.
    #[must_use]
    pub fn csv_only(key: &'static str) -> Self {
        Self::new(None, Fit::Number).csv(key)
    }

    /// A column that only JSON has.
    #[must_use]
    pub fn json_only(key: &'static str) -> Self {
        Self::new(None, Fit::Number).json(key)
    }

    /// Left out of text, the last first, where names would be cut to less than a dozen characters.
    #[must_use]
    pub fn spare(self) -> Self {
        Self { fit: Fit::Spare, ..self }
    }

    /// What times are shown in.
    #[must_use]
    pub fn scale(self, scale: Scale) -> Self {
        Self { scale, ..self }
    }

    /// Decimals of shares and real numbers, if not 2.
    #[must_use]
    pub fn decimals(self, decimals: usize) -> Self {
        Self { decimals, ..self }
    }

    /// Which part of a long name is kept, and how much wider than others the column stays when a line is too long.
    #[must_use]
    pub fn keep(self, keep: Keep, weight: usize) -> Self {
        Self { fit: Fit::Name { keep, weight }, ..self }
    }

    /// The rows that a limit cuts off are added up.
    #[must_use]
    pub fn adds_up(self) -> Self {
        Self { adds_up: true, ..self }
    }

    pub(crate) fn is_name(&self) -> bool {
        matches!(self.fit, Fit::Name { .. })
    }
}

impl Cell {
    /// Nothing to say here.
    pub const NONE: Self = Self::Unknown("");

    /// A size for people in MiB, and for programs in bytes.
    #[must_use]
    pub fn mib_and_bytes(bytes: u64) -> [Self; 2] {
        [Self::count(bytes >> 20), Self::bytes(bytes)]
    }

    /// A cell with a time in ns.
    #[must_use]
    pub fn ns(ns: u64) -> Self {
        Self::Number(ns, Unit::Ns)
    }

    /// A cell with a size in bytes.
    #[must_use]
    pub fn bytes(bytes: u64) -> Self {
        Self::Number(bytes, Unit::Bytes)
    }

    /// How many; also an id.
    #[must_use]
    pub fn count(n: impl Into<u64>) -> Self {
        Self::Number(n.into(), Unit::Count)
    }

    /// The cell, empty if it is zero.
    #[must_use]
    pub fn or_none(self) -> Self {
        match self {
            Self::Number(0, _) | Self::Share(0, _) | Self::Change(0, _) => Self::NONE,
            other => other,
        }
    }

    fn plus(self, other: &Self) -> Self {
        match (self, other) {
            (Self::Unknown(_), other) => other.clone(),
            (Self::Number(a, unit), Self::Number(b, _)) => Self::Number(a.saturating_add(*b), unit),
            (Self::Change(a, unit), Self::Change(b, _)) => Self::Change(a.saturating_add(*b), unit),
            (Self::Share(a, whole), Self::Share(b, _)) => Self::Share(a.saturating_add(*b), whole),
            (Self::Real(a), Self::Real(b)) => Self::Real(a + b),
            (sum, _) => sum,
        }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<u64> for Cell {
    fn from(n: u64) -> Self {
        Self::count(n)
    }
}

impl From<u32> for Cell {
    fn from(n: u32) -> Self {
        Self::count(n)
    }
}

impl<T: Into<Self>> From<Option<T>> for Cell {
    fn from(cell: Option<T>) -> Self {
        cell.map_or(Self::NONE, T::into)
    }
}

impl Scale {
    /// For times of which none is longer than this.
    #[must_use]
    pub fn for_longest(longest_ns: u64) -> Self {
        match longest_ns {
            0..1_000 => Self::Ns,
            1_000..1_000_000 => Self::Us,
            1_000_000..1_000_000_000 => Self::Ms,
            _ => Self::S,
        }
    }

    /// The same for a terminal's tables, which stay in milliseconds unless that makes long numbers.
    #[must_use]
    pub fn ms_or_s(longest_ns: u64) -> Self {
        if longest_ns < 10_000_000_000 { Self::Ms } else { Self::S }
    }

    /// The symbol of the unit.
    #[must_use]
    pub fn unit(self) -> &'static str {
        match self {
            Self::Auto | Self::Ns => "ns",
            Self::Us => "us",
            Self::Ms => "ms",
            Self::S => "s",
        }
    }

    /// Three decimals; none of nanoseconds.
    #[must_use]
    pub fn show(self, ns: u64) -> String {
        let per = match self {
            Self::Auto | Self::Ns => return ns.to_string(),
            Self::Us => 1e3,
            Self::Ms => 1e6,
            Self::S => 1e9,
        };
        format!("{:.3}", ns as f64 / per)
    }

    /// The same with its unit.
    #[must_use]
    pub fn with_unit(self, ns: u64) -> String {
        format!("{} {}", self.show(ns), self.unit())
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn rows_beyond_a_limit_are_added_up() {
        let columns = vec![
            Column::number("ms").adds_up(),
            Column::number("longest"),
            Column::name("Thief"),
            Column::data("pid"),
        ];
        let mut table = Table::new("", columns);
        for n in 1..=4_u64 {
            table.row([Cell::ns(n), Cell::ns(n), "a".into(), n.into()]);
        }
        let whole = table.clone();
        table.limit(Some(4));
        table.limit(None);
        assert_eq!(table, whole);
        table.limit(Some(1));
        assert_eq!((table.rows.len(), table.n_cut), (1, 3));
        assert_eq!(table.rest, [vec![Cell::ns(9), Cell::NONE, "(other 3 rows)".into()]]);
    }

    #[test]
    fn times_in_the_unit_that_suits_the_longest() {
        let check = |longest, ns, expected: &str| {
            let scale = Scale::for_longest(longest);
            assert_eq!(scale.with_unit(ns), expected);
        };
        check(999, 12, "12 ns");
        check(1_000, 12, "0.012 us");
        check(1_000_000, 1_500, "0.002 ms");
        check(1_000_000_000, 61_999_600_000, "62.000 s");
        assert_eq!([9_999_999_999, 10_000_000_000].map(Scale::ms_or_s), [Scale::Ms, Scale::S]);
    }
}
