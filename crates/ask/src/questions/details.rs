//! One row of an answer more closely.

use detect::{Cause, Code, Finding, Measure, Owner};
use serde_json::Map;
use table::{Cell, Table, utc};

use super::losses::{finding_id, leads_to, losses};
use super::{about, arguments};
use crate::answer::{Answer, Next, figure, name, percent, real, seconds};
use crate::facts::{
    action_words, cause_functions, cause_words, exit_id, function_id, is_apparent, measure_kind,
    owner_id, owner_kind, sums,
};
use crate::missing;
use crate::question::{Arguments, Question};
use crate::source::{AskError, IsOverToo, Part, Source, Span};

pub(super) fn details(source: &dyn Source, given: &Arguments) -> Result<Answer, AskError> {
    let id = given.id.as_deref().unwrap_or_default();
    if id.starts_with("finding-") {
        let found = source.findings(None, None, IsOverToo::Yes)?.unwrap_or_default();
        let found = found.iter().find(|finding| finding_id(finding) == id);
        let mut answer = empty(Map::new());
        answer.about.insert("source".to_owned(), source.kind().into());
        let found = found.ok_or_else(unknown)?;
        answer.tables = finding_tables(found);
        answer.next.extend(leads_to(source, found));
        answer.summary = "A finding: its cause, what changed, and what helps.".to_owned();
        return Ok(answer);
    }
    let span = Span::parse(source, given.from.as_deref(), given.to.as_deref())?;
    let vm = given.vm.as_deref();
    let part = source.part(&source.host(given.host.as_deref(), vm, span)?, span)?;
    let vm = vm.map(|vm| part.vm(vm)).transpose()?;
    let mut answer = empty(about(source, &part, None));
    answer.about.extend(vm.map(|vm| ("vm".to_owned(), vm.into())));
    answer.missing = missing::of_part(&part, vm);
    let vms = part.summary.vms.keys().filter(|name| vm.is_none_or(|vm| vm == name.as_str()));
    let kind = id.split_once('-').map_or("", |(kind, _)| kind);
    let (summary, tables, next) = match kind {
        "function" => {
            let mut all = vms.flat_map(|vm| part.functions(vm).into_iter().map(move |f| (vm, f.0)));
            let found = all.find(|(vm, code)| function_id(vm, code) == id);
            let (vm, code) = found.ok_or_else(unknown)?;
            (
                "A function of a guest: its threads, and what its time went to.",
                function_tables(&part, vm, &code),
                Question::WhySlow,
            )
        }
        "taker" => {
            let mut all = vms.flat_map(|vm| part.takers(vm));
            let found = all.find(|(owner, _)| owner_id(owner) == id);
            let (owner, _) = found.ok_or_else(unknown)?;
            (
                "A taker of CPU time: what it ran, and which VMs waited for it.",
                taker_tables(&part, &owner),
                Question::WhatHelps,
            )
        }
        "exit" => {
            let reasons = |vm| part.summary.vms[vm].exits.keys().map(move |reason| (vm, reason));
            let found = vms.flat_map(reasons).find(|(vm, reason)| exit_id(vm, reason) == id);
            let (vm, reason) = found.ok_or_else(unknown)?;
            (
                "A reason of VM exits: the guest's functions that caused them.",
                exit_tables(&part, vm, reason),
                Question::WhatHelps,
            )
        }
        "loss" => {
            let found = losses(&part, vm);
            let found = found.iter().find(|finding| finding_id(finding) == id);
            (
                "A loss: its cause, its size, and what helps.",
                finding_tables(found.ok_or_else(unknown)?),
                Question::WhatHelps,
            )
        }
        _ => return Err(unknown()),
    };
    answer.summary = summary.to_owned();
    answer.tables = tables;
    let because = "the same VM and time";
    let next = Next { question: next, because, arguments: arguments(source, &part, vm) };
    if next.question != Question::WhySlow || vm.is_some() {
        answer.next.push(next);
    }
    Ok(answer)
}

fn empty(about: Map<String, serde_json::Value>) -> Answer {
    Answer {
        question: Question::Details,
        about,
        summary: String::new(),
        tables: Vec::new(),
        missing: missing::table(),
        next: Vec::new(),
    }
}

