//! One HTML page for a trace, or for two side by side: no network, no server, no other file.
//!
//! The page's Content-Security-Policy allows exactly its own script and style, by hash, and nothing else. Names stand
//! in escaped text or in a JSON data block, never in script, style or attributes without quotes.

mod bars;
mod differences;
mod figures;
mod gantt;
mod summary;
mod table;
mod vcpus;

use std::io::{self, Write};

use trace_analysis::findings::Findings;

use super::Run;
use crate::html::data::script_safe;
use crate::html::escape::escape;
use crate::html::{fill, hash};

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = concat!(include_str!("lanes.js"), include_str!("gantt.js"));

/// Writes `runs` as a page: one by itself, several side by side.
///
/// # Errors
/// Only the writer's.
pub fn write(runs: &[Run<'_>], mut out: impl Write) -> io::Result<()> {
    let found: Vec<Vec<Findings<'_>>> = runs.iter().map(|run| run.findings()).collect();
    let found: Vec<&[Findings<'_>]> = found.iter().map(Vec::as_slice).collect();
    let subjects = figures::subjects(runs, &found);
    let value = |key: &str| match key {
        "title" => summary::title(runs),
        "facts" => summary::facts(runs),
        "notes" => summary::notes(runs),
        "differences" => differences::section(runs, &found),
        "figures" => figures::figures(&subjects),
        "tables" => figures::processes(&subjects),
        "legend" => legend(),
        "gantts" => gantts(runs),
        "style" => STYLE.to_owned(),
        "script" => SCRIPT.to_owned(),
        "style_hash" => hash(STYLE),
        "script_hash" => hash(SCRIPT),
        "data" => script_safe(&gantt::data(runs, &found)),
        other => unreachable!("page.html asks for {other}, which a test would have shown"),
    };
    fill(PAGE, value, &mut out)?;
    out.flush()
}

fn legend() -> String {
    let item = |(_, name, style): (_, &str, &str)| {
        format!("<li><span class=\"swatch {style}\"></span>{}</li>", escape(name))
    };
    gantt::ACTIVITIES.map(item).join("\n")
}

/// A box per run, for `gantt.js` to fill.
fn gantts(runs: &[Run<'_>]) -> String {
    let heading = |run: &Run<'_>| match runs.len() {
        1 => String::new(),
        _ => format!("<h3>{}</h3>\n", escape(&super::names::short(run.label))),
    };
    let boxed = |(row, run): (usize, &Run<'_>)| {
        format!("{}<div class=\"gantt\" data-gantt=\"{row}\"></div>\n", heading(run))
    };
    runs.iter().enumerate().map(boxed).collect()
}
