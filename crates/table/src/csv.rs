//! Tables as CSV (RFC 4180).

use crate::clean;
use crate::table::{Cell, Column, Row, Table};

impl Table {
    /// One header line, then one line per row. No cell is cut; what is not known is an empty field.
    #[must_use]
    pub fn csv(&self) -> String {
        let columns = || {
            self.columns.iter().enumerate().filter_map(|(n, it)| Some((n, it, it.csv.as_ref()?)))
        };
        let mut out = line(columns().map(|(.., key)| field(key)));
        for row in self.rows.iter().chain(&self.rest) {
            out += &line(columns().map(|(n, column, _)| cell(column, row, n)));
        }
        out
    }
}

fn line(fields: impl Iterator<Item = String>) -> String {
    fields.collect::<Vec<_>>().join(",") + "\r\n"
}

fn cell(column: &Column, row: &Row, n: usize) -> String {
    let decimals = column.decimals;
    match row.get(n).unwrap_or(&Cell::NONE) {
        Cell::Text(text) | Cell::Coloured(_, text) => field(text),
        Cell::Number(n, _) => n.to_string(),
        Cell::Change(n, _) => n.to_string(),
        Cell::Share(_, 0) | Cell::Unknown(_) | Cell::Json(_) => String::new(),
        Cell::Share(part, whole) => crate::percent(*part, *whole, decimals),
        Cell::Real(number) | Cell::RealChange(number) => format!("{number:.decimals$}"),
        Cell::Flag(flag) => flag.to_string(),
    }
}

/// Spreadsheets run a field that begins with one of these as a formula.
const FORMULA: [char; 4] = ['=', '+', '-', '@'];

/// Text as a field of CSV: control and direction characters made visible, in quotes where it must be. What a spreadsheet
/// would run begins with an apostrophe.
#[must_use]
pub fn field(text: &str) -> String {
    let mut text = clean(text).into_owned();
    if text.starts_with(FORMULA) && text.parse::<f64>().is_err() {
        text.insert(0, '\'');
    }
    if text.contains([',', '"', '\r', '\n']) {
        return format!("\"{}\"", text.replace('"', "\"\""));
    }
    text
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::table::Unit;

    #[test]
    fn fields() {
        let check = |raw: &str, expected: &str| assert_eq!(field(raw), expected);
        check("plain", "plain");
        check("std::map<int, char>", "\"std::map<int, char>\"");
        check("operator\"\"_s", "\"operator\"\"\"\"_s\"");
        check("a\nb", "a\\u{a}b");
        check("=1+1", "'=1+1");
        check("@SUM(A1,A2)", "\"'@SUM(A1,A2)\"");
        check("-[NSObject init]", "'-[NSObject init]");
        check("-12.5", "-12.5");
    }

    #[test]
    fn cells_and_short_rows() {
        let columns = ["name", "n", "change", "part", "factor"].map(Column::data);
        let mut table = Table::new("not here", columns.to_vec());
        table.columns.insert(0, Column::name("for people"));
        table.row([
            "x".into(),
            "a".into(),
            Cell::ns(7),
            Cell::Change(-7, Unit::Ns),
            Cell::Share(1, 3),
            Cell::Real(2.0),
        ]);
        table.rest.push(vec![Cell::NONE, "(other 2 rows)".into()]);
        let expected = "name,n,change,part,factor\r\na,7,-7,33.33,2.00\r\n(other 2 rows),,,,\r\n";
        assert_eq!(table.csv(), expected);
    }
}
