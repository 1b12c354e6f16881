//! The page of a drawn trace: its data, and what may not be in it.

use std::collections::BTreeMap;

use export::trace::Run;
use serde_json::Value;

use super::drawn::{self, MS};
use super::make::make;
use crate::fixture::HOSTILE;
use crate::formats::golden;

fn page(runs: &[Run<'_>]) -> String {
    let mut out = Vec::new();
    export::trace::html::write(runs, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// The Gantt chart's JSON block.
fn data(page: &str) -> Value {
    let (_, rest) =
        page.split_once("<script id=\"gantt-data\" type=\"application/json\">").unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
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
            for (begin, shares, word) in pieces(lane) {
                let doing =
                    |n: u64| data["doings"][usize::try_from(n).unwrap()][0].as_str().unwrap();
                let shares: Vec<String> =
                    shares.iter().map(|(n, part)| format!("{} {part}", doing(*n))).collect();
                let word = word
                    .map(|n| format!(" ({})", data["words"][n].as_str().unwrap()))
                    .unwrap_or_default();
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

type Piece = (u64, Vec<(u64, u64)>, Option<usize>);

/// Where each piece begins, its shares in thousandths, its word.
fn pieces(lane: &Value) -> Vec<Piece> {
    let numbers: Vec<i64> =
        lane["pieces"].as_array().unwrap().iter().map(|n| n.as_i64().unwrap()).collect();
    let positive = |n: i64| u64::try_from(n).unwrap();
    let mut begin = lane["from"].as_u64().unwrap();
    let (mut list, mut rest) = (Vec::new(), &numbers[..]);
    while let [length, doing, tail @ ..] = rest {
        if let Ok(doing) = u64::try_from(*doing) {
            list.push((begin, vec![(doing, 1_000)], usize::try_from(tail[0]).ok()));
            rest = &tail[1..];
        } else {
            let n = 2 * usize::try_from(-doing).unwrap();
            let shares =
                tail[..n].chunks(2).map(|pair| (positive(pair[0]), positive(pair[1]))).collect();
            list.push((begin, shares, None));
            rest = &tail[n..];
        }
        begin += positive(*length);
    }
    list
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
    assert_eq!(page.matches("data-gantt=").count(), 2);
    let data = data(&page);
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

/// Every bar's parts, as they are told to those who can't see them.
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
    for id in ["differences", "profile", "states", "waits", "kernel", "path", "gantt", "processes"]
    {
        let (_, section) =
            page.split_once(&format!("<section aria-labelledby=\"{id}-title\">")).unwrap();
        let (section, _) = section.split_once("</section>").unwrap();
        assert!(section.contains("seq-make") && section.contains("para-make"), "{id}");
    }
}

#[test]
fn the_hosts_side_of_a_vm() {
    let section = |page: &str| {
        let (_, rest) = page.split_once("<section aria-labelledby=\"host-side-title\">")?;
        Some(rest.split_once("</section>")?.0.to_owned())
    };
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
    for thief in
        ["<td>cc1 (11)</td><td class=\"number\">2.000</td>", "<td>nobody, or not known</td>"]
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
        assert!(page.contains(&format!(".{style} {{ background")), "{style}");
    }
    assert!(counts.values().all(|count| *count == 2), "{counts:?}");
}
