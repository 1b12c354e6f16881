//! The timelines of vCPUs: what each did when.
//!
//! A stretch in one state that is wide enough to see is a piece of its own, with its exact times; what lies
//! between is merged into pieces about a column wide, with shares. So a page's size is bounded whatever the
//! recording's length: at most 2 `COLUMNS` + 2 pieces per vCPU.
//!
//! ```text
//!  segments   |  guest user   |u|v|u|P|u|  halted         |
//!  pieces     |  guest user   |u 60 v 20| P 20..| halted  |
//! ```

use std::collections::BTreeMap;

use analysis::exit_reason;
use analysis::vcpu_timeline::{Segment, VcpuTimeline, thieves};
use model::{TimelineState, VcpuId, VcpuTimeState};
use serde_json::{Value, json};
use table::{Cell, Column, Table};

use crate::chart::{Chart, Named, merged};
use crate::page;
use crate::page::lanes::{Part, Words, push_piece};

/// States in the order of legend and stack.
const STATES: &[VcpuTimeState] = VcpuTimeState::ALL;
/// Half of the pieces a lane has at most.
const COLUMNS: u64 = 1_000;

/// Nanoseconds by state.
type Totals = [u64; STATES.len()];

/// What is merged into one piece: nanoseconds by kind, and by kind and word (exit reasons, thieves).
#[derive(Debug, Default)]
struct Merged {
    length_ns: u64,
    kinds: Totals,
    words: BTreeMap<(usize, usize), u64>,
}

/// A lane per vCPU under its VM: the data of `timeline.js`.
pub(super) fn data(chart: Chart<'_>) -> Value {
    let names = Named::new(chart);
    let mut words = Words::default();
    let machine = |(vm, timelines): (_, Vec<&VcpuTimeline>)| {
        let lanes: Vec<Value> =
            timelines.iter().map(|line| lane(line, &names, &mut words)).collect();
        json!({ "name": chart.vm(vm), "about": "", "begin": 0, "end": length_ns(chart), "lanes": lanes })
    };
    let machines: Vec<Value> = chart.groups().into_iter().map(machine).collect();
    let run = json!({ "label": "all VMs", "length": length_ns(chart), "machines": machines });
    let kinds: Vec<_> = STATES.iter().map(|state| (state.chart_name(), state.colour())).collect();
    page::lanes::data(&kinds, vec![run], words)
}

/// What vCPUs were in all, with the states' colours.
pub(super) fn legend(chart: Chart<'_>) -> String {
    let mut all = Totals::default();
    for timeline in chart.groups().iter().flat_map(|(_, timelines)| timelines) {
        all.iter_mut().zip(totals(timeline)).for_each(|(all, ns)| *all += ns);
    }
    let whole = all.iter().sum();
    let item = |(state, ns): (&VcpuTimeState, u64)| {
        let share = if ns == 0 { String::new() } else { page::percent(ns, whole) };
        (state.colour(), state.chart_name(), share)
    };
    page::legend(STATES.iter().zip(all).map(item))
}

/// What each vCPU was.
pub(super) fn table(chart: Chart<'_>) -> Table {
    let states = STATES.iter().map(|state| Column::number(state.chart_name()));
    let mut table = Table::new("", [Column::name("vCPU")].into_iter().chain(states).collect());
    for (vm, timelines) in chart.groups() {
        for timeline in timelines {
            let totals = totals(timeline);
            let shares = totals.map(|ns| Cell::Share(ns, totals.iter().sum()));
            let name = format!("{} {}", chart.vm(vm), chart.vcpu(timeline.vcpu));
            table.row([Cell::from(name)].into_iter().chain(shares));
        }
    }
    table
}

fn length_ns(chart: Chart<'_>) -> u64 {
    chart.header.end.since(chart.header.start)
}

fn lane(timeline: &VcpuTimeline, names: &Named<'_>, words: &mut Words) -> Value {
    let column_ns = length_ns(names.chart).div_ceil(COLUMNS).max(1);
    let (mut pieces, mut open) = (Vec::new(), Merged::default());
    let mut segments = timeline.segments.iter().peekable();
    while let Some(segment) = merged(&mut segments, |segment| (segment.state, segment.cpu)) {
        if column_ns <= segment.length_ns() || column_ns <= open.length_ns {
            open.close(&mut pieces);
        }
        open.add(timeline.vcpu, &segment, names, words);
        if column_ns <= segment.length_ns() {
            open.close(&mut pieces);
        }
    }
    open.close(&mut pieces);
    json!({
        "kind": "vcpu",
        "name": names.chart.vcpu(timeline.vcpu),
        "about": "",
        "depth": 0,
        "from": timeline.from.since(names.chart.header.start),
        "pieces": pieces,
    })
}

impl Merged {
    fn add(&mut self, victim: VcpuId, segment: &Segment, names: &Named<'_>, words: &mut Words) {
        let kind = segment.state.kind() as usize;
        self.length_ns += segment.length_ns();
        self.kinds[kind] += segment.length_ns();
        let mut about = |word: String, ns: u64| {
            if let Some(id) = words.id(word) {
                *self.words.entry((kind, id)).or_default() += ns;
            }
        };
        if let Some(reason) = segment.state.exit_reason() {
            let vendor = names.chart.header.vendor;
            about(exit_reason::name(vendor, reason).to_string(), segment.length_ns());
        } else if segment.state == TimelineState::StealOutside {
            for (who, ns) in thieves(names.chart.axis, victim, segment) {
                about(format!("by {}", names.occupant(who, segment.from)), ns);
            }
        }
    }

    /// Appends itself to `pieces`, when there is anything in it, and starts anew.
    fn close(&mut self, pieces: &mut Vec<Value>) {
        let merged = std::mem::take(self);
        if merged.length_ns == 0 {
            return;
        }
        let kinds = merged.kinds.iter().enumerate().filter(|(_, ns)| 0 < **ns);
        let parts: Vec<Part> = kinds.map(|(kind, ns)| (kind, *ns, merged.word(kind))).collect();
        push_piece(pieces, merged.length_ns, &parts);
    }

    /// What most of a kind's time is about, the first of equals: ids are by first appearance.
    fn word(&self, kind: usize) -> Option<usize> {
        let of_kind = self.words.range((kind, 0)..=(kind, usize::MAX));
        let most = of_kind.max_by_key(|((_, word), ns)| (**ns, std::cmp::Reverse(*word)));
        most.map(|((_, word), _)| *word)
    }
}

fn totals(timeline: &VcpuTimeline) -> Totals {
    let mut totals = Totals::default();
    for segment in &timeline.segments {
        totals[segment.state.kind() as usize] += segment.length_ns();
    }
    totals
}
