//! What was found, why, and what to do: `vmscope explain`, and the fleet's findings.

use serde_json::{Value, json};
use table::{
    Cell, Column, LISTED, Part, Report, Table, clean, cleaned, counted, figure, short_module, utc,
};

use crate::{Action, Advice, Cause, Code, Finding, Measure, Owner, SeriesName, Symptom};

const VERSION: u32 = 1;
/// Symptoms of a finding that people see.
const SHOWN: usize = 8;

/// Findings with their causes, their symptoms and what to do.
#[must_use]
pub fn findings(findings: &[Finding]) -> Report {
    let mut report = Report::default();
    for finding in findings {
        report.parts.push(Part::Prose(sentences(finding)));
        report.parts.push(symptoms(finding).into());
    }
    if findings.is_empty() {
        report.parts.push(Part::Prose("Nothing was found.".to_owned()));
    }
    report.data = Some(data(findings));
    report.json = json!({
        "version": VERSION,
        "findings": findings.iter().map(finding_json).collect::<Value>(),
    });
    report
}

/// The cause, then advice.
fn sentences(finding: &Finding) -> String {
    let mut text = format!("{}.", cause_in_words(&finding.cause));
    for advice in &finding.advice {
        text += &format!("\n  {}", advice_in_words(advice));
    }
    text
}

fn symptoms(finding: &Finding) -> Table {
    let columns = vec![
        Column::name("Where"),
        Column::name("What"),
        Column::name("Since"),
        Column::number("Before"),
        Column::number("Now"),
        Column::number("CPUs"),
    ];
    let mut table = Table::new("", columns);
    for symptom in &finding.symptoms {
        let level = |value| Cell::from(level(&symptom.series.measure, value));
        table.row([
            place(&symptom.series).into(),
            measure_in_words(&symptom.series.measure).into(),
            time(symptom.began_s).into(),
            level(symptom.before),
            level(symptom.after),
            Cell::Real(symptom.cpus),
        ]);
    }
    table.limit(Some(SHOWN));
    table
}

fn data(findings: &[Finding]) -> Table {
    let columns = ["finding", "host", "vm", "what", "since", "before", "after", "cpus", "cause"];
    let mut table = Table::new("", columns.map(Column::csv_only).into());
    for finding in findings {
        for symptom in &finding.symptoms {
            let SeriesName { host, vm, measure } = &symptom.series;
            table.row([
                finding.id.to_string().into(),
                host.clone().into(),
                vm.clone().into(),
                measure_in_words(measure).into(),
                time(symptom.began_s).into(),
                Cell::Real(symptom.before),
                Cell::Real(symptom.after),
                Cell::Real(symptom.cpus),
                cause_in_words(&finding.cause).into(),
            ]);
        }
    }
    table
}

fn finding_json(finding: &Finding) -> Value {
    let symptom = |symptom: &Symptom| {
        let SeriesName { host, vm, measure } = &symptom.series;
        json!({
            "host": host.as_deref().map(cleaned),
            "vm": vm.as_deref().map(cleaned),
            "what": measure_in_words(measure),
            "since": time(symptom.began_s),
            "since_from": time(symptom.interval_s.0),
            "since_to": time(symptom.interval_s.1),
            "before": symptom.before,
            "after": symptom.after,
            "score": symptom.score,
            "cpus": symptom.cpus,
            "over": symptom.is_over,
        })
    };
    let advice =
        |advice: &Advice| json!({ "action": action_in_words(&advice.action), "cpus": advice.cpus });
    json!({
        "id": finding.id.to_string(),
        "found": time(finding.found_s),
        "cause": cause_in_words(&finding.cause),
        "symptoms": finding.symptoms.iter().map(symptom).collect::<Value>(),
        "more_symptoms": finding.n_more,
        "advice": finding.advice.iter().map(advice).collect::<Value>(),
    })
}

