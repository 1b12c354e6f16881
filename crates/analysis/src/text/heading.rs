//! What was recorded, how completely, and what was asked of it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use model::{Guest, Header, Note, Trigger};

use super::{clean, n_samples, percent};
use crate::View;
use crate::counters::{Counter, DROPPED, MISSED};
use crate::profile::Profile;

/// VMs, or CPUs, named in a line; the rest is counted.
const LISTED: usize = 8;

pub(super) fn heading(out: &mut String, profile: &Profile) {
    let header = &profile.header;
    line(out, "Host", &format!("{} (Linux {})", header.hostname, header.kernel));
    let recorded = format!("{} (vmscope {})", every(header), header.vmscope_version);
    line(out, "Recorded", &recorded);
    line(out, "VMs", &vms(profile));
    line(out, "View", &view(profile));
    line(out, "Dropped", &dropped(header));
    line(out, "Missed", &missed(header));
    if let Some(counters) = other_counters(profile) {
        line(out, "Counted", &counters);
    }
    if !header.complete {
        line(out, "Incomplete", "the recording's writer did not finish; the end is missing");
    }
    for Note { subject, text } in &profile.notes {
        line(out, "Note", &format!("{subject}: {text}"));
    }
}

/// `20.000 s, cpu-clock every 1 ms on 2 CPUs`.
#[must_use]
pub fn every(header: &Header) -> String {
    let trigger = match header.trigger {
        Trigger::CpuClock => "cpu-clock",
        Trigger::Cycles => "cycles",
    };
    let (all, period) = (seconds(header.end.since(header.start)), duration(header.period_ns));
    format!("{all} s, {trigger} every {period} on {} CPUs", header.cpus.len())
}

/// The line of totals above the table.
pub(super) fn totals(profile: &Profile) -> String {
    let shares = &profile.shares;
    let mut parts = vec![("OS", shares.os), ("USER", shares.user)];
    match profile.query.selection.view() {
        View::Unified | View::Host => parts.extend([("VM", shares.vm), ("IDLE", shares.idle)]),
        View::Native => parts.push(("IDLE", shares.idle)),
        // Nobody knows what was not seen of one process.
        View::Guest if profile.query.selection.process().is_some() => {}
        View::Guest => parts.extend([("IDLE(halt)", shares.halt), ("steal", shares.steal())]),
    }
    let others = [
        ("HALT-POLLING", shares.halt_polling),
        ("THROTTLED", shares.throttled),
        ("NOT-SAMPLED", shares.not_sampled),
        ("UNKNOWN", shares.unknown),
    ];
    parts.extend(others.into_iter().filter(|(_, samples)| *samples > 0));
    let names: Vec<&str> = parts.iter().map(|(name, _)| *name).collect();
    let values: Vec<String> =
        parts.iter().map(|(_, n)| format!("{}%", percent(*n, profile.total))).collect();
    format!("Total samples:{} {} = {}", profile.total, names.join(":"), values.join(":"))
}

fn line(out: &mut String, title: &str, text: &str) {
    let _ = writeln!(out, "{title}: {}", clean(text));
}

fn vms(profile: &Profile) -> String {
    let vms = profile.vms.iter().map(|summary| {
        let map = match &summary.vm.guest {
            Guest::Mapped { via, .. } => format!("map via {via}"),
            Guest::Unmapped { .. } => "no guest map".to_owned(),
        };
        let plural = if summary.n_vcpus == 1 { "" } else { "s" };
        format!("{} ({} vCPU{plural}, {map})", summary.vm.name, summary.n_vcpus)
    });
    let mut vms: Vec<String> = vms.collect();
    if vms.is_empty() {
        return "none".to_owned();
    }
    if LISTED < vms.len() {
        let more = vms.split_off(LISTED).len();
        vms.push(format!("and {more} more"));
    }
    vms.join(", ")
}

fn view(profile: &Profile) -> String {
    let selection = &profile.query.selection;
    let mut text = selection.view().name().to_owned();
    if let Some(vm) = &profile.vm {
        let _ = write!(text, " of {vm}");
    }
    if let Some(vcpu) = selection.vcpu() {
        let _ = write!(text, " vcpu{vcpu}");
    }
    let _ = write!(text, ", by {}", profile.query.by.name());
    if let Some(process) = selection.process() {
        let _ = write!(text, ", process {}", process.text());
    }
    text
}

/// `no sample`, `12 samples: cpu1 12`: those taken and lost.
#[must_use]
pub fn dropped(header: &Header) -> String {
    let Some(cpus) = per_cpu(header, DROPPED) else {
        return "not counted".to_owned();
    };
    match cpus.values().sum() {
        0 => "no sample".to_owned(),
        all => format!("{}: {}", n_samples(all), each_cpu(cpus)),
    }
}

