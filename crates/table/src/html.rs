//! Tables as fragments of HTML.

use std::fmt::Write as _;

use crate::clean;
use crate::table::{Cell, Column, Scale, Table};
use crate::text::{Keep, cut, figure, longest_ns};

/// Longer names are cut: they come from guests.
const NAME_CHARS: usize = 100;

/// `text` for element content and quoted attributes.
#[must_use]
pub fn escape(text: &str) -> String {
    let text = clean(text);
    text.chars().fold(String::with_capacity(text.len()), |mut out, c| {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            other => out.push(other),
        }
        out
    })
}

impl Table {
    /// The table with its heading; at most `most` rows, those that stand for several, then how many more there are. Columns that say nothing are
    /// left out; nothing at all when there are no rows. A column of `Scale::Auto` has the unit that suits it.
    #[must_use]
    pub fn html(&self, most: usize) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        let columns = self.columns.iter().enumerate();
        let columns: Vec<_> =
            columns.filter_map(|(n, column)| Some((n, self.head(n, column)?))).collect();
        let heads: String = columns.iter().map(|(_, (head, _))| head.as_str()).collect();
        let mut rows = String::new();
        let shown = self.rows.iter().take(most).map(|row| (row, ""));
        for (row, class) in shown.chain(self.rest.iter().map(|row| (row, " class=\"rest\""))) {
            let present = columns.iter().filter(|(n, _)| *n < row.len()).count();
            let cells = columns.iter().take(present).enumerate().map(|(at, (n, (_, scale)))| {
                // The last one of a short row runs on.
                let span = if at + 1 < present { 1 } else { columns.len() - at };
                cell(&self.columns[*n], *scale, &row[*n], span)
            });
            let _ = writeln!(rows, "<tr{class}>{}</tr>", cells.collect::<String>());
        }
        let more = match self.rows.len().saturating_sub(most) {
            0 => String::new(),
            more => format!("<p class=\"faint\">and {more} more</p>\n"),
        };
        let heading = match self.title.as_str() {
            "" => String::new(),
            title => format!("<h3>{}</h3>\n", escape(title)),
        };
        format!(
            "{heading}<div class=\"scroll\"><table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}</tbody>\n\
             </table></div>\n{more}"
        )
    }

    /// A column's heading and what its times are in; `None`: it is not shown.
    fn head(&self, n: usize, column: &Column) -> Option<(String, Scale)> {
        let cells = || self.rows.iter().chain(&self.rest).filter_map(|row| row.get(n));
        let title = column.title.as_ref()?;
        if n != 0 && !cells().any(says_something) {
            return None;
        }
        let title = escape(&title.replace('\n', " "));
        if column.is_name() {
            return Some((format!("<th>{title}</th>"), column.scale));
        }
        let longest = longest_ns(self, n);
        let (scale, unit) = match (column.scale, longest) {
            (Scale::Auto, Some(longest)) => {
                let scale = Scale::for_longest(longest);
                (scale, format!(", {}", scale.unit()))
            }
            (Scale::Auto, None)
                if !title.contains('%') && cells().any(|cell| matches!(cell, Cell::Share(..))) =>
            {
                (column.scale, ", %".to_owned())
            }
            _ => (column.scale, String::new()),
        };
        Some((format!("<th class=\"number\">{title}{unit}</th>"), scale))
    }
}

fn says_something(cell: &Cell) -> bool {
    match cell {
        Cell::Unknown(_)
        | Cell::Json(_)
        | Cell::Number(0, _)
        | Cell::Change(0, _)
        | Cell::Share(0, _) => false,
        Cell::Text(text) | Cell::Coloured(_, text) => !text.is_empty(),
        Cell::Number(..) | Cell::Change(..) | Cell::Share(..) => true,
        Cell::Real(_) | Cell::RealChange(_) | Cell::Flag(_) => true,
    }
}

fn cell(column: &Column, scale: Scale, cell: &Cell, span: usize) -> String {
    let class = match span {
        _ if !column.is_name() => " class=\"number\"".to_owned(),
        1 => String::new(),
        _ => format!(" colspan=\"{span}\""),
    };
    match cell {
        Cell::Coloured(style, name) => {
            format!("<td{class}><span class=\"swatch {style}\"></span>{}</td>", escape(name))
        }
        Cell::Text(text) => {
            let text = cut(text, NAME_CHARS, Keep::StartAndFrom(" ("));
            format!("<td{class}>{}</td>", escape(&text))
        }
        Cell::Unknown("") if column.is_name() => "<td></td>".to_owned(),
        Cell::Unknown(reason) if !reason.is_empty() => {
            format!("<td{class} title=\"{}\">-</td>", escape(reason))
        }
        _ => format!("<td{class}>{}</td>", escape(&figure(column, scale, cell))),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn markup_becomes_text() {
        assert_eq!(escape("a<b>&\"c'\u{202e}"), "a&lt;b&gt;&amp;&quot;c&#39;\\u{202e}");
    }

    #[test]
    fn rows_are_limited_and_cells_escaped() {
        let columns = vec![
            Column::name("name"),
            Column::number("time"),
            Column::number("ms").scale(Scale::Ms),
            Column::number("of all"),
            Column::number("nothing"),
            Column::data("data"),
        ];
        let mut table = Table::new("T", columns);
        assert_eq!(table.html(1), "");
        let ns = Cell::ns(5_000);
        let unknown = Cell::Unknown("not <counted>");
        table.row(["<b>".into(), ns.clone(), ns, Cell::Share(1, 2), unknown, 1_u64.into()]);
        table.row(["short".into()]);
        let expected = "<h3>T</h3>\n<div class=\"scroll\"><table>\n\
            <thead><tr><th>name</th><th class=\"number\">time, us</th><th class=\"number\">ms</th>\
            <th class=\"number\">of all, %</th></tr></thead>\n<tbody>\n\
            <tr><td>&lt;b&gt;</td><td class=\"number\">5.000</td><td class=\"number\">0.005</td>\
            <td class=\"number\">50.00</td></tr>\n</tbody>\n</table></div>\n<p class=\"faint\">and 1 more</p>\n";
        assert_eq!(table.html(1), expected);
        assert!(table.html(2).contains("<tr><td colspan=\"4\">short</td></tr>"));
        table.rest.push(vec![Cell::Coloured("user", "<i>".to_owned()), Cell::ns(1)]);
        let rest = "<tr class=\"rest\"><td><span class=\"swatch user\"></span>&lt;i&gt;</td>";
        assert!(table.html(1).contains(rest));
    }
}
