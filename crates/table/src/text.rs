//! Tables as aligned columns that fit a terminal.

mod cut;
mod fit;
mod wrap;

use std::fmt::Write as _;

use crate::table::{Cell, Column, Fit, Row, Scale, Table, Unit};
use crate::{clean, clean_lines};
use fit::{fitting, line};

pub use cut::{Keep, cut};
pub use fit::{NAME_CHARS, Width};
pub use wrap::{indented, wrapped};

/// Columns stand closer before their names get shorter than this.
const MIN_NAME_CHARS: usize = 12;
const GAP: usize = 2;

impl Table {
    /// Title, columns and notes. Columns stand two blanks apart, or one where that makes lines fit; names are cut;
    /// control and direction characters are made visible. Of a table with a title and no rows only the title.
    #[must_use]
    pub fn text(&self, width: Width) -> String {
        table_text(self, width)
    }
}

pub(crate) fn table_text(table: &Table, width: Width) -> String {
    let mut out = String::new();
    if !table.title.is_empty() {
        out += &(clean_lines(&table.title) + "\n");
    }
    if table.title.is_empty() || !table.rows.is_empty() || !table.rest.is_empty() {
        out += &Grid::new(table).text(width);
    }
    for note in &table.notes {
        out += &wrapped(&clean_lines(note), width);
    }
    out
}

pub(crate) fn fits(table: &Table, width: Width) -> bool {
    Grid::new(table).fits(width)
}

/// A cell as people see it.
pub(crate) fn figure(column: &Column, scale: Scale, cell: &Cell) -> String {
    let decimals = column.decimals;
    match cell {
        Cell::Text(text) | Cell::Coloured(_, text) => clean(text).into_owned(),
        Cell::Number(n, unit) => number(*unit, scale, *n),
        Cell::Change(n, unit) => {
            let sign = if *n < 0 { '-' } else { '+' };
            format!("{sign}{}", number(*unit, scale, n.unsigned_abs()))
        }
        Cell::Share(part, whole) => crate::percent(*part, *whole, decimals),
        Cell::Real(number) => format!("{number:.decimals$}"),
        Cell::RealChange(number) => format!("{number:+.decimals$}"),
        Cell::Flag(flag) => (if *flag { "yes" } else { "no" }).to_owned(),
        Cell::Unknown(_) | Cell::Json(_) => "-".to_owned(),
    }
}

fn number(unit: Unit, scale: Scale, n: u64) -> String {
    match unit {
        Unit::Ns => scale.show(n),
        Unit::Grouped => crate::grouped(n),
        Unit::Count | Unit::Bytes => n.to_string(),
        Unit::UnixS => crate::utc(n),
    }
}

/// The longest time of a column; `None`: it has none.
pub(crate) fn longest_ns(table: &Table, n: usize) -> Option<u64> {
    let cells = table.rows.iter().chain(&table.rest).filter_map(|row| row.get(n));
    let times = cells.filter_map(|cell| match cell {
        Cell::Number(ns, Unit::Ns) => Some(*ns),
        Cell::Change(ns, Unit::Ns) => Some(ns.unsigned_abs()),
        _ => None,
    });
    times.max()
}

/// The columns that people see, their cells formatted.
#[derive(Debug, Clone)]
struct Grid {
    fits: Vec<Fit>,
    /// Titles, the shorter ones at the bottom, and rows. A row may be shorter: its last cell then runs on.
    lines: Vec<Vec<String>>,
}

