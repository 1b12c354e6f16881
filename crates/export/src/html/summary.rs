//! What the page says without a script: the recording, shares by kind of frame, top functions.

use std::collections::{BTreeSet, HashMap};

use analysis::flow::{Flow, FlowThread};
use table::{Cell, Column, Table, Unit, duration, escape, grouped, length};

use super::flame::{KINDS, kind_index};
use crate::page;
use analysis::flow::tree::{self, Label, Labels, kind_of_stack, process_name};

/// Rows in the table of top functions.
pub(super) const TOP: usize = 40;

/// The recording's facts.
pub(super) fn facts(flow: &Flow, view: &str) -> String {
    let vms: BTreeSet<_> = flow.threads.iter().filter_map(|thread| thread.vm.as_ref()).collect();
    let cpus: BTreeSet<u32> = flow.samples.iter().map(|sample| sample.cpu).collect();
    let started = table::utc(flow.start_unix_ns / 1_000_000_000);
    let facts = [
        ("Host", escape(&flow.hostname)),
        ("View", escape(view)),
        ("Started", format!("<time datetime=\"{started}\">{started}</time>")),
        ("Duration", length(flow.end.since(flow.start))),
        ("Samples", grouped(flow.samples.len() as u64)),
        ("Period", format!("{} per CPU", duration(flow.period_ns))),
        ("CPUs with samples", cpus.len().to_string()),
        ("VMs", vms.len().to_string()),
    ];
    let fact = |(term, text)| format!("<div><dt>{term}</dt><dd>{text}</dd></div>\n");
    format!("<dl class=\"facts\">\n{}</dl>\n", facts.map(fact).concat())
}

/// `guest user`, `VM`.
fn kind_name(class: &str) -> String {
    class.replace('-', " ").replace("vm", "VM")
}

/// Each kind of frame with its colour and its share of the samples, by innermost frame.
pub(super) fn legend(flow: &Flow) -> String {
    let mut counts = [0; KINDS.len()];
    for (stack, count) in flow.stacks.iter().zip(tree::counts(flow)) {
        if let Some(kind) = kind_of_stack(flow, stack) {
            counts[kind_index(kind)] += count;
        }
    }
    let names = KINDS.map(|(_, class)| kind_name(class));
    let item = |(((_, class), name), count): ((&(_, &'static str), _), &u64)| {
        let share = if *count == 0 { String::new() } else { share(*count, flow) };
        (*class, name, share)
    };
    page::legend(KINDS.iter().zip(names.iter().map(String::as_str)).zip(&counts).map(item))
}

/// Functions by samples in themselves, and what the first `TOP` leave out.
pub(super) fn top(flow: &Flow) -> (Table, String) {
    let mut labels = Labels::default();
    let mut rows: Vec<_> = self_samples(flow, &mut labels).into_iter().collect();
    let place = |label: usize| {
        let Label { kind, name, module } = labels.list[label];
        (name, kind_index(kind), module)
    };
    rows.sort_by(|((a, p), n), ((b, q), m)| {
        m.cmp(n).then_with(|| (place(*a), p).cmp(&(place(*b), q)))
    });
    let columns = vec![
        Column::name("Function"),
        Column::name("Kind"),
        Column::number("Samples"),
        Column::number("Share"),
        Column::name("Process"),
        Column::name("Module"),
    ];
    let mut table = Table::new("", columns);
    for ((label, process), count) in &rows {
        let Label { kind, name, module } = labels.list[*label];
        table.row([
            name.into(),
            kind_name(KINDS[kind_index(kind)].1).into(),
            Cell::Number(*count, Unit::Grouped),
            Cell::Share(*count, flow.samples.len() as u64),
            process.as_str().into(),
            module.map_or("", |module| &flow.modules[module as usize].path).into(),
        ]);
    }
    let rest = match rows.iter().skip(TOP).map(|(_, count)| *count).sum() {
        0 => String::new(),
        rest => format!("All others together have {} ({}).", grouped(rest), share(rest, flow)),
    };
    (table, rest)
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

/// Process 0 is none: the idle task, or one that is not known.
fn process(thread: &FlowThread) -> String {
    table::with_id(&process_name(thread), Some(thread.pid).filter(|pid| *pid != 0))
}

fn share(samples: u64, flow: &Flow) -> String {
    page::percent(samples, flow.samples.len() as u64)
}
