//! The page's timelines of vCPUs: pieces as text, totals, size, names.

use std::fmt::Write as _;

use export::Chart;
use serde_json::Value;

use crate::drawn::{self, MS};
use crate::fixture::{self, HOSTILE};
use crate::formats::{self, golden, page, pieces};

fn data(page: &str) -> Value {
    formats::data(page, "timeline")
}

/// The lanes of all VMs.
fn lanes(data: &Value) -> impl Iterator<Item = &Value> {
    let machines = data["runs"][0]["machines"].as_array().unwrap();
    machines.iter().flat_map(|machine| machine["lanes"].as_array().unwrap())
}

/// Each piece as `LENGTH ms: kind SHARE (word), ...`.
fn text(data: &Value) -> String {
    let mut out = String::new();
    for lane in lanes(data) {
        writeln!(out, "from {} ms", lane["from"].as_u64().unwrap() / MS).unwrap();
        let (pieces, end) = pieces(lane);
        let ends = pieces.iter().skip(1).map(|(begin, _)| *begin).chain([end]);
        for ((begin, parts), end) in pieces.iter().zip(ends) {
            let part = |(kind, share, word): &(usize, u64, Option<usize>)| {
                let kind = data["doings"][kind][0].as_str().unwrap();
                let word = word.map(|word| data["words"][word].as_str().unwrap());
                let word = word.map_or(String::new(), |word| format!(" ({word})"));
                format!("{kind} {share}{word}")
            };
            let parts: Vec<String> = parts.iter().map(part).collect();
            writeln!(out, "  {} ms: {}", (end - begin) / MS, parts.join(", ")).unwrap();
        }
    }
    out
}

#[test]
fn wide_segments_are_pieces_of_their_own() {
    let page = page(&fixture::small(), drawn::small().chart());
    golden("drawn.vcpus.txt", &text(&data(&page)));
}

#[test]
fn totals_and_legend_are_text() {
    let page = page(&fixture::small(), drawn::small().chart());
    for expected in [
        "<tr><td>vm web vcpu0</td><td class=\"number\">36.84</td>",
        "<tr><td>vm db vcpu1</td><td class=\"number\">26.32</td>",
        "<span class=\"swatch preempted\"></span>preempted <span class=\"faint\">19.30 %</span>",
    ] {
        assert!(page.contains(expected), "{expected}");
    }
}

/// 38,000 segments become as many pieces as a screen has columns, and no time is lost.
#[test]
fn a_long_recording_stays_small() {
    let drawing = drawn::long(2_000);
    let page = page(&fixture::small(), drawing.chart());
    let data = data(&page);
    for (lane, timeline) in lanes(&data).zip(&drawing.axis.timelines) {
        let (pieces, end) = pieces(lane);
        assert!((500..=2_002).contains(&pieces.len()), "{} pieces", pieces.len());
        assert_eq!(end - lane["from"].as_u64().unwrap(), timeline.length_ns());
        for (_, parts) in pieces {
            // Each of at most 11 shares is rounded by half a thousandth.
            let shares = parts.iter().map(|(_, share, _)| share);
            assert!(shares.sum::<u64>().abs_diff(1_000) <= 6, "{parts:?}");
        }
    }
    assert!(page.len() < 1_000_000, "{} bytes", page.len());
}

#[test]
fn no_vcpu_no_section() {
    let mut drawing = drawn::small();
    drawing.axis.timelines.clear();
    let page = page(&fixture::small(), drawing.chart());
    assert!(!page.contains("<h2>Timelines") && !page.contains("timeline-data"));
}

#[test]
fn one_vcpu_can_be_chosen() {
    let drawing = drawn::small();
    let chart = Chart { vm: Some(model::VmId(1)), vcpu: Some(1), ..drawing.chart() };
    let page = page(&fixture::small(), chart);
    assert_eq!(lanes(&data(&page)).count(), 1);
    assert!(page.contains("<td>vm db vcpu1</td>"));
    assert!(!page.contains("vm web"));
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
