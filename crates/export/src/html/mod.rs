//! One HTML page with an interactive flame graph and the timelines of vCPUs: no network, no server, no other file.

mod flame;
mod summary;
mod vcpus;

use std::io::{self, Write};

use analysis::flow::Flow;

use crate::About;
use crate::chart::Chart;
use crate::page::{Component, Page};
use analysis::flow::tree::Tree;

const VCPUS_NOTE: &str = "All of each vCPU's time on the host's clock, whatever else is selected. Steal type 1 is preempted; \
    type 2 is vmm and waiting in vmm. Drag or use the arrow keys to move, Ctrl and wheel or + and - to zoom, double-click to \
    zoom into a piece, 0 to see everything.";

/// Writes `flow`, and the vCPUs of `chart`, as a page.
///
/// # Errors
/// Only the writer's.
pub fn write(
    flow: &Flow,
    chart: Chart<'_>,
    about: About<'_>,
    mut out: impl Write,
) -> io::Result<()> {
    let mut page = Page::new(&format!("vmscope: {}, {}", flow.hostname, about.view));
    page.header(&summary::facts(flow, about.view));
    let note = |note: &model::Note| format!("{}: {}", note.subject, note.text);
    page.notes(&about.notes.iter().map(note).collect::<Vec<_>>());
    let flame = page.component(Component::Flame, &flame::data(flow, &Tree::new(flow)));
    page.section("Flame graph", "", &(summary::legend(flow) + &flame));
    if 0 < chart.vcpus() {
        let timeline = page.component(Component::Timeline, &vcpus::data(chart));
        let html = vcpus::legend(chart) + &timeline + &vcpus::table(chart).html(usize::MAX);
        page.section("Timelines", VCPUS_NOTE, &html);
    }
    let (top, rest) = summary::top(flow);
    let html = format!("<div data-searched-by=\"flame\">\n{}</div>\n", top.html(summary::TOP));
    page.section("Top functions", &format!("By samples in the function itself. {rest}"), &html);
    page.write(&mut out)
}
