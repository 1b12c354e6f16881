//! Two times of a VM, and what began in between.

use std::collections::BTreeMap;

use detect::Finding;
use serde_json::Map;
use table::{Cell, Table, utc};

use super::losses::finding_id;
use super::{View, about_time, share};
use crate::answer::{Answer, Next, figure, name, real};
use crate::facts::{cause_words, function_id, measure_kind, owner_id, owner_kind};
use crate::missing;
use crate::question::{Arguments, Question};
use crate::source::{AskError, IsOverToo, Source, Span};

pub(super) fn compare(source: &dyn Source, given: &Arguments) -> Result<Answer, AskError> {
    let after = View::open(source, given)?;
    let other = Span::parse(source, given.other_from.as_deref(), given.other_to.as_deref())?;
    let before = View::open_in(source, given, other)?;
    Ok(compared(Question::Compare, &before, &after))
}

pub(super) fn what_changed(source: &dyn Source, given: &Arguments) -> Result<Answer, AskError> {
    let since_us = source.instant(given.since.as_deref().unwrap_or_default())?;
    let (host, vm) = (given.host.as_deref(), given.vm.as_deref());
    let found = source.findings(host, vm, IsOverToo::Yes)?;
    let began = found.map(|mut found| {
        let since_s = since_us / 1_000_000;
        found.retain(|it| it.symptoms.iter().any(|symptom| since_s <= i64::from(symptom.began_s)));
        found
    });
    let whole = source.whole();
    // As long before as after, where no range is given.
    let to_us = given.to.as_deref().map_or(Ok(whole.to_us), |text| source.instant(text))?;
    let from_us = match given.from.as_deref() {
        Some(text) => source.instant(text)?,
        None if began.is_none() => whole.from_us,
        None => since_us.saturating_sub(to_us.saturating_sub(since_us)),
    };
    if to_us <= since_us || since_us <= from_us {
        let text =
            format!("`since` must lie between {} and {}", source.time(from_us), source.time(to_us));
        return Err(AskError::Arguments(text));
    }
    let spans = [Span { from_us, to_us: since_us }, Span { from_us: since_us, to_us }];
    let mut answer = match (vm, &began) {
        (None, Some(began)) => fleet_wide(source, began, spans[1]),
        (vm, _) => {
            let worst = || worst_vm(source, given, spans[1]);
            let vm = vm.map_or_else(worst, |vm| Ok(vm.to_owned()))?;
            let given = Arguments { vm: Some(vm), ..given.clone() };
            let before = View::open_in(source, &given, spans[0])?;
            let after = View::open_in(source, &given, spans[1])?;
            compared(Question::WhatChanged, &before, &after)
        }
    };
    if let Some(began) = began {
        answer.tables.insert(0, findings(&began));
        if let Some(first) = began.first() {
            let arguments = Map::from_iter([("id".to_owned(), finding_id(first).into())]);
            let because = "the finding that began last";
            answer.next.insert(0, Next { question: Question::Details, because, arguments });
        }
    }
    Ok(answer)
}

/// The VM of a recording that loses most.
fn worst_vm(source: &dyn Source, given: &Arguments, span: Span) -> Result<String, AskError> {
    let part = source.part(&source.host(given.host.as_deref(), None, span)?, span)?;
    let found = super::losses::losses(&part, None);
    let worst = found.first().and_then(|it| it.symptoms.first()?.series.vm.clone());
    let vm = worst.or_else(|| part.summary.vms.keys().next().cloned());
    vm.ok_or_else(|| AskError::Arguments("there is no VM in this time".to_owned()))
}

fn fleet_wide(source: &dyn Source, began: &[Finding], span: Span) -> Answer {
    let about = about_time(source, None, None, span);
    let n = table::counted(began.len() as u64, "finding");
    Answer {
        question: Question::WhatChanged,
        about,
        summary: format!("{n} began in this time."),
        tables: Vec::new(),
        missing: missing::table(),
        next: Vec::new(),
    }
}

