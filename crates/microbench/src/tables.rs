//! The tables that the original published, for any number of machines.
//!
//! | table | rows | columns |
//! |---|---|---|
//! | 1 | general and privileged instructions | each machine; each VM / the real machine |
//! | 2 | instructions that behave by the privilege level | the same at level 0, and at level 3 |
//! | 3 | page-table updates, paging on and off | each machine; each VM / the real machine |

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use crate::catalogue::Group;
use crate::compare::{Cell, Comparison, Row, Unit};
use crate::condition::{Condition, Mode};

/// The original timed a hundred of each instruction.
pub const OF_INSTRUCTIONS: f64 = 100.0;

/// Rows of figures under titles.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Table {
    /// `general`, `levels` or `paging`.
    pub id: &'static str,
    /// What it shows, with its unit and condition.
    pub title: String,
    /// What the first column names.
    #[serde(skip)]
    pub what: &'static str,
    /// Of its costs.
    #[serde(skip)]
    pub unit: Unit,
    /// Titles of the others.
    #[serde(serialize_with = "on_one_line")]
    pub columns: Vec<String>,
    pub rows: Vec<Line>,
}

/// A row of a table; in JSON also whether each value is reliable.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// The heading that it stands under.
    pub section: &'static str,
    pub name: String,
    /// One per column.
    pub values: Vec<Value>,
}

/// A figure of a table.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(into = "Option<f64>")]
pub enum Value {
    Cost {
        /// In the table's unit.
        value: f64,
        /// The program that measured it trusts it.
        reliable: bool,
    },
    /// Of a VM's cost and the real machine's.
    Ratio {
        value: f64,
        /// Both are trusted.
        reliable: bool,
    },
    /// None, and why; empty: not tried.
    None(String),
}

/// All three; a table that has no row is left out.
#[must_use]
pub fn all(comparison: &Comparison<'_>, unit: Unit) -> Vec<Table> {
    [general(comparison, unit), levels(comparison, unit), paging(comparison, unit)]
        .into_iter()
        .filter(|table| !table.rows.is_empty())
        .collect()
}

impl Value {
    /// The number; `None`: there is none.
    #[must_use]
    pub fn number(&self) -> Option<f64> {
        match self {
            Self::Cost { value, .. } | Self::Ratio { value, .. } => Some(*value),
            Self::None(_) => None,
        }
    }

    /// Whether the number can be trusted; `None`: there is none.
    #[must_use]
    pub fn reliable(&self) -> Option<bool> {
        match self {
            Self::Cost { reliable, .. } | Self::Ratio { reliable, .. } => Some(*reliable),
            Self::None(_) => None,
        }
    }

    /// As people read it, a cost in this unit; `~` in front: not reliable.
    #[must_use]
    pub fn text(&self, unit: Unit) -> String {
        match self {
            Self::Cost { value, reliable } => marked(unit.figure(*value), *reliable),
            Self::Ratio { value, reliable } => marked(ratio(*value), *reliable),
            Self::None(why) if why.is_empty() => "-".to_owned(),
            // What is missing, or when it hung, stands in the list of all operations.
            Self::None(why) => {
                why.split_once(": ").map_or(why.as_str(), |(kind, _)| kind).to_owned()
            }
        }
    }
}

impl Serialize for Line {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut line = to.serialize_struct("Line", 4)?;
        line.serialize_field("section", self.section)?;
        line.serialize_field("name", &self.name)?;
        line.serialize_field("values", &self.values)?;
        let reliable: Vec<Option<bool>> = self.values.iter().map(Value::reliable).collect();
        line.serialize_field("reliable", &reliable)?;
        line.end()
    }
}

impl From<Value> for Option<f64> {
    fn from(value: Value) -> Self {
        value.number()
    }
}

fn on_one_line<S: Serializer>(titles: &[String], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(titles.iter().map(|title| title.replace('\n', " ")))
}

/// `~` in front of what is not reliable.
#[must_use]
pub fn marked(text: String, reliable: bool) -> String {
    if reliable { text } else { format!("~{text}") }
}

/// A ratio, with three decimals as in the original.
#[must_use]
pub fn ratio(value: f64) -> String {
    if value < 99.9995 {
        format!("{value:.3}")
    } else if value < 9999.95 {
        format!("{value:.1}")
    } else {
        table::figure(value)
    }
}

fn general(comparison: &Comparison<'_>, unit: Unit) -> Table {
    const SECTIONS: [(Group, &str); 2] =
        [(Group::General, "general instructions"), (Group::Privileged, "privileged instructions")];
    let is_in = |row: &Row| SECTIONS.iter().any(|(group, _)| *group == row.group);
    let condition = fullest(comparison, 0, is_in);
    let mut rows = Vec::new();
    for (group, section) in SECTIONS {
        let of_group = comparison.rows.iter().filter(|row| row.group == group);
        for row in of_group.filter(|row| Some(row.condition) == condition) {
            let values = values(&row.cells, unit, OF_INSTRUCTIONS);
            rows.push(Line { section, name: row.operation.to_uppercase(), values });
        }
    }
    Table {
        id: "general",
        title: format!(
            "Table 1. General and privileged instructions: {} of 100 at {}",
            unit.name(),
            condition.map(|condition| condition.to_string()).unwrap_or_default()
        ),
        what: "instruction",
        unit,
        columns: columns(comparison, ""),
        rows,
    }
}

