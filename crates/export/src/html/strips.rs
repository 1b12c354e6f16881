//! A strip per vCPU: what it did when, coloured by state.
//!
//! A stretch in one state that is wide enough to see is a run of its own, with its exact times; what lies
//! between is merged into runs about a column wide, with shares. So a page's size is bounded whatever the
//! recording's length: at most 2 `COLUMNS` + 2 runs per vCPU.
//!
//! ```text
//!  segments   |  guest user   |u|v|u|P|u|  halted         |
//!  runs       |  guest user   |u 60 v 20| P 20..| halted  |
//! ```

use std::collections::{BTreeMap, HashMap};

use analysis::axis::{Segment, State, Timeline, thieves};
use analysis::exit_reason;
use analysis::steal::hundredths;
use model::VcpuId;
use serde_json::{Value, json};

use super::data::script_safe;
use super::escape::escape;
use super::summary::trimmed;
use crate::chart::{Chart, Group, Named, kind_name, merged};

/// Half of the runs a strip has at most.
const COLUMNS: u64 = 1_000;

/// States in the order of legend and stack, with their style classes.
const KINDS: [(State, &str); 11] = [
    (State::GuestUser, "guest-user"),
    (State::GuestKernel, "guest-kernel"),
    (State::GuestUnknown, "guest-unknown"),
    (State::Vmm { reason: 0 }, "vmm"),
    (State::WaitingInVmm { reason: None }, "vmm-waiting"),
    (State::Preempted, "preempted"),
    (State::Throttled, "throttled"),
    (State::NotSampled, "not-sampled"),
    (State::Unknown, "not-known"),
    (State::HaltPolling, "halt-polling"),
    (State::Halted, "halted"),
];

/// Nanoseconds by `KINDS`.
type Totals = [u64; KINDS.len()];

/// The section and its data.
pub(super) struct Strips {
    /// HTML; empty when there is no vCPU.
    pub(super) section: String,
    /// JSON for `strips.js`.
    pub(super) data: String,
}

/// Exit reasons and thieves, each once.
#[derive(Debug, Default)]
struct Words {
    list: Vec<String>,
    ids: HashMap<String, usize>,
}

/// What is merged into one run: nanoseconds by kind, and by kind and word.
#[derive(Debug, Default)]
struct Run {
    length_ns: u64,
    kinds: Totals,
    words: BTreeMap<(usize, usize), u64>,
}

pub(super) fn strips(chart: Chart<'_>) -> Strips {
    let groups = chart.groups();
    let timelines = groups.iter().flat_map(|(_, timelines)| timelines);
    let names = Named::new(chart);
    let mut words = Words::default();
    let list: Vec<Value> = timelines.map(|line| strip(line, &names, &mut words)).collect();
    let data = json!({
        "kinds": KINDS.map(|(state, _)| kind_name(state)),
        "words": words.list,
        "length": length_ns(chart),
        "strips": list,
    });
    Strips { section: section(chart, &groups), data: script_safe(&data) }
}

fn length_ns(chart: Chart<'_>) -> u64 {
    chart.header.end.since(chart.header.start)
}

/// Where the strip begins, and its runs: each its length and, for every kind in it, the kind, its share in
/// thousandths, and the word that most of it is about (-1: none).
fn strip(timeline: &Timeline, names: &Named<'_>, words: &mut Words) -> Value {
    let column_ns = length_ns(names.chart).div_ceil(COLUMNS).max(1);
    let (mut runs, mut open) = (Vec::new(), Run::default());
    let mut segments = timeline.segments.iter().peekable();
    while let Some(segment) = merged(&mut segments, |segment| (segment.state, segment.cpu)) {
        if column_ns <= segment.length_ns() || column_ns <= open.length_ns {
            open.close(&mut runs);
        }
        open.add(timeline.vcpu, &segment, names, words);
        if column_ns <= segment.length_ns() {
            open.close(&mut runs);
        }
    }
    open.close(&mut runs);
    json!({ "from": timeline.from.since(names.chart.header.start), "runs": runs })
}

impl Run {
    fn add(&mut self, victim: VcpuId, segment: &Segment, names: &Named<'_>, words: &mut Words) {
        let kind = kind_index(segment.state);
        self.length_ns += segment.length_ns();
        self.kinds[kind] += segment.length_ns();
        let mut about = |word: &str, ns: u64| {
            *self.words.entry((kind, words.id(word))).or_default() += ns;
        };
        match segment.state {
            State::Vmm { reason } | State::WaitingInVmm { reason: Some(reason) } => {
                let vendor = names.chart.header.vendor;
                about(&exit_reason::name(vendor, reason), segment.length_ns());
            }
            State::Preempted => {
                for (who, ns) in thieves(names.chart.axis, victim, segment) {
                    about(&names.occupant(who, segment.from), ns);
                }
            }
            _ => {}
        }
    }

