//! Facts about a recording, as every report of one has them.

use std::collections::BTreeMap;

use model::{Counter, Header, Trigger, Vendor};
use table::{LISTED, counted, duration, seconds};

/// What a report says when the recording's writer was killed.
pub(crate) const INCOMPLETE: &str = "the recording's writer did not finish; the end is missing";

pub(crate) fn vendor(header: &Header) -> &'static str {
    match header.vendor {
        Vendor::Amd => "amd",
        Vendor::Intel => "intel",
        Vendor::Other => "other",
    }
}

pub(crate) fn trigger(header: &Header) -> &'static str {
    match header.trigger {
        Trigger::CpuClock => "cpu-clock",
        Trigger::Cycles => "cycles",
    }
}

/// `web1 (Linux 6.1.0)`.
pub(crate) fn host(header: &Header) -> String {
    format!("{} (Linux {})", header.hostname, header.kernel)
}

/// `20.000 s, cpu-clock every 1 ms on 2 CPUs`.
pub(crate) fn sampling(header: &Header) -> String {
    let all = seconds(header.end.since(header.start), 3);
    let (trigger, period) = (trigger(header), duration(header.period_ns));
    format!("{all} s, {trigger} every {period} on {} CPUs", header.cpus.len())
}

/// `1 sample`, `2 samples`.
pub(crate) fn n_samples(n: u64) -> String {
    if n == 1 { "1 sample".to_owned() } else { format!("{n} samples") }
}

/// Samples that were taken and lost: `no sample`, `12 samples: cpu1 12`.
#[must_use]
pub fn dropped(header: &Header) -> String {
    let Some(cpus) = per_cpu(header, Counter::SamplesDropped) else {
        return "not counted".to_owned();
    };
    match cpus.values().sum() {
        0 => "no sample".to_owned(),
        all => format!("{}: {}", n_samples(all), each_cpu(cpus)),
    }
}

/// Interrupts that never came: `no interrupt`, `90 interrupts (4.5 %): cpu0 90`.
#[must_use]
pub fn missed(header: &Header) -> String {
    let Some(cpus) = per_cpu(header, Counter::SamplesMissed) else {
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
fn per_cpu(header: &Header, counter: Counter) -> Option<BTreeMap<u32, u64>> {
    let counts = header.counts(counter);
    let cpus: BTreeMap<u32, u64> = counts.filter_map(|(cpu, count)| Some((cpu?, count))).collect();
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

/// `2 vCPUs`.
pub(crate) fn n_vcpus(n: usize) -> String {
    counted(n as u64, "vCPU")
}

#[cfg(test)]
mod test {
    use model::HostNs;

    use super::*;

    /// 1000 periods on two CPUs.
    fn recorded(counters: &[(&str, u64)]) -> Header {
        Header {
            vmscope_version: "0.1.0".to_owned(),
            hostname: "host1".to_owned(),
            kernel: "6.1".to_owned(),
            boot: None,
            vendor: Vendor::Amd,
            trigger: Trigger::CpuClock,
            off_cpu_source: model::OffCpuSource::Samples,
            cpus: vec![0, 1],
            period_ns: 1_000_000,
            start_unix_ns: 0,
            start: HostNs(0),
            end: HostNs(1_000_000_000),
            complete: true,
            notes: Vec::new(),
            counters: counters.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect(),
        }
    }

    #[test]
    fn dropped_samples() {
        let check = |counters: &[(&str, u64)], expected| {
            assert_eq!(dropped(&recorded(counters)), expected, "{counters:?}");
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
            assert_eq!(missed(&recorded(counters)), expected, "{counters:?}");
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
        let expected =
            "cpu3 2, cpu19 2, cpu35 2, cpu51 2, cpu67 2, cpu83 2, cpu99 2, cpu115 2, 120 more 120";
        assert_eq!(each_cpu(cpus), expected);
    }
}
