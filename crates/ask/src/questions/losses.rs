//! What VMs lose, to whom, and what helps.

use detect::{Advice, Finding, Owner, explain};
use model::{TimeAccount, TimeClass};
use serde_json::Map;
use table::{Cell, Table, utc};

use super::{View, about, about_time, arguments, share};
use crate::answer::{Answer, Next, figure, name, percent, real, seconds};
use crate::facts::{
    action_words, cause_words, exit_id, id, measure_kind, owner_id, owner_kind, sums,
};
use crate::missing;
use crate::question::{Arguments, Question};
use crate::source::{AskError, IsOverToo, Part, Source, Span};

/// Takers whose functions are shown.
const TAKERS: usize = 3;
/// Functions of each.
const FUNCTIONS: usize = 4;

pub(super) fn what_is_wrong(source: &dyn Source, given: &Arguments) -> Result<Answer, AskError> {
    let question = Question::WhatIsWrong;
    let (host, vm) = (given.host.as_deref(), given.vm.as_deref());
    let span = Span::parse(source, given.from.as_deref(), given.to.as_deref())?;
    let Some(found) = source.findings(host, vm, IsOverToo::No)? else {
        let part = source.part(&source.host(host, vm, span)?, span)?;
        let found = losses(&part, vm.map(|vm| part.vm(vm)).transpose()?);
        let mut answer = Answer {
            question,
            about: about(source, &part, vm),
            summary: counted(&found),
            tables: vec![findings(&found, &part.host), vms(&part)],
            missing: missing::of_part(&part, None),
            next: Vec::new(),
        };
        let worst = found.first().and_then(place);
        let vm = worst.map(|(_, vm)| vm).or_else(|| part.summary.vms.keys().next().cloned());
        if let Some(vm) = vm {
            let arguments = arguments(source, &part, Some(&vm));
            let because = if found.is_empty() { "no VM loses time: look at one" } else { WORST };
            answer.next.push(Next { question: Question::WhySlow, because, arguments });
        }
        return Ok(answer);
    };
    let mut answer = Answer {
        question,
        about: about_time(source, host, vm, span),
        summary: counted(&found),
        tables: vec![findings(&found, "")],
        missing: missing::table(),
        next: Vec::new(),
    };
    if let Some(lost) = source.lost(span)? {
        for reason in &lost.partial {
            let cells = ["rows".into(), Cell::NONE, "".into(), "".into(), reason.as_str().into()];
            answer.missing.row(cells);
        }
        let columns =
            ["vcpu_s", "steal_type_1_percent", "steal_type_2_percent", "throttled_percent"];
        let columns = [name("host"), name("vm")].into_iter().chain(columns.map(figure));
        let mut table = Table::new("VMs that lost most", columns.collect());
        let meant = lost.vms.iter().filter(|row| host.is_none_or(|host| host == row.host));
        for row in meant.filter(|row| vm.is_none_or(|vm| vm == row.vm)) {
            let lost = [row.outside_ns, row.vmm_ns, row.throttled_ns];
            let names = [row.host.as_str().into(), row.vm.as_str().into(), seconds(row.ns)];
            table.row(names.into_iter().chain(lost.map(|ns| percent(ns, row.ns))));
        }
        answer.tables.push(table);
    }
    answer.next.extend(found.first().map(|finding| next_of(source, finding)));
    Ok(answer)
}

const WORST: &str = "the VM that loses most";

/// What leads on from a finding: its VM in the hour after it began, or the finding itself.
fn next_of(source: &dyn Source, finding: &Finding) -> Next {
    leads_to(source, finding).filter(|next| next.question == Question::WhySlow).unwrap_or_else(
        || {
            let arguments = Map::from_iter([("id".to_owned(), finding_id(finding).into())]);
            let because = "the finding of the first row";
            Next { question: Question::Details, because, arguments }
        },
    )
}

