//! A comparison of machines by the micro-benchmark: one HTML page, and its charts as SVG.
//!
//! The page has no script at all; its Content-Security-Policy allows its own style, by hash. Every text of a result is
//! escaped. Colours follow the reader's choice of light or dark.

mod bars;
mod curves;
mod page;
mod svg;

use std::io::{self, Write};

use ::microbench::compare::{Comparison, Unit};

/// Which chart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chart {
    /// A bar per operation and machine, on a logarithmic scale.
    Bars,
    /// The latency of memory by the size of what is read.
    Latency,
}

/// Writes the page.
///
/// # Errors
/// Only the writer's.
pub fn html(comparison: &Comparison<'_>, unit: Unit, out: impl Write) -> io::Result<()> {
    page::write(comparison, unit, out)
}

/// A chart as an SVG file of its own; `None`: there is nothing to draw.
#[must_use]
pub fn svg(comparison: &Comparison<'_>, chart: Chart) -> Option<String> {
    let drawing = match chart {
        Chart::Bars => bars::draw(comparison)?,
        Chart::Latency => curves::draw(comparison)?,
    };
    Some(drawing.file())
}

/// Nanoseconds where every machine's clock is known, else ticks.
fn common_unit(comparison: &Comparison<'_>) -> Unit {
    let knows = |machine: &::microbench::Labelled| machine.results.machine.tsc.hz.is_some();
    if comparison.machines.iter().all(knows) { Unit::Ns } else { Unit::Ticks }
}