    /// Appends itself to `runs`, when there is anything in it, and starts anew.
    fn close(&mut self, runs: &mut Vec<Value>) {
        let run = std::mem::take(self);
        if run.length_ns == 0 {
            return;
        }
        let mut row = vec![json!(run.length_ns)];
        for (kind, ns) in run.kinds.iter().enumerate().filter(|(_, ns)| **ns > 0) {
            let of_kind = run.words.range((kind, 0)..=(kind, usize::MAX));
            // The first of equals: ids are by first appearance.
            let most = of_kind.max_by_key(|((_, word), ns)| (**ns, std::cmp::Reverse(*word)));
            let word = most.map_or(json!(-1), |((_, word), _)| json!(word));
            row.extend([json!(kind), json!(thousandths(*ns, run.length_ns)), word]);
        }
        runs.push(Value::Array(row));
    }
}

impl Words {
    fn id(&mut self, word: &str) -> usize {
        if let Some(id) = self.ids.get(word) {
            return *id;
        }
        self.ids.insert(word.to_owned(), self.list.len());
        self.list.push(word.to_owned());
        self.list.len() - 1
    }
}

fn thousandths(part: u64, whole: u64) -> u128 {
    (u128::from(part) * 1_000 + u128::from(whole) / 2) / u128::from(whole)
}

fn kind_index(state: State) -> usize {
    let is_kind = |(kind, _): &(State, &str)| kind_name(*kind) == kind_name(state);
    KINDS.iter().position(is_kind).expect("KINDS has every state, which a test checks")
}

fn section(chart: Chart<'_>, groups: &[Group<'_>]) -> String {
    if groups.is_empty() {
        return String::new();
    }
    let mut all = Totals::default();
    let (mut rows, mut strip) = (String::new(), 0);
    for (vm, timelines) in groups {
        rows += &format!("<h3>{}</h3>\n", escape(&chart.vm(*vm)));
        for timeline in timelines {
            let totals = totals(timeline);
            all.iter_mut().zip(totals).for_each(|(all, ns)| *all += ns);
            rows += &row(&escape(&chart.vcpu(timeline.vcpu)), strip, &totals);
            strip += 1;
        }
    }
    let length = length_ns(chart);
    // Enough digits to tell the ticks apart.
    let unit = if length < 1_000_000_000 { 1_000 } else { 1_000_000 };
    let tick = |part: u64| {
        format!("<span>{} s</span>", trimmed(length / 4 * part / unit, 1_000_000_000 / unit))
    };
    format!(
        "<section aria-labelledby=\"strips-title\">\n<h2 id=\"strips-title\">Timelines</h2>\n\
         <p>All of each vCPU's time on the host's clock, whatever else is selected. Steal type 1 is preempted; type 2 is \
         vmm and waiting in vmm.</p>\n\
         <ul class=\"legend\" id=\"strip-legend\">\n{}\n</ul>\n\
         <p id=\"strip-details\" aria-live=\"polite\">Point at a strip to see what happened there.</p>\n\
         {rows}<div class=\"strip ticks\"><span></span><div>{}</div></div>\n</section>",
        legend(&all),
        (0..=4).map(tick).collect::<String>(),
    )
}

fn row(name: &str, strip: usize, totals: &Totals) -> String {
    let text = shares(totals);
    format!(
        "<div class=\"strip\"><span>{name}</span>\
         <canvas data-strip=\"{strip}\" role=\"img\" aria-label=\"{name}: {text}\"></canvas>\
         <span></span><p class=\"faint\">{text}</p></div>\n"
    )
}

fn legend(totals: &Totals) -> String {
    let item = |(((state, class), ns), share): ((&(State, &str), &u64), u64)| {
        let share = match ns {
            0 => String::new(),
            _ => format!(" <span class=\"faint\">{}</span>", percent(share)),
        };
        format!("<li><span class=\"swatch {class}\"></span>{}{share}</li>", kind_name(*state))
    };
    KINDS.iter().zip(totals).zip(hundredths(totals)).map(item).collect::<Vec<_>>().join("\n")
}

/// `guest user 60.00 %, preempted 40.00 %`.
fn shares(totals: &Totals) -> String {
    let parts = KINDS.iter().zip(totals).zip(hundredths(totals));
    let there = parts.filter(|((_, ns), _)| 0 < **ns);
    let part = |((kind, _), share): ((&(State, &str), &u64), u64)| {
        format!("{} {}", kind_name(kind.0), percent(share))
    };
    there.map(part).collect::<Vec<_>>().join(", ")
}

/// Hundredths of a per cent as text.
fn percent(hundredths: u64) -> String {
    format!("{}.{:02} %", hundredths / 100, hundredths % 100)
}

fn totals(timeline: &Timeline) -> Totals {
    let mut totals = Totals::default();
    for segment in &timeline.segments {
        totals[kind_index(segment.state)] += segment.length_ns();
    }
    totals
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn every_state_has_its_place() {
        for (index, (state, _)) in KINDS.into_iter().enumerate() {
            assert_eq!(kind_index(state), index);
        }
        assert_eq!(kind_index(State::Vmm { reason: 7 }), 3);
        assert_eq!(kind_index(State::WaitingInVmm { reason: Some(7) }), 4);
    }

    #[test]
    fn shares_are_rounded() {
        for (part, whole, expected) in [(1, 3, 333), (2, 3, 667), (1, 1, 1_000), (0, 5, 0)] {
            assert_eq!(thousandths(part, whole), expected);
        }
    }
}