/// The VM of a finding, or else its host, in the hour after it began.
pub(super) fn leads_to(source: &dyn Source, finding: &Finding) -> Option<Next> {
    let symptom = finding.symptoms.first()?;
    let from_us = i64::from(symptom.began_s) * 1_000_000;
    let to_us = (from_us + 3_600_000_000).min(source.whole().to_us);
    let (host, vm) = (symptom.series.host.clone(), symptom.series.vm.clone());
    let (question, because) = match (&host, &vm) {
        (_, Some(_)) => (Question::WhySlow, WORST),
        (Some(_), None) => (Question::HotFunctions, "what the host's CPUs did then"),
        (None, None) => return None,
    };
    let named = [("host", host), ("vm", vm)].into_iter();
    let named = named.filter_map(|(name, value)| Some((name.to_owned(), value?.into())));
    let mut arguments: Map<_, _> = named.collect();
    arguments.extend(super::span_arguments(source, Span { from_us, to_us }));
    Some(Next { question, because, arguments })
}

/// Host and VM of a finding.
fn place(finding: &Finding) -> Option<(Option<String>, String)> {
    let series = &finding.symptoms.first()?.series;
    Some((series.host.clone(), series.vm.clone()?))
}

fn counted(found: &[Finding]) -> String {
    let cpus: f64 = found.iter().flat_map(|it| &it.symptoms).map(|it| it.cpus).sum();
    match found.len() {
        0 => "Nothing was found.".to_owned(),
        n => format!("{}, which cost {cpus:.2} CPUs.", table::counted(n as u64, "finding")),
    }
}

/// What VMs of a part lose, the most CPUs first.
pub(super) fn losses(part: &Part, vm: Option<&str>) -> Vec<Finding> {
    let vms = part.summary.vms.keys().filter(|name| vm.is_none_or(|vm| vm == name.as_str()));
    let mut found: Vec<Finding> = vms.flat_map(|vm| explain(&part.summary, vm)).collect();
    let cpus = |finding: &Finding| finding.symptoms.first().map_or(0.0, |symptom| symptom.cpus);
    found.sort_by(|a, b| cpus(b).total_cmp(&cpus(a)));
    found
}

/// A finding's id in answers. Those of one part alone have no number.
pub(super) fn finding_id(finding: &Finding) -> String {
    if finding.id.0 != 0 {
        return format!("finding-{}", finding.id);
    }
    let series = finding.symptoms.first().map(|symptom| &symptom.series);
    let vm = series.and_then(|series| series.vm.as_deref()).unwrap_or_default();
    let measure = series.map_or("", |series| measure_kind(&series.measure));
    let (cause, about) = cause_words(&finding.cause);
    id("loss", &[vm, measure, cause, about])
}

fn findings(found: &[Finding], host: &str) -> Table {
    let columns = vec![
        name("id"),
        name("host"),
        name("vm"),
        name("measure"),
        figure("before"),
        figure("after"),
        name("unit"),
        figure("costs_cpus"),
        name("since"),
        name("cause"),
        name("cause_name"),
    ];
    let mut table = Table::new("Losses, what costs most first", columns);
    for finding in found {
        let Some(symptom) = finding.symptoms.first() else { continue };
        let (scale, unit) = crate::questions::details::unit(&symptom.series.measure);
        let (cause, about) = cause_words(&finding.cause);
        table.row([
            finding_id(finding).into(),
            symptom.series.host.as_deref().unwrap_or(host).into(),
            symptom.series.vm.clone().into(),
            measure_kind(&symptom.series.measure).into(),
            // A part alone has no past.
            if finding.id.0 == 0 { Cell::NONE } else { real(scale * symptom.before) },
            real(scale * symptom.after),
            unit.into(),
            real(symptom.cpus),
            utc(symptom.began_s.into()).into(),
            cause.into(),
            about.into(),
        ]);
    }
    table
}

/// Each VM of a part and what it lost, the most first.
fn vms(part: &Part) -> Table {
    let columns = [
        "vcpus",
        "vcpu_s",
        "guest_percent",
        "steal_type_1_percent",
        "steal_type_2_percent",
        "throttled_percent",
    ];
    let columns = std::iter::once(name("vm")).chain(columns.map(figure));
    let mut table = Table::new("VMs", columns.collect());
    let lost = sums(
        part.summary
            .vms
            .iter()
            .map(|(name, vm)| (name, vm.ns_of(TimeClass::Stolen) + vm.ns_of(TimeClass::HeldBack))),
    );
    for (name, _) in lost {
        let vm = &part.summary.vms[name];
        let total = vm.total_ns();
        let states = part.states(name);
        let of = |account: TimeAccount| -> u64 {
            let states = states.iter().filter(|(state, _)| state.account() == account);
            states.map(|(_, ns)| ns).sum()
        };
        let shares = [
            TimeAccount::Guest,
            TimeAccount::StealOutside,
            TimeAccount::StealVmm,
            TimeAccount::Throttled,
        ];
        let names = [name.as_str().into(), vm.vcpus.into(), seconds(total)];
        table.row(names.into_iter().chain(shares.map(|account| percent(of(account), total))));
    }
    table
}