/// Why, as a sentence without its full stop.
#[must_use]
pub fn cause_in_words(cause: &Cause) -> String {
    match cause {
        Cause::Thief { owner, part, functions, is_new } => {
            let new = if *is_new { ", which has just arrived," } else { "" };
            let who = owner_in_words(owner);
            format!(
                "{who}{new} took {:.0} % of the additional steal type 1{}",
                100.0 * part,
                running(functions)
            )
        }
        Cause::Overcommitted { wanted, cpus, owners, arrived } => {
            let most = owners
                .iter()
                .map(|(owner, cpus)| format!("{} {}", owner_in_words(owner), figure(*cpus)));
            let most = most.collect::<Vec<_>>().join(", ");
            let cpus = counted(u64::from(*cpus), "CPU");
            let arrived = arrived.as_ref().map(|vm| format!("; VM {} has just arrived", clean(vm)));
            let arrived = arrived.unwrap_or_default();
            format!(
                "{} CPUs are wanted, and the host has {cpus} (most: {most}){arrived}",
                figure(*wanted)
            )
        }
        Cause::Quota { wanted, got, others } => {
            let each = |(vm, cpus): &(String, f64)| format!("VM {} {}", clean(vm), figure(*cpus));
            let others = others.iter().take(LISTED).map(each).collect::<Vec<_>>().join(", ");
            let shared =
                if others.is_empty() { others } else { format!("; of the same quota {others}") };
            format!(
                "a CPU quota gives it {} CPUs, and it wants {}{shared}",
                figure(*got),
                figure(*wanted)
            )
        }
        Cause::Exits { reason, per_s, functions } => {
            let rate =
                if 0.0 < *per_s { format!("{} more ", figure(*per_s)) } else { String::new() };
            let each = if 0.0 < *per_s { " per vCPU and second" } else { "" };
            format!("{rate}VM exits{each} for {}{}", clean(reason), caused_by(functions))
        }
        Cause::HaltPolling => "the host polls for the end of the guest's short halts".to_owned(),
        Cause::Function { code, is_lock, is_new, build, caller } => {
            let what = match (is_lock, is_new) {
                (true, _) => "threads wait for one another in",
                (false, true) => "the guest runs a new function,",
                (false, false) => "the guest spends more time in",
            };
            let build = build.as_ref().map(|(before, after)| {
                format!("; its module changed from build {} to {}", clean(before), clean(after))
            });
            let by = caller.as_ref().map(|caller| format!(", called by {}", clean(caller)));
            let (by, build) = (by.unwrap_or_default(), build.unwrap_or_default());
            format!("{what} {}{by}{build}", code_in_words(code))
        }
        Cause::Process { process, is_new: true } => {
            format!("the guest runs a new process, {}", clean(process))
        }
        Cause::Process { process, .. } => {
            format!("process {} uses more of the guest's time", clean(process))
        }
        Cause::Kernel { before, after } => {
            format!("the host's kernel changed from {} to {}", clean(before), clean(after))
        }
        Cause::Collection(counters) => {
            let all = counters.iter().map(|(what, n)| format!("{} {n}", clean(what)));
            format!("samples are lost ({})", all.collect::<Vec<_>>().join(", "))
        }
        Cause::Silent => "no windows come from the host any more".to_owned(),
        Cause::Unknown => "cause not known".to_owned(),
    }
}

/// The advice as a sentence.
#[must_use]
pub fn action_in_words(action: &Action) -> String {
    match action {
        Action::Pin(vm) => format!("pin VM {} to CPUs of its own", clean(vm)),
        Action::Move(vm) => format!("move VM {} to another host", clean(vm)),
        Action::RaiseWeight(vm) => format!("raise cpu.weight of VM {}", clean(vm)),
        Action::Limit(owner) => {
            format!("limit {}, or keep it off the VMs' CPUs", owner_in_words(owner))
        }
        Action::LowerHaltPoll => "lower halt_poll_ns of kvm".to_owned(),
        Action::RaiseQuota(vm) => format!("raise cpu.max of VM {}", clean(vm)),
        Action::Fix(code) => format!("make {} cheaper", code_in_words(code)),
        Action::AvoidExits(reason) => format!("have the guest exit less for {}", clean(reason)),
        Action::CheckAgent(host) => format!("check the agent of {}", clean(host)),
    }
}

fn advice_in_words(advice: &Advice) -> String {
    let action = action_in_words(&advice.action);
    if advice.cpus < 0.005 {
        action
    } else {
        format!("{action}: up to {} CPUs", figure(advice.cpus))
    }
}

/// The measure's name for people.
#[must_use]
pub fn measure_in_words(measure: &Measure) -> String {
    match measure {
        Measure::SamplesMissing => "samples missing".to_owned(),
        Measure::Windows => "windows".to_owned(),
        Measure::Demand => "demand on its CPUs".to_owned(),
        Measure::Throttled => "throttled".to_owned(),
        Measure::StealOutside => "steal type 1".to_owned(),
        Measure::StealVmm => "steal type 2".to_owned(),
        Measure::HaltPolling => "halt polling".to_owned(),
        Measure::Exits(reason) => format!("exits: {}", clean(reason)),
        Measure::Function(code) => code_in_words(code),
        Measure::Process(process) => format!("process {}", clean(process)),
        Measure::Useful => "useful".to_owned(),
    }
}

/// What changed, where, and by how much, in a line.
#[must_use]
pub fn symptom_in_words(symptom: &Symptom) -> String {
    let Symptom { series, before, after, .. } = symptom;
    let level = |value| level(&series.measure, value);
    let (place, what) = (place(series), measure_in_words(&series.measure));
    format!("{place}: {what} changed from {} to {}", level(*before), level(*after))
}

