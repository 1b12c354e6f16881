//! What was found, why, and what to do: `vmscope explain`, and the fleet's findings.

use chrono::DateTime;
use detect::{Action, Advice, Cause, Code, Finding, Measure, Owner, SeriesName, Symptom};
use serde_json::{Value, json};

use crate::recording::cleaned;
use crate::{Cell, Column, Part, Report, Table, counted, figure, short_module};

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
            "what": cleaned(&measure_in_words(measure)),
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
    let advice = |advice: &Advice| json!({ "action": cleaned(&action_in_words(&advice.action)), "cpus": advice.cpus });
    json!({
        "id": finding.id.to_string(),
        "found": time(finding.found_s),
        "cause": cleaned(&cause_in_words(&finding.cause)),
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
                "{who}{new} took {:.0} % of what was stolen{}",
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
            let arrived = arrived.as_ref().map(|vm| format!("; VM {vm} has just arrived"));
            let arrived = arrived.unwrap_or_default();
            format!(
                "{} CPUs are wanted, and the host has {cpus} (most: {most}){arrived}",
                figure(*wanted)
            )
        }
        Cause::Quota { wanted, got } => {
            format!("a CPU quota gives it {} CPUs, and it wants {}", figure(*got), figure(*wanted))
        }
        Cause::Exits { reason, per_s, functions } => {
            let rate =
                if 0.0 < *per_s { format!("{} more ", figure(*per_s)) } else { String::new() };
            let each = if 0.0 < *per_s { " per vCPU and second" } else { "" };
            format!("{rate}VM exits{each} for {reason}{}", caused_by(functions))
        }
        Cause::HaltPolling => "the host polls for the end of the guest's short halts".to_owned(),
        Cause::Function { code, is_lock, is_new, build } => {
            let what = match (is_lock, is_new) {
                (true, _) => "threads wait for one another in",
                (false, true) => "the guest runs a new function,",
                (false, false) => "the guest spends more time in",
            };
            let build = build.as_ref().map(|(before, after)| {
                format!("; its module changed from build {before} to {after}")
            });
            format!("{what} {}{}", code_in_words(code), build.unwrap_or_default())
        }
        Cause::Process { process, is_new: true } => {
            format!("the guest runs a new process, {process}")
        }
        Cause::Process { process, .. } => {
            format!("process {process} uses more of the guest's time")
        }
        Cause::Kernel { before, after } => {
            format!("the host's kernel changed from {before} to {after}")
        }
        Cause::Collection(counters) => {
            let all = counters.iter().map(|(what, n)| format!("{what} {n}"));
            format!("samples are lost ({})", all.collect::<Vec<_>>().join(", "))
        }
        Cause::Silent => "no windows come from the host any more".to_owned(),
        Cause::Unknown => "cause not known".to_owned(),
    }
}

/// What to do.
#[must_use]
pub fn action_in_words(action: &Action) -> String {
    match action {
        Action::Pin(vm) => format!("pin VM {vm} to CPUs of its own"),
        Action::Move(vm) => format!("move VM {vm} to another host"),
        Action::RaiseWeight(vm) => format!("raise cpu.weight of VM {vm}"),
        Action::Limit(owner) => {
            format!("limit {}, or keep it off the VMs' CPUs", owner_in_words(owner))
        }
        Action::LowerHaltPoll => "lower halt_poll_ns of kvm".to_owned(),
        Action::RaiseQuota(vm) => format!("raise cpu.max of VM {vm}"),
        Action::Fix(code) => format!("make {} cheaper", code_in_words(code)),
        Action::AvoidExits(reason) => format!("have the guest exit less for {reason}"),
        Action::CheckAgent(host) => format!("check the agent of {host}"),
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

/// What is measured.
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
        Measure::Exits(reason) => format!("exits: {reason}"),
        Measure::Function(code) => code_in_words(code),
        Measure::Process(process) => format!("process {process}"),
        Measure::Useful => "useful".to_owned(),
    }
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
        Owner::Vm(name) => format!("VM {name}"),
        Owner::Process(name) => format!("host process {name}"),
        Owner::KernelThread(name) => format!("kernel thread {name}"),
        owner @ (Owner::Idle | Owner::Unknown) => owner.name().to_owned(),
    }
}

fn code_in_words(code: &Code) -> String {
    let Code { process, module, function } = code;
    let module = short_module(module);
    match (process.is_empty(), module.is_empty() || module == process) {
        (true, true) => function.clone(),
        (true, false) => format!("{function} ({module})"),
        (false, true) => format!("{function} of {process}"),
        (false, false) => format!("{function} ({module}) of {process}"),
    }
}

fn running(functions: &[(Code, f64)]) -> String {
    let names: Vec<_> = functions.iter().map(|(code, _)| code.function.as_str()).collect();
    if names.is_empty() { String::new() } else { format!("; it ran {}", names.join(", ")) }
}

fn caused_by(functions: &[(Code, f64)]) -> String {
    let names: Vec<_> = functions.iter().map(|(code, _)| code_in_words(code)).collect();
    if names.is_empty() { String::new() } else { format!(", caused by {}", names.join(", ")) }
}

fn place(series: &SeriesName) -> String {
    match (&series.host, &series.vm) {
        (Some(host), Some(vm)) => format!("{host}/{vm}"),
        (Some(host), None) => host.clone(),
        _ => "all VMs".to_owned(),
    }
}

fn time(s: u32) -> String {
    let time = DateTime::from_timestamp(i64::from(s), 0).unwrap_or_default();
    time.format("%Y-%m-%dT%H:%M:%SZ").to_string()
}
