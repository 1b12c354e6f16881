//! What a VM loses, to whom, and what to do about it, from one window alone: without a past, nothing is normal.

use crate::cause::{advice, cause, is_lock};
use crate::host::{Host, cpus_of};
use crate::vm::Vm;
use model::VcpuTimeState;

use crate::{Cause, Finding, FindingId, FunctionTime, Measure, SeriesName, Summary, Symptom};

/// Less than this part of a VM's time is not worth a word.
const MIN_SHARE: f64 = 0.01;

/// What a VM loses, the most first. Empty: nothing to speak of, or there is no such VM.
#[must_use]
pub fn explain(window: &Summary, vm: &str) -> Vec<Finding> {
    let Some(summary) = window.vms.get(vm) else { return Vec::new() };
    let total = summary.total_ns().max(1) as f64;
    let states: [(Measure, &[VcpuTimeState]); 4] = [
        (Measure::StealOutside, &[VcpuTimeState::StealOutside]),
        (Measure::StealVmm, &[VcpuTimeState::StealVmm, VcpuTimeState::StealVmmWaiting]),
        (Measure::Throttled, &[VcpuTimeState::Throttled]),
        (Measure::HaltPolling, &[VcpuTimeState::HaltPolling]),
    ];
    let losses = states.into_iter().map(|(measure, states)| (measure, summary.ns_in(states)));
    let is_wait = |function: &&FunctionTime| is_lock(&function.code);
    let waits = summary.functions.iter().filter(is_wait);
    let waits = waits.map(|f| (Measure::Function(f.code.clone()), f.ns));
    // A host of which nothing is known: all of it is new.
    let mut host = Host::default();
    host.vms.insert(vm.to_owned(), Vm::default());
    let found = losses.chain(waits).filter(|(_, ns)| MIN_SHARE <= *ns as f64 / total);
    let finding = |(measure, ns): (Measure, u64)| {
        let symptom = Symptom {
            labels: summary.labels.clone(),
            series: SeriesName {
                host: Some(window.host.clone()),
                vm: Some(vm.to_owned()),
                measure,
            },
            began_s: window.start_s,
            interval_s: (window.start_s, window.start_s),
            before: 0.0,
            after: ns as f64 / total,
            score: 0.0,
            cpus: cpus_of(window, ns),
            is_over: false,
        };
        let cause = match cause(&host, window, &symptom) {
            Cause::Function { code, is_lock, build, caller, .. } => {
                Cause::Function { code, is_lock, is_new: false, build, caller }
            }
            cause => cause,
        };
        let symptoms = vec![symptom];
        let advice = advice(&cause, &symptoms);
        let found_s = window.start_s;
        Finding { id: FindingId(0), found_s, cause, symptoms, n_more: 0, advice }
    };
    let mut findings: Vec<Finding> = found.map(finding).collect();
    findings.sort_by(|a, b| b.symptoms[0].after.total_cmp(&a.symptoms[0].after));
    findings
}

#[cfg(test)]
mod test {
    use std::collections::BTreeMap;

    use super::*;
    use crate::{Action, Code, ExitUse, Owner, VmSummary};

    #[test]
    fn each_loss_has_its_cause_and_its_figure() {
        const S: u64 = 1_000_000_000;
        let function = |function: &str, ns| FunctionTime {
            code: Code { function: function.to_owned(), ..Code::default() },
            ns,
        };
        let io = ExitUse { count: 9, ns: 2 * S, functions: vec![function("outb", S)] };
        let web = VmSummary {
            vcpus: 1,
            states: BTreeMap::from([
                (VcpuTimeState::GuestUser, 4 * S),
                (VcpuTimeState::StealOutside, 3 * S),
                (VcpuTimeState::StealVmm, 2 * S),
                (VcpuTimeState::Throttled, S / 2),
                (VcpuTimeState::HaltPolling, S / 1000),
                (VcpuTimeState::Halt, S / 2),
            ]),
            functions: vec![function("main", 3 * S), function("queued_spin_lock_slowpath", S)],
            thieves: BTreeMap::from([(Owner::Vm("db".to_owned()), 3 * S)]),
            exits: BTreeMap::from([("io".to_owned(), io)]),
            ..VmSummary::default()
        };
        let window = Summary {
            host: "kvm1".to_owned(),
            length_ns: 10 * S,
            cpus: 4,
            vms: BTreeMap::from([("web".to_owned(), web)]),
            ..Summary::default()
        };
        let findings = explain(&window, "web");
        let first = |n: usize| (&findings[n].cause, findings[n].advice[0].clone());
        let (cause, advice) = first(0);
        assert!(matches!(cause, Cause::Thief { owner: Owner::Vm(db), .. } if db == "db"));
        assert_eq!(advice.action, Action::Move("db".to_owned()));
        assert!((advice.cpus - 0.3).abs() < 0.01, "{advice:?}");
        assert!(matches!(first(1).0, Cause::Exits { reason, .. } if reason == "io"));
        assert!(matches!(first(2).0, Cause::Function { is_lock: true, .. }));
        assert!(matches!(first(3).0, Cause::Quota { .. }));
        assert_eq!(findings.len(), 4);
        assert_eq!(findings[3].advice.len(), 1, "its quota is its own");
        assert_eq!(explain(&window, "no"), []);
    }

    /// Two VMs under one quota, one of which uses it up.
    #[test]
    fn who_uses_up_a_shared_quota_is_to_be_limited() {
        const S: u64 = 1_000_000_000;
        let vm = |name: &str, guest_ns, throttled_ns, others: &[&str]| {
            let states = BTreeMap::from([
                (VcpuTimeState::GuestUser, guest_ns),
                (VcpuTimeState::Throttled, throttled_ns),
            ]);
            let same_quota = others.iter().map(|other| (*other).to_owned()).collect();
            let summary = VmSummary { vcpus: 1, states, same_quota, ..VmSummary::default() };
            (name.to_owned(), summary)
        };
        let web = vm("web", S, 4 * S, &["db", "idle"]);
        let db = vm("db", 5 * S, 5 * S, &["web", "idle"]);
        let vms = BTreeMap::from([web, db, vm("idle", S / 10, 0, &["web", "db"])]);
        let window = Summary { length_ns: 10 * S, cpus: 1, vms, ..Summary::default() };
        let actions = |vm| -> Vec<Action> {
            let [finding] = &explain(&window, vm)[..] else { panic!("one loss") };
            finding.advice.iter().map(|advice| advice.action.clone()).collect()
        };
        let limit = Action::Limit(Owner::Vm("db".to_owned()));
        assert_eq!(actions("web"), [limit, Action::RaiseQuota("web".to_owned())]);
        assert_eq!(actions("db"), [Action::RaiseQuota("db".to_owned())]);
    }
}
