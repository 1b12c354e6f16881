//! Stacked bars with a legend that is a table of all figures.
//!
//! Bars are stretched SVG without text, so that they fit any width; everything they say is in the table and, per part,
//! in its title.

use std::fmt::Write as _;
use view::escape;

use super::scale::{Scale, hundredths, scale};
use crate::page::legend;

/// Width of a bar in its own units.
const WIDTH: u64 = 100_000;

/// Bars that are divided alike.
#[derive(Debug, Default)]
pub(super) struct Chart {
    /// What it shows.
    pub(super) title: String,
    /// What a whole bar is.
    pub(super) whole: String,
    /// Parts: name and style.
    pub(super) parts: Vec<(String, &'static str)>,
    pub(super) bars: Vec<Bar>,
}

/// A bar.
#[derive(Debug)]
pub(super) struct Bar {
    pub(super) label: String,
    /// How long each part is.
    pub(super) ns: Vec<u64>,
}

impl Bar {
    pub(super) fn total(&self) -> u64 {
        self.ns.iter().sum()
    }
}

impl Chart {
    /// Bars on one scale, and under them a line for each part.
    pub(super) fn by_part(&self) -> String {
        self.drawn() + &self.table_by_part()
    }

    /// Bars on one scale with a legend, and behind them a line for each bar.
    pub(super) fn by_bar(&self) -> String {
        let items = self.used().map(|part| {
            let (name, style) = &self.parts[part];
            (*style, name.as_str(), String::new())
        });
        format!(
            "{}{}<details><summary>Figures of {}</summary>\n{}</details>\n",
            legend(items),
            self.drawn(),
            escape(&self.title),
            self.table_by_bar()
        )
    }

    /// Parts that any bar has.
    fn used(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.parts.len()).filter(|part| self.bars.iter().any(|bar| 0 < bar.ns[*part]))
    }

    fn scale(&self) -> Scale {
        scale(self.bars.iter().map(Bar::total).max().unwrap_or(0))
    }

    fn drawn(&self) -> String {
        let longest = self.bars.iter().map(Bar::total).max().unwrap_or(0);
        let scale = self.scale();
        let mut out = String::from("<div class=\"bars\">\n");
        for bar in &self.bars {
            let mut shapes = String::new();
            let mut at = 0;
            for part in self.used() {
                let end = at + bar.ns[part];
                let (left, right) = (place(at, longest), place(end, longest));
                at = end;
                if left < right {
                    let (name, style) = &self.parts[part];
                    let _ = write!(
                        shapes,
                        "<rect x=\"{left}\" y=\"0\" width=\"{}\" height=\"10\" class=\"{style}\"><title>{}: {}</title></rect>",
                        right - left,
                        escape(name),
                        share(bar.ns[part], bar.total(), scale)
                    );
                }
            }
            let label = escape(&bar.label);
            let _ = writeln!(
                out,
                "<span>{label}</span><svg viewBox=\"0 0 {WIDTH} 10\" preserveAspectRatio=\"none\" role=\"img\" \
                 aria-label=\"{label}, {}: {}\">{shapes}</svg><span class=\"number\">{}</span>",
                escape(&self.title),
                self.spoken(bar),
                scale.with_unit(bar.total())
            );
        }
        out + "</div>\n"
    }

    /// `CPU only 60.00 %, neither 40.00 %`.
    fn spoken(&self, bar: &Bar) -> String {
        let parts = self.used().filter(|part| 0 < bar.ns[*part]);
        let parts = parts.map(|part| {
            let name = escape(&self.parts[part].0);
            format!("{name} {}", percent(bar.ns[part], bar.total()))
        });
        parts.collect::<Vec<_>>().join(", ")
    }

