//! A report: facts, what to know about the data, and tables.

use serde_json::Value;

use crate::table::Table;
use crate::text::{Width, table_text, wrapped};
use crate::{clean, clean_lines};

/// Names in a line of a report at most; the rest is counted.
pub const LISTED: usize = 8;

/// What a command answers.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Report {
    /// The lines above all: what was looked at, and how complete it is.
    pub facts: Vec<Fact>,
    /// What the reader should know about the data.
    pub notes: Vec<String>,
    /// What people see, one below another.
    pub parts: Vec<Part>,
    /// What CSV has, when that is not the first table of `parts`.
    pub data: Option<Table>,
    /// The documented JSON.
    pub json: Value,
}

/// A line `Host: web1`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fact {
    /// Before the colon.
    pub title: &'static str,
    /// After it.
    pub text: String,
}

/// One of the things below each other.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    Table(Table),
    /// Lines.
    Text(String),
    /// Sentences, broken where lines are too long.
    Prose(String),
}

impl Report {
    /// Adds a line above all.
    pub fn fact(&mut self, title: &'static str, text: impl Into<String>) {
        self.facts.push(Fact { title, text: text.into() });
    }

    /// For a terminal: a blank line before each part.
    #[must_use]
    pub fn text(&self, width: Width) -> String {
        let mut blocks = Vec::new();
        if !self.facts.is_empty() || !self.notes.is_empty() {
            blocks.push(self.heading(width));
        }
        blocks.extend(self.parts.iter().map(|part| match part {
            Part::Table(table) => table_text(table, width),
            Part::Text(text) => clean_lines(text.trim_end()) + "\n",
            Part::Prose(text) => wrapped(&clean_lines(text), width),
        }));
        blocks.join("\n")
    }

    /// The lines above all.
    #[must_use]
    pub fn heading(&self, width: Width) -> String {
        let facts = self.facts.iter().map(|fact| format!("{}: {}", fact.title, clean(&fact.text)));
        let notes = self.notes.iter().map(|note| format!("Note: {}", clean(note)));
        facts.chain(notes).map(|line| wrapped(&line, width)).collect()
    }

    /// RFC 4180: `data`, or the first table.
    #[must_use]
    pub fn csv(&self) -> String {
        self.data.as_ref().or_else(|| self.tables().next()).map(Table::csv).unwrap_or_default()
    }

    /// The tables that people see.
    pub fn tables(&self) -> impl Iterator<Item = &Table> {
        self.parts.iter().filter_map(|part| match part {
            Part::Table(table) => Some(table),
            Part::Text(_) | Part::Prose(_) => None,
        })
    }
}

impl From<Table> for Part {
    fn from(table: Table) -> Self {
        Self::Table(table)
    }
}

impl From<String> for Part {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::table::{Cell, Column};

    #[test]
    fn heading_and_parts() {
        let mut table =
            Table::new("Times", vec![Column::name("Who"), Column::number("n").key("n")]);
        table.row(["a".into(), Cell::count(1_u64)]);
        table.notes.push("n: how many".to_owned());
        let mut report = Report { notes: vec!["web: no\nmap".to_owned()], ..Report::default() };
        report.fact("Host", "h\u{1b}");
        report.parts = vec!["Total: 1".to_owned().into(), table.into()];
        let text = "Host: h\\u{1b}\nNote: web: no\\u{a}map\n\nTotal: 1\n\nTimes\nWho  n\na    1\nn: how many\n";
        assert_eq!(report.text(Width::Unlimited), text);
        assert_eq!(report.csv(), "n\r\n1\r\n");
    }
}
