//! Every format of a small flow compared with tests/golden/export, and every sample counted.

use std::fmt::Write as _;
use std::io::Read;
use std::path::Path;

use analysis::flow::Flow;
use export::pprof::proto::{Label, Profile};
use export::{About, Chart};
use model::Note;
use prost::Message;
use serde_json::Value;

use crate::{drawn, fixture};

fn about(notes: &[Note]) -> About<'_> {
    About { view: "unified view", notes }
}

pub(crate) fn golden(file: &str, actual: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/export").join(file);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, actual).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(actual, expected, "{file} (UPDATE=1 rewrites)");
}

fn folded(flow: &Flow) -> String {
    let mut out = Vec::new();
    export::folded::write(flow, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn gunzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    flate2::read::GzDecoder::new(bytes).read_to_end(&mut out).unwrap();
    out
}

fn pprof(flow: &Flow) -> Profile {
    let mut out = Vec::new();
    export::pprof::write(flow, about(&fixture::notes()), &mut out).unwrap();
    Profile::decode(gunzip(&out).as_slice()).unwrap()
}

fn html(flow: &Flow) -> String {
    page(flow, drawn::small().chart())
}

pub(crate) fn page(flow: &Flow, chart: Chart<'_>) -> String {
    let mut out = Vec::new();
    export::html::write(flow, chart, about(&fixture::notes()), &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// The JSON block of a page's component.
pub(crate) fn data(page: &str, component: &str) -> Value {
    let begin = format!("<script id=\"{component}-data\" type=\"application/json\">");
    let (_, rest) = page.split_once(&begin).unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

/// A piece of a lane: its begin, its parts (kind, thousandths, word).
pub(crate) type Piece = (u64, Vec<(usize, u64, Option<usize>)>);

/// A lane's pieces, and where the last one ends.
pub(crate) fn pieces(lane: &Value) -> (Vec<Piece>, u64) {
    let numbers = lane["pieces"].as_array().unwrap().iter();
    let mut numbers = numbers.map(|number| number.as_i64().unwrap());
    let mut at = lane["from"].as_u64().unwrap();
    let mut list = Vec::new();
    while let Some(length) = numbers.next() {
        let mut next = || numbers.next().unwrap();
        let parts = match next() {
            n @ ..0 => (0..-n).map(|_| (next(), next(), next())).collect(),
            kind => vec![(kind, 1_000, next())],
        };
        let parts = parts.into_iter().map(|(kind, share, word)| {
            (kind.try_into().unwrap(), share.try_into().unwrap(), word.try_into().ok())
        });
        list.push((at, parts.collect()));
        at += u64::try_from(length).unwrap();
    }
    (list, at)
}

/// The message as text, one line per row.
fn pprof_text(profile: &Profile) -> String {
    let text = |index: i64| profile.string_table[usize::try_from(index).unwrap()].as_str();
    let mut out = String::new();
    for kind in profile.sample_type.iter().chain(&profile.period_type) {
        writeln!(out, "type {} {}", text(kind.r#type), text(kind.unit)).unwrap();
    }
    let (time, duration) = (profile.time_nanos, profile.duration_nanos);
    writeln!(out, "time {time} duration {duration} period {}", profile.period).unwrap();
    writeln!(out, "default {}", text(profile.default_sample_type)).unwrap();
    for comment in &profile.comment {
        writeln!(out, "comment {}", text(*comment)).unwrap();
    }
    for m in &profile.mapping {
        let (path, build_id) = (text(m.filename), text(m.build_id));
        writeln!(out, "mapping {} {:#x} {path} {build_id}", m.id, m.memory_limit).unwrap();
    }
    for f in &profile.function {
        writeln!(out, "function {} {}", f.id, text(f.name)).unwrap();
    }
    for l in &profile.location {
        let function = l.line[0].function_id;
        let (mapping, address) = (l.mapping_id, l.address);
        writeln!(out, "location {} mapping {mapping} {address:#x} function {function}", l.id)
            .unwrap();
    }
    for sample in &profile.sample {
        let label = |label: &Label| format!("{}={}", text(label.key), text(label.str));
        let labels: Vec<String> = sample.label.iter().map(label).collect();
        let (value, stack) = (&sample.value, &sample.location_id);
        writeln!(out, "sample {value:?} {stack:?} {}", labels.join(" ")).unwrap();
    }
    out
}

#[test]
fn folded_is_one_line_per_stack() {
    golden("small.folded", &folded(&fixture::small()));
    golden("hostile.folded", &folded(&fixture::hostile()));
}

#[test]
fn pprof_has_mappings_locations_and_labels() {
    golden("small.pprof.txt", &pprof_text(&pprof(&fixture::small())));
}

#[test]
fn the_tree_of_the_page() {
    let data = data(&html(&fixture::small()), "flame");
    let mut out = String::new();
    let labels = data["labels"].as_array().unwrap();
    let nodes = &data["nodes"];
    for (index, label) in nodes["label"].as_array().unwrap().iter().enumerate() {
        let depth = usize::try_from(nodes["depth"][index].as_u64().unwrap()).unwrap();
        let label = label.as_u64().map(|label| &labels[usize::try_from(label).unwrap()]);
        let (name, kind) = match label {
            Some(label) => (label[0].as_str().unwrap(), label[1].as_u64().unwrap()),
            None => ("all", 99),
        };
        let kind = data["kinds"].get(usize::try_from(kind).unwrap()).and_then(Value::as_str);
        let (indent, total) = ("  ".repeat(depth), &nodes["total"][index]);
        writeln!(out, "{indent}{name} {total} {}", kind.unwrap_or_default()).unwrap();
    }
    golden("small.tree.txt", &out);
}

/// Samples in each format: folded, pprof, Firefox, page.
fn totals(flow: &Flow) -> [u64; 4] {
    let lines = folded(flow);
    let count = |line: &str| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap();
    let pprof = pprof(flow);
    let value = |at: usize| pprof.sample.iter().map(|s| s.value[at]).sum::<i64>().unsigned_abs();
    assert_eq!(value(0) * flow.period_ns, value(1));
    let mut json = Vec::new();
    export::firefox::write_json(flow, &mut json).unwrap();
    let firefox: Value = serde_json::from_slice(&json).unwrap();
    let weight = |thread: &Value| {
        let weights = thread["samples"]["weight"].as_array().unwrap();
        weights.iter().map(|weight| weight.as_u64().unwrap()).sum::<u64>()
    };
    [
        lines.lines().map(count).sum(),
        value(0),
        firefox["threads"].as_array().unwrap().iter().map(weight).sum(),
        data(&html(flow), "flame")["nodes"]["total"][0].as_u64().unwrap(),
    ]
}

#[test]
fn every_format_has_every_sample_once() {
    for flow in [fixture::small(), fixture::hostile(), Flow::default()] {
        assert_eq!(totals(&flow), [flow.samples.len() as u64; 4]);
    }
}

#[test]
fn the_same_flow_gives_the_same_bytes() {
    type Write = fn(&Flow) -> Vec<u8>;
    let formats: [Write; 4] = [
        |flow| folded(flow).into_bytes(),
        |flow| {
            let mut out = Vec::new();
            export::pprof::write(flow, about(&fixture::notes()), &mut out).unwrap();
            out
        },
        |flow| {
            let mut out = Vec::new();
            export::firefox::write(flow, &mut out).unwrap();
            out
        },
        |flow| html(flow).into_bytes(),
    ];
    for format in formats {
        assert_eq!(format(&fixture::hostile()), format(&fixture::hostile()));
    }
}

#[test]
fn a_profile_beyond_a_limit_is_measured() {
    for flow in [fixture::small(), fixture::hostile(), Flow::default()] {
        let mut json = Vec::new();
        export::firefox::write_json(&flow, &mut json).unwrap();
        let bytes = json.len() as u64;
        assert_eq!(export::firefox::bytes_beyond(&flow, bytes).unwrap(), None);
        assert_eq!(export::firefox::bytes_beyond(&flow, bytes - 1).unwrap(), Some(bytes));
    }
}

#[test]
fn hostile_names_do_not_act() {
    let flow = fixture::hostile();
    let mut json = Vec::new();
    export::firefox::write_json(&flow, &mut json).unwrap();
    let unsafe_char =
        |c: char| (c.is_control() && c != '\n') || matches!(c, '\u{2028}' | '\u{202e}');
    let strings = pprof(&flow).string_table.concat();
    for text in [folded(&flow), strings, String::from_utf8(json).unwrap(), html(&flow)] {
        assert_eq!(text.find(unsafe_char), None);
    }
    for line in folded(&flow).lines() {
        assert_eq!(line.split(';').count(), 3, "{line}");
    }
}

#[test]
fn the_page_has_no_markup_but_its_own() {
    let (safe, hostile) = (html(&fixture::small()), html(&fixture::hostile()));
    for tag in
        ["<script", "</script", "<img", "<svg", "<link", "<iframe", "style=", "http:", "https:"]
    {
        assert_eq!(hostile.matches(tag).count(), safe.matches(tag).count(), "{tag}");
    }
    assert_eq!(safe.matches("<script").count(), 3);
    for tag in ["<img", "<svg", "<link", "<iframe", "style=", "http:", "https:", "src="] {
        assert_eq!(safe.matches(tag).count(), 0, "{tag}");
    }
    // A name that looks like a placeholder is shown, not filled in.
    assert!(hostile.contains("{{script}}"));
}

#[test]
fn the_page_names_what_was_missed() {
    let page = html(&fixture::small());
    assert!(page.contains("<li>vm3: no guest map: &lt;b&gt;no vsock&lt;/b&gt; device</li>"));
}

#[test]
fn nothing_recorded_is_said() {
    let page = html(&Flow::default());
    assert_eq!(data(&page, "flame")["nodes"]["total"], serde_json::json!([0]));
    assert!(page.contains("<dt>Samples</dt><dd>0</dd>"));
}