pub(super) fn why_slow(view: &View<'_>) -> Result<Answer, AskError> {
    let total = view.total_ns();
    let states = view.part.states(&view.vm);
    let of = |class: TimeClass| -> u64 {
        let states = states.iter().filter(|(state, _)| state.account().class() == class);
        states.map(|(_, ns)| ns).sum()
    };
    let by_account = sums(states.iter().map(|(state, ns)| (state.account(), *ns)));
    let account = |wanted: TimeAccount| {
        by_account.iter().find(|(account, _)| *account == wanted).map_or(0, |(_, ns)| *ns)
    };
    let (ran, stolen, held) =
        (of(TimeClass::Running), of(TimeClass::Stolen), of(TimeClass::HeldBack));
    let summary = format!(
        "The vCPUs ran guest code for {} of their time, {:.2} CPUs. They lost {} to others (steal), {} to a CPU quota, {:.2} CPUs in all. They were idle or unknown for {}.",
        share(ran, total),
        view.cpus(ran),
        share(stolen, total),
        share(held, total),
        view.cpus(stolen + held),
        share(of(TimeClass::Idle), total),
    );
    let mut answer = view.answer(Question::WhySlow, summary);
    let columns = vec![name("state"), figure("time_s"), figure("percent")];
    let mut table = Table::new("Where the time of the vCPUs went", columns);
    for (state, ns) in &states {
        table.row([state.name().into(), seconds(*ns), percent(*ns, total)]);
    }
    let found = losses(&view.part, Some(&view.vm));
    let causes = findings(&found, &view.part.host);
    answer.tables = vec![table, causes, takers(view), exits(view)];
    let outside = account(TimeAccount::StealOutside);
    let vmm = account(TimeAccount::StealVmm);
    if 0 < outside.max(vmm).max(held) {
        let mut next = vec![
            (outside, view.next(Question::WhoTookCpu, "others had the CPUs that it waited for")),
            (held, view.next(Question::WhatHelps, "a CPU quota held it back")),
        ];
        let exits = &view.part.summary.vms[&view.vm].exits;
        if let Some((reason, _)) = exits.iter().max_by_key(|(_, exits)| exits.ns) {
            let because = "the VM exit that took most time";
            next.push((vmm, view.details(exit_id(&view.vm, reason), because)));
        }
        next.sort_by_key(|(ns, _)| std::cmp::Reverse(*ns));
        answer.next.extend(next.into_iter().filter(|(ns, _)| 0 < *ns).map(|(_, next)| next));
    }
    let because = "what the guest ran in the time that it got";
    answer.next.push(view.next(Question::HotFunctions, because));
    Ok(answer)
}

/// Who had the CPUs that a VM waited for.
fn takers(view: &View<'_>) -> Table {
    let all = view.part.takers(&view.vm);
    let total: u64 = all.iter().map(|(_, ns)| ns).sum();
    let columns = vec![name("id"), name("kind"), name("name"), figure("time_s"), figure("percent")];
    let mut table = Table::new("Who had the CPUs that it waited for", columns);
    for (owner, ns) in all {
        table.row([
            owner_id(&owner).into(),
            owner_kind(&owner).into(),
            owner.name().into(),
            seconds(ns),
            percent(ns, total),
        ]);
    }
    table
}

/// VM exits that took time.
fn exits(view: &View<'_>) -> Table {
    let columns = vec![name("id"), name("exit_reason"), figure("time_s"), figure("exits")];
    let mut table = Table::new("VM exits, the longest time first", columns);
    let exits = &view.part.summary.vms[&view.vm].exits;
    for (reason, ns) in sums(exits.iter().map(|(reason, exits)| (reason, exits.ns))) {
        let count = exits[reason].count;
        let count = if count == 0 { Cell::NONE } else { count.into() };
        table.row([exit_id(&view.vm, reason).into(), reason.as_str().into(), seconds(ns), count]);
    }
    table
}

