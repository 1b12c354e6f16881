//! From `detect`'s findings to those of the API, and back.

use detect::{
    Action, Advice, BadFindingId, Cause, Code, Finding, Measure, Owner, SeriesName, Symptom,
};

use super::finding::{
    FindingAction, FindingAdvice, FindingBuild, FindingCause, FindingChange, FindingCode,
    FindingCounter, FindingDemand, FindingEntry, FindingFunction, FindingMeasure, FindingOwner,
    TimeRange,
};

/// Seconds that are worth comparing.
const COMPARED_S: u64 = 3600;

impl TimeRange {
    /// Before and after a finding's change; `over_unix_s` is its end, if it is over.
    #[must_use]
    pub fn around(finding: &Finding, over_unix_s: Option<u64>) -> (Self, Self) {
        let first =
            finding.symptoms.first().map_or((finding.found_s, finding.found_s), |s| s.interval_s);
        let begins = finding.symptoms.iter().map(|symptom| symptom.interval_s.0);
        let begin = u64::from(begins.min().unwrap_or(finding.found_s));
        let latest = u64::from(finding.found_s).saturating_add(COMPARED_S);
        let from = u64::from(first.1);
        let to = over_unix_s.unwrap_or(latest).min(latest).max(from);
        let before = Self { from_unix_s: begin.saturating_sub(COMPARED_S), to_unix_s: begin };
        (before, Self { from_unix_s: from, to_unix_s: to })
    }
}

impl FindingChange {
    /// A symptom; `what` is its measure in words.
    #[must_use]
    pub fn new(symptom: &Symptom, what: String) -> Self {
        let SeriesName { host, vm, measure } = symptom.series.clone();
        let (from_s, to_s) = symptom.interval_s;
        Self {
            host,
            vm,
            labels: symptom.labels.clone(),
            measure: measure.into(),
            what,
            since_unix_s: symptom.began_s.into(),
            onset: TimeRange { from_unix_s: from_s.into(), to_unix_s: to_s.into() },
            before: symptom.before,
            after: symptom.after,
            score: symptom.score,
            cpus: symptom.cpus,
            is_over: symptom.is_over,
        }
    }
}

impl FindingAdvice {
    /// Advice; `text` is the same in words.
    #[must_use]
    pub fn new(advice: &Advice, text: String) -> Self {
        Self { action: advice.action.clone().into(), text, cpus: advice.cpus }
    }
}

impl TryFrom<FindingEntry> for Finding {
    type Error = BadFindingId;

    fn try_from(entry: FindingEntry) -> Result<Self, BadFindingId> {
        let action =
            |advice: FindingAdvice| Advice { action: advice.action.into(), cpus: advice.cpus };
        Ok(Self {
            id: entry.id.parse()?,
            found_s: seconds(entry.found_unix_s),
            cause: entry.cause.into(),
            symptoms: entry.changes.into_iter().map(Symptom::from).collect(),
            n_more: usize::try_from(entry.more_changes).unwrap_or(usize::MAX),
            advice: entry.advice.into_iter().map(action).collect(),
        })
    }
}

impl From<FindingChange> for Symptom {
    fn from(change: FindingChange) -> Self {
        let FindingChange { host, vm, measure, labels, .. } = change;
        Self {
            labels,
            series: SeriesName { host, vm, measure: measure.into() },
            began_s: seconds(change.since_unix_s),
            interval_s: (seconds(change.onset.from_unix_s), seconds(change.onset.to_unix_s)),
            before: change.before,
            after: change.after,
            score: change.score,
            cpus: change.cpus,
            is_over: change.is_over,
        }
    }
}

fn seconds(unix_s: u64) -> u32 {
    u32::try_from(unix_s).unwrap_or(u32::MAX)
}

/// Types with the same names in both crates: from one to the other, and back.
macro_rules! both_ways {
    ($ours:ident = $theirs:ident { $($pattern:ident $({ $($field:ident),* })?),* $(,)? }) => {
        impl From<$theirs> for $ours {
            fn from(theirs: $theirs) -> Self {
                match theirs {
                    $($theirs::$pattern $(($($field),*))? => Self::$pattern $({ $($field: $field.into()),* })?,)*
                }
            }
        }
        impl From<$ours> for $theirs {
            fn from(ours: $ours) -> Self {
                match ours {
                    $($ours::$pattern $({ $($field),* })? => Self::$pattern $(($($field.into()),*))?,)*
                }
            }
        }
    };
}

