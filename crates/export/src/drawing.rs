//! Drawing: shapes with classes, whose colours a style decides.

use std::fmt::Write as _;

use table::escape;

use crate::page::N_DISTINCT;
use crate::page::chart_style;

/// A drawing of known size.
#[derive(Debug)]
pub(crate) struct Drawing {
    width: f64,
    height: f64,
    title: String,
    shapes: String,
}

impl Drawing {
    pub(crate) fn new(width: f64, height: f64, title: &str) -> Self {
        Self { width, height, title: title.to_owned(), shapes: String::new() }
    }

    pub(crate) fn text(&mut self, (x, y): (f64, f64), class: &str, text: &str) {
        let _ = writeln!(
            self.shapes,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\">{}</text>",
            escape(text)
        );
    }

    pub(crate) fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
        let _ = writeln!(
            self.shapes,
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" class=\"line\"/>"
        );
    }

    /// A bar in a series' colour, and what it says when it is pointed at.
    pub(crate) fn bar(
        &mut self,
        (x, y): (f64, f64),
        (width, height): (f64, f64),
        series: usize,
        says: &str,
    ) {
        let _ = writeln!(
            self.shapes,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" class=\"c{}\"><title>{}</title></rect>",
            series % N_DISTINCT,
            escape(says)
        );
    }

    pub(crate) fn point(&mut self, (x, y): (f64, f64), series: usize, says: &str) {
        let _ = writeln!(
            self.shapes,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" class=\"c{}\"><title>{}</title></circle>",
            series % N_DISTINCT,
            escape(says)
        );
    }

    pub(crate) fn curve(&mut self, points: &[(f64, f64)], series: usize) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            self.shapes,
            "<polyline points=\"{}\" class=\"curve c{}\"/>",
            points.join(" "),
            series % N_DISTINCT
        );
    }

    /// The names of series in their colours, on one line.
    pub(crate) fn legend<'a>(
        &mut self,
        names: impl IntoIterator<Item = &'a str>,
        (x, y): (f64, f64),
    ) {
        let mut x = x;
        for (n, name) in names.into_iter().enumerate() {
            self.bar((x, y - 10.0), (11.0, 11.0), n, name);
            self.text((x + 16.0, y), "", name);
            // There is no telling how wide letters are.
            x += 40.0 + 7.0 * name.chars().count() as f64;
        }
    }

    /// The SVG element, for an HTML page.
    pub(crate) fn inline(&self) -> String {
        format!("<svg class=\"chart\" {}>\n{}</svg>\n", self.frame(), self.content())
    }

    /// As a file of its own.
    pub(crate) fn file(&self) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\" {}>\n\
             <style>{}</style>\n<rect width=\"100%\" height=\"100%\" class=\"page\"/>\n{}</svg>\n",
            self.frame(),
            chart_style(),
            self.content()
        )
    }

    fn frame(&self) -> String {
        let (width, height) = (self.width, self.height);
        format!(
            "width=\"{width:.0}\" height=\"{height:.0}\" viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\""
        )
    }

    fn content(&self) -> String {
        format!("<title>{}</title>\n{}", escape(&self.title), self.shapes)
    }
}