impl Grid {
    fn new(table: &Table) -> Self {
        let mut shown = Vec::new();
        for (n, column) in table.columns.iter().enumerate() {
            let Some(title) = &column.title else { continue };
            let (title, scale) = match (column.scale, longest_ns(table, n)) {
                (Scale::Auto, Some(longest)) => {
                    let scale = Scale::ms_or_s(longest);
                    (format!("{}, {}", clean_lines(title), scale.unit()), scale)
                }
                (scale, _) => (clean_lines(title), scale),
            };
            shown.push((n, column, title, scale));
        }
        let titles: Vec<Vec<&str>> =
            shown.iter().map(|(_, _, title, _)| title.split('\n').collect()).collect();
        let height = titles.iter().map(Vec::len).max().unwrap_or(0);
        let part = |title: &Vec<&str>, n: usize| {
            let part = (n + title.len()).checked_sub(height).map(|n| title[n]);
            part.unwrap_or_default().to_owned()
        };
        let titles = (0..height).map(|n| titles.iter().map(|title| part(title, n)).collect());
        let cells = |row: &Row| -> Vec<String> {
            let present = shown.iter().filter(|(n, ..)| *n < row.len());
            present.map(|(n, column, _, scale)| figure(column, *scale, &row[*n])).collect()
        };
        let lines = titles.chain(table.rows.iter().chain(&table.rest).map(cells)).collect();
        Self { fits: shown.iter().map(|(_, column, ..)| column.fit).collect(), lines }
    }

    fn text(mut self, width: Width) -> String {
        let all = self.fits.len();
        while let Some(last) = self.spare().filter(|_| !self.fits(width)) {
            self.leave_out(last);
        }
        match all - self.fits.len() {
            0 => self.drawn(width),
            1 => self.drawn(width) + "(1 more column in a wider terminal)\n",
            n => self.drawn(width) + &format!("({n} more columns in a wider terminal)\n"),
        }
    }

    fn spare(&self) -> Option<usize> {
        self.fits.iter().rposition(|fit| *fit == Fit::Spare)
    }

    fn leave_out(&mut self, column: usize) {
        self.fits.remove(column);
        for line in self.lines.iter_mut().filter(|line| column < line.len()) {
            line.remove(column);
        }
    }

    fn drawn(&self, width: Width) -> String {
        let gap = if self.fits(width) { GAP } else { 1 };
        let weights: Vec<usize> = self.fits.iter().map(|fit| weight(*fit)).collect();
        let widths = fitting(self.widths(), &weights, gap, width.columns());
        let mut out = String::new();
        for cells in &self.lines {
            let mut text = String::new();
            for (n, (cell, width)) in cells.iter().zip(&widths).enumerate() {
                let _ = match self.fits[n] {
                    _ if self.runs_on(cells, n) => write!(text, "{cell}"),
                    Fit::Name { keep, .. } => write!(text, "{:<width$}", cut(cell, *width, keep)),
                    Fit::Number | Fit::Spare => write!(text, "{cell:>width$}"),
                };
                let _ = write!(text, "{:gap$}", "");
            }
            out.push_str(text.trim_end());
            out.push('\n');
        }
        out
    }

    /// Whether lines fit with their columns two blanks apart and no name cut to less than a dozen characters.
    fn fits(&self, width: Width) -> bool {
        let widths = self.widths().into_iter().zip(&self.fits);
        let least = widths
            .map(|(width, fit)| if weight(*fit) == 0 { width } else { width.min(MIN_NAME_CHARS) });
        let least = line(&least.collect::<Vec<_>>(), GAP);
        width.columns().is_none_or(|columns| least <= columns)
    }

    fn widths(&self) -> Vec<usize> {
        let width = |n: usize| {
            let lines = self.lines.iter().filter(|line| !self.runs_on(line, n));
            lines.filter_map(|line| line.get(n)).map(|cell| cell.chars().count()).max()
        };
        (0..self.fits.len()).map(|n| width(n).unwrap_or(0)).collect()
    }

    fn runs_on(&self, line: &[String], n: usize) -> bool {
        n + 1 == line.len() && line.len() < self.fits.len()
    }
}

