//! The page's strips: runs as text, totals, size, names.

use std::fmt::Write as _;

use export::Chart;
use serde_json::Value;

use crate::drawn::{self, MS};
use crate::fixture::{self, HOSTILE};
use crate::formats::{golden, page};

/// The strips' JSON block.
fn data(page: &str) -> Value {
    let (_, rest) = page.split_once("<script id=\"strips\" type=\"application/json\">").unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap()
}

/// A run as `LENGTH ms: kind SHARE word, ...`.
fn run_text(data: &Value, run: &Value) -> String {
    let parts: Vec<String> =
        run.as_array().unwrap()[1..].chunks(3).map(|part| part_text(data, part)).collect();
    format!("{} ms: {}", number(&run[0]) / MS, parts.join(", "))
}

fn part_text(data: &Value, part: &[Value]) -> String {
    let kind = data["kinds"][usize::try_from(number(&part[0])).unwrap()].as_str().unwrap();
    let word = part[2].as_u64().map_or(String::new(), |word| {
        format!(" ({})", data["words"][usize::try_from(word).unwrap()].as_str().unwrap())
    });
    format!("{kind} {}{word}", part[1])
}

fn text(data: &Value) -> String {
    let mut out = String::new();
    for strip in data["strips"].as_array().unwrap() {
        writeln!(out, "from {} ms", number(&strip["from"]) / MS).unwrap();
        for run in strip["runs"].as_array().unwrap() {
            writeln!(out, "  {}", run_text(data, run)).unwrap();
        }
    }
    out
}

#[test]
fn wide_segments_are_runs_of_their_own() {
    let page = page(&fixture::small(), drawn::small().chart());
    golden("drawn.strips.txt", &text(&data(&page)));
}

#[test]
fn totals_and_legend_are_text() {
    let page = page(&fixture::small(), drawn::small().chart());
    for expected in [
        "<h3>vm web</h3>",
        "vcpu1: guest user 26.32 %, preempted 21.05 %, halted 52.63 %",
        "<span class=\"swatch preempted\"></span>preempted <span class=\"faint\">19.30 %</span>",
        "<span>0 s</span><span>0.00475 s</span>",
    ] {
        assert!(page.contains(expected), "{expected}");
    }
}

/// 38,000 segments become as many runs as a screen has columns, and no time is lost.
#[test]
fn a_long_recording_stays_small() {
    let drawing = drawn::long(2_000);
    let page = page(&fixture::small(), drawing.chart());
    let data = data(&page);
    for (strip, timeline) in data["strips"].as_array().unwrap().iter().zip(&drawing.axis.timelines)
    {
        let runs = strip["runs"].as_array().unwrap();
        assert!((500..=2_002).contains(&runs.len()), "{} runs", runs.len());
        let total: u64 = runs.iter().map(|run| number(&run[0])).sum();
        assert_eq!(total, timeline.length_ns());
        for run in runs {
            let shares = run.as_array().unwrap()[1..].chunks(3).map(|part| number(&part[1]));
            // Each of at most 11 shares is rounded by half a thousandth.
            assert!(shares.sum::<u64>().abs_diff(1_000) <= 6, "{run}");
        }
    }
    assert!(page.len() < 1_000_000, "{} bytes", page.len());
}

#[test]
fn no_vcpu_no_section() {
    let mut drawing = drawn::small();
    drawing.axis.timelines.clear();
    let page = page(&fixture::small(), drawing.chart());
    assert!(!page.contains("strips-title"));
    assert_eq!(data(&page)["strips"], serde_json::json!([]));
}

#[test]
fn one_vcpu_can_be_chosen() {
    let drawing = drawn::small();
    let chart = Chart { vm: Some(model::VmId(1)), vcpu: Some(1), ..drawing.chart() };
    let page = page(&fixture::small(), chart);
    assert_eq!(page.matches("<canvas").count(), 1);
    assert!(page.contains("aria-label=\"vcpu1: "));
    assert!(!page.contains("vm web</h3>"));
}

#[test]
fn hostile_names_stay_text() {
    let safe = page(&fixture::small(), drawn::small().chart());
    for name in HOSTILE {
        let page = page(&fixture::small(), drawn::hostile(name).chart());
        for tag in ["<script", "</script", "<img", "<svg", "<b>", "style=", "<h3>", "<canvas"] {
            assert_eq!(page.matches(tag).count(), safe.matches(tag).count(), "{name}: {tag}");
        }
        let unsafe_char =
            |c: char| (c.is_control() && c != '\n') || matches!(c, '\u{2028}' | '\u{202e}');
        assert_eq!(page.find(unsafe_char), None);
    }
}