/// `no interrupt`, `90 interrupts (4.5 %): cpu0 90`: those that never came.
#[must_use]
pub fn missed(header: &Header) -> String {
    let Some(cpus) = per_cpu(header, MISSED) else {
        return "not counted".to_owned();
    };
    let all: u64 = cpus.values().sum();
    let plural = match all {
        0 => return "no interrupt".to_owned(),
        1 => "",
        _ => "s",
    };
    let periods = header.end.since(header.start) as f64 / header.period_ns.max(1) as f64;
    let expected = periods * header.cpus.len().max(1) as f64;
    let share = 100.0 * all as f64 / expected.max(all as f64);
    format!("{all} interrupt{plural} ({share:.1} %): {}", each_cpu(cpus))
}

/// A counter by CPU; `None`: it was not counted (a writer that was killed).
fn per_cpu(header: &Header, prefix: &str) -> Option<BTreeMap<u32, u64>> {
    let number = |name: &str| name.strip_prefix(prefix)?.parse().ok();
    let counters = header.counters.iter();
    let cpus: BTreeMap<u32, u64> =
        counters.filter_map(|(name, count)| Some((number(name)?, *count))).collect();
    (!cpus.is_empty()).then_some(cpus)
}

/// In the order of the CPUs; of many, those with the most.
fn each_cpu(cpus: BTreeMap<u32, u64>) -> String {
    let mut cpus: Vec<(u32, u64)> = cpus.into_iter().filter(|(_, count)| *count > 0).collect();
    cpus.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let rest = cpus.split_off(cpus.len().min(LISTED));
    cpus.sort_unstable();
    let mut each: Vec<String> =
        cpus.iter().map(|(cpu, count)| format!("cpu{cpu} {count}")).collect();
    if !rest.is_empty() {
        let count: u64 = rest.iter().map(|(_, count)| count).sum();
        each.push(format!("{} more {count}", rest.len()));
    }
    each.join(", ")
}

fn other_counters(profile: &Profile) -> Option<String> {
    let has_no_line = |name: &str| Counter::of(name) == Counter::Other;
    let others = profile.counters.iter().filter(|(name, _)| has_no_line(name));
    let others: Vec<String> = others.map(|(name, count)| format!("{name} {count}")).collect();
    (!others.is_empty()).then(|| others.join(", "))
}

fn seconds(ns: u64) -> String {
    format!("{:.3}", ns as f64 / 1e9)
}

fn duration(ns: u64) -> String {
    match ns {
        ns if ns % 1_000_000 == 0 => format!("{} ms", ns / 1_000_000),
        ns if ns % 1_000 == 0 => format!("{} us", ns / 1_000),
        ns => format!("{ns} ns"),
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::testing::header;

    #[test]
    fn durations() {
        for (ns, expected) in [(1_000_000, "1 ms"), (2_500_000, "2500 us"), (999, "999 ns")] {
            assert_eq!(duration(ns), expected);
        }
    }

    /// 1000 periods on two CPUs.
    fn counted(counters: &[(&str, u64)]) -> Header {
        let counters = counters.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect();
        Header { counters, ..header(1_000_000, 1_000_000_000) }
    }

    #[test]
    fn dropped_samples() {
        let check = |counters: &[(&str, u64)], expected| {
            assert_eq!(dropped(&counted(counters)), expected, "{counters:?}");
        };
        let (cpu0, cpu1) = ("samples_dropped_cpu0", "samples_dropped_cpu1");
        check(&[], "not counted");
        check(&[(cpu0, 0), (cpu1, 0)], "no sample");
        check(&[(cpu0, 0), (cpu1, 12)], "12 samples: cpu1 12");
        check(&[(cpu0, 1), ("samples_dropped_cpux", 4)], "1 sample: cpu0 1");
    }

    #[test]
    fn missed_interrupts() {
        let check = |counters: &[(&str, u64)], expected| {
            assert_eq!(missed(&counted(counters)), expected, "{counters:?}");
        };
        let (cpu0, cpu1) = ("samples_missed_cpu0", "samples_missed_cpu1");
        check(&[], "not counted");
        check(&[(cpu0, 0)], "no interrupt");
        check(&[(cpu0, 90), (cpu1, 125)], "215 interrupts (10.8 %): cpu0 90, cpu1 125");
        check(&[(cpu0, 1), (cpu1, 0)], "1 interrupt (0.1 %): cpu0 1");
        check(&[(cpu0, 5000)], "5000 interrupts (100.0 %): cpu0 5000");
    }

    #[test]
    fn of_many_cpus_those_with_the_most() {
        let cpus = (0..128).map(|cpu| (cpu, 1 + u64::from(cpu % 16 == 3))).collect();
        let expected = "cpu3 2, cpu19 2, cpu35 2, cpu51 2, cpu67 2, cpu83 2, cpu99 2, cpu115 2, \
                        120 more 120";
        assert_eq!(each_cpu(cpus), expected);
    }
}