fn level(measure: &Measure, value: f64) -> String {
    match measure {
        Measure::Exits(_) => format!("{}/s", figure(value)),
        Measure::Windows => figure(value),
        _ => format!("{:.1} %", 100.0 * value),
    }
}

fn owner_in_words(owner: &Owner) -> String {
    match owner {
        Owner::Vm(name) => format!("VM {}", clean(name)),
        Owner::Process(name) => format!("host process {}", clean(name)),
        Owner::KernelThread(name) => format!("kernel thread {}", clean(name)),
        owner @ (Owner::Idle | Owner::Unknown) => owner.name().to_owned(),
    }
}

fn code_in_words(code: &Code) -> String {
    let (process, function) = (clean(&code.process), clean(&code.function));
    let module = clean(short_module(&code.module));
    match (process.is_empty(), module.is_empty() || module == process) {
        (true, true) => function.into_owned(),
        (true, false) => format!("{function} ({module})"),
        (false, true) => format!("{function} of {process}"),
        (false, false) => format!("{function} ({module}) of {process}"),
    }
}

fn running(functions: &[(Code, f64)]) -> String {
    let names: Vec<_> = functions.iter().map(|(code, _)| clean(&code.function)).collect();
    if names.is_empty() { String::new() } else { format!("; it ran {}", names.join(", ")) }
}

fn caused_by(functions: &[(Code, f64)]) -> String {
    let names: Vec<_> = functions.iter().map(|(code, _)| code_in_words(code)).collect();
    if names.is_empty() { String::new() } else { format!(", caused by {}", names.join(", ")) }
}

fn place(series: &SeriesName) -> String {
    match (&series.host, &series.vm) {
        (Some(host), Some(vm)) => format!("{}/{}", clean(host), clean(vm)),
        (Some(host), None) => cleaned(host),
        _ => "all VMs".to_owned(),
    }
}

fn time(s: u32) -> String {
    utc(s.into())
}

#[cfg(test)]
mod test {
    use crate::FindingId;

    use super::*;
    use table::Width;

    /// HTML, a terminal's escapes, a line that looks like advice, right-to-left marks.
    const HOSTILE: &str = "<script>\u{1b}[2J\n  move VM db\u{202e}\u{2028}";

    #[test]
    fn names_of_guests_neither_act_nor_add_lines() {
        let name = || HOSTILE.to_owned();
        let code = || Code { process: name(), module: name(), function: name() };
        let causes = [
            Cause::Thief {
                owner: Owner::Vm(name()),
                part: 1.0,
                functions: vec![(code(), 1.0)],
                is_new: true,
            },
            Cause::Overcommitted {
                wanted: 2.0,
                cpus: 1,
                owners: vec![(Owner::KernelThread(name()), 1.0)],
                arrived: Some(name()),
            },
            Cause::Exits { reason: name(), per_s: 1.0, functions: vec![(code(), 1.0)] },
            Cause::Function {
                code: code(),
                is_lock: false,
                is_new: false,
                build: Some((name(), name())),
                caller: Some(name()),
            },
            Cause::Process { process: name(), is_new: false },
            Cause::Process { process: name(), is_new: true },
            Cause::Kernel { before: name(), after: name() },
            Cause::Collection(vec![(name(), 1)]),
        ];
        let actions = [
            Action::Pin(name()),
            Action::Move(name()),
            Action::RaiseWeight(name()),
            Action::Limit(Owner::Process(name())),
            Action::RaiseQuota(name()),
            Action::Fix(code()),
            Action::AvoidExits(name()),
            Action::CheckAgent(name()),
        ];
        let measures =
            [Measure::Exits(name()), Measure::Function(code()), Measure::Process(name())];
        let symptom = |measure| Symptom {
            labels: Default::default(),
            series: SeriesName { host: Some(name()), vm: Some(name()), measure },
            began_s: 1,
            interval_s: (1, 1),
            before: 0.0,
            after: 1.0,
            score: 1.0,
            cpus: 1.0,
            is_over: false,
        };
        for cause in causes {
            let finding = Finding {
                id: FindingId(1),
                found_s: 1,
                cause,
                symptoms: measures.clone().map(symptom).into(),
                n_more: 0,
                advice: actions.clone().map(|action| Advice { action, cpus: 1.0 }).into(),
            };
            let report = findings(&[finding]);
            let text = report.text(Width::Unlimited);
            let lines = text.lines().filter(|line| line.trim_start().starts_with("move VM"));
            assert_eq!(lines.count(), 1, "{text}");
            for shown in [text, report.csv(), report.json.to_string()] {
                let acts = |c: char| matches!(c, '\u{1b}' | '\u{202e}' | '\u{2028}');
                assert!(!shown.contains(acts), "{shown}");
            }
        }
    }
}
