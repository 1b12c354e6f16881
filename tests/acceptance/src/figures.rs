//! Figures: a file of results for each experiment in `docs/figures`, and the page that is made of them.
//!
//! `experiments` and `overhead` write such files into `target/figures`: a new result is taken over by a copy.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::SystemTime;

use anyhow::{Context, ensure};
use chrono::{DateTime, Utc};
use serde::Deserialize;

use crate::root;

/// The results of one command.
#[derive(Debug, Default, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figures {
    /// The heading. What has none is part of the table that its section begins with.
    #[serde(default)]
    pub title: String,
    /// What makes the figures; empty where each row names its own.
    #[serde(default)]
    pub command: String,
    /// The day of the newest figure, `2026-11-22`.
    pub date: String,
    /// On what they were measured.
    #[serde(default)]
    pub conditions: String,
    /// Text above the table, as it is in the page.
    #[serde(default)]
    pub about: String,
    /// Titles of the table's columns.
    #[serde(default)]
    pub columns: Vec<String>,
    /// A cell for each column.
    #[serde(default)]
    pub rows: Vec<Vec<String>>,
    /// The command's own output.
    #[serde(default)]
    pub output: String,
    /// Text below.
    #[serde(default)]
    pub below: String,
}

/// The order of the page: `docs/figures/index.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Index {
    /// Text at the top.
    pub about: String,
    /// The page's sections.
    pub sections: Vec<Section>,
}

/// A heading with files of results below.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Section {
    /// The heading.
    pub title: String,
    /// Names of files, without `.toml`. One with the title of its section has no heading of its own.
    pub files: Vec<String>,
}

/// Conditions of a file whose measurement is repeated: only the load is another one.
fn renewed(known: &str, measured: &str) -> String {
    let is_load = |part: &&str| part.starts_with("load ");
    let measured = measured.split(", ").filter(|part| !part.is_empty());
    let kept = known.split(", ").filter(|part| !part.is_empty() && !is_load(part));
    let (load, others): (Vec<&str>, Vec<&str>) = measured.partition(is_load);
    let mut parts: Vec<&str> = kept.collect();
    let new = others.into_iter().filter(|part| !known.split(", ").any(|known| known == *part));
    parts.extend(new.chain(load).collect::<Vec<_>>());
    parts.join(", ")
}

/// The checked-in file of an experiment.
#[must_use]
pub fn checked_in(name: &str) -> PathBuf {
    root().join("docs/figures").join(format!("{name}.toml"))
}