fn unknown() -> AskError {
    let text = "no row with this id: take it from an answer, with the same vm, host, from and to";
    AskError::Arguments(text.to_owned())
}

fn function_tables(part: &Part, vm: &str, code: &Code) -> Vec<Table> {
    let of_code = |text: &Option<String>, wanted: &str| text.as_deref().unwrap_or("") == wanted;
    let rows = part.vcpu_rows(vm).filter(|row| {
        of_code(&row.code.function, &code.function)
            && of_code(&row.code.module, &code.module)
            && of_code(&row.code.process, &code.process)
            && is_apparent(row)
    });
    let rows: Vec<_> = rows.collect();
    let total: u64 = rows.iter().map(|row| row.ns).sum();
    let columns = ["function", "module", "process", "build_id"].map(name).to_vec();
    let mut names = Table::new("The function", columns);
    let build = rows.iter().find_map(|row| row.code.build_id.clone());
    let code = [&code.function, &code.module, &code.process].map(|text| text.clone().into());
    names.row(code.into_iter().chain([build.into()]));
    let columns = vec![name("state"), figure("time_s"), figure("percent"), figure("samples")];
    let mut states = Table::new("What its time went to", columns);
    for (state, ns) in sums(rows.iter().map(|row| (row.state.as_str(), row.ns))) {
        let samples: u64 =
            rows.iter().filter(|row| row.state == state).map(|row| row.samples).sum();
        states.row([state.into(), seconds(ns), percent(ns, total), samples.into()]);
    }
    let columns = vec![name("thread"), figure("time_s"), figure("percent")];
    let mut threads = Table::new("Its threads", columns);
    for (thread, ns) in sums(rows.iter().map(|row| (row.code.thread.as_deref(), row.ns))) {
        threads.row([thread.map(str::to_owned).into(), seconds(ns), percent(ns, total)]);
    }
    let columns = vec![name("kind"), name("name"), figure("time_s"), figure("percent")];
    let mut takers = Table::new("Who had the CPU while it waited", columns);
    for (owner, ns) in sums(rows.iter().filter_map(|row| Some((Owner::of_thief(row)?, row.ns)))) {
        let who = [owner_kind(&owner).into(), owner.name().into()];
        takers.row(who.into_iter().chain([seconds(ns), percent(ns, total)]));
    }
    vec![names, states, threads, takers]
}

fn taker_tables(part: &Part, taker: &Owner) -> Vec<Table> {
    let columns = vec![name("kind"), name("name"), figure("time_s"), figure("cpus")];
    let mut itself = Table::new("The taker, with its CPU time on the whole host", columns);
    let used = part.summary.owner_use(taker);
    let ns = used.map_or(0, |used| used.ns);
    let cpus = ns as f64 / part.summary.length_ns.max(1) as f64;
    itself.row([owner_kind(taker).into(), taker.name().into(), seconds(ns), real(cpus)]);
    let mut ran = Table::new("What it ran", code_columns());
    for function in used.map(|used| &used.functions[..]).unwrap_or_default() {
        ran.row(code_row(&function.code, function.ns, ns));
    }
    let columns = vec![name("vm"), figure("time_s"), figure("percent")];
    let mut victims = Table::new("VMs that waited for it", columns);
    let waited = part.results.vcpu_time.iter().map(|row| &row.row);
    let waited = waited.filter(|row| Owner::of_thief(row).as_ref() == Some(taker));
    let waited = sums(waited.map(|row| (row.vm.as_str(), row.ns)));
    let total: u64 = waited.iter().map(|(_, ns)| ns).sum();
    for (vm, ns) in waited {
        victims.row([vm.into(), seconds(ns), percent(ns, total)]);
    }
    vec![itself, ran, victims]
}