fn levels(comparison: &Comparison<'_>, unit: Unit) -> Table {
    let is_sensitive = |row: &Row| row.group == Group::Sensitive;
    // The mode that shows most at level 3 has level 0, too.
    let mode = fullest(comparison, 3, is_sensitive).map(|condition| condition.mode);
    let at = |operation: &str, ring| {
        let condition = Condition::plain(mode?, ring);
        comparison.rows.iter().find(|r| r.operation == operation && r.condition == condition)
    };
    let mut rows: Vec<Line> = Vec::new();
    for row in comparison.rows.iter().filter(|row| is_sensitive(row)) {
        let name = row.operation.to_uppercase();
        if rows.iter().any(|line| line.name == name) {
            continue;
        }
        let of_level = |ring| match at(&row.operation, ring) {
            Some(row) => values(&row.cells, unit, OF_INSTRUCTIONS),
            None => values(&vec![Cell::default(); comparison.machines.len()], unit, 1.0),
        };
        let both: Vec<Value> = [0, 3].into_iter().flat_map(of_level).collect();
        if both.iter().any(|value| value.number().is_some()) {
            rows.push(Line { section: "", name, values: both });
        }
    }
    let mut titles = columns(comparison, "level 0\n");
    titles.extend(columns(comparison, "level 3\n"));
    Table {
        id: "levels",
        title: format!(
            "Table 2. By privilege level: {} of 100 in mode {}",
            unit.name(),
            mode.map(Mode::name).unwrap_or_default()
        ),
        what: "instruction",
        unit,
        columns: titles,
        rows,
    }
}

fn paging(comparison: &Comparison<'_>, unit: Unit) -> Table {
    let is_update = |row: &&Row| crate::catalogue::is_page_table_update(&row.operation);
    let is_plain = |row: &&Row| row.condition == Condition::plain(row.condition.mode, 0);
    let mut shown: Vec<&Row> = comparison.rows.iter().filter(is_update).filter(is_plain).collect();
    // Paging on first, as in the original.
    shown.sort_by_key(|row| row.condition.mode == Mode::Flat);
    let line = |row: &&Row| Line {
        section: if row.condition.mode == Mode::Flat { "paging off" } else { "paging on" },
        name: format!("{} {}", row.operation, row.condition),
        values: values(&row.cells, unit, 1.0),
    };
    let has_cost = |row: &&&Row| row.cells.iter().any(|cell| cell.cost.is_some());
    Table {
        id: "paging",
        title: format!("Table 3. 5120 page-table updates, paging on and off: {}", unit.name()),
        what: "operation",
        unit,
        columns: columns(comparison, ""),
        rows: shown.iter().filter(has_cost).map(line).collect(),
    }
}

/// The plain condition of a privilege level under which most of these rows have most costs, the simplest of equals.
fn fullest(
    comparison: &Comparison<'_>,
    ring: u8,
    is_in: impl Fn(&Row) -> bool,
) -> Option<Condition> {
    let costs = |condition: &Condition| {
        let rows = comparison.rows.iter().filter(|row| row.condition == *condition && is_in(row));
        rows.flat_map(|row| &row.cells).filter(|cell| cell.cost.is_some()).count()
    };
    let conditions = Mode::ALL.map(|mode| Condition::plain(mode, ring));
    // `max_by_key` takes the last of equals.
    let best = conditions.into_iter().rev().max_by_key(costs)?;
    (0 < costs(&best)).then_some(best)
}

/// Each machine; then each VM by the real machine.
fn columns(comparison: &Comparison<'_>, before: &str) -> Vec<String> {
    let labels = comparison.machines.iter().map(|machine| machine.label.as_str());
    let real = labels.clone().next().unwrap_or_default();
    let costs = labels.clone().map(|label| format!("{before}{label}"));
    let ratios = labels.skip(1).map(|label| format!("{before}{label}/{real}"));
    costs.chain(ratios).collect()
}

fn values(cells: &[Cell], unit: Unit, times: f64) -> Vec<Value> {
    let none = |cell: &Cell| {
        Value::None(cell.outcome.as_ref().map(|outcome| outcome.why()).unwrap_or_default())
    };
    let cost = |cell: &Cell| match cell.cost.and_then(|cost| Some((cost, cost.value(unit)?))) {
        Some((cost, value)) => Value::Cost { value: value * times, reliable: cost.reliable },
        None => none(cell),
    };
    let ratio = |cell: &Cell| {
        let against = cell.against.and_then(|against| Some((against, against.ratio(unit)?)));
        match against {
            Some((against, value)) => Value::Ratio { value, reliable: against.reliable },
            None => Value::None(String::new()),
        }
    };
    cells.iter().map(cost).chain(cells.iter().skip(1).map(ratio)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        let check = |value: f64, ticks: &str, ns: &str, of: &str| {
            let text = [Unit::Ticks.figure(value), Unit::Ns.figure(value), ratio(value)];
            assert_eq!(text, [ticks, ns, of]);
        };
        check(0.8, "0.80", "0.80", "0.800");
        check(36.0, "36.0", "36.0", "36.000");
        check(118_056.0, "118056", "118056", "118056");
        check(1.5e6, "1.50 M", "1.50 ms", "1.50 M");
        check(1.47e8, "147 M", "147 ms", "147 M");
        check(5.66e7, "56.6 M", "56.6 ms", "56.6 M");
        check(3.4e10, "34.0 G", "34.0 s", "34.0 G");
        assert_eq!(marked("3".to_owned(), false), "~3");
    }
}
