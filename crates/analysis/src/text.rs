//! A profile as a text table, in the manner of the profiler it follows:
//!
//! ```text
//! Total samples:29996 OS:USER:VM:IDLE = 4.71%:0.34%:94.95%:0.00%
//!
//! Samples  %Ratio  Function         Process     Module           VM
//!   16984   56.62  quantum_toffoli  shor (412)  libquantum.so.8  vm1
//! ```

mod cut;
mod fit;
mod heading;
mod table;
mod unnamed;

use std::borrow::Cow;

use crate::profile::Profile;

pub use cut::{Keep, cut};
pub use fit::{NAME_CHARS, fitting, line};
pub use heading::{dropped, every, missed};

/// How much fits on a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Width {
    /// A terminal's columns; fewer than 80 count as 80. Names are cut until lines fit.
    Columns(usize),
    /// Not a terminal: only names beyond 100 characters are cut.
    Unlimited,
}

/// The whole report, ready for a terminal.
#[must_use]
pub fn text(profile: &Profile, width: Width) -> String {
    let mut out = String::new();
    heading::heading(&mut out, profile);
    out.push('\n');
    out += &heading::totals(profile);
    out.push_str("\n\n");
    table::table(&mut out, profile, width);
    unnamed::unnamed(&mut out, profile, width);
    out
}

/// `text` with everything escaped that could steer a terminal or reorder a line: names come from
/// guests.
#[must_use]
pub fn clean(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if is_unsafe(c) {
            out.extend(c.escape_unicode());
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

fn is_unsafe(c: char) -> bool {
    let invisible = matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}');
    c.is_control() || invisible
}

/// How the rows that a limit cut off are called.
pub(crate) fn other_rows(rows: usize) -> String {
    if rows == 1 { "(other 1 row)".to_owned() } else { format!("(other {rows} rows)") }
}

/// "1 sample", "2 samples".
pub(crate) fn n_samples(n: u64) -> String {
    if n == 1 { "1 sample".to_owned() } else { format!("{n} samples") }
}

/// Per cent with two decimals; 0.00 of nothing.
pub(crate) fn percent(part: u64, total: u64) -> String {
    format!("{:.2}", 100.0 * part as f64 / total.max(1) as f64)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn cleaned() {
        let check = |raw: &str, expected: &str| assert_eq!(clean(raw), expected);
        check("compute_a", "compute_a");
        check("日本", "日本");
        check("a\x1b[2Jb", "a\\u{1b}[2Jb");
        check("a\u{9b}2Jb\r\n", "a\\u{9b}2Jb\\u{d}\\u{a}");
        check("a\u{202e}b", "a\\u{202e}b");
    }
}