impl Figures {
    /// # Errors
    /// If the text is no TOML of this form, or a row lacks a cell.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let figures: Self = toml::from_str(text).context("no file of figures")?;
        for row in &figures.rows {
            let n_columns = figures.columns.len();
            ensure!(row.len() == n_columns, "{n_columns} columns, but a row {row:?}");
        }
        Ok(figures)
    }

    /// The file's text, a line for each row.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        for (key, value) in [
            ("title", &self.title),
            ("command", &self.command),
            ("date", &self.date),
            ("conditions", &self.conditions),
        ] {
            if !value.is_empty() {
                let _ = writeln!(text, "{key} = {}", quoted(value));
            }
        }
        add_lines(&mut text, "about", &self.about);
        if !self.rows.is_empty() {
            let _ = writeln!(text, "columns = {}\nrows = [", list(&self.columns));
            for row in &self.rows {
                let _ = writeln!(text, "    {},", list(row));
            }
            text.push_str("]\n");
        }
        add_lines(&mut text, "output", &self.output);
        add_lines(&mut text, "below", &self.below);
        text
    }

    /// Writes a new measurement to `target/figures/NAME.toml`, with today's date and the title, texts and conditions of the
    /// checked-in one; but the load is the new one's.
    ///
    /// # Errors
    /// If files can't be read or written.
    pub fn write_new(self, name: &str) -> anyhow::Result<()> {
        let path = checked_in(name);
        let known = if path.is_file() {
            let text = std::fs::read_to_string(&path);
            let text = text.with_context(|| format!("failed to read {}", path.display()))?;
            Self::parse(&text).with_context(|| format!("failed to parse {}", path.display()))?
        } else {
            Self::default()
        };
        let date = DateTime::<Utc>::from(SystemTime::now()).date_naive().to_string();
        let conditions = renewed(&known.conditions, &self.conditions);
        let Self { title, about, below, .. } = known;
        let figures = Self { title, about, below, date, conditions, ..self };
        let target = std::env::var_os("CARGO_TARGET_DIR");
        let folder = target.map_or(root().join("target"), PathBuf::from).join("figures");
        std::fs::create_dir_all(&folder)
            .with_context(|| format!("failed to create {}", folder.display()))?;
        let path = folder.join(format!("{name}.toml"));
        std::fs::write(&path, figures.to_toml())
            .with_context(|| format!("failed to write {}", path.display()))?;
        eprintln!("written to {}", path.display());
        Ok(())
    }

    fn add_to(&self, page: &mut String) {
        let _ = writeln!(page, "{}\n", self.origin());
        add_paragraph(page, &self.about);
        if !self.rows.is_empty() {
            add_table(page, &self.columns, &self.rows);
        }
        if !self.output.is_empty() {
            let _ = writeln!(page, "```\n{}\n```\n", self.output.trim_end());
        }
        add_paragraph(page, &self.below);
    }

    /// The line above the table, or two where it is long.
    fn origin(&self) -> String {
        let conditions = self.conditions();
        if self.command.is_empty() {
            return format!("{conditions}.");
        }
        let command = format!("`{}`", self.command);
        let fits = conditions.chars().count() + command.chars().count() + 2 <= MAX_COLUMNS;
        format!("{conditions}:{}{command}", if fits { " " } else { "\n" })
    }

    fn conditions(&self) -> String {
        if self.conditions.is_empty() {
            return self.date.clone();
        }
        format!("{}, {}", self.date, self.conditions)
    }

    fn cell(&self, row: &[String], column: &str) -> String {
        let position = self.columns.iter().position(|title| title == column);
        position.map(|position| row[position].clone()).unwrap_or_default()
    }
}

const MAX_COLUMNS: usize = 100;

/// One table of several files. A file's command stands in its first row.
fn add_shared_table(page: &mut String, files: &[Figures]) {
    let mut columns: Vec<String> = Vec::new();
    for column in files.iter().flat_map(|file| &file.columns) {
        if !columns.contains(column) {
            columns.push(column.clone());
        }
    }
    let mut rows = Vec::new();
    for file in files {
        let mut origin = [format!("`{}`", file.command), file.conditions()];
        for row in &file.rows {
            let mut cells: Vec<String> =
                columns.iter().map(|column| file.cell(row, column)).collect();
            cells.extend(std::mem::take(&mut origin));
            rows.push(cells);
        }
    }
    columns.extend(["command", "measured on"].map(str::to_owned));
    files.iter().for_each(|file| add_paragraph(page, &file.about));
    add_table(page, &columns, &rows);
    files.iter().for_each(|file| add_paragraph(page, &file.below));
}

/// A JSON string is a TOML string, too.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn list(cells: &[String]) -> String {
    let cells: Vec<String> = cells.iter().map(|cell| quoted(cell)).collect();
    format!("[{}]", cells.join(", "))
}

/// TOML leaves out the line break after the opening quotes.
fn add_lines(text: &mut String, key: &str, lines: &str) {
    if !lines.is_empty() {
        let _ = writeln!(text, "{key} = '''\n{lines}'''");
    }
}

fn add_paragraph(page: &mut String, text: &str) {
    if !text.is_empty() {
        let _ = writeln!(page, "{}\n", text.trim_end());
    }
}

fn add_table(page: &mut String, columns: &[String], rows: &[Vec<String>]) {
    add_row(page, columns);
    let _ = writeln!(page, "|{}", "---|".repeat(columns.len()));
    rows.iter().for_each(|row| add_row(page, row));
    page.push('\n');
}

fn add_row(page: &mut String, cells: &[String]) {
    page.push('|');
    for cell in cells {
        let cell = cell.replace('|', "\\|");
        let space = if cell.is_empty() { "" } else { " " };
        let _ = write!(page, "{space}{cell} |");
    }
    page.push('\n');
}