pub(super) fn who_took_cpu(view: &View<'_>) -> Result<Answer, AskError> {
    let all = view.part.takers(&view.vm);
    let total: u64 = all.iter().map(|(_, ns)| ns).sum();
    let summary = format!(
        "The vCPUs waited {:.3} s for a CPU that others had: {} of their time.",
        total as f64 / 1e9,
        share(total, view.total_ns()),
    );
    let mut answer = view.answer(Question::WhoTookCpu, summary);
    let columns = vec![
        name("id"),
        name("taker"),
        figure("time_s"),
        figure("taker_percent"),
        name("function"),
        name("module"),
        name("process"),
    ];
    let title = "What the first takers ran on all CPUs of the host in this time";
    let mut ran = Table::new(title, columns);
    for (owner, _) in all.iter().take(TAKERS) {
        let Some(used) = view.part.summary.owner_use(owner) else { continue };
        for function in used.functions.iter().take(FUNCTIONS) {
            ran.row([
                owner_id(owner).into(),
                owner.name().into(),
                seconds(function.ns),
                percent(function.ns, used.ns),
                function.code.function.as_str().into(),
                function.code.module.as_str().into(),
                function.code.process.as_str().into(),
            ]);
        }
    }
    answer.tables = vec![takers(view), ran];
    let known = |owner: &Owner| !matches!(owner, Owner::Idle | Owner::Unknown);
    if let Some((owner, _)) = all.iter().find(|(owner, _)| known(owner)) {
        answer.next.push(view.details(owner_id(owner), "all that is known of the first taker"));
    }
    answer.next.push(view.next(Question::WhatHelps, "what would give the time back"));
    Ok(answer)
}

pub(super) fn what_helps(source: &dyn Source, given: &Arguments) -> Result<Answer, AskError> {
    let (host, vm) = (given.host.as_deref(), given.vm.as_deref());
    if host.is_none()
        && vm.is_none()
        && let Some(found) = source.findings(None, None, IsOverToo::No)?
    {
        let about = about_time(source, None, None, source.whole());
        let next = found.first().map(|finding| next_of(source, finding)).into_iter();
        return Ok(helps(&found, about, missing::table(), next.collect()));
    }
    let span = Span::parse(source, given.from.as_deref(), given.to.as_deref())?;
    let part = source.part(&source.host(host, vm, span)?, span)?;
    let vm = vm.map(|vm| part.vm(vm)).transpose()?;
    let found = losses(&part, vm);
    let about = about(source, &part, vm);
    let first = found.first().map(|finding| {
        let vm = place(finding).map(|(_, vm)| vm);
        let mut arguments = arguments(source, &part, vm.as_deref());
        arguments.insert("id".to_owned(), finding_id(finding).into());
        Next { question: Question::Details, because: "the loss of the first row", arguments }
    });
    Ok(helps(&found, about, missing::of_part(&part, vm), first.into_iter().collect()))
}

fn helps(
    found: &[Finding],
    about: Map<String, serde_json::Value>,
    missing: Table,
    next: Vec<Next>,
) -> Answer {
    let columns = vec![
        name("id"),
        name("vm"),
        name("measure"),
        name("action"),
        name("action_name"),
        figure("gives_back_cpus"),
    ];
    let mut table = Table::new("What would help, what gives back most first", columns);
    let mut all: Vec<(&Finding, &Advice)> =
        found.iter().flat_map(|it| it.advice.iter().map(move |advice| (it, advice))).collect();
    all.sort_by(|a, b| b.1.cpus.total_cmp(&a.1.cpus));
    for (finding, advice) in all {
        let (action, name) = action_words(&advice.action);
        let series = finding.symptoms.first().map(|symptom| &symptom.series);
        table.row([
            finding_id(finding).into(),
            series.and_then(|series| series.vm.clone()).into(),
            series.map_or("", |series| measure_kind(&series.measure)).into(),
            action.into(),
            name.into(),
            if advice.cpus < 0.0005 { Cell::NONE } else { real(advice.cpus) },
        ]);
    }
    let summary = match table.rows.len() {
        0 => "Nothing was found that needs help.".to_owned(),
        n => format!("{} for {}.", table::counted(n as u64, "measure"), counted(found)),
    };
    let summary = summary.replace("..", ".");
    let question = Question::WhatHelps;
    Answer { question, about, summary, tables: vec![table], missing, next }
}
