//! Tables of text, as aligned columns or as CSV (RFC 4180).

use std::fmt::Write as _;

use analysis::text::{Keep, cut, fitting, line};
use analysis::{Width, clean};

/// Columns stand closer before their names get shorter than this.
const NAME_CHARS: usize = 12;
const GAP: usize = 2;

/// Rows under one title each.
#[derive(Debug, Clone)]
pub(crate) struct Grid {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

/// A column's title, of one or more lines, and where its cells stand.
#[derive(Debug, Clone)]
pub(crate) enum Column {
    /// Names: to the left, cut where a line would be too long.
    Name(String),
    /// Numbers: to the right.
    Number(String),
}

impl Grid {
    /// No rows yet. Titles that begin with `>` are of numbers.
    pub(crate) fn new(titles: &[&str]) -> Self {
        let column = |title: &&str| match title.strip_prefix('>') {
            Some(title) => Column::Number(title.to_owned()),
            None => Column::Name((*title).to_owned()),
        };
        Self { columns: titles.iter().map(column).collect(), rows: Vec::new() }
    }

    pub(crate) fn push(&mut self, column: Column) {
        self.columns.push(column);
    }

    /// A row may be shorter than the titles; its last cell then runs on over the columns it lacks.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Columns two blanks apart, or one where that makes lines fit; control and direction characters made visible.
    pub(crate) fn text(&self, width: Width) -> String {
        let lines = self.lines();
        let natural = self.widths(&lines);
        let gap = if self.fits(width) { GAP } else { 1 };
        let weights: Vec<usize> = self.columns.iter().map(|c| usize::from(c.is_name())).collect();
        let widths = fitting(natural, &weights, gap, width.columns());
        let mut out = String::new();
        for cells in &lines {
            let mut text = String::new();
            for (n, (cell, width)) in cells.iter().zip(&widths).enumerate() {
                let _ = match self.columns[n] {
                    _ if self.runs_on(cells, n) => write!(text, "{cell}"),
                    Column::Name(_) => {
                        write!(text, "{:<width$}", cut(cell, *width, Keep::StartAndFrom(" (")))
                    }
                    Column::Number(_) => write!(text, "{cell:>width$}"),
                };
                let _ = write!(text, "{:gap$}", "");
            }
            out.push_str(text.trim_end());
            out.push('\n');
        }
        out
    }

    /// Whether lines fit with their columns two blanks apart and no name cut to less than a dozen characters.
    pub(crate) fn fits(&self, width: Width) -> bool {
        let natural = self.widths(&self.lines());
        let least = natural
            .into_iter()
            .zip(&self.columns)
            .map(|(width, column)| if column.is_name() { width.min(NAME_CHARS) } else { width });
        let least = line(&least.collect::<Vec<_>>(), GAP);
        width.columns().is_none_or(|columns| least <= columns)
    }

    /// The same cells, none cut; a dash is an empty field.
    pub(crate) fn csv(&self) -> String {
        let titles: Vec<String> = self.columns.iter().map(|c| c.title().to_owned()).collect();
        let mut out = String::new();
        for row in std::iter::once(&titles).chain(&self.rows) {
            let empty_or = |cell: &String| if cell == "-" { String::new() } else { field(cell) };
            let fields: Vec<String> = row.iter().map(empty_or).collect();
            out.push_str(&fields.join(","));
            out.push_str("\r\n");
        }
        out
    }

    /// Titles, the shorter ones at the bottom, and rows.
    fn lines(&self) -> Vec<Vec<String>> {
        let titles: Vec<Vec<&str>> =
            self.columns.iter().map(|c| c.title().split('\n').collect()).collect();
        let height = titles.iter().map(Vec::len).max().unwrap_or(0);
        let part = |title: &Vec<&str>, n: usize| {
            let part = (n + title.len()).checked_sub(height).map(|n| title[n]);
            part.unwrap_or_default().to_owned()
        };
        let titles = (0..height).map(|n| titles.iter().map(|title| part(title, n)).collect());
        let lines = titles.chain(self.rows.iter().cloned());
        let cleaned = |cells: Vec<String>| cells.iter().map(|cell| clean(cell).into()).collect();
        lines.map(cleaned).collect()
    }

    fn widths(&self, lines: &[Vec<String>]) -> Vec<usize> {
        let width = |n: usize| {
            let lines = lines.iter().filter(|line| !self.runs_on(line, n));
            lines.filter_map(|line| line.get(n)).map(|cell| cell.chars().count()).max()
        };
        (0..self.columns.len()).map(|n| width(n).unwrap_or(0)).collect()
    }

    fn runs_on(&self, line: &[String], n: usize) -> bool {
        n + 1 == line.len() && line.len() < self.columns.len()
    }
}

impl Column {
    fn title(&self) -> &str {
        match self {
            Self::Name(title) | Self::Number(title) => title,
        }
    }

    fn is_name(&self) -> bool {
        matches!(self, Self::Name(_))
    }
}

/// A field of CSV: control and direction characters made visible, in quotes where it must be.
fn field(text: &str) -> String {
    let text = clean(text);
    if text.contains([',', '"', '\r', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.into_owned()
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn text_and_csv() {
        let mut grid = Grid::new(&[">ms", "Who"]);
        grid.push(Column::Number("%".to_owned()));
        grid.row(["1.5", "a,\"b\"", "10.00"].map(str::to_owned));
        grid.row(["12.5", "c\x1b[2J", "-"].map(str::to_owned));
        let text = "  ms  Who             %\n 1.5  a,\"b\"       10.00\n12.5  c\\u{1b}[2J      -\n";
        assert_eq!(grid.text(Width::Unlimited), text);
        let csv = "ms,Who,%\r\n1.5,\"a,\"\"b\"\"\",10.00\r\n12.5,c\\u{1b}[2J,\r\n";
        assert_eq!(grid.csv(), csv);
    }

    #[test]
    fn titles_of_two_lines() {
        let mut grid = Grid::new(&["Who", ">steal\ntype 1", ">ms"]);
        grid.row(["a", "1", "2"].map(str::to_owned));
        assert_eq!(grid.text(Width::Unlimited), "      steal\nWho  type 1  ms\na         1   2\n");
    }

    #[test]
    fn short_rows_run_on() {
        let mut grid = Grid::new(&[">n", "A", "B"]);
        grid.row(["1", "a", "b"].map(str::to_owned));
        grid.row(["12", "(other 3 rows)"].map(str::to_owned));
        assert_eq!(grid.text(Width::Unlimited), " n  A  B\n 1  a  b\n12  (other 3 rows)\n");
    }

    #[test]
    fn long_cells_are_cut_in_text_only() {
        let check = |name: &str, number: &str, width: Width, expected: &str| {
            let mut grid = Grid::new(&["Who", ">n", ">m"]);
            grid.row([name, number, "1"].map(str::to_owned));
            let text = grid.text(width);
            assert_eq!(text.lines().last(), Some(expected));
            assert_eq!(grid.csv(), format!("Who,n,m\r\n{name},{number},1\r\n"));
        };
        let (name, number) = ("x".repeat(102) + " (7)", "1".repeat(64));
        let cut = |n: usize| "x".repeat(n) + "… (7)";
        check(&name, "1", Width::Unlimited, &(cut(95) + "  1  1"));
        check(&name, "1", Width::Columns(80), &(cut(69) + "  1  1"));
        // A dozen characters of the name do not fit two blanks from the numbers.
        check(&name, &number, Width::Columns(80), &format!("{} {number} 1", cut(8)));
    }
}