/// The page: an index, and the results of each of its sections' files.
///
/// # Errors
/// If `read` has no results of that name.
pub fn page(
    index: &Index,
    read: impl Fn(&str) -> anyhow::Result<Figures>,
) -> anyhow::Result<String> {
    let mut page = format!("# Figures\n\n{}\n\n", index.about.trim_end());
    for section in &index.sections {
        let _ = writeln!(page, "## {}\n", section.title);
        let mut titled = Vec::new();
        let mut shared = Vec::new();
        for name in &section.files {
            let figures = read(name).with_context(|| format!("docs/figures/{name}.toml"))?;
            if figures.title.is_empty() { shared.push(figures) } else { titled.push(figures) }
        }
        if !shared.is_empty() {
            add_shared_table(&mut page, &shared);
        }
        for figures in titled {
            if figures.title != section.title {
                let _ = writeln!(page, "### {}\n", figures.title);
            }
            figures.add_to(&mut page);
        }
    }
    Ok(page.trim_end().to_owned() + "\n")
}

#[cfg(test)]
mod test {
    use super::*;

    fn table() -> Figures {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        Figures {
            title: "Pipes".to_owned(),
            command: "make pipes".to_owned(),
            date: "2026-11-22".to_owned(),
            conditions: "virtual host".to_owned(),
            about: "Through a \"pipe\".\n".to_owned(),
            columns: words(&["what", "aim"]),
            rows: vec![words(&["`a | b`: \\ 5 %", ""])],
            output: "a  1\n".to_owned(),
            below: String::new(),
        }
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let text = table().to_toml();
        assert_eq!(Figures::parse(&text).unwrap(), table(), "{text}");
        assert!(Figures::parse(&text.replace(", \"\"]", "]")).is_err(), "a row lacks a cell");
    }

    #[test]
    fn a_repeated_measurement_keeps_its_conditions_but_the_load() {
        assert_eq!(renewed("", "load 2 at the beginning"), "load 2 at the beginning");
        assert_eq!(renewed("virtual hosts, load 5", "load 2"), "virtual hosts, load 2");
        assert_eq!(renewed("virtual host, 4 nodes", ""), "virtual host, 4 nodes");
        assert_eq!(renewed("", "deterministic host"), "deterministic host");
        assert_eq!(renewed("emulation", "emulation, load 1"), "emulation, load 1");
    }

    fn page_of(index: &str) -> String {
        let read = |name: &str| {
            let title = if name == "table" { "Pipes" } else { "" };
            let command = format!("make {name}");
            Ok(Figures { title: title.to_owned(), command, ..table() })
        };
        page(&toml::from_str(index).unwrap(), read).unwrap()
    }

    #[test]
    fn a_file_with_a_title_has_its_own_table() {
        let figures = "2026-11-22, virtual host: `make table`\n\nThrough a \"pipe\".\n\n\
                       | what | aim |\n|---|---|\n| `a \\| b`: \\ 5 % | |\n\n```\na  1\n```\n";
        let index = "about = 'All.'\n[[sections]]\ntitle = 'Pipes'\nfiles = ['table']\n\
                     [[sections]]\ntitle = 'Others'\nfiles = ['table']";
        let head = "# Figures\n\nAll.\n\n## Pipes\n\n";
        let others = "## Others\n\n### Pipes\n\n";
        assert_eq!(page_of(index), format!("{head}{figures}\n{others}{figures}"));
    }

    #[test]
    fn files_without_a_title_share_one() {
        let index = "about = 'All.'\n[[sections]]\ntitle = 'Pipes'\nfiles = ['a', 'b']";
        let rows = "| what | aim | command | measured on |\n|---|---|---|---|\n\
                    | `a \\| b`: \\ 5 % | | `make a` | 2026-11-22, virtual host |\n\
                    | `a \\| b`: \\ 5 % | | `make b` | 2026-11-22, virtual host |\n";
        assert!(page_of(index).contains(rows), "{}", page_of(index));
    }
}