both_ways!(FindingMeasure = Measure {
    SamplesMissing, Windows, Demand, Throttled, StealOutside, Exits { reason }, StealVmm, HaltPolling,
    Function { code }, Process { process }, Useful,
});

both_ways!(FindingAction = Action {
    Pin { vm }, Move { vm }, RaiseWeight { vm }, Limit { owner }, LowerHaltPoll, RaiseQuota { vm },
    Fix { code }, AvoidExits { reason }, CheckAgent { host },
});

impl From<Owner> for FindingOwner {
    fn from(owner: Owner) -> Self {
        match owner {
            Owner::Vm(name) => Self::Vm(name),
            Owner::Process(name) => Self::Process(name),
            Owner::KernelThread(name) => Self::KernelThread(name),
            Owner::Idle => Self::Idle,
            Owner::Unknown => Self::Unknown,
        }
    }
}

impl From<FindingOwner> for Owner {
    fn from(owner: FindingOwner) -> Self {
        match owner {
            FindingOwner::Vm(name) => Self::Vm(name),
            FindingOwner::Process(name) => Self::Process(name),
            FindingOwner::KernelThread(name) => Self::KernelThread(name),
            FindingOwner::Idle => Self::Idle,
            FindingOwner::Unknown => Self::Unknown,
        }
    }
}

impl From<Code> for FindingCode {
    fn from(Code { process, module, function }: Code) -> Self {
        Self { process, module, function }
    }
}

impl From<FindingCode> for Code {
    fn from(FindingCode { process, module, function }: FindingCode) -> Self {
        Self { process, module, function }
    }
}

impl From<Cause> for FindingCause {
    fn from(cause: Cause) -> Self {
        match cause {
            Cause::Thief { owner, part, functions: hot, is_new } => {
                Self::Thief { owner: owner.into(), part, functions: functions(hot), is_new }
            }
            Cause::Overcommitted { wanted, cpus, owners, arrived } => {
                let demand =
                    |(owner, cpus): (Owner, f64)| FindingDemand { owner: owner.into(), cpus };
                let owners = owners.into_iter().map(demand).collect();
                Self::Overcommitted { wanted_cpus: wanted, cpus, owners, arrived_vm: arrived }
            }
            // Result tables don't tell of others.
            Cause::Quota { wanted, got, others: _ } => {
                Self::Quota { wanted_cpus: wanted, got_cpus: got }
            }
            Cause::Exits { reason, per_s, functions: exiting } => {
                Self::Exits { reason, per_s, functions: functions(exiting) }
            }
            Cause::HaltPolling => Self::HaltPolling,
            Cause::Function { code, is_lock, is_new, build, caller } => {
                let build = build.map(|(before, after)| FindingBuild { before, after });
                Self::Function { code: code.into(), is_lock, is_new, build, caller }
            }
            Cause::Process { process, is_new } => Self::Process { process, is_new },
            Cause::Kernel { before, after } => Self::Kernel { before, after },
            Cause::Collection(counters) => {
                let counter = |(what, count)| FindingCounter { what, count };
                Self::Collection { counters: counters.into_iter().map(counter).collect() }
            }
            Cause::Silent => Self::Silent,
            Cause::Unknown => Self::Unknown,
        }
    }
}

impl From<FindingCause> for Cause {
    fn from(cause: FindingCause) -> Self {
        let codes = |functions: Vec<FindingFunction>| {
            functions.into_iter().map(|f| (f.code.into(), f.cpus)).collect()
        };
        match cause {
            FindingCause::Thief { owner, part, functions, is_new } => {
                Self::Thief { owner: owner.into(), part, functions: codes(functions), is_new }
            }
            FindingCause::Overcommitted { wanted_cpus, cpus, owners, arrived_vm } => {
                let owners = owners.into_iter().map(|d| (d.owner.into(), d.cpus)).collect();
                Self::Overcommitted { wanted: wanted_cpus, cpus, owners, arrived: arrived_vm }
            }
            FindingCause::Quota { wanted_cpus, got_cpus } => {
                Self::Quota { wanted: wanted_cpus, got: got_cpus, others: Vec::new() }
            }
            FindingCause::Exits { reason, per_s, functions } => {
                Self::Exits { reason, per_s, functions: codes(functions) }
            }
            FindingCause::HaltPolling => Self::HaltPolling,
            FindingCause::Function { code, is_lock, is_new, build, caller } => {
                let build = build.map(|build| (build.before, build.after));
                Self::Function { code: code.into(), is_lock, is_new, build, caller }
            }
            FindingCause::Process { process, is_new } => Self::Process { process, is_new },
            FindingCause::Kernel { before, after } => Self::Kernel { before, after },
            FindingCause::Collection { counters } => {
                Self::Collection(counters.into_iter().map(|c| (c.what, c.count)).collect())
            }
            FindingCause::Silent => Self::Silent,
            FindingCause::Unknown => Self::Unknown,
        }
    }
}

