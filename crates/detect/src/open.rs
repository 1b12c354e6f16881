//! Findings that are open, and which symptoms belong to one.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::cause::advice;
use crate::{Cause, Code, Finding, FindingId, MAX_SYMPTOMS, Measure, Owner, SeriesName, Symptom};

/// Series of a finding that are watched for its end.
const MAX_WATCHED: usize = 4096;
/// Time of a VM that is so many times as much as what it lost by something else.
const OUTWEIGHS: f64 = 3.0;

/// An open finding.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Open {
    pub(crate) finding: Finding,
    pub(crate) root: Root,
    /// Series with a change that is not over.
    pub(crate) lasting: BTreeSet<SeriesName>,
    /// There is something to tell.
    pub(crate) is_changed: bool,
}

/// What findings have in common if they are one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Root {
    Thief(String, Owner),
    Overcommitted(String),
    Kernel(String),
    Code(Code),
    Other,
}

impl Open {
    pub(crate) fn new(symptom: Symptom, cause: Cause, found_s: u32) -> Self {
        let id = FindingId(hash(&symptom.series, found_s));
        let lasting = BTreeSet::from([symptom.series.clone()]);
        let symptoms = vec![symptom];
        let advice = advice(&cause, &symptoms);
        let finding = Finding { id, found_s, cause, symptoms, n_more: 0, advice };
        Self { finding, root: Root::Other, lasting, is_changed: true }
    }

    pub(crate) fn symptom(&mut self, series: &SeriesName) -> Option<&mut Symptom> {
        self.finding.symptoms.iter_mut().find(|symptom| symptom.series == *series)
    }

    pub(crate) fn news(&mut self) {
        self.finding.advice = advice(&self.finding.cause, &self.finding.symptoms);
        self.is_changed = true;
    }

    pub(crate) fn is_joined_by(&self, symptom: &Symptom, root: &Root, near_s: u32) -> bool {
        let first = &self.finding.symptoms[0];
        let near = |other: &Symptom| other.began_s.abs_diff(symptom.began_s) <= near_s;
        let SeriesName { host, vm, measure } = &symptom.series;
        let same_root = match root {
            Root::Other => false,
            Root::Code(_) => self.root == *root && near(first),
            root => self.root == *root,
        };
        let of_host = |name: &String| Some(name) == host.as_ref();
        let of_vm = |owner: &Owner| matches!(owner, Owner::Vm(name) if Some(name) == vm.as_ref());
        let in_vm = |owner: &Owner| {
            let is_its = |s: &&Symptom| s.series.vm.as_deref() == Some(owner.name());
            self.finding.symptoms.iter().any(|s| s.series.host == *host && is_its(&s))
        };
        let waits = matches!(measure, Measure::StealOutside | Measure::Useful | Measure::Demand);
        let is_related = match (&self.root, root) {
            (Root::Thief(on, owner), _) if of_host(on) && of_vm(owner) => true,
            (_, Root::Thief(on, owner)) if of_host(on) && in_vm(owner) => true,
            (Root::Overcommitted(on), _) if of_host(on) && waits => true,
            (Root::Thief(on, _), Root::Overcommitted(_)) => of_host(on),
            // What a deployment to many VMs brings about in one of them is another matter.
            (Root::Code(_), _) if self.is_of_many() && !measure.is_code() => false,
            _ => self.finding.symptoms.iter().any(|other| {
                vm.is_some() && other.series.vm == *vm && other.series.host == *host && near(other)
            }),
        };
        same_root || is_related && near(first)
    }

    /// Whether it has symptoms of several VMs, or of a pool.
    fn is_of_many(&self) -> bool {
        let first = &self.finding.symptoms[0].series;
        let is_other = |s: &Symptom| (&s.series.host, &s.series.vm) != (&first.host, &first.vm);
        first.vm.is_none() || self.finding.symptoms.iter().any(is_other)
    }

    /// The cause is that of the symptom that says most.
    pub(crate) fn join(&mut self, symptom: Symptom, cause: Cause, root: Root) {
        let said = (&self.finding.symptoms[0], &self.finding.cause);
        let says_more = says_more((&symptom, &cause), said);
        if self.lasting.len() < MAX_WATCHED {
            self.lasting.insert(symptom.series.clone());
        }
        let symptoms = &mut self.finding.symptoms;
        symptoms.retain(|other| other.series != symptom.series);
        if says_more {
            symptoms.insert(0, symptom);
            (self.finding.cause, self.root) = (cause, root);
        } else {
            let at = symptoms[1..].partition_point(|s| s.series.measure <= symptom.series.measure);
            symptoms.insert(symptoms.len().min(1 + at), symptom);
        }
        if MAX_SYMPTOMS < symptoms.len() {
            symptoms.pop();
            self.finding.n_more += 1;
        }
        self.news();
    }
}