    fn table_by_part(&self) -> String {
        let scale = self.scale();
        let heads: String = self
            .bars
            .iter()
            .map(|bar| {
                let label = escape(&bar.label);
                format!(
                    "<th class=\"number\">{label}, {}</th><th class=\"number\">%</th>",
                    scale.unit
                )
            })
            .collect();
        let mut rows = String::new();
        for part in self.used() {
            let (name, style) = &self.parts[part];
            let cells = self.bars.iter().map(|bar| cells(bar.ns[part], bar.total(), scale));
            let _ = writeln!(
                rows,
                "<tr><td><span class=\"swatch {style}\"></span>{}</td>{}</tr>",
                escape(name),
                cells.collect::<String>()
            );
        }
        let cells = self.bars.iter().map(|bar| cells(bar.total(), bar.total(), scale));
        let cells: String = cells.collect();
        format!(
            "<div class=\"scroll\"><table>\n<thead><tr><th>{}</th>{heads}</tr></thead>\n<tbody>\n{rows}\
             <tr class=\"whole\"><td>{}</td>{cells}</tr>\n</tbody>\n</table></div>\n",
            escape(&self.title),
            escape(&self.whole)
        )
    }

    fn table_by_bar(&self) -> String {
        let scale = self.scale();
        let names = self.used().map(|part| escape(&self.parts[part].0));
        let heads: String =
            names.map(|name| format!("<th class=\"number\">{name}, {}</th>", scale.unit)).collect();
        let mut rows = String::new();
        for bar in &self.bars {
            let cells = self.used().map(|part| bar.ns[part]).chain([bar.total()]);
            let cells = cells.map(|ns| format!("<td class=\"number\">{}</td>", scale.text(ns)));
            let _ = writeln!(
                rows,
                "<tr><td>{}</td>{}</tr>",
                escape(&bar.label),
                cells.collect::<String>()
            );
        }
        format!(
            "<div class=\"scroll\"><table>\n<thead><tr><th></th>{heads}<th class=\"number\">{}, {}</th></tr></thead>\n\
             <tbody>\n{rows}</tbody>\n</table></div>\n",
            escape(&self.whole),
            scale.unit
        )
    }
}

fn cells(ns: u64, whole: u64, scale: Scale) -> String {
    format!(
        "<td class=\"number\">{}</td><td class=\"number faint\">{}</td>",
        scale.text(ns),
        percent(ns, whole).trim_end_matches(" %")
    )
}

fn share(ns: u64, whole: u64, scale: Scale) -> String {
    format!("{}, {}", scale.with_unit(ns), percent(ns, whole))
}

/// `12.30 %`; a dash of nothing.
pub(super) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".to_owned();
    }
    let share = hundredths(part, whole);
    format!("{}.{:02} %", share / 100, share % 100)
}

fn place(ns: u64, longest: u64) -> u64 {
    let place = u128::from(ns) * u128::from(WIDTH) / u128::from(longest.max(1));
    u64::try_from(place).unwrap_or(WIDTH)
}

#[cfg(test)]
mod test {
    use super::*;

    fn chart(bars: &[(&str, [u64; 3])]) -> Chart {
        let bar =
            |(label, ns): &(&str, [u64; 3])| Bar { label: (*label).to_owned(), ns: ns.to_vec() };
        Chart {
            title: "Things".to_owned(),
            whole: "all".to_owned(),
            parts: ["one", "two", "three"].map(|name| (name.to_owned(), "user")).to_vec(),
            bars: bars.iter().map(bar).collect(),
        }
    }

    #[test]
    fn parts_lie_side_by_side_on_one_scale() {
        let drawn = chart(&[("a", [1, 0, 3]), ("b<", [0, 0, 8])]).drawn();
        assert_eq!(drawn.matches("<rect ").count(), 3);
        assert!(drawn.contains("x=\"0\" y=\"0\" width=\"12500\""), "{drawn}");
        assert!(drawn.contains("x=\"12500\" y=\"0\" width=\"37500\""));
        assert!(drawn.contains("x=\"0\" y=\"0\" width=\"100000\""));
        assert!(drawn.contains("aria-label=\"a, Things: one 25.00 %, three 75.00 %\""));
        assert!(drawn.contains("b&lt;"));
    }

    #[test]
    fn what_no_bar_has_is_not_listed() {
        let text = chart(&[("a", [1, 0, 3])]).by_part();
        assert!(!text.contains("two"));
        assert!(text.contains("<tr class=\"whole\"><td>all</td>"));
        let text = chart(&[("a", [0, 0, 0])]).by_bar();
        assert!(!text.contains("NaN") && !text.contains("<rect"));
    }
}
