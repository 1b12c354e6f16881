//! What peers say, checked: nothing of it is used before.

use std::time::Duration;

use api::layout::{Counters, HostLayout, Offer, Sample, StartedBy, VmLayout};
use layout::{MAX_VCPUS, MAX_VMS, Source};

use crate::config::is_policy;

/// Characters of a name, a policy or a reason.
const MAX_CHARS: usize = 200;
/// Samples of a VM.
const MAX_SAMPLES: usize = 3600;
/// Bytes of a VM.
const MAX_BYTES: u64 = 1 << 50;
/// A time that is longer is none.
const MAX_SECONDS: f64 = 1e10;
/// Nodes of a place, and notes.
const MAX_PARTS: usize = 64;

/// A VM that is to come.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CheckedOffer {
    pub(crate) vm: String,
    pub(crate) uuid: Option<String>,
    pub(crate) vcpus: usize,
    pub(crate) memory: u64,
    pub(crate) ran_s: f64,
    /// The policy that it names, if there is such a one.
    pub(crate) policy: Option<String>,
    pub(crate) started_by: StartedBy,
}

/// Checks what a source says of a VM.
pub(crate) fn check_offer(offer: &Offer) -> Result<CheckedOffer, String> {
    let Offer { vm, uuid, vcpus, memory, ran_s, policy, started_by } = offer;
    if vm.is_empty() || MAX_CHARS < vm.chars().count() || vm.chars().any(char::is_control) {
        return Err("the VM's name is invalid".to_owned());
    }
    let vcpus = usize::try_from(*vcpus).unwrap_or(usize::MAX);
    if !(1..=MAX_VCPUS).contains(&vcpus) {
        return Err(format!("it has {vcpus} vCPUs: there must be 1 to {MAX_VCPUS}"));
    }
    if !(1..=MAX_BYTES).contains(memory) {
        return Err(format!("it has {memory} bytes of memory"));
    }
    Ok(CheckedOffer {
        vm: vm.clone(),
        uuid: uuid.clone(),
        vcpus,
        memory: *memory,
        ran_s: if is_time(*ran_s) { *ran_s } else { 0.0 },
        policy: policy.clone().filter(|policy| is_policy(policy)),
        started_by: *started_by,
    })
}

/// What was counted of a VM, or why it can't be used.
pub(crate) fn check_counters(
    counters: &Counters,
    oldest: Duration,
) -> Result<(Source, Vec<layout::Sample>), String> {
    let Counters { source, age_s, samples } = counters;
    let source = source_named(source);
    if source == Source::None || samples.is_empty() {
        return Err("nothing counted how it uses memory".to_owned());
    }
    if !is_time(*age_s) {
        return Err("counters of no time".to_owned());
    }
    if oldest.as_secs_f64() < *age_s {
        return Err(format!("counters are {age_s:.0} s old"));
    }
    if MAX_SAMPLES < samples.len() {
        return Err(format!("{} samples: at most {MAX_SAMPLES} are allowed", samples.len()));
    }
    let samples: Vec<layout::Sample> = samples.iter().map(from_wire).collect();
    if samples.iter().any(layout::Sample::is_bad) {
        return Err("counters that are no numbers".to_owned());
    }
    Ok((source, samples))
}

fn is_time(seconds: f64) -> bool {
    (0.0..=MAX_SECONDS).contains(&seconds)
}

/// What a destination says of its VMs, cut to what can be shown.
pub(crate) fn check_layout(layout: HostLayout) -> HostLayout {
    let finite = |value: f64| if value.is_finite() { value } else { 0.0 };
    let vm = |vm: VmLayout| VmLayout {
        name: cut(vm.name),
        before: place(vm.before),
        planned: vm.planned.map(place),
        now: vm.now.map(place),
        speed_before: finite(vm.speed_before),
        speed_planned: finite(vm.speed_planned),
        ..vm
    };
    HostLayout {
        policy: layout.policy.map(cut),
        outcome: cut(layout.outcome),
        gain: layout.gain.filter(|gain| gain.is_finite()),
        vms: layout.vms.into_iter().take(MAX_VMS).map(vm).collect(),
        notes: layout.notes.into_iter().take(MAX_PARTS).map(cut).collect(),
        ..layout
    }
}

fn place(mut place: api::layout::NodePlacement) -> api::layout::NodePlacement {
    place.vcpus.truncate(MAX_PARTS);
    place.memory.truncate(MAX_PARTS);
    place.remote = place.remote.clamp(0.0, 1.0);
    if place.remote.is_nan() {
        place.remote = 0.0;
    }
    place
}

/// No longer than it can be shown.
pub(crate) fn cut(text: String) -> String {
    text.chars().take(MAX_CHARS).collect()
}

