//! Folded stacks: `frame;frame;frame count`, one line per stack, sorted.

use std::collections::BTreeMap;
use std::io::{self, Write};

use analysis::flow::Flow;
use view::clean;

use crate::tree;

/// Writes `flow` as folded stacks.
///
/// # Errors
/// Only the writer's.
pub fn write(flow: &Flow, mut out: impl Write) -> io::Result<()> {
    for (stack, count) in lines(flow) {
        writeln!(out, "{stack} {count}")?;
    }
    out.flush()
}

/// Samples by stack as written; stacks that differ in addresses only become one.
fn lines(flow: &Flow) -> BTreeMap<String, u64> {
    let names: Vec<String> = flow.frames.iter().map(|frame| escape(&frame.name)).collect();
    let mut lines = BTreeMap::new();
    for (stack, count) in flow.stacks.iter().zip(tree::counts(flow)).filter(|(_, count)| *count > 0)
    {
        *lines.entry(line(stack, &names)).or_default() += count;
    }
    lines
}

fn line(stack: &[u32], names: &[String]) -> String {
    let frames: Vec<&str> = stack.iter().map(|frame| names[*frame as usize].as_str()).collect();
    match frames.as_slice() {
        [] => "[no stack]".to_owned(),
        _ => keep_last_number(frames.join(";")),
    }
}

/// A frame in which nothing separates frames or lines, and that does not start a comment.
fn escape(name: &str) -> String {
    match clean(name).replace(';', "\\x3b") {
        name if name.is_empty() => "[no name]".to_owned(),
        name if name.starts_with('#') => name.replacen('#', "\\x23", 1),
        name => name,
    }
}

/// A line may end in two counts (a differential profile): a leaf such as `worker 7` must not look
/// like the first of them.
fn keep_last_number(stack: String) -> String {
    match stack.rsplit_once(' ') {
        Some((head, tail)) if tail.chars().all(|c| c.is_ascii_digit() || c == '.') => {
            format!("{head}\\x20{tail}")
        }
        _ => stack,
    }
}
