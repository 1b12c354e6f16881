//! The form in which servers store findings: names and nesting as in `learned/*.cbor.zst`. What an earlier version stored
//! is read again.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::path::Path;

use detect::{
    Action, Advice, Cause, Code, Finding, FindingId, Measure, Owner, SeriesName, Symptom,
};

fn code() -> Code {
    Code { process: "web".into(), module: "/m".into(), function: "f".into() }
}

fn causes() -> Vec<Cause> {
    let functions = || vec![(code(), 0.5)];
    let owner = Owner::KernelThread("ksoftirqd".into());
    let owners = vec![(Owner::Vm("db".into()), 2.0), (Owner::Process("dd".into()), 1.0)];
    let build = Some(("1111".into(), "2222".into()));
    vec![
        Cause::Thief { owner, part: 0.9, functions: functions(), is_new: true },
        Cause::Overcommitted { wanted: 9.5, cpus: 8, owners, arrived: Some("db".into()) },
        Cause::Quota { wanted: 2.0, got: 1.0, others: vec![("db".into(), 0.5)] },
        Cause::Exits { reason: "io".into(), per_s: 4.0, functions: functions() },
        Cause::HaltPolling,
        Cause::Function {
            code: code(),
            is_lock: false,
            is_new: false,
            build,
            caller: Some("main".into()),
        },
        Cause::Process { process: "web".into(), is_new: false },
        Cause::Kernel { before: "6.1".into(), after: "6.12".into() },
        Cause::Collection(vec![("ring_full".into(), 7)]),
        Cause::Silent,
        Cause::Unknown,
    ]
}

fn measures() -> Vec<Measure> {
    vec![
        Measure::SamplesMissing,
        Measure::Windows,
        Measure::Demand,
        Measure::Throttled,
        Measure::StealOutside,
        Measure::Exits("io".into()),
        Measure::StealVmm,
        Measure::HaltPolling,
        Measure::Function(code()),
        Measure::Process("web".into()),
        Measure::Useful,
    ]
}

fn actions() -> Vec<Action> {
    vec![
        Action::Pin("web".into()),
        Action::Move("web".into()),
        Action::RaiseWeight("web".into()),
        Action::Limit(Owner::Idle),
        Action::Limit(Owner::Unknown),
        Action::LowerHaltPoll,
        Action::RaiseQuota("web".into()),
        Action::Fix(code()),
        Action::AvoidExits("io".into()),
        Action::CheckAgent("kvm1".into()),
    ]
}

fn finding(cause: Cause) -> Finding {
    let symptom = |measure| Symptom {
        labels: Default::default(),
        series: SeriesName { host: Some("kvm1".into()), vm: None, measure },
        began_s: 10_060,
        interval_s: (10_000, 10_120),
        before: 0.25,
        after: 0.5,
        score: 9.0,
        cpus: 1.5,
        is_over: true,
    };
    Finding {
        id: FindingId(0xab),
        found_s: 10_240,
        cause,
        symptoms: measures().into_iter().map(symptom).collect(),
        n_more: 3,
        advice: actions().into_iter().map(|action| Advice { action, cpus: 0.5 }).collect(),
    }
}

#[test]
fn stored_findings_keep_their_form() {
    let one = finding(Cause::Unknown);
    let text = format!(
        "{}\n{}\n",
        serde_json::to_string_pretty(&one).unwrap(),
        serde_json::to_string_pretty(&causes()).unwrap()
    );
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/detect/findings.json");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(&path).unwrap(), "UPDATE=1 rewrites {path:?}");
    for cause in causes() {
        let finding = finding(cause);
        let mut stored = Vec::new();
        ciborium::into_writer(&finding, &mut stored).unwrap();
        let read: Finding = ciborium::from_reader(&*stored).unwrap();
        assert_eq!(read, finding);
    }
}
