//! Verdicts in words.

use serde_json::{Value, json};

use crate::plan::Plan;
use crate::remedy::AS_IT_IS;
use crate::run::CpuUse;
use crate::verdict::{Cause, Failure, Verdict};

/// A part of the CPUs' time that is worth a word.
const NOTEWORTHY: f64 = 0.02;

/// A paragraph for each treatment.
pub(super) fn verdicts(plan: &Plan, verdicts: &[Verdict]) -> Vec<String> {
    verdicts.iter().map(|verdict| paragraph(plan, verdict)).collect()
}

fn paragraph(plan: &Plan, verdict: &Verdict) -> String {
    let who = match verdict.treatment.as_str() {
        AS_IT_IS => "This host".to_owned(),
        remedy => format!("With \"{remedy}\" it"),
    };
    let takes = match (verdict.takes, &verdict.fails) {
        (Some(n), None) => {
            format!("{who} takes at least {n} of these VMs: the ladder ended there.")
        }
        (Some(n), Some(_)) => format!("{who} takes {n} of these VMs."),
        (None, _) => format!("{who} takes none of these VMs at the service level."),
    };
    match &verdict.fails {
        None => takes,
        Some(failure) => format!("{takes} {}", why(plan, failure)),
    }
}

fn why(plan: &Plan, failure: &Failure) -> String {
    let service = &plan.service;
    let (good, all) = failure.agreeing;
    let longest = match failure.decisive_ms {
        _ if failure.requests == 0 => "no request was sent".to_owned(),
        _ if service.errors < failure.failed_part => format!(
            "{:.1} % of requests fail, and {} % may",
            100.0 * failure.failed_part,
            100.0 * service.errors
        ),
        // The middle measurement decides: its figure is beyond the limit if it is what fails.
        Some(ms) if service.within_ms < ms => {
            let of = if 1 < all { " in the middle measurement" } else { "" };
            format!(
                "{} % of requests take up to {ms:.0} ms{of}, not {} ms",
                service.percentile, service.within_ms
            )
        }
        Some(_) | None => {
            format!("too many requests fail, or take more than {} ms", service.within_ms)
        }
    };
    let sure = match (all - good, all) {
        (1, 1) => "One measurement says so.".to_owned(),
        (bad, all) if bad == all => format!("All {all} measurements agree."),
        (bad, all) => format!("{bad} of {all} measurements agree."),
    };
    format!("With {}, {longest}. {} {sure}", failure.vms, cause(&failure.cause))
}

fn cause(cause: &Cause) -> String {
    let percent = |part: f64| format!("{:.0} %", 100.0 * part);
    let mut sentences = Vec::new();
    if let Some(busy) = cause.busy {
        let uses = cause.uses.iter().filter(|(_, part)| NOTEWORTHY <= *part);
        let uses: Vec<String> = uses
            .map(|(which, part)| format!("{} {}", use_in_words(*which), percent(*part)))
            .collect();
        sentences.push(format!("The CPUs are {} busy: {}.", percent(busy), uses.join(", ")));
    }
    if let Some((reason, part)) = cause.idle_exit.as_ref().filter(|(_, part)| NOTEWORTHY <= *part) {
        sentences
            .push(format!("VM exits of idle VMs for {reason} take {} of them.", percent(*part)));
    }
    if let Some(waited) = cause.waited {
        let thief = cause.thief.as_ref().map_or_else(String::new, |(name, part)| {
            format!(", {} of it because of {name}", percent(*part))
        });
        sentences.push(format!(
            "Loaded VMs wait for a CPU for {} of their time{thief}.",
            percent(waited)
        ));
    }
    if let Some(in_vmm) = cause.in_vmm.filter(|part| NOTEWORTHY <= *part) {
        sentences.push(format!("KVM and QEMU take {} of it.", percent(in_vmm)));
    }
    sentences.join(" ")
}

/// What CPUs do, in words.
pub(crate) fn use_in_words(which: CpuUse) -> &'static str {
    match which {
        CpuUse::LoadedGuest => "loaded guests",
        CpuUse::LoadedVmm => "KVM and QEMU for them",
        CpuUse::IdleGuest => "idle guests",
        CpuUse::IdleVmm => "KVM and QEMU for idle guests",
        CpuUse::Generator => "the load generator",
        CpuUse::Recorder => "vmscope",
        CpuUse::Host => "other host programs",
        CpuUse::Idle => "nothing",
        CpuUse::Unknown => "not known",
    }
}

