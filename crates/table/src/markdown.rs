//! Reports as Markdown, for comments on changes and for chats.

use crate::clean;
use crate::report::{Part, Report};
use crate::table::{Cell, Column, Scale, Table};
use crate::text::{figure, longest_ns};

/// No name after it is one to notify.
pub const NO_MENTION: &str = "@\u{200b}";

/// A backslash before punctuation makes it a character like others (CommonMark 2.4; Discord's is alike). `@` notifies no one.
pub fn push_markdown(character: char, out: &mut String) {
    match character {
        '@' => out.push_str(NO_MENTION),
        '/' | ',' | '%' | '.' | '\'' | '"' => out.push(character),
        _ if character.is_ascii_punctuation() => out.extend(['\\', character]),
        _ => out.push(character),
    }
}

impl Report {
    /// As Markdown (GitHub's, with tables). Names are code, so that they can act on nothing.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut blocks = Vec::new();
        let facts =
            self.facts.iter().map(|fact| format!("**{}**: {}", fact.title, text(&fact.text)));
        let notes = self.notes.iter().map(|note| format!("Note: {}", text(note)));
        blocks.extend(facts.chain(notes).map(|line| line + "\n"));
        blocks.extend(self.parts.iter().map(|part| match part {
            Part::Table(table) => table.markdown(),
            Part::Text(lines) | Part::Prose(lines) => text(lines) + "\n",
        }));
        blocks.join("\n")
    }
}

impl Table {
    fn markdown(&self) -> String {
        let mut heads = Vec::new();
        for (n, column) in self.columns.iter().enumerate() {
            let Some(title) = &column.title else { continue };
            let (unit, scale) = match (column.scale, longest_ns(self, n)) {
                (Scale::Auto, Some(longest)) => {
                    let scale = Scale::ms_or_s(longest);
                    (format!(", {}", scale.unit()), scale)
                }
                (scale, _) => (String::new(), scale),
            };
            heads.push((n, column, text(title) + &unit, scale));
        }
        let titles: String = heads.iter().map(|(_, _, title, _)| format!(" {title} |")).collect();
        let side = |column: &Column| if column.is_name() { " --- |" } else { " ---: |" };
        let sides: String = heads.iter().map(|(_, column, ..)| side(column)).collect();
        let mut out = match self.title.as_str() {
            "" => String::new(),
            title => text(title) + "\n\n",
        };
        out += &format!("|{titles}\n|{sides}\n");
        for row in self.rows.iter().chain(&self.rest) {
            let shown = heads.iter().filter_map(|(n, column, _, scale)| {
                let cell = row.get(*n)?;
                Some(match cell {
                    Cell::Text(name) | Cell::Coloured(_, name) => format!(" {} |", code(name)),
                    _ => format!(" {} |", text(&figure(column, *scale, cell))),
                })
            });
            out += &format!("|{}\n", shown.collect::<String>());
        }
        for note in &self.notes {
            out += &format!("\n{}\n", text(note));
        }
        out
    }
}

fn text(text: &str) -> String {
    clean(text).chars().fold(String::new(), |mut out, character| {
        match character {
            // Signs and brackets of figures, which begin nothing within a line.
            '-' | '+' | '(' | ')' | ':' | ';' | '=' => out.push(character),
            _ => push_markdown(character, &mut out),
        }
        out
    })
}

/// A code span in a cell of a table: more backticks around it than in it, and no bar that ends the cell.
fn code(name: &str) -> String {
    let name = clean(name).replace('|', "\\|");
    let (mut longest, mut run) = (0, 0);
    for character in name.chars() {
        run = if character == '`' { run + 1 } else { 0 };
        longest = longest.max(run);
    }
    let fence = "`".repeat(longest + 1);
    match longest {
        0 if !name.is_empty() => format!("`{name}`"),
        0 => String::new(),
        _ => format!("{fence} {name} {fence}"),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn names_stay_in_their_cells() {
        let mut table = Table::new("T", vec![Column::name("Who"), Column::number("time")]);
        table.row(["a|b``@team\n# c".into(), Cell::ns(2_000_000)]);
        table.row(["[x](javascript:1)<b>".into(), Cell::Unknown("no data")]);
        let mut report = Report::default();
        report.fact("Host", "@all *x* -1.5 %");
        report.parts = vec![table.into(), Part::Prose("End.".to_owned())];
        let expected = "**Host**: @\u{200b}all \\*x\\* -1.5 %\n\nT\n\n| Who | time, ms |\n| --- | ---: |\n\
            | ``` a\\|b``@team\\u{a}# c ``` | 2.000 |\n| `[x](javascript:1)<b>` | - |\n\nEnd.\n";
        assert_eq!(report.markdown(), expected);
    }
}