/// Whether a symptom with its cause says more than another. That a VM takes time from itself, or that the thief is
/// unknown, says least. Else the measure decides, unless one of them is far less time of the same VM.
fn says_more(new: (&Symptom, &Cause), said: (&Symptom, &Cause)) -> bool {
    let ((new, by), (said, said_by)) = (new, said);
    match (says_little(new, by), says_little(said, said_by)) {
        (true, false) => return false,
        (false, true) => return true,
        _ => {}
    }
    let is_lock = |cause: &Cause| matches!(cause, Cause::Function { is_lock: true, .. });
    match (&new.series.measure, &said.series.measure) {
        (Measure::Function(_), Measure::Function(_)) => {
            (is_lock(said_by), said.cpus) < (is_lock(by), new.cpus)
        }
        (measure, other) => (outweighs(said, new), measure) < (outweighs(new, said), other),
    }
}

/// Whether it is of so much more time of a VM that what that VM lost beside it is no cause.
fn outweighs(symptom: &Symptom, lost: &Symptom) -> bool {
    let of_vm = |s: &Symptom| (s.series.host.clone(), s.series.vm.clone());
    let measure = &symptom.series.measure;
    lost.series.measure.is_loss()
        && (measure.is_loss() || matches!(measure, Measure::Function(_)))
        && of_vm(symptom) == of_vm(lost)
        && OUTWEIGHS * lost.cpus < symptom.cpus
}

fn says_little(symptom: &Symptom, cause: &Cause) -> bool {
    let is_own = |name: &String| Some(name) == symptom.series.vm.as_ref();
    match cause {
        Cause::Thief { owner, .. } => matches!(owner, Owner::Vm(name) if is_own(name)),
        cause => *cause == Cause::Unknown,
    }
}

impl Root {
    pub(crate) fn new(host: &str, cause: &Cause) -> Self {
        let host = host.to_owned();
        match cause {
            Cause::Thief { owner, .. } => Self::Thief(host, owner.clone()),
            Cause::Overcommitted { .. } => Self::Overcommitted(host),
            Cause::Kernel { .. } => Self::Kernel(host),
            Cause::Function { code, .. } => Self::Code(code.clone()),
            _ => Self::Other,
        }
    }
}

/// FNV-1a: the same on every machine and in every version.
fn hash(series: &SeriesName, found_s: u32) -> u64 {
    let text = format!("{series:?} {found_s}");
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, mix)
}

#[cfg(test)]
mod test {
    use super::*;

    fn symptom(vm: &str, measure: Measure, cpus: f64) -> Symptom {
        let series = SeriesName { host: Some("a".into()), vm: Some(vm.into()), measure };
        let at = (100, 100);
        let (before, after, score) = (0.0, 0.5, 10.0);
        let labels = Default::default();
        let is_over = false;
        Symptom {
            series,
            labels,
            began_s: 100,
            interval_s: at,
            before,
            after,
            score,
            cpus,
            is_over,
        }
    }

    #[test]
    fn a_little_lost_time_is_not_the_cause_beside_much() {
        let quota = Cause::Quota { wanted: 2.0, got: 1.9, others: Vec::new() };
        let thief = |owner: &str| Cause::Thief {
            owner: Owner::Vm(owner.into()),
            part: 1.0,
            functions: Vec::new(),
            is_new: false,
        };
        let code = Code { process: "db".into(), module: "db".into(), function: "f".into() };
        let grew = Cause::Function {
            code: code.clone(),
            is_lock: false,
            is_new: false,
            build: None,
            caller: None,
        };
        let throttled = |cpus| symptom("web", Measure::Throttled, cpus);
        let stolen = |cpus| symptom("web", Measure::StealOutside, cpus);
        let function = |vm| symptom(vm, Measure::Function(code.clone()), 0.4);
        let more = |new: (Symptom, &Cause), said: (Symptom, &Cause)| {
            let is_more = says_more((&new.0, new.1), (&said.0, said.1));
            assert_ne!(is_more, says_more((&said.0, said.1), (&new.0, new.1)));
            is_more
        };
        assert!(more((throttled(0.3), &quota), (stolen(0.7), &thief("b"))));
        assert!(!more((throttled(0.1), &quota), (stolen(0.7), &thief("b"))));
        assert!(more((stolen(0.2), &thief("b")), (function("web"), &grew)));
        assert!(!more((stolen(0.04), &thief("b")), (function("web"), &grew)));
        let waits = Cause::Function {
            code: code.clone(),
            is_lock: true,
            is_new: true,
            build: None,
            caller: None,
        };
        let small = |name: &str| {
            let code = Code { function: name.to_owned(), ..code.clone() };
            symptom("web", Measure::Function(code), 0.1)
        };
        assert!(more((function("web"), &grew), (small("a"), &grew)));
        assert!(more((small("z"), &waits), (function("web"), &grew)));
        // What the thief runs.
        assert!(more((stolen(0.04), &thief("b")), (function("b"), &grew)));
        assert!(!more((stolen(0.7), &thief("web")), (throttled(0.1), &quota)));
    }
}