fn weight(fit: Fit) -> usize {
    match fit {
        Fit::Name { weight, .. } => weight,
        Fit::Number | Fit::Spare => 0,
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn table(columns: Vec<Column>, rows: &[&[&str]]) -> Table {
        let mut table = Table::new("", columns);
        rows.iter().for_each(|row| table.row(row.iter().map(|cell| Cell::from(*cell))));
        table
    }

    #[test]
    fn cells() {
        let columns = ["ms", "+ms", "%", "x", "+", "ok", "n"].map(Column::number);
        let mut table =
            Table::new("Title\nof two lines", columns.map(|it| it.scale(Scale::Ms)).to_vec());
        table.columns[3].decimals = 1;
        table.row([
            Cell::ns(1_500_000),
            Cell::Change(-250_000, Unit::Ns),
            Cell::Share(1, 3),
            Cell::Real(2.0),
            Cell::RealChange(0.5),
            Cell::Flag(true),
            Cell::Number(1234, Unit::Grouped),
        ]);
        table.notes.push("A note".to_owned());
        let expected = "Title\nof two lines\n   ms     +ms      %    x      +   ok      n\n\
                        1.500  -0.250  33.33  2.0  +0.50  yes  1,234\nA note\n";
        assert_eq!(table.text(Width::Unlimited), expected);
        table.rows.clear();
        assert_eq!(table.text(Width::Unlimited), "Title\nof two lines\nA note\n");
    }

    #[test]
    fn times_of_no_fixed_unit() {
        let mut table = Table::new("", vec![Column::number("life")]);
        table.row([Cell::ns(12_000_000_000)]);
        assert_eq!(table.text(Width::Unlimited), "life, s\n 12.000\n");
    }

    #[test]
    fn names_are_cleaned() {
        let columns = vec![Column::number("ms"), Column::name("Who"), Column::number("%")];
        let table = table(columns, &[&["1.5", "a", "10.00"], &["12.5", "c\x1b[2J", "-"]]);
        let text = "  ms  Who             %\n 1.5  a           10.00\n12.5  c\\u{1b}[2J      -\n";
        assert_eq!(table.text(Width::Unlimited), text);
    }

    #[test]
    fn titles_of_two_lines() {
        let columns =
            vec![Column::name("Who"), Column::number("steal\ntype 1"), Column::number("ms")];
        let table = table(columns, &[&["a", "1", "2"]]);
        assert_eq!(table.text(Width::Unlimited), "      steal\nWho  type 1  ms\na         1   2\n");
    }

    #[test]
    fn short_rows_run_on() {
        let columns =
            vec![Column::number("n"), Column::data("key"), Column::name("A"), Column::name("B")];
        let table = table(columns, &[&["1", "", "a", "b"], &["12", "", "(other 3 rows)"]]);
        assert_eq!(table.text(Width::Unlimited), " n  A  B\n 1  a  b\n12  (other 3 rows)\n");
    }

    #[test]
    fn spare_columns_go_before_names() {
        let check = |spare: usize, expected: &str| {
            let columns = vec![
                Column::name("Who"),
                Column::number("n"),
                Column::number("m").spare(),
                Column::number("o").spare(),
            ];
            let cells = ["x".repeat(20), "1".repeat(40), "2".repeat(spare), "3".repeat(9)];
            let table = table(columns, &[&cells.each_ref().map(String::as_str)]);
            let text = table.text(Width::Columns(80));
            assert_eq!(text.lines().skip(1).collect::<Vec<_>>().join("|"), expected);
        };
        let (name, cut, n) = ("x".repeat(20), "x".repeat(16) + "…", "1".repeat(40));
        check(8, &format!("{cut}  {n}  {}  {}", "2".repeat(8), "3".repeat(9)));
        let cut = "x".repeat(15);
        let more = "(1 more column in a wider terminal)";
        check(20, &format!("{cut}…  {n}  {}|{more}", "2".repeat(20)));
        check(30, &format!("{name}  {n}|(2 more columns in a wider terminal)"));
    }

    #[test]
    fn long_names_are_cut() {
        let check = |name: &str, number: &str, width: Width, expected: &str| {
            let columns = vec![Column::name("Who"), Column::number("n"), Column::number("m")];
            let text = table(columns, &[&[name, number, "1"]]).text(width);
            assert_eq!(text.lines().last(), Some(expected));
        };
        let (name, number) = ("x".repeat(102) + " (7)", "1".repeat(64));
        let cut = |n: usize| "x".repeat(n) + "… (7)";
        check(&name, "1", Width::Unlimited, &(cut(95) + "  1  1"));
        check(&name, "1", Width::Columns(80), &(cut(69) + "  1  1"));
        // A dozen characters of the name do not fit two blanks from the numbers.
        check(&name, &number, Width::Columns(80), &format!("{} {number} 1", cut(8)));
    }
}