fn exit_tables(part: &Part, vm: &str, reason: &str) -> Vec<Table> {
    let rows = part.vcpu_rows(vm).filter(|row| row.exit_reason.as_deref() == Some(reason));
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let by_code = sums(rows.map(|row| {
        let code = &row.code;
        let (process, module) = (text(&code.process), text(&code.module));
        (Code { process, module, function: text(&code.function) }, row.ns)
    }));
    let total: u64 = by_code.iter().map(|(_, ns)| ns).sum();
    let columns = vec![name("exit_reason"), figure("time_s"), figure("exits")];
    let mut itself = Table::new("The exit reason", columns);
    let count = part.summary.vms[vm].exits.get(reason).map_or(0, |exits| exits.count);
    let count = if count == 0 { Cell::NONE } else { count.into() };
    itself.row([reason.into(), seconds(total), count]);
    let mut functions = Table::new("Guest functions that caused them", code_columns());
    for (code, ns) in by_code {
        functions.row(code_row(&code, ns, total));
    }
    vec![itself, functions]
}

fn code_columns() -> Vec<table::Column> {
    let names = ["function", "module", "process"].map(name);
    [figure("time_s"), figure("percent")].into_iter().chain(names).collect()
}

fn code_row(code: &Code, ns: u64, total: u64) -> Vec<Cell> {
    let names = [&code.function, &code.module, &code.process].map(|text| text.clone().into());
    [seconds(ns), percent(ns, total)].into_iter().chain(names).collect()
}

fn finding_tables(finding: &Finding) -> Vec<Table> {
    let columns = ["cause", "name", "evidence"].map(name).into_iter();
    let mut cause = Table::new("Cause", columns.chain([figure("value"), name("unit")]).collect());
    let (kind, about) = cause_words(&finding.cause);
    let evidence: Vec<(&str, f64, &str)> = match &finding.cause {
        Cause::Thief { part, .. } => vec![("part_of_the_loss", 100.0 * part, "percent")],
        Cause::Overcommitted { wanted, cpus, .. } => {
            vec![("wanted", *wanted, "CPUs"), ("there_are", f64::from(*cpus), "CPUs")]
        }
        Cause::Quota { wanted, got, .. } => {
            vec![("wanted", *wanted, "CPUs"), ("got", *got, "CPUs")]
        }
        Cause::Exits { per_s, .. } if 0.0 < *per_s => {
            vec![("more_exits", *per_s, "per_vcpu_and_s")]
        }
        _ => vec![("", f64::NAN, "")],
    };
    for (what, value, unit) in evidence {
        let value = if value.is_nan() { Cell::NONE } else { real(value) };
        cause.row([kind.into(), about.into(), what.into(), value, unit.into()]);
    }
    let names = ["function", "module", "process"].map(name);
    let columns = std::iter::once(figure("used_cpus")).chain(names);
    let mut functions = Table::new("What the cause ran", columns.collect());
    for (code, cpus) in cause_functions(&finding.cause) {
        let names = [&code.function, &code.module, &code.process].map(|text| text.clone().into());
        functions.row(std::iter::once(real(*cpus)).chain(names));
    }
    let columns = ["host", "vm", "measure", "name"].map(name).into_iter();
    let figures =
        [figure("before"), figure("after"), name("unit"), figure("costs_cpus"), name("began")];
    let mut symptoms = Table::new("What changed", columns.chain(figures).collect());
    for symptom in &finding.symptoms {
        let (scale, unit) = unit(&symptom.series.measure);
        let about = match &symptom.series.measure {
            Measure::Exits(name) | Measure::Process(name) => name,
            Measure::Function(code) => &code.function,
            _ => "",
        };
        symptoms.row([
            symptom.series.host.clone().into(),
            symptom.series.vm.clone().into(),
            measure_kind(&symptom.series.measure).into(),
            about.into(),
            real(scale * symptom.before),
            real(scale * symptom.after),
            unit.into(),
            real(symptom.cpus),
            utc(symptom.began_s.into()).into(),
        ]);
    }
    let columns = vec![name("action"), name("action_name"), figure("gives_back_cpus")];
    let mut advice = Table::new("What would help", columns);
    for it in &finding.advice {
        let (action, about) = action_words(&it.action);
        advice.row([action.into(), about.into(), real(it.cpus)]);
    }
    vec![cause, functions, symptoms, advice]
}

/// What a measure's values are multiplied with, and their unit then.
pub(super) fn unit(measure: &Measure) -> (f64, &'static str) {
    match measure {
        Measure::Exits(_) => (1.0, "per_vcpu_and_s"),
        Measure::Windows => (1.0, "windows"),
        _ => (100.0, "percent"),
    }
}
