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