fn functions(codes: Vec<(Code, f64)>) -> Vec<FindingFunction> {
    codes.into_iter().map(|(code, cpus)| FindingFunction { code: code.into(), cpus }).collect()
}

#[cfg(test)]
mod test {
    use detect::FindingId;

    use super::*;

    #[test]
    fn what_a_server_sends_becomes_the_same_finding_again() {
        let code = Code { process: "web".into(), module: String::new(), function: "<b>".into() };
        let named = || vec![(code.clone(), 0.5)];
        let causes = [
            Cause::Thief {
                owner: Owner::KernelThread("ksoftirqd".into()),
                part: 0.9,
                functions: named(),
                is_new: true,
            },
            Cause::Overcommitted {
                wanted: 9.5,
                cpus: 8,
                owners: vec![(Owner::Unknown, 1.0)],
                arrived: Some("db".into()),
            },
            Cause::Quota { wanted: 2.0, got: 1.0, others: Vec::new() },
            Cause::Exits { reason: "io".into(), per_s: 4.0, functions: named() },
            Cause::HaltPolling,
            Cause::Function {
                code: code.clone(),
                is_lock: false,
                is_new: false,
                build: Some(("1111".into(), "2222".into())),
                caller: Some("main".into()),
            },
            Cause::Process { process: "web".into(), is_new: false },
            Cause::Kernel { before: "6.1".into(), after: "6.12".into() },
            Cause::Collection(vec![("ring_full".into(), 7)]),
            Cause::Silent,
            Cause::Unknown,
        ];
        let actions =
            [Action::Fix(code.clone()), Action::Limit(Owner::Idle), Action::LowerHaltPoll];
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
        let measures =
            [Measure::Exits("io".into()), Measure::Function(code.clone()), Measure::Useful];
        for cause in causes {
            let finding = Finding {
                id: FindingId(0xab),
                found_s: 10_240,
                cause,
                symptoms: measures.clone().map(symptom).into(),
                n_more: 3,
                advice: actions.clone().map(|action| Advice { action, cpus: 0.5 }).into(),
            };
            let (before, after) = TimeRange::around(&finding, Some(11_000));
            assert_eq!((before.from_unix_s, before.to_unix_s), (6_400, 10_000));
            assert_eq!((after.from_unix_s, after.to_unix_s), (10_120, 11_000));
            let entry = FindingEntry {
                id: finding.id.to_string(),
                state: crate::http::FindingState::Over,
                found_unix_s: finding.found_s.into(),
                over_unix_s: Some(11_000),
                acknowledged: None,
                silenced: None,
                refused: Vec::new(),
                places: vec!["kvm1".into()],
                summary: String::new(),
                text: String::new(),
                cause: finding.cause.clone().into(),
                changes: finding
                    .symptoms
                    .iter()
                    .map(|s| FindingChange::new(s, String::new()))
                    .collect(),
                more_changes: finding.n_more as u64,
                advice: finding
                    .advice
                    .iter()
                    .map(|a| FindingAdvice::new(a, String::new()))
                    .collect(),
                before,
                after,
            };
            let sent = serde_json::to_string(&entry).unwrap();
            let got: FindingEntry = serde_json::from_str(&sent).unwrap();
            assert_eq!(got, entry, "{sent}");
            for bad in ["", "ab", "00000000000000AB", "+0000000000000ab", "no finding's id."] {
                let named = FindingEntry { id: bad.to_owned(), ..got.clone() };
                assert_eq!(Finding::try_from(named), Err(BadFindingId), "{bad}");
            }
            assert_eq!(Finding::try_from(got), Ok(finding), "{sent}");
        }
    }
}