fn findings(began: &[Finding]) -> Table {
    let columns =
        ["id", "began", "host", "vm", "measure", "cause", "cause_name"].map(name).to_vec();
    let mut table = Table::new("Findings that began in this time", columns);
    for finding in began {
        let Some(symptom) = finding.symptoms.first() else { continue };
        let (cause, about) = cause_words(&finding.cause);
        table.row([
            finding_id(finding).into(),
            utc(symptom.began_s.into()).into(),
            symptom.series.host.clone().into(),
            symptom.series.vm.clone().into(),
            measure_kind(&symptom.series.measure).into(),
            cause.into(),
            about.into(),
        ]);
    }
    table
}

/// A VM before and after.
fn compared(question: Question, before: &View<'_>, after: &View<'_>) -> Answer {
    let ran = |view: &View<'_>| view.part.summary.vms[&view.vm].guest_ns();
    let lost = |view: &View<'_>| {
        let vm = &view.part.summary.vms[&view.vm];
        vm.demand_ns().saturating_sub(vm.guest_ns())
    };
    let summary = format!(
        "Guest code ran for {} of the vCPUs' time before, {} after. Lost: {} before, {} after.",
        share(ran(before), before.total_ns()),
        share(ran(after), after.total_ns()),
        share(lost(before), before.total_ns()),
        share(lost(after), after.total_ns()),
    );
    let mut answer = after.answer(question, summary);
    for (name, us) in
        [("other_from", before.part.span.from_us), ("other_to", before.part.span.to_us)]
    {
        answer.about.insert(name.to_owned(), after.source.time(us).into());
    }
    let states = |view: &View<'_>| view.part.states(&view.vm);
    let totals = [before.total_ns(), after.total_ns()];
    let title = "States of the vCPUs, the largest difference first";
    let mut table = Table::new(title, [vec![name("state")], figures()].concat());
    for (state, figures) in differences([states(before), states(after)], totals) {
        table.row(std::iter::once(state.name().into()).chain(figures));
    }
    answer.tables.push(table);
    let functions = |view: &View<'_>| {
        let functions = view.part.functions(&view.vm).into_iter();
        functions.map(|(code, time)| (code, time.corrected_ns)).collect::<Vec<_>>()
    };
    let names = ["id", "function", "module", "process"].map(name).to_vec();
    let title = "Functions, corrected time, the largest difference first";
    let mut table = Table::new(title, [names, figures()].concat());
    let all = differences([functions(before), functions(after)], totals);
    for (code, figures) in &all {
        let id = function_id(&after.vm, code);
        let names = [id, code.function.clone(), code.module.clone(), code.process.clone()];
        table.row(names.map(Cell::from).into_iter().chain(figures.clone()));
    }
    answer.tables.push(table);
    let takers = |view: &View<'_>| view.part.takers(&view.vm);
    let names = ["id", "kind", "name"].map(name).to_vec();
    let title = "Who had the CPUs that it waited for, the largest difference first";
    let mut table = Table::new(title, [names, figures()].concat());
    for (owner, figures) in differences([takers(before), takers(after)], totals) {
        let names = [owner_id(&owner), owner_kind(&owner).to_owned(), owner.name().to_owned()];
        table.row(names.map(Cell::from).into_iter().chain(figures));
    }
    answer.tables.push(table);
    answer.next.push(after.next(Question::WhySlow, "the time after the change"));
    if let Some((code, _)) = all.first() {
        let because = "the function that changed most";
        answer.next.push(after.details(function_id(&after.vm, code), because));
    }
    answer
}

fn figures() -> Vec<table::Column> {
    ["before_percent", "after_percent", "difference_percent"].map(figure).to_vec()
}

/// Shares of the vCPUs' time before and after, the largest difference first.
fn differences<K: Ord>(times: [Vec<(K, u64)>; 2], totals: [u64; 2]) -> Vec<(K, [Cell; 3])> {
    let mut shares = BTreeMap::<K, [f64; 2]>::new();
    for (n, (times, total)) in times.into_iter().zip(totals).enumerate() {
        for (key, ns) in times {
            shares.entry(key).or_default()[n] += 100.0 * ns as f64 / total.max(1) as f64;
        }
    }
    let mut shares: Vec<_> = shares.into_iter().collect();
    shares.sort_by(|(_, a), (_, b)| (b[1] - b[0]).abs().total_cmp(&(a[1] - a[0]).abs()));
    let cells = |[before, after]: [f64; 2]| [real(before), real(after), real(after - before)];
    shares.into_iter().map(|(key, shares)| (key, cells(shares))).collect()
}
