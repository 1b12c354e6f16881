//! Numbers and names as text.

use std::borrow::Cow;

use chrono::DateTime;
use model::is_unsafe;

/// `text` with everything escaped that could steer a terminal or reorder a line: names come from guests.
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

/// The same for JSON: names may come from a guest and end on a terminal.
#[must_use]
pub fn cleaned(text: &str) -> String {
    clean(text).into_owned()
}

/// The same of a text whose line feeds are its own.
#[must_use]
pub fn clean_lines(text: &str) -> String {
    let lines: Vec<Cow<'_, str>> = text.split('\n').map(clean).collect();
    lines.join("\n")
}

/// Per cent with so many decimals; `-` of nothing.
#[must_use]
pub fn percent(part: u64, whole: u64, decimals: usize) -> String {
    if whole == 0 {
        return "-".to_owned();
    }
    format!("{:.decimals$}", 100.0 * part as f64 / whole as f64)
}

/// A part as a fraction of 1, to six decimals; 0 of nothing.
#[must_use]
pub fn share(part: u64, whole: u64) -> f64 {
    (part as f64 / whole.max(1) as f64 * 1e6).round() / 1e6
}

/// Seconds with so many decimals.
#[must_use]
pub fn seconds(ns: u64, decimals: usize) -> String {
    format!("{:.decimals$}", ns as f64 / 1e9)
}

/// Milliseconds with three decimals.
#[must_use]
pub fn ms(ns: u64) -> String {
    format!("{:.3}", ns as f64 / 1e6)
}

/// How long something took: in seconds, or in milliseconds below one.
#[must_use]
pub fn length(ns: u64) -> String {
    if ns < 1_000_000_000 {
        format!("{:.2} ms", ns as f64 / 1e6)
    } else {
        format!("{} s", seconds(ns, 3))
    }
}

/// A whole number of ms, us or ns: `1 ms`, `2500 us`.
#[must_use]
pub fn duration(ns: u64) -> String {
    match ns {
        ns if ns.is_multiple_of(1_000_000) => format!("{} ms", ns / 1_000_000),
        ns if ns.is_multiple_of(1_000) => format!("{} us", ns / 1_000),
        ns => format!("{ns} ns"),
    }
}

/// A quantity with three digits, or with all before its point up to a million: `0.80`, `36.0`, `20224`, `147 M`.
#[must_use]
pub fn figure(value: f64) -> String {
    let (value, unit) = match value {
        value if value < 999_999.5 => (value, ""),
        value if value < 999.5e6 => (value / 1e6, " M"),
        value if value < 999.5e9 => (value / 1e9, " G"),
        value => (value / 1e12, " T"),
    };
    let decimals = match value {
        value if value < 9.995 => 2,
        value if value < 99.95 => 1,
        value if value < 999.95 && unit.is_empty() => 1,
        _ => 0,
    };
    format!("{value:.decimals$}{unit}")
}

/// A time with three digits: `0.80 ns`, `2.30 us`, `56.6 ms`.
#[must_use]
pub fn time(ns: f64) -> String {
    let (value, unit) = match ns {
        ns if ns < 999.5 => (ns, "ns"),
        ns if ns < 999.5e3 => (ns / 1e3, "us"),
        ns if ns < 999.5e6 => (ns / 1e6, "ms"),
        ns => (ns / 1e9, "s"),
    };
    let decimals = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.decimals$} {unit}")
}

/// Seconds since 1970 as `2026-03-01T12:00:00Z`; beyond what a calendar has, as they are.
#[must_use]
pub fn utc(unix_s: u64) -> String {
    let time = i64::try_from(unix_s).ok().and_then(|s| DateTime::from_timestamp(s, 0));
    time.map_or_else(|| unix_s.to_string(), |time| time.format("%Y-%m-%dT%H:%M:%SZ").to_string())
}

/// `1,234,567`.
#[must_use]
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if 0 < at && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `1 CPU`, `2 CPUs`, `3 processes`, `4 switches`.
#[must_use]
pub fn counted(n: u64, singular: &str) -> String {
    let ending = if singular.ends_with(['s', 'h']) { "es" } else { "s" };
    if n == 1 { format!("1 {singular}") } else { format!("{} {singular}{ending}", grouped(n)) }
}

/// `512M`, `4.50G`.
#[must_use]
pub fn size(bytes: u64) -> String {
    match bytes {
        0..0x10_0000 => format!("{}K", bytes >> 10),
        0x10_0000..0x4000_0000 => format!("{}M", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 30) => format!("{}G", bytes >> 30),
        _ => format!("{:.2}G", bytes as f64 / f64::from(1 << 30)),
    }
}

/// `name (412)`.
#[must_use]
pub fn with_id(name: &str, id: Option<u32>) -> String {
    id.map_or(name.to_owned(), |id| format!("{name} ({id})"))
}

/// A module's file without its folder.
#[must_use]
pub fn short_module(module: &str) -> &str {
    let name = if module.starts_with('/') { module.rsplit('/').next() } else { None };
    name.filter(|name| !name.is_empty()).unwrap_or(module)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn seconds_since_1970_are_a_date() {
        let check = |unix_s, expected: &str| assert_eq!(utc(unix_s), expected);
        check(0, "1970-01-01T00:00:00Z");
        check(951_782_400, "2000-02-29T00:00:00Z");
        check(1_735_689_599, "2024-12-31T23:59:59Z");
        check(u64::MAX, "18446744073709551615");
    }

    #[test]
    fn what_steers_a_terminal_is_escaped() {
        let check = |raw: &str, expected: &str| assert_eq!(clean(raw), expected);
        check("compute_a", "compute_a");
        check("日本", "日本");
        check("a\x1b[2Jb", "a\\u{1b}[2Jb");
        check("a\u{9b}2Jb\r\n", "a\\u{9b}2Jb\\u{d}\\u{a}");
        check("a\u{202e}b", "a\\u{202e}b");
        assert_eq!(clean_lines("a\tb\nc"), "a\\u{9}b\nc");
    }

    #[test]
    fn numbers() {
        assert_eq!([percent(1, 3, 1), percent(2, 3, 2), percent(1, 0, 1)], ["33.3", "66.67", "-"]);
        assert_eq!((share(1, 3), share(0, 0)), (0.333333, 0.0));
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([ms(1_234_567), seconds(1_234_567_890, 3)], ["1.235", "1.235"]);
        assert_eq!([length(873_456), length(1_000_000_000)], ["0.87 ms", "1.000 s"]);
        assert_eq!([1_000_000, 2_500_000, 999].map(duration), ["1 ms", "2500 us", "999 ns"]);
    }

    #[test]
    fn names() {
        assert_eq!(counted(1, "CPU"), "1 CPU");
        assert_eq!(counted(2000, "event"), "2,000 events");
        assert_eq!(counted(2, "process"), "2 processes");
        assert_eq!([with_id("a", Some(7)), with_id("a", None)], ["a (7)", "a"]);
        assert_eq!(
            ["/usr/lib/libc.so.6", "[kernel]", "/"].map(short_module),
            ["libc.so.6", "[kernel]", "/"]
        );
    }
}
