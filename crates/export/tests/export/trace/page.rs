//! The page of a drawn trace: its data, and what may not be in it.

use std::collections::BTreeMap;

use export::trace::Run;
use serde_json::Value;

use super::drawn::{self, MS};
use super::make::make;
use crate::fixture::HOSTILE;
use crate::formats::{self, golden, pieces};

fn page(runs: &[Run<'_>]) -> String {
    let mut out = Vec::new();
    export::trace::html::write(runs, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn data(page: &str) -> Value {
    formats::data(page, "timeline")
}

/// A lane per line, its pieces as `from doing (word)`.
fn text(data: &Value) -> String {
    let mut out = String::new();
    for machine in
        data["runs"].as_array().unwrap().iter().flat_map(|run| run["machines"].as_array().unwrap())
    {
        out += &format!("{} {} to {}\n", machine["name"], machine["begin"], machine["end"]);
        for lane in machine["lanes"].as_array().unwrap() {
            let indent = " ".repeat(usize::try_from(lane["depth"].as_u64().unwrap()).unwrap());
            out += &format!("  {indent}{} {}: {}\n", lane["kind"], lane["name"], lane["about"]);
            for (begin, parts) in pieces(lane).0 {
                let share = |(kind, share, _): &(usize, u64, _)| {
                    format!("{} {share}", data["doings"][kind][0].as_str().unwrap())
                };
                let shares: Vec<String> = parts.iter().map(share).collect();
                let word = parts[0].2.map(|n| format!(" ({})", data["words"][n].as_str().unwrap()));
                let word = word.unwrap_or_default();
                out += &format!(
                    "    {indent}{:>5.1} {}{word}\n",
                    begin as f64 / MS as f64,
                    shares.join(", ")
                );
            }
        }
    }
    out
}

#[test]
fn lanes_and_their_pieces() {
    let drawing = drawn::small();
    golden("trace/small.gantt.txt", &text(&data(&page(&[drawing.run("small")]))));
}

#[test]
fn a_long_trace_gives_a_page_of_bounded_size() {
    let drawing = make(8, 1_500);
    let segments: usize = drawing.timelines[0].tasks.iter().map(|task| task.segments.len()).sum();
    let page = page(&[drawing.run("long")]);
    let data = data(&page);
    let machine = &data["runs"][0]["machines"][0];
    let lanes = machine["lanes"].as_array().unwrap();
    assert!(3_000 < lanes.len(), "{} lanes", lanes.len());
    assert!(40_000 < segments, "{segments} segments");
    assert!(page.len() < 12_000_000, "{} bytes", page.len());
}

#[test]
fn two_traces_are_drawn_on_one_scale() {
    let (one, two) = (make(1, 5), make(2, 5));
    let page = page(&[one.run("seq-make"), two.run("para-make")]);
    let data = data(&page);
    assert_eq!(data["runs"].as_array().unwrap().len(), 2);
    let length = |run: usize| data["runs"][run]["length"].as_u64().unwrap();
    assert!(length(1) < length(0), "two jobs are done sooner");
}

#[test]
fn names_never_become_markup() {
    let safe = drawn::hostile("plain");
    let safe = page(&[safe.run("plain")]);
    for name in HOSTILE {
        let drawing = drawn::hostile(name);
        let page = page(&[drawing.run(name)]);
        for tag in
            ["<script", "</script", "<img", "<svg", "<b>", "style=", "<h3>", "<canvas", "<td"]
        {
            assert_eq!(page.matches(tag).count(), safe.matches(tag).count(), "{name}: {tag}");
        }
        let unsafe_char =
            |c: char| (c.is_control() && c != '\n') || matches!(c, '\u{2028}' | '\u{202e}');
        assert_eq!(page.find(unsafe_char), None);
        data(&page);
    }
    let long = drawn::hostile(&"x".repeat(1 << 20));
    assert!(page(&[long.run("long")]).len() < safe.len() + 20_000);
}

/// What a section has below its title.
fn section<'p>(page: &'p str, title: &str) -> Option<&'p str> {
    let title = title.replace('\'', "&#39;");
    let (_, rest) = page.split_once(&format!("<section>\n<h2>{title}</h2>\n"))?;
    Some(rest.split_once("</section>")?.0)
}

/// Every bar's parts, for screen readers.
fn bars(page: &str) -> Vec<&str> {
    let labels = page.split("aria-label=\"").skip(1).map(|rest| rest.split('"').next().unwrap());
    labels.filter(|label| label.contains(" %")).collect()
}

#[test]
fn parts_of_bars_make_up_the_whole() {
    let (one, two) = (make(1, 9), make(4, 9));
    let page = page(&[one.run("seq-make"), two.run("para-make")]);
    let bars = bars(&page);
    assert!(20 < bars.len(), "{bars:?}");
    for bar in bars {
        let shares =
            bar.split(" %").filter_map(|part| part.rsplit(' ').next()?.parse::<f64>().ok());
        let sum: f64 = shares.sum();
        assert!((99.9..100.1).contains(&sum), "{bar}: {sum}");
    }
}

#[test]
fn every_chart_is_there_with_both_runs() {
    let (one, two) = (make(1, 9), make(4, 9));
    let page = page(&[one.run("seq-make"), two.run("para-make")]);
    for title in [
        "Side by side",
        "CPU and disk",
        "States",
        "Waits",
        "Kernel time",
        "Critical path",
        "Processes",
    ] {
        let section = section(&page, title).unwrap();
        assert!(section.contains("seq-make") && section.contains("para-make"), "{title}");
    }
    assert!(section(&page, "Gantt chart").is_some());
}

#[test]
fn the_hosts_side_of_a_vm() {
    let section = |page: &str| section(page, "The host's side").map(str::to_owned);
    let drawing = drawn::small();
    let found = section(&page(&[drawing.run("small")])).unwrap();
    // Of the 10 ms that the drawing tells: the whole, each vCPU, and its task's time.
    for label in [
        "web, From the host&#39;s side: ran 20.00 %, stolen 40.00 %, asleep in the VMM 20.00 %, halted 20.00 %",
        "vcpu 0, each vCPU: ran 20.00 %, stolen 40.00 %, asleep in the VMM 20.00 %, halted 20.00 %",
        "make, CPU time by command: stolen 50.00 %, asleep in the VMM 50.00 %",
    ] {
        assert!(bars(&found).contains(&label), "{label}: {:?}", bars(&found));
    }
    for thief in ["<td>cc1 (11)</td><td class=\"number\">2.000</td>", "<td>idle, or not known</td>"]
    {
        assert!(found.contains(thief), "{found}");
    }
    let mut alone = drawn::small();
    alone.timelines.remove(0);
    assert_eq!(section(&page(&[alone.run("small")])), None);
    assert_eq!(section(&page(&[make(2, 3).run("make")])), None);
}

#[test]
fn nothing_is_loaded_and_no_script_but_the_pages_own_may_run() {
    let drawing = make(2, 3);
    let page = page(&[drawing.run("make")]);
    for part in [
        "http:",
        "https:",
        "//cdn",
        "src=",
        "@import",
        "url(",
        "onclick",
        " style=",
        "innerHTML",
        "eval(",
    ] {
        assert!(!page.contains(part), "{part}");
    }
    assert!(page.contains("default-src 'none'"));
    assert!(!page.contains("{{"));
}

/// Colours have a name for each doing, in both schemes.
#[test]
fn every_doing_has_its_colours() {
    let drawing = drawn::small();
    let page = page(&[drawing.run("small")]);
    let mut counts = BTreeMap::new();
    for doing in data(&page)["doings"].as_array().unwrap() {
        let style = doing[1].as_str().unwrap();
        counts.insert(style.to_owned(), page.matches(&format!(" --{style}: #")).count());
        assert!(page.contains(&format!(".{style} {{ --paint: var(--{style})")), "{style}");
    }
    assert!(counts.values().all(|count| *count == 2), "{counts:?}");
}
