//! Folded stacks: `frame;frame;frame count`, one line per stack, sorted.

use std::collections::BTreeMap;
use std::io::{self, Write};

use analysis::flow::Flow;
use table::clean;

use analysis::flow::tree;

/// Writes `flow` as folded stacks.
///
/// # Errors
/// Only the writer's.
pub fn write(flow: &Flow, mut out: impl Write) -> io::Result<()> {
    let frame = |frame: &u32| flow.frames[*frame as usize].name.as_str();
    let stacks = flow.stacks.iter().map(|stack| stack.iter().map(frame).collect::<Vec<_>>());
    write_stacks(stacks.zip(tree::counts(flow)), &mut out)
}

/// Writes stacks, root first, and what each has. Stacks that look the same become one.
pub(crate) fn write_stacks<'a>(
    stacks: impl Iterator<Item = (Vec<&'a str>, u64)>,
    out: &mut impl Write,
) -> io::Result<()> {
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    for (stack, count) in stacks.filter(|(_, count)| *count > 0) {
        *lines.entry(line(&stack)).or_default() += count;
    }
    for (stack, count) in lines {
        writeln!(out, "{stack} {count}")?;
    }
    out.flush()
}

fn line(stack: &[&str]) -> String {
    let frames: Vec<String> = stack.iter().map(|frame| escape(frame)).collect();
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