/// As `Counters::source` has it.
pub(crate) fn source_name(source: Source) -> &'static str {
    match source {
        Source::Perf => "perf",
        Source::Resctrl => "resctrl",
        Source::Damon => "damon",
        Source::Recorded => "recorded",
        Source::None => "none",
    }
}

/// From `source_name`.
pub(crate) fn source_named(name: &str) -> Source {
    let all = [Source::Perf, Source::Resctrl, Source::Damon, Source::Recorded];
    all.into_iter().find(|source| source_name(*source) == name).unwrap_or_default()
}

pub(crate) fn to_wire(sample: &layout::Sample) -> Sample {
    let layout::Sample { seconds, misses, instructions, remote } = *sample;
    Sample { seconds, misses, instructions, remote }
}

fn from_wire(sample: &Sample) -> layout::Sample {
    let Sample { seconds, misses, instructions, remote } = *sample;
    layout::Sample { seconds, misses, instructions, remote }
}

#[cfg(test)]
mod test {
    use super::*;

    fn offer() -> Offer {
        Offer {
            vm: "web".to_owned(),
            uuid: None,
            vcpus: 2,
            memory: 1 << 30,
            ran_s: 60.0,
            policy: Some("dino".to_owned()),
            started_by: StartedBy::Daemon,
        }
    }

    #[test]
    fn offers_are_checked() {
        let requested = check_offer(&offer()).unwrap();
        assert_eq!((requested.vcpus, requested.policy.as_deref()), (2, Some("dino")));
        let check = |change: &dyn Fn(&mut Offer), expected: Result<(), &str>| {
            let mut changed = offer();
            change(&mut changed);
            match (check_offer(&changed), expected) {
                (Ok(_), Ok(())) => {}
                (Err(error), Err(part)) => assert!(error.contains(part), "{error}"),
                (got, _) => panic!("{got:?}"),
            }
        };
        check(&|offer| offer.vm = "x".repeat(201), Err("name"));
        check(&|offer| offer.vm = "a\u{1b}".to_owned(), Err("name"));
        check(&|offer| offer.vcpus = 0, Err("0 vCPUs"));
        check(&|offer| offer.memory = u64::MAX, Err("bytes of memory"));
        check(&|offer| offer.ran_s = f64::NAN, Ok(()));
        check(&|offer| offer.policy = Some("best".to_owned()), Ok(()));
    }

    #[test]
    fn counters_are_checked() {
        let sample = Sample { seconds: 1.0, misses: 1e7, instructions: Some(1e9), remote: None };
        let check =
            |source: &str, age_s: f64, change: &dyn Fn(&mut Sample), expected: Result<(), &str>| {
                let mut changed = sample;
                change(&mut changed);
                let counters =
                    Counters { source: source.to_owned(), age_s, samples: vec![sample, changed] };
                match (check_counters(&counters, Duration::from_secs(60)), expected) {
                    (Ok(_), Ok(())) => {}
                    (Err(error), Err(part)) => assert!(error.contains(part), "{error}"),
                    (got, _) => panic!("{got:?}"),
                }
            };
        let same = |_: &mut Sample| {};
        check("perf", 60.0, &same, Ok(()));
        check("perf", 61.0, &same, Err("counters are 61 s old"));
        check("perf", f64::NAN, &same, Err("no time"));
        check("perf", -1.0, &same, Err("no time"));
        check("none", 0.0, &same, Err("nothing counted"));
        check("witchcraft", 0.0, &same, Err("nothing counted"));
        check("perf", 0.0, &|sample| sample.misses = -1.0, Err("no numbers"));
        check("perf", 0.0, &|sample| sample.misses = 1e300, Err("no numbers"));
        check("perf", 0.0, &|sample| sample.seconds = 0.0, Err("no numbers"));
        check("perf", 0.0, &|sample| sample.instructions = Some(f64::INFINITY), Err("no numbers"));
        check("perf", 0.0, &|sample| sample.remote = Some(1.1), Err("no numbers"));
        let many = Counters { source: "perf".to_owned(), age_s: 0.0, samples: vec![sample; 3601] };
        assert!(check_counters(&many, Duration::from_secs(60)).is_err());
    }

    #[test]
    fn layouts_are_cut() {
        let long =
            VmLayout { name: "x".repeat(1000), speed_before: f64::NAN, ..VmLayout::default() };
        let layout = HostLayout {
            gain: Some(f64::INFINITY),
            vms: vec![long; 2000],
            notes: vec!["y".repeat(1000); 100],
            ..HostLayout::default()
        };
        let cut = check_layout(layout);
        assert_eq!(
            (cut.vms.len(), cut.vms[0].name.len(), cut.vms[0].speed_before),
            (1024, 200, 0.0)
        );
        assert_eq!((cut.notes.len(), cut.notes[0].len(), cut.gain), (64, 200, None));
    }
}
