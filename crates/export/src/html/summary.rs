//! What the page says without a script: the recording, shares by kind of frame, top functions.

use std::collections::HashMap;

use analysis::flow::{Flow, FlowThread};

use model::Note;

use super::data::{KINDS, kind_index};
use super::escape::escape;
use crate::tree::{self, Label, Labels, kind_of_stack, process_name};

/// Rows in the table of top functions.
const TOP: usize = 40;

/// The table of top functions.
pub(super) struct Top {
    /// `<tr>` elements.
    pub(super) rows: String,
    /// What the table leaves out.
    pub(super) note: String,
}

/// The recording's facts, as `<dt>` and `<dd>` in `<div>`s.
pub(super) fn facts(flow: &Flow, view: &str) -> String {
    let seconds = seconds(flow.end.since(flow.start));
    let vms = flow.threads.iter().filter_map(|thread| thread.vm.as_ref());
    let vms: std::collections::BTreeSet<&String> = vms.collect();
    let cpus: std::collections::BTreeSet<u32> = flow.samples.iter().map(|s| s.cpu).collect();
    let started = utc(flow.start_unix_ns / 1_000_000_000);
    [
        ("Host", escape(&flow.hostname)),
        ("View", escape(view)),
        ("Started", format!("<time datetime=\"{started}\">{started}</time>")),
        ("Duration", format!("{seconds} s")),
        ("Samples", grouped(flow.samples.len() as u64)),
        ("Period", format!("{} ms per CPU", trimmed(flow.period_ns, 1_000_000))),
        ("CPUs with samples", cpus.len().to_string()),
        ("VMs", vms.len().to_string()),
    ]
    .map(|(term, text)| format!("<div><dt>{term}</dt><dd>{text}</dd></div>"))
    .join("\n")
}

/// What was missed while recording, as a list; nothing when nothing was.
pub(super) fn notes(notes: &[Note]) -> String {
    if notes.is_empty() {
        return String::new();
    }
    let item = |note: &Note| format!("<li>{}: {}</li>", escape(&note.subject), escape(&note.text));
    let items: Vec<String> = notes.iter().map(item).collect();
    format!("<ul class=\"notes\">\n{}\n</ul>", items.join("\n"))
}

/// Each kind of frame with its colour and its share of the samples, by innermost frame.
pub(super) fn legend(flow: &Flow) -> String {
    let mut counts = [0; KINDS.len()];
    for (stack, count) in flow.stacks.iter().zip(tree::counts(flow)) {
        if let Some(kind) = kind_of_stack(flow, stack) {
            counts[kind_index(kind)] += count;
        }
    }
    let item = |((_, class), count): (&(_, &str), &u64)| {
        let share = match count {
            0 => String::new(),
            _ => format!(" <span class=\"faint\">{}</span>", percent(*count, flow.samples.len())),
        };
        let name = class.replace('-', " ").replace("vm", "VM");
        format!("<li><span class=\"swatch {class}\"></span>{name}{share}</li>")
    };
    KINDS.iter().zip(&counts).map(item).collect::<Vec<_>>().join("\n")
}

/// Functions by samples in themselves.
pub(super) fn top(flow: &Flow) -> Top {
    let mut labels = Labels::default();
    let mut rows: Vec<_> = self_samples(flow, &mut labels).into_iter().collect();
    let place = |label: usize| {
        let Label { kind, name, module } = labels.list[label];
        (name, kind_index(kind), module)
    };
    rows.sort_by(|((a, p), n), ((b, q), m)| {
        m.cmp(n).then_with(|| (place(*a), p).cmp(&(place(*b), q)))
    });
    let left_out = rows.iter().skip(TOP).map(|(_, count)| *count).sum::<u64>();
    let shown = rows.iter().take(TOP);
    let rows = shown.map(|((label, who), count)| row(flow, &labels.list[*label], who, *count));
    Top { rows: rows.collect::<Vec<_>>().join("\n"), note: note(left_out, flow.samples.len()) }
}

/// Samples by innermost frame and process.
fn self_samples<'a>(flow: &'a Flow, labels: &mut Labels<'a>) -> HashMap<(usize, String), u64> {
    let mut counts: HashMap<(u32, u32), u64> = HashMap::new();
    for sample in &flow.samples {
        *counts.entry((sample.stack, sample.thread)).or_default() += 1;
    }
    let mut by_process = HashMap::new();
    for ((stack, thread), count) in counts {
        let stack = &flow.stacks[stack as usize];
        if let Some(leaf) = stack.last() {
            let whole = kind_of_stack(flow, stack);
            let label = labels.in_stack(&flow.frames[*leaf as usize], whole);
            let process = process(&flow.threads[thread as usize]);
            *by_process.entry((label, process)).or_default() += count;
        }
    }
    by_process
}

fn row(flow: &Flow, label: &Label<'_>, process: &str, count: u64) -> String {
    let module = label.module.map_or("", |module| &flow.modules[module as usize].path);
    let (_, class) = KINDS[kind_index(label.kind)];
    format!(
        "<tr><td class=\"number\">{}</td><td class=\"number\">{}</td>\
         <td class=\"function\"><span class=\"swatch {class}\"></span><button type=\"button\">{}</button></td>\
         <td>{}</td><td>{}</td></tr>",
        grouped(count),
        percent(count, flow.samples.len()),
        escape(label.name),
        escape(process),
        escape(module),
    )
}

/// Process 0 is none: the idle task, or one that is not known.
fn process(thread: &FlowThread) -> String {
    match thread.pid {
        0 => process_name(thread),
        pid => format!("{} ({pid})", process_name(thread)),
    }
}

fn note(left_out: u64, samples: usize) -> String {
    match left_out {
        0 => String::new(),
        _ => format!("The rest has {} ({}).", grouped(left_out), percent(left_out, samples)),
    }
}

fn percent(part: u64, whole: usize) -> String {
    #[expect(clippy::cast_precision_loss, reason = "two decimals are shown")]
    let percent = 100.0 * part as f64 / whole.max(1) as f64;
    format!("{percent:.2} %")
}

fn seconds(ns: u64) -> String {
    trimmed(ns / 10_000_000, 100)
}

/// `number / unit` with as many decimals as it has.
pub(super) fn trimmed(number: u64, unit: u64) -> String {
    let decimals = unit.ilog10() as usize;
    let text = format!("{}.{:0decimals$}", number / unit, number % unit);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Thousands apart.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let parts: Vec<&str> = digits.as_bytes().rchunks(3).rev().map(ascii).collect();
    parts.join(",")
}

fn ascii(digits: &[u8]) -> &str {
    std::str::from_utf8(digits).expect("decimal digits are ASCII")
}

/// Seconds since 1970 as `2026-03-01T12:00:00Z` (proleptic Gregorian, no leap seconds).
fn utc(unix_seconds: u64) -> String {
    let (days, second) = (unix_seconds / 86_400, unix_seconds % 86_400);
    // Years begin in March here, so that the leap day is the last of its year.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn dates_are_gregorian() {
        for (unix_seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(unix_seconds), expected);
        }
    }

    #[test]
    fn numbers_read_well() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(trimmed(1_000_000, 1_000_000), "1");
        assert_eq!(trimmed(250_000, 1_000_000), "0.25");
        assert_eq!(seconds(20_004_999_999), "20");
        assert_eq!(seconds(20_050_000_000), "20.05");
        assert_eq!(percent(1, 3), "33.33 %");
        assert_eq!(percent(0, 0), "0.00 %");
    }
}