/// A verdict for programs.
pub(super) fn json(verdict: &Verdict) -> Value {
    let failure = verdict.fails.as_ref().map(|failure| {
        let cause = &failure.cause;
        let uses = cause.uses.iter().map(|(which, part)| (which.key().to_owned(), json!(part)));
        let named = |named: &Option<(String, f64)>| {
            named.as_ref().map(|(name, part)| json!({ "name": name, "part": part }))
        };
        json!({
            "vms": failure.vms,
            "percentile_ms": failure.percentile_ms.map(|interval| interval.mean),
            "percentile_low_ms": failure.percentile_ms.and_then(|interval| interval.low),
            "percentile_high_ms": failure.percentile_ms.and_then(|interval| interval.high),
            "failed_part": failure.failed_part,
            "runs": failure.agreeing.1,
            "runs_that_kept_to_it": failure.agreeing.0,
            "busy_part": cause.busy,
            "uses": uses.collect::<serde_json::Map<_, _>>(),
            "idle_exit": named(&cause.idle_exit),
            "waited_part": cause.waited,
            "thief": named(&cause.thief),
            "vmm_part": cause.in_vmm,
        })
    });
    json!({ "treatment": verdict.treatment, "takes": verdict.takes, "fails": failure })
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::run::{Class, Cpu, Exit, Load, Run, RunKey, Vms};
    use crate::turnaround::Turnarounds;

    fn run(vms: u32, ms: u64) -> Run {
        let mut turnarounds = Turnarounds::new();
        (0..100).for_each(|_| turnarounds.add(ms * 1_000_000));
        let key = RunKey { vms, treatment: AS_IT_IS.to_owned(), repetition: 0 };
        let load = Load { length_ns: 1, turnarounds, late_p99_ns: 0, cpu_ns: 0 };
        let mut run = Run::new(key, 1, load);
        run.window_ns = 100;
        let times = [
            (CpuUse::LoadedGuest, 24),
            (CpuUse::IdleVmm, 48),
            (CpuUse::Idle, 8),
            (CpuUse::Unknown, 20),
        ];
        run.cpus.push(Cpu { cpu: 0, times: times.into() });
        let named = |parts: &[(&str, u64)]| {
            parts.iter().map(|(name, ns)| ((*name).to_owned(), *ns)).collect()
        };
        let loaded = Vms {
            accounts: named(&[("guest", 30), ("halt", 10), ("steal_outside", 60)]),
            thieves: named(&[("idle VMs", 45), ("other processes", 15)]),
            ..Vms::default()
        };
        let exits = [("msr".to_owned(), Exit { ns: 31, n: None })].into();
        run.vms.insert(Class::Loaded, loaded);
        run.vms.insert(Class::Idle, Vms { exits, ..Vms::default() });
        run
    }

    #[test]
    fn a_verdict_has_its_cause() {
        let text = "name = \"x\"\n[load]\nrate = 10\n[ladder]\nvms = [1, 2]\n\
                    [service]\nwithin_ms = 100\npercentile = 90\n";
        let plan = Plan::parse(text).unwrap();
        let reported = |runs: &[Run]| verdicts(&plan, &crate::verdict::verdicts(&plan, runs));
        assert_eq!(
            reported(&[run(1, 50), run(2, 500)]),
            [
                "This host takes 1 of these VMs. With 2, 90 % of requests take up to 500 ms, not 100 ms. \
              The CPUs are 90 % busy: KVM and QEMU for idle guests 60 %, loaded guests 30 %. \
              VM exits of idle VMs for msr take 31 % of them. Loaded VMs wait for a CPU for \
              60 % of their time, 75 % of it because of idle VMs. One measurement says so."
            ]
        );
        // The middle measurement decides, whatever the mean is.
        let repeated = [10, 110, 120].into_iter().zip(0..).map(|(ms, repetition)| {
            let mut run = run(1, ms);
            run.key.repetition = repetition;
            run
        });
        let [text] = &reported(&repeated.collect::<Vec<_>>())[..] else { panic!() };
        let middle = "This host takes none of these VMs at the service level. With 1, 90 % of requests take up \
                      to 110 ms in the middle measurement, not 100 ms.";
        assert!(text.starts_with(middle), "{text}");
        assert!(text.ends_with("2 of 3 measurements agree."), "{text}");
        let mut failing = run(2, 50);
        (0..5).for_each(|_| failing.load.turnarounds.add_failed("timeout"));
        let [text] = &reported(&[run(1, 50), failing])[..] else { panic!() };
        assert!(text.contains("With 2, 4.8 % of requests fail, and 1 % may."), "{text}");
        let mut silent = run(2, 50);
        silent.load.turnarounds = Turnarounds::new();
        let [text] = &reported(&[run(1, 50), silent])[..] else { panic!() };
        assert!(text.contains("With 2, no request was sent."), "{text}");
        assert_eq!(
            reported(&[run(1, 50), run(2, 60)]),
            ["This host takes at least 2 of these VMs: the ladder ended there."]
        );
    }
}
