//! What the administrator reads: one line per event, for the journal.

use std::io::Write;

/// Writes a line.
pub(crate) fn line(text: &str) {
    // Names in it may be a guest's or a server's choice.
    let safe: String = text
        .chars()
        .map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c })
        .collect();
    // The reader may have gone: that must not end a thread.
    drop(writeln!(std::io::stderr(), "vmscope agent: {safe}"));
}
