//! A profile as CSV (RFC 4180): one header line, one line per row, every field of a row.

use std::fmt::Display;

use crate::profile::{Label, Profile, Side};
use crate::text::{clean, other_rows, percent};

const HEADER: &str =
    "samples,percent,side,vm,process,pid,thread,tid,module,offset,function,cpu,vcpu,thief_vcpu";

/// The rows; what the limit cut off is a last row with function `(other N rows)`.
#[must_use]
pub fn csv(profile: &Profile) -> String {
    let mut out = String::from(HEADER);
    out.push_str("\r\n");
    for row in &profile.rows {
        record(&mut out, row.samples, profile.total, &row.label);
    }
    if profile.other.rows > 0 {
        let function = Some(other_rows(profile.other.rows));
        let label = Label { function, ..Label::default() };
        record(&mut out, profile.other.samples, profile.total, &label);
    }
    out
}

fn record(out: &mut String, samples: u64, total: u64, label: &Label) {
    let fields = [
        samples.to_string(),
        percent(samples, total),
        field(label.side.map(Side::name)),
        field(label.vm.as_deref()),
        field(label.process.as_deref()),
        field(label.pid),
        field(label.thread.as_deref()),
        field(label.tid),
        field(label.module.as_deref()),
        field(label.offset),
        field(label.function.as_deref()),
        field(label.cpu),
        field(label.vcpu),
        field(label.side.and_then(Side::thief_vcpu)),
    ];
    out.push_str(&fields.join(","));
    out.push_str("\r\n");
}

fn field(value: Option<impl Display>) -> String {
    value.map(|value| quoted(&clean(&value.to_string()))).unwrap_or_default()
}

fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\r', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn quoting() {
        let check = |raw: &str, expected: &str| assert_eq!(field(Some(raw)), expected);
        check("plain", "plain");
        check("std::map<int, char>", "\"std::map<int, char>\"");
        check("operator\"\"_s", "\"operator\"\"\"\"_s\"");
        check("a\nb", "a\\u{a}b");
    }
}
