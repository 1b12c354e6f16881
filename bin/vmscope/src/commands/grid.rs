//! Tables of text, as aligned columns or as CSV (RFC 4180).

use std::fmt::Write as _;

use analysis::clean;

/// Longer cells are cut in text.
const CELL_CHARS: usize = 60;

/// Rows under one title each.
#[derive(Debug)]
pub(crate) struct Grid {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

/// A column's title, and where its cells stand.
#[derive(Debug, Clone)]
pub(crate) enum Column {
    /// Names: to the left.
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

    /// A row may be shorter than the titles.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Columns two blanks apart; control and direction characters made visible.
    pub(crate) fn text(&self) -> String {
        let titles: Vec<String> = self.columns.iter().map(|c| c.title().to_owned()).collect();
        let lines: Vec<Vec<String>> = std::iter::once(&titles)
            .chain(&self.rows)
            .map(|row| row.iter().map(|cell| cut(&clean(cell))).collect())
            .collect();
        let width = |n: usize| {
            lines.iter().filter_map(|line| line.get(n)).map(|cell| cell.chars().count()).max()
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(|n| width(n).unwrap_or(0)).collect();
        let mut out = String::new();
        for line in &lines {
            let mut text = String::new();
            for ((cell, column), width) in line.iter().zip(&self.columns).zip(&widths) {
                let _ = match column {
                    Column::Name(_) => write!(text, "{cell:<width$}  "),
                    Column::Number(_) => write!(text, "{cell:>width$}  "),
                };
            }
            out.push_str(text.trim_end());
            out.push('\n');
        }
        out
    }

    /// The same cells, none cut; a dash is an empty field.
    pub(crate) fn csv(&self) -> String {
        let titles: Vec<String> = self.columns.iter().map(|c| c.title().to_owned()).collect();
        let mut out = String::new();
        for row in std::iter::once(&titles).chain(&self.rows) {
            let fields: Vec<String> = row.iter().map(|cell| field(cell)).collect();
            out.push_str(&fields.join(","));
            out.push_str("\r\n");
        }
        out
    }
}

impl Column {
    fn title(&self) -> &str {
        match self {
            Self::Name(title) | Self::Number(title) => title,
        }
    }
}

fn cut(cell: &str) -> String {
    if cell.chars().count() <= CELL_CHARS {
        return cell.to_owned();
    }
    cell.chars().take(CELL_CHARS - 1).chain(['…']).collect()
}

fn field(cell: &str) -> String {
    let text = if cell == "-" { "".into() } else { clean(cell) };
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
        assert_eq!(grid.text(), text);
        let csv = "ms,Who,%\r\n1.5,\"a,\"\"b\"\"\",10.00\r\n12.5,c\\u{1b}[2J,\r\n";
        assert_eq!(grid.csv(), csv);
    }

    #[test]
    fn long_cells_are_cut_in_text_only() {
        let long = "x".repeat(61);
        let mut grid = Grid::new(&["Who"]);
        grid.row([long.clone()]);
        assert_eq!(grid.text(), format!("Who\n{}…\n", "x".repeat(59)));
        assert_eq!(grid.csv(), format!("Who\r\n{long}\r\n"));
    }
}
