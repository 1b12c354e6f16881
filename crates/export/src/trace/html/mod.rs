//! One HTML page for a trace, or for two side by side: no network, no server, no other file.
//!
//! `crate::page` keeps names from becoming markup.

mod bars;
mod differences;
mod figures;
mod gantt;
mod summary;
mod vcpus;

use std::io::{self, Write};

use trace_analysis::findings::Findings;

use super::Run;
use crate::page::{Component, Page};

const TIMELINES_NOTE: &str = "Every CPU, disk and task that ran; below each CPU of a VM whose host was traced its vCPU, from the \
    host's side. Drag or use the arrow keys to move, Ctrl and wheel or + and - to zoom, double-click or Enter to zoom into a \
    piece, 0 to see everything; b or the button to go to who ended a wait. What runs is drawn full, what waits lower, what \
    sleeps as a line.";

/// Writes `runs` as a page: one by itself, several side by side.
///
/// # Errors
/// Only the writer's.
pub fn write(runs: &[Run<'_>], mut out: impl Write) -> io::Result<()> {
    let found: Vec<Vec<Findings<'_>>> = runs.iter().map(|run| run.findings()).collect();
    let found: Vec<&[Findings<'_>]> = found.iter().map(Vec::as_slice).collect();
    let subjects = figures::subjects(runs, &found);
    let mut page = Page::new(&summary::title(runs));
    page.header(&summary::facts(runs).html(usize::MAX));
    page.notes(&summary::notes(runs));
    page.add(&differences::section(runs, &found));
    page.add(&figures::figures(&subjects));
    let timelines = page.component(Component::Timeline, &gantt::data(runs, &found));
    let legend = gantt::ACTIVITIES.map(|(_, name, style)| (style, name, String::new()));
    page.section("Gantt chart", TIMELINES_NOTE, &(crate::page::legend(legend) + &timelines));
    page.add(&figures::processes(&subjects));
    page.write(&mut out)
}
