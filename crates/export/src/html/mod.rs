//! One HTML page with an interactive flame graph and a strip per vCPU: no network, no server, no other file.
//!
//! The page's Content-Security-Policy allows exactly its own script and style, by hash, and nothing
//! else: a name that got past the escaping could still not run or load anything. Names stand in
//! escaped text (`escape`) or in a JSON data block (`data`), never in script, style or attributes
//! without quotes.

pub(crate) mod data;
pub(crate) mod escape;
mod strips;
mod summary;

use std::io::{self, Write};

use analysis::flow::Flow;
use sha2::{Digest, Sha256};

use self::escape::{base64, escape};
use crate::About;
use crate::chart::Chart;
use crate::tree::Tree;

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = concat!(include_str!("flame.js"), include_str!("strips.js"));

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
    let tree = Tree::new(flow);
    let top = summary::top(flow);
    let strips = strips::strips(chart);
    let value = |key: &str| match key {
        "title" => escape(&format!("vmscope: {}, {}", flow.hostname, about.view)),
        "facts" => summary::facts(flow, about.view),
        "notes" => summary::notes(about.notes),
        "legend" => summary::legend(flow),
        "top" => top.rows.clone(),
        "top_note" => top.note.clone(),
        "strips" => strips.section.clone(),
        "strips_data" => strips.data.clone(),
        "style" => STYLE.to_owned(),
        "script" => SCRIPT.to_owned(),
        "style_hash" => hash(STYLE),
        "script_hash" => hash(SCRIPT),
        "data" => data::json(flow, &tree),
        other => unreachable!("page.html asks for {other}, which a test would have shown"),
    };
    fill(PAGE, value, &mut out)?;
    out.flush()
}

/// Replaces each `{{key}}` of `template`, once: what is put in is not looked at again.
pub(crate) fn fill(
    template: &str,
    value: impl Fn(&str) -> String,
    out: &mut impl Write,
) -> io::Result<()> {
    let mut rest = template;
    while let Some((before, key, after)) = next_key(rest) {
        out.write_all(before.as_bytes())?;
        out.write_all(value(key).as_bytes())?;
        rest = after;
    }
    out.write_all(rest.as_bytes())
}

fn next_key(template: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = template.split_once("{{")?;
    let (key, after) = rest.split_once("}}")?;
    Some((before, key, after))
}

/// What a Content-Security-Policy calls an inline script or style.
pub(crate) fn hash(text: &str) -> String {
    format!("sha256-{}", base64(&Sha256::digest(text)))
}
