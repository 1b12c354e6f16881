//! Stacked bars with a legend that is a table of all figures.
//!
//! Bars are stretched SVG without text, so that they fit any width; everything they say is in the table and, per part,
//! in its title.

use std::fmt::Write as _;
use table::{Cell, Column, Scale, Table, escape};

use crate::page::{legend, percent};

/// Width of a bar in its own units.
const WIDTH: u64 = 100_000;

/// Bars that are divided alike.
#[derive(Debug, Default)]
pub(super) struct Chart {
    pub(super) title: String,
    /// What a whole bar is.
    pub(super) whole: String,
    /// Parts: name and style.
    pub(super) parts: Vec<(String, &'static str)>,
    pub(super) bars: Vec<Bar>,
}

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
        self.drawn() + &self.table_by_part().html(usize::MAX)
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
            self.table_by_bar().html(usize::MAX)
        )
    }

    /// Parts that any bar has.
    fn used(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.parts.len()).filter(|part| self.bars.iter().any(|bar| 0 < bar.ns[*part]))
    }

    fn longest(&self) -> u64 {
        self.bars.iter().map(Bar::total).max().unwrap_or(0)
    }

    fn scale(&self) -> Scale {
        Scale::for_longest(self.longest())
    }

    fn drawn(&self) -> String {
        let (longest, scale) = (self.longest(), self.scale());
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
                        "<rect x=\"{left}\" y=\"0\" width=\"{}\" height=\"10\" class=\"{style}\"><title>{}: {}, {}</title></rect>",
                        right - left,
                        escape(name),
                        scale.with_unit(bar.ns[part]),
                        percent(bar.ns[part], bar.total())
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

    fn table_by_part(&self) -> Table {
        let mut columns = vec![Column::name(&self.title)];
        for bar in &self.bars {
            columns.extend([self.times(&bar.label), Column::number("%")]);
        }
        let mut table = Table::new("", columns);
        for part in self.used() {
            let (name, style) = &self.parts[part];
            let cells = self.bars.iter().flat_map(|bar| cells(bar.ns[part], bar.total()));
            table.row([Cell::Coloured(style, name.clone())].into_iter().chain(cells));
        }
        let cells = self.bars.iter().flat_map(|bar| cells(bar.total(), bar.total()));
        table.rest.push([self.whole.as_str().into()].into_iter().chain(cells).collect());
        table
    }

    fn table_by_bar(&self) -> Table {
        let parts = self.used().map(|part| self.parts[part].0.as_str()).chain([&*self.whole]);
        let columns = parts.map(|name| self.times(name));
        let mut table = Table::new("", [Column::name("")].into_iter().chain(columns).collect());
        for bar in &self.bars {
            let cells = self.used().map(|part| bar.ns[part]).chain([bar.total()]).map(Cell::ns);
            table.row([bar.label.as_str().into()].into_iter().chain(cells));
        }
        table
    }

    /// A column of times in the chart's unit.
    fn times(&self, title: &str) -> Column {
        let scale = self.scale();
        Column::number(format!("{title}, {}", scale.unit())).scale(scale)
    }
}

fn cells(ns: u64, whole: u64) -> [Cell; 2] {
    [Cell::ns(ns), Cell::Share(ns, whole)]
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
        assert!(text.contains("<tr class=\"rest\"><td>all</td>"));
        let text = chart(&[("a", [0, 0, 0])]).by_bar();
        assert!(!text.contains("NaN") && !text.contains("<rect"));
    }
}
